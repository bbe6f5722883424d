"""Fields on the unit cube, looked up between the nodes of a table.

Everything here is single precision and batched: it is what a learned geodesic spends its time on,
but in 2D where kernels.c was compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from geonet.fields.matrices import splined
from geonet.measures.grid import Grid

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

    Points 2x − 1 in [−1, 1]^d, (d, P), velocities in the unit cube, d of (B, T, P); s a number or
    (T, 1).
    """
    d = len(points)
    where = velocity[0].new_zeros(*velocity[0].shape, max(d, 2))
    minus_twice = torch.as_tensor(-2.0 * s, dtype=where.dtype)
    for i in range(d):  # grid_sample takes the last axis first
        torch.addcmul(points[i], velocity[i], minus_twice, out=where[..., d - 1 - i])
    return where


def density_table(values: Tensor, grid: Grid) -> Tensor:
    """Densities (B, *grid.shape), relative to uniform, on nodes of the cube around: (B, 1, *nodes).

    Cubic splines through the cells give the values at the nodes, `FINER` per cell, where they are
    cut off at zero; outside the box, if that is no cube, the density is zero.
    """
    length, finer = max(grid.lengths), FINER
    across = [n * length / side for n, side in zip(grid.shape, grid.lengths, strict=True)]
    while finer > 1 and math.prod(finer * n for n in across) > LARGEST:
        finer //= 2
    counts = [max(1, round(finer * n)) for n in across]
    relative = (values.double() * length**grid.dimension).float()
    return splined(relative, grid, counts, centred=False).clamp(min=0)[:, None]
