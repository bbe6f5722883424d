"""A path as a GIF or MP4 that runs forwards and backwards."""

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
from geonet.plotting.panels import PROJECTIONS, projection
from geonet.plotting.style import (
    FAINT,
    INK,
    PLAIN,
    Frames,
    Look,
    across_and_along,
    aspect,
    check,
    fit_height,
    quieten,
    upright,
)

# ---- Pictures to MP4, by ffmpeg.


QUALITY = 18  # ffmpeg's rate factor: no visible loss


def check_ffmpeg(file: Path) -> None:
    """Refuse an MP4 if ffmpeg is missing."""
    if shutil.which("ffmpeg") is None:
        raise FileError(f"{file} needs ffmpeg, which is not installed; install it or write a .gif.")


def write_mp4(pictures: Sequence[Image.Image], file: Path, temporary: Path, step: int) -> None:
    """Write pictures of one size to `temporary`, each standing `step` milliseconds.

    Args:
        pictures: in the order in which they are shown.
        file: the name to use in errors.
        temporary: the name to write to.
        step: how long a picture stands.
    """
    height, width = _even(pictures[0]).shape[:2]
    command = _command(width, height, step, temporary)
    with TemporaryFile() as said:  # a pipe that nobody reads would fill up and block ffmpeg
        with Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=said) as ffmpeg:
            assert ffmpeg.stdin is not None
            with suppress(BrokenPipeError):  # ffmpeg has given up; its message follows below
                for picture in pictures:
                    ffmpeg.stdin.write(_even(picture).tobytes())
                ffmpeg.stdin.close()
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    if ffmpeg.returncode != 0:
        cause = lines[-1].strip().rstrip(".") if lines else f"exit code {ffmpeg.returncode}"
        raise FileError(f"ffmpeg cannot write {file}: {cause}; write a .gif instead.")


def _command(width: int, height: int, step: int, output: Path) -> list[str]:
    source = f"-f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate 1000/{step} -i -"
    # browsers and players want yuv420p and the index at the front
    video = f"-c:v libx264 -crf {QUALITY} -pix_fmt yuv420p -movflags +faststart"
    # an absolute name cannot be taken for an option or a protocol
    return ["ffmpeg", "-y", "-v", "error", *source.split(), *video.split(), str(output.absolute())]


def _even(picture: Image.Image) -> np.ndarray:
    """RGB values (height, width, 3); yuv420p wants even sides: the last pixels may be doubled."""
    pixels = np.asarray(picture.convert("RGB"))
    odd = [(0, side % 2) for side in pixels.shape[:2]]
    return np.pad(pixels, (*odd, (0, 0)), mode="edge")


SIDE = 256  # pixels along the longest side, at least
LEVELS = 64  # colours of a GIF: half the bytes of 256, and the eye sees no steps
GAP = 4  # pixels between the projections of a 3D path
STAMP = 12  # pixels: the height of the time that is written on a frame
FONT = "fonts/ttf/DejaVuSans-Bold.ttf"  # of matplotlib's data
STEP, PAUSE = 60, 600  # milliseconds that a frame is shown, between and at the ends


def animate_geodesic(
    path: Geodesic,
    file: str | Path,
    frames: int = 31,
    grid: Grid | None = None,
    look: Look = PLAIN,
    stamp: bool = True,
) -> Path:
    """Write `frames` moments, forwards and back, as a GIF that loops or an MP4 that plays once.

    An MP4 needs ffmpeg. With `stamp` every frame says its time.
    """
    file = as_path(file)
    kind = file.suffix.lower()
    if kind not in (".gif", ".mp4"):
        raise FileError(
            f"{file} does not end in .gif or .mp4; an animation is written as one of these."
        )
    check_count(frames, 2, "frames")
    check_flag(stamp, "stamp")
    if kind == ".mp4":
        check_ffmpeg(file)  # before anything is computed
    moments, grid = check(path, np.linspace(0, 1, frames), grid, look)
    values, labels = look.frames(path, moments, grid), [f"t = {t:.2f}" for t in moments]
    pictures = _pictures(values, labels if stamp else [""] * frames, grid, look, look.note_on(path))
    with atomic_write(file) as temporary:
        if kind == ".gif":
            _write_gif(pictures, temporary)
        else:
            _write_video(pictures, file, temporary)
    return file


