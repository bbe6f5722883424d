"""Transport plans between the cells of a lattice, from a potential and its gradient flow.

The cell y of the lattice sends mass from y + s₀∇u to y + s₁∇u, with (s₀, s₁) = (−½, ½) for the
potential at t = ½ of a geodesic and (0, 1) for a potential of a barycenter. With the reach R of
Wasserstein–Fisher–Rao transport, s₀ and s₁ are −½ and ½ times R·arg(z)/(½|∇u|), with
z = 1 ∓ u/R² ∓ i|∇u|/2R, without the sign of the angle. A cell moves to another
one as a whole, by the difference of their centres. The start is split linearly between the centres
around it, and the displacement between whole numbers of cells, so that only the latter costs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from geonet.numerics.kernels import library as kernel_library
from geonet.numerics.splines import evaluate_at_points
from geonet.solvers.newton.bounds_kernels import (
    PlanStructure,
    address,
    count_threads,
    declare,
    is_available,
)
from geonet.solvers.newton.compiled import make_grid_structure
from geonet.solvers.newton.reference import shorten, signed_det_and_cofactor

Scales = list[Tensor | None]  # factors of the shares of each cell, for source and target
Factors = tuple[float, float]
GEODESIC: Factors = (-0.5, 0.5)
BARYCENTER: Factors = (0.0, 1.0)


class TransportPlan(Protocol):
    """A plan between source and target on the cells of one lattice.

    Attributes:
        masses: required masses of source and target, (*shape) each.
        step: side lengths of a cell.
    """

    masses: tuple[Tensor, Tensor]
    step: tuple[float, ...]

    def marginal(self, side: int, scales: Scales) -> Tensor:
        """Return the masses that the plan has in the cells of one side, (*shape)."""
        ...

    def product(self, means: Sequence[Tensor], scales: Scales) -> float:
        """Return E x·z under the plan, with these means of final positions at both ends."""
        ...

    def drop_far(self, distance: float) -> None:
        """Remove the mass of points that may move further than that."""
        ...

    def curved_cost(
        self,
        scales: Scales,
        shifts: Sequence[Tensor],
        spreads: Sequence[Tensor],
        beyond: float,
        farthest: float,
    ) -> float:
        """Return an upper bound of E c for the cost c of Wasserstein–Fisher–Rao transport.

        The mass of a cell moves on by a random distance at both ends, which changes the
        displacement d by e, and c(d + e) ≤ c(d) + ∇c(d)·e + ½c″(|d| + beyond)|e|².

        Args:
            scales: factors of the shares of each cell.
            shifts: means of the moves, (d, *shape), for source and target.
            spreads: means of their squares, (*shape) each.
            beyond: largest |e|.
            farthest: largest |d| and |d + e|; no curvature beyond matters.
        """
        ...


def build_plan(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    factors: Factors = GEODESIC,
    reach: float = 0.0,
) -> TransportPlan:
    """Return the plan of a potential between masses on one lattice, compiled if possible.

    Args:
        coefficients: potential, (*cells).
        source: masses of the cells of the lattice, (*shape), double precision.
        target: likewise.
        sides: side lengths of the box.
        factors: s₀ and s₁ of the starts y + s₀∇u and of the ends y + s₁∇u.
        reach: of Wasserstein–Fisher–Rao transport, which shortens the gradient; else zero.
    """
    kind = CompiledPlan if is_available() else TorchPlan
    return kind(coefficients, source, target, sides, factors, reach)


# ---- Reference implementation in torch


class TorchPlan:
    """`TransportPlan` in torch."""

    def __init__(
        self,
        coefficients: Tensor,
        source: Tensor,
        target: Tensor,
        sides: Sequence[float],
        factors: Factors = GEODESIC,
        reach: float = 0.0,
    ):
        self.shape, self.masses = tuple(source.shape), (source, target)
        self.step = tuple(side / n for side, n in zip(sides, self.shape, strict=True))
        step = torch.tensor(self.step, dtype=torch.float64)
        axes = [torch.arange(n, dtype=torch.float64) for n in self.shape]
        index = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
        pitch = [side / n for side, n in zip(sides, coefficients.shape, strict=True)]
        jet = evaluate_at_points(coefficients.double(), pitch, (index + 0.5) * step)
        total = confidence = torch.zeros(len(index), dtype=torch.float64)
        upper, ends = torch.tensor(self.shape, dtype=torch.float64) - 1, []
        self.reach = reach
        gradient, identity, factor = jet.gradient, torch.eye(len(axes), dtype=torch.float64), 1.0
        if reach > 0:
            gradient, _, identity, factor = shorten(gradient, reach)
        for mass, s in zip(self.masses, factors, strict=True):
            det = signed_det_and_cofactor(identity + s * jet.hessian)[0].clamp(min=0) * factor
            ends.append(torch.minimum((index + s * gradient / step).clamp(min=0), upper))
            shares = self._split(ends[-1], torch.zeros_like(index))
            density = sum(share * mass.flatten()[cell] for cell, _, share in shares)
            total = total + det**2 * det * density
            confidence = confidence + det**2
        self.mass = torch.where(confidence > 0, total / confidence, 0.0)
        # C stores single precision
        start, displacement = ends[0].float(), (ends[1] - ends[0]).float()
        self._displacement = displacement
        self.pairs = self._split(start.double(), displacement.double())

    def marginal(self, side: int, scales: Scales) -> Tensor:
        scale, other = scales[side], scales[1 - side]
        held = torch.zeros(math.prod(self.shape), dtype=torch.float64)
        for *cells, share in self.pairs:
            factor = 1.0 if other is None else other.flatten()[cells[1 - side]]
            held.index_add_(0, cells[side], self.mass * share * factor)
        held = held.reshape(self.shape)
        return held if scale is None else held * scale

    def product(self, means: Sequence[Tensor], scales: Scales) -> float:
        total = 0.0
        for start, end, share in self.pairs:
            x, z = means[0].flatten(1)[:, start], means[1].flatten(1)[:, end]
            weight = self.mass * share
            for scale, cell in zip(scales, (start, end), strict=True):
                weight = weight if scale is None else weight * scale.flatten()[cell]
            total += float((weight * (x * z).sum(0)).sum())
        return total

    def drop_far(self, distance: float) -> None:
        step = torch.tensor(self.step, dtype=torch.float64)
        far = ((self._displacement.double().abs() + 1) * step).norm(dim=-1) > distance
        self.mass = torch.where(far, 0.0, self.mass)

    def curved_cost(
        self,
        scales: Scales,
        shifts: Sequence[Tensor],
        spreads: Sequence[Tensor],
        beyond: float,
        farthest: float,
    ) -> float:
        total, centres = 0.0, torch.tensor(self.step, dtype=torch.float64)
        for start, end, share in self.pairs:
            weight = self.mass * share
            for scale, cell in zip(scales, (start, end), strict=True):
                weight = weight if scale is None else weight * scale.flatten()[cell]
            kept = weight > 0
            start, end, weight = start[kept], end[kept], weight[kept]
            indices = (torch.stack(torch.unravel_index(cell, self.shape)) for cell in (end, start))
            ends, starts = indices
            move = (ends - starts).double().T * centres
            angle = move.norm(dim=-1) / self.reach
            slope = torch.where(angle > 1e-8, angle.tan() / angle, 1.0)
            curvature = (angle + beyond / self.reach).clamp(max=farthest / self.reach).cos() ** -2
            cost = -(self.reach**2) * angle.cos().log()
            first, last = shifts[0].flatten(1)[:, start], shifts[1].flatten(1)[:, end]
            cost = cost + slope * (move.T * (last - first)).sum(0)
            spread = spreads[0].flatten()[start] + spreads[1].flatten()[end]
            spread = spread - 2 * (first * last).sum(0)
            total += float((weight * (cost + curvature * spread / 2)).sum())
        return total

    def _split(self, start: Tensor, displacement: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return cells from which and to which points send mass, with shares that sum to one.

        Start and displacement, (N, d) in cells, are split linearly between whole numbers.
        """
        low, steps = start.floor(), displacement.floor()
        pairs = []
        for up, more in product(product((0, 1), repeat=len(self.shape)), repeat=2):
            first = second = torch.zeros(len(start), dtype=torch.long)
            share = torch.ones(len(start), dtype=torch.float64)
            for axis, n in enumerate(self.shape):
                t, f = start[:, axis] - low[:, axis], displacement[:, axis] - steps[:, axis]
                cell = low[:, axis] + up[axis]
                end = cell + steps[:, axis] + more[axis]
                first = first * n + cell.clamp(0, n - 1).long()
                second = second * n + end.clamp(0, n - 1).long()
                share = share * (t if up[axis] else 1 - t) * (f if more[axis] else 1 - f)
            pairs.append((first, second, share))
        return pairs


