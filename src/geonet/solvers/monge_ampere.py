"""The Monge–Ampère equation of the optimal map, solved by Newton's method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from geonet._format import format_number, format_percent
from geonet._progress import report_progress
from geonet.density import Density, requires_grad
from geonet.errors import ConvergenceError, DensityError, SolverError
from geonet.grid import Grid
from geonet.numerics.autograd import once_differentiable, with_dual_gradient
from geonet.numerics.characteristics import Characteristics, Preimage
from geonet.numerics.cosine import CosineSeries, frequencies
from geonet.numerics.interpolation import CubicSpline
from geonet.paths import Geodesic
from geonet.solvers.base import ALL_QUANTITIES, Solver, SolverInfo


@dataclass(frozen=True)
class MongeAmpereConfig:
    """Tuning numbers of `MongeAmpere`."""

    coarsest_cells: int = 16  # least number of cells along an axis of the coarsest grid
    min_step: float = 1e-2  # shortest Newton step that the line search tries
    coarse_failure: float = 0.3  # merit on a coarse grid above which finer grids are skipped
    between_factor: float = 30.0  # largest residual between the cells, in tolerances
    adjoint_accuracy: float = 1e-9  # relative residual that GMRES aims at for gradients
    max_adjoint_residual: float = 1e-3  # relative residual above which a gradient is an error


@dataclass(frozen=True)
class MongeAmpere(Solver):
    """Solver of the Monge–Ampère equation, for smooth positive densities on a box.

        μ1(x + ∇u)·det(I + D²u) = μ0(x),      ∂u/∂n = 0 on the faces

    Damped Newton steps solve the logarithm of this equation,

        G(u) = log μ1(x + ∇u) + log det(I + D²u) − log μ0(x) = constant,

    on coarse grids first: a coarse solution, padded with zero modes, starts the next grid. u is a
    cosine series, so its derivatives are exact and the faces stay in place. The linearisation
    tr((I + D²u)⁻¹ D²δ) + ∇log μ1(x + ∇u)·∇δ is close to a Laplacian, whose inverse preconditions
    GMRES. The density at (x, t) follows from u along the straight line through x. Gradients follow
    from the implicit function theorem: the backward pass solves the transposed linearisation.

    The method needs positive densities (`floor` mixes in uniform mass) and a smooth map. It fails
    for jumps, and if mass must split or merge with almost none in between, since I + D²u then
    becomes nearly singular. In these cases it raises `ConvergenceError` with the residual. The
    residual is measured at the cell centres and, with a wider margin, between them, because a map
    could fold there unnoticed. The report shows both.

    Attributes:
        tolerance: largest residual ∫|μ_1(T)·det DT − μ_0| dx, a share of the mass. Between the
            cells thirty times as much is allowed.
        floor: fraction of the mass that is replaced by uniform mass in both densities. The path
            then connects these mixed densities, and the report contains the floor.
        max_iterations: largest number of Newton steps on each grid.
    """

    info = SolverInfo(
        name="monge-ampere",
        summary="1D to 3D boxes, smooth positive densities, high accuracy; a reference in 2D",
        family="Newton",
        dimensions=(1, 2, 3),
        differentiable=ALL_QUANTITIES,
        guarantee="the residual of the Monge–Ampère equation is below the tolerance",
        tolerance="largest residual ∫|μ_1(T)·det DT − μ_0| dx, a share of the mass",
    )
    config: ClassVar[MongeAmpereConfig] = MongeAmpereConfig()

    tolerance: float = 1e-3
    floor: float = 0.0
    max_iterations: int = 30

    def __post_init__(self) -> None:
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError("monge-ampere needs tolerance > 0 and max_iterations ≥ 1.")

    def _solve_pair(self, source: Density, target: Density) -> PotentialGeodesic:
        mixed = source.with_floor(self.floor), target.with_floor(self.floor)
        _check_positive(mixed[0], "source")
        _check_positive(mixed[1], "target")
        fixed = mixed[0].detach(), mixed[1].detach()
        problems = [
            _Problem(fixed[0].resample(grid), fixed[1].resample(grid), self.config)
            for grid in _coarse_to_fine(source.grid, self.config.coarsest_cells)
        ]
        series, iterations = problems[0].zero(), 0
        for problem in problems:
            start = series.pad(problem.grid.shape)
            series, steps, merit = _newton(problem, start, self.max_iterations)
            iterations += steps
            if merit > self.config.coarse_failure:
                break
        residual = problems[-1].residual(series.pad(source.grid.shape))
        between = _residual_between_cells(fixed[0], fixed[1], series)
        self._check_converged(residual, between)
        info = {"residual": residual, "residual between cells": between, "Newton steps": iterations}
        if self.floor:
            info["floor"] = self.floor
        path = PotentialGeodesic(fixed[0], fixed[1], self.name, info, series)
        path.density(1.0)  # the map is most singular at t = 1: raise here, not at the first use
        if not requires_grad(*mixed):
            return path
        series = series.pad(source.grid.shape)
        series = _attach_gradient(series, problems[-1], _Problem(*mixed, self.config))
        return PotentialGeodesic(mixed[0], mixed[1], self.name, info, series)

    def _check_converged(self, residual: float, between: float) -> None:
        """Raise ConvergenceError if a residual, on the cells or between them, is too large."""
        factor = self.config.between_factor
        if residual <= self.tolerance and between <= factor * self.tolerance:
            return
        worst = max(residual, between / factor)
        reason = f"stopped at residual {format_number(worst, 2)} > tolerance {self.tolerance:g}"
        if not math.isfinite(worst):
            reason = "found no map without folds"
        raise ConvergenceError(
            f"monge-ampere {reason}; smooth the densities, mix in uniform mass (floor=0.01 or "
            "more), or choose solver='midpoint', which takes any densities.",
            worst,
        )


def _check_positive(density: Density, name: str) -> None:
    zeros = int((density.tensor <= 0).sum())
    if zeros:
        raise DensityError(
            f"The {name} is zero in {zeros} of {density.tensor.numel()} cells and monge-ampere "
            "needs positive densities; set floor=0.01 to mix in 1 % of uniform mass, or choose "
            "solver='midpoint', which takes zeros."
        )


def _coarse_to_fine(grid: Grid, coarsest: int) -> Sequence[Grid]:
    shapes = [grid.shape]
    while min(shapes[0]) >= 2 * coarsest:
        shapes.insert(0, tuple(-(-n // 2) for n in shapes[0]))
    return [grid.with_shape(shape) for shape in shapes]


class PotentialGeodesic(Geodesic):
    """Geodesic with a cosine series u_0 as its potential at t = 0, where I + D²u_0 > 0.

    `geonet.numerics.characteristics` has the formulas of u and μ at t > 0.
    """

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
        self._source_at = positive_interpolant(source)
        self._target_at = positive_interpolant(target)

    def _distance(self) -> Tensor:
        """Return W2 from W2² = ∫|∇u_0|² dμ_0."""
        with torch.no_grad():
            gradient, _ = self.series.derivatives_on(self.grid)
            squared = ((gradient**2).sum(0) * self.source.tensor * self.grid.cell_volume).sum()
        return with_dual_gradient(squared.sqrt(), self.source, self.target, self._kantorovich)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """Blend both formulas of the density with weights 1 − t and t: exact at both ends."""
        points = grid.points().reshape(-1, grid.dimension)
        frames = []
        for t, origin in self._trace_back(times, points):
            from_source = self._source_at(origin.point)
            from_target = self._target_at(origin.point + origin.gradient) * origin.determinant(1.0)
            frames.append(torch.lerp(from_source, from_target, t) / origin.determinant(t))
        return torch.stack(frames).reshape(len(times), *grid.shape)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([origin.gradient for _, origin in self._trace_back(times, points)])

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        origins = self._trace_back(times, points)
        return torch.stack([o.value + 0.5 * t * (o.gradient**2).sum(-1) for t, o in origins])

    def _trace_back(self, times: Tensor, points: Tensor) -> list[tuple[float, Preimage]]:
        origins = self.characteristics.trace_back(times, points)
        return list(zip(times.tolist(), origins, strict=True))

    def _state(self) -> dict[str, np.ndarray]:
        return {"coefficients": self.series.coefficients.detach().numpy()}

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> PotentialGeodesic:
        series = CosineSeries(torch.from_numpy(state["coefficients"]), source.grid)
        return cls(source, target, solver, info, series)


class PrescribedMapGeodesic(PotentialGeodesic):
    """Geodesic whose target is the push-forward of the source, known on the grid only.

    Its density follows from the source alone; see `geonet.evaluation.prescribed_map_geodesic`.
    """

    kind = "prescribed-map"

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        return push_source(self.characteristics, self.source, times, grid)


def push_source(lines: Characteristics, source: Density, times: Tensor, grid: Grid) -> Tensor:
    """Return μ_0(x_0)/det(I + tD²u_0(x_0)) on a grid, (T, *shape)."""
    points = grid.points().reshape(-1, grid.dimension)
    source_at = positive_interpolant(source)
    origins = zip(times.tolist(), lines.trace_back(times, points), strict=True)
    frames = [source_at(origin.point) / origin.determinant(t) for t, origin in origins]
    return torch.stack(frames).reshape(len(times), *grid.shape)


def positive_interpolant(density: Density) -> Callable[[Tensor], Tensor]:
    """Return a function of points (N, d): the mixture's formula, or exp of a spline of the log."""
    # A formula does not depend on values that autograd varies separately.
    varied = requires_grad(density) and not (density.mixture and requires_grad(density.mixture))
    if density.mixture is not None and not varied:
        return density._at
    spline = CubicSpline(density.tensor.to(torch.float64).log(), density.grid)
    return lambda points: spline(points).exp()


