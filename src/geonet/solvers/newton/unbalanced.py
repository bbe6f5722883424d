"""Paths between densities of unequal mass, with a reach.

The engine returns the optimal plan in the form of a potential u: mass at y − D/2 is matched with
mass at y + D/2, where D = G∇u (`system`). The masses that both densities have there, m0 and m1, are
related by m1/m0 = exp(2u/λ), because their weighted densities agree.

Gaussian–Hellinger: the frame at t is (1 − t)·m0 + t·m1 at y + (t − ½)∇u. If the plan has less than
a third of m0 or of m1, only three times its share moves; the rest of m0 fades at y − ½∇u, and the
rest of m1 grows at y + ½∇u. Both ends are exact, and the total is linear in t.

Wasserstein–Fisher–Rao: mass follows the geodesic of the cone. With Θ = |D|/reach and r = √(m1/m0),
the point (1 − t) + t·r·exp(iΘ) of the complex plane has the square root of the mass, relative to
√m0, as its modulus, and its argument over Θ is the fraction of the way. The path is a geodesic of a
metric: ∂_t φ + ½|∇φ|² + φ²/(2δ²) = 0 with velocity ∇φ, growth rate φ/δ² and δ = reach/2. Its total
is (1 − t)·m0 + t·m1 − 2t(1 − t)·cost/reach². r is taken from the potential, and not from m1/m0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._progress import report_progress
from geonet._threads import threads_for
from geonet.density import Array, Density, requires_grad, to_user_array
from geonet.errors import UnavailableError
from geonet.grid import Grid
from geonet.numerics.splines import Jet, evaluate_at_half_cells, repeat_cells
from geonet.paths import BatchedGeodesic, Geodesic, Times
from geonet.solvers.newton.adjoint import signed_determinants
from geonet.solvers.newton.compiled import Formulation, Growth
from geonet.solvers.newton.path import (
    MidpointGeodesic,
    carry_masses,
    moving_share,
    solve_preimage,
)
from geonet.solvers.newton.reference import pull_back_density, shorten, weight_exponent
from geonet.solvers.newton.system import ResidualIntegrals, unmatched_mass
from geonet.solvers.newton.unbalanced_bounds import bound_unbalanced


class CostParts(NamedTuple):
    """Parts of the cost of a plan π between μ_0 and μ_1, with λ = reach²/2, and its masses.

    Attributes:
        displacement: ∫½|x − y|²dπ.
        amplitude: λ·KL(π_0|μ_0) + λ·KL(π_1|μ_1). Both sum to the cost.
        mean_displacement: mean of |x − y| over the plan.
        grown: mass that the target has more than the source along the ways of the plan.
        faded: mass that the source has more; grown − faded is the difference of both masses.
    """

    displacement: float
    amplitude: float
    mean_displacement: float
    grown: float
    faded: float


class UnbalancedGeodesic(MidpointGeodesic):
    """A path between two densities of any masses.

    `density(t)` has the mass of the path at time t, which both ends have as given. `cost` is the
    minimum over plans π of ∫c dπ + λ·KL(π_0|μ_0) + λ·KL(π_1|μ_1) with λ = reach²/2, and
    `distance` is √(2·cost): a metric for Wasserstein–Fisher–Rao, and √mass·W2 for equal masses if
    the reach is large.

    Args:
        source: one density.
        target: likewise.
        solver: name of the solver.
        info: entries for the report.
        coefficients: spline coefficients of the potential in the unit cube, (*cells).
        residual: share of the mass that is not balanced.
        integrals: integrals of the potential and both weighted densities.
        reach: length in the units of the grid.
        growth: "hellinger" or "wfr".
    """

    kind = "unbalanced"
    is_balanced = False

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        coefficients: Tensor,
        residual: float,
        integrals: ResidualIntegrals,
        reach: float,
        growth: Growth = "hellinger",
    ):
        super().__init__(source, target, solver, info, coefficients, residual, integrals)
        self.reach, self.growth = reach, growth
        self.formulation = Formulation(source.grid.periodic, reach / self.box.length, growth)

    @property
    def cost(self) -> Array:
        """Cost of the optimal plan, between its bounds; in units of mass times length squared."""
        return to_user_array(self._cost(), self.is_torch)

    @cached_property
    def cost_bounds(self) -> tuple[float, float]:
        """Lower bound of the cost, by duality, and upper bound, by a plan."""
        report_progress("bounding the cost")
        first, second = (values.detach() for values in self._own_densities())
        roll = self._centring_roll()
        lower, upper = bound_unbalanced(
            roll.apply(self.coefficients),
            roll.apply(first),
            roll.apply(second),
            self.box.sides,
            self.grid.periodic,
            self._unit_reach,
            self.growth,
        )
        scale = self._mean_mass * self.box.length**2
        return lower * scale, upper * scale

    @property
    def transported_share(self) -> float:
        """Mass of the optimal plan over the mean of both masses; the rest grows or fades."""
        return min(1.0, (self.integrals.source_mass + self.integrals.target_mass) / 2)

    @torch.no_grad()
    def split_cost(self) -> CostParts:
        """Return the parts of the cost of Gaussian–Hellinger transport."""
        if self.growth != "hellinger":
            raise UnavailableError(
                "The cost of Wasserstein–Fisher–Rao transport has no parts; set growth='hellinger'."
            )
        scale = self._mean_mass * self.box.length**2
        cost = float(self._cost())
        displacement = min(self.integrals.kinetic_energy / 4 * scale, cost)
        jet = evaluate_at_half_cells(self.coefficients, self.step, self.grid.periodic)
        ends = []
        for values, s in zip(self._densities(), self.formulation.positions, strict=True):
            density, jacobian = pull_back_density(
                values.double(), jet, s, self.step, 0.0, self.formulation, is_weighted=False
            )
            ends.append((density * signed_determinants(jacobian)).clamp(min=0))
        masses = [float(end.mass_tensor) for end in (self.source, self.target)]
        # Quadrature changes the masses of both ends by some thousandths.
        first, second = (
            values * (mass / values.sum()) for values, mass in zip(ends, masses, strict=True)
        )
        # The ratio of both is exp(2u/λ), and u is smoother than the quotient.
        difference = masses[1] - masses[0]
        grown = float(torch.where(jet.value > 0, second - first, 0.0).sum())
        grown = min(max(grown, difference, 0.0), masses[1])
        # The plan is √(m0·m1)·exp(−|∇u|²/4λ).
        length = jet.gradient.norm(dim=-1)
        plan = (first * second).sqrt() * torch.exp(-(length**2) / (4 * self.formulation.penalty))
        mean = float((plan * length).sum() / plan.sum().clamp(min=1e-300)) * self.box.length
        return CostParts(displacement, cost - displacement, mean, grown, grown - difference)

    def growth_rate(self, t: Times, points: ArrayLike | Tensor) -> Array:
        """Return α_t with ∂_t μ + ∇·(μv) = αμ at points (..., d): (times?, ...)."""
        return self._at_points(self._growth_rate, t, points, has_components=False)

    # ---- Methods of path classes

    @property
    def _unit_reach(self) -> float:
        return self.reach / self.box.length

    @property
    def _mean_mass(self) -> float:
        return float(self.source.mass_tensor.detach() + self.target.mass_tensor.detach()) / 2

    def _own_densities(self) -> tuple[Tensor, Tensor]:
        """Return source and target in the unit cube on their own cells, of mean mass one."""
        return (
            self.box.to_density(self.source.tensor) * (self.source.mass_tensor / self._mean_mass),
            self.box.to_density(self.target.tensor) * (self.target.mass_tensor / self._mean_mass),
        )

    def _densities(self) -> tuple[Tensor, Tensor]:
        first, second = self._own_densities()
        shape = self.coefficients.shape
        return repeat_cells(first, shape), repeat_cells(second, shape)

    def _cost(self) -> Tensor:
        lower, upper = self.cost_bounds
        value = min(max(self._dual_value(), lower), upper)
        return _attach_gradient(torch.tensor(value, dtype=torch.float64), self)

    def _dual_value(self) -> float:
        """Return λ(m0 + m1 − 2√(M0·M1)) with M = ∫ρ, the dual value for the best constant in u.

        The constant changes M0 and M1 by opposite factors. For a long reach it is less accurate
        than the rest of u.
        """
        own = self.integrals
        source, target = (
            float(end.mass_tensor.detach()) / self._mean_mass for end in (self.source, self.target)
        )
        matched = 0.0
        for mass, *integrals in (
            (source, own.source_mass, own.source_growth),
            (target, own.target_mass, own.target_growth),
        ):
            share = unmatched_mass(mass, *integrals) / mass
            matched += math.log1p(-share) / 2 if share < 1 else -math.inf
        growth = (math.sqrt(source) - math.sqrt(target)) ** 2
        matched = min(matched, 0.0)  # a plan has at most the mass √(m0·m1)
        lost = growth - 2 * math.sqrt(source * target) * math.expm1(matched)
        return 0.5 * self.reach**2 * self._mean_mass * lost

    def _distance(self) -> Tensor:
        cost = self._cost()
        root = (2 * cost).clamp(min=torch.finfo(cost.dtype).tiny).sqrt()
        return torch.where(cost > 0, root, 0.0)  # the root has no derivative at zero

    def _certified_distance(self) -> float:
        return float(self._distance().detach()) / self.box.length

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        """Lower and upper bound of the distance √(2·cost), in the unit cube."""
        lower, upper = ((2 * max(0.0, bound)) ** 0.5 for bound in self.cost_bounds)
        return lower / self.box.length, upper / self.box.length

    def _carry(self, c: Tensor, times: Tensor, grid: Grid) -> Tensor:
        threads = threads_for(self.coefficients.numel())
        own = self._densities(), self.box.sides, times, grid.shape, threads, self.formulation
        carried = carry_masses(c, *own)
        masses = carried.flatten(1).sum(1) * grid.cell_volume
        return carried / masses.reshape(-1, *(1,) * grid.dimension)

    def _interpolate_mass(self, times: Tensor) -> Tensor:
        if self.growth == "hellinger":  # linear in t
            return super()._interpolate_mass(times)
        # The dual value takes no bounds, which the cost needs.
        cost = _attach_gradient(torch.tensor(self._dual_value(), dtype=torch.float64), self)
        masses = torch.lerp(self.source.mass_tensor, self.target.mass_tensor, times)
        return masses - 2 * times * (1 - times) * cost / self.reach**2

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        if self.growth == "hellinger":
            return self._mix(times, points, lambda mixture: self._to_velocity(mixture))

        def move(t: float, jet: Jet) -> Tensor:
            way = self._follow_cone(t, jet)
            return self.box.from_length(way.speed[..., None] * way.displacement)

        return self._map_points(times, points, move)

    def _growth_rate(self, times: Tensor, points: Tensor) -> Tensor:
        if self.growth == "hellinger":
            return self._mix(times, points, lambda mixture: mixture.growth)
        return self._map_points(times, points, lambda t, jet: self._follow_cone(t, jet).growth)

    def _to_velocity(self, mixture: _Mixture) -> Tensor:
        return self.box.from_length(mixture.share[..., None] * mixture.gradient)

    def _mix(self, times: Tensor, points: Tensor, function: Callable[[_Mixture], Tensor]) -> Tensor:
        """Apply a function to the mixtures of moving and still mass at points (N, d)."""
        c, x = self.coefficients, self.box.to_points(points)
        if requires_grad(self.source, self.target):
            c = self._differentiable_coefficients()
        return torch.stack([function(self._evaluate_mixture(c, t, x)) for t in times.tolist()])

    def _evaluate_mixture(self, c: Tensor, t: float, x: Tensor) -> _Mixture:
        """Return moving and still mass at points (N, d) of a Gaussian–Hellinger path at time t."""
        own = self._own_densities()
        still = []
        for values, end in zip(own, (0.0, 1.0), strict=True):
            jet = self._evaluate(c, self._midpoint_positions(c, end, x))
            share = moving_share(jet, self.formulation)
            still.append((1 - share) * _look_up(values, x, self.box.sides))
        y = self._midpoint_positions(c, t, x)
        jet = self._evaluate(c, y)
        volume = _stretch(jet, t - 0.5).clamp(min=1e-6)
        weights, matched = [], 0.0
        for values, s in zip(own, self.formulation.positions, strict=True):
            weights.append(torch.exp(weight_exponent(jet, s, self.formulation)))
            end = self._wrap_unit(y + s * jet.gradient)
            density = _look_up(values, end, self.box.sides) * _stretch(jet, s).clamp(min=0)
            matched = matched + 0.5 * density * weights[-1] / volume
        share = moving_share(jet, self.formulation)
        # Where there is no mass, the rates are those of a plan of unit mass.
        matched = torch.where(matched + still[0] + still[1] > 0, matched, 1.0)
        moving = [share * matched / w for w in weights]
        total = (1 - t) * (moving[0] + still[0]) + t * (moving[1] + still[1])
        carried = (1 - t) * moving[0] + t * moving[1]
        change = moving[1] - moving[0] + still[1] - still[0]
        total = total.clamp(min=1e-300)
        return _Mixture(jet.gradient, carried / total, change / total)

    def _wrap_unit(self, x: Tensor) -> Tensor:
        """Return points of the unit cube modulo the periods, clipped to the walls."""
        sides = torch.tensor(self.box.sides, dtype=torch.float64)
        clipped = torch.minimum(x.clamp(min=0), sides)
        return torch.where(torch.tensor(self.grid.periodic), x % sides, clipped)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        if self.growth == "hellinger":
            return super()._potential(times, points)
        return self.reach**2 / 4 * self._growth_rate(times, points)

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        if self.growth == "hellinger":
            return super()._trajectories(times, points)
        c, x = self.coefficients, self.box.to_points(points)
        if requires_grad(self.source, self.target):
            c = self._differentiable_coefficients()
        y = self._midpoint_positions(c, 0.0, x)
        jet = self._evaluate(c, y)
        positions = [
            y + (way.fraction - 0.5)[..., None] * way.displacement
            for way in (self._follow_cone(t, jet) for t in times.tolist())
        ]
        return self._clip_to_walls(self.box.from_points(torch.stack(positions)))

    def _midpoint_positions(self, c: Tensor, t: float, x: Tensor) -> Tensor:
        if self.growth == "hellinger":
            return super()._midpoint_positions(c, t, x)

        def move(y: Tensor) -> tuple[Tensor, Tensor]:
            jet = self._evaluate(c.detach(), y)
            way = self._follow_cone(t, jet)
            s = (way.fraction - 0.5)[..., None]
            return y + s * way.displacement, s[..., None] * jet.hessian

        with torch.no_grad():
            y = solve_preimage(move, x, self.box.sides, self.grid.periodic)
        if not c.requires_grad:
            return y
        error = self._move_on_cone(c, t, y) - x  # one more step, to first order in c
        jacobian = self._differentiate_move(c.detach(), t, y)
        return y - torch.linalg.solve(jacobian, (error - error.detach())[..., None])[..., 0]

    def _move_on_cone(self, c: Tensor, t: float, y: Tensor) -> Tensor:
        """Return the positions at time t of particles whose way has the midpoint y."""
        way = self._follow_cone(t, self._evaluate(c, y))
        return y + (way.fraction - 0.5)[..., None] * way.displacement

    def _differentiate_move(self, c: Tensor, t: float, y: Tensor) -> Tensor:
        """Return the derivatives of positions at time t by y, (N, d, d)."""
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            position = self._move_on_cone(c, t, y)
            rows = [
                torch.autograd.grad(position[:, axis].sum(), y, retain_graph=True)[0]
                for axis in range(y.shape[-1])
            ]
        return torch.stack(rows, -2)

    def _final_positions(self, grid: Grid) -> Tensor:
        if self.growth == "hellinger":
            return super()._final_positions(grid)
        return Geodesic._final_positions(self, grid)  # the cost is not quadratic

    def _slopes(self) -> tuple[Tensor, Tensor]:
        """Return the derivatives of the cost by both densities, (*shape) each.

        They are λ(1 − exp(−φ/λ)) with the potentials φ of the plan. For Wasserstein–Fisher–Rao
        these are the potentials of the path.
        """
        potentials = self._kantorovich()
        if self.growth == "wfr":
            return potentials
        penalty = 0.5 * self.reach**2
        first, second = (penalty * -torch.expm1((-p / penalty).clamp(max=40)) for p in potentials)
        return first, second

    def _follow_cone(self, t: float, jet: Jet) -> _ConeWay:
        """Return the state of particles of a Wasserstein–Fisher–Rao geodesic at time t."""
        displacement, *_ = shorten(jet.gradient, self._unit_reach)
        angle = (displacement.norm(dim=-1) / self._unit_reach).clamp(min=1e-9)
        ratio = torch.exp((jet.value / self.formulation.penalty).clamp(-40, 40))
        x, y = 1 - t + t * ratio * torch.cos(angle), t * ratio * torch.sin(angle)
        square = (x**2 + y**2).clamp(min=1e-300)
        change = 2 * (x * (ratio * torch.cos(angle) - 1) + y * ratio * torch.sin(angle))
        speed = ratio * torch.sin(angle) / square / angle
        return _ConeWay(displacement, torch.atan2(y, x) / angle, speed, change / square)

    def _diagnostics(self) -> dict[str, Tensor]:
        values = super()._diagnostics()
        values.pop("distance_uncertainty")
        lower, upper = self.cost_bounds
        more = {
            "cost": float(self._cost().detach()),
            "cost_lower_bound": lower,
            "cost_upper_bound": upper,
            "transported_share": self.transported_share,
        }
        return values | {k: torch.tensor(v, dtype=torch.float64) for k, v in more.items()}

    def _state(self) -> dict[str, np.ndarray]:
        own = {"reach": np.array(self.reach), "growth": np.array(self.growth)}
        return super()._state() | own

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> UnbalancedGeodesic:
        return cls(
            source,
            target,
            solver,
            info,
            torch.from_numpy(state["coefficients"]),
            float(state["residual"]),
            ResidualIntegrals(*state["integrals"].tolist()),
            float(state["reach"]),
            str(state["growth"]),  # pyright: ignore[reportArgumentType]
        )


class UnbalancedBatch(BatchedGeodesic):
    """A batch of paths between densities of any masses."""

    kind = "unbalanced-stack"
    paths: list[UnbalancedGeodesic]

    @property
    def cost(self) -> Array:
        """Costs of the optimal plans, (batch,)."""
        costs = torch.stack(self.map_pairs(lambda path: path._cost()))  # pyright: ignore
        return to_user_array(costs, self.is_torch)

    @property
    def cost_bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of the costs, (batch,) each."""
        bounds = torch.tensor([path.cost_bounds for path in self.paths], dtype=torch.float64)
        lower, upper = (to_user_array(own, self.is_torch) for own in bounds.unbind(1))
        return lower, upper

    @property
    def transported_share(self) -> Array:
        """Mass of each plan over the mean mass of both ends, (batch,)."""
        shares = torch.tensor([path.transported_share for path in self.paths], dtype=torch.float64)
        return to_user_array(shares, self.is_torch)

    def growth_rate(self, t: Times, points: ArrayLike | Tensor) -> Array:
        """Return α_t with ∂_t μ + ∇·(μv) = αμ at points (..., d): (batch, times?, ...)."""

        def evaluate(times: Tensor, points: Tensor) -> Tensor:
            return torch.stack([path._growth_rate(times, points) for path in self.paths])

        return self._at_points(evaluate, t, points, has_components=False)


