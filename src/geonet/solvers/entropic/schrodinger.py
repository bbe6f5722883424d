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

from geonet.errors import ConvergenceError, SolverError
from geonet.geodesic import Geodesic, Times
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline, resample
from geonet.solvers.base import Solver
from geonet.solvers.entropic.heat_flow import RESOLVED, Flow, carried_factors, heat_flow
from geonet.solvers.flow import runge_kutta
from geonet.solvers.gradients import with_dual_gradient

DEFAULT_EPSILON = 1e-3  # of the box's longest side squared
STEEPEST = 4.0  # slope of log μ per cell that a spline can follow
STEPS = 24  # of Runge–Kutta from t = 0 to 1
WINDOW = 20  # iterations over which Sinkhorn's rate is measured
AT_ONCE = 1 << 21  # sums of which a minimum is taken
SLOWEST = 0.9999  # the slowest rate believed, which bounds the over-relaxation at 1.98


@dataclass(frozen=True)
class Schrodinger(Solver):
    """Sinkhorn's iteration in the log domain, over-relaxed.

    Attributes:
        epsilon: ε of the equations, in units of the box's coordinates squared; a particle's noise
            over the whole path has variance 2ε per axis. None: a thousandth of the longest side
            squared, or the least the grid resolves, h²/2, where that is more.
        tolerance: the L1 error at which both end points count as met.
        max_iterations: of Sinkhorn.
    """

    name = "schrodinger"
    summary = "1D to 3D, the entropic bridge with noise epsilon: takes holes, islands and jumps"
    dimensions = (1, 2, 3)
    differentiable = ("distance",)

    epsilon: float | None = None
    tolerance: float = 1e-7
    max_iterations: int = 5000

    def __post_init__(self) -> None:
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise SolverError(
                f"epsilon is {self.epsilon:g}; give a positive number, in units of the box's "
                "coordinates squared, or solver='auto' for the path without noise."
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
                f"The Schrödinger bridge misses its end by {error:.1e} in L1 after {iterations} "
                f"iterations (tolerance {self.tolerance:g}): Sinkhorn contracts too slowly at "
                f"epsilon = {epsilon:g}; "
                "give a larger epsilon, more max_iterations or a coarser grid.",
                error,
            )
        shift = (_mean(second, log_g) - _mean(first, log_f)) / 2
        # In the unit box, where the constant of u does not depend on units; then f·g is a density.
        per_cell = -math.log(source.grid.cell_volume / source.grid.volume) / 2
        log_f, log_g = log_f + shift + per_cell, log_g - shift + per_cell
        log_g = log_g - math.log(source.grid.volume)
        notes = {"epsilon": epsilon, "iterations": iterations, "marginal error": error}
        return SchrodingerBridge(source, target, self.name, notes, epsilon, log_f, log_g)

    def _resolved_epsilon(self, grid: Grid) -> float:
        least = least_epsilon(grid)
        if self.epsilon is None:
            return max(DEFAULT_EPSILON * max(grid.lengths) ** 2, least)
        if self.epsilon < least * (1 - 1e-9):
            raise SolverError(
                f"epsilon = {self.epsilon:g} is below the grid's resolution: the noise "
                f"sqrt(2·epsilon) = {math.sqrt(2 * self.epsilon):.3g} is less than a cell of "
                f"{max(grid.spacing):.3g}; give epsilon ≥ {least:.3g} or a finer grid."
            )
        return float(self.epsilon)


def least_epsilon(grid: Grid) -> float:
    """The least ε that a grid resolves: the noise of the whole path is a cell's width."""
    return RESOLVED * max(grid.spacing) ** 2 / 2


