"""Matrices that take values along an axis to other places on it, or to derivatives there.

Axes are scaled to [0, 1]; all matrices are single precision and kept. Values may be double.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields.cosines import centres, cosine_transform, faces, frequencies, waves
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline, spline_filter
from geonet.measures.unit_box import unit_box

MOST_CELLS = 512  # along an axis for which a spline is made a matrix


def along(matrices: Sequence[Tensor], values: Tensor) -> Tensor:
    """Apply a matrix (m_i, n_i) along each of the last axes of values (..., n_1, …, n_d).

    The last axis from the right and the others from the left: nothing is transposed, which would
    cost more than the products.
    """
    values = values @ matrices[-1].T
    for axis, matrix in enumerate(reversed(matrices[:-1]), start=2):
        values = from_left(matrix, values, axis)
    return values


def from_left(matrix: Tensor, values: Tensor, axis: int) -> Tensor:
    """Apply a matrix (m, n) along the axis that is the `axis`-th from the back."""
    before, after = values.shape[:-axis], values.shape[1 - axis :]
    columns = values.reshape(-1, values.shape[-axis], math.prod(after))
    return (matrix @ columns).reshape(*before, len(matrix), *after)


def derivatives(
    stacks: Sequence[Tensor], values: Tensor, most: int
) -> dict[tuple[int, ...], Tensor]:
    """Derivatives up to the order `most` in all, by their orders along the axes.

    stacks[i][k], (m_i, n_i), takes values along axis i to their k-th derivatives; values are
    (..., n_1, …, n_d). What several derivatives need is computed once.
    """
    found: dict[tuple[int, ...], Tensor] = {(): values}
    for axis, stack in enumerate(reversed(stacks), start=1):  # counted from the back
        found = {
            (order, *orders): part
            for orders, known in found.items()
            for order, part in enumerate(_each_order(stack[: most + 1 - sum(orders)], known, axis))
        }
    return found


def _each_order(stack: Tensor, values: Tensor, axis: int) -> tuple[Tensor, ...]:
    rows = stack.flatten(0, 1).to(values.dtype)
    product = values @ rows.T if axis == 1 else from_left(rows, values, axis)
    return product.chunk(len(stack), dim=-axis)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def series_matrices(count: int, modes: int, centred: bool = True) -> Tensor:
    """cos(kπx), its first and its second derivative for k < modes, (3, places, modes).

    At the centres of `count` cells or else at their faces.
    """
    return waves(_where(count, centred), frequencies(modes), 3).float()


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def refinement(coarse: int, fine: int, share: float, odd: bool) -> Tensor:
    """(2, fine, coarse): values at the centres of [0, 1] to those of [0, share], and their slopes.

    Through the series of cosines that has the values, or of sines where the function is `odd` at
    the faces: exact for functions with fewer modes than cells.
    """
    synthesis = waves(share * centres(fine), frequencies(coarse, first=int(odd)), 2, odd)
    return (synthesis @ cosine_transform(coarse, odd)).float()


def splined(values: Tensor, grid: Grid, counts: Sequence[int], centred: bool) -> Tensor:
    """Cubic splines of cell values (B, *grid.shape) at places in the cube around the grid's box.

    Along each axis at the centres of `count` cells, or else at their `count` + 1 faces, so that the
    answer is (B, *places). Outside the box, if that is no cube, they are zero.
    """
    axes = list(zip(grid.shape, unit_box(grid).sides, counts, strict=True))
    if max(grid.shape) <= MOST_CELLS:
        matrices = [_spline_matrix(cells, share, count, centred) for cells, share, count in axes]
        return along([matrix.to(values.dtype) for matrix in matrices], values)
    for _, share, count in axes:  # the matrix would be the spline of as many rows as cells
        values = _spline(values.movedim(1, -1), share, _where(count, centred)).to(values.dtype)
    return values


def spline_coefficients(values: Tensor, grid: Grid) -> Tensor:
    """Of the cubic B-splines through cell values (B, *grid.shape), in single precision.

    (B, *(cells + 4)): there are two more on each side.
    """
    if max(grid.shape) <= MOST_CELLS:
        return along([_filter_matrix(cells) for cells in grid.shape], values.float())
    for _ in grid.shape:  # always the axis in front, which then goes to the back
        values = spline_filter(values.movedim(1, -1).to(torch.float64))
    return values.float()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _filter_matrix(cells: int) -> Tensor:
    return spline_filter(torch.eye(cells, dtype=torch.float64)).T.float().contiguous()


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _spline_matrix(cells: int, share: float, count: int, centred: bool) -> Tensor:
    """Values of `cells` cells on [0, share] to their spline at the places, (places, cells)."""
    identity = torch.eye(cells, dtype=torch.float64)
    return _spline(identity, share, _where(count, centred)).T.float().contiguous()


def _spline(values: Tensor, share: float, where: Tensor) -> Tensor:
    """The spline along the last axis, which covers [0, share], at points (n,): (..., n)."""
    spline = CubicSpline(values.to(torch.float64), Grid(values.shape[-1], 0.0, share))
    return spline(where[:, None]) * (where <= share * (1 + 1e-9))


def unit_cells(count: int, share: float) -> Tensor:
    """The centres of `count` cells of [0, share], (count,)."""
    return (share * centres(count)).float()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def unit_centres(d: int, cells: int) -> Tensor:
    """The centres of cells^d cells of the unit cube, (d, cells^d)."""
    return Grid((cells,) * d).points().reshape(-1, d).T.float().contiguous()


def _where(count: int, centred: bool) -> Tensor:
    """The centres of `count` cells, or else their `count` + 1 faces."""
    return centres(count) if centred else faces(count)