class _Problem:
    """The equation on one grid; fields are (*shape), matrices (d, d, *shape)."""

    def __init__(self, source: Density, target: Density, config: MongeAmpereConfig):
        self.config = config
        self.grid = source.grid
        self.points = self.grid.points().movedim(-1, 0)  # (d, *shape)
        self.source = source.tensor.to(torch.float64)
        self.log_source = self.source.log()
        self.log_target = CubicSpline(target.tensor.to(torch.float64).log(), self.grid)
        self.inverse_laplacian = -1.0 / _squared_frequencies(self.grid)

    def zero(self) -> CosineSeries:
        return CosineSeries(torch.zeros(self.grid.shape, dtype=torch.float64), self.grid)

    def linearise(self, series: CosineSeries) -> _Linearisation | None:
        """Return G and its derivative at u, or None unless I + D²u is positive definite."""
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
        """Return ∫|μ_1(T)·det DT − μ_0| dx, summed over the cells."""
        at = self.linearise(series)
        if at is None:
            return float("inf")
        return float((self.source * torch.expm1(at.log_ratio)).abs().sum() * self.grid.cell_volume)


def _squared_frequencies(grid: Grid) -> Tensor:
    """Return |κ|² for every mode, with ∞ for the constant mode: its inverse Laplacian is zero."""
    axes = zip(grid.shape, grid.lengths, strict=True)
    squares = [frequencies(n, length) ** 2 for n, length in axes]
    total = torch.stack(torch.meshgrid(*squares, indexing="ij")).sum(0)
    total.view(-1)[0] = torch.inf
    return total


