"""Animations of a path that run forwards and backwards: GIF by Pillow, MP4 by ffmpeg."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryFile

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from geonet._files import atomic_write
from geonet._validation import as_path, check_count, check_flag
from geonet.errors import FileError
from geonet.grid import Grid
from geonet.paths import Geodesic
from geonet.plotting.panels import (
    PROJECTIONS,
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


def animate_geodesic(
    path: Geodesic,
    file: str | Path,
    frames: int = 31,
    grid: Grid | None = None,
    style: Style = DEFAULT_STYLE,
    stamp: bool = True,
) -> Path:
    """Write a path, forwards and backwards, as a GIF that loops or an MP4 that plays once.

    Args:
        path: the path, one pair.
        file: output file, .gif or .mp4 (which needs ffmpeg).
        frames: number of equally spaced times.
        grid: grid of the densities, the path's own by default.
        style: colours and units.
        stamp: whether each frame is labelled with its time.
    """
    file = as_path(file)
    suffix = file.suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise FileError(f"{file} is not a .gif or .mp4 file; animations have these two formats.")
    check_count(frames, 2, "frames")
    check_flag(stamp, "stamp")
    if suffix == ".mp4":
        check_ffmpeg(file)  # before anything is computed
    times, grid = check_drawable(path, np.linspace(0, 1, frames), grid, style)
    values = style.evaluate(path, times, grid)
    labels = [f"t = {t:.2f}" if stamp else "" for t in times]
    pictures = _draw_pictures(values, labels, grid, style, style.mass_note(path))
    with atomic_write(file) as temporary:
        if suffix == ".gif":
            _write_gif(pictures, temporary)
        else:
            _write_mp4(pictures, file, temporary)
    return file


def check_ffmpeg(file: Path) -> None:
    """Raise FileError if ffmpeg, which writes MP4 files, is not installed."""
    if shutil.which("ffmpeg") is None:
        raise FileError(f"{file} needs ffmpeg, which is not installed; install it or write a .gif.")


def _draw_pictures(
    values: Frames, labels: Sequence[str], grid: Grid, style: Style, note: str
) -> list[Image.Image]:
    """Draw values (T, *grid.shape) as T pictures with one palette and a label on each.

    The note on the mass belongs to the axis of a curve. Images have no axes: it follows the label.
    """
    if grid.dimension == 1:
        return _draw_curves(values, labels, grid, style, f"density{note}")
    if grid.dimension == 2:
        levels = _to_levels(values, grid, style)
    else:
        projections = [project(values, grid, axes) for axes in PROJECTIONS]
        levels = _join_side_by_side([_to_levels(*each, style) for each in projections])
    colours = style.colormap()(np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    palette = colours.tobytes() + bytes([255] * 3) + bytes(ImageColor.getrgb(INK))
    pictures = [Image.fromarray(frame) for frame in levels]
    for picture, label in zip(pictures, labels, strict=True):
        picture.putpalette(palette)
        _write_label(picture, label and label + note)
    return pictures


def _draw_curves(
    values: Frames, labels: Sequence[str], grid: Grid, style: Style, name: str
) -> list[Image.Image]:
    """Draw a moving curve, with source and target as outlines; `name` labels the values."""
    figure = Figure(figsize=(4.4, 2.8), dpi=120, layout="constrained")
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
    for label, frame in zip(labels, values, strict=True):
        curve.set_ydata(frame)
        area.set_data(x, frame, 0)
        text.set_text(label)
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
        first = pictures[0] if pictures else _reduce_colours(picture)
        pictures.append(picture.quantize(palette=first, dither=Image.Dither.NONE))
    return pictures


def _reduce_colours(picture: Image.Image) -> Image.Image:
    """Return the picture in the palette of all frames (several would flicker), with pure white."""
    reduced = picture.quantize(LEVELS)
    colours = np.array(reduced.getpalette(), np.uint8).reshape(-1, 3)
    colours[colours.min(axis=1) > 245] = 255
    reduced.putpalette(colours.tobytes())
    return reduced


def _to_levels(values: Frames, grid: Grid, style: Style) -> NDArray[np.uint8]:
    """Enlarge frames (T, n, m) to levels (T, height, width) of one colour scale, top row first."""
    size = _picture_size(grid)
    fractions = np.ma.getdata(style.scale(values).norm(values.ravel())).clip(0, 1)
    levels = (LEVELS - 1) * to_image_rows(fractions.reshape(values.shape), grid).astype(np.float32)
    frames = [Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC) for frame in levels]
    return np.stack([np.asarray(frame).round().clip(0, LEVELS - 1) for frame in frames]).astype(
        np.uint8
    )


def _picture_size(grid: Grid, longest: int = 256) -> tuple[int, int]:
    """Return width and height in pixels: whole multiples of the cells, at least `longest`."""
    if unit_aspect(grid) != 1:  # a very long box is drawn as a square
        side = max(longest, *grid.shape)
        return side, side
    finest = min(grid.spacing)
    factor = ceil(longest / round(grid.max_side / finest))
    first, second = (round(length / finest * factor) for length in grid.lengths)
    return to_width_height((first, second), grid)


def _join_side_by_side(parts: Sequence[NDArray[np.uint8]], gap: int = 4) -> NDArray[np.uint8]:
    """Join parts (T, h_i, w_i) along a common bottom line, with white gaps."""
    tallest = max(part.shape[1] for part in parts)
    padded = []
    for part in parts:
        above, right = tallest - part.shape[1], 0 if part is parts[-1] else gap
        padded.append(np.pad(part, ((0, 0), (above, 0), (0, right)), constant_values=LEVELS))
    return np.concatenate(padded, axis=2)


def _write_label(picture: Image.Image, label: str) -> None:
    """Write the label into the upper left corner, white with dark edges to suit all colours."""
    font = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans-Bold.ttf"
    ImageDraw.Draw(picture).text(
        (5, 4),
        label,
        fill=LEVELS,
        font=ImageFont.truetype(str(font), 12),
        stroke_width=1,
        stroke_fill=LEVELS + 1,
    )


def _write_gif(pictures: list[Image.Image], file: Path) -> None:
    loop = pictures + pictures[-2:0:-1]
    durations = [STEP] * len(loop)
    durations[0] = durations[len(pictures) - 1] = PAUSE
    loop[0].save(
        file, save_all=True, append_images=loop[1:], duration=durations, loop=0, optimize=False
    )


def _write_mp4(pictures: list[Image.Image], file: Path, temporary: Path) -> None:
    """Write pictures to `temporary`, repeated for pauses; errors name `file`."""
    extra = PAUSE // STEP - 1
    first, last = pictures[:1] * extra, pictures[-1:] * extra
    height, width = _to_even_rgb(pictures[0]).shape[:2]
    command = _ffmpeg_command(width, height, temporary)
    with TemporaryFile() as log:  # a pipe that is not read would fill up and block ffmpeg
        with Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=log) as ffmpeg:
            assert ffmpeg.stdin is not None
            with suppress(BrokenPipeError):  # ffmpeg has stopped; its message is raised below
                for picture in [*first, *pictures, *last, *pictures[-2::-1], *first]:
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
