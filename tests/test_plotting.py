"""Figures and GIFs show the path they are made of: axes, colours, frames and files."""

from __future__ import annotations

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib._pylab_helpers import Gcf
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

import geonet
from geonet import plotting
from geonet.errors import FileError, InputError


def bump(grid, *centre):
    width = 0.12 * max(grid.lengths)
    return geonet.GaussianMixture.isotropic([list(centre)], [width]).on(grid)


@pytest.fixture(scope="module")
def line():
    grid = geonet.Grid(60, 0, 2)
    return geonet.geodesic(bump(grid, 0.4), bump(grid, 1.5), "quantile")


@pytest.fixture(scope="module")
def plane():
    grid = geonet.Grid((32, 16), 0, (2, 1))
    return geonet.geodesic(bump(grid, 0.4, 0.3), bump(grid, 1.6, 0.7), "linear")


@pytest.fixture(scope="module")
def space():
    grid = geonet.Grid((10, 8, 6), 0, (5, 4, 3))
    return geonet.geodesic(bump(grid, 1, 1, 1), bump(grid, 4, 3, 2), "linear")


@pytest.fixture(scope="module")
def batch():
    grid = geonet.Grid(20)
    values = torch.rand(3, 20, dtype=torch.float64)
    return geonet.geodesic(geonet.Density(values, grid), geonet.Density(values, grid), "quantile")


def pixels(figure):
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def frames_of(file):
    with Image.open(file) as gif:
        for number in range(gif.n_frames):
            gif.seek(number)
            yield np.asarray(gif.convert("RGB"), dtype=float), dict(gif.info)


# ---- figures


def test_line_shows_curves_and_history(line):
    figure = line.plot((0, 0.5, 1))
    curves, history, bar = figure.axes
    assert [entry.get_text() for entry in curves.get_legend().get_texts()] == [
        "t = 0",
        "t = 0.5",
        "t = 1",
    ]
    for drawn, t in zip(curves.lines, (0, 0.5, 1), strict=True):
        assert drawn.get_ydata() == pytest.approx(line.density(t).numpy())
        assert drawn.get_xdata() == pytest.approx(line.grid.axes()[0].numpy())
    assert len({drawn.get_color() for drawn in curves.lines}) == 3
    assert curves.get_ylim()[0] == 0
    image = history.images[0]
    assert list(image.get_extent()) == [0, 2, 0, 1]
    assert np.asarray(image.get_array())[100] == pytest.approx(line.density(0.5).numpy())
    assert (history.get_xlabel(), history.get_ylabel()) == ("x", "t")
    assert bar.get_ylabel() == "density"
    assert f"W₂ = {float(line.distance):.4g}" in figure.get_suptitle()


def test_many_curves_get_a_colour_bar_for_time(line):
    figure = line.plot(np.linspace(0, 1, 9))
    assert figure.axes[0].get_legend() is None
    assert {axis.get_ylabel() for axis in figure.axes} == {"density", "t"}


def test_negative_values_of_a_curve_stay_visible(line):
    class Dipping(type(line)):
        kind = "dipping"

        def _density(self, times, grid):
            return super()._density(times, grid) - 0.1

    path = Dipping(line.source, line.target, "dipping")
    del geonet.Geodesic.kinds["dipping"]
    assert path.plot().axes[0].get_ylim()[0] < -0.05


def test_plane_is_a_strip_on_one_colour_scale(plane):
    figure = plane.plot((0, 0.25, 1))
    *frames, bar = figure.axes
    assert [axis.get_title() for axis in frames] == ["t = 0", "t = 0.25", "t = 1"]
    scales = {image.norm for axis in frames for image in axis.images}
    assert len(scales) == 1
    top = float(plane.density((0, 0.25, 1)).values.max())
    assert (scales.pop().vmin, bar.get_ylim()[1]) == (0, pytest.approx(top))
    for axis, t in zip(frames, (0, 0.25, 1), strict=True):
        image = axis.images[0]
        assert list(image.get_extent()) == [0, 2, 0, 1]
        assert image.origin == "lower"
        assert np.asarray(image.get_array()) == pytest.approx(plane.density(t).numpy().T)
        assert axis.get_aspect() == 1
    assert figure.get_suptitle() == "linear"  # which has no distance


def test_mass_is_bright_where_the_density_is(plane):
    """The bump at the lower left is drawn at the lower left: x to the right, y upwards."""
    figure = plane.plot(0.0)
    drawn = pixels(figure).astype(float).sum(-1)
    box = figure.axes[0].get_window_extent()
    height = len(drawn)
    inside = drawn[int(height - box.y1) + 3 : int(height - box.y0) - 3, int(box.x0) + 3 :]
    inside = inside[:, : int(box.width) - 6]
    row, column = np.unravel_index(inside.argmax(), inside.shape)
    assert row / inside.shape[0] == pytest.approx(1 - 0.3, abs=0.05)
    assert column / inside.shape[1] == pytest.approx(0.2, abs=0.05)


