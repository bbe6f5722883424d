"""Displacement interpolation in 1D by quantile functions, exact for piecewise-constant densities.

In 1D the optimal map is monotone: Q_t = (1−t)·Q_0 + t·Q_1 for the quantile functions Q_i = F_i⁻¹.
For densities that are constant in each cell, Q_0 and Q_1 are linear between the merged levels of
F_0 and F_1. Between two neighbouring levels the mass is uniform on a segment whose ends move
straight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.density import Density
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

    It is the most accurate solver in 1D; the others take 1D densities for studies.
    """

    info = SolverInfo(
        name="quantile",
        summary="1D, exact for piecewise-constant densities, O(n); the truth in 1D",
        family="closed form",
        dimensions=(1,),
        differentiable=ALL_QUANTITIES,
        exact=True,
        guarantee="the path is exact for densities that are constant in each cell",
    )

    def _solve(self, source: Density, target: Density) -> QuantileGeodesic:
        return QuantileGeodesic(source, target, self.name)

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
    midway = ((low + high) / 2).clamp(max=1 - 2**-53)  # F is one beyond the last cell with mass
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
