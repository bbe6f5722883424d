"""Schrödinger bridges: geodesics with noise, computed by Sinkhorn's iteration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._format import format_number
from geonet._progress import report_progress
from geonet.density import Array, Density, to_user_array
from geonet.errors import ConvergenceError, SolverError
from geonet.grid import Grid, UnitBox, unit_box
from geonet.numerics.autograd import with_dual_gradient
from geonet.numerics.c_transform import cell_centres, transform
from geonet.numerics.heat_kernel import MIN_VARIANCE, LogOperator, heat_flow, propagate_factors
from geonet.numerics.interpolation import CubicSpline, resample
from geonet.numerics.ode import VelocityField, runge_kutta
from geonet.numerics.splines import interpolate_centres
from geonet.paths import Geodesic, Times
from geonet.solvers.back_and_forth import cell_masses
from geonet.solvers.base import MenuEntry, Solver, SolverInfo
from geonet.solvers.newton.bounds import bound_distance


@dataclass(frozen=True)
class SchrodingerConfig:
    """Tuning numbers of `Schrodinger` and `SchrodingerBridge`."""

    default_epsilon: float = 1e-3  # relative to the longest side of the box squared
    rate_window: int = 20  # iterations over which the convergence rate of Sinkhorn is measured
    max_rate: float = 0.9999  # largest rate that is used, which limits over-relaxation to 1.98
    max_slope: float = 4.0  # largest change of log μ from cell to cell that splines represent
    steps: int = 24  # Runge–Kutta steps of trajectories from t = 0 to 1
    self_tolerance: float = 1e-9  # smallest step of Sinkhorn from a density to itself
    self_iterations: int = 500  # largest number of these steps
    max_slowdown: int = 16  # factor that the iterations may grow by if epsilon is halved


@dataclass(frozen=True)
class Schrodinger(Solver):
    """Entropic path: the Schrödinger bridge with noise ε, for any densities on a grid.

        ∂t μ + div(μ ∇u) + εΔμ = 0          ∂t u + ½|∇u|² − εΔu = 0

    Its exact solution is μ_t = f_t·g_t with ∂t f = εΔf, ∂t g = −εΔg, reflecting walls or periodic
    axes, and u = −2ε log f. With the heat flow K_t, f_t = K_t f_0 and g_t = K_{1−t} g_1. Sinkhorn's
    iteration, in the log domain and over-relaxed, solves f_0·K_1 g_1 = μ_0, g_1·K_1 f_0 = μ_1.
    As ε → 0 the path becomes the geodesic.

    **Velocity.** With noise there are two velocity fields. `path.velocity` is the current velocity
    v = ∇u + ε∇log μ, for which ∂t μ + div(μ v) = 0; the particles of `path.trajectories` follow it
    from μ0 to μ1, though not along straight lines. `path.drift(t, points)` (for a single pair) is
    ∇u, the gradient of `path.potential`. With these signs it is the backward drift: the mean
    velocity with which a noisy particle arrives at x. It does not transport the density, because of
    the term εΔμ. Both converge to the velocity of the geodesic as ε → 0.

    ε∇log μ is as rough as the densities at the ends. At t = 0 and 1 `path.velocity` is therefore
    the mean displacement of noisy particles, E[y|x] − x, minus the same for the bridge from that
    density to itself. Near the ends, but not at them, it is the current velocity, rough or not. The
    displacement of particles is close to the geodesic's unless the map is discontinuous.

    **Distance.** `path.distance` is W2 without noise. The potential of v at t = ½ is close to the
    geodesic's, and its Kantorovich dual value lies below W2 by the square of its error. The means
    and covariances of both ends give another lower bound; the larger one is used. The report has
    two upper bounds, the smaller of which counts: the path of this potential with repaired
    marginals, and the cost of the noisy plan, `path.transport_cost`. `report.distance_uncertainty`
    is the difference to the farther bound. Densities are constant in each cell.

    **Choosing ε.** The frame at t = ½ is blurred by √(ε/2) along each axis (`report.blur`). The
    summary of the report warns if that exceeds the displacement.

    The noise √(2ε) must be at least a cell wide; a smaller ε is an error. A small ε also makes
    Sinkhorn slow. `ConvergenceError` is raised if the iteration does not reach the tolerance.

    Attributes:
        epsilon: ε of the equations, in units of length squared; the noise of a particle over the
            whole path has variance 2ε per axis. None: a thousandth of the longest side squared, or
            the smallest value that the grid resolves, h²/2, if that is larger.
        tolerance: largest L1 error of the densities at both ends, a share of the mass.
        max_iterations: largest number of Sinkhorn iterations.
    """

    info = SolverInfo(
        name="schrodinger",
        summary="1D to 3D, the entropic bridge with noise epsilon: takes holes, islands and jumps",
        family="entropic",
        dimensions=(1, 2, 3),
        differentiable=("distance",),
        periodic=True,
        guarantee="the path is the exact bridge with noise, not the geodesic",
        tolerance="L1 error at both ends, a share of the mass",
        less_blur="a smaller epsilon",
        menu=MenuEntry(
            "With noise: the Schrödinger bridge", max_cells=128, epsilon=(5e-4, 2e-3, 0.05)
        ),
    )
    config: ClassVar[SchrodingerConfig] = SchrodingerConfig()

    epsilon: float | None = None
    tolerance: float = 1e-7
    max_iterations: int = 5000

    def __post_init__(self) -> None:
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise SolverError(
                f"epsilon is {self.epsilon:g}; pass a positive number in units of length squared, "
                "or choose solver='auto' for the path without noise."
            )
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g} and max_iterations {self.max_iterations}; "
                "both must be positive."
            )

    def _solve_pair(self, source: Density, target: Density) -> SchrodingerBridge:
        epsilon = self._resolve_epsilon(source.grid)
        first, second = cell_masses(source), cell_masses(target)
        propagate = heat_flow(source.grid, epsilon, 1.0)
        log_f, log_g, iterations, error = self._sinkhorn(first, second, propagate)
        if not error < self.tolerance:
            raise ConvergenceError(
                f"schrodinger stopped after {iterations} iterations with an L1 error of "
                f"{format_number(error, 2)} at the end > tolerance {self.tolerance:g}: Sinkhorn "
                f"converges slowly at epsilon = {epsilon:g}; use a larger epsilon, a larger "
                "max_iterations or a coarser grid.",
                error,
            )
        shift = (_mean(second, log_g) - _mean(first, log_f)) / 2
        # The constant of u is fixed in the unit box, independent of units; then f·g is a density.
        per_cell = -math.log(source.grid.cell_volume / source.grid.volume) / 2
        log_f, log_g = log_f + shift + per_cell, log_g - shift + per_cell
        log_g = log_g - math.log(source.grid.volume)
        info = {"epsilon": epsilon, "iterations": iterations, "marginal error": error}
        # The report recommends this epsilon; 1.001 leaves room to round it to four digits.
        smaller = max(epsilon / 2, 1.001 * min_epsilon(source.grid))
        is_fast = self.config.max_slowdown * iterations <= self.max_iterations
        if is_fast and smaller < 0.75 * epsilon:
            info["smaller epsilon"] = smaller
        default = self.config.default_epsilon * source.grid.max_side**2
        if self.epsilon is None and epsilon > default:
            info["epsilon raised from"] = default
        return SchrodingerBridge(source, target, self.name, info, epsilon, log_f, log_g)

    def _resolve_epsilon(self, grid: Grid) -> float:
        """Return ε, or raise SolverError if the grid does not resolve it."""
        smallest = min_epsilon(grid)
        if self.epsilon is None:
            return max(self.config.default_epsilon * grid.max_side**2, smallest)
        if self.epsilon < smallest * (1 - 1e-9):
            texts = format_number(smallest), format_number(1.0005 * smallest)
            enough = next(text for text in texts if float(text) >= smallest * (1 - 1e-9))
            raise SolverError(
                f"epsilon = {self.epsilon:g} is below the grid's resolution: the noise "
                f"sqrt(2·epsilon) = {format_number(math.sqrt(2 * self.epsilon), 3)} is smaller "
                f"than a cell ({format_number(max(grid.spacing), 3)}); use epsilon of at least "
                f"{enough} or a finer grid."
            )
        return float(self.epsilon)

    def _sinkhorn(
        self, source: Tensor, target: Tensor, propagate: LogOperator
    ) -> tuple[Tensor, Tensor, int, float]:
        """Return log f_0, log g_1, the number of iterations, and ‖g_1·K_1 f_0 − μ_1‖ in L1.

        The last step is a plain one, so f_0·K_1 g_1 = μ_0 holds to rounding. Before, both updates
        are over-relaxed by ω: with η the rate of plain Sinkhorn, the best ω = 2/(1 + sqrt(1−η))
        needs about 1/sqrt(1−η) iterations per digit instead of 1/(1−η) for ω = 1.
        """
        log_source, log_target = source.log(), target.log()
        log_g = torch.zeros_like(target).masked_fill(target == 0, -torch.inf)
        log_f = log_source - propagate(log_g)
        relaxation, checked, before, error = 1.0, 0, math.inf, math.inf
        for iteration in range(1, self.max_iterations + 1):
            propagated = propagate(log_f)
            error = _l1(log_g + propagated, target)
            report_progress(
                f"schrodinger: iteration {iteration}, L1 error {format_number(error, 2)} at the end"
            )
            if error < self.tolerance:  # but after a relaxed step the source does not match
                plain = log_source - propagate(log_g)
                error = _l1(log_g + propagate(plain), target)
                if error < self.tolerance:
                    return plain, log_g, iteration, error
            if iteration - checked >= max(self.config.rate_window, 4 / (2 - relaxation)):
                rate = (error / before) ** (1 / (iteration - checked))
                relaxation = _next_relaxation(relaxation, rate, self.config.max_rate)
                checked, before = iteration, error
            log_g = _relax(log_g, log_target - propagated, relaxation)
            log_f = _relax(log_f, log_source - propagate(log_g), relaxation)
        return log_f, log_g, self.max_iterations, error


def min_epsilon(grid: Grid) -> float:
    """Return the smallest ε that a grid resolves: the noise of the whole path is a cell wide."""
    return MIN_VARIANCE * max(grid.spacing) ** 2 / 2


def _mean(masses: Tensor, values: Tensor) -> Tensor:
    return (masses * values.masked_fill(masses == 0, 0.0)).sum()


def _l1(log_values: Tensor, masses: Tensor) -> float:
    return float((log_values.exp() - masses).abs().sum())


def _relax(old: Tensor, new: Tensor, relaxation: float) -> Tensor:
    return torch.where(torch.isfinite(new), old + relaxation * (new - old), new)  # −inf stays


def _next_relaxation(relaxation: float, rate: float, max_rate: float) -> float:
    """Return the best ω for the η that follows from the rate r: (r + ω − 1)² = r·ω²·η."""
    if rate >= 1:
        return 1 + 0.9 * (relaxation - 1)
    if rate <= relaxation - 1:  # the fastest rate that this ω allows
        return relaxation
    plain = (rate + relaxation - 1) ** 2 / (rate * relaxation**2)
    return 2 / (1 + math.sqrt(1 - min(plain, max_rate)))


class SchrodingerBridge(Geodesic):
    """Bridge μ_t = f_t·g_t, given by log f_0 and log g_1 on the grid.

    `Schrodinger` describes `velocity`, `drift`, `potential` and `distance`.

    u has a free constant; here E_{μ_0}[log f_0] = E_{μ_1}[log g_1] in the unit box. If the density
    falls by more than a factor e⁴ from a cell to the next (outside the support, for example), u,
    drift and velocity continue log μ with that slope: the true u is infinite at t = 0 if μ_0 = 0.
    At the smallest epsilon that the grid resolves, a single cell whose mass spreads over many is
    not resolved near its end; the mass of these frames, which is not normalised, shows it.

    Attributes:
        epsilon: ε, in units of length squared.
    """

    kind = "schrodinger"
    has_bounds = True
    distance_is_lower_bound = True

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        epsilon: float,
        log_f: Tensor,
        log_g: Tensor,
    ):
        super().__init__(source, target, solver, info)
        self.epsilon = epsilon
        self._log_f = log_f  # at t = 0, (*grid.shape)
        self._log_g = log_g  # at t = 1

    @property
    def transport_cost(self) -> Array:
        """sqrt(E|x − y|²) over the entropic plan between the cell centres; at least their W2."""
        return to_user_array(self._transport_cost(), self.is_torch)

    def _transport_cost(self) -> Tensor:
        propagate = heat_flow(self.grid, self.epsilon, 1.0)
        mass = torch.exp(self._log_f + propagate(self._log_g))
        total = torch.zeros((), dtype=torch.float64)
        for axis, x in enumerate(self._coordinates()):
            if self.grid.periodic[axis]:
                total += self._periodic_cost(axis) - self.grid.spacing[axis] ** 2 * mass.sum()
                continue
            first, second = (
                torch.exp(self._log_f + propagate(self._log_g + k * x.log())) for k in (1, 2)
            )
            total += (x * x * mass - 2 * x * first + second).sum()
        return (total * self.grid.cell_volume).clamp(min=0).sqrt()

    def _periodic_cost(self, axis: int) -> Tensor:
        """Return Σ(d² + h²) over the plan, with the distance d on a circle; h² avoids log 0."""
        n, h = self.grid.shape[axis], self.grid.spacing[axis]
        offset = torch.arange(n, dtype=torch.float64)
        squares = (torch.minimum(offset, n - offset) * h) ** 2 + h**2
        propagate = heat_flow(self.grid, self.epsilon, 1.0, weights={axis: squares})
        return torch.exp(self._log_f + propagate(self._log_g)).sum()

    def drift(self, t: Times, points: ArrayLike | Tensor) -> Array:
        """Return ∇u_t at points (..., d): (times?, ..., d); `velocity` is this plus ε∇log μ_t."""
        return self._at_points(self._drift, t, points, has_components=True)

    def _distance(self) -> Tensor:
        """Return the larger of two lower bounds: dual value of u at t = ½, and moments.

        With much noise u is almost flat, and the moments give the better bound.
        """
        lower = torch.tensor(self._unit.from_length(self._bounds[0]), dtype=torch.float64)
        dual = with_dual_gradient(lower, self.source, self.target, self._kantorovich)
        return torch.maximum(dual, self._moment_bounds[0])

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """Return −u_0(x) = min_y |x − y|² − u(y) and u_1(x) = min_y |x − y|² + u(y)."""
        u, centres = self._midpoint_potential, cell_centres(self.grid)
        periodic = self.grid.periodic
        return transform(-u, centres, periodic=periodic), transform(u, centres, periodic=periodic)

    @cached_property
    def _midpoint_potential(self) -> Tensor:
        """Potential of v at t = ½, (*grid.shape): the mean of its values from both ends."""
        just_after = math.nextafter(0.5, 1.0)  # computed from the target
        return (self._velocity_potential(0.5) + self._velocity_potential(just_after)) / 2

    @cached_property
    def _splines(self) -> Tensor:
        """Quadratic splines of the midpoint potential in the unit cube."""
        return interpolate_centres(
            self._unit.to_potential(self._midpoint_potential), self.grid.periodic
        )

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        """Lower and upper bound of W2 in the unit cube, the same for swapped ends."""
        estimate = float(self._moment_bounds[0]) / self._unit.length
        source, target = self._unit_ends()
        both = [
            bound_distance(
                potential, *ends, self._unit.sides, estimate, periodic=self.grid.periodic
            )
            for potential, ends in (
                (self._splines, (source, target)),
                (-self._splines, (target, source)),
            )
        ]
        return max(lower for lower, _ in both), min(upper for _, upper in both)

    @property
    def _unit(self) -> UnitBox:
        return unit_box(self.grid)

    def _unit_ends(self) -> tuple[Tensor, Tensor]:
        source, target = self.source.tensor.detach(), self.target.tensor.detach()
        return self._unit.to_density(source), self._unit.to_density(target)

    def _diagnostics(self) -> dict[str, Tensor]:
        lower, upper = self._unit.from_length(torch.tensor(self._bounds, dtype=torch.float64))
        upper, distance = torch.minimum(upper, self._transport_cost()), self._distance()
        return {
            "distance_lower_bound": lower,
            "distance_upper_bound": upper,
            "distance_uncertainty": torch.maximum(upper - distance, distance - lower),
            "blur": torch.tensor(math.sqrt(self.epsilon / 2), dtype=torch.float64),
        }

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        factors = (self._factors(float(t)) for t in times)
        frames = torch.stack([(log_f + log_g).exp() for log_f, log_g in factors])
        return frames if grid.shape == self.grid.shape else resample(frames, self.grid, grid)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([self._log_f_spline(t)(points) for t in times]) * (-2 * self.epsilon)

    def _drift(self, times: Tensor, points: Tensor) -> Tensor:
        slopes = [self._log_f_spline(t).value_and_gradient(points)[1] for t in times]
        return torch.stack(slopes) * (-2 * self.epsilon)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return torch.stack([self._velocity_at(t, points) for t in times.tolist()])

    def _velocity_at(self, t: float, points: Tensor) -> Tensor:
        if t in (0, 1):
            return CubicSpline(self._end_velocities[int(t)], self.grid)(points).T
        spline = CubicSpline(self._velocity_potential(t), self.grid)
        return spline.value_and_gradient(points)[1]

    @cached_property
    def _end_velocities(self) -> tuple[Tensor, Tensor]:
        """Velocities at t = 0 and 1, (d, *grid.shape) each."""
        at_source, at_target = self._self_mean(self.source), self._self_mean(self.target)
        return (
            self._conditional_mean(self._log_g) - at_source,
            at_target - self._conditional_mean(self._log_f),
        )

    def _self_mean(self, end: Density) -> Tensor:
        """Return `_conditional_mean` for the bridge from a density to itself."""
        propagate = heat_flow(self.grid, self.epsilon, 1.0)
        return self._conditional_mean(_self_factor(cell_masses(end), propagate))

    def _conditional_mean(self, log_factor: Tensor) -> Tensor:
        """Return E[y | x] at the cells x, (d, *grid.shape), for the density K_1(x, y)·factor(y).

        E[y | x] has the origin of `_coordinates`. Along periodic axes it is E[y − x | x] plus the
        length of the axis.
        """
        propagate = heat_flow(self.grid, self.epsilon, 1.0)
        total, means = propagate(log_factor), []
        for axis, x in enumerate(self._coordinates()):
            if self.grid.periodic[axis]:
                weights = {axis: self._mean_displacements(axis)}
                weighted = heat_flow(self.grid, self.epsilon, 1.0, weights=weights)(log_factor)
            else:
                weighted = propagate(log_factor + x.log())
            means.append(weighted - total)
        return torch.stack(means).exp()

    def _mean_displacements(self, axis: int) -> Tensor:
        """Return the mean of y − x over the images of y = x + 0, 1, … cells, plus the length."""
        n, h = self.grid.shape[axis], self.grid.spacing[axis]
        variance = min(2 * self.epsilon / h**2, 9.0 * n**2)
        farthest = 2 + int(6 * math.sqrt(variance) / n)
        offset = torch.arange(n, dtype=torch.float64)[:, None]
        images = offset + n * torch.arange(-farthest, farthest + 1)
        share = (images.square() / (-2 * variance)).softmax(1)
        return h * ((share * images).sum(1) + n)

    def _coordinates(self) -> list[Tensor]:
        """Return broadcastable cell coordinates, shifted to be positive for their logarithms."""
        return [
            (h * torch.arange(1, n + 1, dtype=torch.float64)).reshape(
                -1, *(1,) * (self._dimension - 1 - axis)
            )
            for axis, (h, n) in enumerate(zip(self.grid.spacing, self.grid.shape, strict=True))
        ]

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Integrate in s ∈ [0, 1] with t = sin²(πs/2): near sharp edges v grows as sqrt(ε/t)."""
        clock = torch.asin(times.sqrt()) * (2 / math.pi)
        lower, upper = self.grid.lower_tensor, self.grid.upper_tensor
        is_circle = torch.tensor(self.grid.periodic)

        def field(s: float) -> VelocityField:
            t = min(math.sin(math.pi * s / 2) ** 2, 1.0)
            spline = CubicSpline(self._velocity_potential(t), self.grid)
            scale = math.pi / 2 * math.sin(math.pi * s)
            return lambda points: scale * spline.value_and_gradient(points)[1]

        frames = torch.empty(len(times), *points.shape, dtype=torch.float64)
        now = 0.0
        for index in clock.argsort().tolist():
            s = float(clock[index])
            points = runge_kutta(field, points, now, s, Schrodinger.config.steps)
            points, now = torch.where(is_circle, points, points.clamp(lower, upper)), s
            frames[index] = points
        return frames

    def _velocity_potential(self, t: float) -> Tensor:
        """Return ε log(g/f), whose gradient is v, (*grid.shape)."""
        log_f, log_g = self._smooth_factors(t)
        return self.epsilon * (log_g - log_f)

    def _log_f_spline(self, t: Tensor) -> CubicSpline:
        return CubicSpline(self._smooth_factors(float(t))[0], self.grid)

    def _smooth_factors(self, t: float) -> tuple[Tensor, Tensor]:
        """Return log f_t and log g_t; the rougher one is changed to limit the slope of log μ_t."""
        log_f, log_g = self._factors(t)
        slope = Schrodinger.config.max_slope
        log_density = _limit_slope(log_f + log_g, slope, self.grid.periodic)
        return (log_density - log_g, log_g) if t <= 0.5 else (log_f, log_density - log_f)

    def _factors(self, t: float) -> tuple[Tensor, Tensor]:
        """Return log f_t and log g_t on the grid."""
        if t <= 0.5:
            return propagate_factors(self._log_f, self._log_g, self.grid, self.epsilon, t)
        log_g, log_f = propagate_factors(self._log_g, self._log_f, self.grid, self.epsilon, 1 - t)
        return log_f, log_g

    def _state(self) -> dict[str, np.ndarray]:
        return {
            "log_f": self._log_f.numpy(),
            "log_g": self._log_g.numpy(),
            "epsilon": np.array(self.epsilon),
        }

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> SchrodingerBridge:
        logs = (torch.from_numpy(state[key]) for key in ("log_f", "log_g"))
        return cls(source, target, solver, info, float(state["epsilon"]), *logs)


