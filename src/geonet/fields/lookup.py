"""Fields on the unit cube, looked up between the nodes of a table.

Everything here is single precision and batched: it is what a learned geodesic spends its time on,
but in 2D where kernels.c was compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

Fields = Sequence[Tensor]  # the components of a vector or packed matrix, each (B, T, P)


def look_up(table: Tensor, points: Fields) -> Tensor:
    """Linear interpolation: table (B, C, *nodes) at points, d of (B, T, P), to (C, B, T, P).

    Nodes are equally spaced and include the faces of the cube; points outside move to its faces.
    """
    where, (batch, times, count) = _places(points), points[0].shape
    if table.ndim == 3:
        table = table[:, :, None]
    if batch == 1:  # threads share out the leading axis: let it be the times
        table, where = table.expand(times, *table.shape[1:]), where.transpose(0, 1)
    if table.ndim == 5:
        where = where[:, None]
    found = grid_sample(table, where, padding_mode="border", align_corners=True)
    found = found.flatten(2).transpose(0, 1)  # (C, B or T, rest)
    return found.reshape(len(found), batch, times, count)


def _places(points: Fields) -> Tensor:
    """2x − 1, (B, T, P, max(d, 2)), as grid_sample takes it: the last axis first."""
    d = len(points)
    where = points[0].new_zeros(*points[0].shape, max(d, 2))
    for i, x in enumerate(points):
        torch.add(x.new_tensor(-1.0), x, alpha=2, out=where[..., d - 1 - i])
    return where
