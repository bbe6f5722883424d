"""Legendre transforms for the squared distance, over the cells of a grid."""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.measures.grid import Grid

AT_ONCE = 1 << 21  # sums of which a minimum is taken


def squared_distance_transform(potential: Tensor, grid: Grid) -> Tensor:
    """ψ(y) = min_x |x − y|² − φ(x) over the cell centres, axis by axis; −∞ in φ takes no part."""
    values = -potential
    for axis, (h, cells) in enumerate(zip(grid.spacing, grid.shape, strict=True)):
        x = h * torch.arange(cells, dtype=torch.float64)
        cost = (x[:, None] - x) ** 2
        columns = values.movedim(axis, -1)
        parts = columns.reshape(-1, cells).split(max(1, AT_ONCE // cells**2))
        least = torch.cat([(part[:, None] + cost).amin(-1) for part in parts])
        values = least.reshape(columns.shape).movedim(-1, axis)
    return values
