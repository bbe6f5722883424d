"""A path as a GIF or MP4 that runs forwards and backwards."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from geonet.arguments import as_path, check_count
from geonet.errors import FileError
from geonet.files import written_atomically
from geonet.geodesics.base import Geodesic
from geonet.measures.grid import Grid
from geonet.plotting.checks import check
from geonet.plotting.look import DENSITY_MAP, FAINT, INK, Frames, quieten
from geonet.plotting.panels import PROJECTIONS, projection
from geonet.plotting.video import check_ffmpeg, write_mp4

SIDE = 256  # pixels along the longest side, at least
LEVELS = 64  # colours of a GIF: half the bytes of 256, and the eye sees no steps
GAP = 4  # pixels between the projections of a 3D path
STEP, PAUSE = 60, 600  # milliseconds that a frame is shown, between and at the ends


def animate_geodesic(
    path: Geodesic, file: str | Path, frames: int = 31, grid: Grid | None = None
) -> Path:
    """Write `frames` moments, forwards and back, as a GIF that loops or an MP4 that plays once.

    An MP4 needs ffmpeg.
    """
    file = as_path(file)
    kind = file.suffix.lower()
    if kind not in (".gif", ".mp4"):
        raise FileError(
            f"{file} does not end in .gif or .mp4; an animation is written as one of these."
        )
    check_count(frames, 2, "frames")
    if kind == ".mp4":
        check_ffmpeg(file)  # before anything is computed
    moments, grid = check(path, np.linspace(0, 1, frames), grid)
    pictures = _pictures(path.density(moments, grid).numpy(), moments, grid)
    with written_atomically(file) as temporary:
        if kind == ".gif":
            _write_gif(pictures, temporary)
        else:
            _write_video(pictures, file, temporary)
    return file


def _pictures(values: Frames, moments: list[float], grid: Grid) -> list[Image.Image]:
    """Values (T, *grid.shape) as T pictures with a palette."""
    if grid.dimension == 1:
        return _line_pictures(values, moments, grid)
    if grid.dimension == 2:
        return _coloured(_scaled_up(values, grid))
    parts = [_scaled_up(*projection(values, grid, axes)) for axes in PROJECTIONS]
    return _coloured(_side_by_side(parts))


def _line_pictures(values: Frames, moments: list[float], grid: Grid) -> list[Image.Image]:
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
    """The picture in one palette for all frames (separate ones would flicker); white is kept."""
    reduced = picture.quantize(LEVELS)
    colours = np.array(reduced.getpalette(), np.uint8).reshape(-1, 3)
    colours[colours.min(axis=1) > 245] = 255
    reduced.putpalette(colours.tobytes())
    return reduced


def _scaled_up(values: Frames, grid: Grid) -> NDArray[np.uint8]:
    """Frames (T, n, m) as levels (T, height, width) of one scale, y downwards."""
    finest = min(grid.spacing)
    factor = ceil(SIDE / round(grid.longest / finest))
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
    """Parts (T, h_i, w_i) beside each other, on one base line, with gaps of level LEVELS."""
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
    loop[0].save(
        file, save_all=True, append_images=loop[1:], duration=durations, loop=0, optimize=False
    )


def _write_video(pictures: list[Image.Image], file: Path, temporary: Path) -> None:
    """Once forwards and backwards; a frame that is shown longer appears several times."""
    extra = PAUSE // STEP - 1
    first, last = pictures[:1] * extra, pictures[-1:] * extra
    write_mp4([*first, *pictures, *last, *pictures[-2::-1], *first], file, temporary, STEP)
