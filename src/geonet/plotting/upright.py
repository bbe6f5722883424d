"""Which way the axes of a grid run on a picture: see `Grid.drawn`."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from geonet.measures.grid import Grid

LETTERS = ("x", "y", "z")
LONGEST = 6  # times the other side: a longer box would be a sliver, beside a bar without height
Values = TypeVar("Values", bound=np.generic)
Side = TypeVar("Side")


def upright(values: NDArray[Values], grid: Grid) -> NDArray[Values]:
    """Values (..., n, m) as rows from the top of a picture: what `imshow` takes by default."""
    return values if grid.drawn == "image" else values.swapaxes(-1, -2)[..., ::-1, :]


def across_and_along(pair: tuple[Side, Side], grid: Grid) -> tuple[Side, Side]:
    """Of a pair in the order of the axes, what belongs to the picture's width and to its height."""
    first, second = pair
    return (second, first) if grid.drawn == "image" else (first, second)


def placed(points: NDArray[np.floating], grid: Grid) -> NDArray[np.floating]:
    """Points or vectors (..., 2) as they are drawn: to the right, and along the picture's height.

    The latter counts downwards where the rows of an image do: `extent` turns the axis.
    """
    return points[..., ::-1] if grid.drawn == "image" else points


def extent(grid: Grid) -> tuple[float, float, float, float]:
    """The sides of a 2D box: left, right, bottom, top."""
    (left, low), (right, high) = (_two(corner, grid) for corner in (grid.lower, grid.upper))
    return (left, right, high, low) if grid.drawn == "image" else (left, right, low, high)


def tallness(grid: Grid) -> float:
    """Height over width of a picture of a 2D box: the box's own, but a very long box is square."""
    ratio = _ratio(grid)
    return ratio if 1 / LONGEST <= ratio <= LONGEST else 1.0


def aspect(grid: Grid) -> float:
    """How much longer a unit is along the picture's height than across."""
    return tallness(grid) / _ratio(grid)


def equally_long(grid: Grid) -> NDArray[np.float64]:
    """Lengths along the axes of a 2D box that are equally long on a picture, the longest there."""
    return np.array(grid.lengths if aspect(grid) != 1 else (grid.longest, grid.longest))


def axis_names(grid: Grid) -> tuple[str, ...]:
    """Of every axis of the grid: letters for coordinates, numbers for the axes of an array."""
    if grid.drawn == "plane" or grid.dimension == 1:
        return LETTERS[: grid.dimension]
    return tuple(f"axis {i}" for i in range(grid.dimension))


def name_box(axis: Axes, grid: Grid) -> None:
    """Ticks at the corners of a 2D box."""
    lower, upper = (_two(corner, grid) for corner in (grid.lower, grid.upper))
    setters = axis.set_xticks, axis.set_yticks
    for set_ticks, low, high in zip(setters, lower, upper, strict=True):
        set_ticks((low, high), (f"{low:.4g}", f"{high:.4g}"))


def name_axes(axis: Axes, names: tuple[str, str], grid: Grid, labelpad: float = 4) -> None:
    """The names of the two axes that are shown, in their order, beside the picture."""
    across, along = across_and_along(names, grid)
    axis.set_xlabel(across, labelpad=labelpad)
    axis.set_ylabel(along, rotation=0 if len(along) == 1 else 90)


def _ratio(grid: Grid) -> float:
    width, height = _two(grid.lengths, grid)
    return height / width


def _two(corner: tuple[float, ...], grid: Grid) -> tuple[float, float]:
    first, second = corner
    return across_and_along((first, second), grid)
