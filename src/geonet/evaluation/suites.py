"""Test pairs that no training saw, with their exact paths at the quarters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from geonet.evaluation.truth import smooth_path, truth_of
from geonet.geodesics.base import QUARTERS, Geodesic
from geonet.geodesics.known_map import known_map_geodesic, random_potential
from geonet.measures.density import Density
from geonet.measures.families import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.solvers.registry import make_solver

TIMES = tuple(f"t = {t:g}" for t in QUARTERS)
PAIRS = 50
SEED = 7_000  # training draws from 1,000,003 + its seed, validation from 1,000,000
OOD_1D = partial(mixtures_1d, spread=(0.3, 0.4))
OOD_2D = partial(mixtures_2d, narrow=(0.25, 0.3), wide=(0.65, 0.8))


@dataclass(frozen=True)
class Case:
    """Pairs of a family on a grid; with `identity` both ends are the same."""

    family: Callable[..., GaussianMixture]
    grid: Grid
    identity: bool = False


CASES = {
    "1D identity": Case(mixtures_1d, BOX_1D, identity=True),
    "1D random": Case(mixtures_1d, BOX_1D),
    "1D high-res": Case(mixtures_1d, BOX_1D.with_shape(200)),
    "1D OOD": Case(OOD_1D, BOX_1D),
    "2D identity": Case(mixtures_2d, BOX_2D.with_shape(40), identity=True),
    "2D random": Case(mixtures_2d, BOX_2D.with_shape(40)),
    "2D high-res": Case(mixtures_2d, BOX_2D.with_shape(75)),
    "2D OOD": Case(OOD_2D, BOX_2D.with_shape(40)),
}


@dataclass(frozen=True)
class KnownPairs:
    """Gridded pairs with their exact paths at the quarters and their exact distances."""

    source: Density
    target: Density
    truth: Density
    distance: Tensor

    def solved(self, solver: str, **options) -> Geodesic:
        """The paths that a solver gives."""
        return make_solver(solver, **options)(self.source, self.target)

    def example(self, solver: str) -> Geodesic:
        """The path of the first pair."""
        return make_solver(solver)(self.source[0], self.target[0])

    def frames(self, solver: str, **options) -> Density:
        """What a solver gives at the quarters, (pairs, 5, *cells)."""
        return self.solved(solver, **options).density(QUARTERS)


def pairs_of(case: Case, count: int = PAIRS, seed: int = SEED) -> KnownPairs:
    """Random pairs of a case; solvers see cells alone, the truth is found from the formulas."""
    mixture = case.family(2 * count, torch.Generator().manual_seed(seed))
    first = _part(mixture, slice(count))
    second = first if case.identity else _part(mixture, slice(count, None))
    source, target = (Density(end.on(case.grid).values, case.grid) for end in (first, second))
    if case.identity:
        still = source.values[:, None].expand(-1, len(QUARTERS), *case.grid.shape)
        nowhere = torch.zeros(count, dtype=torch.float64)
        return KnownPairs(source, target, Density(still, case.grid), nowhere)
    if case.grid.dimension == 1:
        exact = truth_of(first.on(case.grid), second.on(case.grid))
        return KnownPairs(source, target, exact.frames, exact.distance)
    paths = {k: path for k in range(count) if (path := smooth_path(first[k], second[k], BOX_2D))}
    truth = torch.stack([p.density(QUARTERS, case.grid).values for p in paths.values()])
    distance = torch.stack([p.distance for p in paths.values()])
    source, target = (Density(end.values[list(paths)], case.grid) for end in (source, target))
    return KnownPairs(source, target, Density.as_computed(truth, case.grid), distance)


def known_map_pairs(count: int = 20, seed: int = SEED) -> KnownPairs:
    """3D mixtures carried by random potentials, whose path is exact by construction."""
    generator = torch.Generator().manual_seed(seed)
    mixtures = mixtures_3d(count, generator)
    paths = [
        known_map_geodesic(mixtures[k].on(BOX_3D), random_potential(BOX_3D, generator, 3, 0.5))
        for k in range(count)
    ]
    source, target, truth = (
        torch.stack(values)
        for values in (
            [path.source.values for path in paths],
            [path.target.values for path in paths],
            [path.density(QUARTERS).values for path in paths],
        )
    )
    return KnownPairs(
        Density(source, BOX_3D),
        Density(target, BOX_3D),
        Density.as_computed(truth, BOX_3D),
        torch.stack([path.distance for path in paths]),
    )


def _part(mixture: GaussianMixture, which: slice) -> GaussianMixture:
    return GaussianMixture(mixture.means[which], mixture.covariances[which], mixture.weights[which])
