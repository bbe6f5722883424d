"""The Schrödinger bridge: the geodesic with noise, the truth for entropic regularisation.

The bridge μ_t = f_t·g_t solves

    ∂_t f = εΔf,   ∂_t g = −εΔg   with reflecting walls,   μ_0, μ_1 given,

and u = −2ε log f turns this into ∂_t u + ½|∇u|² − εΔu = 0 and ∂_t μ + div(μ∇u) + εΔμ = 0; ε → 0
gives the geodesic back. Sinkhorn's iteration finds f_0 and g_1 from f_0·K_1 g_1 = μ_0 and
g_1·K_1 f_0 = μ_1, where K_t is the heat flow; then f_t = K_t f_0 and g_t = K_{1−t} g_1.
f and g span hundreds of orders of magnitude, so only their logarithms are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._advice import argument, setting
from geonet._format import format_number
from geonet._progress import report_progress
from geonet.density import Density
from geonet.errors import ConvergenceError, SolverError
from geonet.grid import Grid, UnitBox, unit_box
from geonet.numerics.autograd import with_dual_gradient
from geonet.numerics.heat_kernel import MIN_VARIANCE, Flow, heat_flow, propagate_factors
from geonet.numerics.interpolation import CubicSpline, resample
from geonet.numerics.ode import runge_kutta
from geonet.numerics.splines import interpolate_centres
from geonet.paths import Geodesic, Times
from geonet.solvers.base import MenuEntry, Solver, SolverInfo
from geonet.solvers.bures import moment_bounds
from geonet.solvers.newton.bounds import SLACK, lower_bound, upper_bound

# ---- Legendre transforms for the squared distance, over the cells of a grid.


AT_ONCE = 1 << 21  # sums of which a minimum is taken


def squared_distance_transform(potential: Tensor, grid: Grid) -> Tensor:
    """ψ(y) = min_x |x − y|² − φ(x) over the cell centres, axis by axis; −∞ in φ takes no part."""
    values = -potential
    for axis, (h, cells) in enumerate(zip(grid.spacing, grid.shape, strict=True)):
        x = h * torch.arange(cells, dtype=torch.float64)
        cost = (x[:, None] - x) ** 2
        columns = values.movedim(axis, -1)
        parts = columns.reshape(-1, cells).split(max(1, AT_ONCE // cells**2))
        least = torch.cat([(part[:, None] + cost).amin(-1) for part in parts])
        values = least.reshape(columns.shape).movedim(-1, axis)
    return values


# ---- Schrödinger bridges: paths with noise.
#
# The bridge μ_t = f_t·g_t solves
#
#     ∂_t f = εΔf,   ∂_t g = −εΔg   with reflecting walls,   μ_0, μ_1 given,
#
# and u = −2ε log f turns this into ∂_t u + ½|∇u|² − εΔu = 0 and ∂_t μ + div(μ∇u) + εΔμ = 0; ε → 0
# gives the geodesic back. f_t = K_t f_0 and g_t = K_{1−t} g_1, where K_t is the heat flow. f and g
# span hundreds of orders of magnitude, so only their logarithms are kept.


STEEPEST = 4.0  # slope of log μ per cell that a spline can follow
STEPS = 24  # of Runge–Kutta from t = 0 to 1
SETTLED, MOST = 1e-9, 500  # change of a density's own factor at which it is found; iterations


class SchrodingerBridge(Geodesic):
    """μ_t = f_t·g_t, from log f_0 and log g_1 on the grid.

    `potential` is u = −2ε log f, which obeys ∂_t u + ½|∇u|² − εΔu = 0, and `drift` is ∇u. The drift
    alone does not carry the density, for there is noise: ∂_t μ + div(μ∇u) + εΔμ = 0. So `velocity`
    is the current velocity v = ε∇log(g/f) = ∇u + ε∇log μ, for which ∂_t μ + div(μv) = 0, and the
    particles of `trajectories` move with it, not along straight lines.

    At t = 0 and 1, ε∇log μ would be as rough as the ends are. There `velocity` is a difference of
    means over noisy particles: where those of the bridge go on average from x, less where those of
    the bridge from the same end to itself do. Both agree for smooth ends and small ε; for rough
    ends it is nearer to the geodesic's.

    `distance` is W2 without noise, from below: the dual value of v's potential at t = ½, made
    admissible, which is off by the square of that potential's error, or what the moments of both
    ends say if that is more. W2 is at most what the noisy plan costs, `transport_cost`, or the path
    of that potential with its ends mended.

    u has a free constant; here E_{μ_0}[log f_0] = E_{μ_1}[log g_1] in the unit box. Where the
    density falls by more than a factor e⁴ from a cell to the next (off the support, say), u, drift
    and velocity continue log μ with that slope: the true u is infinite at t = 0 where μ_0 = 0. At
    the least epsilon the grid resolves, a single cell whose mass is torn over many is not resolved
    near the end it stands at; the mass of those frames, which is not forced to one, shows it.

    Attributes:
        epsilon: ε, in units of the box's coordinates squared.
    """

    kind = "schrodinger"
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
        self._log_f = log_f  # of f_0, (*grid.shape)
        self._log_g = log_g  # of g_1

    @property
    def transport_cost(self) -> Tensor:
        """sqrt(E|x − y|²) over the entropic plan between the cell centres; at least their W2."""
        carry = heat_flow(self.grid, self.epsilon, 1.0)
        total = torch.zeros((), dtype=torch.float64)
        for x in self._places():
            moments = [torch.exp(self._log_f + carry(self._log_g + k * x.log())) for k in range(3)]
            total += (x * x * moments[0] - 2 * x * moments[1] + moments[2]).sum()
        return (total * self.grid.cell_volume).clamp(min=0).sqrt()

    def _distance(self) -> Tensor:
        """W2² ≥ 2∫u_1 dμ_1 − 2∫u_0 dμ_0, where u at t = ½ gives both; see `midpoint.bounds`.

        Where there is much noise u is almost flat, and the moments alone bound W2 better.
        """
        lower = self._unit.from_length(self._lower_bound / (1 - SLACK))
        distance = torch.tensor(lower, dtype=torch.float64)
        dual = with_dual_gradient(distance, self.source, self.target, self._kantorovich)
        return torch.maximum(dual, moment_bounds(self.source, self.target)[0])

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """−u_0(x) = min_y |x − y|² − u(y) and u_1(x) = min_y |x − y|² + u(y), over the cells."""
        return (
            squared_distance_transform(self._halfway, self.grid),
            squared_distance_transform(-self._halfway, self.grid),
        )

    @cached_property
    def _halfway(self) -> Tensor:
        """v's potential at t = ½, (*grid.shape), the mean of what both ends say."""
        just_after = math.nextafter(0.5, 1.0)  # which is read from the target
        return (self._velocity_values(0.5) + self._velocity_values(just_after)) / 2

    @cached_property
    def _splines(self) -> Tensor:
        """The same in the unit cube, in quadratic splines."""
        return interpolate_centres(self._unit.to_potential(self._halfway))

    @cached_property
    def _lower_bound(self) -> float:
        """Of W2, in the unit cube."""
        return lower_bound(self._splines, *self._unit_ends(), self._unit.sides)

    @property
    def _unit(self) -> UnitBox:
        return unit_box(self.grid)

    def _unit_ends(self) -> tuple[Tensor, Tensor]:
        first, second = (
            self._unit.to_density(e.tensor.detach()) for e in (self.source, self.target)
        )
        return first, second

    def _diagnostics(self) -> dict[str, Tensor]:
        lower = self._lower_bound
        mended = upper_bound(self._splines, *self._unit_ends(), self._unit.sides, lower)
        both = torch.tensor([lower, mended], dtype=torch.float64)
        lower, mended = self._unit.from_length(both)
        upper, distance = torch.minimum(mended, self.transport_cost), self._distance()
        return {
            "distance_lower_bound": lower,
            "distance_upper_bound": upper,
            "distance_uncertainty": torch.maximum(upper - distance, distance - lower),
            "blur": torch.tensor(math.sqrt(self.epsilon / 2), dtype=torch.float64),
        }

    def drift(self, t: Times, points: ArrayLike | Tensor) -> Tensor:
        """∇u_t at points (..., d): (times?, ..., d); `velocity` is this plus ε∇log μ_t."""
        return self._at_points(self._drift, t, points, vector=True)

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
        return self._velocity_potential(t).value_and_gradient(points)[1]

    @cached_property
    def _end_velocities(self) -> tuple[Tensor, Tensor]:
        """At t = 0 and 1, (d, *grid.shape) each."""
        first, second = (self._own_mean(end) for end in (self.source, self.target))
        return self._mean_partner(self._log_g) - first, second - self._mean_partner(self._log_f)

    def _mean_partner(self, log_factor: Tensor) -> Tensor:
        """E[y | x] at the cells x, where y has the density K_1(x, y)·factor(y): (d, *grid.shape).

        Measured from a cell below the first centre.
        """
        carry = heat_flow(self.grid, self.epsilon, 1.0)
        total = carry(log_factor)
        means = [carry(log_factor + x.log()) - total for x in self._places()]
        return torch.stack(means).exp()

    def _own_mean(self, end: Density) -> Tensor:
        """`_mean_partner` for the bridge from an end to itself."""
        carry = heat_flow(self.grid, self.epsilon, 1.0)
        return self._mean_partner(_own_factor(_masses(end), carry))

    def _places(self) -> list[Tensor]:
        """Coordinates of the cells that broadcast, from a cell below: logarithms must exist."""
        return [
            (h * torch.arange(1, n + 1, dtype=torch.float64)).reshape(
                -1, *(1,) * (self._dimension - 1 - axis)
            )
            for axis, (h, n) in enumerate(zip(self.grid.spacing, self.grid.shape, strict=True))
        ]

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Runge–Kutta in s ∈ [0, 1], t = sin²(πs/2): near sharp edges v grows as sqrt(ε/t)."""
        clock = torch.asin(times.sqrt()) * (2 / math.pi)
        lower, upper = self.grid.lower_tensor, self.grid.upper_tensor

        def speed(s: float) -> Flow:
            field = self._velocity_potential(min(math.sin(math.pi * s / 2) ** 2, 1.0))
            scale = math.pi / 2 * math.sin(math.pi * s)
            return lambda where: scale * field.value_and_gradient(where)[1]

        frames = torch.empty(len(times), *points.shape, dtype=torch.float64)
        where, now = points, 0.0
        for index in clock.argsort().tolist():
            where = runge_kutta(speed, where, now, float(clock[index]), STEPS)
            where, now = torch.minimum(torch.maximum(where, lower), upper), float(clock[index])
            frames[index] = where
        return frames

    def _velocity_potential(self, t: float) -> CubicSpline:
        return CubicSpline(self._velocity_values(t), self.grid)

    def _velocity_values(self, t: float) -> Tensor:
        """ε log(g/f), whose gradient is v, (*grid.shape)."""
        log_f, log_g = self._followable_factors(t)
        return self.epsilon * (log_g - log_f)

    def _log_f_spline(self, t: Tensor) -> CubicSpline:
        return CubicSpline(self._followable_factors(float(t))[0], self.grid)

    def _followable_factors(self, t: float) -> tuple[Tensor, Tensor]:
        """The logarithms with the slope of log μ_t limited, at the cost of the rougher one."""
        log_f, log_g = self._factors(t)
        log_density = _limit_slope(log_f + log_g)
        return (log_density - log_g, log_g) if t <= 0.5 else (log_f, log_density - log_f)

    def _factors(self, t: float) -> tuple[Tensor, Tensor]:
        """Logarithms of f_t and g_t on the grid."""
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


def _masses(density: Density) -> Tensor:
    """The mass of each cell in float64; Sinkhorn cannot converge if the two sums differ."""
    values = density.tensor.detach().to(torch.float64)
    return values / values.sum()


def _own_factor(masses: Tensor, carry: Flow) -> Tensor:
    """log f with f·K_1 f = μ: Sinkhorn's iteration for equal ends, by halves of its steps."""
    log_masses = masses.log()
    log_f = log_masses / 2
    for _ in range(MOST):
        step = (log_masses - carry(log_f) - log_f).nan_to_num(0.0) / 2  # −∞ stays
        log_f = log_f + step
        if float((masses * step).abs().sum()) < SETTLED:
            break
    return log_f


