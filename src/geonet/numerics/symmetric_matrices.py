"""Small symmetric matrices A, d ≤ 3, packed by their upper triangle along the leading axis.

    d = 1: [a]      d = 2: [a11, a12, a22]      d = 3: [a11, a12, a13, a22, a23, a33]

The formulas are written out entry by entry: for hundreds of thousands of matrices this is much
faster than LAPACK, which processes them one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Packed = Tensor | Sequence[Tensor]


def determinant(a: Packed, s: float | Tensor) -> Tensor:
    """Return det(I + sA), (...)."""
    return characteristic_polynomial(invariants(a), s)


def invariants(a: Packed) -> list[Tensor]:
    """Return the first d of: trace, sum of principal 2 × 2 minors, determinant.

    For d = 2 the minor is the determinant.
    """
    if len(a) == 1:
        return [a[0]]
    if len(a) == 3:
        return [a[0] + a[2], torch.addcmul(a[0] * a[2], a[1], a[1], value=-1)]
    minors = a[0] * (a[3] + a[5]) + a[3] * a[5] - a[1] ** 2 - a[2] ** 2 - a[4] ** 2
    return [a[0] + a[3] + a[5], minors, _determinant3(a)]


def characteristic_polynomial(invariants: list[Tensor], s: float | Tensor) -> Tensor:
    """Return det(I + sA) = 1 + s·trace + s²·minors + s³·determinant."""
    *rest, value = invariants
    for lower in reversed(rest):
        value = lower + s * value
    return 1 + s * value


def inverse(a: Packed, s: float | Tensor) -> list[Tensor]:
    """Return (I + sA)⁻¹, packed, by Cramer's rule."""
    det = determinant(a, s)
    if len(a) == 1:
        return [1 / det]
    diagonal = {3: (0, 2), 6: (0, 3, 5)}[len(a)]
    b = [s * entry + 1 if k in diagonal else s * entry for k, entry in enumerate(a)]
    if len(a) == 3:
        adjugate = [b[2], -b[1], b[0]]
    else:
        adjugate = [
            b[3] * b[5] - b[4] ** 2,
            b[2] * b[4] - b[1] * b[5],
            b[1] * b[4] - b[2] * b[3],
            b[0] * b[5] - b[2] ** 2,
            b[1] * b[2] - b[0] * b[4],
            b[0] * b[3] - b[1] ** 2,
        ]
    return [entry / det for entry in adjugate]


def solve(a: Packed, s: float | Tensor, right: Packed) -> list[Tensor]:
    """Return (I + sA)⁻¹·right, d tensors (...): the Newton step for y + s∇u(y) = x if A = D²u."""
    return multiply(inverse(a, s), right)


def multiply(a: Packed, right: Packed) -> list[Tensor]:
    """Return A·right, d tensors (...)."""
    rows = []
    for first, *others in _indices(len(right)):
        row = a[first] * right[0]
        for index, entry in zip(others, right[1:], strict=True):
            row = torch.addcmul(row, a[index], entry)
        rows.append(row)
    return rows


def pack(matrix: Tensor) -> list[Tensor]:
    """Return the upper triangles of matrices (..., d, d)."""
    d = matrix.shape[-1]
    return [matrix[..., i, j] for i in range(d) for j in range(i, d)]


def unpack(a: Packed, d: int) -> Tensor:
    """Return the full matrices, (..., d, d)."""
    rows = [torch.stack([a[k] for k in row], -1) for row in _indices(d)]
    return torch.stack(rows, -2)


def spectral_radius(a: Packed) -> Tensor:
    """Return the largest absolute value of an eigenvalue, (...)."""
    if len(a) == 1:
        return a[0].abs()
    if len(a) == 3:
        middle, half = (a[0] + a[2]) / 2, (a[0] - a[2]) / 2
        return middle.abs() + (half**2 + a[1] ** 2).sqrt()
    # Eigenvalues m + 2p·cos(θ + 2πk/3) with m the mean and det((A − mI)/p) = 2·cos 3θ.
    mean = (a[0] + a[3] + a[5]) / 3
    off = torch.stack([a[0] - mean, a[1], a[2], a[3] - mean, a[4], a[5] - mean])
    squares = (off**2).sum(0) + (off[[1, 2, 4]] ** 2).sum(0)
    p = (squares / 6).sqrt()
    half_determinant = 0.5 * _determinant3(off / p.clamp(min=1e-15))
    angle = half_determinant.clamp(-1, 1).acos() / 3
    top, bottom = mean + 2 * p * angle.cos(), mean + 2 * p * (angle + math.tau / 3).cos()
    return torch.maximum(top.abs(), bottom.abs())


def _determinant3(a: Packed) -> Tensor:
    return (
        a[0] * (a[3] * a[5] - a[4] ** 2)
        + a[1] * (a[2] * a[4] - a[1] * a[5])
        + a[2] * (a[1] * a[4] - a[2] * a[3])
    )


def _indices(d: int) -> list[list[int]]:
    """Return the packed index of every entry (i, j)."""
    return {1: [[0]], 2: [[0, 1], [1, 2]], 3: [[0, 1, 2], [1, 3, 4], [2, 4, 5]]}[d]
