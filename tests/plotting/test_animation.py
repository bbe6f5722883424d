"""GIF and MP4 files of a path."""

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.errors import FileError, InputError
from geonet.plotting.animation import (
    LEVELS,
    LIMITS,
    PAUSE,
    STEP,
    _picture_size,
    animate_geodesics,
    choose_side,
    share_frames,
    write_sheet,
)
from geonet.plotting.style import DENSITY_MAP, Style


def colours_of(frame):
    return {tuple(colour) for colour in np.unique(frame.reshape(-1, 3), axis=0).tolist()}


def palette_of(cmap):
    return cmap(np.linspace(0, 1, LEVELS), bytes=True)[:, :3]


def test_a_2d_gif_runs_forwards_and_backwards(plane, tmp_path, read_gif):
    file = plane.animate(tmp_path / "path.gif", frames=6, stamp=False)
    frames = read_gif(file)
    assert file == tmp_path / "path.gif"
    assert len(frames) == 10
    assert frames[0][0].shape == (128, 256, 3)
    assert {info["loop"] for _, info in frames} == {0}
    assert frames[0][1]["duration"] > frames[1][1]["duration"]
    allowed = {tuple(colour) for colour in palette_of(DENSITY_MAP).tolist()}
    for k in range(1, 5):
        assert np.array_equal(frames[k][0], frames[10 - k][0])
        assert colours_of(frames[k][0]) <= allowed
    # The first frame is bright at the source, the sixth at the target.
    for number, (x, y) in ((0, (0.2, 0.3)), (5, (0.8, 0.7))):
        brightness = frames[number][0].sum(-1)
        row, column = np.unravel_index(brightness.argmax(), brightness.shape)
        assert (column / 256, 1 - row / 128) == pytest.approx((x, y), abs=0.05)


def test_a_1d_gif_moves_the_curve(line, tmp_path, read_gif):
    frames = [frame for frame, _ in read_gif(line.animate(tmp_path / "path.gif", frames=4))]
    assert len(frames) == 6
    # The filled area, neither white nor grey, moves to the right.
    centres = [np.argwhere(np.ptp(f, axis=-1) > 20)[:, 1].mean() for f in frames[:4]]
    assert all(b > a + 10 for a, b in pairwise(centres))
    assert (frames[0][2, 2] == 255).all()


def test_a_3d_gif_has_projections_side_by_side(space, tmp_path, read_gif):
    frame, _ = read_gif(space.animate(tmp_path / "path.gif", frames=2))[0]
    widths = [260, 260, 208]  # of lengths 5, 5, 4 on one scale
    assert frame.shape == (208, sum(widths) + 2 * 4, 3)
    assert (frame[:, 260:264] == 255).all()


def test_frames_are_labelled_with_their_times(plane, tmp_path, read_gif):
    """In the upper left corner."""
    stamped, bare = (
        read_gif(plane.animate(tmp_path / f"{stamp}.gif", frames=3, stamp=stamp))
        for stamp in (True, False)
    )
    marks = [(a != b).any(-1) for (a, _), (b, _) in zip(stamped, bare, strict=True)]
    for changed in marks:
        assert changed.sum() > 50 and (np.argwhere(changed).max(0) < (24, 70)).all()
    assert not np.array_equal(marks[0], marks[2])  # t = 0.00 and t = 1.00
    assert np.array_equal(marks[1], marks[3])


# ---- Sequences and sizes


@pytest.fixture
def legs():
    """Paths from each of four bumps to the next; the last bump is the first."""
    grid = geonet.Grid((16, 16))
    means = ([0.3, 0.3], [0.7, 0.4], [0.5, 0.7], [0.3, 0.3])
    ends = [geonet.GaussianMixture.isotropic([m], [0.1]).to_density(grid) for m in means]
    return [geonet.geodesic(a, b, "linear") for a, b in pairwise(ends)]


@pytest.mark.parametrize(("frames", "shares"), [(7, (3, 2, 2)), (10, (4, 3, 3)), (6, (3, 1, 2))])
def test_frames_are_shared_out_evenly(frames, shares):
    legs = share_frames(frames, 3)
    assert sorted(map(len, legs), reverse=True) == sorted(shares, reverse=True)
    assert sum(map(len, legs)) == frames
    assert legs[0][0] == 0 and all(times[-1] == 1 and times[0] > 0 for times in legs[1:])