class _Linearisation:
    """G at u, and its derivative δ ↦ tr((I + D²u)⁻¹ D²δ) + ∇log μ_1(T)·∇δ.

    Attributes:
        log_ratio: G, (*shape).
        defect: G without its mean.
        merit: ∫|defect| dμ_0.
    """

    def __init__(self, problem: _Problem, log_ratio: Tensor, inverse: Tensor, slope: Tensor):
        self.problem, self.inverse, self.slope = problem, inverse, slope
        self.log_ratio = log_ratio
        self.defect = self._subtract_mean(log_ratio)
        total = (problem.source * self.defect.abs()).detach().sum()
        self.merit = float(total * problem.grid.cell_volume)

    def newton_direction(self, accuracy: float) -> CosineSeries:
        """Solve derivative(δ) = −G by GMRES for w = Δδ and return δ."""
        return self._inverse_laplacian(_gmres(self._derivative, -self.defect, accuracy, maxiter=2))

    def adjoint(self, upstream: Tensor) -> Tensor:
        """Map a gradient in the coefficients of δ to one in G, (*shape) both."""
        # The map is linear in w: one forward pass serves every product with the transpose.
        with torch.enable_grad():
            w = torch.zeros_like(upstream, requires_grad=True)
            delta, applied = self._inverse_laplacian(w).coefficients, self._derivative(w)

        def apply_transpose(field: Tensor) -> Tensor:
            return torch.autograd.grad(applied, w, field, retain_graph=True)[0]

        config = self.problem.config
        (right,) = torch.autograd.grad(delta, w, upstream, retain_graph=True)
        solution = _gmres(apply_transpose, right, config.adjoint_accuracy, maxiter=10)
        left = float((apply_transpose(solution) - right).norm() / right.norm().clamp(min=1e-300))
        if not left < config.max_adjoint_residual:
            raise ConvergenceError(
                "The linear system for the gradient of monge-ampere stopped at residual "
                f"{format_number(left, 2)}; smooth the densities, or differentiate the distance "
                "alone, which needs no such system.",
                left,
            )
        return -solution

    def _derivative(self, w: Tensor) -> Tensor:
        """Return the derivative at δ = Δ⁻¹w, (*shape)."""
        gradient, hessian = self._inverse_laplacian(w).derivatives_on(self.problem.grid)
        applied = (self.inverse * hessian).sum((0, 1)) + (self.slope * gradient).sum(0)
        return self._subtract_mean(applied) + w.mean()

    def _subtract_mean(self, field: Tensor) -> Tensor:
        """Remove the mean over μ_0: G is determined up to a constant."""
        return field - (self.problem.source * field).mean() / self.problem.source.mean()

    def _inverse_laplacian(self, w: Tensor) -> CosineSeries:
        grid = self.problem.grid
        series = CosineSeries.from_values(w, grid)
        return CosineSeries(series.coefficients * self.problem.inverse_laplacian, grid)


