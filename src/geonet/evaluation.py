"""Accuracy of solvers on pairs of densities with exact or reference paths.

`measure` compares a solver with reference frames and distances. These come from
`reference_solution`, for any pairs; from `prescribed_map_geodesic`, whose optimal map is known by
construction; or from `sample_pairs`, the test sets of `geonet evaluate`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from geonet._format import format_number
from geonet._progress import progress_stage
from geonet.density import Density
from geonet.errors import ConvergenceError, DensityError, GeonetError, InputError, UnavailableError
from geonet.grid import Grid
from geonet.metrics import l1_tensor
from geonet.mixture import BOX_1D, BOX_2D, GaussianMixture, mixtures_1d, mixtures_2d
from geonet.numerics.characteristics import Characteristics
from geonet.numerics.cosine import CosineSeries
from geonet.paths import QUARTERS, Geodesic
from geonet.solvers.base import Solver, check_pair
from geonet.solvers.monge_ampere import PrescribedMapGeodesic, push_source
from geonet.solvers.registry import make_solver

__all__ = [
    "TEST_SETS",
    "Accuracy",
    "Reference",
    "ReferencePairs",
    "TestSet",
    "measure",
    "prescribed_map_geodesic",
    "random_potential",
    "reference_solution",
    "sample_pairs",
]

TIME_LABELS = tuple(f"t = {t:g}" for t in QUARTERS)
PAIRS = 50  # default size of a test set
SEED = 7_000  # of test sets; training uses 1,000,003 + its seed, validation 1,000,000


@dataclass(frozen=True)
class Accuracy:
    """Errors of a solver in percent, over the pairs that it solved.

    Attributes:
        solver: name of the solver.
        pairs: number of pairs that it solved.
        failures: error message for each of the others.
        mean: mean L1 error at t = 0, ¼, ½, ¾, 1.
        deviation: standard deviation over the pairs.
        worst: largest L1 error.
        distance: mean of |W2 − exact| / exact, over pairs with different ends; None if the solver
            provides no distance.
    """

    solver: str
    pairs: int
    failures: list[str]
    mean: list[float]
    deviation: list[float]
    worst: list[float]
    distance: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields and the times as plain Python objects."""
        return {"times": list(QUARTERS), **asdict(self)}

    def rows(self) -> list[tuple[str, ...]]:
        """Return a table row for each time: t, mean ± deviation, worst."""
        columns = zip(QUARTERS, self.mean, self.deviation, self.worst, strict=True)
        return [
            (f"{t:g}", f"{format_number(m, 3)} ± {format_number(s, 3)}", format_number(w, 3))
            for t, m, s, w in columns
        ]


def measure(
    solver: Solver, source: Density, target: Density, frames: Density, distance: Tensor
) -> Accuracy:
    """Solve a batch of pairs one by one and compare with reference frames and distances.

    Args:
        solver: solver to measure.
        source: first densities, (B, *cells).
        target: second densities, (B, *cells).
        frames: reference at t = 0, ¼, ½, ¾, 1, (B, 5, *cells).
        distance: reference W2, (B,).

    Raises:
        InputError: if the solver fails for every pair.
    """
    errors, distances, failures = [], [], []
    for k in range(len(source)):
        try:
            with progress_stage(f"{solver.name} {k + 1}/{len(source)}"):
                path = solver(source[k], target[k])
            errors.append(100 * l1_tensor(path.density(QUARTERS), frames[k]).double())
            distances.append(_distance_error(path, float(distance[k])))
        except GeonetError as error:
            failures.append(" ".join(str(error).split()))
    if not errors:
        raise InputError(f"The solver {solver.name!r} fails for all pairs: {failures[0]}")
    l1 = torch.stack(errors)
    known = [error for error in distances if error is not None]
    return Accuracy(
        solver=solver.name,
        pairs=len(errors),
        failures=failures,
        mean=l1.mean(0).tolist(),
        deviation=l1.std(0, correction=0).tolist(),
        worst=l1.amax(0).tolist(),
        distance=sum(known) / len(known) if known else None,
    )


def _distance_error(path: Geodesic, exact: float) -> float | None:
    """Return the relative error of W2 in percent; None without a distance or for equal ends."""
    try:
        distance = float(path.distance)
    except UnavailableError:
        return None
    if exact <= 1e-9 * path.grid.max_side:
        return None
    return 100 * abs(distance - exact) / exact


@dataclass(frozen=True)
class Reference:
    """Reference paths of a batch of pairs, exact to a few thousandths.

    Attributes:
        frames: densities at t = 0, ¼, ½, ¾, 1, (B, 5, *cells).
        distance: W2, (B,); for bridges the lower bound from their potentials.
        solvers: number of pairs for each solver. `midpoint`, which solves rough pairs, is exact to
            about a hundredth.
    """

    frames: Density
    distance: Tensor
    solvers: dict[str, int]