def test_a_sequence_pauses_at_every_density(legs, tmp_path, read_gif):
    frames = read_gif(animate_geodesics(legs[:2], tmp_path / "path.gif", 7, stamp=False))
    assert [info["duration"] == PAUSE for _, info in frames] == 4 * [True, False, False]
    assert np.array_equal(frames[4][0], frames[8][0])  # backwards
    one = read_gif(legs[1].animate(tmp_path / "one.gif", 4, stamp=False, vmax=20.0))
    two = read_gif(
        animate_geodesics(legs[:2], tmp_path / "two.gif", 7, stamp=False, style=Style(vmax=20.0))
    )
    assert all(np.array_equal(two[3 + k][0], one[k][0]) for k in range(4))


def test_a_closed_sequence_runs_forwards_only(legs, tmp_path, read_gif):
    frames = read_gif(animate_geodesics(legs, tmp_path / "path.gif", 7, stamp=False))
    assert len(frames) == 6
    assert [info["duration"] == PAUSE for _, info in frames] == 3 * [True, False]


def test_a_sheet_has_a_row_for_each_path(legs, tmp_path):
    with Image.open(write_sheet(legs, tmp_path / "sheet.png", [0, 0.5, 1])) as sheet:
        assert sheet.size == (3 * 256 + 8, 3 * 256 + 8)
        pixels = np.asarray(sheet.convert("RGB"), float)
    panels = [pixels[k * 260 + 30 : k * 260 + 256] for k in range(3)]  # without the labels
    for above, below in pairwise(panels):  # one path ends where the next begins
        assert np.array_equal(above[:, 520:776], below[:, :256])
    assert np.array_equal(panels[0][:, :256], panels[2][:, 520:776])


@pytest.mark.parametrize(
    ("cells", "frames", "expected"),
    [(200, 31, 400), (400, 31, 400), (1024, 31, 512), (1024, 201, 200), (64, 2, 256)],
)
def test_default_size_of_a_gif(cells, frames, expected):
    grid = geonet.Grid((cells, cells))
    least, most = choose_side(Path("a.gif"), frames, grid)
    size = _picture_size(grid, (least, most))
    assert size == (expected, expected)
    assert size[0] * size[1] * (2 * frames - 2) <= LIMITS.total
    assert choose_side(Path("a.gif"), frames, grid, 300) == (300, 300)
    assert _picture_size(grid, choose_side(Path("a.mp4"), 61, grid))[0] >= cells


@pytest.mark.parametrize("name", ["line", "plane", "space"])
def test_size_of_frames(name, request, tmp_path, read_gif):
    path = request.getfixturevalue(name)
    frame, _ = read_gif(path.animate(tmp_path / "path.gif", frames=2, size=100))[0]
    height, width, _ = frame.shape
    longest = (width - 8) / (1 + 1 + 0.8) if name == "space" else max(height, width)
    assert longest == pytest.approx(100, abs=1)
    with pytest.raises(InputError, match="size is 3"):
        path.animate(tmp_path / "path.gif", size=3)


def test_sizes_above_the_limit_raise(plane, tmp_path):
    with pytest.raises(InputError, match="size is 4097; give at most 4096 pixels"):
        plane.animate(tmp_path / "path.gif", size=4097)


def test_progress_of_an_animation(plane, tmp_path):
    lines = []
    with geonet.progress_callback(lines.append):
        plane.animate(tmp_path / "path.gif", frames=2)
    frames = ["drawing frame 1 of 2", "drawing frame 2 of 2"]
    assert lines == ["computing frames", *frames, "compressing 2 frames"]


def test_no_note_on_the_mass_in_films(tmp_path, read_gif):
    grid = geonet.Grid((16, 16))
    x = grid.points().numpy()
    values = np.exp(-((x - 0.5) ** 2).sum(-1) / 0.02)
    equal, unequal = (
        geonet.geodesic(geonet.Density(values, grid), geonet.Density(k * values, grid), "linear")
        for k in (1, 3)
    )
    first, second = (
        read_gif(path.animate(tmp_path / "path.gif", frames=3)) for path in (equal, unequal)
    )
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))


