"""Displacement interpolation in 1D by quantile functions, exact for piecewise-constant densities.

In 1D the optimal map is monotone: Q_t = (1−t)·Q_0 + t·Q_1 for the quantile functions Q_i = F_i⁻¹.
For densities that are constant in each cell, Q_0 and Q_1 are linear between the merged levels of
F_0 and F_1. Between two neighbouring levels the mass is uniform on a segment whose ends move
straight.

On a circle, a periodic axis of length L, F and Q continue with F(x + L) = F(x) + 1, and the levels
of one density are shifted against the other's: the plan x = Q_0(s), y = Q_1(s + α) has the cost

    C(α) = ∫_0^1 (Q_1(s + α) − Q_0(s))² ds,        C'(α) = 2∮(y − x) dy,

where the second integral follows the monotone curve of all (x, y) once around. C is convex, and
its minimum is W2² (Delon, Salomon and Sobolevskii, 2010). Then ∮v_t dx = 0 at all times, so that
the potential is periodic, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from geonet.density import Density, requires_grad
from geonet.grid import Grid
from geonet.numerics.autograd import with_dual_gradient
from geonet.paths import Geodesic
from geonet.solvers.base import ALL_QUANTITIES, Solver, SolverInfo

TINY = 1e-300  # masses and widths up to here count as zero


@dataclass(frozen=True)
class Quantile(Solver):
    """Interpolation of quantile functions, exact in 1D for the cost of one sort.

    The optimal map on the line is monotone, so Q_t = (1 − t)·Q_0 + t·Q_1. Between two neighbouring
    levels of the two distribution functions the mass fills a segment whose ends move straight.
    Density, velocity, potential and distance follow in closed form. Batches are solved at once.
    On a periodic axis the levels are shifted against each other first; bisection finds the best
    shift up to rounding.

    It is the most accurate solver in 1D; the others take 1D densities for studies.
    """

    info = SolverInfo(
        name="quantile",
        summary="1D, exact for piecewise-constant densities, O(n); the reference in 1D",
        family="closed form",
        dimensions=(1,),
        differentiable=ALL_QUANTITIES,
        periodic=True,
        exact=True,
        guarantee="the path is exact for densities that are constant in each cell",
    )

    def _solve(self, source: Density, target: Density) -> Geodesic:
        path = CircleGeodesic if source.grid.is_periodic else QuantileGeodesic
        return path(source, target, self.name)

    _solve_pair = _solve


class QuantileGeodesic(Geodesic):
    """Segments of mass between the merged levels of F_0 and F_1, whose ends move straight."""

    kind = "quantile"

    def __init__(self, source: Density, target: Density, solver: str):
        super().__init__(source, target, solver, {})
        edges = self.grid.edges()[0]
        first, second = _distribution(source), _distribution(target)
        levels = torch.cat([first, second[:, 1:]], dim=-1)
        self._levels, self._order = levels.sort(dim=-1, stable=True)
        # (B, K, 2): left and right end of each segment at t = 0 and at t = 1
        self._start = _segment_ends(first, edges, self._levels)
        self._end = _segment_ends(second, edges, self._levels)

    def _distance(self) -> Tensor:
        """Return W2 = √(Σ_j m_j ∫_0^1 ((1−λ)a_j + λb_j)² dλ), displacements a_j, b_j of ends."""
        a, b = (self._end - self._start).unbind(-1)
        squared = (self._levels.diff(dim=-1) * (a * a + a * b + b * b)).sum(-1) / 3
        distance = squared.clamp(min=0).sqrt().reshape(self.batch)
        return with_dual_gradient(distance, self.source, self.target, self._kantorovich)

    def _diagnostics(self) -> dict[str, Tensor]:
        return _bound_exactly(self._distance())

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """Return exact cell means of φ and ψ, (batch?, n): φ' = x − T, and ψ' = y − T⁻¹."""
        from_source = self._order <= self.grid.shape[0]
        below, above = from_source[:, :-1], from_source[:, 1:]  # levels around each segment
        last = self.grid.shape[0] - 1
        source_cell = (below.cumsum(-1) - 1).clamp(max=last)  # no mass above the last level
        target_cell = (~below).cumsum(-1).clamp(max=last)
        start = self._with_empty_cells(self._start, self.source, source_cell, above)
        end = self._with_empty_cells(self._end, self.target, target_cell, ~above)
        first = self._mean_potential(start, self._end, source_cell)
        second = self._mean_potential(end, self._start, target_cell)
        return first.reshape(*self.batch, -1), second.reshape(*self.batch, -1)

    def _with_empty_cells(
        self, segments: Tensor, density: Density, cell: Tensor, closing: Tensor
    ) -> Tensor:
        """Return segments in which a segment without mass fills each empty cell.

        Mass that is added to this cell would start there. The segment is the one that ends with
        the level of the cell, for which `closing` is true.
        """
        edges = self.grid.edges()[0]
        empty = (_distribution(density).diff(dim=-1) <= TINY).gather(1, cell)
        faces = torch.stack([edges[:-1], edges[1:]], -1)
        return torch.where((empty & closing)[..., None], faces[cell], segments)

    def _mean_potential(self, here: Tensor, there: Tensor, cell: Tensor) -> Tensor:
        """Return cell means (B, n) of ∫(x − T) for the map T of adjacent segments.

        Args:
            here: left and right ends of the segments, (B, K, 2).
            there: their images, (B, K, 2).
            cell: index of the cell of each segment, (B, K).
        """
        width, (left, right) = here.diff(dim=-1)[..., 0], (here - there).unbind(-1)
        rise = width * (left + right) / 2
        area = width * (rise.cumsum(-1) - rise) + width**2 * (2 * left + right) / 6
        sums = area.new_zeros(len(area), self.grid.size).scatter_add(1, cell, area)
        return sums / self.grid.cell_volume

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """Return exact cell averages: differences of F_t at the edges of the grid."""
        edges = grid.edges()[0].expand(len(self._levels), -1).contiguous()
        frames = [self._distribution_at(float(t), edges).diff(dim=-1) for t in times]
        values = torch.stack(frames, dim=1) / grid.cell_volume
        return values.reshape(*self.batch, len(times), *grid.shape)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        speed = (self._end - self._start).flatten(-2)
        frames = [_interpolate(self._knots(float(t)), speed, points[:, 0]) for t in times]
        return torch.stack(frames, dim=1).reshape(*self.batch, len(times), *points.shape)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        """Return u_t = ∫ v_t, piecewise quadratic; the constant follows from ∂_t u + ½v² = 0."""
        speed = (self._end - self._start).flatten(-2)
        frames = []
        for t in times:
            knots = self._knots(float(t))
            mean_speed = (speed[:, 1:] + speed[:, :-1]) / 2
            steps = (mean_speed * knots.diff(dim=-1)).cumsum(-1)
            first = 0.5 * t * speed[:, :1] ** 2
            at_knots = torch.cat([first, first + steps], dim=-1)
            frames.append(_quadratic(knots, speed, at_knots, points[:, 0]))
        return torch.stack(frames, dim=1).reshape(*self.batch, len(times), len(points))

    def _knots(self, t: float) -> Tensor:
        """Return the ends of all segments at time t in increasing order, (B, 2K)."""
        knots = torch.lerp(self._start, self._end, t).flatten(-2)
        return knots.cummax(dim=-1).values  # rounding may swap touching ends by 1e-16

    def _distribution_at(self, t: float, x: Tensor) -> Tensor:
        """Return F_t at x, (B, N)."""
        levels = torch.stack([self._levels[:, :-1], self._levels[:, 1:]], -1).flatten(-2)
        lo, hi, fraction, below, above = _bracket(self._knots(t), x)
        value = torch.lerp(levels.gather(1, lo), levels.gather(1, hi), fraction)
        return value.masked_fill(below, 0.0).masked_fill(above, 1.0)

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> QuantileGeodesic:
        return cls(source, target, solver)


def _bound_exactly(distance: Tensor) -> dict[str, Tensor]:
    """Return the bounds of an exact distance, for the report."""
    return {"distance_lower_bound": distance, "distance_upper_bound": distance}


class Curve(NamedTuple):
    """The monotone curve of a plan on the circle, as segments of uniform mass.

    Attributes:
        mass: (B, K).
        start: left and right end of each segment at t = 0, (B, K, 2); on the line, in order.
        end: the same at t = 1.
    """

    mass: Tensor
    start: Tensor
    end: Tensor

    def gaps(self, length: float) -> tuple[Tensor, Tensor]:
        """Return the distances between the segments at t = 0 and 1, (B, K) each."""
        first, second = (
            torch.cat([x[:, 1:, 0], x[:, :1, 0] + length], 1) - x[..., 1]
            for x in (self.start, self.end)
        )
        return first, second

    def area(self, length: float) -> Tensor:
        """Return ∮(y − x) dy, (B,), with straight lines between the segments."""
        x, y = (ends.flatten(1) for ends in (self.start, self.end))
        x, y = (torch.cat([z, z[:, :1] + length], 1) for z in (x, y))
        shift = y - x
        return ((shift[:, 1:] + shift[:, :-1]) * y.diff(dim=1)).sum(1) / 2


class CircleGeodesic(Geodesic):
    """Segments of mass that move straight on a circle.

    Positions are those on the line, from the first segment on, and not wrapped. If both densities
    are empty between two segments, the plan is free there; the curve of (x, y) then has a corner on
    the diagonal of this rectangle that makes ∮(y − x) dy = 0.
    """

    kind = "circle"
    negligible = 1e-13  # mass of segments that rounding creates

    def __init__(self, source: Density, target: Density, solver: str):
        super().__init__(source, target, solver, {})
        self._length = self.grid.lengths[0]
        first, second = _distribution(source), _distribution(target)
        # three periods, since |α| ≤ 1
        self._first, self._second = first, torch.cat([second - 1, second[:, 1:-1], second + 1], 1)
        curve = self._couple(self._find_shift(), self.negligible)
        self._curve = curve
        levels = curve.mass.cumsum(1)
        corner = self._corners(curve)
        # (B, 3K + 1): both ends of each segment and the corner behind it, and the first end again
        self._levels = _close(torch.stack([levels - curve.mass, levels, levels], -1), 1.0)
        self._start = _close(torch.cat([curve.start, corner[0][..., None]], -1), self._length)
        self._end = _close(torch.cat([curve.end, corner[1][..., None]], -1), self._length)

    def _find_shift(self) -> Tensor:
        """Return α, (B, 1)."""
        with torch.no_grad():
            shift = self._bisect()
        if not requires_grad(self.source, self.target):
            return shift
        # One Newton step has the derivative of the root.
        variable = shift.clone().requires_grad_()
        curve = self._couple(variable, self.negligible)
        area = curve.area(self._length)[:, None]
        (slope,) = torch.autograd.grad(area.sum(), variable, retain_graph=True)
        step = self._couple(shift, self.negligible).area(self._length)[:, None] / slope
        free = shift - (step - step.detach())
        # If both densities have a gap at the same level, this level determines α.
        gaps = torch.stack(curve.gaps(self._length)).detach().prod(0)
        level = curve.mass.detach().cumsum(1).gather(1, gaps.argmax(1, keepdim=True))
        here = (self._first - level).detach().abs().argmin(1, keepdim=True)
        there = (self._second - level - shift).detach().abs().argmin(1, keepdim=True)
        fixed = self._second.gather(1, there) - self._first.gather(1, here)
        fixed = shift + fixed - fixed.detach()
        return torch.where(gaps.amax(1, keepdim=True) > 1e-12 * self._length**2, fixed, free)

    def _bisect(self, steps: int = 60) -> Tensor:
        """Return the zero of C', (B, 1), up to rounding."""
        zero = self._first.new_zeros(len(self._first), 1)
        area = self._couple(zero).area(self._length)[:, None]  # in [−L², L²]; α + 1 adds L²
        low = torch.where(area > 0, -1.0, zero)
        high = torch.where(area < 0, 1.0, zero)
        for _ in range(steps):
            middle = (low + high) / 2
            area = self._couple(middle).area(self._length)[:, None]
            low = torch.where(area <= 0, middle, low)
            high = torch.where(area >= 0, middle, high)
        return (low + high) / 2

    def _couple(self, shift: Tensor, negligible: float = 0.0) -> Curve:
        """Return the plan x = Q_0(s), y = Q_1(s + α); its negligible segments become points."""
        n, edges = self.grid.shape[0], self.grid.edges()[0]
        wide = torch.cat([edges - self._length, edges[1:-1], edges + self._length])
        shifted = (self._second[:, n : 2 * n] - shift).remainder(1.0)
        levels = torch.cat([self._first, shifted], 1).sort(1).values
        start = _segment_ends(self._first, edges, levels)
        end = _segment_ends(self._second, wide, levels + shift)
        mass = levels.diff(dim=1)
        is_kept = mass > negligible
        count = mass.shape[1]
        index = torch.where(is_kept, torch.arange(count), count)
        following = index.flip(1).cummin(1).values.flip(1)  # next segment that is kept

        def collapse(ends: Tensor) -> Tensor:
            left = ends[..., 0]
            again = left.gather(1, following[:, :1]) + self._length
            points = torch.cat([left, again], 1).gather(1, following)
            return torch.where(is_kept[..., None], ends, points[..., None])

        return Curve(mass, collapse(start), collapse(end))

    def _corners(self, curve: Curve) -> tuple[Tensor, Tensor]:
        """Return a point (x, y) between each segment and the next one, (B, K) each.

        With sides g_0 and g_1 of the gaps, the point λ along the diagonal from (0, g_1) to (g_0, 0)
        changes ∮(y − x) dy by (½ − λ)·g_0·g_1.
        """
        first, second = curve.gaps(self._length)
        both = (first * second).sum(1)
        is_free = both > 1e-12 * self._length**2
        share = 0.5 + curve.area(self._length) / torch.where(is_free, both, 1.0)
        share = torch.where(is_free, share.clamp(0, 1), 0.5)[:, None]
        return curve.start[..., 1] + share * first, curve.end[..., 1] + (1 - share) * second

    def _distance(self) -> Tensor:
        """Return W2 as on the line; see `QuantileGeodesic`."""
        a, b = (self._curve.end - self._curve.start).unbind(-1)
        squared = (self._curve.mass * (a * a + a * b + b * b)).sum(-1) / 3
        distance = squared.clamp(min=0).sqrt().reshape(self.batch)
        return with_dual_gradient(distance, self.source, self.target, self._kantorovich)

    def _diagnostics(self) -> dict[str, Tensor]:
        return _bound_exactly(self._distance())

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """Return exact cell means of φ = −u_0 and ψ = u_1, (batch?, n)."""
        return -self._mean_potential(0.0), self._mean_potential(1.0)

    def _mean_potential(self, t: float) -> Tensor:
        """Return cell means of u_t, (batch?, n): differences of its antiderivative at the edges."""
        knots, speed, values = self._potential_knots(t)
        width = knots.diff(dim=1)
        steps = width * values[:, :-1] + width**2 * (2 * speed[:, :-1] + speed[:, 1:]) / 6
        sums = torch.cat([torch.zeros_like(steps[:, :1]), steps.cumsum(1)], 1)
        x, turns = self._unroll(knots, self.grid.edges()[0])
        lo, hi, fraction, _, _ = _bracket(knots, x)
        s = fraction * (knots.gather(1, hi) - knots.gather(1, lo))
        left, right = speed.gather(1, lo), speed.gather(1, hi)
        local = values.gather(1, lo) + s * left / 2 + s * fraction * (right - left) / 6
        at_edges = sums.gather(1, lo) + s * local + turns * sums[:, -1:]
        return (at_edges.diff(dim=1) / self.grid.cell_volume).reshape(*self.batch, -1)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """Return exact cell averages: differences of F_t at the edges of the grid."""
        frames = []
        for t in times.tolist():
            knots = self._knots(t)
            x, turns = self._unroll(knots, grid.edges()[0])
            lo, hi, fraction, _, _ = _bracket(knots, x)
            value = torch.lerp(self._levels.gather(1, lo), self._levels.gather(1, hi), fraction)
            frames.append((value + turns).diff(dim=1))
        values = torch.stack(frames, dim=1) / grid.cell_volume
        return values.reshape(*self.batch, len(times), *grid.shape)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        frames = []
        for t in times.tolist():
            knots = self._knots(t)
            x, _ = self._unroll(knots, points[:, 0])
            frames.append(_interpolate(knots, self._end - self._start, x))
        return torch.stack(frames, dim=1).reshape(*self.batch, len(times), *points.shape)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        frames = []
        for t in times.tolist():
            knots, speed, values = self._potential_knots(t)
            x, _ = self._unroll(knots, points[:, 0])
            frames.append(_quadratic(knots, speed, values, x))
        return torch.stack(frames, dim=1).reshape(*self.batch, len(times), len(points))

    def _potential_knots(self, t: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return knots, slopes and values of u_t, (B, M) each, as on the line."""
        knots, speed = self._knots(t), self._end - self._start
        steps = ((speed[:, 1:] + speed[:, :-1]) / 2 * knots.diff(dim=1)).cumsum(1)
        first = 0.5 * t * speed[:, :1] ** 2
        return knots, speed, torch.cat([first, first + steps], 1)

    def _knots(self, t: float) -> Tensor:
        """Return positions at time t in increasing order, (B, M); the last is one turn later."""
        return torch.lerp(self._start, self._end, t).cummax(dim=1).values

    def _unroll(self, knots: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return images of x (N,) between the first and the last knot, and turns, (B, N) each."""
        first = knots[:, :1]
        turns = ((x - first) / self._length).floor().detach()
        return (x - self._length * turns).contiguous(), turns

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> CircleGeodesic:
        return cls(source, target, solver)


def _close(values: Tensor, turn: float) -> Tensor:
    """Return values (B, K, 3) in a row, and the first one after a turn, (B, 3K + 1)."""
    row = values.flatten(1)
    return torch.cat([row, row[:, :1] + turn], 1)


def _distribution(density: Density) -> Tensor:
    """Return F at the cell edges, (B, n + 1), from 0 to exactly 1, in float64."""
    values = density.tensor.to(torch.float64).reshape(-1, density.grid.shape[0])
    cumulative = values.cumsum(-1)
    return torch.cat([torch.zeros_like(values[:, :1]), cumulative / cumulative[:, -1:]], dim=-1)


def _segment_ends(distribution: Tensor, edges: Tensor, levels: Tensor) -> Tensor:
    """Return Q just above each level and just below the next one, (B, K, 2).

    Between neighbouring levels F increases in a single cell, which the mean of both levels
    identifies. Jumps of Q (intervals without mass) therefore lie between segments.
    """
    low, high = levels[:, :-1], levels[:, 1:]
    last = distribution[:, -1:].detach() * (1 - 2**-53)  # F is constant beyond the last mass
    midway = torch.minimum((low + high) / 2, last)
    cell = torch.searchsorted(distribution, midway, right=True) - 1
    cell = cell.clamp(0, len(edges) - 2)
    base = distribution.gather(1, cell)
    mass = distribution.gather(1, cell + 1) - base
    fractions = _fraction(torch.stack([low - base, high - base], -1), mass[..., None])
    width = edges[1] - edges[0]
    return edges[cell][..., None] + width * fractions


def _bracket(knots: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the neighbouring knots of x, the fraction between them, and flags for x outside."""
    position = torch.searchsorted(knots, x, right=True)
    hi = position.clamp(1, knots.shape[-1] - 1)
    lo = hi - 1
    left, right = knots.gather(1, lo), knots.gather(1, hi)
    fraction = _fraction(x - left, right - left)
    return lo, hi, fraction, x < knots[:, :1], x >= knots[:, -1:]


def _fraction(part: Tensor, whole: Tensor) -> Tensor:
    """Return part/whole in [0, 1]; 0 or 1 if the whole is zero."""
    if not (part.requires_grad or whole.requires_grad):
        return (part / whole.clamp(min=TINY)).clamp(0, 1)
    is_positive = whole > TINY  # autograd returns NaN for quotients by tiny numbers
    quotient = part / torch.where(is_positive, whole, 1.0)
    return torch.where(is_positive, quotient, (part > 0).to(part.dtype)).clamp(0, 1)


def _interpolate(knots: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Interpolate (knots, values) linearly, constant outside; x (N,) gives (B, N)."""
    lo, hi, fraction, _, _ = _bracket(knots, x.expand(len(knots), -1).contiguous())
    return torch.lerp(values.gather(1, lo), values.gather(1, hi), fraction)


def _quadratic(knots: Tensor, slopes: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """Evaluate the antiderivative of piecewise-linear `slopes` with `values` at the knots."""
    x = x.expand(len(knots), -1).contiguous()
    lo, hi, fraction, _, _ = _bracket(knots, x)
    left, right = slopes.gather(1, lo), slopes.gather(1, hi)
    inside = fraction * (knots.gather(1, hi) - knots.gather(1, lo))
    nearest = knots.gather(1, lo) + inside
    local = left + 0.5 * fraction * (right - left)
    at_end = torch.lerp(left, right, fraction)
    return values.gather(1, lo) + inside * local + (x - nearest) * at_end  # linear outside