def _newton(problem: _Problem, series: CosineSeries, limit: int) -> tuple[CosineSeries, int, float]:
    """Iterate until the merit stops decreasing; return u, the number of steps, and the merit."""
    at = problem.linearise(series)
    if at is None:
        series = problem.zero()
        at = problem.linearise(series)
        assert at is not None
    cells = "×".join(map(str, problem.grid.shape))
    for step in range(limit):
        report_progress(
            f"monge-ampere: {cells} cells, Newton step {step + 1}, "
            f"residual {format_percent(at.merit)}"
        )
        direction = at.newton_direction(accuracy=min(0.1, 0.5 * at.merit))
        trial, better = _backtrack(problem, series, direction, at.merit)
        if better is None:
            return series, step, at.merit
        stagnated = better.merit > 0.9 * at.merit and better.merit < 1e-3
        series, at = trial, better
        if at.merit < 1e-8 or stagnated:
            return series, step + 1, at.merit
    return series, limit, at.merit


def _backtrack(
    problem: _Problem, series: CosineSeries, direction: CosineSeries, merit: float
) -> tuple[CosineSeries, _Linearisation | None]:
    """Halve the step until the merit decreases enough; None if the step becomes too short."""
    size = 1.0
    while size > problem.config.min_step:
        trial = CosineSeries(series.coefficients + size * direction.coefficients, series.grid)
        at = problem.linearise(trial)
        if at is not None and at.merit < (1 - 0.1 * size) * merit:
            return trial, at
        size /= 2
    return series, None


def _gmres(
    apply: Callable[[Tensor], Tensor], right: Tensor, accuracy: float, maxiter: int
) -> Tensor:
    """Solve apply(x) = right for a field x (*shape)."""
    shape, count = right.shape, right.numel()

    def matvec(flat: np.ndarray) -> np.ndarray:
        return apply(torch.from_numpy(flat).reshape(shape)).reshape(-1).numpy()

    operator = LinearOperator((count, count), matvec=matvec, dtype=np.float64)  # pyright: ignore
    flat = right.reshape(-1).numpy()
    solution, _ = gmres(operator, flat, rtol=accuracy, restart=60, maxiter=maxiter)
    return torch.from_numpy(solution).reshape(shape)


def _residual_between_cells(source: Density, target: Density, series: CosineSeries) -> float:
    """Return ∫|μ_1(T)·det DT − μ_0| dx plus the interpolation's error of mass, on a finer grid.

    Between the cells of the solution the map may fold and a spline may overshoot; a grid of half
    the spacing shows both. The result is infinite unless I + D²u is positive definite.
    """
    grid = source.grid.with_shape([2 * n for n in source.grid.shape])
    points, identity = grid.points(), torch.eye(grid.dimension, dtype=torch.float64)
    gradient, hessian = series.derivatives_on(grid)
    jacobian = hessian.movedim((0, 1), (-2, -1)) + identity
    factor, failed = torch.linalg.cholesky_ex(jacobian)
    if bool(failed.any()):
        return float("inf")
    source_at, target_at = positive_interpolant(source), positive_interpolant(target)
    flat = points.reshape(-1, grid.dimension)
    source_values, target_values = source_at(flat), target_at(flat)
    image = (points + gradient.movedim(0, -1)).reshape(-1, grid.dimension)
    determinant = factor.diagonal(dim1=-2, dim2=-1).prod(-1).square().reshape(-1)
    defect = (target_at(image) * determinant - source_values).abs().sum()
    masses = torch.stack([source_values.sum(), target_values.sum()]) * grid.cell_volume
    return float(defect * grid.cell_volume + (masses - 1).abs().sum())


def _attach_gradient(series: CosineSeries, fixed: _Problem, problem: _Problem) -> CosineSeries:
    """Return the same series with the gradient of one more Newton step, which the solution has.

    `fixed` is `problem` without the graph of autograd.
    """
    at, around = problem.linearise(series), fixed.linearise(series)
    assert at is not None and around is not None
    step = _NewtonStep.apply(at.defect, around)
    return CosineSeries(series.coefficients + step, series.grid)


class _NewtonStep(torch.autograd.Function):
    """Newton step at a solution: zero, as G is, with the derivative of a step."""

    @staticmethod
    def forward(ctx: Any, defect: Tensor, at: _Linearisation) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.at = at
        return torch.zeros_like(defect)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return ctx.at.adjoint(upstream[0]), None
