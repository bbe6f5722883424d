"""`path.plot(kind=...)` gives the picture of that name."""

from __future__ import annotations

import numpy as np
import pytest

from geonet import plotting
from geonet.errors import InputError


@pytest.mark.parametrize(
    ("kind", "where", "draw"),
    [
        ("frames", "plane", plotting.plot_geodesic),
        ("velocity", "shift", plotting.plot_velocity),
        ("slices", "space", plotting.plot_slices),
        ("history", "line", plotting.plot_history),
        ("tracks", "shift", plotting.plot_tracks),
    ],
)
def test_kinds_are_the_functions_pictures(kind, where, draw, request, pixels):
    path = request.getfixturevalue(where)
    assert np.array_equal(pixels(path.plot(kind=kind)), pixels(draw(path)))


def test_frames_are_the_default_at_quarters(plane):
    titles = [axis.get_title() for axis in plane.plot().axes if axis.images]
    assert titles[:5] == ["t = 0", "t = 0.25", "t = 0.5", "t = 0.75", "t = 1"]


def test_times_and_grid_are_passed_on(shift):
    figure = shift.plot((0.1, 0.9), shift.grid.with_shape((20, 15)), kind="velocity")
    assert [axis.get_title() for axis in figure.axes[:2]] == ["t = 0.1", "t = 0.9"]
    assert figure.axes[0].images[0].get_array().shape == (15, 20)


def test_unknown_kinds_are_refused(line):
    with pytest.raises(
        InputError,
        match="no kind 'film' of picture; choose one of frames, velocity, slices, history, tracks",
    ):
        line.plot(kind="film")


def test_a_kind_in_the_place_of_times_is_told(plane):
    with pytest.raises(InputError, match="is the times; name a kind by kind='velocity'"):
        plane.plot("velocity")


def test_wrong_dimensions_are_refused(line, plane):
    with pytest.raises(InputError, match="is 1D and slices are drawn in 3D"):
        line.plot(kind="slices")
    with pytest.raises(InputError, match="is 2D and space × time is drawn in 1D"):
        plane.plot(kind="history")


def test_times_are_not_ignored_silently(line):
    with pytest.raises(InputError, match="'history' shows all times; leave `times` out"):
        line.plot((0, 1), kind="history")