def test_bad_animations_raise(line, tmp_path):
    with pytest.raises(FileError, match=r"path\.webm is not a \.gif or \.mp4 file"):
        line.animate(tmp_path / "path.webm")
    with pytest.raises(InputError, match="frames is 1"):
        line.animate(tmp_path / "path.gif", frames=1)
    with pytest.raises(FileError, match="nowhere"):
        line.animate(tmp_path / "nowhere" / "path.gif", frames=2)


def test_a_failed_write_keeps_the_old_file(plane, tmp_path, monkeypatch):
    file = tmp_path / "path.gif"
    file.write_bytes(b"old")

    def fail(self, target, **options):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", fail)
    with pytest.raises(FileError, match="No space left on device"):
        plane.animate(file, frames=2)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


# ---- MP4

# Replaces ffmpeg: writes its options as a line of JSON, then its standard input.
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
def install_ffmpeg(tmp_path, monkeypatch):
    """Makes a Python program the only one on the PATH, under the name ffmpeg."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(program):
        script = folder / "ffmpeg"
        script.write_text(f"#!{sys.executable}\n{program}", encoding="utf-8")
        script.chmod(0o755)

    return install


def read_recording(file):
    """The options of ffmpeg, and the frames (T, height, width, 3)."""
    options, sent = file.read_bytes().split(b"\n", 1)
    options = json.loads(options)
    width, height = map(int, options[options.index("-video_size") + 1].split("x"))
    return options, np.frombuffer(sent, np.uint8).reshape(-1, height, width, 3)


def test_ffmpeg_gets_the_frames_of_the_gif(plane, install_ffmpeg, tmp_path, read_gif):
    install_ffmpeg(RECORDER)
    options, frames = read_recording(plane.animate(tmp_path / "path.mp4", frames=6))
    pause = PAUSE // STEP
    assert frames.shape == (3 * pause + 8, 128, 256, 3)  # pauses at source, target and source
    assert np.array_equal(frames, frames[::-1])
    assert (frames[:pause] == frames[0]).all()
    gif = read_gif(plane.animate(tmp_path / "path.gif", frames=6))
    for number in range(2):
        assert np.array_equal(gif[number][0], frames[number * pause])
    text = " ".join(options)
    assert "-f rawvideo -pix_fmt rgb24 -video_size 256x128 -framerate 1000/60 -i -" in text
    assert text.rindex("-pix_fmt yuv420p") > text.index("-i -")


def test_odd_sides_become_even(install_ffmpeg, tmp_path):
    install_ffmpeg(RECORDER)
    grid = geonet.Grid((61, 301), 0, (61, 301))
    mixtures = [geonet.GaussianMixture.isotropic([[30, y]], [9.0]) for y in (50, 200)]
    path = geonet.geodesic(*(mixture.to_density(grid) for mixture in mixtures), "linear")
    _, frames = read_recording(path.animate(tmp_path / "path.mp4", frames=2))
    assert frames.shape[1:] == (62, 302, 3)
    assert np.array_equal(frames[:, :, -1], frames[:, :, -2])
    assert np.array_equal(frames[:, -1], frames[:, -2])


def test_missing_ffmpeg_raises_before_the_computation(line, install_ffmpeg, tmp_path, monkeypatch):
    monkeypatch.setattr(type(line), "density", None)
    with pytest.raises(FileError, match=r"path\.mp4 needs ffmpeg, which is not installed"):
        line.animate(tmp_path / "path.mp4")


def test_a_failure_of_ffmpeg_keeps_the_old_file(plane, install_ffmpeg, tmp_path):
    install_ffmpeg(FAILURE)  # which does not read its input
    file = tmp_path / "path.mp4"
    file.write_bytes(b"old")
    with pytest.raises(FileError, match="Unknown encoder 'libx264'"):
        plane.animate(file, frames=4)
    assert file.read_bytes() == b"old"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "path.mp4"]
    install_ffmpeg("raise SystemExit(7)")
    with pytest.raises(FileError, match="exit code 7"):
        plane.animate(file, frames=2)
