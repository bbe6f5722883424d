"""Densities: curves, space × time, strips, projections and rows."""

from __future__ import annotations

import numpy as np
import pytest

import geonet
from geonet.errors import InputError
from geonet.plotting import plot_history, plot_together
from geonet.plotting.style import TIME_MAP


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
    assert bar.get_ylabel() == "density, mass one"  # more of the source is beyond the box
    assert f"W₂ = {float(line.distance):.4g}" in figure.get_suptitle()


def test_many_curves_get_a_colour_bar_for_time(line):
    figure = line.plot(np.linspace(0, 1, 9))
    curves, _, bar, _ = figure.axes
    assert curves.get_legend() is None
    assert (bar.get_label(), bar.get_ylabel()) == ("<colorbar>", "t")
    assert [drawn.get_color() for drawn in curves.lines] == [TIME_MAP(k / 8) for k in range(9)]


def test_negative_values_of_a_curve_stay_visible(line):
    class Dipping(type(line)):
        kind = "dipping"

        def _density(self, times, grid):
            return super()._density(times, grid) - 0.1

    path = Dipping(line.source, line.target, "dipping")
    del geonet.Geodesic.kinds["dipping"]
    assert path.plot().axes[0].get_ylim()[0] < -0.05


def test_history_alone_is_that_of_the_curves(line):
    alone, bar = plot_history(line).axes
    beside = line.plot().axes[1].images[0]
    image = alone.images[0]
    assert np.array_equal(image.get_array(), beside.get_array())
    assert image.get_extent() == beside.get_extent()
    assert image.norm.vmin == 0
    assert bar.get_ylabel() == "density, mass one"  # more of the source is beyond the box
    assert (alone.get_xlabel(), alone.get_ylabel()) == ("x", "t")


def test_history_runs_upwards(line, inside):
    """The bump is left at the bottom, where t = 0, and right at the top."""
    figure = plot_history(line)
    drawn = inside(figure, figure.axes[0]).astype(float).sum(-1)
    width = drawn.shape[1]
    assert drawn[-1].argmax() / width == pytest.approx(0.2, abs=0.03)
    assert drawn[0].argmax() / width == pytest.approx(0.75, abs=0.03)


def test_history_is_drawn_on_a_finer_grid(line):
    figure = plot_history(line, line.grid.with_shape(90))
    assert figure.axes[0].images[0].get_array().shape[1] == 90


def test_history_is_refused_in_2d(plane):
    with pytest.raises(InputError, match=r"is 2D and space × time is drawn in 1D; use path.plot"):
        plot_history(plane)


def test_plane_is_a_strip_on_one_colour_scale(plane):
    figure = plane.plot((0, 0.25, 1))
    *frames, bar = figure.axes
    assert [axis.get_title() for axis in frames] == ["t = 0", "t = 0.25", "t = 1"]
    scales = {image.norm for axis in frames for image in axis.images}
    assert len(scales) == 1
    top = float(plane.density((0, 0.25, 1)).tensor.max())
    assert (scales.pop().vmin, bar.get_ylim()[1]) == (0, pytest.approx(top))
    for axis, t in zip(frames, (0, 0.25, 1), strict=True):
        image = axis.images[0]
        assert list(image.get_extent()) == [0, 2, 0, 1]
        assert image.origin == "upper"
        assert np.asarray(image.get_array()) == pytest.approx(plane.density(t).numpy().T[::-1])
        assert axis.get_aspect() == 1
    assert figure.get_suptitle() == "linear"  # which has no distance


def test_mass_is_bright_where_the_density_is(plane, inside):
    """The bump at the lower left is drawn at the lower left: x to the right, y upwards."""
    figure = plane.plot(0.0)
    drawn = inside(figure, figure.axes[0]).astype(float).sum(-1)
    row, column = np.unravel_index(drawn.argmax(), drawn.shape)
    assert row / drawn.shape[0] == pytest.approx(1 - 0.3, abs=0.05)
    assert column / drawn.shape[1] == pytest.approx(0.2, abs=0.05)


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
    assert first == pytest.approx(values.sum(2).T[::-1] * 0.5)
    assert second == pytest.approx(values.sum(1).T[::-1] * 0.5)
    assert third == pytest.approx(values.sum(0).T[::-1] * 0.5)
    assert [(a.get_xlabel(), a.get_ylabel()) for a in shown[::2]] == [
        ("x", "y"),
        ("x", "z"),
        ("y", "z"),
    ]
    bars = [axis.get_ylabel() for axis in figure.axes if axis.get_label() == "<colorbar>"]
    assert bars == ["density over z", "density over y", "density over x"]


def test_paths_together_have_a_row_each(plane, line):
    figure = plot_together({"in the plane": plane, "on a line": line}, (0, 1))
    assert [axis.get_ylabel() for axis in figure.axes] == ["in the plane", "", "on a line", ""]
    assert [axis.get_title() for axis in figure.axes] == ["t = 0", "t = 1", "", ""]
    assert figure.axes[2].lines[0].get_ydata() == pytest.approx(line.density(0).numpy())
    assert figure.axes[2].get_ylim() == figure.axes[3].get_ylim()


def test_rows_in_3d_are_refused(space):
    with pytest.raises(InputError, match="is 3D; rows are made in one or two dimensions"):
        plot_together({"space": space})
