"""What the networks see of a density."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from geonet.fields.matrices import splined
from geonet.measures.density import Density
from geonet.measures.unit_box import unit_box


def sensed(density: Density, sensors: int) -> Tensor:
    """A density, relative to uniform, at sensors^d cells of the cube around its box, (B, m)."""
    (found,) = all_sensed([density], sensors)
    return found


def all_sensed(
    densities: Sequence[Density], sensors: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """The same for several on one grid, at the cost of one."""
    grid, d = densities[0].grid, densities[0].grid.dimension
    values = torch.cat([density.values.reshape(-1, *grid.shape) for density in densities])
    relative = unit_box(grid).to_density(values).to(dtype)
    found = splined(relative, grid, [sensors] * d, centred=True).flatten(1)
    return found.chunk(len(densities))
