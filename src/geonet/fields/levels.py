"""Grids on one box from fine to coarse, and what leads quadratic splines from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

COARSEST = 4  # cells along an axis that is not coarsened any more
ALIKE = 1.5  # spacings up to this ratio are coarsened together


class Band(NamedTuple):
    """A matrix (rows, columns) with few entries in each row, side by side.

    Attributes:
        first: the first column of each row, (rows,), int32.
        taps: the entries from there on, (rows, width), single precision.
        columns: how many there are.
    """

    first: Tensor
    taps: Tensor
    columns: int

    def applied(self, values: Tensor, axis: int) -> Tensor:
        """The product along an axis."""
        columns = self.first.long()[:, None] + torch.arange(self.taps.shape[1])
        moved = values.movedim(axis, -1)[..., columns]
        return (moved * self.taps.to(values.dtype)).sum(-1).movedim(-1, axis)

    def applied_back(self, values: Tensor, axis: int) -> Tensor:
        """The product of the transpose along an axis."""
        columns = self.first.long()[:, None] + torch.arange(self.taps.shape[1])
        parts = values.movedim(axis, -1)[..., None] * self.taps.to(values.dtype)
        shape = (*parts.shape[:-2], self.columns)
        answer = parts.new_zeros(shape).index_add_(-1, columns.flatten(), parts.flatten(-2))
        return answer.movedim(-1, axis)


def level_shapes(
    shape: Sequence[int], sides: Sequence[float], coarsest: int = COARSEST
) -> list[tuple[int, ...]]:
    """The shape and ever coarser ones, down to `coarsest` cells an axis.

    Axes are halved, those of the finest spacing first: so cells of the coarser levels are as nearly
    cubes as they can be.
    """
    shapes = [tuple(shape)]
    while max(shapes[-1]) > coarsest:
        now = shapes[-1]
        spacing = [side / n for side, n in zip(sides, now, strict=True)]
        finest = min(h for h, n in zip(spacing, now, strict=True) if n > coarsest)
        shapes.append(
            tuple(
                (n + 1) // 2 if n > coarsest and h < ALIKE * finest else n
                for h, n in zip(spacing, now, strict=True)
            )
        )
    return shapes


def refined(coefficients: Tensor, shape: Sequence[int]) -> Tensor:
    """The spline with coefficients (*cells) on other cells of the same box, (*shape).

    Where cells are halved it is the same spline; else one that is equal up to third derivatives.
    """
    for axis, n in enumerate(shape):
        if coefficients.shape[axis] != n:
            band = refinement(coefficients.shape[axis], n)
            coefficients = band.applied(coefficients, axis)
    return coefficients


def repeated(values: Tensor, shape: Sequence[int]) -> Tensor:
    """A density, constant in its cells, on cells that are whole parts of them, (*shape)."""
    for axis, n in enumerate(shape):
        if values.shape[axis] != n:
            values = values.repeat_interleave(n // values.shape[axis], axis)
    return values


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def refinement(coarse: int, fine: int) -> Band:
    """Coefficients on `coarse` cells of an axis to those on `fine` ones."""
    if fine == coarse:
        return _band(csr_matrix(np.eye(coarse)))
    if fine == 2 * coarse:
        i = np.arange(fine)
        beside = np.clip(i // 2 + 2 * (i % 2) - 1, 0, coarse - 1)
        entries = np.r_[np.full(fine, 0.75), np.full(fine, 0.25)]
        where = (np.r_[i, i], np.r_[i // 2, beside])
        return _band(csr_matrix((entries, where), (fine, coarse)))
    # Values at the centres, and from them coefficients: c = s − (s₋ − 2s + s₊)/8, for quadratics
    # exact.
    centres = (np.arange(fine) + 0.5) * coarse / fine
    cell = np.minimum(centres.astype(int), coarse - 1)
    s = centres - cell - 0.5
    weights = np.stack([0.5 * (0.5 - s) ** 2, 0.75 - s**2, 0.5 * (0.5 + s) ** 2], 1)
    taps = np.clip(cell[:, None] + np.arange(-1, 2), 0, coarse - 1)
    rows = np.repeat(np.arange(fine), 3)
    values = csr_matrix((weights.ravel(), (rows, taps.ravel())), (fine, coarse))
    before, after = np.maximum(np.arange(fine) - 1, 0), np.minimum(np.arange(fine) + 1, fine - 1)
    return _band(csr_matrix(1.25 * values - 0.125 * (values[before] + values[after])))


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def half_cell_means(fine: int, coarse: int) -> Band:
    """Means over the half-cells of `coarse` cells of an axis from those of `fine` ones."""
    ratio, count = fine / coarse, 2 * fine
    begins = np.arange(2 * coarse) * ratio
    reach = int(np.ceil(ratio)) + 1
    taps = np.floor(begins).astype(int)[:, None] + np.arange(reach)
    ends = np.minimum(begins[:, None] + ratio, taps + 1.0)
    shares = np.clip(ends - np.maximum(begins[:, None], taps), 0, None) / ratio
    shares[(taps >= count) | (shares < 1e-9)] = 0
    rows = np.repeat(np.arange(2 * coarse), reach)
    kept = shares.ravel() > 0
    where = (rows[kept], taps.ravel()[kept])
    return _band(csr_matrix((shares.ravel()[kept], where), (2 * coarse, count)))


def _band(matrix: csr_matrix) -> Band:
    matrix.sum_duplicates()
    rows, columns = len(matrix.indptr) - 1, matrix.shape[-1]  # pyright: ignore
    begins, ends = matrix.indptr[:-1], matrix.indptr[1:] - 1
    low, high = matrix.indices[begins], matrix.indices[ends]
    width = int((high - low).max()) + 1
    first = np.minimum(low, columns - width)
    taps = np.zeros((rows, width), dtype=np.float32)
    own = np.repeat(np.arange(rows), np.diff(matrix.indptr))
    taps[own, matrix.indices - first[own]] = matrix.data
    return Band(torch.from_numpy(first.astype(np.int32)), torch.from_numpy(taps), columns)
