"""Drawing of values over the box (densities or errors), and the orientation of axes.

`Grid.orientation` decides how a 2D array is shown. "image" puts axis 0 downwards and axis 1 to the
right, as `imshow` does; "plane" puts axis 0 (x) to the right and axis 1 (y) upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from geonet.grid import Grid
from geonet.plotting.style import (
    INK,
    TIME_MAP,
    Frames,
    add_colour_bar,
    despine,
    make_figure,
    set_height_limits,
)

ColourScale = Callable[[Frames], ScalarMappable]
Values = TypeVar("Values", bound=np.generic)
Side = TypeVar("Side")

PROJECTIONS = ((0, 1), (0, 2), (1, 2))  # pairs of axes onto which 3D densities are projected


@dataclass(frozen=True)
class Field:
    """Values over the box at any time, with the colours and the name for figures.

    Attributes:
        evaluate: function of times (T,) with values (T, *grid.shape).
        grid: grid of the values.
        scale: function of values that returns their colour scale.
        name: name of the values, for axes and colour bars.
    """

    evaluate: Callable[[Sequence[float]], Frames]
    grid: Grid
    scale: ColourScale
    name: str


def draw_panels(field: Field, times: list[float], labels: list[str]) -> Figure:
    """Draw a field at times: in 1D curves and space × time, in 2D frames, in 3D projections."""
    if field.grid.dimension == 1:
        return _draw_curves(field, times, labels)
    frames = field.evaluate(times)
    if field.grid.dimension == 2:
        return draw_strip(frames, labels, field.grid, field.scale(frames), field.name)[0]
    return draw_projections(frames, labels, field.grid, field.scale, field.name)


def _draw_curves(field: Field, times: list[float], labels: list[str]) -> Figure:
    """Draw curves on the left and space × time on the right."""
    figure = make_figure(9, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    x, curves = field.grid.axes()[0].numpy(), field.evaluate(times)
    for t, label, curve in zip(times, labels, curves, strict=True):
        left.plot(x, curve, color=TIME_MAP(t), linewidth=1.6, label=label)
    left.set(xlabel="x", ylabel=field.name, xlim=(field.grid.lower[0], field.grid.upper[0]))
    set_height_limits(left, field.scale(curves), curves)
    despine(left)
    if len(times) <= 6:
        left.legend(edgecolor="none", labelcolor=INK, fontsize="small", handlelength=1.2)
    else:
        add_colour_bar(figure, ScalarMappable(Normalize(0, 1), TIME_MAP), left, "t")
    draw_history(field, figure, right)
    return figure


def draw_history(field: Field, figure: Figure, axis: Axes) -> None:
    """Draw a 1D field over space × time, with a colour bar."""
    history = field.evaluate(np.linspace(0, 1, 201).tolist())
    colours, grid = field.scale(history), field.grid
    image = axis.imshow(history, origin="lower", aspect="auto")
    image.set(norm=colours.norm, cmap=colours.cmap, extent=(grid.lower[0], grid.upper[0], 0, 1))
    axis.set(xlabel="x", ylabel="t", yticks=(0, 0.5, 1))
    despine(axis)
    add_colour_bar(figure, colours, axis, field.name)


def draw_strip(
    frames: Frames,
    labels: list[str],
    grid: Grid,
    colours: ScalarMappable,
    name: str,
    width: float = 1.8,
    names: tuple[str, str] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Draw frames (T, n, m), each `width` inches wide, in rows of six on one colour scale.

    Returns:
        The figure, and the axes of the frames (T,).
    """
    columns = min(len(frames), 6)
    rows = ceil(len(frames) / columns)
    text = 0.35 + 0.15 * labels[0].count("\n")
    height = rows * (width * aspect_ratio(grid) + text) + 0.35
    # The label of the colour bar runs upwards and needs 1.6 inches.
    figure = make_figure(width * columns + 1.1, max(height, 1.6), layout="compressed")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    shown, empty = axes[: len(frames)], axes[len(frames) :]
    draw_frames(shown, frames, grid, colours)
    label_frames(shown, labels)
    for axis in empty:
        axis.set_axis_off()
    label_box(axes[0], grid, names)
    add_colour_bar(figure, colours, axes, name)
    return figure, shown


def draw_projections(
    values: Frames, labels: list[str], grid: Grid, scale: ColourScale, name: str
) -> Figure:
    """Draw a row for each projection of values (T, n, m, k): integrals along the third axis."""
    projections = [project(values, grid, axes) for axes in PROJECTIONS]
    heights, names = [aspect_ratio(plane) for _, plane in projections], axis_names(grid)
    name, _, note = name.partition(", ")
    figure = make_figure(1.7 * len(values) + 1.1, 1.7 * sum(heights) + 1.4, layout="compressed")
    axes = figure.subplots(3, len(values), squeeze=False, height_ratios=heights)
    for row, (first, second), (frames, plane) in zip(axes, PROJECTIONS, projections, strict=True):
        colours = scale(frames)
        draw_frames(row, frames, plane, colours)
        _label_axes(row[0], (names[first], names[second]), plane, labelpad=4)
        label = f"{name} over {names[3 - first - second]}" + (f",\n{note}" if note else "")
        add_colour_bar(figure, colours, list(row), label)
    label_frames(axes[0], labels)
    return figure


def project(values: Frames, grid: Grid, axes: tuple[int, int]) -> tuple[Frames, Grid]:
    """Integrate frames (T, n, m, k) along the third axis; return them with their 2D grid."""
    hidden = 3 - sum(axes)
    return values.sum(axis=1 + hidden) * grid.spacing[hidden], plane_grid(grid, axes)