class SchrodingerBridge(Geodesic):
    """μ_t = f_t·g_t, from log f_0 and log g_1 on the grid.

    `potential` is u = −2ε log f, which obeys ∂_t u + ½|∇u|² − εΔu = 0, and `drift` is ∇u. The drift
    alone does not carry the density, for there is noise: ∂_t μ + div(μ∇u) + εΔμ = 0. So `velocity`
    is the current velocity v = ε∇log(g/f) = ∇u + ε∇log μ, for which ∂_t μ + div(μv) = 0, and the
    particles of `trajectories` move with it, not along straight lines. `distance` is W2 without
    noise, from below: the dual value of the bridge's potentials, whose error is of second order in
    ε; `transport_cost`, what the noisy plan costs, is W2 from above. Both are for masses at the
    cell centres, whose W2² is off that of the densities by the order of a cell squared.

    u has a free constant; here E_{μ_0}[log f_0] = E_{μ_1}[log g_1] in the unit box. Where the
    density falls by more than a factor e⁴ from a cell to the next (off the support, say), u, drift
    and velocity continue log μ with that slope: the true u is infinite at t = 0 where μ_0 = 0. At
    the least epsilon the grid resolves, a single cell whose mass is torn over many is not resolved
    near the end it stands at; the mass of those frames, which is not forced to one, shows it.

    Attributes:
        epsilon: ε, in units of the box's coordinates squared.
    """

    kind = "schrodinger"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        epsilon: float,
        log_f: Tensor,
        log_g: Tensor,
    ):
        super().__init__(source, target, solver, notes)
        self.epsilon = epsilon
        self._log_f = log_f  # of f_0, (*grid.shape)
        self._log_g = log_g  # of g_1

    @property
    def transport_cost(self) -> Tensor:
        """sqrt(E|x − y|²) over the entropic plan between the cell centres; at least their W2."""
        carry = heat_flow(self.grid, self.epsilon, 1.0)
        total = torch.zeros((), dtype=torch.float64)
        for axis, h in enumerate(self.grid.spacing):
            # measured from a cell below the first centre, so that logarithms exist
            cells = self.grid.shape[axis]
            x = h * torch.arange(1, cells + 1, dtype=torch.float64)
            x = x.reshape(-1, *(1,) * (self._dimension - 1 - axis))
            moments = [torch.exp(self._log_f + carry(self._log_g + k * x.log())) for k in range(3)]
            total += (x * x * moments[0] - 2 * x * moments[1] + moments[2]).sum()
        return (total * self.grid.cell_volume).clamp(min=0).sqrt()

    def _distance(self) -> Tensor:
        """W2² ≥ Σ φ·μ_0 + Σ ψ·μ_1 where φ(x) + ψ(y) ≤ |x − y|², between the cell centres.

        The bridge has φ = 4ε log f_0 and ψ = 4ε log g_1, off the true ones by the order of ε. The
        best partner of each, and then the best partner of that, give Kantorovich's dual value; the
        larger of the two is taken.
        """
        first, second = _masses(self.source), _masses(self.target)
        source, target = self._kantorovich()
        half = (source * first).sum() + (target * second).sum()
        distance = (2 * half).clamp(min=0).sqrt()
        return with_dual_gradient(distance, self.source, self.target, lambda: (source, target))

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        return self._dual

    @cached_property
    def _dual(self) -> tuple[Tensor, Tensor]:
        """½φ and ½ψ at the cells, (*grid.shape) each."""
        first, second = _masses(self.source), _masses(self.target)
        best, found = -math.inf, None
        for log, swapped in ((self._log_f, False), (self._log_g, True)):
            there = squared_distance_transform(4 * self.epsilon * log, self.grid)
            here = squared_distance_transform(there, self.grid)
            source, target = (there, here) if swapped else (here, there)
            value = float((source * first).sum() + (target * second).sum())
            if value > best:
                best, found = value, (source / 2, target / 2)
        assert found is not None
        return found

    def _checks(self) -> dict[str, Tensor]:
        return {
            "distance_lower_bound": self._distance(),
            "distance_upper_bound": self.transport_cost,
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
        fields = (self._velocity_potential(float(t)) for t in times)
        return torch.stack([field.value_and_gradient(points)[1] for field in fields])

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Runge–Kutta in s ∈ [0, 1], t = sin²(πs/2): near sharp edges v grows as sqrt(ε/t)."""
        clock = torch.asin(times.sqrt()) * (2 / math.pi)
        lower, upper = self.grid.corner("lower"), self.grid.corner("upper")

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
        """ε log(g/f), whose gradient is v."""
        log_f, log_g = self._followable_factors(t)
        return CubicSpline(self.epsilon * (log_g - log_f), self.grid)

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
            return carried_factors(self._log_f, self._log_g, self.grid, self.epsilon, t)
        log_g, log_f = carried_factors(self._log_g, self._log_f, self.grid, self.epsilon, 1 - t)
        return log_f, log_g

    def _state(self) -> dict[str, np.ndarray]:
        return {
            "log_f": self._log_f.numpy(),
            "log_g": self._log_g.numpy(),
            "epsilon": np.array(self.epsilon),
        }

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> SchrodingerBridge:
        logs = (torch.from_numpy(state[key]) for key in ("log_f", "log_g"))
        return cls(source, target, solver, notes, float(state["epsilon"]), *logs)


# ---- the two factors at time 0 and 1: Sinkhorn


def _masses(density: Density) -> Tensor:
    """The mass of each cell in float64; Sinkhorn cannot converge if the two sums differ."""
    values = density.values.detach().to(torch.float64)
    return values / values.sum()


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


# ---- reading the fields between the cells


def _limit_slope(log_density: Tensor) -> Tensor:
    """The least function above log_density that changes by at most STEEPEST from cell to cell."""
    for axis in range(log_density.ndim):
        columns = log_density.movedim(axis, -1)
        ramp = STEEPEST * torch.arange(columns.shape[-1], dtype=torch.float64)
        from_left = (columns + ramp).cummax(-1).values - ramp
        from_right = (columns - ramp).flip(-1).cummax(-1).values.flip(-1) + ramp
        log_density = torch.maximum(from_left, from_right).movedim(-1, axis)
    return log_density
