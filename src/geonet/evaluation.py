"""How far a solver's paths are from exact ones, over many pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from geonet import _progress as progress
from geonet._format import format_number
from geonet._validation import check_instance
from geonet.density import Density, as_tensor, check_density
from geonet.errors import ConvergenceError, DensityError, GeonetError, InputError, UnavailableError
from geonet.grid import Grid
from geonet.metrics import l1
from geonet.mixture import (
    BOX_1D,
    BOX_2D,
    BOX_3D,
    GaussianMixture,
    mixtures_1d,
    mixtures_2d,
    mixtures_3d,
)
from geonet.numerics.characteristics import Characteristics
from geonet.numerics.cosine import CosineSeries
from geonet.paths import QUARTERS, Geodesic
from geonet.solvers.base import Solver, check_pair
from geonet.solvers.monge_ampere import PotentialGeodesic, positive_interpolant
from geonet.solvers.registry import make_solver


@dataclass(frozen=True)
class Accuracy:
    """Errors of a solver in percent, over the pairs that it answered.

    Attributes:
        solver: its name.
        pairs: how many it answered.
        failures: what it said of each of the others.
        mean: of the L1 error at t = 0, ¼, ½, ¾, 1.
        deviation: standard deviation over the pairs.
        worst: the largest.
        distance: mean of |W2 − exact| / exact, over pairs that are apart; None if it gives none.
    """

    solver: str
    pairs: int
    failures: list[str]
    mean: list[float]
    deviation: list[float]
    worst: list[float]
    distance: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"times": list(QUARTERS), **asdict(self)}

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each time: t, mean ± deviation, worst."""
        columns = zip(QUARTERS, self.mean, self.deviation, self.worst, strict=True)
        return [
            (f"{t:g}", f"{format_number(m, 3)} ± {format_number(s, 3)}", format_number(w, 3))
            for t, m, s, w in columns
        ]


def measure(
    solver: Solver, source: Density, target: Density, truth: Density, distance: Tensor
) -> Accuracy:
    """Solve a batch of pairs, one by one, and compare with their exact frames and distances."""
    check_instance(solver, Solver, "solver", "give a Solver, such as geonet.solver('auto')")
    for batch, name in ((source, "source"), (target, "target"), (truth, "truth")):
        check_density(batch, name)
    distance = as_tensor(distance)
    errors, distances, failures = [], [], []
    for k in range(len(source)):
        try:
            with progress.part(f"{solver.name} {k + 1}/{len(source)}"):
                path = solver(source[k], target[k])
            errors.append(100 * l1(path.density(QUARTERS), truth[k]).double())
            distances.append(_relative(path, distance[k]))
        except GeonetError as error:
            failures.append(" ".join(str(error).split()))
    if not errors:
        raise InputError(f"The solver {solver.name!r} answers none of the pairs: {failures[0]}")
    found = torch.stack(errors)
    return Accuracy(
        solver=solver.name,
        pairs=len(errors),
        failures=failures,
        mean=found.mean(0).tolist(),
        deviation=found.std(0, correction=0).tolist(),
        worst=found.amax(0).tolist(),
        distance=_mean(distances),
    )


