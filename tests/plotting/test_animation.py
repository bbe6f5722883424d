"""GIFs show the path they are made of, and are whole or not there."""

from __future__ import annotations

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.errors import FileError, InputError
from geonet.plotting.animation import GAP, LEVELS
from geonet.plotting.style import DENSITY_MAP


def frames_of(file):
    with Image.open(file) as gif:
        for number in range(gif.n_frames):
            gif.seek(number)
            yield np.asarray(gif.convert("RGB"), dtype=float), dict(gif.info)


def test_plane_gif_runs_forth_and_back(plane, tmp_path):
    file = plane.animate(tmp_path / "path.gif", frames=6, stamp=False)
    frames = list(frames_of(file))
    assert file == tmp_path / "path.gif"
    assert len(frames) == 10
    assert frames[0][0].shape == (128, 256, 3)
    assert {info["loop"] for _, info in frames} == {0}
    assert frames[0][1]["duration"] > frames[1][1]["duration"]
    for k in range(1, 5):
        assert np.array_equal(frames[k][0], frames[10 - k][0])
    # The first frame is bright at the source, the sixth at the target.
    for number, (x, y) in ((0, (0.2, 0.3)), (5, (0.8, 0.7))):
        brightness = frames[number][0].sum(-1)
        row, column = np.unravel_index(brightness.argmax(), brightness.shape)
        assert (column / 256, 1 - row / 128) == pytest.approx((x, y), abs=0.05)


def test_plane_gif_has_the_colours_of_the_map(plane, tmp_path):
    file = plane.animate(tmp_path / "path.gif", frames=3, stamp=False)
    colours = DENSITY_MAP(np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    allowed = {tuple(colour) for colour in colours.tolist()}
    for frame, _ in frames_of(file):
        assert {tuple(c) for c in np.unique(frame.reshape(-1, 3), axis=0)} <= allowed


def test_line_gif_moves_the_curve(line, tmp_path):
    file = line.animate(tmp_path / "path.gif", frames=4)
    frames = [frame for frame, _ in frames_of(file)]
    assert len(frames) == 6
    # Where the filled area is (neither white nor grey): its centre moves to the right.
    centres = []
    for frame in frames[:4]:
        coloured = np.ptp(frame, axis=-1) > 20
        centres.append(np.argwhere(coloured)[:, 1].mean())
    assert all(b > a + 10 for a, b in pairwise(centres))
    assert (frames[0][2, 2] == 255).all()


def test_space_gif_shows_projections_beside_each_other(space, tmp_path):
    file = space.animate(tmp_path / "path.gif", frames=2)
    frame, _ = next(frames_of(file))
    widths = [260, 260, 256]  # of lengths 5, 5, 4, at least 256 pixels for the longest
    assert frame.shape == (208, sum(widths) + 2 * GAP, 3)
    assert (frame[:, 260 : 260 + GAP] == 255).all()


def test_fine_grids_are_not_scaled(tmp_path):
    grid = geonet.Grid((60, 300), 0, (3, 15))
    ends = [geonet.GaussianMixture.isotropic([[0.5, y]], [1.8]).on(grid) for y in (2, 9)]
    path = geonet.geodesic(*ends, "linear")
    frame, _ = next(frames_of(path.animate(tmp_path / "path.gif", frames=2)))
    assert frame.shape[:2] == (60, 300)


def test_frames_say_their_times(plane, space, line, tmp_path):
    """In the upper left corner, in white with a dark edge, and nowhere else."""
    for path in (plane, space):
        files = [
            path.animate(tmp_path / f"{stamp}.gif", frames=3, stamp=stamp)
            for stamp in (True, False)
        ]
        pairs = list(zip(*(frames_of(file) for file in files), strict=True))
        marks = []
        for (stamped, _), (bare, _) in pairs:
            written = (stamped != bare).any(-1)
            where = np.argwhere(written)
            assert len(where) > 50
            assert (where.max(0) < (24, 70)).all()
            colours = np.unique(stamped[written], axis=0).tolist()
            assert [255] * 3 in colours or (bare[written] == 255).all(-1).any()
            assert [0x33] * 3 in colours
            marks.append(written)
        assert not np.array_equal(marks[0], marks[2])  # t = 0.00 and t = 1.00
        assert np.array_equal(marks[1], marks[3])
    frames = [
        next(frames_of(line.animate(tmp_path / "line.gif", frames=2, stamp=stamp)))[0]
        for stamp in (True, False)
    ]
    assert not np.array_equal(*frames)


def test_the_look_of_an_animation(plane, tmp_path):
    file = plane.animate(
        tmp_path / "path.gif", 2, cmap="viridis", norm="log", vmax=100.0, stamp=False
    )
    frame, _ = next(frames_of(file))
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    shown = {tuple(c) for c in np.unique(frame.reshape(-1, 3), axis=0)}
    assert shown <= {tuple(colour) for colour in colours.tolist()}
    peak = float(plane.density(0.0).tensor.max())  # of four decades below 100
    brightest = colours[round((LEVELS - 1) * (1 - np.log10(100 / peak) / 4))]
    assert tuple(brightest) in shown
    assert max(sum(c) for c in shown) == pytest.approx(sum(brightest.tolist()), abs=15)
    with pytest.raises(InputError, match="norm is 'lin'; did you mean 'linear'"):
        plane.animate(file, norm="lin")


def test_bad_animations_are_refused(line, tmp_path):
    with pytest.raises(FileError, match=r"path\.webm does not end in \.gif or \.mp4"):
        line.animate(tmp_path / "path.webm")
    with pytest.raises(InputError, match="frames is 1; give a whole number, at least 2"):
        line.animate(tmp_path / "path.gif", frames=1)
    with pytest.raises(FileError, match=r"folder .*nowhere does not exist"):
        line.animate(tmp_path / "nowhere" / "path.gif", frames=2)


def test_failed_writing_leaves_the_old_file(plane, tmp_path, monkeypatch):
    file = tmp_path / "path.gif"
    file.write_bytes(b"old")

    def stop(self, target, **options):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", stop)
    with pytest.raises(FileError, match=r"Cannot write .*: No space left on device"):
        plane.animate(file, frames=2)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
