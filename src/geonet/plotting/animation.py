"""Animations of paths that run forwards and backwards: GIF by Pillow, MP4 by ffmpeg."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, sqrt
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryFile
from typing import TypeVar

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from geonet._files import atomic_write
from geonet._progress import report_progress
from geonet._validation import as_path, check_count, check_flag
from geonet.colours import ColourImage, carry_colours
from geonet.errors import FileError, InputError
from geonet.grid import Grid
from geonet.paths import Geodesic
from geonet.plotting.panels import (
    PROJECTIONS,
    plane_grid,
    project,
    to_image_rows,
    to_width_height,
    unit_aspect,
)
from geonet.plotting.style import (
    DEFAULT_STYLE,
    FAINT,
    INK,
    Frames,
    Style,
    check_drawable,
    despine,
    set_height_limits,
)

# Colours of a GIF: half the file size of 256, without visible steps. Images have two more, white
# (index LEVELS) for gaps and labels and INK (LEVELS + 1) for the edges of labels.
LEVELS = 64
STEP, PAUSE = 60, 600  # milliseconds for which a frame is shown, between and at the ends

Item = TypeVar("Item")


@dataclass(frozen=True)
class FrameLimits:
    """Default sizes of the frames of an animation, in pixels.

    Attributes:
        least: least longest side; smaller grids are enlarged.
        most: longest side in a GIF; larger grids are averaged.
        largest: largest size that can be asked for.
        total: pixels of all frames of a GIF, which has about 0.3 bytes for each.
        total_in_colour: the same for pictures in colour, with about 0.6 bytes for each.
        sample: longest side of the picture from which the palette of a frame is chosen.
    """

    least: int = 256
    most: int = 512
    largest: int = 4096
    total: int = 16_000_000
    total_in_colour: int = 8_000_000
    sample: int = 96


LIMITS = FrameLimits()


def animate_geodesics(
    paths: Sequence[Geodesic],
    file: str | Path,
    frames: int = 31,
    grid: Grid | None = None,
    style: Style = DEFAULT_STYLE,
    stamp: bool = True,
    size: int | None = None,
    colours: Sequence[ColourImage] | None = None,
) -> Path:
    """Write one or several paths as a GIF that loops or an MP4 that plays once.

    Several paths follow each other: the target of each is the source of the next, and each gets an
    equal share of the frames. The animation runs forwards and backwards, or only forwards if it
    ends where it begins. It pauses at the ends of the paths.

    Args:
        paths: single pairs on one grid.
        file: output file, .gif or .mp4 (which needs ffmpeg).
        frames: number of times, equally spaced on every path.
        grid: grid of the densities, the path's own by default.
        style: colours and units of densities.
        stamp: whether each frame is labelled with its time; on path k it runs from k to k + 1.
        size: longest side of the frames in pixels. By default it is at least 256; in a GIF it is at
            most 512, or less for many frames, so that the file remains small. At most 4096.
        colours: pictures whose luminance is transported, one for each end, to show them instead.
    """
    file = as_path(file)
    check_animation(file)
    check_count(frames, len(paths) + 1, "frames")
    check_flag(stamp, "stamp")
    if size is not None:
        check_count(size, 16, "size")
        if size > LIMITS.largest:
            raise InputError(f"size is {size}; give at most {LIMITS.largest} pixels.")
    legs = share_frames(frames, len(paths))
    for path in paths:
        _, grid = check_drawable(path, 0.0, grid, style)
    assert grid is not None
    is_loop = len(paths) > 1 and torch.equal(paths[0].source.tensor, paths[-1].target.tensor)
    total = LIMITS.total if colours is None else LIMITS.total_in_colour
    side = choose_side(file, frames, grid, size, total)
    labels = [f"t = {k + t:.2f}" for k, times in enumerate(legs) for t in times]
    labels = labels if stamp else [""] * len(labels)
    report_progress("computing frames")
    if colours is None:
        values = [style.evaluate(path, t, grid) for path, t in zip(paths, legs, strict=True)]
        name = style.label(paths[0])
        pictures = draw_pictures(np.concatenate(values), labels, grid, style, side, name)
    else:
        has_palette = file.suffix.lower() == ".gif"
        pictures = [
            _label_in_colour(_reduce_to_palette(picture) if has_palette else picture, label)
            for picture, label in zip(
                _draw_in_colour(paths, legs, colours, grid, side), labels, strict=True
            )
        ]
    stops = np.cumsum([len(times) for times in legs]) - 1
    return write_animation(pictures, file, [0, *stops.tolist()], is_loop)


def write_sheet(
    paths: Sequence[Geodesic],
    file: Path,
    times: Sequence[float],
    grid: Grid | None = None,
    style: Style = DEFAULT_STYLE,
    colours: Sequence[ColourImage] | None = None,
) -> Path:
    """Write a PNG with the frames of each path in a row.

    Args:
        paths: single pairs on one grid.
        file: output file.
        times: times of the columns.
        grid: grid of the densities, the path's own by default.
        style: colours and units of densities.
        colours: pictures whose luminance is transported, one for each end, to show them instead.
    """
    for path in paths:
        _, grid = check_drawable(path, list(times), grid, style)
    assert grid is not None
    side, legs = (LIMITS.least, LIMITS.most), [list(times)] * len(paths)
    labels = [f"t = {k + t:.2f}" for k in range(len(paths)) for t in times]
    if colours is None:
        values = np.concatenate([style.evaluate(path, times, grid) for path in paths])
        pictures = draw_pictures(values, labels, grid, style, side, style.label(paths[0]))
    else:
        frames = _draw_in_colour(paths, legs, colours, grid, side)
        pictures = [_label_in_colour(*pair) for pair in zip(frames, labels, strict=True)]
    width, height = (length + 4 for length in pictures[0].size)
    sheet = Image.new("RGB", (width * len(times) - 4, height * len(paths) - 4), "white")
    for k, picture in enumerate(pictures):
        row, column = divmod(k, len(times))
        sheet.paste(picture.convert("RGB"), (column * width, row * height))
    with atomic_write(file) as temporary:
        sheet.save(temporary, format="PNG")
    return file


def share_frames(frames: int, paths: int) -> list[list[float]]:
    """Return the times of every path, in [0, 1]; each path but the first omits its start."""
    ends = [round(k * (frames - 1) / paths) for k in range(paths + 1)]
    legs = []
    for first, last in pairwise(ends):
        times = np.linspace(0, 1, last - first + 1).tolist()
        legs.append(times if first == 0 else times[1:])
    return legs


def choose_side(
    file: Path, frames: int, grid: Grid, size: int | None = None, total: int = LIMITS.total
) -> tuple[int, int]:
    """Return the least and the largest longest side of a frame in pixels.

    Args:
        file: file of the animation.
        frames: number of times.
        grid: grid of the densities.
        size: longest side, if it is given.
        total: most pixels of all frames of a GIF.
    """
    if size is not None:
        return size, size
    if file.suffix.lower() != ".gif" or grid.dimension == 1:
        return LIMITS.least, 2 * max(LIMITS.least, *grid.shape)
    planes = [plane_grid(grid, axes) for axes in PROJECTIONS] if grid.dimension == 3 else [grid]
    sizes = [_picture_size(plane, (LIMITS.least, LIMITS.most)) for plane in planes]
    pixels = sum(width * height for width, height in sizes) * max(1, 2 * frames - 2)
    most = int(max(map(max, sizes)) * min(1.0, sqrt(total / pixels)))
    return min(LIMITS.least, most), most


def check_animation(file: Path) -> None:
    """Raise FileError if an animation cannot be written to a file of this name."""
    if file.suffix.lower() not in (".gif", ".mp4"):
        raise FileError(f"{file} is not a .gif or .mp4 file; animations have these two formats.")
    if file.suffix.lower() == ".mp4":
        check_ffmpeg(file)


def write_animation(
    pictures: list[Image.Image],
    file: Path,
    stops: Sequence[int] | None = None,
    is_loop: bool = False,
) -> Path:
    """Write pictures, forwards and backwards, to a .gif or .mp4.

    Args:
        pictures: the frames.
        file: output file.
        stops: indices of the frames at which it pauses; the first and the last by default.
        is_loop: whether the last frame equals the first, so that it only runs forwards.
    """
    last = len(pictures) - 1
    stops = [0, last] if stops is None else stops
    order = list(range(last)) if is_loop else [*range(last + 1), *range(last - 1, 0, -1)]
    with atomic_write(file) as temporary:
        if file.suffix.lower() == ".gif":
            durations = [PAUSE if k in stops else STEP for k in order]
            _write_gif([pictures[k] for k in order], durations, temporary)
        else:
            order.append(last if is_loop else 0)  # it plays once
            repeats = [PAUSE // STEP if k in stops else 1 for k in order]
            shown = [pictures[k] for k, n in zip(order, repeats, strict=True) for _ in range(n)]
            _write_mp4(shown, file, temporary)
    return file


def check_ffmpeg(file: Path) -> None:
    """Raise FileError if ffmpeg, which writes MP4 files, is not installed."""
    if shutil.which("ffmpeg") is None:
        raise FileError(f"{file} needs ffmpeg, which is not installed; install it or write a .gif.")


def draw_pictures(
    values: Frames,
    labels: Sequence[str],
    grid: Grid,
    style: Style,
    side: tuple[int, int],
    name: str = "density",
) -> list[Image.Image]:
    """Draw values (T, *grid.shape) as T pictures with one palette and a label on each.

    The longest side of a picture lies between the two numbers of `side`. Curves are 528 pixels wide
    unless both numbers are equal, and have `name` on the axis of their values.
    """
    if grid.dimension == 1:
        dpi = side[0] / 4.4 if side[0] == side[1] else 120
        return _draw_curves(values, labels, grid, style, name, dpi)
    if grid.dimension == 2:
        levels = _to_levels(values, grid, style, side)
    else:
        projections = [project(values, grid, axes) for axes in PROJECTIONS]
        longest = max(grid.lengths)
        levels = _join_side_by_side(
            [
                _to_levels(frames, plane, style, _scale_side(side, max(plane.lengths) / longest))
                for frames, plane in projections
            ]
        )
    colours = style.colormap()(np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    palette = colours.tobytes() + bytes([255] * 3) + bytes(ImageColor.getrgb(INK))
    pictures = [Image.fromarray(frame) for frame in levels]
    for picture, label in zip(pictures, labels, strict=True):
        picture.putpalette(palette)
        _write_label(picture, label, LEVELS, LEVELS + 1)
    return pictures


def _draw_in_colour(
    paths: Sequence[Geodesic],
    legs: Sequence[list[float]],
    colours: Sequence[ColourImage],
    grid: Grid,
    side: tuple[int, int],
) -> Iterator[Image.Image]:
    """Draw the frames of all paths with the colours of the pictures at their ends, in RGB."""
    size = _picture_size(grid, side)
    height, width = size[::-1] if grid.orientation == "image" else size
    if height < grid.shape[0]:  # compute no more pixels than are shown
        grid = grid.with_shape([height, width])
    ends = [image.resample(grid) for image in colours]
    moments = [
        (path, pair, t)
        for path, times, pair in zip(paths, legs, pairwise(ends), strict=True)
        for t in times
    ]
    for path, pair, t in _count(moments, "drawing"):  # one at a time, to save memory
        frame = carry_colours(path, *pair, t, grid)
        image = Image.fromarray((255 * frame).round().astype(np.uint8))
        yield image.resize(size, Image.Resampling.BICUBIC)


def _label_in_colour(picture: Image.Image, label: str) -> Image.Image:
    """Label a picture in RGB, or one of `_reduce_to_palette`; return it."""
    if picture.mode == "P":
        last = len(picture.getpalette() or ()) // 3 - 1
        _write_label(picture, label, last - 1, last)
    else:
        _write_label(picture, label, "white", INK)
    return picture


def _reduce_to_palette(picture: Image.Image, count: int = 254) -> Image.Image:
    """Return a picture in RGB with its own palette, dithered.

    The last two of its colours are white and INK, for the label.
    """
    sample = picture.copy()
    sample.thumbnail((LIMITS.sample, LIMITS.sample), Image.Resampling.NEAREST)
    chosen = sample.quantize(count, kmeans=1)
    _whiten_palette(chosen)
    chosen.putpalette([*(chosen.getpalette() or ()), *(255,) * 3, *ImageColor.getrgb(INK)])
    return picture.quantize(palette=chosen, dither=Image.Dither.FLOYDSTEINBERG)


def _count(items: Sequence[Item], action: str) -> Iterator[Item]:
    """Yield items, and report "drawing frame 3 of 31" before each of them."""
    for k, item in enumerate(items):
        report_progress(f"{action} frame {k + 1} of {len(items)}")
        yield item


def _draw_curves(
    values: Frames, labels: Sequence[str], grid: Grid, style: Style, name: str, dpi: float
) -> list[Image.Image]:
    """Draw a moving curve, with source and target as outlines; `name` labels the values."""
    figure = Figure(figsize=(4.4, 2.8), dpi=dpi, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axis = figure.subplots()
    x, colour = grid.axes()[0].numpy(), style.colormap()(0.45)
    for end in (values[0], values[-1]):
        axis.plot(x, end, color=FAINT, linewidth=1.2)
    (curve,) = axis.plot(x, values[0], color=colour, linewidth=2)
    area = axis.fill_between(x, values[0], color=colour, alpha=0.2, linewidth=0)
    axis.set(xlabel="x", ylabel=name, xlim=(grid.lower[0], grid.upper[0]))
    set_height_limits(axis, style.scale(values), values)
    text = axis.text(0.02, 0.95, "", transform=axis.transAxes, va="top", color=INK)
    despine(axis)
    pictures: list[Image.Image] = []
    for label, frame in _count(list(zip(labels, values, strict=True)), "drawing"):
        curve.set_ydata(frame)
        area.set_data(x, frame, 0)
        text.set_text(label)
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
        first = pictures[0] if pictures else _reduce_colours(picture)
        pictures.append(picture.quantize(palette=first, dither=Image.Dither.NONE))
    return pictures


def _reduce_colours(picture: Image.Image) -> Image.Image:
    """Return the picture in the palette of all frames, with pure white."""
    reduced = picture.quantize(LEVELS)
    _whiten_palette(reduced)
    return reduced


def _whiten_palette(picture: Image.Image) -> None:
    """Make the nearly white colours of a palette white, as paper is."""
    colours = np.array(picture.getpalette(), np.uint8).reshape(-1, 3)
    colours[colours.min(axis=1) > 245] = 255
    picture.putpalette(colours.tobytes())


def _to_levels(
    values: Frames, grid: Grid, style: Style, side: tuple[int, int]
) -> NDArray[np.uint8]:
    """Scale frames (T, n, m) to levels (T, height, width) of one colour scale, top row first."""
    size = _picture_size(grid, side)
    fractions = np.ma.getdata(style.scale(values).norm(values.ravel())).clip(0, 1)
    levels = (LEVELS - 1) * to_image_rows(fractions.reshape(values.shape), grid).astype(np.float32)
    frames = np.empty((len(levels), *size[::-1]), np.uint8)  # large ones need little more than this
    for k, level in enumerate(_count(list(levels), "drawing")):
        frame = Image.fromarray(level).resize(size, Image.Resampling.BICUBIC)
        frames[k] = np.asarray(frame).round().clip(0, LEVELS - 1)
    return frames


def _scale_side(side: tuple[int, int], factor: float) -> tuple[int, int]:
    return max(1, round(side[0] * factor)), max(1, round(side[1] * factor))


def _picture_size(grid: Grid, side: tuple[int, int]) -> tuple[int, int]:
    """Return width and height in pixels; the longest lies between the two numbers of `side`.

    They are whole multiples of the cells if these fit.
    """
    least, most = side
    if unit_aspect(grid) != 1:  # a very long box is drawn as a square
        longest = min(max(least, *grid.shape), most)
        return longest, longest
    cells = round(grid.max_side / min(grid.spacing))
    longest = ceil(least / cells) * cells
    longest = longest if least < most else most
    pixels = min(longest, most) / grid.max_side
    first, second = (max(1, round(length * pixels)) for length in grid.lengths)
    return to_width_height((first, second), grid)


def _join_side_by_side(parts: Sequence[NDArray[np.uint8]], gap: int = 4) -> NDArray[np.uint8]:
    """Join parts (T, h_i, w_i) along a common bottom line, with white gaps."""
    tallest = max(part.shape[1] for part in parts)
    padded = []
    for part in parts:
        above, right = tallest - part.shape[1], 0 if part is parts[-1] else gap
        padded.append(np.pad(part, ((0, 0), (above, 0), (0, right)), constant_values=LEVELS))
    return np.concatenate(padded, axis=2)


def _write_label(picture: Image.Image, label: str, fill: int | str, edge: int | str) -> None:
    """Write the label into the upper left corner, white with dark edges to suit all colours."""
    font = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans-Bold.ttf"
    ImageDraw.Draw(picture).text(
        (5, 4),
        label,
        fill=fill,
        font=ImageFont.truetype(str(font), 12),
        stroke_width=1,
        stroke_fill=edge,
    )


def _write_gif(pictures: list[Image.Image], durations: list[int], file: Path) -> None:
    first, *rest = pictures
    report_progress(f"compressing {len(pictures)} frames")
    first.save(file, save_all=True, append_images=rest, duration=durations, loop=0, optimize=False)


def _write_mp4(pictures: list[Image.Image], file: Path, temporary: Path) -> None:
    """Write pictures to `temporary`; errors name `file`."""
    height, width = _to_even_rgb(pictures[0]).shape[:2]
    command = _ffmpeg_command(width, height, temporary)
    with TemporaryFile() as log:  # a pipe that is not read would fill up and block ffmpeg
        with Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=log) as ffmpeg:
            assert ffmpeg.stdin is not None
            with suppress(BrokenPipeError):  # ffmpeg has stopped; its message is raised below
                for picture in _count(pictures, "writing"):
                    ffmpeg.stdin.write(_to_even_rgb(picture).tobytes())
                ffmpeg.stdin.close()
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
    if ffmpeg.returncode != 0:
        cause = lines[-1].strip().rstrip(".") if lines else f"exit code {ffmpeg.returncode}"
        raise FileError(f"ffmpeg cannot write {file}: {cause}; write a .gif instead.")


def _ffmpeg_command(width: int, height: int, output: Path) -> list[str]:
    source = f"-f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate 1000/{STEP} -i -"
    # Browsers need yuv420p and the index at the front; the rate factor 18 has no visible loss.
    video = "-c:v libx264 -crf 18 -pix_fmt yuv420p -movflags +faststart"
    # ffmpeg cannot mistake an absolute file name for an option or a protocol.
    return ["ffmpeg", "-y", "-v", "error", *source.split(), *video.split(), str(output.absolute())]


def _to_even_rgb(picture: Image.Image) -> np.ndarray:
    """Return RGB values (height, width, 3) with even sides, which yuv420p needs."""
    pixels = np.asarray(picture.convert("RGB"))
    odd = [(0, side % 2) for side in pixels.shape[:2]]
    return np.pad(pixels, (*odd, (0, 0)), mode="edge")