def _pictures(
    values: Frames, labels: Sequence[str], grid: Grid, look: Look, note: str
) -> list[Image.Image]:
    """Values (T, *grid.shape) as T pictures with a palette, a label on each.

    The note on the values belongs to the axis of a curve; images have none, so their labels end
    with it.
    """
    if grid.dimension == 1:
        return _line_pictures(values, labels, grid, look, f"density{note}")
    if grid.dimension == 2:
        levels = _scaled_up(values, grid, look)
    else:
        sides = [projection(values, grid, axes) for axes in PROJECTIONS]
        levels = _side_by_side([_scaled_up(*side, look) for side in sides])
    pictures = _coloured(levels, look)
    for picture, label in zip(pictures, labels, strict=True):
        _stamp(picture, label and label + note)
    return pictures


def _line_pictures(
    values: Frames, labels: Sequence[str], grid: Grid, look: Look, what: str
) -> list[Image.Image]:
    """A moving curve, with source and target as outlines; `what` names the values."""
    figure = Figure(figsize=(4.4, 2.8), dpi=120, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axis = figure.subplots()
    x = grid.axes()[0].numpy()
    for end in (values[0], values[-1]):
        axis.plot(x, end, color=FAINT, linewidth=1.2)
    colour = look.colours()(0.45)
    (curve,) = axis.plot(x, values[0], color=colour, linewidth=2)
    area = axis.fill_between(x, values[0], color=colour, alpha=0.2, linewidth=0)
    axis.set(xlabel="x", ylabel=what, xlim=(grid.lower[0], grid.upper[0]))
    fit_height(axis, look.scale(values), values)
    text = axis.text(0.02, 0.95, "", transform=axis.transAxes, va="top", color=INK)
    quieten(axis)
    pictures: list[Image.Image] = []
    for label, frame in zip(labels, values, strict=True):
        curve.set_ydata(frame)
        area.set_data(x, frame, 0)
        text.set_text(label)
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


def _scaled_up(values: Frames, grid: Grid, look: Look) -> NDArray[np.uint8]:
    """Frames (T, n, m) as levels (T, height, width) of one scale, rows from the top."""
    size = _size(grid)
    shares = np.ma.getdata(look.scale(values).norm(values.ravel())).clip(0, 1)
    levels = (LEVELS - 1) * upright(shares.reshape(values.shape), grid).astype(np.float32)
    frames = [Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC) for frame in levels]
    return np.stack([np.asarray(frame).round().clip(0, LEVELS - 1) for frame in frames]).astype(
        np.uint8
    )


def _size(grid: Grid) -> tuple[int, int]:
    """Pixels across and along a picture, no fewer than cells."""
    if aspect(grid) != 1:  # a square, instead of a sliver
        side = max(SIDE, *grid.shape)
        return side, side
    finest = min(grid.spacing)
    factor = ceil(SIDE / round(grid.longest / finest))
    first, second = (round(length / finest * factor) for length in grid.lengths)
    return across_and_along((first, second), grid)


def _side_by_side(parts: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Parts (T, h_i, w_i) beside each other, on one base line, with gaps of level LEVELS."""
    tallest = max(part.shape[1] for part in parts)
    padded = []
    for part in parts:
        above, right = tallest - part.shape[1], 0 if part is parts[-1] else GAP
        padded.append(np.pad(part, ((0, 0), (above, 0), (0, right)), constant_values=LEVELS))
    return np.concatenate(padded, axis=2)


def _coloured(frames: NDArray[np.uint8], look: Look) -> list[Image.Image]:
    """Levels (T, height, width) as pictures; the colour map itself is their palette."""
    colours = look.colours()(np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    palette = colours.tobytes() + bytes([255] * 3)  # and white for gaps
    palette += bytes(ImageColor.getrgb(INK))
    pictures = [Image.fromarray(frame) for frame in frames]
    for picture in pictures:
        picture.putpalette(palette)
    return pictures


def _stamp(picture: Image.Image, label: str) -> None:
    """Write the label into the upper left corner, white with a dark edge: for any colours."""
    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / FONT), STAMP)
    white, dark = LEVELS, LEVELS + 1
    ImageDraw.Draw(picture).text(
        (5, 4), label, fill=white, font=font, stroke_width=1, stroke_fill=dark
    )


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
