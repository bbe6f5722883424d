"""The densities at either end of a path, read between their cells, a batch of them at once."""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.fields.compiled import loops as compiled
from geonet.fields.lookup import Fields
from geonet.fields.splines import Splines
from geonet.geodesics.midpoint.traced import Traced
from geonet.measures.grid import Grid

# Source and target, B of each.
Ends = tuple[Splines, Splines] | tuple[Traced, Traced]


def ends_of(source: Tensor, target: Tensor, grid: Grid) -> Ends:
    """Densities (B, *grid.shape) in a form to be read between their cells."""
    both = Splines.through(torch.cat([source, target]), grid)
    return both[: len(source)], both[len(source) :]


def compiled_ends(ends: Ends) -> tuple[Splines, Splines] | None:
    """The ends, if the compiled loops take them."""
    first, second = ends
    if isinstance(first, Splines) and isinstance(second, Splines) and compiled.takes(first.grid):
        return first, second
    return None


def density_at(
    end: Splines | Traced, points: Tensor, velocity: Fields, s: float | Tensor
) -> Tensor:
    """Densities at x − s·v, (B, T, P), relative to uniform; see `Splines.at`."""
    if isinstance(end, Splines) and compiled.takes(end.grid):
        return compiled.look_up(end, points, velocity, s)
    return end.at(points, velocity, s)
