"""Figures and GIFs of a path. Nothing here touches pyplot or any other global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from PIL import Image

from geonet.errors import FileError, InputError, UnavailableError
from geonet.files import written_atomically
from geonet.geodesic import Geodesic, Times, check_times
from geonet.measures.grid import Grid

Frames = NDArray[np.floating]

DPI = 150
DENSITY_MAP = matplotlib.colormaps["magma"]  # even steps of lightness, also for the colour-blind
TIME_MAP = matplotlib.colormaps["viridis"].resampled(256)
INK, FAINT = "#333333", "#c8c8c8"
ROW = 6  # frames beside each other before the next row begins
MOMENTS = 201  # times in the space × time picture
GIF_SIDE = 256  # pixels along the longest side, at least
LEVELS = 64  # colours of a GIF: half the bytes of 256, and the eye sees no steps
GAP = 4  # pixels between the projections of a 3D path
STEP, PAUSE = 60, 600  # milliseconds a frame stands, between and at the ends
PROJECTIONS = ((0, 1), (0, 2), (1, 2))  # axes that a 3D path is shown on
NAMES = ("x", "y", "z")


def plot_geodesic(path: Geodesic, times: Times, grid: Grid | None = None) -> Figure:
    """The path at `times`: in 1D curves and space × time, in 2D frames, in 3D projections."""
    moments, grid = _check(path, times, grid)
    if grid.dimension == 1:
        figure = _plot_line(path, moments, grid)
    elif grid.dimension == 2:
        figure = _plot_plane(path, moments, grid)
    elif grid.dimension == 3:
        figure = _plot_space(path, moments, grid)
    else:
        raise _too_many_dimensions(grid)
    figure.suptitle(_title(path), color=INK, fontsize="medium")
    return figure


def plot_together(
    paths: Mapping[str, Geodesic], times: Times = (0.0, 0.25, 0.5, 0.75, 1.0)
) -> Figure:
    """Paths in 1D or 2D under each other, a row each with its name, at the same times."""
    moments = check_times(times)[0].tolist()
    heights = [_row_height(path) for path in paths.values()]
    size = (1.7 * len(moments) + 0.4, sum(1.7 * height + 0.1 for height in heights) + 0.2)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = figure.subplots(len(paths), len(moments), squeeze=False, height_ratios=heights)
    for row, (name, path) in zip(axes, paths.items(), strict=True):
        draw = _draw_curves if path.grid.dimension == 1 else _draw_frames
        draw(row, path.density(moments).numpy(), path.grid)
        row[0].set_ylabel(name, color=INK)
    for axis, t in zip(axes[0], moments, strict=True):
        axis.set_title(_moment(t), color=INK, fontsize="medium")
    return figure


def animate_geodesic(path: Geodesic, file: Path, frames: int, grid: Grid | None = None) -> Path:
    """Write a GIF of `frames` moments that runs forth and back for ever."""
    if file.suffix.lower() != ".gif":
        raise FileError(f"{file} does not end in .gif; an animation is written as a GIF.")
    if not isinstance(frames, int) or frames < 2:
        raise InputError(f"frames is {frames}; an animation needs a whole number, at least 2.")
    moments, grid = _check(path, np.linspace(0, 1, frames), grid)
    values = path.density(moments, grid).numpy()
    if grid.dimension == 1:
        pictures = _line_pictures(path, values, moments, grid)
    elif grid.dimension == 2:
        pictures = _coloured(_scaled_up(values, grid))
    elif grid.dimension == 3:
        parts = [_scaled_up(*_projection(values, grid, axes)) for axes in PROJECTIONS]
        pictures = _coloured(_side_by_side(parts))
    else:
        raise _too_many_dimensions(grid)
    _write_gif(pictures, file)
    return file


# ---- figures


def _row_height(path: Geodesic) -> float:
    """Height over width of one frame."""
    _, grid = _check(path, 0.0, None)
    if grid.dimension > 2:
        raise InputError(f"A path is {grid.dimension}D; rows are made in one or two dimensions.")
    return 0.7 if grid.dimension == 1 else grid.lengths[1] / grid.lengths[0]


def _plot_line(path: Geodesic, moments: list[float], grid: Grid) -> Figure:
    """Left the curves, right space × time."""
    figure = Figure(figsize=(9, 3.4), dpi=DPI, layout="constrained")
    curves, history = figure.subplots(1, 2, width_ratios=(1, 1.1))
    x = grid.axes()[0].numpy()
    for t, frame in zip(moments, path.density(moments, grid).numpy(), strict=True):
        curves.plot(x, frame, color=TIME_MAP(0.92 * t), linewidth=1.6, label=_moment(t))
    curves.set(xlabel="x", ylabel="density", xlim=(grid.lower[0], grid.upper[0]))
    if curves.dataLim.ymin >= 0:  # a negative density, an error of its solver, stays visible
        curves.set_ylim(bottom=0)
    quieten(curves)
    if len(moments) <= ROW:
        curves.legend(frameon=False, labelcolor=INK, fontsize="small", handlelength=1.2)
    else:
        scale = ScalarMappable(Normalize(0, 1), TIME_MAP)
        _colour_bar(figure, scale, curves, "t")
    values = path.density(np.linspace(0, 1, MOMENTS), grid).numpy()
    image = history.imshow(
        values.clip(min=0),
        origin="lower",
        aspect="auto",
        cmap=DENSITY_MAP,
        extent=(grid.lower[0], grid.upper[0], 0, 1),
    )
    history.set(xlabel="x", ylabel="t", yticks=(0, 0.5, 1))
    quieten(history)
    _colour_bar(figure, image, history, "density")
    return figure


def _plot_plane(path: Geodesic, moments: list[float], grid: Grid) -> Figure:
    """A strip of frames, broken into rows, on one colour scale."""
    columns = min(len(moments), ROW)
    rows = ceil(len(moments) / columns)
    tall = grid.lengths[1] / grid.lengths[0]
    size = (1.8 * columns + 1.1, rows * (1.8 * tall + 0.35) + 0.5)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
    frames = path.density(moments, grid).numpy()
    image = _draw_frames(axes[: len(moments)], frames, grid)
    for axis, t in zip(axes, moments, strict=False):
        axis.set_title(_moment(t), color=INK, fontsize="medium")
    for axis in axes[len(moments) :]:
        axis.set_axis_off()
    _name_box(axes[0], grid)
    _colour_bar(figure, image, axes, "density")
    return figure


def _plot_space(path: Geodesic, moments: list[float], grid: Grid) -> Figure:
    """A row for each projection: the density summed along the third axis."""
    values = path.density(moments, grid).numpy()
    parts = [_projection(values, grid, axes) for axes in PROJECTIONS]
    tall = [plane.lengths[1] / plane.lengths[0] for _, plane in parts]
    size = (1.7 * len(moments) + 1.1, 1.7 * sum(tall) + 1.4)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = figure.subplots(3, len(moments), squeeze=False, height_ratios=tall)
    for row, (first, second), (frames, plane) in zip(axes, PROJECTIONS, parts, strict=True):
        image = _draw_frames(row, frames, plane)
        row[0].set_xlabel(NAMES[first], color=INK)
        row[0].set_ylabel(NAMES[second], color=INK, rotation=0)
        _colour_bar(figure, image, list(row), f"over {NAMES[3 - first - second]}")
    for axis, t in zip(axes[0], moments, strict=True):
        axis.set_title(_moment(t), color=INK, fontsize="medium")
    return figure


def _draw_frames(axes: Sequence[Axes], frames: Frames, grid: Grid) -> ScalarMappable:
    """Frames (T, n, m) as images on one scale, which is given back for the colour bar."""
    scale = ScalarMappable(Normalize(0, float(frames.max())), DENSITY_MAP)
    extent = (grid.lower[0], grid.upper[0], grid.lower[1], grid.upper[1])
    for axis, frame in zip(axes, frames, strict=True):
        image = axis.imshow(frame.T, origin="lower", extent=extent, interpolation="bicubic")
        image.set(norm=scale.norm, cmap=scale.cmap)
        axis.set(xticks=(), yticks=())
        quieten(axis)
    return scale


def _draw_curves(axes: Sequence[Axes], frames: Frames, grid: Grid) -> None:
    """Frames (T, n) as filled curves with a common height."""
    x = grid.axes()[0].numpy()
    for axis, frame in zip(axes, frames, strict=True):
        axis.fill_between(x, frame, color=DENSITY_MAP(0.45), alpha=0.25, linewidth=0)
        axis.plot(x, frame, color=DENSITY_MAP(0.45), linewidth=1.4)
        axis.set(xlim=(grid.lower[0], grid.upper[0]), xticks=(), yticks=())
        axis.set_ylim(0, 1.05 * float(frames.max()))
        quieten(axis)


def quieten(axis: Axes) -> None:
    """Thin grey frame and grey text: the density is what should be seen."""
    for name, spine in axis.spines.items():
        spine.set(color=FAINT, linewidth=0.8)
        spine.set_visible(bool(axis.images) or name in ("left", "bottom"))
    axis.tick_params(color=FAINT, labelcolor=INK, labelsize="small")
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)


def _name_box(axis: Axes, grid: Grid) -> None:
    """Ticks at the corners of the box, on one frame for all."""
    for set_ticks, low, high in zip(
        (axis.set_xticks, axis.set_yticks), grid.lower, grid.upper, strict=True
    ):
        set_ticks((low, high), (f"{low:.4g}", f"{high:.4g}"))


def _colour_bar(
    figure: Figure | SubFigure,
    image: ScalarMappable,
    axes: Axes | list[Axes],
    label: str,
) -> None:
    bar = figure.colorbar(image, ax=axes, label=label, fraction=0.05, aspect=25, pad=0.02)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(color=FAINT, labelcolor=INK, labelsize="small")
    bar.ax.yaxis.label.set_color(INK)


# ---- animations


def _line_pictures(
    path: Geodesic, values: Frames, moments: list[float], grid: Grid
) -> list[Image.Image]:
    """A moving curve, with source and target as outlines."""
    figure = Figure(figsize=(4.4, 2.8), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axis = figure.subplots()
    x = grid.axes()[0].numpy()
    for end in (values[0], values[-1]):
        axis.plot(x, end, color=FAINT, linewidth=1.2)
    (curve,) = axis.plot(x, values[0], color=DENSITY_MAP(0.45), linewidth=2)
    area = axis.fill_between(x, values[0], color=DENSITY_MAP(0.45), alpha=0.2, linewidth=0)
    axis.set(xlabel="x", ylabel="density", xlim=(grid.lower[0], grid.upper[0]))
    axis.set_ylim(0, 1.05 * float(values.max()))
    label = axis.text(0.02, 0.95, "", transform=axis.transAxes, va="top", color=INK)
    quieten(axis)
    pictures: list[Image.Image] = []
    for t, frame in zip(moments, values, strict=True):
        curve.set_ydata(frame)
        area.set_data(x, frame, 0)
        label.set_text(f"t = {t:.2f}")
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
        first = pictures[0] if pictures else _with_palette(picture)
        pictures.append(picture.quantize(palette=first, dither=Image.Dither.NONE))
    return pictures


def _with_palette(picture: Image.Image) -> Image.Image:
    """The picture in a palette for all frames (colours of their own would flicker), white kept."""
    reduced = picture.quantize(LEVELS)
    colours = np.array(reduced.getpalette(), np.uint8).reshape(-1, 3)
    colours[colours.min(axis=1) > 245] = 255
    reduced.putpalette(colours.tobytes())
    return reduced


def _scaled_up(values: Frames, grid: Grid) -> NDArray[np.uint8]:
    """Frames (T, n, m) as levels (T, height, width) of one scale, y downwards."""
    finest = min(grid.spacing)
    factor = ceil(GIF_SIDE / round(max(grid.lengths) / finest))
    width, height = (round(length / finest * factor) for length in grid.lengths)
    levels = values.clip(min=0) * ((LEVELS - 1) / float(values.max()))
    frames = [
        Image.fromarray(frame.T[::-1].astype(np.float32)).resize(
            (width, height), Image.Resampling.BICUBIC
        )
        for frame in levels
    ]
    return np.stack([np.asarray(frame).round().clip(0, LEVELS - 1) for frame in frames]).astype(
        np.uint8
    )


def _side_by_side(parts: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Parts (T, h_i, w_i) beside each other, standing on one line, with gaps of level LEVELS."""
    tallest = max(part.shape[1] for part in parts)
    padded = []
    for part in parts:
        above, right = tallest - part.shape[1], 0 if part is parts[-1] else GAP
        padded.append(np.pad(part, ((0, 0), (above, 0), (0, right)), constant_values=LEVELS))
    return np.concatenate(padded, axis=2)


