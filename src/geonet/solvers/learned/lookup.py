"""Fields on the unit cube, looked up between the nodes of a table.

Everything here is single precision and batched: it is what a learned geodesic spends its time on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline

FINER = 4  # nodes of a density's table per cell
Fields = Sequence[Tensor]  # the components of a vector or packed matrix, each (B, T, P)
LARGEST = 2**24  # nodes of a table; beyond, it has fewer per cell


def look_up(table: Tensor, where: Tensor) -> Tensor:
    """Linear interpolation: table (B, C, *nodes), where (B, T, P, d) to (C, B, T, P).

    Nodes are equally spaced and include the faces of the cube; places outside move to its faces.
    `places` makes `where`.
    """
    batch, times, count, _ = where.shape
    if table.ndim == 3:
        table = table[:, :, None]
    if batch == 1:  # threads share out the leading axis: let it be the times
        table, where = table.expand(times, *table.shape[1:]), where.transpose(0, 1)
    if table.ndim == 5:
        where = where[:, None]
    found = grid_sample(table, where, padding_mode="border", align_corners=True)
    found = found.flatten(2).transpose(0, 1)  # (C, B or T, rest)
    return found.reshape(len(found), batch, times, count)


def places(points: Tensor, velocity: Fields, s: float | Tensor) -> Tensor:
    """x − s·v in the coordinates of `look_up`, (B, T, P, max(d, 2)).

    Points x (d, P) and velocities, d of (B, T, P), in the unit cube; s a number or (T, 1).
    """
    d = len(points)
    where = torch.zeros if d == 1 else torch.empty
    where = where(*velocity[0].shape, max(d, 2))
    minus_twice = torch.as_tensor(-2.0 * s)
    for i in range(d):  # grid_sample counts from −1 to 1, and the last axis first
        torch.addcmul(2 * points[i] - 1, velocity[i], minus_twice, out=where[..., d - 1 - i])
    return where


def density_table(values: Tensor, grid: Grid) -> Tensor:
    """Densities (B, *grid.shape), relative to uniform, on nodes of the cube around: (B, 1, *nodes).

    Cubic splines through the cells give the values at the nodes, `FINER` per cell, where they are
    cut off at zero; outside the box, if that is no cube, the density is zero.
    """
    length, finer = max(grid.lengths), FINER
    while finer > 1 and math.prod(finer * n * length / side for n, side in _axes(grid)) > LARGEST:
        finer //= 2
    counts = [max(1, round(finer * n * length / side)) for n, side in _axes(grid)]
    return _splined(values, grid, counts, centred=False).clamp(min=0)[:, None]


def sensed(values: Tensor, grid: Grid, sensors: int) -> Tensor:
    """Densities (B, *grid.shape), relative to uniform, at the sensors of the cube: (B, m)."""
    return _splined(values, grid, [sensors] * grid.dimension, centred=True).flatten(1)


def _splined(values: Tensor, grid: Grid, counts: Sequence[int], centred: bool) -> Tensor:
    length = max(grid.lengths)
    matrices = [
        _spline_matrix(n, side / length, count, centred)
        for (n, side), count in zip(_axes(grid), counts, strict=True)
    ]
    return along(matrices, (values * length**grid.dimension).float())


def along(matrices: Sequence[Tensor], values: Tensor) -> Tensor:
    """Apply a matrix (m_i, n_i) along each of the last axes of values (..., n_1, …, n_d)."""
    d = len(matrices)
    for matrix in matrices:  # always the axis in front, which then goes to the back
        values = values.movedim(values.ndim - d, -1) @ matrix.T
    return values


@lru_cache(maxsize=64)
def series_matrix(centres: int, modes: int, order: int, share: float = 1.0) -> Tensor:
    """(centres, modes): derivatives of cos(kπx) at cell centres of [0, share]; order 0, 1 or 2."""
    return _cosines(share * _centres(centres), modes, order).float()


@lru_cache(maxsize=64)
def node_matrix(nodes: int, modes: int, order: int) -> Tensor:
    """(nodes + 1, modes): the same at the nodes 0, 1/nodes, …, 1."""
    where = torch.arange(nodes + 1, dtype=torch.float64) / nodes
    return _cosines(where, modes, order).float()


@lru_cache(maxsize=64)
def refinement(coarse: int, fine: int, share: float, odd: bool, order: int) -> Tensor:
    """(fine, coarse): values at the centres of [0, 1] to those of [0, share], or their derivative.

    Through the series of cosines that has the values, or of sines where the function is `odd` at the
    faces: exact for functions with fewer modes than cells.
    """
    here, there = _centres(coarse), share * _centres(fine)
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


@lru_cache(maxsize=32)
def _spline_matrix(cells: int, share: float, count: int, centred: bool) -> Tensor:
    """Cell values on [0, share] to their cubic spline at places in [0, 1], (places, cells).

    The places are `count` cell centres, or else the `count` + 1 faces of these cells.
    """
    where = _centres(count) if centred else torch.arange(count + 1, dtype=torch.float64) / count
    spline = CubicSpline(torch.eye(cells, dtype=torch.float64), Grid(cells, 0.0, share))
    inside = where <= share * (1 + 1e-9)  # a box that is no cube lies in one
    return (spline(where[:, None]) * inside).T.float().contiguous()


def _cosines(x: Tensor, modes: int, order: int) -> Tensor:
    frequencies = math.pi * torch.arange(modes, dtype=torch.float64)
    phase = x[:, None] * frequencies
    value = -torch.sin(phase) if order == 1 else torch.cos(phase)
    return value * frequencies**order * (-1 if order == 2 else 1)


def _centres(cells: int) -> Tensor:
    return (torch.arange(cells, dtype=torch.float64) + 0.5) / cells


def _axes(grid: Grid) -> list[tuple[int, float]]:
    return list(zip(grid.shape, grid.lengths, strict=True))
