"""Paths that autograd can follow back to both ends: torch alone, in double precision.

The formulas are those of `frames`, but v and Dv are found at the cells of the grid themselves,
along the characteristics, and densities are read as cubic splines.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.fields.characteristics import Characteristics
from geonet.fields.cosine_series import CosineSeries
from geonet.fields.lookup import Fields
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline
from geonet.measures.unit_box import unit_box

ROUNDING = 1e-6  # of the cube, by which a place may be outside the box


@dataclass(frozen=True)
class Traced:
    """Cubic splines of densities (B, *grid.shape), with their gradients."""

    values: Tensor
    grid: Grid

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, some: slice) -> Traced:
        return Traced(self.values[some], self.grid)

    def at(self, points: Tensor, velocity: Fields, s: float | Tensor) -> Tensor:
        """As `Splines.at`."""
        box = unit_box(self.grid)
        back = torch.as_tensor(s)[..., None] * torch.stack(list(velocity), -1)
        places = points.T - back
        spline = CubicSpline(box.to_density(self.values), box.cells)
        found = spline(places.double().flatten(1, 2)).reshape(places.shape[:-1])
        outside = (places < -ROUNDING) | (places > box.cells.corner("upper") + ROUNDING)
        return found.clamp(min=0).masked_fill(outside.any(-1), 0.0)


def traced(density: Density) -> Traced:
    """One density as a batch of one, or a batch."""
    return Traced(density.values.reshape(-1, *density.grid.shape), density.grid)


def traced_frames(
    coefficients: Tensor, ends: tuple[Traced, Traced], times: Tensor, grid: Grid
) -> Tensor:
    """Densities at times (T,) on a grid, in the units of its box, (B, T, cells).

    From potentials (B, modes, …) at t = ½ in the unit cube.
    """
    box, d = unit_box(grid), grid.dimension
    points = box.to_points(grid.points()).reshape(-1, d)
    velocity, before, after = [], [], []
    for own in coefficients:
        lines = Characteristics(CosineSeries(own, Grid((2,) * d)))
        for t, origin in zip(times.tolist(), lines.origins(times - 0.5, points), strict=True):
            spread = origin.determinant(t - 0.5)
            velocity.append(origin.gradient)
            before.append(origin.determinant(-0.5) / spread)
            after.append(origin.determinant(0.5) / spread)
    shape = (len(coefficients), len(times), len(points))
    fields = torch.stack(velocity).reshape(*shape, d).unbind(-1)
    determinants = (torch.stack(side).reshape(shape) for side in (before, after))
    t = times[:, None]
    source, target = (
        end.at(points.T, fields, s) * determinant
        for end, s, determinant in zip(ends, (t, t - 1), determinants, strict=True)
    )
    return box.from_density(torch.lerp(source, target, t).clamp(min=0))
