"""Bounds of the cost of unbalanced transport, valid for any potential.

Gaussian–Hellinger transport of μ0 to μ1, with masses m0 and m1 and λ = reach²/2, is

    min over plans π of ∫½|x − z|²dπ + λKL(π_0|μ0) + λKL(π_1|μ1) = λ(m0 + m1 − 2M).

Below: let φ(p) + ψ(q) ≤ ½|p − q|² on the lattices of `bounds`. With the variances v of linear
interpolation, φ − ½v and ψ − ½v are admissible, and the dual value is λ(m0 + m1 − E0 − E1) with
E0 = ∫exp(−(φ − ½v)/λ)dμ0. Since exp is convex, exp(−φ/λ) at x is at most the interpolation of its
values on the lattice. So E0 is at most a sum over lattice points, whose stencil is a product over
the axes like exp(v/2λ). A constant may be moved between φ and ψ; the best one makes E0 = E1, which
gives M ≤ √(E0·E1).

Above: for probabilities r and s, the plan M·π with a plan π between them of cost w is best with

    log M = −[w + λ∫log(r/μ0)dr + λ∫log(s/μ1)ds]/2λ,

which gives the value λ(m0 + m1 − 2M). r and s are the densities exp(−φ/λ)μ0 and exp(−ψ/λ)μ1, up to
factors: errors of them have an effect of second order only. `bounds` gives w.

Wasserstein–Fisher–Rao transport has the cost c = −λ log cos²(r/reach) of a distance r < ½π·reach
instead of ½r². Below: beyond an angle s = r/reach, c is replaced by its Taylor polynomial of degree
two, which is less since c″ = 1/cos²(r/reach) grows. The Hessian of this cost is at most
k = 1/cos²(s), so that all of the above holds with k·v instead of v. Above: the plan follows the
curved paths of the potential, and c(d + e) ≤ c(d) + ∇c(d)·e + ½c″(|d| + |e|)|e|² bounds the cost of
repairs by e, which are limited to a share of the reach. r and s are the marginals after these
repairs.

If the reach is shorter than a cell, ψ may also be constant in cells, with φ its c-transform. Then
a = exp(−φ/λ) is the maximum of a_j exp(−d²/reach²) over all cells j at distance d. That is at most
the value of the own cell, plus (a_j − own value)₊ exp(−d²/reach²) for the others, whose means over
a cell have a closed form. For reach → 0 both bounds tend to λ∫(√μ0 − √μ1)²: mass fades in place.
This holds for both costs, because the second one is larger.

Both are computed as λ(√m0 − √m1)² + 2λ√(m0·m1)(1 − exp(−x)), which loses no digits if λ is large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor

from geonet.solvers.newton.bounds import (
    DEFAULT_BOUNDS,
    BoundsConfig,
    Images,
    bound_cost,
    divide_cells,
    find_dual_pair,
    fit_proportionally,
    make_lattices,
    most_parts,
)
from geonet.solvers.newton.lattices import PartLattices, RadialTransform, exclude
from geonet.solvers.newton.plans import build_plan
from geonet.solvers.newton.repairs import cell_positions, improve_on_torus


def bound_unbalanced(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    periodic: Sequence[bool] | None,
    reach: float,
    growth: str = "hellinger",
    config: BoundsConfig = DEFAULT_BOUNDS,
) -> tuple[float, float]:
    """Return a lower and an upper bound of the cost of unbalanced transport.

    Args:
        coefficients: potential at t = ½, (*cells).
        source: density, (*own cells), on a box with corner zero; its mass is the sum of its values
            times the volume of a cell.
        target: likewise.
        sides: side lengths of the box.
        periodic: whether each axis is periodic; None for none.
        reach: √(2λ).
        growth: "hellinger" or "wfr".
        config: tuning parameters.
    """
    volume = math.prod(side / n for side, n in zip(sides, source.shape, strict=True))
    masses = source.double() * volume, target.double() * volume
    totals = [float(mass.sum()) for mass in masses]
    if min(totals) <= 0:
        cost = 0.5 * reach**2 * max(totals)
        return cost, cost
    kind = _CurvedProblem if growth == "wfr" else _Problem
    problem = kind(coefficients, masses, tuple(sides), periodic, reach, config)
    lower = problem.evaluate(max(0.0, problem.bound_fading()))
    upper = problem.evaluate(problem.fade_exponent())
    parts = 1
    while True:
        below, above = problem.bound(parts)
        lower, upper = max(lower, below), min(upper, above)
        steps = (side / (parts * n) for side, n in zip(sides, source.shape, strict=True))
        by_parts = sum(step**2 for step in steps) / 4 * math.sqrt(totals[0] * totals[1])
        gap = upper - lower
        is_good = gap <= config.unbalanced_gap * upper or by_parts < config.lattice_share * gap
        if is_good or 2 * parts > problem.most_parts:
            return min(lower, upper), upper
        parts *= 2


class _Problem:
    """Two densities with their masses and a potential."""

    def __init__(
        self,
        coefficients: Tensor,
        masses: tuple[Tensor, Tensor],
        sides: tuple[float, ...],
        periodic: Sequence[bool] | None,
        reach: float,
        config: BoundsConfig,
    ):
        self.coefficients, self.sides, self.periodic = coefficients, sides, periodic
        self.reach, self.config, self.rate = reach, config, 0.5 * reach**2
        self.totals = [float(mass.sum()) for mass in masses]
        self.shares = [mass / total for mass, total in zip(masses, self.totals, strict=True)]

    @property
    def most_parts(self) -> int:
        """Largest number of parts of a cell along each axis."""
        return most_parts(self.shares[0].shape, self.config)

    def evaluate(self, exponent: float) -> float:
        """Return the cost λ(m0 + m1 − 2M) for M = √(m0·m1)·exp(−exponent)."""
        roots = [math.sqrt(total) for total in self.totals]
        growth = (roots[0] - roots[1]) ** 2
        return self.rate * (growth - 2 * roots[0] * roots[1] * math.expm1(-exponent))

    def fade_exponent(self) -> float:
        """Return the exponent of the plan in which nothing moves: M = ∫√(μ0·μ1)."""
        overlap = float((self.shares[0] * self.shares[1]).sqrt().sum())
        return -math.log(overlap) if overlap > 0 else math.inf

    def bound_fading(self) -> float:
        """Return a lower bound of the exponent for a reach that is shorter than a cell."""
        shape = self.shares[0].shape
        widths = [side / n / self.reach for side, n in zip(self.sides, shape, strict=True)]
        if min(widths) < 1:
            return 0.0
        ratio = (self.shares[1] / self.shares[0]).nan_to_num(1.0, math.inf).sqrt()
        best = 0.0
        for cap in self.config.fading_caps:
            values = ratio.clamp(1 / cap, cap)
            for (first, second), own in zip(
                (self.shares, self.shares[::-1]), (values, 1 / values), strict=True
            ):
                peak = _spread_cells(own, widths, self.periodic)
                product = float((first * peak).sum()) * float((second / own).sum())
                best = max(best, -0.5 * math.log(product))
        return best

    def bound(self, parts: int) -> tuple[float, float]:
        """Return both bounds for cells that are divided into parts."""
        lattices = make_lattices(self.shares[0].shape, self.sides, parts, self.periodic)
        below, pair = self._bound_below(lattices)
        above = self._bound_above(pair, lattices)
        # Rounding errors of ½W2², divided by 2λ.
        rounding = self.config.rounding * sum(side**2 for side in self.sides) / (4 * self.rate)
        below, above = below - rounding, above + rounding
        return self.evaluate(max(0.0, below)), self.evaluate(above)

    def _bound_below(self, lattices: PartLattices) -> tuple[float, tuple[Tensor, Tensor]]:
        """Return a lower bound of the exponent, and the dual pair on vertices and centres."""
        source, target = self.shares
        pair = find_dual_pair(self.coefficients, source, target, lattices)
        return self._evaluate_pair(pair, lattices), pair

    def _evaluate_pair(
        self, pair: tuple[Tensor, Tensor], lattices: PartLattices, curvature: float = 1.0
    ) -> float:
        """Return −½log of the product of E0/m0 and E1/m1."""
        ratios = [curvature * h**2 / (2 * self.rate) for h in lattices.steps]
        if max(ratios) > self.config.largest_ratio:
            return 0.0
        stencils = [_weigh_stencil(ratio) for ratio in ratios]
        excess = math.expm1(sum(math.log1p(own[0]) for own in stencils))
        kinds = (
            (lattices.touch_vertices, lattices.integrate_vertices, [own[1] for own in stencils]),
            (lattices.touch_centres, lattices.integrate_centres, [own[2] for own in stencils]),
        )
        total = 0.0
        for potential, share, (touch, integrate, stencil) in zip(
            pair, self.shares, kinds, strict=True
        ):
            touched = touch(share)
            least = float(potential[touched].min())
            values = torch.where(touched, (least - potential) / self.rate, 0.0).expm1()
            mean = float(integrate(values, share, stencil))  # of exp(…) − 1
            total += least / self.rate - math.log1p(mean + excess)
        return total / 2

    def _bound_above(self, pair: tuple[Tensor, Tensor], lattices: PartLattices) -> float:
        """Return an upper bound of the exponent."""
        ends = self._find_ends(pair, lattices)
        arguments = self.sides, self.periodic, self.config
        cost = bound_cost(self.coefficients, (ends[0], ends[1]), *arguments)
        return self._evaluate_plan(cost / 2, ends, lattices.parts)

    def _find_ends(self, pair: tuple[Tensor, Tensor], lattices: PartLattices) -> list[Tensor]:
        """Return probabilities of parts in proportion to exp(−φ/λ)μ0 and exp(−ψ/λ)μ1."""
        ends = []
        for potential, share, is_vertex in zip(pair, self.shares, (True, False), strict=True):
            base = divide_cells(share, lattices.parts)
            values = lattices.average_at_parts(potential, is_vertex)
            least = values[base > 0].min()
            end = base * torch.exp((least - values) / self.rate).clamp(max=1.0)
            ends.append(end / end.sum())
        return ends

    def _evaluate_plan(self, cost: float, ends: Sequence[Tensor], parts: int) -> float:
        """Return −log of M/√(m0·m1) for a plan between probabilities of parts."""
        total = 0.0
        for end, share in zip(ends, self.shares, strict=True):
            base = divide_cells(share, parts)
            terms = torch.special.xlogy(end, end / base)
            total += float(torch.where(end > 0, terms, 0.0).sum())
        return cost / (2 * self.rate) + total / 2


class _CurvedProblem(_Problem):
    """Likewise for Wasserstein–Fisher–Rao transport."""

    @property
    def most_parts(self) -> int:
        points = self.config.radial_points * max(1.0, self.config.short_reach / self.reach)
        affordable = (points / self.shares[0].numel()) ** (1 / self.shares[0].ndim)
        return min(super().most_parts, max(1, math.floor(affordable + 1e-9)))

    def _bound_below(self, lattices: PartLattices) -> tuple[float, tuple[Tensor, Tensor]]:
        u = lattices.evaluate(self.coefficients, lattices.vertices)
        angle = self._choose_angle(u, lattices)
        radial = RadialTransform(lattices, partial(_find_cost, reach=self.reach, angle=angle))
        pair = self._find_pair(u, lattices, radial)
        return self._evaluate_pair(pair, lattices, 1 / math.cos(angle) ** 2), pair

    def _choose_angle(self, u: Tensor, lattices: PartLattices) -> float:
        """Return the angle up to which the cost is exact: most mass moves less."""
        slopes = [u.diff(dim=axis).abs() / h for axis, h in enumerate(lattices.steps)]
        touched = lattices.touch_vertices(self.shares[0] + self.shares[1])
        size = torch.stack([_pad_end(slope, touched.shape) for slope in slopes]).norm(dim=0)
        values = size[touched].sort().values
        typical = math.atan(float(values[math.floor(0.95 * (len(values) - 1))]) / self.reach)
        angle = next((own for own in self.config.angles if own >= typical), self.config.angles[-1])
        return min(angle, math.sqrt(sum(side**2 for side in self.sides)) / self.reach)

    def _find_pair(
        self, u: Tensor, lattices: PartLattices, radial: RadialTransform
    ) -> tuple[Tensor, Tensor]:
        """Return a dual pair: ψ(z) = min_y u(y) + h(z − y), with the cost h of half the way."""
        half = RadialTransform(lattices, lambda squares: radial.cost(4 * squares) / 2)
        psi = half.to_centres(u)
        phi = radial.to_vertices(exclude(psi, lattices.touch_centres(self.shares[1])))
        touched = lattices.touch_vertices(self.shares[0])
        return phi, radial.to_centres(exclude(phi, touched))

    def _bound_above(self, pair: tuple[Tensor, Tensor], lattices: PartLattices) -> float:
        config, ends = self.config, self._find_ends(pair, lattices)
        rounds, levels, beyond, farthest = self._limit_repairs(lattices)
        images = Images(ends[0].shape, self.sides, self.coefficients.shape, lattices.periodic)
        first, second = (images.extend(end) for end in ends)
        coefficients = images.extend_spline(self.coefficients)
        plan = build_plan(coefficients, first, second, images.sides, reach=self.reach)
        if farthest == math.inf:
            plan.drop_far(0.49 * math.pi * self.reach - 2 * beyond)
        source, allowed = first * images.first_period, second > 0
        scales, held = fit_proportionally(plan, source, ends[1], images, config, allowed)
        total = float(held[0].sum())
        if not total > 0:
            return math.inf
        held = [images.fold(mass / total) for mass in held]
        limits = rounds, config.flow_error, levels
        centres = cell_positions(ends[0].shape, plan.step)
        after, shifts, spreads = [], [], []
        for mass, end in zip(held, ends, strict=True):
            final, moments = improve_on_torus(mass, end, plan.step, lattices.periodic, *limits)
            after.append(final)
            shifts.append(torch.stack([images.extend(one) for one in moments.first - centres]))
            spread = moments.second - 2 * centres * moments.first + centres**2
            spreads.append(images.extend(spread.sum(0)))
        cost = plan.curved_cost(scales, shifts, spreads, 2 * beyond, farthest) / total
        return self._evaluate_plan(cost, after, lattices.parts)

    def _limit_repairs(self, lattices: PartLattices) -> tuple[int, int, float, float]:
        """Return the largest numbers of rounds and of levels of blocks, and the longest repair.

        The last number is the largest distance in the box, if that is within the reach.
        """
        across = math.sqrt(sum(side**2 for side in self.sides))
        longest, diagonal = max(lattices.steps), math.sqrt(sum(h**2 for h in lattices.steps))
        limit, farthest = self.config.flow_share * self.reach, math.inf
        if across < self.config.wide_angle * self.reach and not any(lattices.periodic):
            limit, farthest = 2 * across, across
        rounds = min(self.config.flow_rounds, math.floor(limit / longest))
        levels = max(0, math.floor(math.log2(max(limit / diagonal, 1.0))))
        return rounds, levels, rounds * longest + 2**levels * diagonal, farthest


def _pad_end(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return values with zeros at the ends of axes."""
    result = torch.zeros(tuple(shape), dtype=values.dtype)
    result[tuple(slice(n) for n in values.shape)] = values
    return result


