"""Matrices that take values along an axis to other places on it, or to derivatives there.

Axes are scaled to [0, 1]; all matrices are single precision and kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline

MOST_CELLS = 512  # along an axis for which a spline is made a matrix


def along(matrices: Sequence[Tensor], values: Tensor) -> Tensor:
    """Apply a matrix (m_i, n_i) along each of the last axes of values (..., n_1, …, n_d)."""
    d = len(matrices)
    for matrix in matrices:  # always the axis in front, which then goes to the back
        values = values.movedim(values.ndim - d, -1) @ matrix.T
    return values


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def series_matrix(count: int, modes: int, order: int, centred: bool = True) -> Tensor:
    """cos(kπx), or its first or second derivative, for k < modes at `count` cells' places."""
    frequencies = math.pi * torch.arange(modes, dtype=torch.float64)
    phase = _where(count, centred)[:, None] * frequencies
    value = -torch.sin(phase) if order == 1 else torch.cos(phase)
    return (value * frequencies**order * (-1 if order == 2 else 1)).float()


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def refinement(coarse: int, fine: int, share: float, odd: bool, order: int) -> Tensor:
    """(fine, coarse): values at the centres of [0, 1] to those of [0, share], or their derivative.

    Through the series of cosines that has the values, or of sines where the function is `odd` at
    the faces: exact for functions with fewer modes than cells.
    """
    here, there = _where(coarse), share * _where(fine)
    frequencies = math.pi * torch.arange(coarse, dtype=torch.float64)
    if odd:
        frequencies = frequencies + math.pi
    phase, target = here[:, None] * frequencies, there[:, None] * frequencies
    weights = torch.full((coarse,), 2.0 / coarse, dtype=torch.float64)
    weights[-1 if odd else 0] /= 2
    values = torch.sin(phase) if odd else torch.cos(phase)
    if order == 0:
        synthesis = torch.sin(target) if odd else torch.cos(target)
    else:
        synthesis = frequencies * (torch.cos(target) if odd else -torch.sin(target))
    return (synthesis @ (weights[:, None] * values.T)).float()


def splined(values: Tensor, grid: Grid, counts: Sequence[int], centred: bool) -> Tensor:
    """Cubic splines of cell values (B, *grid.shape) at places in the cube around the grid's box.

    Along each axis at the centres of `count` cells, or else at their `count` + 1 faces, so that the
    answer is (B, *places). Outside the box, if that is no cube, they are zero.
    """
    length = max(grid.lengths)
    axes = zip(grid.shape, grid.lengths, counts, strict=True)
    for cells, side, count in axes:  # always the axis in front, which then goes to the back
        values = values.movedim(1, -1)
        if cells <= MOST_CELLS:
            values = values @ _spline_matrix(cells, side / length, count, centred).T
        else:  # making the matrix would take the spline of as many rows as there are cells
            values = _spline(values, side / length, _where(count, centred)).float()
    return values


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


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def unit_centres(d: int, cells: int) -> Tensor:
    """The centres of cells^d cells of the unit cube, (d, cells^d)."""
    return Grid((cells,) * d).points().reshape(-1, d).T.float().contiguous()


def _where(count: int, centred: bool = True) -> Tensor:
    """The centres of `count` cells, or else their `count` + 1 faces."""
    if centred:
        return (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.arange(count + 1, dtype=torch.float64) / count
