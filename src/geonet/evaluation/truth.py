"""The exact path of any pair, as far as there is one: what errors are measured against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import Tensor

from geonet.geodesic import Geodesic, Stack
from geonet.measures.density import Density
from geonet.solvers.registry import make_solver

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
FINER = 21  # cells of a 1D truth for one of the pair's, an odd number
TOLERANCE = {2: 1e-3, 3: 5e-3}  # of monge-ampere; 3D grids are coarse


@dataclass(frozen=True)
class Truth:
    """Exact paths of a batch of pairs.

    Attributes:
        frames: at the quarters, (B, 5, *cells).
        distance: W2, (B,).
        solvers: how many of the pairs each solver answered. All but `linear-program` and
            `schrodinger`, which take pairs that no other does, are exact to a thousandth.
    """

    frames: Density
    distance: Tensor
    solvers: dict[str, int]


def truth_of(source: Density, target: Density) -> Truth:
    """The truth for a batch of pairs: quantiles in 1D, else the best classical solver for each."""
    if source.grid.dimension == 1:
        return _truth_1d(source, target)
    solver = make_solver("auto", learned=False, tolerance=TOLERANCE[source.grid.dimension])
    path = solver(source, target)
    return Truth(path.density(QUARTERS), path.distance, _names(path))


def _truth_1d(source: Density, target: Density) -> Truth:
    """Paths are means over cells: of much finer ones, whose middle is the cell's centre."""
    fine = source.grid.with_shape(FINER * source.grid.size)
    ends = [Density(end.at(fine.points()).clamp(min=0), fine) for end in (source, target)]
    path = make_solver("quantile")(*ends)
    middles = path.density(QUARTERS).values[..., FINER // 2 :: FINER]
    frames = Density.as_computed(middles, source.grid)
    return Truth(frames, path.distance, _names(path))


def _names(path: Geodesic) -> dict[str, int]:
    if isinstance(path, Stack):
        return dict(Counter(own.solver for own in path.paths))
    return {path.solver: path.batch[0] if path.batch else 1}
