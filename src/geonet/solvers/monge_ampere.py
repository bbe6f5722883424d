"""Smooth positive densities on a box: the Monge–Ampère equation by Newton's method.

The optimal map is T = id + ∇u with I + D²u positive definite and, on a box, ∂u/∂n = 0 (even
reflection: faces stay in place). We solve

    G(u) = log μ_1(x + ∇u) + log det(I + D²u) − log μ_0(x) = constant,

the logarithm of μ_1(T)·det DT = μ_0. Its linearisation tr((I + D²u)⁻¹ D²δ) + ∇log μ_1(T)·∇δ is
close to a Laplacian, whose inverse, diagonal in cosine modes, preconditions GMRES. Coarse grids
come first: their series, padded with zeros, starts Newton on the next one.

Where autograd asks, u has the gradient that G(u; μ_0, μ_1) = constant implies: the linearisation at
the answer is solved once more, transposed, when the gradient is called for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from geonet._advice import setting
from geonet._format import format_number, format_percent
from geonet._progress import report_progress
from geonet.density import Density
from geonet.errors import ConvergenceError, DensityError, SolverError
from geonet.grid import Grid
from geonet.numerics.autograd import once_differentiable, requires_grad, with_dual_gradient
from geonet.numerics.characteristics import Characteristics, Preimage
from geonet.numerics.cosine import CosineSeries
from geonet.numerics.interpolation import CubicSpline
from geonet.paths import Geodesic
from geonet.solvers.base import ALL_QUANTITIES, Solver, SolverInfo

# ---- A geodesic given by its potential at t = 0: everything else follows along straight lines.
#
# A particle goes from x_0 to x_t = x_0 + t∇u_0(x_0), and with it goes the density,
#
#     μ_t(x_t) = μ_0(x_0) / det(I + tD²u_0(x_0))
#              = μ_1(x_1) · det(I + D²u_0(x_0)) / det(I + tD²u_0(x_0)).


class PotentialGeodesic(Geodesic):
    """The geodesic whose potential at t = 0 is a cosine series u_0 with I + D²u_0 > 0."""

    kind = "potential"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        series: CosineSeries,
    ):
        super().__init__(source, target, solver, info)
        self.series = series
        self.characteristics = Characteristics(series)
        self._source_at, self._target_at = (positive_interpolant(end) for end in (source, target))

    def _distance(self) -> Tensor:
        """W2² = ∫|∇u_0|² dμ_0."""
        with torch.no_grad():
            gradient, _ = self.series.derivatives_on(self.grid)
            squared = ((gradient**2).sum(0) * self.source.tensor * self.grid.cell_volume).sum()
        return with_dual_gradient(squared.sqrt(), self.source, self.target, self._kantorovich)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """(1−t)·(carried from the source) + t·(carried from the target): exact at both ends."""
        points = grid.points().reshape(-1, grid.dimension)
        frames = []
        for t, origin in self._along(times, points):
            from_source = self._source_at(origin.point)
            from_target = self._target_at(origin.point + origin.gradient) * origin.determinant(1.0)
            frames.append(torch.lerp(from_source, from_target, t) / origin.determinant(t))
        return torch.stack(frames).reshape(len(times), *grid.shape)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([origin.gradient for _, origin in self._along(times, points)])

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        along = self._along(times, points)
        return torch.stack([o.value + 0.5 * t * (o.gradient**2).sum(-1) for t, o in along])

    def _along(self, times: Tensor, points: Tensor) -> list[tuple[float, Preimage]]:
        origins = self.characteristics.trace_back(times, points)
        return list(zip(times.tolist(), origins, strict=True))

    def _state(self) -> dict[str, np.ndarray]:
        return {"coefficients": self.series.coefficients.detach().numpy()}

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> PotentialGeodesic:
        series = CosineSeries(torch.from_numpy(state["coefficients"]), source.grid)
        return cls(source, target, solver, info, series)


def positive_interpolant(density: Density) -> Callable[[Tensor], Tensor]:
    """Values of a positive density at points (N, d): its formula, or exp of a spline of log."""
    # Values may be varied apart from the formula, which is then not what is asked about.
    varied = requires_grad(density) and not (density.mixture and requires_grad(density.mixture))
    if density.mixture is not None and not varied:
        return density.at
    spline = CubicSpline(density.tensor.to(torch.float64).log(), density.grid)
    return lambda points: spline(points).exp()


COARSEST = 16  # cells along an axis where Newton starts
SMALLEST_STEP = 1e-2  # Newton's damping gives up below
BETWEEN = 30.0  # times the tolerance: what the residual may be between the cells
ADJOINT = 1e-9  # relative residual sought for gradients
WORST_ADJOINT = 1e-3  # and the largest that is answered with
HOPELESS = 0.3  # ∫|G − mean G| dμ_0 left on a coarse grid above which finer ones are not tried


@dataclass(frozen=True)
class MongeAmpere(Solver):
    """Solves the equation of the optimal map T = x + ∇u, for smooth positive densities on a box.

        μ1(x + ∇u)·det(I + D²u) = μ0(x),      ∂u/∂n = 0 on the faces

    Damped Newton steps solve its logarithm, on coarse grids first and then on finer ones. u is a
    cosine series, so its derivatives are exact and the faces stay in place. GMRES, preconditioned
    by the inverse Laplacian, solves the linear systems. The density at (x, t) follows from the
    potential along the straight line through x.

    It fails for densities with zeros (unless `floor` mixes in some uniform mass), for jumps, and
    for maps that tear: where lumps must split or merge with almost nothing between them, I + D²u
    becomes nearly singular. It then raises `ConvergenceError` with the residual. The residual is
    measured on the cells and, with a wider margin, between them, where a map could fold unseen. The
    report shows both.

    Attributes:
        tolerance: the largest residual ∫|μ_1(T)·det DT − μ_0| dx. Above it, or above thirty times
            it between the cells, ConvergenceError is raised.
        floor: share of the mass mixed with the uniform density at both ends, for densities with
            zeros; the path is then that of the mixed densities, and the report says so.
        max_iterations: the most Newton steps on each grid.
    """

    info = SolverInfo(
        name="monge-ampere",
        summary="1D to 3D boxes, smooth positive densities, high accuracy; the truth in 2D",
        family="Newton",
        dimensions=(1, 2, 3),
        differentiable=ALL_QUANTITIES,
        guarantee="the residual of the Monge–Ampère equation is below the tolerance",
        tolerance="largest residual ∫|μ_1(T)·det DT − μ_0| dx, a share of the mass",
    )

    tolerance: float = 1e-3
    floor: float = 0.0
    max_iterations: int = 30

    def __post_init__(self) -> None:
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError("monge-ampere needs tolerance > 0 and max_iterations ≥ 1.")

    def _solve_pair(self, source: Density, target: Density) -> PotentialGeodesic:
        mixed = [end.with_floor(self.floor) for end in (source, target)]
        for name, end in zip(("source", "target"), mixed, strict=True):
            _check_positive(end, name)
        grids, fixed = _coarse_to_fine(source.grid), [end.detach() for end in mixed]
        problems = [_Problem(*(end.resample(grid) for end in fixed)) for grid in grids]
        series, iterations = problems[0].zero(), 0
        for problem in problems:
            start = series.padded(problem.grid.shape)
            series, steps, merit = _newton(problem, start, self.max_iterations)
            iterations += steps
            if merit > HOPELESS:
                break
        residual = problems[-1].residual(series.padded(source.grid.shape))
        between = _residual_between(fixed[0], fixed[1], series)
        if not (residual <= self.tolerance and between <= BETWEEN * self.tolerance):
            raise _not_converged(max(residual, between / BETWEEN), self.tolerance)
        info = {
            "residual": residual,
            "residual between cells": between,
            "Newton steps": iterations,
        }
        if self.floor:
            info["floor"] = self.floor
        path = PotentialGeodesic(fixed[0], fixed[1], self.name, info, series)
        path.density(1.0)  # where the map is most singular: fails here or nowhere
        if not requires_grad(*mixed):
            return path
        series = _attached(series.padded(source.grid.shape), problems[-1], _Problem(*mixed))
        return PotentialGeodesic(mixed[0], mixed[1], self.name, info, series)


def _not_converged(residual: float, tolerance: float) -> ConvergenceError:
    reached = f"stopped at residual {format_number(residual, 2)}, above its tolerance {tolerance:g}"
    if not math.isfinite(residual):
        reached = "found no map without folds"
    return ConvergenceError(
        f"monge-ampere {reached}; smooth the densities, mix in uniform mass "
        f"({setting('floor', 0.01)} or more), or use {setting('solver', 'midpoint')}, which takes "
        "any densities.",
        residual,
    )


class _Problem:
    """The equation on one grid; arrays over the grid are (*shape), matrices (d, d, *shape)."""

    def __init__(self, source: Density, target: Density):
        self.grid = source.grid
        self.points = self.grid.points().movedim(-1, 0)  # (d, *shape)
        self.source = source.tensor.to(torch.float64)
        self.log_source = self.source.log()
        self.log_target = CubicSpline(target.tensor.to(torch.float64).log(), self.grid)
        self.inverse_laplacian = -1.0 / _squared_frequencies(self.grid)

    def zero(self) -> CosineSeries:
        return CosineSeries(torch.zeros(self.grid.shape, dtype=torch.float64), self.grid)

    def linearise(self, series: CosineSeries) -> _Linearisation | None:
        """G and its derivative at u; None where I + D²u is not positive definite."""
        gradient, hessian = series.derivatives_on(self.grid)
        d = self.grid.dimension
        jacobian = hessian.reshape(d, d, -1).movedim(-1, 0) + torch.eye(d, dtype=torch.float64)
        factor, failed = torch.linalg.cholesky_ex(jacobian)
        if bool(failed.any()):
            return None
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).reshape(self.grid.shape)
        image = (self.points + gradient).reshape(d, -1).T
        log_target, slope = self.log_target.value_and_gradient(image)
        log_ratio = log_target.reshape(self.grid.shape) + log_det - self.log_source
        inverse = torch.cholesky_inverse(factor).movedim(0, -1).reshape(d, d, *self.grid.shape)
        return _Linearisation(self, log_ratio, inverse, slope.T.reshape(d, *self.grid.shape))

    def residual(self, series: CosineSeries) -> float:
        """∫|μ_1(T)·det DT − μ_0| dx, summed over the cells."""
        at = self.linearise(series)
        if at is None:
            return float("inf")
        return float((self.source * torch.expm1(at.log_ratio)).abs().sum() * self.grid.cell_volume)


class _Linearisation:
    """G at u, and δ ↦ tr((I + D²u)⁻¹ D²δ) + ∇log μ_1(T)·∇δ."""

    def __init__(self, problem: _Problem, log_ratio: Tensor, inverse: Tensor, slope: Tensor):
        self.problem, self.inverse, self.slope = problem, inverse, slope
        self.log_ratio = log_ratio
        self.defect = self._without_mean(log_ratio)
        off = (problem.source * self.defect.abs()).detach().sum()
        self.merit = float(off * problem.grid.cell_volume)

    def newton_direction(self, accuracy: float) -> CosineSeries:
        """δ with derivative(δ) = −G, by GMRES on w = Δδ."""
        return self._inverse_laplacian(_gmres(self._derivative, -self.defect, accuracy, maxiter=2))

    def adjoint(self, upstream: Tensor) -> Tensor:
        """A gradient in the coefficients of δ as one in G, (*shape) both."""
        # All is linear in w: one pass forward serves every product with the transpose.
        with torch.enable_grad():
            w = torch.zeros_like(upstream, requires_grad=True)
            delta, applied = self._inverse_laplacian(w).coefficients, self._derivative(w)

        def transposed(field: Tensor) -> Tensor:
            return torch.autograd.grad(applied, w, field, retain_graph=True)[0]

        (right,) = torch.autograd.grad(delta, w, upstream, retain_graph=True)
        solution = _gmres(transposed, right, ADJOINT, maxiter=10)
        left = float((transposed(solution) - right).norm() / right.norm().clamp(min=1e-300))
        if not left < WORST_ADJOINT:
            raise ConvergenceError(
                f"The gradient of monge-ampere's potential stopped at residual {format_number(left, 2)}; "
                "smooth the densities, or use the distance alone, whose gradient needs no such "
                "system.",
                left,
            )
        return -solution

    def _derivative(self, w: Tensor) -> Tensor:
        """The linearisation at δ = Δ⁻¹w, (*shape)."""
        gradient, hessian = self._inverse_laplacian(w).derivatives_on(self.problem.grid)
        applied = (self.inverse * hessian).sum((0, 1)) + (self.slope * gradient).sum(0)
        return self._without_mean(applied) + w.mean()

    def _without_mean(self, field: Tensor) -> Tensor:
        """G is solved up to a constant: the mass of μ_1(T)·det DT."""
        return field - (self.problem.source * field).mean() / self.problem.source.mean()

    def _inverse_laplacian(self, w: Tensor) -> CosineSeries:
        grid = self.problem.grid
        series = CosineSeries.through(w, grid)
        return CosineSeries(series.coefficients * self.problem.inverse_laplacian, grid)


def _newton(problem: _Problem, series: CosineSeries, limit: int) -> tuple[CosineSeries, int, float]:
    """Newton with backtracking until the merit no longer falls: u, the steps taken, the merit."""
    at = problem.linearise(series)
    if at is None:
        series = problem.zero()
        at = problem.linearise(series)
        assert at is not None
    cells = "×".join(map(str, problem.grid.shape))
    for step in range(limit):
        report_progress(
            f"monge-ampere: {cells} cells, Newton step {step + 1}, residual {format_percent(at.merit)}"
        )
        direction = at.newton_direction(accuracy=min(0.1, 0.5 * at.merit))
        trial, better = _backtrack(problem, series, direction, at.merit)
        if better is None:
            return series, step, at.merit
        converged = better.merit > 0.9 * at.merit and better.merit < 1e-3
        series, at = trial, better
        if at.merit < 1e-8 or converged:
            return series, step + 1, at.merit
    return series, limit, at.merit


def _backtrack(
    problem: _Problem, series: CosineSeries, direction: CosineSeries, merit: float
) -> tuple[CosineSeries, _Linearisation | None]:
    size = 1.0
    while size > SMALLEST_STEP:
        trial = CosineSeries(series.coefficients + size * direction.coefficients, series.grid)
        at = problem.linearise(trial)
        if at is not None and at.merit < (1 - 0.1 * size) * merit:
            return trial, at
        size /= 2
    return series, None


def _gmres(
    apply: Callable[[Tensor], Tensor], right: Tensor, accuracy: float, maxiter: int
) -> Tensor:
    """The field (*shape) that a linear map takes to `right`."""
    shape, count = right.shape, right.numel()

    def matvec(flat: np.ndarray) -> np.ndarray:
        return apply(torch.from_numpy(flat).reshape(shape)).reshape(-1).numpy()

    operator = LinearOperator((count, count), matvec=matvec, dtype=np.float64)  # pyright: ignore
    flat = right.reshape(-1).numpy()
    solution, _ = gmres(operator, flat, rtol=accuracy, restart=60, maxiter=maxiter)
    return torch.from_numpy(solution).reshape(shape)


def _attached(series: CosineSeries, fixed: _Problem, problem: _Problem) -> CosineSeries:
    """The same series with the gradient of the solution: that of one more step of Newton's method.

    `fixed` and `problem` are the same but for what autograd knows of them.
    """
    at, around = problem.linearise(series), fixed.linearise(series)
    assert at is not None and around is not None
    step = _NewtonStep.apply(at.defect, around)
    return CosineSeries(series.coefficients + step, series.grid)


class _NewtonStep(torch.autograd.Function):
    """The step from G at a solution: zero, as G is, with the derivative of a step."""

    @staticmethod
    def forward(ctx: Any, defect: Tensor, at: _Linearisation) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.at = at
        return torch.zeros_like(defect)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.at.adjoint(upstream[0]), None


def _residual_between(source: Density, target: Density, series: CosineSeries) -> float:
    """∫|μ_1(T)·det DT − μ_0| dx plus the mass that interpolation adds, on twice as fine a grid.

    Between the cells where the equation was solved the map may fold and a spline may overshoot;
    both show here. Infinite where I + D²u is not positive definite.
    """
    grid = source.grid.with_shape([2 * n for n in source.grid.shape])
    points, identity = grid.points(), torch.eye(grid.dimension, dtype=torch.float64)
    gradient, hessian = series.derivatives_on(grid)
    jacobian = hessian.movedim((0, 1), (-2, -1)) + identity
    factor, failed = torch.linalg.cholesky_ex(jacobian)
    if bool(failed.any()):
        return float("inf")
    source_at, target_at = (positive_interpolant(end) for end in (source, target))
    flat = points.reshape(-1, grid.dimension)
    here, there = source_at(flat), target_at(flat)
    image = (points + gradient.movedim(0, -1)).reshape(-1, grid.dimension)
    determinant = factor.diagonal(dim1=-2, dim2=-1).prod(-1).square().reshape(-1)
    defect = (target_at(image) * determinant - here).abs().sum()
    masses = torch.stack([here.sum(), there.sum()]) * grid.cell_volume
    return float(defect * grid.cell_volume + (masses - 1).abs().sum())


def _coarse_to_fine(grid: Grid) -> Sequence[Grid]:
    shapes = [grid.shape]
    while min(shapes[0]) >= 2 * COARSEST:
        shapes.insert(0, tuple(-(-n // 2) for n in shapes[0]))
    return [grid.with_shape(shape) for shape in shapes]


def _squared_frequencies(grid: Grid) -> Tensor:
    """|κ|² for every mode, with ∞ for the constant, whose inverse Laplacian is set to zero."""
    series = CosineSeries(torch.zeros(grid.shape, dtype=torch.float64), grid)
    squares = [series.frequencies(axis) ** 2 for axis in range(grid.dimension)]
    total = torch.stack(torch.meshgrid(*squares, indexing="ij")).sum(0)
    total.view(-1)[0] = torch.inf
    return total


def _check_positive(density: Density, name: str) -> None:
    zeros = int((density.tensor <= 0).sum())
    if zeros:
        raise DensityError(
            f"The {name} is zero in {zeros} of {density.tensor.numel()} cells and monge-ampere "
            f"needs positive densities; give {setting('floor', 0.01)} to mix in 1 % of uniform "
            f"mass, or use {setting('solver', 'midpoint')}, which takes zeros."
        )
