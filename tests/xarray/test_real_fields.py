"""What fields of the world do: gaps, empty frames, the globe."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from geonet.errors import ConvergenceWarning
from geonet.xarray.coordinates import METRES

START, MINUTE = np.datetime64("2026-07-01T12:00", "ns"), np.timedelta64(1, "m")
HALF = START + 5 * MINUTE


@pytest.fixture
def gappy(rain):
    """A cell without value in the first frame, and another one in the second."""
    values = rain.values.copy()
    values[0, 2, 3] = values[1, 4, 5] = np.nan
    return rain.copy(data=values)


def test_excluded_cells_are_missing_in_all_between(gappy):
    between = gappy.geonet.interp(time=HALF, missing="exclude")
    gaps = np.isnan(between.values)
    assert gaps[2, 3] and gaps[4, 5] and gaps.sum() == 2


def test_what_is_excluded_counts_in_neither_frame(gappy):
    lacking = gappy.copy()
    lacking.values[:2, 2, 3] = lacking.values[:2, 4, 5] = 0.0
    ours = gappy.geonet.interp(time=HALF, missing="exclude")
    expected = lacking.geonet.interp(time=HALF)
    assert (ours.fillna(-1).values == expected.where(ours.notnull(), -1).values).all()


def test_filled_cells_have_values_and_count(gappy):
    filled = gappy.geonet.interp(time=HALF, missing=0.5)
    assert (filled.values == gappy.fillna(0.5).geonet.interp(time=HALF).values).all()


def test_frames_of_the_field_keep_their_gaps(gappy):
    times = gappy.time.values
    for missing in ("exclude", 0.0):
        ours = gappy.geonet.interp(time=times, missing=missing)
        assert ours.fillna(-1).equals(gappy.fillna(-1).astype(ours.dtype))


def test_frames_without_any_value_have_none_around(rain):
    field = rain.where(rain.time != rain.time[1])
    ours = field.geonet.interp(time=START + np.array([5, 25]) * MINUTE, missing="exclude")
    assert np.isnan(ours.values[0]).all() and not np.isnan(ours.values[1]).any()


def test_empty_frames_fade_and_are_flagged(rain):
    field = rain.where(rain.time != rain.time[1], 0.0)
    asked = START + np.array([0, 5, 10, 18, 25]) * MINUTE
    ours = field.geonet.interp(time=asked, flag="faded")
    assert ours.faded.values.tolist() == [False, True, False, True, False]
    np.testing.assert_allclose(ours[1], field[0] / 2)
    np.testing.assert_allclose(ours[3], 0.8 * field[2])
    report = field.geonet.report()
    assert report.faded.values.tolist() == [True, True, False]
    assert report.solver.values.tolist() == ["fade", "fade", "midpoint"]
    assert np.isnan(report.distance.values[:2]).all()


def test_two_empty_frames_stay_empty(rain):
    ours = (0 * rain).geonet.interp(time=HALF, flag="faded")
    assert not ours.values.any() and bool(ours.faded)


def on_globe(values: np.ndarray, south: float = 40.0) -> xr.DataArray:
    """Cells of a quarter of a degree, from north to south."""
    latitude = south + 0.25 * np.arange(values.shape[1])[::-1]
    longitude = 5 + 0.25 * np.arange(values.shape[2])
    coords = {"time": START + np.arange(len(values)) * 10 * MINUTE}
    coords |= {"latitude": latitude, "longitude": longitude}
    return xr.DataArray(values, coords, ("time", "latitude", "longitude"), "cloud")


def test_cells_of_the_globe_count_by_their_areas(spots):
    field = on_globe(spots(2, (60, 24)))
    weights = np.cos(np.radians(field.latitude))
    first, last = ((frame * weights).sum() for frame in field)
    halfway = (field.geonet.interp(time=HALF) * weights).sum()
    np.testing.assert_allclose(halfway, (first + last) / 2, rtol=1e-9)
    plain = field.geonet.interp(time=HALF, geographic=False)
    assert abs((plain * weights).sum() / halfway - 1) > 1e-4


def test_lengths_on_the_globe_are_metres():
    narrow = np.full((2, 24, 24), 1e-9)
    narrow[0, 8:12, 8:12] = narrow[1, 8:12, 12:16] = 1.0
    field = on_globe(narrow)
    parallel = float(np.cos(np.radians(field.latitude[8:12])).mean())
    distance = field.geonet.distance()
    assert distance.attrs["units"] == "m"
    np.testing.assert_allclose(distance, METRES * parallel, rtol=0.02)  # a degree to the east
    wind = field.geonet.velocity(time=HALF)
    east = wind.velocity_longitude.values[8:12, 10:14].mean()
    assert wind.velocity_longitude.attrs["units"] == "m s-1"
    np.testing.assert_allclose(east, METRES * parallel / 600, rtol=0.05)


def test_velocities_follow_coordinates_that_descend(rain):
    upwards = rain.geonet.velocity(time=HALF)
    flipped = rain.assign_coords(y=("y", rain.y.values[::-1], {"units": "km"}))
    downwards = flipped.geonet.velocity(time=HALF)
    assert (downwards.velocity_y.values == -upwards.velocity_y.values).all()
    assert (downwards.velocity_x.values == upwards.velocity_x.values).all()
    assert upwards.velocity_y.attrs["units"] == "km s-1"
    middle = upwards.velocity_y.values[5:8, 7:10].mean()
    np.testing.assert_allclose(middle, 1.6 * 2 / 600, rtol=0.2)  # 1.6 cells of 2 km in ten minutes


def test_velocities_at_the_frames_are_those_of_the_pair_that_begins(rain):
    exactly = rain.geonet.velocity(time=rain.time.values)
    soon = rain.geonet.velocity(time=rain.time.values[:-1] + np.timedelta64(1, "s"))
    for name in exactly:
        a, b = exactly[name].values[:-1], soon[name].values
        assert np.abs(a - b).max() < 0.05 * np.abs(a).max()
        assert np.isfinite(exactly[name].values[-1]).all()


def test_velocities_are_unknown_where_frames_fade(rain):
    field = rain.where(rain.time != rain.time[1], 0.0)
    wind = field.geonet.velocity(time=START + np.array([5, 25]) * MINUTE)
    assert np.isnan(wind.velocity_y.values[0]).all()
    assert np.isfinite(wind.velocity_y.values[1]).all()


def test_rounded_coordinates_count_as_even(rain):
    rounded = rain.assign_coords(x=np.round(np.linspace(0, 13.3, 20), 2).astype("float32"))
    assert np.isfinite(rounded.geonet.interp(time=HALF).values).all()


def test_units_are_kept(rain):
    assert rain.geonet.interp(time=HALF).attrs == {"units": "mm h-1"}
    assert rain.geonet.interp(time=HALF).x.attrs == {"units": "km"}


def test_distances_are_lengths_and_do_not_depend_on_totals(rain):
    distance = rain.geonet.distance()
    assert distance.attrs["units"] == "km" and distance.dims == ("time",)
    assert (distance.until.values == rain.time.values[1:]).all()
    scaled = rain * xr.DataArray([1, 7, 2, 1], dims="time")
    np.testing.assert_allclose(scaled.geonet.distance(), distance, rtol=1e-6)


def test_reports_say_what_is_known_of_every_pair(ensemble):
    report = ensemble.geonet.report()
    assert report.distance.dims == ("time", "member") and report.sizes["time"] == 3
    # A report moves a distance that is just outside of its bounds to the nearest of them.
    np.testing.assert_allclose(report.distance, ensemble.geonet.distance(), rtol=2e-3)
    assert (report.distance_lower_bound <= report.distance * 1.01).all()
    assert (report.distance_upper_bound >= report.distance * 0.99).all()
    totals = 4.0 * ensemble.sum(("y", "x"))
    np.testing.assert_allclose(report.source_mass, totals[:-1])
    np.testing.assert_allclose(report.target_mass, totals[1:])
    assert report.converged.all() and not report.faded.any()
    assert (report.error_estimate < 0.2).all()


def test_the_name_of_the_field_does_not_matter(rain):
    ours = rain.rename(None).geonet.interp(time=HALF)
    assert ours.name is None and (ours.values == rain.geonet.interp(time=HALF).values).all()


@pytest.mark.parametrize("ask", ["interp", "report"])
def test_a_pair_that_does_not_converge_is_said(rain, ask):
    settings = {"solver": "midpoint", "options": {"time_limit": 1e-9}}
    with pytest.warns(ConvergenceWarning, match="The pair did not reach the tolerance"):
        if ask == "interp":
            rain.geonet.interp(time=HALF, **settings)
        else:
            assert not rain.geonet.report(**settings).converged.any()
