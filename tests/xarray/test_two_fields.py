"""Geodesic and distance between two fields without time."""

from __future__ import annotations

import numpy as np
import pytest

import geonet.xarray
from geonet.errors import GridError, InputError


def test_geodesic_equals_interp_of_two_frames(ensemble):
    first, second = ensemble.isel(time=0, drop=True), ensemble.isel(time=1, drop=True)
    ours = geonet.xarray.geodesic(first, second, [0, 0.25, 1])
    timed = ensemble.isel(time=slice(2)).assign_coords(time=[0.0, 1.0])
    expected = timed.geonet.interp(time=[0, 0.25, 1], motion=None)
    assert ours.dims == ("t", "member", "y", "x") and ours.t.values.tolist() == [0, 0.25, 1]
    assert (ours.values == expected.values).all()
    assert ours.attrs == first.attrs and ours.name == "rain"
    single = geonet.xarray.geodesic(first, second, 0.25)
    assert single.dims == first.dims and (single.values == ours.values[1]).all()


def test_lazy_fields(ensemble):
    first, second = ensemble.isel(time=0), ensemble.isel(time=1)
    lazy = geonet.xarray.geodesic(first.chunk(member=1, x=7), second.chunk(member=1), [0.5])
    assert lazy.chunks is not None
    assert (lazy.values == geonet.xarray.geodesic(first, second, [0.5]).values).all()
    apart = first.chunk(member=1).geonet.distance(second)
    assert apart.chunks is not None
    assert (apart.values == first.geonet.distance(second).values).all()


def test_distance_per_member(ensemble):
    first, second = ensemble.isel(time=0, drop=True), ensemble.isel(time=1, drop=True)
    distance = first.geonet.distance(second)
    assert distance.dims == ("member",) and distance.attrs["units"] == "km"
    np.testing.assert_allclose(distance, ensemble.geonet.distance().isel(time=0), rtol=1e-12)
    to_one = first.geonet.distance(second.isel(member=0, drop=True))
    assert to_one.dims == ("member",)
    assert to_one.values[0] == distance.values[0] and to_one.values[1] != distance.values[1]


def test_one_field_with_descending_coordinates(rain):
    flipped = rain[1].isel(y=slice(None, None, -1))
    assert rain[0].geonet.distance(flipped) == rain[0].geonet.distance(rain[1])
    ours = geonet.xarray.geodesic(rain[0], flipped, [0.5, 1.0])
    assert (ours.values == geonet.xarray.geodesic(rain[0], rain[1], [0.5, 1.0]).values).all()


def test_only_common_coordinates_are_kept(rain):
    first = rain[0].assign_coords(crs=7, run=1, level=2)
    second = rain[1].assign_coords(crs=7, run=2)
    path = geonet.xarray.geodesic(first, second, [0, 0.5, 1])
    assert set(path.coords) == {"t", "y", "x", "crs", "level"}
    assert set(first.geonet.distance(second).coords) == {"crs", "level"}
    assert "time" not in geonet.xarray.geodesic(first, second.drop_vars("time"), [0.5]).coords
    both = geonet.xarray.geodesic(first, second.assign_coords(time=first.time), [0.5])
    assert both.time == first.time


@pytest.mark.parametrize(
    "change, kind, message",
    [
        (lambda f: f.isel(x=slice(5)), GridError, "differ along 'x'"),
        (lambda f: f.rename(x="lon"), GridError, "differ along 'x'"),
        (lambda f: f.assign_coords(x=f.x + 3), GridError, "different boxes"),
        (lambda f: f.astype(complex), InputError, "holds complex128, not numbers"),
        (lambda f: f.values, InputError, "give an xarray.DataArray"),
        (lambda f: f.expand_dims(t=[0]), InputError, "have a dimension 't'"),
    ],
)
def test_fields_that_do_not_match(rain, change, kind, message):
    with pytest.raises(kind, match=message):
        geonet.xarray.geodesic(rain[0], change(rain[1]), [0.5])


def test_errors_name_the_field(rain):
    with pytest.raises(InputError, match="the second field has 320 negative values"):
        geonet.xarray.geodesic(rain[0], -rain[1], [0.5])
    labelled = rain.expand_dims(member=[3])
    with pytest.raises(InputError, match="'member'"):
        labelled[:, 0].geonet.distance(labelled.assign_coords(member=[8])[:, 1])