def plane_grid(grid: Grid, axes: tuple[int, int]) -> Grid:
    """Return the 2D grid of two axes of a 3D grid."""
    first, second = axes
    return Grid(
        (grid.shape[first], grid.shape[second]),
        (grid.lower[first], grid.lower[second]),
        (grid.upper[first], grid.upper[second]),
        grid.orientation,
        (grid.periodic[first], grid.periodic[second]),
    )


def draw_frames(axes: Sequence[Axes], frames: Frames, grid: Grid, colours: ScalarMappable) -> None:
    """Draw frames (T, n, m) as images, one on each axis."""
    # Bicubic interpolation overshoots next to zero. Norms with a steep start would magnify that,
    # so interpolate their colours instead of their data.
    stage = "data" if type(colours.norm) is Normalize else "rgba"
    for axis, frame in zip(axes, to_image_rows(frames, grid), strict=True):
        image = axis.imshow(
            frame,
            origin="upper",
            extent=image_extent(grid),
            interpolation="bicubic",
            interpolation_stage=stage,
        )
        image.set(norm=colours.norm, cmap=colours.cmap)
        axis.set(xticks=(), yticks=(), aspect=unit_aspect(grid))
        despine(axis)


def label_frames(axes: Sequence[Axes], labels: Sequence[str]) -> None:
    """Write a title above each frame."""
    for axis, label in zip(axes, labels, strict=True):
        axis.set_title(label, color=INK, fontsize="medium")


def label_box(axis: Axes, grid: Grid, names: tuple[str, str] | None = None) -> None:
    """Put ticks at the corners of a 2D box and name its axes; images have no names by default."""
    lower, upper = (to_width_height(corner, grid) for corner in (grid.lower, grid.upper))
    for set_ticks, low, high in zip((axis.set_xticks, axis.set_yticks), lower, upper, strict=True):
        set_ticks((low, high), (f"{low:.4g}", f"{high:.4g}"))
    if names is None and grid.orientation == "plane":
        names = "x", "y"
    if names is not None:
        _label_axes(axis, names, grid, labelpad=-9)  # between the two ticks


def _label_axes(axis: Axes, names: tuple[str, str], grid: Grid, labelpad: float) -> None:
    across, upwards = to_width_height(names, grid)
    axis.set_xlabel(across, labelpad=labelpad)
    axis.set_ylabel(upwards, rotation=0 if len(upwards) == 1 else 90)


def axis_names(grid: Grid) -> tuple[str, ...]:
    """Return x, y, z for coordinates, or "axis 0", "axis 1", … for arrays."""
    if grid.orientation == "plane" or grid.dimension == 1:
        return ("x", "y", "z")[: grid.dimension]
    return tuple(f"axis {i}" for i in range(grid.dimension))


# ---- orientation


def to_image_rows(values: NDArray[Values], grid: Grid) -> NDArray[Values]:
    """Return values (..., n, m) with the rows from top to bottom, as `imshow` expects them."""
    return values if grid.orientation == "image" else values.swapaxes(-1, -2)[..., ::-1, :]


def to_plot_xy(points: NDArray[np.floating], grid: Grid) -> NDArray[np.floating]:
    """Return points or vectors (..., 2) in the order x, y of the plot.

    On images y counts downwards, as their axis does (see `image_extent`).
    """
    return points[..., ::-1] if grid.orientation == "image" else points


def unroll_tracks(tracks: NDArray[np.floating], grid: Grid) -> NDArray[np.floating]:
    """Return tracks (times, N, d) without jumps at the seams of periodic axes.

    Every step goes the shorter way round; positions may then lie outside the box.
    """
    if not grid.is_periodic:
        return tracks
    steps = grid.shorten(torch.from_numpy(np.diff(tracks, axis=0))).numpy()
    return np.concatenate([tracks[:1], tracks[0] + steps.cumsum(0)])


def to_width_height(pair: Iterable[Side], grid: Grid) -> tuple[Side, Side]:
    """Reorder a pair of values of the two axes to width and height of the picture."""
    first, second = pair
    return (second, first) if grid.orientation == "image" else (first, second)


def image_extent(grid: Grid) -> tuple[float, float, float, float]:
    """Return left, right, bottom and top of a 2D box."""
    left, low = to_width_height(grid.lower, grid)
    right, high = to_width_height(grid.upper, grid)
    return (left, right, high, low) if grid.orientation == "image" else (left, right, low, high)


def aspect_ratio(grid: Grid) -> float:
    """Return height over width of the picture of a 2D box; boxes longer than 6:1 are square."""
    ratio = _box_ratio(grid)
    return ratio if 1 / 6 <= ratio <= 6 else 1.0


def picture_sides(grid: Grid) -> tuple[float, float]:
    """Return height and width of the picture of a 2D box in units of the box."""
    if unit_aspect(grid) != 1:
        return grid.max_side, grid.max_side
    width, height = to_width_height(grid.lengths, grid)
    return height, width


def unit_aspect(grid: Grid) -> float:
    """Return the height of a unit over its width on the picture."""
    return aspect_ratio(grid) / _box_ratio(grid)


def reference_lengths(grid: Grid) -> NDArray[np.float64]:
    """Return lengths along the two axes that appear as long as the longer side of the picture."""
    return np.array(grid.lengths if unit_aspect(grid) != 1 else (grid.max_side, grid.max_side))


def _box_ratio(grid: Grid) -> float:
    width, height = to_width_height(grid.lengths, grid)
    return height / width