# ---- Compiled implementation


class CompiledPlan:
    """`TransportPlan` by bounds.c; everything that is passed to C is checked here."""

    def __init__(
        self,
        coefficients: Tensor,
        source: Tensor,
        target: Tensor,
        sides: Sequence[float],
        factors: Factors = GEODESIC,
        reach: float = 0.0,
    ):
        self.shape, self.masses = source.shape, (source.contiguous(), target.contiguous())
        assert source.shape == target.shape and source.dtype == target.dtype == torch.float64
        self.step = tuple(side / n for side, n in zip(sides, self.shape, strict=True))
        d, cells = source.ndim, source.numel()
        assert 1 <= d <= 3 and cells < 2**31 and coefficients.ndim == d
        c = coefficients.double().contiguous()
        self._library = kernel_library(declare)
        grids = make_grid_structure(c.shape), make_grid_structure(self.shape)
        self._plan = PlanStructure(d, count_threads(cells), *grids)
        self._places = torch.empty(2, d, cells, dtype=torch.float32)
        self._mass = torch.empty(cells, dtype=torch.float64)
        for axis, h in enumerate(self.step):
            self._plan.step[axis] = h
        self._plan.factors[0], self._plan.factors[1] = factors
        self._plan.reach = reach
        self._plan.masses[0], self._plan.masses[1] = (mass.data_ptr() for mass in self.masses)
        self._plan.start, self._plan.displacement = (part.data_ptr() for part in self._places)
        self._plan.mass = self._mass.data_ptr()
        padded = torch.empty(c.numel() // c.shape[-1], c.shape[-1] + 2, dtype=torch.float64)
        self._library.geonet_plan_points(self._plan, c.data_ptr(), padded.data_ptr())

    def marginal(self, side: int, scales: Scales) -> Tensor:
        held = torch.zeros(self._plan.threads, *self.shape, dtype=torch.float64)
        other, scale = address(scales[1 - side], self.shape), scales[side]
        self._library.geonet_plan_marginal(self._plan, side, other, held.data_ptr())
        total = held.sum(0) if len(held) > 1 else held[0]
        return total if scale is None else total * scale

    def product(self, means: Sequence[Tensor], scales: Scales) -> float:
        ends = means[1] if scales[1] is None else (means[1] * scales[1]).contiguous()
        shape = len(self.shape), *self.shape
        addresses = address(means[0], shape), address(ends, shape)
        pair = (ctypes.c_void_p * 2)(*addresses)
        return self._library.geonet_plan_product(self._plan, pair, address(scales[0], self.shape))

    def drop_far(self, distance: float) -> None:
        step = torch.tensor(self.step, dtype=torch.float32)
        far = ((self._places[1].abs() + 1) * step[:, None]).norm(dim=0) > distance
        self._mass[far] = 0.0

    def curved_cost(
        self,
        scales: Scales,
        shifts: Sequence[Tensor],
        spreads: Sequence[Tensor],
        beyond: float,
        farthest: float,
    ) -> float:
        vectors, pair = (len(self.shape), *self.shape), ctypes.c_void_p * 2
        return self._library.geonet_plan_cost(
            self._plan,
            pair(*(address(scale, self.shape) for scale in scales)),
            pair(*(address(shift, vectors) for shift in shifts)),
            pair(*(address(spread, self.shape) for spread in spreads)),
            beyond,
            farthest,
        )
