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

import torch
from torch import Tensor

from geonet.advice import argument, setting
from geonet.errors import ConvergenceError, SolverError
from geonet.fields.heat_flow import RESOLVED, Flow, heat_flow
from geonet.geodesics.bridge import SchrodingerBridge, _masses
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.progress import tell
from geonet.solvers.base import Solver
from geonet.wording import number

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
                f"The Schrödinger bridge misses its end by {number(error, 2)} in L1 after "
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
        notes = {"epsilon": epsilon, "iterations": iterations, "marginal error": error}
        usual = DEFAULT_EPSILON * source.grid.longest**2
        if self.epsilon is None and epsilon > usual:
            notes["epsilon raised from"] = usual
        return SchrodingerBridge(source, target, self.name, notes, epsilon, log_f, log_g)

    def _resolved_epsilon(self, grid: Grid) -> float:
        least = least_epsilon(grid)
        if self.epsilon is None:
            return max(DEFAULT_EPSILON * grid.longest**2, least)
        if self.epsilon < least * (1 - 1e-9):
            rounded = (number(least), number(1.0005 * least))  # the second is never below
            enough = next(text for text in rounded if float(text) >= least * (1 - 1e-9))
            raise SolverError(
                f"epsilon = {self.epsilon:g} is below the grid's resolution: the noise "
                f"sqrt(2·epsilon) = {number(math.sqrt(2 * self.epsilon), 3)} is less than a cell "
                f"of {number(max(grid.spacing), 3)}; give {argument('epsilon')} of at least "
                f"{enough} or a finer grid."
            )
        return float(self.epsilon)


def least_epsilon(grid: Grid) -> float:
    """The least ε that a grid resolves: the noise of the whole path is a cell's width."""
    return RESOLVED * max(grid.spacing) ** 2 / 2


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
        tell(f"schrodinger: iteration {iteration}, the end is missed by {number(error, 2)}")
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


# ---- reading the fields between the cells
