"""Values over the box as a figure; the values may be densities or their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from geonet.grid import Grid
from geonet.plotting.style import (
    DPI,
    INK,
    TIME_MAP,
    Frames,
    aspect,
    axis_names,
    colour_bar,
    extent,
    fit_height,
    name_axes,
    name_box,
    quieten,
    tallness,
    upright,
)

ROW = 6  # frames beside each other before the next row begins
MOMENTS = 201  # times in the space × time picture
LOWEST = 1.6  # inches: the name of the colours runs upwards
BETWEEN_TICKS = -9  # points that the name of an axis is set off
PROJECTIONS = ((0, 1), (0, 2), (1, 2))  # axes that a 3D path is shown on

Asked = Callable[[Sequence[float]], Frames]  # at times (T,): values (T, *grid.shape)
Scale = Callable[[Frames], ScalarMappable]


def draw(
    values: Asked, moments: list[float], labels: list[str], grid: Grid, scale: Scale, what: str
) -> Figure:
    """Values at `moments`: in 1D curves and space × time, in 2D frames, in 3D projections.

    Args:
        values: gives the values at any times.
        moments: the times of curves and frames.
        labels: what is written on them, one for each.
        grid: where the values live.
        scale: gives the colours that values are drawn in.
        what: the name of the values, for axes and colour bars.
    """
    if grid.dimension == 1:
        return draw_line(values, moments, labels, grid, scale, what)
    if grid.dimension == 2:
        frames = values(moments)
        return draw_strip(frames, labels, grid, scale(frames), what)[0]
    return draw_projections(values(moments), labels, grid, scale, what)


def draw_line(
    values: Asked, moments: list[float], labels: list[str], grid: Grid, scale: Scale, what: str
) -> Figure:
    """Left the curves, right space × time."""
    figure = Figure(figsize=(9, 3.4), dpi=DPI, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    x, curves = grid.axes()[0].numpy(), values(moments)
    for t, label, curve in zip(moments, labels, curves, strict=True):
        left.plot(x, curve, color=TIME_MAP(t), linewidth=1.6, label=label)
    left.set(xlabel="x", ylabel=what, xlim=(grid.lower[0], grid.upper[0]))
    fit_height(left, scale(curves), curves)
    quieten(left)
    if len(moments) <= ROW:
        left.legend(edgecolor="none", labelcolor=INK, fontsize="small", handlelength=1.2)
    else:
        colour_bar(figure, ScalarMappable(Normalize(0, 1), TIME_MAP), left, "t")
    draw_history(figure, right, values, grid, scale, what)
    return figure


def draw_history(
    figure: Figure, axis: Axes, values: Asked, grid: Grid, scale: Scale, what: str
) -> None:
    """Space × time, with its colour bar."""
    history = values(np.linspace(0, 1, MOMENTS).tolist())
    colours = scale(history)
    image = axis.imshow(history, origin="lower", aspect="auto")
    image.set(norm=colours.norm, cmap=colours.cmap, extent=(grid.lower[0], grid.upper[0], 0, 1))
    axis.set(xlabel="x", ylabel="t", yticks=(0, 0.5, 1))
    quieten(axis)
    colour_bar(figure, colours, axis, what)


def draw_strip(
    frames: Frames,
    labels: list[str],
    grid: Grid,
    colours: ScalarMappable,
    what: str,
    side: float = 1.8,
) -> tuple[Figure, list[Axes]]:
    """Frames (T, n, m) in a strip, broken into rows, on one colour scale; and their T axes.

    Each is `side` inches wide.
    """
    columns = min(len(frames), ROW)
    rows = ceil(len(frames) / columns)
    text = 0.35 + 0.15 * labels[0].count("\n")
    height = rows * (side * tallness(grid) + text) + 0.35
    size = (side * columns + 1.1, max(height, LOWEST))
    figure = Figure(figsize=size, dpi=DPI, layout="compressed")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    shown, empty = axes[: len(frames)], axes[len(frames) :]
    draw_frames(shown, frames, grid, colours)
    label_frames(shown, labels)
    for axis in empty:
        axis.set_axis_off()
    name_box(axes[0], grid)
    if grid.drawn == "plane":
        name_axes(axes[0], ("x", "y"), grid, BETWEEN_TICKS)
    colour_bar(figure, colours, axes, what)
    return figure, shown


def draw_projections(
    values: Frames, labels: list[str], grid: Grid, scale: Scale, what: str
) -> Figure:
    """A row for each projection of values (T, n, m, k): the integral along the third axis."""
    parts = [projection(values, grid, axes) for axes in PROJECTIONS]
    tall, names = [tallness(plane) for _, plane in parts], axis_names(grid)
    name, _, note = what.partition(", ")
    size = (1.7 * len(values) + 1.1, 1.7 * sum(tall) + 1.4)
    figure = Figure(figsize=size, dpi=DPI, layout="compressed")
    axes = figure.subplots(3, len(values), squeeze=False, height_ratios=tall)
    for row, (first, second), (frames, plane) in zip(axes, PROJECTIONS, parts, strict=True):
        colours = scale(frames)
        draw_frames(row, frames, plane, colours)
        name_axes(row[0], (names[first], names[second]), plane)
        label = f"{name} over {names[3 - first - second]}" + (f",\n{note}" if note else "")
        colour_bar(figure, colours, list(row), label)
    label_frames(axes[0], labels)
    return figure


def draw_frames(axes: Sequence[Axes], frames: Frames, grid: Grid, colours: ScalarMappable) -> None:
    """Frames (T, n, m) as images, the way up that their grid is drawn."""
    # What bicubic waves are beside zero must not be magnified: smooth those colours instead.
    stage = "data" if type(colours.norm) is Normalize else "rgba"
    how: dict[str, Any] = {"interpolation": "bicubic", "interpolation_stage": stage}
    for axis, frame in zip(axes, upright(frames, grid), strict=True):
        image = axis.imshow(frame, origin="upper", extent=extent(grid), **how)
        image.set(norm=colours.norm, cmap=colours.cmap)
        axis.set(xticks=(), yticks=(), aspect=aspect(grid))
        quieten(axis)


def label_frames(axes: Sequence[Axes], labels: Sequence[str]) -> None:
    """The title of each frame."""
    for axis, label in zip(axes, labels, strict=True):
        axis.set_title(label, color=INK, fontsize="medium")


def projection(values: Frames, grid: Grid, axes: tuple[int, int]) -> tuple[Frames, Grid]:
    """Frames (T, n, m, k) integrated along the axis not shown, and the grid of the plane."""
    hidden = 3 - sum(axes)
    return values.sum(axis=1 + hidden) * grid.spacing[hidden], plane_of(grid, axes)


def plane_of(grid: Grid, axes: tuple[int, int]) -> Grid:
    """The side of a 3D grid along two of its axes."""
    shape, lower, upper = (
        [getattr(grid, part)[i] for i in axes] for part in ("shape", "lower", "upper")
    )
    return Grid(shape, lower, upper, grid.drawn)