def _relative(path: Geodesic, exact: Tensor) -> float | None:
    """The relative error of W2 in percent; None where there is none, or nothing moves."""
    try:
        found = float(path.distance)
    except UnavailableError:
        return None
    still = 1e-9 * path.grid.longest
    return 100 * abs(found - float(exact)) / float(exact) if float(exact) > still else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# ---- The exact path of any pair, as far as there is one: what errors are measured against.


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

    It tells which pair of a batch it is at (`geonet._progress`).

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
        frames=Density.as_computed(torch.stack([one.frames.tensor for one in found]), source.grid),
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
    middles = path.density(QUARTERS).tensor[..., FINER // 2 :: FINER]
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


# ---- Pairs with a known optimal map: the truth for tests and suites, in any dimension.
#
# Choose μ_0 and a convex φ = ½|x|² + u with ∂u/∂n = 0 on the box, and set μ_1 = (∇φ)#μ_0. By
# Brenier's theorem ∇φ is the optimal map, so no solver is needed:
# μ_t(x_0 + t∇u(x_0)) = μ_0(x_0)/det(I + tD²u(x_0)).


def known_map_geodesic(source: Density, potential: CosineSeries) -> KnownMapGeodesic:
    """The geodesic from `source` along u; its `target` is (id + ∇u)#source on the source's grid.

    Exact where the source is a Gaussian mixture (its formula is used off the grid); otherwise as
    good as the cubic interpolation of its logarithm.
    """
    if source.leading or not source.grid.same_box(potential.grid):
        raise InputError("A known map takes one density and a potential on the same box.")
    if bool((source.tensor <= 0).any()):
        raise InputError("A known map takes a positive source; use source.with_floor(fraction).")
    one = torch.ones(1, dtype=torch.float64)
    frames = _carried(Characteristics(potential), source, one, source.grid)
    target = Density(frames[0], source.grid)
    return KnownMapGeodesic(source, target, "known-map", {}, potential)


def random_potential(
    grid: Grid, generator: torch.Generator, modes: int = 4, strength: float = 0.6
) -> CosineSeries:
    """u with random low modes, scaled so that |eigenvalues of D²u| reach `strength` < 1."""
    if not 0 < strength < 1:
        raise InputError(f"strength is {strength:g}; I + D²u > 0 needs it in (0, 1).")
    shape = (modes,) * grid.dimension
    frequency = torch.stack(
        torch.meshgrid(*[torch.arange(modes, dtype=torch.float64)] * grid.dimension, indexing="ij")
    )
    decay = 1 / (1 + (frequency**2).sum(0)) ** 1.5
    series = CosineSeries(
        torch.randn(shape, dtype=torch.float64, generator=generator) * decay, grid
    )
    _, hessian = series.derivatives_on(grid.with_shape(8 * modes))
    matrices = hessian.reshape(grid.dimension, grid.dimension, -1).movedim(-1, 0)
    largest = torch.linalg.eigvalsh(matrices).abs().max()
    return CosineSeries(series.coefficients * (strength / largest), grid)


class KnownMapGeodesic(PotentialGeodesic):
    """Carries the source alone: the target was made from it and is known only on the grid."""

    kind = "known-map"

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        return _carried(self.characteristics, self.source, times, grid)


def _carried(lines: Characteristics, source: Density, times: Tensor, grid: Grid) -> Tensor:
    """μ_0(x_0)/det(I + tD²u_0(x_0)) on the grid, (T, *shape)."""
    points = grid.points().reshape(-1, grid.dimension)
    source_at = positive_interpolant(source)
    frames = [
        source_at(origin.point) / origin.determinant(t)
        for t, origin in zip(times.tolist(), lines.origins(times, points), strict=True)
    ]
    return torch.stack(frames).reshape(len(times), *grid.shape)


# ---- Test pairs that no training saw, with their exact paths at the quarters.


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
    source, target = (Density(end.on(case.grid).tensor, case.grid) for end in (first, second))
    if case.identity:
        still = source.tensor[:, None].expand(-1, len(QUARTERS), *case.grid.shape)
        nowhere = torch.zeros(count, dtype=torch.float64)
        return KnownPairs(source, target, Density(still, case.grid), nowhere)
    if case.grid.dimension == 1:
        exact = truth_of(first.on(case.grid), second.on(case.grid))
        return KnownPairs(source, target, exact.frames, exact.distance)
    paths = {k: path for k in range(count) if (path := smooth_path(first[k], second[k], BOX_2D))}
    truth = torch.stack([p.density(QUARTERS, case.grid).tensor for p in paths.values()])
    distance = torch.stack([p.distance for p in paths.values()])
    source, target = (Density(end.tensor[list(paths)], case.grid) for end in (source, target))
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
            [path.source.tensor for path in paths],
            [path.target.tensor for path in paths],
            [path.density(QUARTERS).tensor for path in paths],
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
