"""`da.geonet.interp`: the values of geonet.geodesic in the clothes of da.interp."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import geonet
from geonet._threads import one_thread

START, MINUTE = np.datetime64("2026-07-01T12:00", "ns"), np.timedelta64(1, "m")


def assert_dressed_alike(ours: xr.DataArray, theirs: xr.DataArray) -> None:
    """Everything but the values, and but indices, which some versions of xarray lose."""
    assert ours.dims == theirs.dims and ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype and ours.name == theirs.name
    assert ours.attrs == theirs.attrs and ours.encoding == theirs.encoding
    assert set(ours.coords) == set(theirs.coords)
    for name, coord in theirs.coords.items():
        assert ours[name].variable.identical(coord.variable), name


def test_every_pair_is_that_of_geonet_geodesic(rain, fine):
    ours = rain.geonet.interp(time=fine)
    grid = geonet.Grid((16, 20), (-1, -1), (31, 39))
    for k in range(3):
        ends = (geonet.Density(rain.values[i], grid) for i in (k, k + 1))
        with one_thread():
            frame = geonet.geodesic(*ends).density(0.5).numpy(mass="given")
        np.testing.assert_allclose(ours.values[2 * k + 1], frame, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "uint8"])
def test_frames_of_the_field_come_back_bit_for_bit(rain, fine, dtype):
    field = (100 * rain).astype(dtype)
    ours = field.geonet.interp(time=fine)
    assert ours.dtype == field.interp(time=fine).dtype
    assert (ours.values[::2] == field.values).all()


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(START + 5 * MINUTE, id="one"),
        pytest.param([START + 5 * MINUTE], id="list of one"),
        pytest.param(["2026-07-01T12:05", "2026-07-01T12:25"], id="words"),
        pytest.param(START + np.array([25, 5, 10]) * MINUTE, id="in any order"),
        pytest.param(
            xr.DataArray(START + np.array([5, 15]) * MINUTE, dims="storm", attrs={"a": 1}),
            id="other dimension",
        ),
    ],
)
def test_the_clothes_are_those_of_interp(ensemble, asked):
    field = ensemble.assign_coords(
        step=("time", np.arange(4.0)),
        height=(("y", "x"), np.ones((16, 20))),
        source="radar",
    )
    ours, theirs = field.geonet.interp(time=asked), field.interp(time=asked)
    assert_dressed_alike(ours, theirs)


def test_an_array_of_times_counts_by_its_values_not_by_its_coordinate(rain):
    halfway = rain.time[:-1] + 5 * MINUTE
    ours = rain.geonet.interp(time=halfway)
    assert_dressed_alike(ours, rain.interp(time=halfway))
    assert (ours.values == rain.geonet.interp(time=halfway.values).values).all()
    assert not (ours.values == rain.values[:-1]).all()


@pytest.mark.parametrize("dims", [("x", "time", "y"), ("y", "x", "time"), ("time", "x", "y")])
def test_dimensions_may_stand_in_any_order(rain, fine, dims):
    ours = rain.transpose(*dims).geonet.interp(time=fine)
    assert ours.dims == dims
    # Other axes first make other sums: equal but for rounding and the solver's tolerance.
    expected = rain.geonet.interp(time=fine).transpose(*dims)
    assert float(abs(ours - expected).sum() / expected.sum()) < 1e-3


def test_irregular_steps_count_by_their_lengths(rain):
    field = rain.assign_coords(time=START + np.array([0, 10, 40, 45]) * MINUTE)
    ours = field.geonet.interp(time=START + np.array([5, 25]) * MINUTE)
    expected = rain.geonet.interp(time=START + np.array([5, 15]) * MINUTE)
    assert (ours.values == expected.values).all()


def test_times_may_be_numbers_durations_or_dates_of_other_calendars(rain, fine):
    expected = rain.geonet.interp(time=fine).values
    numbered = rain.assign_coords(time=np.arange(4) * 10)
    assert (numbered.geonet.interp(time=np.arange(7) * 5.0).values == expected).all()
    lasting = rain.assign_coords(time=rain.time - rain.time[0])
    assert (lasting.geonet.interp(time=fine - START).values == expected).all()
    bare = rain.drop_vars("time")
    assert (bare.geonet.interp(time=np.arange(7) / 2).values == expected).all()
    dates = xr.date_range("2001-02-28", periods=7, freq="D", calendar="360_day", use_cftime=True)
    other = rain.assign_coords(time=dates[::2])
    assert (other.geonet.interp(time=dates).values == expected).all()


def test_frames_may_stand_in_any_order(rain, fine):
    shuffled = rain.isel(time=[2, 0, 3, 1])
    assert (shuffled.geonet.interp(time=fine).values == rain.geonet.interp(time=fine).values).all()


def test_every_member_is_a_field_by_itself(ensemble, fine):
    ours = ensemble.geonet.interp(time=fine)
    alone = ensemble.sel(member=7).geonet.interp(time=fine)
    assert (ours.sel(member=7).values == alone.values).all()


@pytest.mark.parametrize("cells", [(40,), (8, 9, 10)])
def test_space_has_one_to_three_dimensions(spots, cells):
    dims = ("time", "a", "b", "c")[: 1 + len(cells)]
    field = xr.DataArray(spots(2, cells), dims=dims, coords={"time": [0.0, 1.0]})
    ours = field.geonet.interp(time=[0.5], space=dims[1:])
    assert ours.shape == (1, *cells)
    np.testing.assert_allclose(ours.sum(), field.mean("time").sum(), rtol=1e-9)


def test_totals_go_evenly_from_frame_to_frame(rain):
    shares = np.array([0.2, 0.5, 0.9])
    times = START + (600 * shares).astype(int) * np.timedelta64(1, "s")
    totals = rain.geonet.interp(time=times).sum(("y", "x"))
    first, last = rain.sum(("y", "x")).values[:2]
    np.testing.assert_allclose(totals, (1 - shares) * first + shares * last, rtol=1e-9)


def test_mass_one_gives_frames_of_total_one(rain, fine):
    ours = rain.geonet.interp(time=fine, mass="one")
    np.testing.assert_allclose(ours.sum(("y", "x")) * 4.0, 1.0, rtol=1e-9)  # cells of 2 km × 2 km


def test_other_solvers_and_their_options_answer(rain, fine):
    by_name = rain.geonet.interp(time=fine, solver="midpoint", options={"tolerance": 1e-4})
    made = rain.geonet.interp(time=fine, solver=geonet.solver("midpoint", tolerance=1e-4))
    assert (by_name.values == made.values).all()
    assert not (by_name.values == rain.geonet.interp(time=fine).values).all()


def test_times_outside_can_be_frames_without_values(rain):
    asked = START + np.array([-5, 5, 35]) * MINUTE
    ours = rain.geonet.interp(time=asked, outside="nan")
    assert np.isnan(ours.values[[0, 2]]).all()
    assert (ours.values[1] == rain.geonet.interp(time=asked[1]).values).all()


def test_nothing_of_the_field_is_changed(rain, fine):
    before = rain.copy(deep=True)
    rain.geonet.interp(time=fine)
    assert rain.identical(before)
