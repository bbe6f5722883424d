"""Bounds of W2 and of barycenters, valid for any potential: wrong, folded or not converged.

All bounds are theorems for densities that are constant in their cells, up to rounding. They use
cells that are divided into `parts` per axis, with sides δ; their errors are multiples of δ².

Below: let φ on a lattice P and ψ on a lattice Q satisfy φ(p) + ψ(q) ≤ ½|p − q|². Interpolation is
the mean over random lattice points around x and z, with means x and z and variances v(x) and v(z)
of at most Σ_a δ_a²/4 and of Σ_a δ_a²/6 in the mean over a part. So the interpolated functions
satisfy φ(x) + ψ(z) ≤ ½|x − z|² + ½v(x) + ½v(z), and the Kantorovich dual gives

    W2² ≥ 2 Σ w_P φ + 2 Σ w_Q ψ − Σ_a δ_a²/3

with the masses w that linear interpolation gives to the lattice points. P are the vertices of the
parts and Q their centres: for mass that hardly moves, the losses of both sides then cancel best.
The potentials are c-transforms of u, in which points far from all mass do not count. The same holds
on a torus: the distance of two lattice points is at most their distance along the shortest way
between x and z.

The barycenter ρ is unknown. For potentials with Σ_i w_i ψ_i = 0 on the vertices, and their
c-transforms φ_i on the centres, ψ_i − ½v is admissible, so that for every ρ

    Σ_i w_i W2²(ρ, μ_i) ≥ 2 Σ_i w_i ∫φ_i dμ_i − Σ_a δ_a²/6 − Σ_a δ_a²/4.

A second c-transform gives ψ_i' ≥ ψ_i with s = Σ_i w_i ψ_i' ≥ 0. Then Σ_i w_i (ψ_i' − s) = 0, and
the c-transforms of ψ_i' − s are at least φ_i: the bound rises.

Above: the cost of a plan between the parts (`plans`). It has the marginals only approximately.
Three repairs follow: scaling of the shares of each cell (rounds of iterative proportional fitting),
flows between neighbours along the gradient of a Poisson problem, and blocks of 2, 4, 8, … cells, in
which surplus goes to deficits. The cost of the composed plan is computed exactly: since its
marginals are exact, E x·z is enough, and with it the mean final position of the mass of each cell.
Repairs over short distances cost little. Periodic axes are unrolled: the source stays in one
period, the target has copies in half a period more on either side, and the copies of each cell
together receive its mass. Repairs may cross faces, so they need means of squared positions, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from geonet.numerics.splines import repeat_cells
from geonet.solvers.newton import small_moves
from geonet.solvers.newton.lattices import PartLattices, exclude
from geonet.solvers.newton.plans import (
    BARYCENTER,
    GEODESIC,
    Factors,
    Scales,
    TransportPlan,
    build_plan,
)
from geonet.solvers.newton.repairs import (
    repair_marginal,
    repair_on_torus,
    second_moment,
    wrap_axes,
    wrap_moments,
)

__all__ = [
    "DEFAULT_BOUNDS",
    "BoundsConfig",
    "bound_barycenter",
    "bound_distance",
    "lower_bound",
    "upper_bound",
]


@dataclass(frozen=True)
class BoundsConfig:
    """Tuning parameters of the bounds."""

    resolution: float = 7.0  # number of parts along W2: the gap is about 0.5/resolution²
    small_move: float = 0.5  # W2 in cells below which the bounds of `small_moves` are computed
    max_gap: float = 0.01  # relative gap above which parts are halved
    lattice_share: float = 0.2  # share of the gap due to the parts above which they are halved
    max_points: int = 2**18  # largest number of parts, unless cells have at most `few_parts`
    few_parts: tuple[int, ...] = (64, 4, 1)  # parts along each axis in 1D, 2D, 3D for any grid
    scaling_rounds: int = 3  # largest number of rounds of proportional fitting
    scaled_error: float = 0.25  # error of a marginal, a share of the mass, up to which it suffices
    flow_rounds: int = 20  # largest number of rounds of flow between neighbours
    flow_error: float = 5e-4  # error of a marginal up to which blocks suffice
    block_share: float = 0.1  # cost of blocks over W2² up to which they suffice
    negligible: float = 1e-60  # mass of a cell that cannot be scaled: factors must not overflow
    smallest: float = 1e-20  # mass of a cell that is left out: 2^20 of them are within `rounding`
    barycenter_rounds: int = 1  # double c-transforms of the potentials of a barycenter
    barycenter_gap: float = 0.005  # as max_gap, for the square root of the objective
    barycenter_share: float = 0.4  # as lattice_share
    flow_share: float = 0.15  # longest repair over the reach, for Wasserstein–Fisher–Rao transport
    wide_angle: float = 1.2  # diagonal of the box over the reach up to which repairs have no limit
    angles: tuple[float, ...] = (0.3, 0.6, 1.0)  # distances over the reach, see unbalanced_bounds
    radial_points: int = 2**18  # as max_points, for c-transforms with costs that are not quadratic
    short_reach: float = 0.1  # below, c-transforms have fewer candidates, so more points are used
    fading_caps: tuple[float, ...] = (1.5, 2.5, 5.0, 20.0, 100.0, 1e4)  # of ratios of densities
    unbalanced_gap: float = (
        0.02  # relative gap of the cost with a reach above which parts are halved
    )
    largest_ratio: float = 200.0  # (side of a part/reach)² above which the lattices give no bound
    certified_error: float = 5e-3  # relative error of W2 that the bounds certify if they are close
    mean_gap: float = 0.1  # relative gap above which a dual value between the bounds is W2
    least_margin: float = (
        5e-6  # distance of W2 from its bounds, over the longest side, that suffices
    )
    rounding: float = 1e-13  # rounding error of W2², relative to the squared diagonal of the box


DEFAULT_BOUNDS = BoundsConfig()


def bound_distance(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    distance: float,
    config: BoundsConfig = DEFAULT_BOUNDS,
    periodic: Sequence[bool] | None = None,
) -> tuple[float, float]:
    """Return a lower and an upper bound of W2.

    Args:
        coefficients: potential at t = ½, (*cells).
        source: density, (*own cells), on a box with corner zero.
        target: likewise.
        sides: side lengths of the box.
        distance: estimate of W2.
        config: tuning parameters.
        periodic: whether each axis is periodic; none is by default.
    """
    first, second = (_normalise(values, config) for values in (source, target))
    if torch.equal(first, second):
        return 0.0, 0.0

    def bound(parts: int) -> tuple[float, float]:
        ends = coefficients, first, second, sides, parts, config, periodic
        return lower_bound(*ends) ** 2, upper_bound(*ends, distance) ** 2

    below, above = 0.0, math.inf
    if distance < config.small_move * min(
        side / n for side, n in zip(sides, source.shape, strict=True)
    ):
        below, above = _bound_small_moves(coefficients, first, second, sides, periodic, config)
        if below >= (1 - config.max_gap) * above:
            return below, above
    lower, upper = refine_bounds(bound, source.shape, sides, distance, config)
    upper = min(above, math.sqrt(upper))
    return min(max(below, math.sqrt(lower)), upper), upper


def _bound_small_moves(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    periodic: Sequence[bool] | None,
    config: BoundsConfig,
) -> tuple[float, float]:
    """Return bounds of W2 that are close for nearly equal densities."""
    wraps = periodic if periodic is not None else (False,) * source.ndim
    rounding = config.rounding * sum(side**2 for side in sides)
    square = small_moves.bound_below(coefficients, source, target, sides, wraps)
    above = small_moves.bound_above(source, target, sides, wraps)
    below = math.sqrt(max(0.0, square - rounding))
    above = math.sqrt(above**2 + rounding)
    return min(below, above), above


def bound_barycenter(
    potentials: Tensor,
    weights: Tensor,
    densities: Tensor,
    density: Tensor,
    sides: Sequence[float],
    periodic: Sequence[bool] | None,
    value: float,
    config: BoundsConfig = DEFAULT_BOUNDS,
) -> tuple[float, float]:
    """Return bounds of the objective Σ w_i W2²(ρ, μ_i) of a barycenter.

    Args:
        potentials: ψ_i with maps y + ∇ψ_i to the densities, (N, *cells); rows of weight zero do not
            matter.
        weights: (N,), not negative.
        densities: μ_i, (N, *own cells), on a box with corner zero.
        density: ρ, (*own cells).
        sides: side lengths of the box.
        periodic: whether each axis is periodic; None for none.
        value: estimate of the objective.
        config: tuning parameters.

    Returns:
        A lower bound of the objective for all ρ, and an upper bound for the given ρ.
    """
    kept = (weights > 0).nonzero().flatten()
    shares = weights[kept].double() / weights[kept].double().sum()
    own = potentials[kept].double()
    centre, *ends = (_normalise(one, config) for one in (density, *densities[kept]))

    def bound(parts: int) -> tuple[float, float]:
        lattices = make_lattices(density.shape, sides, parts, periodic)
        lower = _bound_barycenter_below(own, shares, torch.stack(ends), lattices, config)
        masses = [divide_cells(one, parts) for one in (centre, *ends)]
        costs = (
            bound_cost(c, (masses[0], mass), sides, periodic, config, BARYCENTER)
            for c, mass in zip(own, masses[1:], strict=True)
        )
        upper = sum(w * cost for w, cost in zip(shares.tolist(), costs, strict=True))
        return max(0.0, lower), upper + config.rounding * sum(side**2 for side in sides)

    gap, share, length = config.barycenter_gap, config.barycenter_share, math.sqrt(max(value, 0.0))
    aims = replace(config, max_gap=gap, lattice_share=share)
    return refine_bounds(bound, density.shape, sides, length, aims, is_binary=True)


def _normalise(values: Tensor, config: BoundsConfig) -> Tensor:
    """Return masses with sum one, without those that are too small to be scaled."""
    masses = values.double() / values.double().sum()
    masses = torch.where(masses < config.smallest, 0.0, masses)
    return masses / masses.sum()


def refine_bounds(
    bound: Callable[[int], tuple[float, float]],
    shape: Sequence[int],
    sides: Sequence[float],
    length: float,
    config: BoundsConfig,
    is_binary: bool = False,
) -> tuple[float, float]:
    """Return bounds of a squared length, with parts that are halved until these are close.

    Args:
        bound: returns the bounds for a number of parts along each axis.
        shape: cells of the densities.
        sides: side lengths of the box.
        length: estimate of the length.
        config: tuning parameters.
        is_binary: whether the number of parts is a power of two. Cells then consist of whole blocks
            of parts, in which repairs are cheap.
    """
    lower, upper = 0.0, math.inf
    parts = _choose_parts(shape, sides, length, config)
    if is_binary:
        parts = 2 ** math.floor(math.log2(parts) + 0.5)
    while True:
        below, above = bound(parts)
        lower, upper = max(lower, below), min(upper, above)
        # Relative gaps of the length.
        gap = 1 - math.sqrt(min(1.0, lower / max(upper, 1e-300)))
        steps = (side / (parts * n) for side, n in zip(sides, shape, strict=True))
        by_parts = sum(step**2 for step in steps) / 4 / max(upper, 1e-300)
        is_good = gap <= config.max_gap or by_parts < config.lattice_share * gap
        if is_good or 2 * parts > most_parts(shape, config):
            return min(lower, upper), upper
        parts *= 2


def _choose_parts(
    shape: Sequence[int], sides: Sequence[float], length: float, config: BoundsConfig
) -> int:
    """Return the number of parts of a cell along each axis."""
    spacing = max(side / n for side, n in zip(sides, shape, strict=True))
    wanted = config.resolution * spacing / length if length > 0 else 1.0
    return max(1, math.ceil(min(wanted, most_parts(shape, config))))


def most_parts(shape: Sequence[int], config: BoundsConfig) -> int:
    """Return the largest number of parts of a cell along each axis."""
    affordable = (config.max_points / math.prod(shape)) ** (1 / len(shape))
    return max(config.few_parts[len(shape) - 1], math.floor(affordable + 1e-9))


def make_lattices(
    shape: Sequence[int], sides: Sequence[float], parts: int, periodic: Sequence[bool] | None
) -> PartLattices:
    """Return the lattices of cells that are divided into parts."""
    wraps = tuple(periodic) if periodic is not None else (False,) * len(shape)
    return PartLattices(tuple(shape), tuple(sides), parts, wraps)


# ---- Lower bounds


def lower_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    parts: int,
    config: BoundsConfig = DEFAULT_BOUNDS,
    periodic: Sequence[bool] | None = None,
) -> float:
    """Return a lower bound of W2 for masses of cells that are divided into parts."""
    lattices = make_lattices(source.shape, sides, parts, periodic)
    phi, psi = find_dual_pair(coefficients, source, target, lattices)
    dual = float(lattices.integrate_vertices(phi, source))
    dual += float(lattices.integrate_centres(psi, target))
    rounding = config.rounding * sum(side**2 for side in sides)
    return math.sqrt(max(0.0, 2 * dual - sum(h**2 for h in lattices.steps) / 3 - rounding))


def find_dual_pair(
    coefficients: Tensor, source: Tensor, target: Tensor, lattices: PartLattices
) -> tuple[Tensor, Tensor]:
    """Return φ on the vertices and ψ on the centres with φ(p) + ψ(q) ≤ ½d²(p, q).

    The inequality holds for the points around cells with mass; no others matter.
    """
    vertices, centres = lattices.vertices, lattices.centres
    u = lattices.evaluate(coefficients, vertices)
    psi = exclude(lattices.transform(u, vertices, centres, 1.0), lattices.touch_centres(target))
    phi = lattices.transform(psi, centres, vertices)
    filled = exclude(phi, lattices.touch_vertices(source))
    return phi, lattices.transform(filled, vertices, centres)


def _bound_barycenter_below(
    potentials: Tensor,
    weights: Tensor,
    densities: Tensor,
    lattices: PartLattices,
    config: BoundsConfig,
) -> float:
    """Return a lower bound of Σ w_i W2²(ρ, μ_i) for all ρ.

    The maps are y + ∇ψ_i, hence −ψ_i are the Kantorovich potentials of ρ.
    """
    vertices, centres = lattices.vertices, lattices.centres
    view = weights.reshape(-1, *(1,) * len(lattices.shape))
    psi = torch.stack([-lattices.evaluate(c, vertices) for c in potentials])
    psi[-1] = -(view * psi)[:-1].sum(0) / weights[-1]
    phi = lattices.transform(-psi, vertices, centres)
    touched = torch.stack([lattices.touch_centres(mass) for mass in densities])
    for _ in range(config.barycenter_rounds):
        psi = lattices.transform(exclude(phi, touched), centres, vertices)
        psi -= (view * psi).sum(0)
        phi = lattices.transform(-psi, vertices, centres)
    dual = float((weights * lattices.integrate_centres(phi, densities)).sum())
    loss = sum(h**2 for h in lattices.steps) * (1 / 6 + 1 / 4)
    return 2 * dual - loss - config.rounding * sum(side**2 for side in lattices.sides)


# ---- Upper bounds


def upper_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    parts: int,
    config: BoundsConfig = DEFAULT_BOUNDS,
    periodic: Sequence[bool] | None = None,
    distance: float = math.inf,
) -> float:
    """Return an upper bound of W2 for masses of cells that are divided into parts.

    An estimate of W2 makes repairs of the marginals more careful, if they cost too much.
    """
    masses = divide_cells(source, parts), divide_cells(target, parts)
    limit = config.block_share * distance**2
    cost = bound_cost(coefficients, masses, sides, periodic, config, GEODESIC, limit)
    return math.sqrt(cost + config.rounding * sum(side**2 for side in sides))


def divide_cells(masses: Tensor, parts: int) -> Tensor:
    """Return the masses of the parts of cells."""
    return repeat_cells(masses, [parts * n for n in masses.shape]) / parts**masses.ndim


def bound_cost(
    coefficients: Tensor,
    masses: tuple[Tensor, Tensor],
    sides: Sequence[float],
    periodic: Sequence[bool] | None,
    config: BoundsConfig,
    factors: Factors = GEODESIC,
    block_cost: float = math.inf,
) -> float:
    """Return an upper bound of W2² between masses with sum one on the cells of a lattice.

    Flows between neighbours continue while blocks might cost more than `block_cost`.
    """
    limits = config.flow_rounds, config.flow_error, block_cost
    if periodic is not None and any(periodic):
        return _bound_periodic_cost(coefficients, masses, sides, periodic, config, factors, limits)
    plan = build_plan(coefficients, *masses, sides, factors)
    scales, held = fit_proportionally(plan, masses[0], masses[1], None, config)
    total = 1.0 if torch.equal(held[0], masses[0]) else float(held[0].sum())
    if not total > 0:  # every cell is folded
        return math.inf
    means = [
        repair_marginal(mass if total == 1 else mass / total, own, plan.step, *limits)
        for mass, own in zip(held, masses, strict=True)
    ]
    squares = sum(second_moment(mass, plan.step) for mass in masses)
    cost = squares - 2 * plan.product(means, scales) / total
    return max(0.0, cost) if math.isfinite(cost) else math.inf


def _bound_periodic_cost(
    coefficients: Tensor,
    masses: tuple[Tensor, Tensor],
    sides: Sequence[float],
    periodic: Sequence[bool],
    config: BoundsConfig,
    factors: Factors,
    limits: tuple[int, float, float],
) -> float:
    """Return an upper bound of W2² on a torus."""
    images = Images(masses[0].shape, sides, coefficients.shape, periodic)
    first, second = (images.extend(mass) for mass in masses)
    plan = build_plan(images.extend_spline(coefficients), first, second, images.sides, factors)
    source = first * images.first_period
    scales, held = fit_proportionally(plan, source, masses[1], images, config)
    total = float(held[0].sum())
    if not total > 0:
        return math.inf
    means, squares = [], 0.0
    for mass, own in zip(held, masses, strict=True):
        folded = images.fold(mass / total)
        moments = repair_on_torus(folded, own, plan.step, periodic, *limits)
        moments = wrap_moments(moments, images.more, plan.step)
        means.append(moments.first)
        squares += float((mass / total * moments.second.sum(0)).sum())
    cost = squares - 2 * plan.product(means, scales) / total
    return max(0.0, cost) if math.isfinite(cost) else math.inf


class Images:
    """Copies of periodic cells in half a period more, or a whole one, before and after the first.

    Args:
        shape: cells of the lattice.
        sides: side lengths of the box.
        spline: cells of the potential.
        periodic: whether each axis is periodic.
    """

    def __init__(
        self,
        shape: Sequence[int],
        sides: Sequence[float],
        spline: Sequence[int],
        periodic: Sequence[bool],
    ):
        self.shape = tuple(shape)
        self.more, self._spline_more, self.sides = [], [], []
        for n, side, own, wraps_axis in zip(shape, sides, spline, periodic, strict=True):
            common = math.gcd(n, own)  # the extension is a whole number of cells of both
            share = -(-common // 2) / common if wraps_axis else 0.0
            self.more.append(round(share * n))
            self._spline_more.append(round(share * own))
            self.sides.append(side * (1 + 2 * share))

    @property
    def first_period(self) -> Tensor:
        """One in the first period, else zero."""
        inside = torch.ones(self.shape, dtype=torch.float64)
        for axis, more in enumerate(self.more):
            pad = torch.zeros_like(inside.narrow(axis, 0, 1)).repeat_interleave(more, axis)
            inside = torch.cat([pad, inside, pad], axis)
        return inside

    def extend(self, values: Tensor) -> Tensor:
        """Return values of all copies of cells."""
        return wrap_axes(values, self.more)

    def extend_spline(self, coefficients: Tensor) -> Tensor:
        """Return coefficients of all copies of the potential's cells."""
        return wrap_axes(coefficients, self._spline_more)

    def fold(self, values: Tensor) -> Tensor:
        """Return sums over the copies of cells."""
        for axis, (n, more) in enumerate(zip(self.shape, self.more, strict=True)):
            index = torch.arange(-more, n + more) % n
            shape = list(values.shape)
            shape[axis] = n
            values = torch.zeros(shape, dtype=values.dtype).index_add_(axis, index, values)
        return values


