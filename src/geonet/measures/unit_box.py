"""The unit cube around a box: the one place that scales to it and back.

With a the lower corner of the box and L its longest side, x ↦ (x − a)/L multiplies lengths and
velocities by 1/L, densities by L^d, potentials and the noise ε by 1/L². Solvers work in the cube; a
box that is not a cube fills its lower corner.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeVar

from torch import Tensor

from geonet.measures.grid import Grid

Number = TypeVar("Number", float, Tensor)


class UnitBox:
    """From a grid's box to the unit cube (`to_…`), and back (`from_…`).

    Attributes:
        grid: whose box it is.
        length: L, the longest side.
        sides: of the box in the cube; the longest is one.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        self.length = grid.longest
        self.sides = tuple(side / self.length for side in grid.lengths)

    @property
    def cells(self) -> Grid:
        """The grid's cells in the cube."""
        return Grid(self.grid.shape, 0.0, self.sides)

    @property
    def cube(self) -> Grid:
        """The whole cube in the units of the grid; its number of cells has no meaning."""
        lower = self.grid.lower
        return Grid((2,) * len(lower), lower, [a + self.length for a in lower])

    def to_points(self, points: Tensor) -> Tensor:
        """Points (..., d) of the box, as points of the cube."""
        return (points - self.grid.corner("lower")) / self.length

    def from_points(self, points: Tensor) -> Tensor:
        """Points (..., d) of the cube, as points of the box."""
        return self.grid.corner("lower") + self.length * points

    def to_density(self, values: Tensor) -> Tensor:
        """Densities relative to uniform on the cube; float64 has room for any box."""
        return values.double() * self.length**self.grid.dimension

    def from_density(self, values: Tensor) -> Tensor:
        """Densities on the box, float64."""
        return values.double() / self.length**self.grid.dimension

    def from_velocity(self, values: Number) -> Number:
        """Velocities, and distances, in the units of the box."""
        return values * self.length

    def to_potential(self, values: Number) -> Number:
        """Potentials, and ε, in the cube."""
        return values / self.length**2

    def from_potential(self, values: Number) -> Number:
        """Potentials, and ε, in the units of the box squared."""
        return values * self.length**2


@lru_cache(maxsize=64)
def unit_box(grid: Grid) -> UnitBox:
    """The `UnitBox` of a grid, made once: a path asks for it many times."""
    return UnitBox(grid)