def _find_cost(squares: Tensor, reach: float, angle: float) -> Tensor:
    """Return −λ log cos²(r/reach), continued by a quadratic polynomial beyond an angle."""
    angles = squares.sqrt() / reach
    more = (angles - angle).clamp(min=0)
    cost = -2 * angles.clamp(max=angle).cos().log()
    cost = cost + 2 * math.tan(angle) * more + (more / math.cos(angle)) ** 2
    return reach**2 / 2 * cost


def _spread_cells(
    values: Tensor, widths: Sequence[float], periodic: Sequence[bool] | None, far: float = 28.0
) -> Tensor:
    """Return upper bounds of the means over cells of max_j a_j exp(−d²/reach²), (*shape).

    Args:
        values: a_j of each cell, positive.
        widths: side lengths of a cell over the reach.
        periodic: whether each axis is periodic.
        far: squared distance over that of the reach beyond which cells count together.
    """
    means = []
    for width in widths:
        count = math.floor(math.sqrt(far) / width) + 1
        edges = [math.erf(k * width) for k in range(count + 1)]
        one_side = [math.sqrt(math.pi) / 2 / width * (b - a) for a, b in pairwise(edges)]
        means.append([*one_side[::-1], 1.0, *one_side])
    wraps = periodic if periodic is not None else [False] * values.ndim
    result = values + math.exp(-far) * values.max()
    for offset in product(*(range(-(len(own) // 2), len(own) // 2 + 1) for own in means)):
        gaps = (max(0, abs(k) - 1) * width for k, width in zip(offset, widths, strict=True))
        if not any(offset) or sum(gap**2 for gap in gaps) > far:
            continue
        weight = math.prod(own[k + len(own) // 2] for k, own in zip(offset, means, strict=True))
        other = values
        for axis, k in enumerate(offset):
            other = _shift_cells(other, axis, k, wraps[axis]) if k else other
        result += weight * (other - values).clamp(min=0)
    return result


def _shift_cells(values: Tensor, axis: int, k: int, wraps: bool) -> Tensor:
    """Return the values k cells further; zero beyond the faces."""
    n = values.shape[axis]
    index = torch.arange(k, n + k)
    shifted = values.index_select(axis, index % n)
    if wraps:
        return shifted
    inside = ((index >= 0) & (index < n)).to(values.dtype)
    return shifted * inside.reshape([-1 if a == axis else 1 for a in range(values.ndim)])


def _weigh_stencil(ratio: float) -> tuple[float, tuple[float, float], tuple[float, float, float]]:
    """Return ∫(e^{κt(1−t)} − 1)dt over a part, and stencils for vertices and centres.

    The weights are integrals of those of linear interpolation times e^{κt(1−t)}.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    t, weights = (nodes + 1) / 4, weights / 4  # from 0 to ½
    growth = np.expm1(ratio * t * (1 - t))
    excess = 2 * float(weights @ growth)
    near = float(weights @ ((1 - t) * (1 + growth)))
    far = float(weights @ (t * (1 + growth)))
    half = (1 + excess) / 2
    return excess, (half, half), (far, 2 * near, far)