def _limit_slope(log_density: Tensor) -> Tensor:
    """The least function above log_density that changes by at most STEEPEST from cell to cell."""
    for axis in range(log_density.ndim):
        columns = log_density.movedim(axis, -1)
        ramp = STEEPEST * torch.arange(columns.shape[-1], dtype=torch.float64)
        from_left = (columns + ramp).cummax(-1).values - ramp
        from_right = (columns - ramp).flip(-1).cummax(-1).values.flip(-1) + ramp
        log_density = torch.maximum(from_left, from_right).movedim(-1, axis)
    return log_density


DEFAULT_EPSILON = 1e-3  # of the box's longest side squared
WINDOW = 20  # iterations over which Sinkhorn's rate is measured
SLOWEST = 0.9999  # the slowest rate believed, which bounds the over-relaxation at 1.98


@dataclass(frozen=True)
class Schrodinger(Solver):
    """The entropic path: the Schrödinger bridge with noise ε, for any densities on a grid.

        ∂t μ + div(μ ∇u) + εΔμ = 0          ∂t u + ½|∇u|² − εΔu = 0

    Its exact solution is μ_t = f_t·g_t with ∂t f = εΔf, ∂t g = −εΔg and u = −2ε log f. Sinkhorn's
    iteration, in the log domain and over-relaxed, finds f at t = 0 and g at t = 1; the heat flow
    with reflecting walls gives the rest. As ε → 0 the path becomes the geodesic.

    **Velocity.** With noise, two fields could be called the velocity. `path.velocity` is the
    current velocity v = ∇u + ε∇log μ, for which ∂t μ + div(μ v) = 0; the particles of
    `path.trajectories` follow it and carry μ0 to μ1, though not along straight lines.
    `path.drift(t, points)` (for a single pair) is ∇u, the gradient of `path.potential`. With these
    signs it is the backward drift: the mean velocity with which a noisy particle arrived at x.
    It does not carry the density alone, because of the term εΔμ. Both become the geodesic's
    velocity as ε → 0.

    ε∇log μ is as rough as the ends are. At t = 0 and 1 `path.velocity` therefore is what noisy
    particles do on average, E[y|x] − x, less the same for the bridge from that end to itself. Near
    the ends, but not at them, it is the current velocity, rough or not. Particles hardly notice:
    their displacements are near those of the geodesic unless the map tears.

    **Distance.** `path.distance` is W2 without noise. The potential of v at t = ½ is nearly the
    geodesic's, and Kantorovich's dual value of it lies below W2 by the square of its error; where
    the means and covariances of both ends say more, they bound W2 from below. The report bounds W2
    from above by the path of this potential with its ends mended, or by the cost of the noisy plan,
    `path.transport_cost`, whichever is less. `report.distance_uncertainty` is the distance to the
    further bound. Densities count as constant in each cell.

    **Choosing ε.** The frame halfway is blurred by √(ε/2) along each axis; `report.blur` says so,
    and the verdict warns where that is more than things move.

    It refuses an ε that is too small for the grid: the noise √(2ε) must be at least a cell wide. A
    small ε also makes Sinkhorn slow. It raises `ConvergenceError` if it does not meet both ends.

    Attributes:
        epsilon: ε of the equations, in the box's units of length squared; a particle's noise over
            the whole path has variance 2ε per axis. None: a thousandth of the longest side
            squared, or the least the grid resolves, h²/2, where that is more.
        tolerance: the L1 error at which both end points count as met.
        max_iterations: the most iterations of Sinkhorn's method.
    """

    info = SolverInfo(
        name="schrodinger",
        summary="1D to 3D, the entropic bridge with noise epsilon: takes holes, islands and jumps",
        family="entropic",
        dimensions=(1, 2, 3),
        differentiable=("distance",),
        guarantee="the path is the exact bridge with noise, not the geodesic",
        tolerance="L1 error at both ends, a share of the mass",
        less_blur="a smaller epsilon",
        menu=MenuEntry(
            "With noise: the Schrödinger bridge", max_cells=128, epsilon=(5e-4, 2e-3, 0.05)
        ),
    )

    epsilon: float | None = None
    tolerance: float = 1e-7
    max_iterations: int = 5000

    def __post_init__(self) -> None:
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise SolverError(
                f"epsilon is {self.epsilon:g}; give a positive number, in units of the box's "
                f"coordinates squared, or {setting('solver', 'auto')} for the path without noise."
            )
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g} and max_iterations {self.max_iterations}; "
                "both must be positive."
            )

    def _solve_pair(self, source: Density, target: Density) -> SchrodingerBridge:
        epsilon = self._resolved_epsilon(source.grid)
        first, second = _masses(source), _masses(target)
        carry = heat_flow(source.grid, epsilon, 1.0)
        log_f, log_g, iterations, error = _sinkhorn(
            first, second, carry, self.tolerance, self.max_iterations
        )
        if not error < self.tolerance:
            raise ConvergenceError(
                f"The Schrödinger bridge misses its end by {format_number(error, 2)} in L1 after "
                f"{iterations} iterations (tolerance {self.tolerance:g}): Sinkhorn contracts too "
                f"slowly at epsilon = {epsilon:g}; give a larger "
                f"{argument('epsilon')}, more {argument('max_iterations')} or a coarser grid.",
                error,
            )
        shift = (_mean(second, log_g) - _mean(first, log_f)) / 2
        # In the unit box, where the constant of u does not depend on units; then f·g is a density.
        per_cell = -math.log(source.grid.cell_volume / source.grid.volume) / 2
        log_f, log_g = log_f + shift + per_cell, log_g - shift + per_cell
        log_g = log_g - math.log(source.grid.volume)
        info = {"epsilon": epsilon, "iterations": iterations, "marginal error": error}
        usual = DEFAULT_EPSILON * source.grid.max_side**2
        if self.epsilon is None and epsilon > usual:
            info["epsilon raised from"] = usual
        return SchrodingerBridge(source, target, self.name, info, epsilon, log_f, log_g)

    def _resolved_epsilon(self, grid: Grid) -> float:
        least = min_epsilon(grid)
        if self.epsilon is None:
            return max(DEFAULT_EPSILON * grid.max_side**2, least)
        if self.epsilon < least * (1 - 1e-9):
            rounded = (
                format_number(least),
                format_number(1.0005 * least),
            )  # the second is never below
            enough = next(text for text in rounded if float(text) >= least * (1 - 1e-9))
            raise SolverError(
                f"epsilon = {self.epsilon:g} is below the grid's resolution: the noise "
                f"sqrt(2·epsilon) = {format_number(math.sqrt(2 * self.epsilon), 3)} is less than a cell "
                f"of {format_number(max(grid.spacing), 3)}; give {argument('epsilon')} of at least "
                f"{enough} or a finer grid."
            )
        return float(self.epsilon)


