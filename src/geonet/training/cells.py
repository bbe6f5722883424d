"""Densities that are known by their means over cells, as functions of points."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline, resample


class Cells:
    """Densities, relative to uniform, by their means over the cells of the unit box.

    Attributes:
        values: the means, (count, *cells), float32.
    """

    def __init__(self, values: Tensor):
        self.values = values
        self.grid = Grid(tuple(values.shape[1:]))

    def __call__(self, points: Tensor) -> Tensor:
        """The densities at points, by splines, which overshoot where the values jump."""
        if not points.numel():  # where making splines would be in vain
            return self.values.new_zeros(len(self.values), points.shape[-2])
        return self._spline(points)

    @cached_property
    def _spline(self) -> CubicSpline:
        return CubicSpline(self.values, self.grid)

    def means(self, cells: int) -> Tensor:
        """The means over cells^d cells, (count, cells^d), float32."""
        target = Grid((cells,) * self.grid.dimension)
        found = resample(self.values.double(), self.grid, target) if target != self.grid else None
        return (self.values if found is None else found).flatten(1).float()
