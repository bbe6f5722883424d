"""Quadratic splines on a grid, and densities that are constant in its cells.

u(y) = Σ_i c_i Π_a β(y_a/h_a − i_a − ½) with β the quadratic B-spline, three cells wide: one
coefficient per cell, even reflection at the faces. Like the potential of a geodesic at t = ½ it is
C^{1,1}. Integrals are sums over the centres of half-cells, two per axis and cell. The kernels have
the same in quadratic.h.

`periodic` says for each axis whether it wraps around instead; axes that it does not list reflect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Value, slope and curvature of the three splines at both half-cells of a cell.
_HALF_CELL_WEIGHTS = torch.tensor(
    [
        [[0.28125, 0.6875, 0.03125], [0.03125, 0.6875, 0.28125]],
        [[-0.75, 0.5, 0.25], [-0.25, -0.5, 0.75]],
        [[1.0, -2.0, 1.0], [1.0, -2.0, 1.0]],
    ],
    dtype=torch.float64,
    device="cpu",
)


Periodic = Sequence[bool]
NOT_PERIODIC: Periodic = ()


def is_periodic(periodic: Periodic, axis: int) -> bool:
    """Return whether an axis is periodic."""
    return axis < len(periodic) and bool(periodic[axis])


class Jet(NamedTuple):
    """u, ∇u and D²u at points, (...), (..., d) and (..., d, d)."""

    value: Tensor
    gradient: Tensor
    hessian: Tensor


def evaluate_at_half_cells(
    coefficients: Tensor, step: Sequence[float], periodic: Periodic = NOT_PERIODIC
) -> Jet:
    """Return the jet at the half-cells of every cell, (2, …, 2, *cells) of each."""
    d = coefficients.ndim

    def derivative(*directions: int) -> Tensor:
        values = coefficients
        for axis in range(d):
            order = directions.count(axis)
            wraps = is_periodic(periodic, axis)
            values = evaluate_along_axis(values, axis + axis, order, wraps).movedim(0, axis)
            values = values / step[axis] ** order
        return values

    return _assemble_jet(derivative, d)


def evaluate_at_points(
    coefficients: Tensor,
    step: Sequence[float],
    points: Tensor,
    periodic: Periodic = NOT_PERIODIC,
) -> Jet:
    """Return the jet at points (N, d) of a box with corner zero; constant beyond its faces."""
    shape, d = coefficients.shape, coefficients.ndim
    index, weights = torch.zeros(len(points), *(1,) * d, dtype=torch.long), []
    for axis, n in enumerate(shape):
        taps, own = spline_stencil(points[:, axis], step[axis], n, is_periodic(periodic, axis))
        view = [-1, *(3 if k == axis else 1 for k in range(d))]
        index = index + (taps * math.prod(shape[axis + 1 :])).reshape(view)
        weights.append([part.reshape(view) for part in own])
    neighbours = coefficients.flatten()[index]

    def derivative(*directions: int) -> Tensor:
        total = neighbours
        for axis in range(d):
            total = total * weights[axis][directions.count(axis)]
        return total.flatten(1).sum(1)

    return _assemble_jet(derivative, d)


def _assemble_jet(derivative: Callable[..., Tensor], d: int) -> Jet:
    """Return a jet from a function of the directions of differentiation."""
    gradient = torch.stack([derivative(i) for i in range(d)], -1)
    rows = [torch.stack([derivative(i, j) for j in range(d)], -1) for i in range(d)]
    return Jet(derivative(), gradient, torch.stack(rows, -2))


def evaluate_along_axis(values: Tensor, axis: int, order: int, wraps: bool = False) -> Tensor:
    """Return a derivative at both half-cells of the cells along an axis, (2, *shape)."""
    taps = _neighbours(values, axis, wraps)
    weights = _HALF_CELL_WEIGHTS[order].to(values.dtype)
    return torch.stack([sum(w * tap for w, tap in zip(row, taps, strict=True)) for row in weights])  # pyright: ignore


def evaluate_along_axis_transpose(
    values: Tensor, axis: int, order: int, wraps: bool = False
) -> Tensor:
    """Apply the transpose of `evaluate_along_axis`: (2, *shape) to (*shape)."""
    weights = _HALF_CELL_WEIGHTS[order].to(values.dtype)
    parts = [sum(weights[q, k] * values[q] for q in range(2)) for k in range(3)]
    before, middle, after = (part.movedim(axis, 0) for part in parts)  # pyright: ignore
    total = middle.clone()
    total[:-1] += before[1:]
    total[-1 if wraps else 0] += before[0]
    total[1:] += after[:-1]
    total[0 if wraps else -1] += after[-1]
    return total.movedim(0, axis)


def interpolate_centres(values: Tensor, periodic: Periodic = NOT_PERIODIC) -> Tensor:
    """Return coefficients of a spline with these values at cell centres; exact for quadratics.

    Along each axis c = s − (s₋ − 2s + s₊)/8.
    """
    for axis in range(values.ndim):
        before, here, after = _neighbours(values, axis, is_periodic(periodic, axis))
        values = here - (before - 2 * here + after) / 8
    return values


def _neighbours(values: Tensor, axis: int, wraps: bool = False) -> list[Tensor]:
    """Return the previous cell, the cell itself and the next cell, reflected at the faces."""
    n = values.shape[axis]
    first, last = values.narrow(axis, 0, 1), values.narrow(axis, n - 1, 1)
    padded = torch.cat([last, values, first] if wraps else [first, values, last], axis)
    return [padded.narrow(axis, k, n) for k in range(3)]


def spline_stencil(
    x: Tensor, step: float, cells: int, wraps: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """Return the three coefficients that determine a spline at points (N,) of an axis.

    Returns:
        Indices (N, 3), and weights (N, 3) of the value, of the slope and of the curvature.
    """
    position = (x / step) % cells if wraps else (x / step).clamp(0, cells)
    cell = position.detach().floor().clamp(max=cells - 1)
    s = position - cell - 0.5
    value = torch.stack([0.5 * (0.5 - s) ** 2, 0.75 - s**2, 0.5 * (0.5 + s) ** 2], -1)
    slope = torch.stack([s - 0.5, -2 * s, s + 0.5], -1) / step
    curvature = torch.tensor([1.0, -2.0, 1.0], dtype=s.dtype).expand(len(s), 3) / step**2
    indices = cell.long()[:, None] + torch.arange(-1, 2)
    indices = indices % cells if wraps else indices.clamp(0, cells - 1)
    return indices, [value, slope, curvature]


# ---- Densities that are constant in cells


def half_cell_centres(shape: Sequence[int]) -> Tensor:
    """Return the centres of half-cells in cells, (2, …, 2, *shape, d)."""
    d = len(shape)
    fields = []
    for axis, n in enumerate(shape):
        values = torch.arange(n, dtype=torch.float64)[None] + torch.tensor([[0.25], [0.75]])
        view = [1] * (2 * d)
        view[axis], view[d + axis] = 2, n
        fields.append(values.reshape(view).expand(*(2,) * d, *shape))
    return torch.stack(fields, -1)


def average_over_boxes(
    values: Tensor, centre: Tensor, width: Tensor, periodic: Periodic = NOT_PERIODIC
) -> Tensor:
    """Return means (...) of a density (*cells) over boxes; see `overlap_fractions`."""
    flat, overlaps = values.flatten(), overlap_fractions(centre, width, values.shape, periodic)
    return sum(fraction * flat[cell] for cell, fraction in overlaps)  # pyright: ignore


def accumulate(values: Tensor) -> Tensor:
    """Return sums of a density (*cells) over all cells before each vertex, (*cells + 1)."""
    sums = values.double()
    for axis in range(values.ndim):
        sums = torch.cat([torch.zeros_like(sums.narrow(axis, 0, 1)), sums.cumsum(axis)], axis)
    return sums


def average_over_wide_boxes(
    values: Tensor, centre: Tensor, width: Tensor, periodic: Periodic = NOT_PERIODIC
) -> Tensor:
    """Return means (...) of a density (*cells) over boxes of any width, from its sums."""
    sums, taps = accumulate(values), []
    for axis, n in enumerate(values.shape):
        wraps, w = is_periodic(periodic, axis), width[..., axis].clamp(1e-3, n)
        low = centre[..., axis] - w / 2
        if not wraps:
            low = torch.minimum(low, n - w).clamp(min=0)
        own, periods = [], torch.zeros_like(w)
        for end, sign in ((low, -1), (low + w, 1)):
            turns = (end / n).floor() if wraps else torch.zeros_like(end)
            position = (end - turns * n).clamp(0, n)
            cell = position.detach().floor().clamp(max=n - 1)
            own += [
                (cell.long(), sign * (cell + 1 - position) / w),
                (cell.long() + 1, sign * (position - cell) / w),
            ]
            periods = periods + sign * turns / w
        if wraps:
            own.append((torch.full_like(own[0][0], n), periods))
        taps.append(own)
    total = torch.zeros(centre.shape[:-1], dtype=torch.float64)
    for corner in product(*taps):
        weight = torch.ones_like(total)
        for _, share in corner:
            weight = weight * share
        total = total + weight * sums[tuple(index for index, _ in corner)]
    return total.clamp(min=0)


def overlap_fractions(
    centre: Tensor, width: Tensor, shape: Sequence[int], periodic: Periodic = NOT_PERIODIC
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the 2^d cells that boxes may overlap, with the fraction of each box in the cell.

    Args:
        centre: centres of the boxes in cells, (..., d); boxes are shifted into the grid.
        width: widths of the boxes in cells, (..., d), at most one.
        shape: cells of the grid.
        periodic: whether each axis is periodic.

    Yields:
        Flat indices of cells and fractions, (...) each.
    """
    first, fractions = [], []
    for axis, n in enumerate(shape):
        w = width[..., axis]
        low = centre[..., axis] - w / 2
        wraps = is_periodic(periodic, axis)
        low = low % n if wraps else torch.minimum(low.clamp(min=0), n - w)
        cell = low.detach().floor().clamp(0, n - 1)
        beyond = ((low + w - cell - 1) / w).clamp(min=0)
        first.append(cell.long())
        fractions.append((1 - beyond, beyond))
    for corner in product((0, 1), repeat=len(shape)):
        index, fraction = torch.zeros_like(first[0]), torch.ones_like(fractions[0][0])
        for axis, side in enumerate(corner):
            cell, n = first[axis] + side, shape[axis]
            cell = cell % n if is_periodic(periodic, axis) else cell.clamp(max=n - 1)
            index = index * n + cell
            fraction = fraction * fractions[axis][side]
        yield index, fraction


