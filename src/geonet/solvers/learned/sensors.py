"""What the networks see of a density."""

from __future__ import annotations

from torch import Tensor

from geonet.measures.density import Density
from geonet.solvers.midpoint.matrices import splined


def sensed(density: Density, sensors: int) -> Tensor:
    """A density, relative to uniform, at sensors^d cells of the cube around its box, (B, m)."""
    grid, d = density.grid, density.grid.dimension
    values = density.values.reshape(-1, *grid.shape) * max(grid.lengths) ** d
    return splined(values.float(), grid, [sensors] * d, centred=True).flatten(1)
