"""Multigrid for Newton systems in torch, the reference of multigrid.c.

(K x)_i = ∫∇B_i·A∇x plus a diagonal mass. A barycenter has one field of unknowns for each density,
and one K for each, coupled by the constraint Σ w_f x_f = 0. Transfers preserve it, and Jacobi steps
project onto it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from geonet.numerics.splines import (
    Periodic,
    averaging_matrix,
    evaluate_along_axis,
    evaluate_along_axis_transpose,
    is_periodic,
    prolongation_matrix,
)


def apply_stiffness(weights: Tensor, x: Tensor, periodic: Periodic = ()) -> Tensor:
    """Return K x, (*cells), with weights (2, …, *cells, d, d), or one matrix A for each cell."""
    d = x.ndim

    def derivative(direction: int) -> Tensor:
        values = x
        for axis in range(d):
            order, wraps = int(axis == direction), is_periodic(periodic, axis)
            values = evaluate_along_axis(values, 2 * axis, order, wraps).movedim(0, axis)
        return values

    flux = (weights @ torch.stack([derivative(i) for i in range(d)], -1)[..., None])[..., 0]
    total = torch.zeros_like(x)
    for direction in range(d):
        values = flux[..., direction]
        for axis in reversed(range(d)):
            order, wraps = int(axis == direction), is_periodic(periodic, axis)
            values = evaluate_along_axis_transpose(values.movedim(axis, 0), 2 * axis, order, wraps)
        total = total + values
    return total


class Level(NamedTuple):
    """One multigrid level; vectors have the shape (fields, *cells).

    Attributes:
        fields: weights of each field.
        masses: diagonals of the mass matrices, (*cells) each; empty if there is none.
        inverse_diagonal: 1/diagonal D of K.
        largest_eigenvalue: of D⁻¹K.
        shape: cells.
        periodic: whether each axis is periodic.
        weights: weights of the constraint, (fields, 1, …); None for a single field.
        inverse: inverse of K on the coarsest level, instead of diagonal and eigenvalue.
    """

    fields: list[Tensor]
    masses: list[Tensor]
    inverse_diagonal: Tensor
    largest_eigenvalue: float
    shape: tuple[int, ...]
    periodic: Periodic
    weights: Tensor | None
    inverse: Tensor | None

    def apply(self, x: Tensor) -> Tensor:
        """Return K x."""
        parts = [
            apply_stiffness(w, own, self.periodic) for w, own in zip(self.fields, x, strict=True)
        ]
        if self.masses:
            parts = [part + m * own for part, m, own in zip(parts, self.masses, x, strict=True)]
        return torch.stack(parts)

    def precondition(self, g: Tensor) -> Tensor:
        """Return D⁻¹(g − w p), with the multiplier p for which it satisfies the constraint."""
        if self.weights is None:
            return self.inverse_diagonal * g
        total = (self.weights * self.inverse_diagonal * g).sum(0)
        multiplier = total / (self.weights**2 * self.inverse_diagonal).sum(0)
        return self.inverse_diagonal * (g - self.weights * multiplier)

    def residual_norm(self, g: Tensor) -> float:
        """Return the norm of the part of g that no multiple w p of the constraint explains."""
        if self.weights is not None:
            g = g - self.weights * (self.weights * g).sum(0) / (self.weights**2).sum()
        return float(g.norm())


def build_levels(
    fields: list[Tensor],
    masses: list[Tensor],
    shapes: Sequence[tuple[int, ...]],
    periodic: Periodic,
    weights: Sequence[float] | None,
) -> list[Level]:
    levels, constraint = [], None
    if weights is not None:
        constraint = torch.tensor(weights, dtype=torch.float64)
        constraint = constraint.reshape(-1, *(1,) * len(shapes[0]))
    for k, shape in enumerate(shapes):
        if k:
            fields = [_coarsen_weights(field, shapes[k - 1], shape) for field in fields]
            masses = [_restrict(mass, shape, periodic) for mass in masses]
        level = Level(fields, masses, torch.ones(()), 1.0, shape, periodic, constraint, None)
        if k == len(shapes) - 1:
            levels.append(level._replace(inverse=_invert_coarsest(level)))
            break
        level = level._replace(inverse_diagonal=1 / _stiffness_diagonal(level))
        levels.append(level._replace(largest_eigenvalue=_largest_eigenvalue(level)))
    return levels


def _coarsen_weights(weights: Tensor, fine: Sequence[int], coarse: Sequence[int]) -> Tensor:
    """Average weights over half-cells of the coarser level, in its units."""
    d = len(fine)
    ratios = torch.tensor([n / m for n, m in zip(fine, coarse, strict=True)], dtype=torch.float64)
    for axis, (n, m) in enumerate(zip(fine, coarse, strict=True)):
        if n != m:
            parts = weights.shape[axis]  # 2, or 1 if A is constant in cells
            cells = weights.movedim((axis, d + axis), (-1, -2))  # (..., cells, parts)
            means = averaging_matrix(n, m, parts).apply(cells.flatten(-2), -1)
            weights = means.unflatten(-1, (m, parts)).movedim((-1, -2), (axis, d + axis))
    return weights * ratios.prod() / (ratios[:, None] * ratios)


def _restrict(values: Tensor, coarse: Sequence[int], periodic: Periodic) -> Tensor:
    """Apply the transpose of the prolongation along the last axes, (..., *coarse)."""
    leading = values.ndim - len(coarse)
    for axis, m in enumerate(coarse):
        n = values.shape[leading + axis]
        matrix = prolongation_matrix(m, n, is_periodic(periodic, axis))
        values = matrix.apply_transpose(values, leading + axis)
    return values


def _stiffness_diagonal(level: Level) -> Tensor:
    """Return the diagonal of K, from K applied to many splines with disjoint support at once."""
    shape = level.shape
    total = torch.zeros(len(level.fields), *shape, dtype=torch.float64)
    strides = [_comb_stride(n, is_periodic(level.periodic, k)) for k, n in enumerate(shape)]
    for first in torch.cartesian_prod(*[torch.arange(k) for k in strides]).reshape(-1, len(shape)):
        comb = torch.zeros_like(total)
        subset = (
            slice(None),
            *(slice(int(f), None, k) for f, k in zip(first, strides, strict=True)),
        )
        comb[subset] = 1
        total[subset] = level.apply(comb)[subset]
    return total


def _comb_stride(n: int, wraps: bool, width: int = 5) -> int:
    """Return a distance at which splines do not overlap, which divides n on a periodic axis."""
    if n <= width:
        return n
    return next(k for k in range(width, n + 1) if not wraps or n % k == 0)


def _largest_eigenvalue(level: Level, steps: int = 6, margin: float = 1.15) -> float:
    """Estimate the largest eigenvalue of D⁻¹K from above.

    The power method estimates it from below; the margin compensates for few steps.
    """
    generator, shape = torch.Generator().manual_seed(0), level.inverse_diagonal.shape
    mode, value = torch.rand(shape, generator=generator, dtype=torch.float64) - 0.5, 1.0
    if level.weights is not None:
        mode = level.precondition(mode / level.inverse_diagonal)
    for _ in range(steps):
        image = level.apply(mode)
        following = level.precondition(image)
        square = (image * following).sum() / (mode**2 / level.inverse_diagonal).sum()
        value = float(square.sqrt())
        mode = following / following.norm()
    return margin * value


def _invert_coarsest(level: Level) -> Tensor:
    """Return the inverse of K, restricted to the constraint.

    Without a mass a constant matrix for each field removes the null space.
    """
    n, count = math.prod(level.shape), len(level.fields)
    units = torch.eye(n * count).double().reshape(-1, count, *level.shape)
    matrix = torch.stack([level.apply(unit).flatten() for unit in units])
    if not level.masses:
        for k in range(count):
            block = matrix[k * n : (k + 1) * n, k * n : (k + 1) * n]
            block += block.diagonal().mean() / n
    if level.weights is None:
        return torch.linalg.inv(matrix)
    # A basis of the constraint: each field but the last, compensated by the last one.
    w = level.weights.flatten()
    basis = torch.cat([torch.eye(count - 1).double(), -(w[:-1] / w[-1])[None]])
    basis = torch.kron(basis, torch.eye(n).double())
    return basis @ torch.linalg.inv(basis.T @ matrix @ basis) @ basis.T


def run_v_cycle(levels: list[Level], k: int, b: Tensor) -> Tensor:
    """Run one V-cycle for K x = b on level k, from zero."""
    level = levels[k]
    if level.inverse is not None:
        return (level.inverse @ b.flatten()).reshape(b.shape)
    x = _smooth(level, b, None)
    coarse = levels[k + 1].shape
    update = run_v_cycle(levels, k + 1, _restrict(b - level.apply(x), coarse, level.periodic))
    for axis, (m, n) in enumerate(zip(coarse, level.shape, strict=True)):
        matrix = prolongation_matrix(m, n, is_periodic(level.periodic, axis))
        update = matrix.apply(update, axis + 1)
    return _smooth(level, b, x + update)


def _smooth(
    level: Level, b: Tensor, x: Tensor | None, steps: int = 2, smallest: float = 0.25
) -> Tensor:
    """Run Chebyshev–Jacobi steps for the upper part of the spectrum of D⁻¹K.

    Args:
        level: level of the system.
        b: right-hand side, (fields, *shape).
        x: start, (fields, *shape); None for zero.
        steps: number of steps.
        smallest: smallest eigenvalue that is damped, as a share of the largest.
    """
    top, bottom = level.largest_eigenvalue, smallest * level.largest_eigenvalue
    theta, delta = (top + bottom) / 2, (top - bottom) / 2
    rho, step = delta / theta, torch.zeros_like(b)
    for k in range(steps):
        direction = level.precondition(b if x is None else b - level.apply(x))
        if k == 0:
            step = direction / theta
        else:
            following = 1 / (2 * theta / delta - rho)
            step = following * rho * step + 2 * following / delta * direction
            rho = following
        x = step if x is None else x + step
    assert x is not None
    return x