def reference_solution(
    source: Density,
    target: Density,
    epsilon: float = 0.0,
    solve_pair: Callable[[Density, Density, float], Reference] | None = None,
) -> Reference:
    """Return the reference for a pair, or for a batch, pair by pair.

    Progress callbacks receive the number of the pair.

    Args:
        source: first densities.
        target: second densities.
        epsilon: noise, in units of length squared; if positive, the reference is the Schrödinger
            bridge.
        solve_pair: function for one pair, by default `reference_for_pair`.
    """
    solve_pair = solve_pair or reference_for_pair
    check_pair(source, target)
    if not source.batch_shape:
        return solve_pair(source, target, epsilon)
    parts = []
    for k, pair in enumerate(zip(source, target, strict=True), 1):
        with progress_stage(f"exact path {k}/{len(source)}"):
            parts.append(solve_pair(*pair, epsilon))
    frames = torch.stack([part.frames.tensor for part in parts])
    return Reference(
        frames=Density.from_unnormalized(frames, source.grid),
        distance=torch.stack([part.distance for part in parts]),
        solvers=dict(sum((Counter(part.solvers) for part in parts), Counter())),
    )


def reference_frames(source: Density, target: Density, epsilon: float) -> Density:
    """Return the frames of `reference_solution`."""
    return reference_solution(source, target, epsilon).frames


def reference_for_pair(source: Density, target: Density, epsilon: float = 0.0) -> Reference:
    """Return the reference for one pair.

    It is the bridge for ε > 0; otherwise quantiles in 1D, and the best classical solver in 2D, 3D.
    """
    if epsilon:
        return _evaluate(make_solver("schrodinger", epsilon=epsilon)(source, target), source.grid)
    solve = _solve_1d if source.grid.dimension == 1 else _solve_smooth_or_rough
    return solve(source, target)


