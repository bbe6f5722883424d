"""Uniform grids of cells on a box, and the scaling of a box to the unit cube."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from geonet._validation import check_choice, check_instance, is_number, short_repr
from geonet.errors import GeonetError, GridError

Orientation = Literal["image", "plane"]


@dataclass(frozen=True)
class Grid:
    """A box [lower, upper] in R^d cut into equal cells; values live at cell centres.

    `Grid(100, 0, 10)` is 1D; a scalar bound serves every axis: `Grid((64, 64), 0, 5)`.

    Attributes:
        shape: number of cells along each axis, (n_1, ..., n_d).
        lower: lower corner of the box.
        upper: upper corner of the box.
        orientation: how pictures show two of its axes. "image": the first down and the second to
            the right, as `imshow` shows an array. "plane": the first to the right and the second
            upwards, as a scatter plot shows x and y. Grids that differ in this alone are equal.
        periodic: for each axis whether its two faces are one and the same, as for angles or
            longitudes; one flag serves every axis. The other axes have walls. Distances along a
            periodic axis are the shorter way round, and positions are taken modulo its length.
    """

    shape: tuple[int, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    orientation: Orientation = field(default="image", compare=False)
    periodic: tuple[bool, ...] = ()

    def __init__(
        self,
        shape: int | Sequence[int],
        lower: float | Sequence[float] = 0.0,
        upper: float | Sequence[float] = 1.0,
        orientation: Orientation = "image",
        periodic: bool | Sequence[bool] = False,
    ):
        cells = _parse_shape(shape)
        low = _parse_corner(lower, len(cells), "lower")
        high = _parse_corner(upper, len(cells), "upper")
        for axis, (a, b) in enumerate(zip(low, high, strict=True)):
            if not (math.isfinite(b - a) and a < b):
                raise GridError(
                    f"The box is empty along axis {axis}: lower {a:g}, upper {b:g}; "
                    "give finite bounds with lower < upper."
                )
            # numbers below 1e-290 have fewer digits
            if (b - a) / cells[axis] < 1e-13 * max(abs(a), abs(b), 1e-290):
                raise GridError(
                    f"The cells along axis {axis} are narrower than rounding errors: {cells[axis]} "
                    f"on [{a:g}, {b:g}]; give fewer cells or a box nearer to zero."
                )
        check_choice(orientation, get_args(Orientation), "orientation", GridError)
        object.__setattr__(self, "shape", cells)
        object.__setattr__(self, "lower", low)
        object.__setattr__(self, "upper", high)
        object.__setattr__(self, "orientation", orientation)
        object.__setattr__(self, "periodic", _parse_periodic(periodic, len(cells)))

    @cached_property
    def dimension(self) -> int:
        """d, the number of axes."""
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    @cached_property
    def lengths(self) -> tuple[float, ...]:
        """Side lengths of the box."""
        return tuple(b - a for a, b in zip(self.lower, self.upper, strict=True))

    @cached_property
    def max_side(self) -> float:
        """The longest side of the box."""
        return max(self.lengths)

    @cached_property
    def spacing(self) -> tuple[float, ...]:
        """Side lengths of a cell."""
        return tuple(length / n for length, n in zip(self.lengths, self.shape, strict=True))

    @cached_property
    def cell_volume(self) -> float:
        """Volume of a cell."""
        return math.prod(self.spacing)

    @cached_property
    def volume(self) -> float:
        """Volume of the box."""
        return math.prod(self.lengths)

    @cached_property
    def is_periodic(self) -> bool:
        """True if any axis is periodic."""
        return any(self.periodic)

    def axes(self) -> list[Tensor]:
        """Return the cell centres along each axis: d tensors (n_i,), float64."""
        return [
            a + h * (torch.arange(n, dtype=torch.float64) + 0.5)
            for a, h, n in zip(self.lower, self.spacing, self.shape, strict=True)
        ]

    def edges(self) -> list[Tensor]:
        """Return the cell edges along each axis: d tensors (n_i + 1,), float64."""
        return [
            torch.linspace(a, b, n + 1, dtype=torch.float64)
            for a, b, n in zip(self.lower, self.upper, self.shape, strict=True)
        ]

    def points(self) -> Tensor:
        """Return the cell centres, a tensor (*shape, d), float64."""
        return torch.stack(torch.meshgrid(*self.axes(), indexing="ij"), dim=-1)

    @property
    def lower_tensor(self) -> Tensor:
        """The lower corner as a tensor (d,), float64."""
        return torch.tensor(self.lower, dtype=torch.float64)

    @property
    def upper_tensor(self) -> Tensor:
        """The upper corner as a tensor (d,), float64."""
        return torch.tensor(self.upper, dtype=torch.float64)

    def with_shape(self, shape: int | Sequence[int]) -> Grid:
        """Return a grid with other cells on the same box; one number serves every axis."""
        if is_number(shape):
            shape = _parse_shape(shape) * self.dimension
        return Grid(shape, self.lower, self.upper, self.orientation, self.periodic)

    def wrap(self, points: Tensor) -> Tensor:
        """Return points (..., d) moved into the box by whole periods along the periodic axes.

        Other coordinates, and points that are inside, do not change.
        """
        if not self.is_periodic:
            return points
        sides = torch.tensor(self.lengths, dtype=torch.float64)
        periods = ((points.detach() - self.lower_tensor) / sides).floor()
        return points - sides * torch.where(torch.tensor(self.periodic), periods, 0.0)

    def shorten(self, displacements: Tensor) -> Tensor:
        """Return displacements (..., d) less whole periods: the shorter way round periodic axes."""
        if not self.is_periodic:
            return displacements
        sides = torch.tensor(self.lengths, dtype=torch.float64)
        periods = (displacements.detach() / sides).round()
        return displacements - sides * torch.where(torch.tensor(self.periodic), periods, 0.0)

    def same_box(self, other: Grid) -> bool:
        """Return whether the grids have the same box and periodic axes, up to rounding."""
        check_grid(other, "other")
        if self.dimension != other.dimension or self.periodic != other.periodic:
            return False
        return all(
            abs(a - b) <= 1e-9 * length
            for ours, theirs in ((self.lower, other.lower), (self.upper, other.upper))
            for a, b, length in zip(ours, theirs, self.lengths, strict=True)
        )

    def __str__(self) -> str:
        cells = "×".join(str(n) for n in self.shape)
        sides = zip(self.lower, self.upper, strict=True)
        text = f"{cells} cells on {'×'.join(f'[{a:g}, {b:g}]' for a, b in sides)}"
        if not self.is_periodic:
            return text
        axes = [str(axis) for axis, flag in enumerate(self.periodic) if flag]
        if len(axes) == self.dimension:
            return f"{text}, periodic"
        return f"{text}, periodic along axis {' and '.join(axes)}"


def check_grid(grid: Grid, name: str = "grid") -> None:
    """Raise GridError if `grid` is not a `Grid`."""
    check_instance(grid, Grid, name, "give a geonet.Grid(shape, lower, upper)", GridError)


def _parse_shape(shape: Any) -> tuple[int, ...]:
    try:
        counts = (shape,) if is_number(shape) else tuple(shape)
    except (TypeError, GeonetError) as error:
        raise GridError(f"shape is {short_repr(shape)}; give (n,), (n, m) or (n, m, k).") from error
    if not counts:
        raise GridError("A grid needs at least one axis; give shape as (n,), (n, m) or (n, m, k).")
    for axis, n in enumerate(counts):
        if not is_number(n) or not n >= 2 or not math.isfinite(n) or int(n) != n:
            raise GridError(
                f"Axis {axis} has {n} cells; give an integer of at least 2 for every axis."
            )
    return tuple(int(n) for n in counts)


def _parse_corner(corner: Any, dimension: int, name: str) -> tuple[float, ...]:
    try:
        values = (corner,) * dimension if is_number(corner) else tuple(corner)
        values = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError) as error:
        raise GridError(
            f"{name} is {short_repr(corner)}; give one number for all axes or one per axis."
        ) from error
    if len(values) != dimension:
        raise GridError(
            f"{name} has {len(values)} entries but the grid has {dimension} axes; "
            "give one number for all axes or one per axis."
        )
    return values


def _parse_periodic(periodic: Any, dimension: int) -> tuple[bool, ...]:
    try:
        flags = (periodic,) * dimension if _is_flag(periodic) else tuple(periodic)
    except (TypeError, GeonetError) as error:
        raise GridError(
            f"periodic is {short_repr(periodic)}; give True, False or one of them per axis."
        ) from error
    if isinstance(periodic, str) or not all(map(_is_flag, flags)):
        raise GridError(
            f"periodic is {short_repr(periodic)}; give True, False or one of them per axis."
        )
    if len(flags) != dimension:
        raise GridError(
            f"periodic has {len(flags)} entries but the grid has {dimension} axes; "
            "give one flag for all axes or one per axis."
        )
    return tuple(bool(flag) for flag in flags)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


Number = TypeVar("Number", float, Tensor)


class UnitBox:
    """The scaling of a grid's box to the unit cube (`to_…`), and back (`from_…`).

    With a the lower corner of the box and L its longest side, x ↦ (x − a)/L multiplies lengths and
    velocities by 1/L, densities by L^d, potentials and the noise ε by 1/L². Solvers work in the
    cube; a box that is not a cube fills its lower corner.

    Attributes:
        grid: the grid.
        length: L, the longest side.
        sides: side lengths of the box in the cube; the longest is one.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        self.length = grid.max_side
        self.sides = tuple(side / self.length for side in grid.lengths)

    @property
    def cells(self) -> Grid:
        """The grid's cells in the cube."""
        return Grid(self.grid.shape, 0.0, self.sides, periodic=self.grid.periodic)

    @property
    def cube(self) -> Grid:
        """The whole cube in the units of the grid; its number of cells has no meaning."""
        lower = self.grid.lower
        return Grid((2,) * len(lower), lower, [a + self.length for a in lower])

    def to_points(self, points: Tensor) -> Tensor:
        """Return points (..., d) of the box as points of the cube."""
        return (points - self.grid.lower_tensor) / self.length

    def from_points(self, points: Tensor) -> Tensor:
        """Return points (..., d) of the cube as points of the box."""
        return self.grid.lower_tensor + self.length * points

    def to_density(self, values: Tensor) -> Tensor:
        """Return densities on the cube, float64, which has the range for any box."""
        return values.double() * self.length**self.grid.dimension

    def from_density(self, values: Tensor) -> Tensor:
        """Return densities on the box, float64."""
        return values.double() / self.length**self.grid.dimension

    def from_length(self, values: Number) -> Number:
        """Return lengths, distances and velocities in the units of the box."""
        return values * self.length

    def to_potential(self, values: Number) -> Number:
        """Return potentials, or ε, in the cube."""
        return values / self.length**2

    def from_potential(self, values: Number) -> Number:
        """Return potentials, or ε, in the squared units of the box."""
        return values * self.length**2


@lru_cache(maxsize=64)
def unit_box(grid: Grid) -> UnitBox:
    """Return the `UnitBox` of a grid from a cache, since a path uses it many times."""
    return UnitBox(grid)
