"""The exact path of any pair, as far as there is one: what errors are measured against."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.measures.density import Density
from geonet.solvers.auto import MOST_CELLS
from geonet.solvers.base import Solver
from geonet.solvers.registry import make_solver

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
FINER = 21  # cells of a 1D truth for one of the pair's, an odd number
ROUGH = 3  # likewise for pairs in 2D and 3D that have no smooth map
TOLERANCE = {2: 1e-3, 3: 5e-3}  # of monge-ampere; 3D grids are coarse


@dataclass(frozen=True)
class Truth:
    """Exact paths of a batch of pairs.

    Attributes:
        frames: at the quarters, (B, 5, *cells).
        distance: W2, (B,).
        solvers: how many of the pairs each solver answered. All but `linear-program` and
            `schrodinger`, which take pairs that no other does, are exact to some thousandths.
    """

    frames: Density
    distance: Tensor
    solvers: dict[str, int]


def truth_of(source: Density, target: Density) -> Truth:
    """The truth for a pair or a batch: quantiles in 1D, else the best classical solver for each."""
    if source.grid.dimension == 1:
        return _finely(make_solver("quantile"), source, target, FINER)
    if not source.leading:
        return _truth_of_pair(source, target)
    found = [_truth_of_pair(*pair) for pair in zip(source, target, strict=True)]
    return Truth(
        frames=Density.as_computed(torch.stack([one.frames.values for one in found]), source.grid),
        distance=torch.stack([one.distance for one in found]),
        solvers=dict(sum((Counter(one.solvers) for one in found), Counter())),
    )


def _truth_of_pair(source: Density, target: Density) -> Truth:
    """On the pair's own cells, or, where its map is not smooth, on finer ones: less noise."""
    solver = make_solver("auto", learned=False, tolerance=TOLERANCE[source.grid.dimension])
    path = solver(source, target)
    if (
        path.solver == "schrodinger"
        and source.grid.size * ROUGH**source.grid.dimension <= MOST_CELLS
    ):
        return _finely(solver, source, target, ROUGH)
    return Truth(path.density(QUARTERS), path.distance, {path.solver: 1})


def _finely(solver: Solver, source: Density, target: Density, finer: int) -> Truth:
    """Solved on `finer` cells for one along each axis, of which the middle one is the centre."""
    grid, middle = source.grid, slice(finer // 2, None, finer)
    fine = grid.with_shape([finer * n for n in grid.shape])
    ends = [Density(end.at(fine.points()).clamp(min=0), fine) for end in (source, target)]
    path = solver(*ends)
    frames = path.density(QUARTERS).values[(..., *(middle,) * grid.dimension)]
    count = path.batch[0] if path.batch else 1
    return Truth(Density.as_computed(frames, grid), path.distance, {path.solver: count})
