"""The exact path of any pair, as far as there is one: what errors are measured against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from geonet import progress
from geonet.errors import ConvergenceError, DensityError
from geonet.geodesics.base import QUARTERS, Geodesic
from geonet.measures.density import Density
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.solvers.base import check_pair
from geonet.solvers.registry import make_solver

FINER = 21  # cells of the truth of a formula in 1D for one of the pair's, an odd number
ROUGH = 3  # along each axis, for pairs in 2D and 3D that have no smooth map
MOST_CELLS = 1 << 18  # for which that is done
TOLERANCE = {2: 1e-3, 3: 5e-3}  # of monge-ampere; 3D grids are coarse


@dataclass(frozen=True)
class Truth:
    """Exact paths of a batch of pairs.

    Attributes:
        frames: at the quarters, (B, 5, *cells).
        distance: W2, (B,); of a bridge the bound from below that its potentials give.
        solvers: how many of the pairs each solver answered. All are exact to some thousandths, but
            `midpoint` for rough pairs, to about a hundredth.
    """

    frames: Density
    distance: Tensor
    solvers: dict[str, int]


def truth_of(
    source: Density,
    target: Density,
    epsilon: float = 0.0,
    of_pair: Callable[[Density, Density, float], Truth] | None = None,
) -> Truth:
    """The truth for a pair, or for a batch, pair by pair.

    It tells which pair of a batch it is at (`geonet.progress`).

    Args:
        source: the first ends.
        target: the second ends.
        epsilon: noise; the truth is the Schrödinger bridge if there is any.
        of_pair: what answers one pair, by default `truth_of_pair`.
    """
    of_pair = of_pair or truth_of_pair
    check_pair(source, target)
    if not source.leading:
        return of_pair(source, target, epsilon)
    found = []
    for k, pair in enumerate(zip(source, target, strict=True), 1):
        with progress.part(f"exact path {k}/{len(source)}"):
            found.append(of_pair(*pair, epsilon))
    return Truth(
        frames=Density.as_computed(torch.stack([one.frames.values for one in found]), source.grid),
        distance=torch.stack([one.distance for one in found]),
        solvers=dict(sum((Counter(one.solvers) for one in found), Counter())),
    )


def truth_of_pair(source: Density, target: Density, epsilon: float = 0.0) -> Truth:
    """The bridge for ε > 0; else quantiles in 1D, and the best classical solver in 2D and 3D."""
    if epsilon:
        return _answer(make_solver("schrodinger", epsilon=epsilon)(source, target), source.grid)
    exact = _truth_1d if source.grid.dimension == 1 else _smooth_or_rough
    return exact(source, target)


def _truth_1d(source: Density, target: Density) -> Truth:
    """Quantiles; for formulas on much finer cells, whose middle one is the cell's centre."""
    if source.mixture is None or target.mixture is None:
        return _answer(make_solver("quantile")(source, target), source.grid)
    fine = source.grid.with_shape(FINER * source.grid.size)
    path = make_solver("quantile")(source.mixture.on(fine), target.mixture.on(fine))
    middles = path.density(QUARTERS).values[..., FINER // 2 :: FINER]
    found = _answer(path, source.grid)
    return Truth(Density.as_computed(middles, source.grid), found.distance, found.solvers)


def _smooth_or_rough(source: Density, target: Density) -> Truth:
    """By `monge-ampere` where there is a smooth map, else by `midpoint` on finer cells."""
    grid = source.grid
    with suppress(ConvergenceError, DensityError):
        smooth = make_solver("monge-ampere", tolerance=TOLERANCE[grid.dimension])
        return _answer(smooth(source, target), grid)
    fine = grid.with_shape([ROUGH * n for n in grid.shape])
    if fine.size > MOST_CELLS:
        fine = grid
    path = make_solver("midpoint")(source.resample(fine), target.resample(fine))
    return _answer(path, grid)


def _answer(path: Geodesic, grid: Grid) -> Truth:
    return Truth(path.density(QUARTERS, grid), path.distance, {path.solver: 1})


def exact_path(source: Density, target: Density, epsilon: float) -> Density:
    """The frames of `truth_of`."""
    return truth_of(source, target, epsilon).frames


def smooth_path(first: GaussianMixture, second: GaussianMixture, grid: Grid) -> Geodesic | None:
    """The exact path between two mixtures on a grid; None for those that `monge-ampere` refuses.

    Far out of distribution there are some.
    """
    try:
        return make_solver("monge-ampere")(first.on(grid), second.on(grid))
    except ConvergenceError:
        return None