class _ConeWay(NamedTuple):
    """Particles on their way: displacement (N, d), fraction covered, its rate, and growth rate."""

    displacement: Tensor
    fraction: Tensor
    speed: Tensor
    growth: Tensor


class _Mixture(NamedTuple):
    """Mass at points: ∇u, the share that moves with it, and the growth rate of the whole."""

    gradient: Tensor
    share: Tensor
    growth: Tensor


def _stretch(jet: Jet, s: float) -> Tensor:
    """Return det(I + sD²u), (...)."""
    identity = torch.eye(jet.hessian.shape[-1], dtype=torch.float64)
    return torch.linalg.det(identity + s * jet.hessian)


def _look_up(values: Tensor, x: Tensor, sides: Sequence[float]) -> Tensor:
    """Return the density of the cells that contain points (N, d) of the unit cube, (N,)."""
    index = []
    for axis, (n, side) in enumerate(zip(values.shape, sides, strict=True)):
        index.append((x[:, axis].detach() * (n / side)).long().clamp(0, n - 1))
    return values[tuple(index)]


def _attach_gradient(cost: Tensor, path: UnbalancedGeodesic) -> Tensor:
    """Return the cost with the gradient of the envelope theorem in both ends."""
    ends = path.source, path.target
    if not requires_grad(*ends):
        return cost
    volume, total = path.grid.cell_volume, cost
    with torch.no_grad():
        slopes = path._slopes()
    for end, slope in zip(ends, slopes, strict=True):
        value = (end.tensor.double() * slope).sum() * volume * end.mass_tensor
        total = total + (value - value.detach())
    return total