# ---- Transfer between grids of one box


def level_shapes(
    shape: Sequence[int],
    sides: Sequence[float],
    coarsest: int = 4,
    similar: float = 1.5,
) -> list[tuple[int, ...]]:
    """Return a shape and its coarser levels, so that cells become as nearly cubes as possible.

    Args:
        shape: cells of the finest level.
        sides: side lengths of the box.
        coarsest: cells along an axis that is not halved any more.
        similar: ratio to the smallest spacing up to which an axis is halved with it.
    """
    shapes = [tuple(shape)]
    while max(shapes[-1]) > coarsest:
        now = shapes[-1]
        spacing = [side / n for side, n in zip(sides, now, strict=True)]
        finest = min(h for h, n in zip(spacing, now, strict=True) if n > coarsest)
        shapes.append(
            tuple(
                (n + 1) // 2 if n > coarsest and h < similar * finest else n
                for h, n in zip(spacing, now, strict=True)
            )
        )
    return shapes


def prolong_spline(
    coefficients: Tensor, shape: Sequence[int], periodic: Periodic = NOT_PERIODIC
) -> Tensor:
    """Return a spline (*cells) on other cells of the same box, (*shape).

    It is the same spline if cells are halved, else one that agrees for quadratic polynomials.
    """
    for axis, n in enumerate(shape):
        if coefficients.shape[axis] != n:
            wraps = is_periodic(periodic, axis)
            matrix = prolongation_matrix(coefficients.shape[axis], n, wraps)
            coefficients = matrix.apply(coefficients, axis)
    return coefficients