def _solve_1d(source: Density, target: Density, refinement: int = 21) -> Reference:
    """Solve by quantiles; mixtures on finer cells, the middle one of which is at the centre."""
    if source.mixture is None or target.mixture is None:
        return _evaluate(make_solver("quantile")(source, target), source.grid)
    fine = source.grid.with_shape(refinement * source.grid.size)
    path = make_solver("quantile")(source.mixture.to_density(fine), target.mixture.to_density(fine))
    centres = path.density(QUARTERS).tensor[..., refinement // 2 :: refinement]
    result = _evaluate(path, source.grid)
    frames = Density.from_unnormalized(centres, source.grid)
    return Reference(frames, result.distance, result.solvers)


def _solve_smooth_or_rough(
    source: Density, target: Density, refinement: int = 3, max_cells: int = 1 << 18
) -> Reference:
    """Solve by `monge-ampere` if the map is smooth, otherwise by `midpoint` on finer cells.

    Periodic axes need `midpoint`, too.
    """
    grid = source.grid
    if not grid.is_periodic:
        with suppress(ConvergenceError, DensityError):
            tolerance = 1e-3 if grid.dimension == 2 else 5e-3  # 3D grids are coarse
            path = make_solver("monge-ampere", tolerance=tolerance)(source, target)
            return _evaluate(path, grid)
    fine = grid.with_shape([refinement * n for n in grid.shape])
    if fine.size > max_cells:
        fine = grid
    path = make_solver("midpoint")(source.resample(fine), target.resample(fine))
    return _evaluate(path, grid)


def _evaluate(path: Geodesic, grid: Grid) -> Reference:
    return Reference(path.density(QUARTERS, grid), path._distance(), {path.solver: 1})


def prescribed_map_geodesic(source: Density, potential: CosineSeries) -> PrescribedMapGeodesic:
    """Return the geodesic from `source` along the map id + ∇u, in any dimension.

    Choose μ_0 and a convex ½|x|² + u with ∂u/∂n = 0 on the box, and set μ_1 = (id + ∇u)#μ_0. By
    Brenier's theorem id + ∇u is the optimal map, so no solver is needed:

        μ_t(x_0 + t∇u(x_0)) = μ_0(x_0)/det(I + tD²u(x_0)).

    The path is exact if the source is a Gaussian mixture, whose formula is used off the grid;
    otherwise as accurate as cubic interpolation of the logarithm.

    Args:
        source: one positive density.
        potential: u, on the box of the source.
    """
    if source.batch_shape or not source.grid.same_box(potential.grid):
        raise InputError("A prescribed map needs one density and a potential on the same box.")
    if source.grid.is_periodic:
        raise InputError(
            "A prescribed map is a cosine series, which needs walls; give a grid without periodic "
            "axes."
        )
    if bool((source.tensor <= 0).any()):
        raise InputError(
            "A prescribed map needs a positive source; use source.with_floor(fraction)."
        )
    one = torch.ones(1, dtype=torch.float64)
    frames = push_source(Characteristics(potential), source, one, source.grid)
    target = Density(frames[0], source.grid)
    return PrescribedMapGeodesic(source, target, "prescribed-map", {}, potential)


def random_potential(
    grid: Grid, generator: torch.Generator, modes: int = 4, strength: float = 0.6
) -> CosineSeries:
    """Return u with random low modes, scaled so that |eigenvalues of D²u| reach `strength` < 1."""
    if not 0 < strength < 1:
        raise InputError(f"strength is {strength:g}; I + D²u > 0 needs a value in (0, 1).")
    d = grid.dimension
    axes = [torch.arange(modes, dtype=torch.float64)] * d
    frequency = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    decay = 1 / (1 + (frequency**2).sum(0)) ** 1.5
    noise = torch.randn((modes,) * d, dtype=torch.float64, generator=generator)
    series = CosineSeries(noise * decay, grid)
    _, hessian = series.derivatives_on(grid.with_shape(8 * modes))
    largest = torch.linalg.eigvalsh(hessian.reshape(d, d, -1).movedim(-1, 0)).abs().max()
    return CosineSeries(series.coefficients * (strength / largest), grid)


@dataclass(frozen=True)
class TestSet:
    """Random pairs of a family of Gaussian mixtures on a grid.

    Attributes:
        family: function (count, generator) that draws a batch of mixtures.
        grid: grid of the densities.
        identity: whether both ends are the same density.
    """

    __test__ = False  # not a class of tests for pytest

    family: Callable[..., GaussianMixture]
    grid: Grid
    identity: bool = False


_mixtures_1d_ood = partial(mixtures_1d, spread=(0.3, 0.4))
_mixtures_2d_ood = partial(mixtures_2d, narrow=(0.25, 0.3), wide=(0.65, 0.8))
TEST_SETS = {
    "1D identity": TestSet(mixtures_1d, BOX_1D, identity=True),
    "1D random": TestSet(mixtures_1d, BOX_1D),
    "1D high-res": TestSet(mixtures_1d, BOX_1D.with_shape(200)),
    "1D OOD": TestSet(_mixtures_1d_ood, BOX_1D),
    "2D identity": TestSet(mixtures_2d, BOX_2D.with_shape(40), identity=True),
    "2D random": TestSet(mixtures_2d, BOX_2D.with_shape(40)),
    "2D high-res": TestSet(mixtures_2d, BOX_2D.with_shape(75)),
    "2D OOD": TestSet(_mixtures_2d_ood, BOX_2D.with_shape(40)),
}


@dataclass(frozen=True)
class ReferencePairs:
    """Gridded pairs with their exact paths.

    Attributes:
        source: first densities, (B, *cells).
        target: second densities, (B, *cells).
        truth: exact frames at t = 0, ¼, ½, ¾, 1, (B, 5, *cells).
        distance: exact W2, (B,).
    """

    source: Density
    target: Density
    truth: Density
    distance: Tensor

    def solve(self, solver: str, **options) -> Geodesic:
        """Return the paths of a solver."""
        return make_solver(solver, **options)(self.source, self.target)

    def solve_first(self, solver: str) -> Geodesic:
        """Return the path of a solver for the first pair."""
        return make_solver(solver)(self.source[0], self.target[0])

    def solve_frames(self, solver: str, **options) -> Density:
        """Return the frames of a solver at t = 0, ¼, ½, ¾, 1, (B, 5, *cells)."""
        return self.solve(solver, **options).density(QUARTERS)


def sample_pairs(test_set: TestSet, count: int = PAIRS, seed: int = SEED) -> ReferencePairs:
    """Draw random pairs of a test set and compute their exact paths from the formulas.

    The pairs themselves have values on cells only. In 2D, pairs without a smooth map are left out.
    """
    grid = test_set.grid
    mixture = test_set.family(2 * count, torch.Generator().manual_seed(seed))
    first = _slice(mixture, slice(count))
    second = first if test_set.identity else _slice(mixture, slice(count, None))
    source, target = (Density(end.to_density(grid).tensor, grid) for end in (first, second))
    if test_set.identity:
        frames = source.tensor[:, None].expand(-1, len(QUARTERS), *grid.shape)
        zero = torch.zeros(count, dtype=torch.float64)
        return ReferencePairs(source, target, Density(frames, grid), zero)
    if grid.dimension == 1:
        exact = reference_solution(first.to_density(grid), second.to_density(grid))
        return ReferencePairs(source, target, exact.frames, exact.distance)
    paths = {k: path for k in range(count) if (path := _smooth_path(first[k], second[k], BOX_2D))}
    frames = torch.stack([path.density(QUARTERS, grid).tensor for path in paths.values()])
    distance = torch.stack([path._distance() for path in paths.values()])
    source, target = (Density(end.tensor[list(paths)], grid) for end in (source, target))
    return ReferencePairs(source, target, Density.from_unnormalized(frames, grid), distance)


def _smooth_path(first: GaussianMixture, second: GaussianMixture, grid: Grid) -> Geodesic | None:
    """Return the exact path between two mixtures, or None if `monge-ampere` does not converge."""
    try:
        return make_solver("monge-ampere")(first.to_density(grid), second.to_density(grid))
    except ConvergenceError:  # for some pairs that are far out of distribution
        return None


def _slice(mixture: GaussianMixture, which: slice) -> GaussianMixture:
    return GaussianMixture(mixture.means[which], mixture.covariances[which], mixture.weights[which])
