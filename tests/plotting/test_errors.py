"""Error maps: path − reference, neutral where they agree."""

from __future__ import annotations

import numpy as np
import pytest

import geonet
from geonet.errors import GridError, InputError
from geonet.metrics import l1
from geonet.plotting import plot_error
from geonet.plotting.style import ERROR_MAP


@pytest.fixture(scope="module")
def mixed(line):
    """The linear mixture of the same ends, which is far off midway."""
    return geonet.geodesic(line.source, line.target, "linear")


def images(figure):
    return [a.images[0] for a in figure.axes if a.images and a.get_label() != "<colorbar>"]


def labels_for(path, reference, times):
    errors = l1(path.density(times), reference.density(times)).tolist()
    return [f"L1 = {100 * error:.2f} %" for error in errors]


def test_a_path_against_itself_is_neutral(plane, space, inside):
    neutral = ERROR_MAP(0.5, bytes=True)[:3]
    for path in (plane, space):
        figure = plot_error(path, path, 0.5)
        shown = [a for a in figure.axes if a.images and a.get_label() != "<colorbar>"]
        for axis in shown:
            assert (np.abs(inside(figure, axis).astype(int) - neutral) <= 1).all()
        assert "L1 = 0.00 %" in figure.axes[0].get_title()


def test_line_against_itself_is_flat(line):
    curves, history, _ = plot_error(line, line).axes
    assert all((drawn.get_ydata() == 0).all() for drawn in curves.lines)
    assert not np.asarray(history.images[0].get_array()).any()


def test_line_shows_the_signed_error(line, mixed):
    times = (0, 0.5, 1)
    figure = plot_error(mixed, line, times)
    curves, history, bar = figure.axes
    difference = mixed.density(0.5).numpy() - line.density(0.5).numpy()
    assert curves.lines[1].get_ydata() == pytest.approx(difference)
    assert curves.get_ylim()[0] == pytest.approx(-curves.get_ylim()[1])
    assert curves.get_ylim()[1] > np.abs(difference).max()
    assert np.asarray(history.images[0].get_array())[100] == pytest.approx(difference)
    low, high = history.images[0].get_clim()
    assert low == -high
    assert high >= np.abs(difference).max()
    entries = [entry.get_text() for entry in curves.get_legend().get_texts()]
    assert [e.split(", ")[1] for e in entries] == labels_for(mixed, line, times)
    assert (curves.get_ylabel(), bar.get_ylabel()) == ("error", "error")
    assert figure.get_suptitle() == "linear − quantile"


def test_plane_shows_signed_maps_with_their_errors(shift, inside):
    mixed = geonet.geodesic(shift.source, shift.target, "linear")
    times = (0, 0.5)
    figure = plot_error(mixed, shift, times)
    first, second = images(figure)
    difference = mixed.density(0.5).numpy() - shift.density(0.5).numpy()
    assert np.asarray(second.get_array()) == pytest.approx(difference.T[::-1])
    assert first.norm is second.norm
    assert first.norm.vmin == -first.norm.vmax
    assert first.norm.vmax == pytest.approx(np.abs(difference).max())
    titles = [axis.get_title() for axis in figure.axes[:2]]
    assert [title.split("\n")[1] for title in titles] == labels_for(mixed, shift, times)
    # Too much mass at the ends is purple, too little in the middle orange.
    drawn = inside(figure, figure.axes[1]).astype(float)
    height, width = drawn.shape[:2]
    for (x, y), purple in (((1, 2), True), ((1.5, 1.75), False), ((2, 1.5), True)):
        red, _, blue = drawn[int(height * (1 - y / 3)), int(width * x / 4)]
        assert (blue > red + 20) if purple else (red > blue + 20)


def test_space_shows_projections_of_the_error(space):
    other = geonet.geodesic(space.source, space.source, "linear")
    figure = plot_error(space, other, (0.5, 1))
    difference = space.density(1.0).numpy() - other.density(1.0).numpy()
    shown = [np.asarray(image.get_array()) for image in images(figure)]
    assert len(shown) == 6
    assert shown[1] == pytest.approx(difference.sum(2).T[::-1] * 0.5)
    assert shown[5] == pytest.approx(difference.sum(0).T[::-1] * 0.5)
    assert labels_for(space, other, (1.0,))[0] in figure.axes[1].get_title()


def test_both_are_compared_on_one_grid(line, mixed):
    """The reference may have other cells, and `grid` serves both."""
    fine = geonet.Grid(90, 0, 2)
    reference = geonet.geodesic(*(end.resample(fine) for end in (line.source, line.target)))
    assert images(plot_error(mixed, reference))[0].get_array().shape[1] == 60
    assert images(plot_error(mixed, reference, grid=fine))[0].get_array().shape[1] == 90


def test_rounding_is_not_blown_up(line):
    class Rounded(type(line)):
        kind = "rounded"

        def _density(self, times, grid):
            return super()._density(times, grid) * (1 + 1e-15)

    del geonet.Geodesic.kinds["rounded"]
    image = images(plot_error(Rounded(line.source, line.target, "rounded"), line))[0]
    assert np.abs(image.get_array()).max() < 1e-3 * image.get_clim()[1]


def test_bad_references_are_refused(line, plane, batch):
    with pytest.raises(InputError, match=r"reference is Density.*; give what geonet\.geodesic"):
        plot_error(line, line.source)
    with pytest.raises(GridError, match=r"does not live on 60 cells.*give one in the same box"):
        plot_error(line, plane)
    grid = geonet.Grid(20)
    density = geonet.Density(np.ones(20), grid)
    path = geonet.geodesic(density, density, "quantile")
    with pytest.raises(InputError, match="holds 3 pairs"):
        plot_error(path, batch)
    with pytest.raises(InputError, match="holds 3 pairs"):
        plot_error(batch, path)
