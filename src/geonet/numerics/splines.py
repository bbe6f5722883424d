"""Potentials as quadratic splines on a grid, and densities that are constant in its cells.

u(y) = Σ_i c_i Π_a β(y_a/h_a − i_a − ½) with β the quadratic B-spline, three cells wide: one
coefficient a cell, even reflection at the faces. Like the potential of a geodesic at t = ½ it is
C^{1,1}, whatever the densities are. Integrals are sums over the centres of half-cells, two an axis
and cell. quadratic.h has the same for the compiled loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

# Value, slope and curvature of the three splines at both half-cells of a cell.
WEIGHTS = torch.tensor(
    [
        [[0.28125, 0.6875, 0.03125], [0.03125, 0.6875, 0.28125]],
        [[-0.75, 0.5, 0.25], [-0.25, -0.5, 0.75]],
        [[1.0, -2.0, 1.0], [1.0, -2.0, 1.0]],
    ],
    dtype=torch.float64,
    device="cpu",
)


class Jet(NamedTuple):
    """u, ∇u and D²u at points, (...), (..., d) and (..., d, d)."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor


def at_half_cells(coefficients: Tensor, step: Sequence[float]) -> Jet:
    """The jet at the half-cells of every cell, (2, …, 2, *cells) of each."""
    d = coefficients.ndim

    def field(*directions: int) -> Tensor:
        values = coefficients
        for axis in range(d):
            values = along_axis(values, axis + axis, directions.count(axis)).movedim(0, axis)
            values = values / step[axis] ** directions.count(axis)
        return values

    gradient = torch.stack([field(i) for i in range(d)], -1)
    rows = [torch.stack([field(i, j) for j in range(d)], -1) for i in range(d)]
    return Jet(field(), gradient, torch.stack(rows, -2))


def along_axis(values: Tensor, axis: int, order: int) -> Tensor:
    """A derivative at both half-cells of the cells along an axis, (2, *shape)."""
    taps = _neighbours(values, axis)
    weights = WEIGHTS[order].to(values.dtype)
    return torch.stack([sum(w * tap for w, tap in zip(row, taps, strict=True)) for row in weights])  # pyright: ignore


def along_axis_back(values: Tensor, axis: int, order: int) -> Tensor:
    """The transpose of `along_axis`: (2, *shape) to (*shape)."""
    weights = WEIGHTS[order].to(values.dtype)
    parts = [sum(weights[q, k] * values[q] for q in range(2)) for k in range(3)]
    before, middle, after = (part.movedim(axis, 0) for part in parts)  # pyright: ignore
    total = middle.clone()
    total[:-1] += before[1:]
    total[0] += before[0]
    total[1:] += after[:-1]
    total[-1] += after[-1]
    return total.movedim(0, axis)


def _neighbours(values: Tensor, axis: int) -> list[Tensor]:
    """The cells before, here and after, with the first and the last once more."""
    n = values.shape[axis]
    first, last = values.narrow(axis, 0, 1), values.narrow(axis, n - 1, 1)
    padded = torch.cat([first, values, last], axis)
    return [padded.narrow(axis, k, n) for k in range(3)]


def interpolated(values: Tensor) -> Tensor:
    """Coefficients of a spline with these values at the centres of cells; exact for quadratics.

    Along each axis c = s − (s₋ − 2s + s₊)/8.
    """
    for axis in range(values.ndim):
        before, here, after = _neighbours(values, axis)
        values = here - (before - 2 * here + after) / 8
    return values


def half_cell_places(shape: Sequence[int]) -> Tensor:
    """Where the half-cells' centres are, in cells: (2, …, 2, *shape, d)."""
    d = len(shape)
    axes = [
        torch.arange(n, dtype=torch.float64)[None] + torch.tensor([[0.25], [0.75]]) for n in shape
    ]
    fields = []
    for axis, values in enumerate(axes):
        view = [1] * (2 * d)
        view[axis], view[d + axis] = 2, shape[axis]
        fields.append(values.reshape(view).expand(*(2,) * d, *shape))
    return torch.stack(fields, -1)


def box_means(values: Tensor, place: Tensor, width: Tensor) -> Tensor:
    """Means over boxes, (...), of densities (*cells) constant in cells; see `box_shares`."""
    flat = values.flatten()
    return sum(share * flat[cell] for cell, share in box_shares(place, width, values.shape))  # pyright: ignore


def box_shares(
    place: Tensor, width: Tensor, shape: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The 2^d cells, by number, that boxes may meet, and which share of the box lies in each.

    Args:
        place: the middle of the boxes, in cells, (..., d); moved inside where they stick out.
        width: of the boxes along each axis, in cells, (..., d), at most one.
        shape: of the grid.
    """
    first, shares = [], []
    for axis, n in enumerate(shape):
        w = width[..., axis]
        low = torch.minimum((place[..., axis] - w / 2).clamp(min=0), n - w)
        cell = low.detach().floor().clamp(0, n - 1)
        beyond = ((low + w - cell - 1) / w).clamp(min=0)
        first.append(cell.long())
        shares.append((1 - beyond, beyond))
    for corner in product((0, 1), repeat=len(shape)):
        index, share = torch.zeros_like(first[0]), torch.ones_like(shares[0][0])
        for axis, side in enumerate(corner):
            index = index * shape[axis] + (first[axis] + side).clamp(max=shape[axis] - 1)
            share = share * shares[axis][side]
        yield index, share


def at_points(coefficients: Tensor, step: Sequence[float], points: Tensor) -> Jet:
    """The jet at points (N, d) of the box, which begins at zero; beyond it, that at its face."""
    shape, d = coefficients.shape, coefficients.ndim
    index, weights = torch.zeros(len(points), *(1,) * d, dtype=torch.long), []
    for axis, n in enumerate(shape):
        taps, own = axis_taps(points[:, axis], step[axis], n)
        view = [-1, *(3 if k == axis else 1 for k in range(d))]
        index = index + (taps * math.prod(shape[axis + 1 :])).reshape(view)
        weights.append([part.reshape(view) for part in own])
    around = coefficients.flatten()[index]

    def field(*directions: int) -> Tensor:
        total = around
        for axis in range(d):
            total = total * weights[axis][directions.count(axis)]
        return total.flatten(1).sum(1)

    gradient = torch.stack([field(i) for i in range(d)], -1)
    rows = [torch.stack([field(i, j) for j in range(d)], -1) for i in range(d)]
    return Jet(field(), gradient, torch.stack(rows, -2))


def axis_taps(x: Tensor, step: float, cells: int) -> tuple[Tensor, list[Tensor]]:
    """The three coefficients around points (N,) of an axis, (N, 3), and their weights.

    The weights of the value, of the slope and of the curvature, (N, 3) each.
    """
    place = (x / step).clamp(0, cells)
    cell = place.detach().floor().clamp(max=cells - 1)
    s = place - cell - 0.5
    value = torch.stack([0.5 * (0.5 - s) ** 2, 0.75 - s**2, 0.5 * (0.5 + s) ** 2], -1)
    slope = torch.stack([s - 0.5, -2 * s, s + 0.5], -1) / step
    bend = torch.tensor([1.0, -2.0, 1.0], dtype=s.dtype).expand(len(s), 3) / step**2
    taps = (cell.long()[:, None] + torch.arange(-1, 2)).clamp(0, cells - 1)
    return taps, [value, slope, bend]


# ---- Grids on one box from fine to coarse, and what leads quadratic splines from one to the next.


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