def repeat_cells(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a density on cells (*shape) that are integer fractions of its own."""
    for axis, n in enumerate(shape):
        if values.shape[axis] != n:
            values = values.repeat_interleave(n // values.shape[axis], axis)
    return values


class BandMatrix(NamedTuple):
    """A matrix (rows, columns) with few entries in each row, side by side.

    Attributes:
        first: first column of each row, (rows,), int32.
        taps: entries from there on, (rows, width), single precision; beyond the last column they
            continue with the first one.
        columns: number of columns.
    """

    first: Tensor
    taps: Tensor
    columns: int

    def apply(self, values: Tensor, axis: int) -> Tensor:
        """Multiply along an axis."""
        shape = [-1 if k == axis % values.ndim else 1 for k in range(values.ndim)]
        first, taps = self.first.long(), self.taps.to(values.dtype)
        parts = (
            values.index_select(axis, (first + k) % self.columns) * tap.reshape(shape)
            for k, tap in enumerate(taps.T)
        )
        return sum(parts)  # pyright: ignore

    def apply_transpose(self, values: Tensor, axis: int) -> Tensor:
        """Multiply by the transpose along an axis."""
        columns = (self.first.long()[:, None] + torch.arange(self.taps.shape[1])) % self.columns
        parts = values.movedim(axis, -1)[..., None] * self.taps.to(values.dtype)
        shape = (*parts.shape[:-2], self.columns)
        result = parts.new_zeros(shape).index_add_(-1, columns.flatten(), parts.flatten(-2))
        return result.movedim(-1, axis)


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def prolongation_matrix(coarse: int, fine: int, wraps: bool = False) -> BandMatrix:
    """Return the matrix from coefficients on `coarse` cells of an axis to `fine` ones."""

    def locate(cells: np.ndarray, count: int) -> np.ndarray:
        return cells % count if wraps else np.clip(cells, 0, count - 1)

    if fine == coarse:
        i = np.arange(fine)
        return _to_band(np.ones(fine), i, i, (fine, coarse), wraps)
    if fine == 2 * coarse:
        i = np.arange(fine)
        beside = locate(i // 2 + 2 * (i % 2) - 1, coarse)
        entries = np.r_[np.full(fine, 0.75), np.full(fine, 0.25)]
        return _to_band(entries, np.r_[i, i], np.r_[i // 2, beside], (fine, coarse), wraps)
    # Values at the centres, then coefficients as in `interpolate_centres`.
    centres = (np.arange(fine) + 0.5) * coarse / fine
    cell = np.minimum(centres.astype(int), coarse - 1)
    s = centres - cell - 0.5
    weights = np.stack([0.5 * (0.5 - s) ** 2, 0.75 - s**2, 0.5 * (0.5 + s) ** 2], 1)
    taps = locate(cell[:, None] + np.arange(-1, 2), coarse)
    before, after = locate(np.arange(fine) - 1, fine), locate(np.arange(fine) + 1, fine)
    entries = np.stack([1.25 * weights, -0.125 * weights[before], -0.125 * weights[after]], 1)
    columns = np.stack([taps, taps[before], taps[after]], 1)
    rows = np.repeat(np.arange(fine), 9)
    return _to_band(entries.ravel(), rows, columns.ravel(), (fine, coarse), wraps)


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def restriction_matrix(fine: int, coarse: int, wraps: bool = False) -> BandMatrix:
    """Return the transpose of the matrix from coefficients on `coarse` cells to `fine` ones."""
    band = prolongation_matrix(coarse, fine, wraps)
    rows, width = band.taps.shape
    columns = (band.first.numpy()[:, None] + np.arange(width)) % coarse
    own = np.repeat(np.arange(rows), width)
    return _to_band(band.taps.numpy().ravel(), columns.ravel(), own, (coarse, fine), wraps)


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def averaging_matrix(fine: int, coarse: int, parts: int = 2) -> BandMatrix:
    """Return the matrix of means over parts of `coarse` cells from parts of `fine` ones.

    By default every cell has two parts, its half-cells.
    """
    ratio, count, rows = fine / coarse, parts * fine, parts * coarse
    begins = np.arange(rows) * ratio
    reach = int(np.ceil(ratio)) + 1
    taps = np.floor(begins).astype(int)[:, None] + np.arange(reach)
    ends = np.minimum(begins[:, None] + ratio, taps + 1.0)
    shares = np.clip(ends - np.maximum(begins[:, None], taps), 0, None) / ratio
    shares[(taps >= count) | (shares < 1e-9)] = 0
    own = np.repeat(np.arange(rows), reach)
    return _to_band(shares.ravel(), own, taps.ravel(), (rows, count))


def _to_band(
    entries: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    shape: tuple[int, int],
    wraps: bool = False,
) -> BandMatrix:
    """Return the matrix with these entries; entries at the same place are added."""
    height, count = shape
    places, index = np.unique(rows * count + columns, return_inverse=True)
    values = np.bincount(index, entries)
    kept = np.abs(values) > 1e-12  # no rounding errors, which would widen the band
    (own, columns), values = np.divmod(places[kept], count), values[kept]
    begins = np.searchsorted(own, np.arange(height + 1))
    if wraps:
        rows_of_columns = np.split(columns, begins[1:-1])
        first = np.array([_begin_of_band(row, count) for row in rows_of_columns])
        width = int(((columns - first[own]) % count).max()) + 1
    else:
        low, high = columns[begins[:-1]], columns[begins[1:] - 1]
        width = int((high - low).max()) + 1
        first = np.minimum(low, count - width)
    taps = np.zeros((height, width), dtype=np.float32)
    taps[own, (columns - first[own]) % count] = values
    return BandMatrix(torch.from_numpy(first.astype(np.int32)), torch.from_numpy(taps), count)


def _begin_of_band(indices: np.ndarray, columns: int) -> int:
    """Return the column after the widest gap between entries of a row that wraps around."""
    ordered = np.sort(indices)
    gaps = np.diff(ordered, prepend=ordered[-1] - columns)
    return int(ordered[np.argmax(gaps)])