def test_many_frames_break_into_rows(plane):
    figure = plane.plot(np.linspace(0, 1, 11))
    shown = [axis for axis in figure.axes if axis.images]
    assert len(shown) == 11
    assert len({round(axis.get_position().y0, 3) for axis in shown}) == 2
    assert sum(not axis.axison for axis in figure.axes) == 1


def test_finer_grid_is_drawn(plane):
    figure = plane.plot(0.5, plane.grid.with_shape((64, 32)))
    assert figure.axes[0].images[0].get_array().shape == (32, 64)


def test_space_shows_three_projections(space):
    figure = space.plot((0, 1))
    shown = [axis for axis in figure.axes if axis.images and axis.get_label() != "<colorbar>"]
    assert len(shown) == 6
    values = space.density(0).numpy()
    first, _, second, _, third, _ = (np.asarray(a.images[0].get_array()) for a in shown)
    assert first == pytest.approx(values.sum(2).T * 0.5)
    assert second == pytest.approx(values.sum(1).T * 0.5)
    assert third == pytest.approx(values.sum(0).T * 0.5)
    assert [(a.get_xlabel(), a.get_ylabel()) for a in shown[::2]] == [
        ("x", "y"),
        ("x", "z"),
        ("y", "z"),
    ]


def test_paths_together_have_a_row_each(plane, line):
    figure = plotting.plot_together({"in the plane": plane, "on a line": line}, (0, 1))
    assert [axis.get_ylabel() for axis in figure.axes] == ["in the plane", "", "on a line", ""]
    assert [axis.get_title() for axis in figure.axes] == ["t = 0", "t = 1", "", ""]
    assert figure.axes[2].lines[0].get_ydata() == pytest.approx(line.density(0).numpy())
    assert figure.axes[2].get_ylim() == figure.axes[3].get_ylim()


def test_text_is_inside_the_picture(line, plane, space):
    """Nothing is cut off at the edges: the outermost pixels are all white."""
    for figure in (line.plot(), plane.plot(), space.plot(), plotting.plot_together({"a": plane})):
        drawn = pixels(figure)
        for edge in (drawn[0], drawn[-1], drawn[:, 0], drawn[:, -1]):
            assert (edge == 255).all()


def test_no_global_state(line, plane):
    settings = dict(matplotlib.rcParams)
    line.plot()
    plane.plot()
    assert dict(matplotlib.rcParams) == settings
    assert not Gcf.figs  # the figures that pyplot knows and keeps alive


# ---- animations


def test_plane_gif_runs_forth_and_back(plane, tmp_path):
    file = plane.animate(tmp_path / "path.gif", frames=6)
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
    file = plane.animate(tmp_path / "path.gif", frames=3)
    colours = plotting.DENSITY_MAP(np.linspace(0, 1, plotting.LEVELS), bytes=True)[:, :3]
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
    assert frame.shape == (208, sum(widths) + 2 * plotting.GAP, 3)
    assert (frame[:, 260 : 260 + plotting.GAP] == 255).all()


def test_fine_grids_are_not_scaled(tmp_path):
    grid = geonet.Grid((300, 20), 0, (15, 1))
    path = geonet.geodesic(bump(grid, 2, 0.5), bump(grid, 9, 0.5), "linear")
    frame, _ = next(frames_of(path.animate(tmp_path / "path.gif", frames=2)))
    assert frame.shape[:2] == (20, 300)


# ---- refusals


def test_batches_are_refused(batch, tmp_path):
    with pytest.raises(InputError, match=r"holds 3 pairs; plot one pair: .*source\[0\]"):
        batch.plot()
    with pytest.raises(InputError, match="holds 3 pairs"):
        batch.animate(tmp_path / "path.gif")
    with pytest.raises(InputError, match="holds 3 pairs"):
        plotting.plot_together({"many": batch})


def test_four_dimensions_are_refused(tmp_path):
    grid = geonet.Grid((3, 3, 3, 3))
    density = geonet.Density(torch.ones(grid.shape), grid)
    path = geonet.geodesic(density, density, "linear")
    for draw in (path.plot, lambda: path.animate(tmp_path / "a.gif", 2)):
        with pytest.raises(InputError, match="is 4D; pictures are made in one to three dimensions"):
            draw()
    with pytest.raises(InputError, match="is 4D; rows are made in one or two dimensions"):
        plotting.plot_together({"four": path})


def test_bad_animations_are_refused(line, tmp_path):
    with pytest.raises(FileError, match=r"path\.mp4 does not end in \.gif"):
        line.animate(tmp_path / "path.mp4")
    with pytest.raises(
        InputError, match="frames is 1; an animation needs a whole number, at least 2"
    ):
        line.animate(tmp_path / "path.gif", frames=1)
    with pytest.raises(FileError, match=r"folder .*nowhere does not exist"):
        line.animate(tmp_path / "nowhere" / "path.gif", frames=2)
    with pytest.raises(InputError, match=r"t = 1\.5 is outside \[0, 1\]"):
        line.plot((0, 1.5))


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
