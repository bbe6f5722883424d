"""Schrödinger bridges: paths with noise.

The bridge μ_t = f_t·g_t solves

    ∂_t f = εΔf,   ∂_t g = −εΔg   with reflecting walls,   μ_0, μ_1 given,

and u = −2ε log f turns this into ∂_t u + ½|∇u|² − εΔu = 0 and ∂_t μ + div(μ∇u) + εΔμ = 0; ε → 0
gives the geodesic back. f_t = K_t f_0 and g_t = K_{1−t} g_1, where K_t is the heat flow. f and g
span hundreds of orders of magnitude, so only their logarithms are kept.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet.fields.flow import runge_kutta
from geonet.fields.heat_flow import Flow, carried_factors, heat_flow
from geonet.fields.legendre import squared_distance_transform
from geonet.geodesics.base import Geodesic, Times
from geonet.geodesics.gradients import with_dual_gradient
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline, resample

STEEPEST = 4.0  # slope of log μ per cell that a spline can follow
STEPS = 24  # of Runge–Kutta from t = 0 to 1


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


def _masses(density: Density) -> Tensor:
    """The mass of each cell in float64; Sinkhorn cannot converge if the two sums differ."""
    values = density.values.detach().to(torch.float64)
    return values / values.sum()


def _limit_slope(log_density: Tensor) -> Tensor:
    """The least function above log_density that changes by at most STEEPEST from cell to cell."""
    for axis in range(log_density.ndim):
        columns = log_density.movedim(axis, -1)
        ramp = STEEPEST * torch.arange(columns.shape[-1], dtype=torch.float64)
        from_left = (columns + ramp).cummax(-1).values - ramp
        from_right = (columns - ramp).flip(-1).cummax(-1).values.flip(-1) + ramp
        log_density = torch.maximum(from_left, from_right).movedim(-1, axis)
    return log_density