def fit_proportionally(
    plan: TransportPlan,
    source: Tensor,
    target: Tensor,
    images: Images | None,
    config: BoundsConfig,
    allowed: Tensor | None = None,
) -> tuple[Scales, list[Tensor]]:
    """Scale the shares of cells; return these and the marginals.

    The marginal of the source becomes exact, but for cells that no mass reaches. That of the target
    is scaled only if its error is large: flows between neighbours cost less than many rounds. All
    copies of a cell of the target are scaled alike. Only `allowed` cells of it may have mass.
    """
    scales: Scales = [None, None if allowed is None else allowed.double()]
    held = [plan.marginal(0, scales)] * 2

    def fit(side: int) -> None:
        own, wanted = (folded_target(), target) if side else (held[0], source)
        has_mass, before = own > config.negligible, scales[side]
        scale = torch.where(has_mass, wanted / own, 0.0)
        if side and images is not None:
            scale = images.extend(scale)
        scales[side] = scale if before is None else before * scale
        if side == 0:
            held[0] = torch.where(has_mass, source, 0.0)
        held[1 - side] = plan.marginal(1 - side, scales)

    def folded_target() -> Tensor:
        return held[1] if images is None else images.fold(held[1])

    fit(0)
    for _ in range(config.scaling_rounds):
        if float((folded_target() - target).abs().sum()) <= config.scaled_error:
            break
        fit(1)
        fit(0)
    return scales, held
