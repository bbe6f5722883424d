"""Figures and animations of barycenters: the densities around them, rows, tables and triangles."""

from __future__ import annotations

from itertools import cycle
from math import ceil
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from geonet._validation import check_count, check_instance
from geonet.barycenters import Barycenter, Barycenters
from geonet.errors import InputError
from geonet.grid import Grid
from geonet.plotting.animation import (
    check_animation,
    choose_side,
    draw_pictures,
    write_animation,
)
from geonet.plotting.panels import (
    aspect_ratio,
    draw_frames,
    draw_projections,
    label_frames,
    project,
)
from geonet.plotting.style import (
    DEFAULT_STYLE,
    INK,
    Frames,
    Style,
    add_colour_bar,
    check_style,
    despine,
    make_figure,
    set_height_limits,
)
from geonet.weights import Floats, find_table, position_of

COLUMNS = 6  # densities in a row


def plot_barycenter(one: Barycenter, style: Style = DEFAULT_STYLE) -> Figure:
    """Draw the densities with their weights, and the barycenter below them.

    In 1D they are curves of one figure, in 3D columns of projections.

    Args:
        one: the barycenter.
        style: colours and units.
    """
    check_instance(one, Barycenter, "one", "give the result of geonet.barycenter")
    check_style(style)
    grid = one.grid
    inputs, centre = one.densities.numpy(style.mass), one.density.numpy(style.mass)
    labels = [f"w = {weight:.3g}" for weight in one._weights.tolist()]
    if grid.dimension == 1:
        return _draw_curves(inputs, centre, labels, grid, style)
    if grid.dimension == 3:
        values = np.concatenate([inputs, centre[None]])
        return draw_projections(values, [*labels, "barycenter"], grid, style.scale, "density")
    columns = min(len(inputs), COLUMNS)
    rows, ratio = ceil(len(inputs) / columns), aspect_ratio(grid)
    height = rows * (1.5 * ratio + 0.35) + 3.2 * ratio + 0.5
    figure = make_figure(max(1.5 * columns, 3.2) + 1.1, height)
    cells = figure.add_gridspec(rows + 1, columns, height_ratios=(*(1,) * rows, 2))
    axes = [figure.add_subplot(cells[divmod(k, columns)]) for k in range(len(inputs))]
    axes.append(figure.add_subplot(cells[rows, :]))
    values = np.concatenate([inputs, centre[None]])
    colours = style.scale(values)
    draw_frames(axes, values, grid, colours)
    label_frames(axes, [*labels, "barycenter"])
    add_colour_bar(figure, colours, axes, "density")
    return figure


def _draw_curves(
    inputs: Frames, centre: Frames, labels: list[str], grid: Grid, style: Style
) -> Figure:
    """Draw densities as thin curves and the barycenter as a filled one."""
    figure = make_figure(5.6, 3.4)
    axis, x = figure.subplots(), grid.axes()[0].numpy()
    colours = cycle(matplotlib.colormaps["tab10"].colors)  # pyright: ignore[reportAttributeAccessIssue]
    for values, label, colour in zip(inputs, labels, colours, strict=False):
        axis.plot(x, values, color=colour, linewidth=1.0, label=label)
    colour = style.colormap()(0.45)
    axis.plot(x, centre, color=colour, linewidth=2.0, label="barycenter")
    axis.fill_between(x, centre, color=colour, alpha=0.2, linewidth=0)
    axis.set(xlabel="x", ylabel="density", xlim=(grid.lower[0], grid.upper[0]))
    everything = np.concatenate([inputs, centre[None]])
    set_height_limits(axis, style.scale(everything), everything)
    despine(axis)
    axis.legend(edgecolor="none", labelcolor=INK, fontsize="small", handlelength=1.2)
    return figure


def plot_barycenters(many: Barycenters, style: Style = DEFAULT_STYLE) -> Figure:
    """Draw many barycenters: one axis of weights as a row, two as a table, or as a triangle.

    A complete table of three densities (`geonet.weights.make_table`) is drawn as a triangle.

    Args:
        many: the barycenters.
        style: colours and units; 3D densities are projected onto their first two axes.
    """
    check_instance(many, Barycenters, "many", "give the result of geonet.barycenter")
    check_style(style)
    if len(many.shape) > 2:
        raise InputError(
            f"These are {' × '.join(map(str, many.shape))} barycenters; draw one table of them, as "
            f"in barycenters{'[0]' * (len(many.shape) - 2)}.plot()."
        )
    values = many.density.numpy(style.mass).reshape(-1, *many.grid.shape)
    grid = many.grid
    if grid.dimension == 3:
        values, grid = project(values, grid, (0, 1))
    ratio = 0.7 if grid.dimension == 1 else aspect_ratio(grid)
    weights = np.asarray(many.weights)
    if len(many.shape) == 1 and weights.shape[-1] == 3 and find_table(weights):
        figure, axes = _place_triangle(weights, ratio)
    else:
        rows, columns = many.shape if len(many.shape) == 2 else (1, len(many))
        side = 1.1 if columns > 3 else 1.5
        figure = make_figure(side * columns + 0.1, side * ratio * rows + 0.1)
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, hspace=0, wspace=0)  # pyright: ignore
        axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    _draw_panels(axes, values, grid, style)
    return figure


