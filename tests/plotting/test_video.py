"""MP4: what ffmpeg is given, and what is said where it is missing or fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.errors import FileError
from geonet.plotting.animation import PAUSE, STEP

# Stands in for ffmpeg: writes its options, a line of JSON, and all that it was sent.
RECORDER = """
import json, sys
*options, output = sys.argv[1:]
sent = sys.stdin.buffer.read()
with open(output, "wb") as file:
    file.write(json.dumps(options).encode() + b"\\n" + sent)
"""
FAILURE = """
import sys
with open(sys.argv[-1], "wb") as file:
    file.write(b"half")
print("some warning\\nUnknown encoder 'libx264'.", file=sys.stderr)
sys.exit(1)
"""


@pytest.fixture
def ffmpeg(tmp_path, monkeypatch):
    """Puts a Python program on the path, alone, under the name of ffmpeg."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(program):
        script = folder / "ffmpeg"
        script.write_text(f"#!{sys.executable}\n{program}", encoding="utf-8")
        script.chmod(0o755)

    return install


def recorded(file):
    """The options, and the frames (T, height, width, 3) of the size that they name."""
    options, sent = file.read_bytes().split(b"\n", 1)
    options = json.loads(options)
    width, height = map(int, options[options.index("-video_size") + 1].split("x"))
    return options, np.frombuffer(sent, np.uint8).reshape(-1, height, width, 3)


def test_ffmpeg_gets_every_frame_forth_and_back(plane, ffmpeg, tmp_path):
    ffmpeg(RECORDER)
    assert plane.animate(tmp_path / "path.mp4", frames=6) == tmp_path / "path.mp4"
    options, frames = recorded(tmp_path / "path.mp4")
    wait = PAUSE // STEP
    assert frames.shape == (3 * wait + 8, 128, 256, 3)  # both ends stand, one of them twice
    assert np.array_equal(frames, frames[::-1])
    assert (frames[:wait] == frames[0]).all()
    assert not np.array_equal(frames[wait], frames[0])
    text = " ".join(options)
    assert "-f rawvideo -pix_fmt rgb24 -video_size 256x128 -framerate 1000/60 -i -" in text
    assert "-c:v libx264" in text
    assert text.rindex("-pix_fmt yuv420p") > text.index("-i -")


def test_frames_are_those_of_the_gif(plane, ffmpeg, tmp_path):
    ffmpeg(RECORDER)
    _, frames = recorded(plane.animate(tmp_path / "path.mp4", frames=3))
    with Image.open(plane.animate(tmp_path / "path.gif", frames=3)) as gif:
        for number, frame in enumerate((frames[0], frames[PAUSE // STEP])):
            gif.seek(number)
            assert np.array_equal(np.asarray(gif.convert("RGB")), frame)


def test_odd_sides_become_even(ffmpeg, tmp_path):
    ffmpeg(RECORDER)
    grid = geonet.Grid((61, 301), 0, (61, 301))
    ends = [geonet.GaussianMixture.isotropic([[30, y]], [9.0]).on(grid) for y in (50, 200)]
    file = geonet.geodesic(*ends, "linear").animate(tmp_path / "path.mp4", frames=2)
    _, frames = recorded(file)
    assert frames.shape[1:] == (62, 302, 3)
    assert np.array_equal(frames[:, :, -1], frames[:, :, -2])
    assert np.array_equal(frames[:, -1], frames[:, -2])


def test_lines_and_space_are_written_too(line, space, ffmpeg, tmp_path):
    ffmpeg(RECORDER)
    for path in (line, space):
        _, frames = recorded(path.animate(tmp_path / "path.mp4", frames=2))
        assert len(frames) == 3 * (PAUSE // STEP)
        assert np.ptp(frames) > 200
        assert not np.array_equal(frames[0], frames[15])


def test_missing_ffmpeg_is_said_before_anything_is_computed(line, ffmpeg, tmp_path, monkeypatch):
    monkeypatch.setattr(type(line), "density", None)
    with pytest.raises(
        FileError,
        match=r"path\.mp4 needs ffmpeg, which is not installed; install it or write a \.gif\.",
    ):
        line.animate(tmp_path / "path.mp4")


def test_failure_of_ffmpeg_is_said_and_leaves_the_old_file(plane, ffmpeg, tmp_path):
    ffmpeg(FAILURE)  # which does not read what it is sent
    file = tmp_path / "path.mp4"
    file.write_bytes(b"old")
    with pytest.raises(
        FileError,
        match=r"ffmpeg cannot write .*path\.mp4: Unknown encoder 'libx264'; write a \.gif instead",
    ):
        plane.animate(file, frames=4)
    assert file.read_bytes() == b"old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "path.mp4"]


def test_silent_failure_names_the_exit_code(plane, ffmpeg, tmp_path):
    ffmpeg("raise SystemExit(7)")
    with pytest.raises(FileError, match="exit code 7"):
        plane.animate(tmp_path / "path.mp4", frames=2)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_real_ffmpeg_writes_a_film(plane, tmp_path):
    file = plane.animate(tmp_path / "path.mp4", frames=4)
    assert file.read_bytes()[4:8] == b"ftyp"
    picture = tmp_path / "first.png"
    subprocess.run(["ffmpeg", "-v", "error", "-i", file, "-frames:v", "1", picture], check=True)
    with Image.open(picture) as first:
        brightness = np.asarray(first.convert("RGB"), dtype=float).sum(-1)
    row, column = np.unravel_index(brightness.argmax(), brightness.shape)
    assert (column / 256, 1 - row / 128) == pytest.approx((0.2, 0.3), abs=0.06)