def _self_factor(masses: Tensor, propagate: LogOperator) -> Tensor:
    """Return log f with f·K_1 f = μ: Sinkhorn's iteration for equal ends, with half steps."""
    config = Schrodinger.config
    log_masses = masses.log()
    log_f = log_masses / 2
    for _ in range(config.self_iterations):
        step = (log_masses - propagate(log_f) - log_f).nan_to_num(0.0) / 2  # −∞ stays
        log_f = log_f + step
        if float((masses * step).abs().sum()) < config.self_tolerance:
            break
    return log_f


def _limit_slope(log_density: Tensor, slope: float, periodic: Sequence[bool]) -> Tensor:
    """Return the least function above log_density that changes by ≤ slope from cell to cell."""
    for axis, wraps in enumerate(periodic):
        columns = log_density.movedim(axis, -1)
        n = columns.shape[-1]
        if wraps:  # one period on each side
            columns = torch.cat([columns] * 3, -1)
        ramp = slope * torch.arange(columns.shape[-1], dtype=torch.float64)
        from_left = (columns + ramp).cummax(-1).values - ramp
        from_right = (columns - ramp).flip(-1).cummax(-1).values.flip(-1) + ramp
        limited = torch.maximum(from_left, from_right)
        log_density = limited[..., n : 2 * n] if wraps else limited
        log_density = log_density.movedim(-1, axis)
    return log_density