def _place_triangle(weights: Floats, ratio: float) -> tuple[Figure, list[Axes]]:
    """Return axes at the positions of weights (M, 3), with the first density at the top."""
    size = find_table(weights) or 2
    width, height = 1.1 * size + 0.1, 1.1 * ratio * size + 0.1
    figure = make_figure(width, height)
    figure.set_layout_engine("none")
    panel = 1.04 / width, 1.04 * ratio / height
    positions = position_of(weights)
    low, high = positions.min(0), positions.max(0)
    places = (positions - low) / (high - low)
    axes = []
    for x, y in places.tolist():
        left, bottom = x * (1 - panel[0]), (1 - y) * (1 - panel[1])
        axes.append(figure.add_axes((left, bottom, *panel)))
    return figure, axes


def _draw_panels(axes: list[Axes], values: Frames, grid: Grid, style: Style) -> None:
    """Draw values (M, *grid.shape), one on each axis, on one scale."""
    scale = style.scale(values)
    if grid.dimension == 2:
        draw_frames(axes, values, grid, scale)
        return
    x, colour = grid.axes()[0].numpy(), style.colormap()(0.45)
    for axis, curve in zip(axes, values, strict=True):
        axis.fill_between(x, curve, color=colour, alpha=0.25, linewidth=0)
        axis.plot(x, curve, color=colour, linewidth=1.4)
        set_height_limits(axis, scale, values)
        axis.set(xlim=(grid.lower[0], grid.upper[0]), xticks=(), yticks=())
        despine(axis)


# ---- Animations


def animate_barycenter(
    one: Barycenter, file: Path, frames: int = 21, style: Style = DEFAULT_STYLE
) -> Path:
    """Write an animation that runs from each density to the barycenter and on to the next one.

    Args:
        one: the barycenter.
        file: output file, .gif or .mp4 (which needs ffmpeg).
        frames: number of frames between a density and the barycenter.
        style: colours and units.
    """
    check_instance(one, Barycenter, "one", "give the result of geonet.barycenter")
    check_style(style)
    check_animation(file)
    check_count(frames, 2, "frames")
    times = np.linspace(0, 1, frames)
    values, labels = [], []
    for k, weight in enumerate(one._weights.tolist()):
        away = style.evaluate(one._path_to(k), times, one.grid)  # from the barycenter
        legs = [away[::-1]] if k == 0 else [away[1:]]
        if 0 < k < len(one._weights) - 1:
            legs.append(away[-2::-1])
        values += legs
        labels += [f"density {k + 1}, w = {weight:.3g}"] * sum(map(len, legs))
    side = choose_side(file, len(labels), one.grid)
    pictures = draw_pictures(np.concatenate(values), labels, one.grid, style, side)
    return write_animation(pictures, file)


def animate_barycenters(many: Barycenters, file: Path, style: Style = DEFAULT_STYLE) -> Path:
    """Write an animation that runs through the table, every other row backwards, and back.

    Args:
        many: the barycenters.
        file: output file, .gif or .mp4 (which needs ffmpeg).
        style: colours and units.
    """
    check_instance(many, Barycenters, "many", "give the result of geonet.barycenter")
    check_style(style)
    check_animation(file)
    order = _snake(many.shape)
    if len(order) < 2:
        raise InputError("There is one barycenter; an animation needs two or more.")
    values = many.density.numpy(style.mass).reshape(-1, *many.grid.shape)[order]
    weights = np.asarray(many.weights).reshape(len(order), -1)[order]
    labels = [", ".join(f"{weight:.2f}" for weight in row) for row in weights]
    if weights.shape[1] > 6:
        labels = [""] * len(order)
    side = choose_side(file, len(labels), many.grid)
    return write_animation(draw_pictures(values, labels, many.grid, style, side), file)


def _snake(shape: tuple[int, ...]) -> list[int]:
    """Return flat indices of a table in which every other row runs backwards."""
    rows = np.arange(np.prod(shape)).reshape(-1, shape[-1])
    rows[1::2] = rows[1::2, ::-1]
    return rows.ravel().tolist()
