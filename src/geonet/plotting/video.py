"""Pictures to MP4, by ffmpeg."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from tempfile import TemporaryFile

import numpy as np
from PIL import Image

from geonet.errors import FileError

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
