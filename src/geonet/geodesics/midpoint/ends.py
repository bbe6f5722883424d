"""The densities at either end of a path, read between their cells, a batch of them at once.

Where kernels.c was compiled 2D densities are read as cubic splines, else from a fine table.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.fields.compiled import loops as compiled
from geonet.fields.lookup import FINER, Fields, density_table, look_up, places
from geonet.fields.matrices import spline_coefficients
from geonet.geodesics.midpoint.traced import Traced
from geonet.measures.grid import Grid


@dataclass(frozen=True)
class Tabled:
    """Linear interpolation in a table, (B, 1, *nodes)."""

    table: Tensor

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, some: slice) -> Tabled:
        return Tabled(self.table[some])

    def at(self, points: Tensor, velocity: Fields, s: float | Tensor) -> Tensor:
        """Densities at x − s·v, (B, T, P), relative to uniform.

        Points 2x − 1 in [−1, 1]^d, (d, P), velocities in the unit cube, d of (B, T, P); s a number
        or (T, 1).
        """
        return look_up(self.table, places(points, velocity, s))[0]


@dataclass(frozen=True)
class Splined:
    """Cubic splines; compiled."""

    splines: compiled.Splines

    def __len__(self) -> int:
        return len(self.splines)

    def __getitem__(self, some: slice) -> Splined:
        return Splined(self.splines[some])

    def at(self, points: Tensor, velocity: Fields, s: float | Tensor) -> Tensor:
        """As `Tabled.at`."""
        back = torch.as_tensor(s, dtype=torch.float32).expand(velocity[0].shape[1], 1)[:, 0]
        return compiled.look_up(self.splines, (points + 1) / 2, velocity, back)


# Source and target, B of each.
Ends = tuple[Tabled, Tabled] | tuple[Splined, Splined] | tuple[Traced, Traced]


def ends_of(source: Tensor, target: Tensor, grid: Grid) -> Ends:
    """Densities (B, *grid.shape) in a form to be read between their cells."""
    if not _is_splined(grid):
        return Tabled(density_table(source, grid)), Tabled(density_table(target, grid))
    relative = torch.cat([source, target]).double() * max(grid.lengths) ** 2
    first, second = spline_coefficients(relative.float(), grid).chunk(2)
    return Splined(compiled.Splines(first, grid)), Splined(compiled.Splines(second, grid))


def numbers_kept(grid: Grid) -> int:
    """How many numbers one density takes."""
    return grid.size if _is_splined(grid) else FINER**grid.dimension * grid.size


def _is_splined(grid: Grid) -> bool:
    return grid.dimension == 2 and grid.size < compiled.MOST and compiled.available()