def _coloured(frames: NDArray[np.uint8]) -> list[Image.Image]:
    """Levels (T, height, width) as pictures; the colour map itself is their palette."""
    colours = DENSITY_MAP(np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    palette = colours.tobytes() + bytes([255] * 3)  # and white for gaps
    pictures = [Image.fromarray(frame) for frame in frames]
    for picture in pictures:
        picture.putpalette(palette)
    return pictures


def _write_gif(pictures: list[Image.Image], file: Path) -> None:
    loop = pictures + pictures[-2:0:-1]
    durations = [STEP] * len(loop)
    durations[0] = durations[len(pictures) - 1] = PAUSE
    with written_atomically(file) as temporary:
        loop[0].save(
            temporary,
            save_all=True,
            append_images=loop[1:],
            duration=durations,
            loop=0,
            optimize=False,
        )


# ---- both


def _check(path: Geodesic, times: Times, grid: Grid | None) -> tuple[list[float], Grid]:
    if path.batch:
        raise InputError(
            f"This path holds {path.batch[0]} pairs; plot one pair: "
            "geonet.geodesic(source[0], target[0], ...)."
        )
    return check_times(times)[0].tolist(), grid or path.grid


def _projection(values: Frames, grid: Grid, axes: tuple[int, int]) -> tuple[Frames, Grid]:
    """Frames (T, n, m, k) integrated along the axis not shown, and the grid of the plane."""
    hidden = 3 - sum(axes)
    shape, lower, upper = (
        [getattr(grid, part)[i] for i in axes] for part in ("shape", "lower", "upper")
    )
    plane = Grid(shape, lower, upper)
    return values.sum(axis=1 + hidden) * grid.spacing[hidden], plane


def _title(path: Geodesic) -> str:
    try:
        return f"{path.solver}   W₂ = {float(path.distance):.4g}"
    except UnavailableError:
        return path.solver


def _moment(t: float) -> str:
    return f"t = {t:.3g}"


def _too_many_dimensions(grid: Grid) -> InputError:
    return InputError(
        f"The path is {grid.dimension}D; pictures are made in one to three dimensions."
    )
