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
from geonet.fields.quadratic import interpolated
from geonet.geodesics.base import Geodesic, Times
from geonet.geodesics.gradients import with_dual_gradient
from geonet.geodesics.midpoint.bounds import SLACK, lower_bound, upper_bound
from geonet.geodesics.report import moment_bounds
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline, resample
from geonet.measures.unit_box import UnitBox, unit_box

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
        for x in self._places():
            moments = [torch.exp(self._log_f + carry(self._log_g + k * x.log())) for k in range(3)]
            total += (x * x * moments[0] - 2 * x * moments[1] + moments[2]).sum()
        return (total * self.grid.cell_volume).clamp(min=0).sqrt()

    def _distance(self) -> Tensor:
        """W2² ≥ 2∫u_1 dμ_1 − 2∫u_0 dμ_0, where u at t = ½ gives both; see `midpoint.bounds`.

        Where there is much noise u is almost flat, and the moments alone bound W2 better.
        """
        lower = self._unit.from_velocity(self._lower_bound / (1 - SLACK))
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
        return interpolated(self._unit.to_potential(self._halfway))

    @cached_property
    def _lower_bound(self) -> float:
        """Of W2, in the unit cube."""
        return lower_bound(self._splines, *self._unit_ends(), self._unit.sides)

    @property
    def _unit(self) -> UnitBox:
        return unit_box(self.grid)

    def _unit_ends(self) -> tuple[Tensor, Tensor]:
        first, second = (
            self._unit.to_density(e.values.detach()) for e in (self.source, self.target)
        )
        return first, second

    def _checks(self) -> dict[str, Tensor]:
        lower = self._lower_bound
        mended = upper_bound(self._splines, *self._unit_ends(), self._unit.sides, lower)
        both = torch.tensor([lower, mended], dtype=torch.float64)
        lower, mended = self._unit.from_velocity(both)
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