def min_epsilon(grid: Grid) -> float:
    """The least ε that a grid resolves: the noise of the whole path is a cell's width."""
    return MIN_VARIANCE * max(grid.spacing) ** 2 / 2


# ---- the two factors at time 0 and 1: Sinkhorn


def _mean(masses: Tensor, values: Tensor) -> Tensor:
    return (masses * values.masked_fill(masses == 0, 0.0)).sum()


def _sinkhorn(
    source: Tensor, target: Tensor, carry: Flow, tolerance: float, limit: int
) -> tuple[Tensor, Tensor, int, float]:
    """Gives log f_0, log g_1, the number of iterations, and ‖g_1·K_1 f_0 − μ_1‖ in L1.

    The last step is a plain one, so f_0·K_1 g_1 = μ_0 holds to rounding. Before, both updates are
    over-relaxed by ω: with η the rate of plain Sinkhorn, the best ω = 2/(1 + sqrt(1−η)) needs some
    1/sqrt(1−η) iterations per digit where ω = 1 needs 1/(1−η).
    """
    log_source, log_target = source.log(), target.log()
    log_g = torch.zeros_like(target).masked_fill(target == 0, -torch.inf)
    log_f = log_source - carry(log_g)
    relaxation, checked, before, error = 1.0, 0, math.inf, math.inf
    for iteration in range(1, limit + 1):
        carried = carry(log_f)
        error = _l1(log_g + carried, target)
        report_progress(
            f"schrodinger: iteration {iteration}, the end is missed by {format_number(error, 2)}"
        )
        if error < tolerance:  # but after a relaxed step the source is not met
            plain = log_source - carry(log_g)
            error = _l1(log_g + carry(plain), target)
            if error < tolerance:
                return plain, log_g, iteration, error
        if iteration - checked >= max(WINDOW, 4 / (2 - relaxation)):
            rate = (error / before) ** (1 / (iteration - checked))
            relaxation = _next_relaxation(relaxation, rate)
            checked, before = iteration, error
        log_g = _relaxed(log_g, log_target - carried, relaxation)
        log_f = _relaxed(log_f, log_source - carry(log_g), relaxation)
    return log_f, log_g, limit, error


def _l1(log_values: Tensor, masses: Tensor) -> float:
    return float((log_values.exp() - masses).abs().sum())


def _relaxed(old: Tensor, new: Tensor, relaxation: float) -> Tensor:
    return torch.where(torch.isfinite(new), old + relaxation * (new - old), new)  # −inf stays


def _next_relaxation(relaxation: float, rate: float) -> float:
    """The best ω for the η that follows from the rate r of the error: (r + ω − 1)² = r·ω²·η."""
    if rate >= 1:
        return 1 + 0.9 * (relaxation - 1)
    if rate <= relaxation - 1:  # as fast as this ω can be
        return relaxation
    plain = (rate + relaxation - 1) ** 2 / (rate * relaxation**2)
    return 2 / (1 + math.sqrt(1 - min(plain, SLOWEST)))
