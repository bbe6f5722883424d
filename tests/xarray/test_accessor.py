"""The accessor: values of `geonet.geodesic` with the coordinates of `da.interp`."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import geonet
from geonet._threads import one_thread
from geonet.errors import ConvergenceWarning
from geonet.xarray.coordinates import METRES_PER_DEGREE

START, MINUTE = np.datetime64("2026-07-01T12:00", "ns"), np.timedelta64(1, "m")
HALF = START + 5 * MINUTE


def assert_same_coordinates(ours: xr.DataArray, theirs: xr.DataArray) -> None:
    """Compare everything except values and indices, which some versions of xarray lose."""
    assert ours.dims == theirs.dims and ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype and ours.name == theirs.name
    assert ours.attrs == theirs.attrs and ours.encoding == theirs.encoding
    assert set(ours.coords) == set(theirs.coords)
    for name, coord in theirs.coords.items():
        assert ours[name].variable.identical(coord.variable), name


def test_values_are_those_of_geonet_geodesic(rain, fine):
    ours = rain.geonet.interp(time=fine, motion=None)
    grid = geonet.Grid((16, 20), (-1, -1), (31, 39))
    for k in range(3):
        ends = (geonet.Density(rain.values[i], grid) for i in (k, k + 1))
        with one_thread():
            frame = geonet.geodesic(*ends).density(0.5).numpy(mass="given")
        np.testing.assert_allclose(ours.values[2 * k + 1], frame, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_frames_are_returned_bit_for_bit(rain, fine, dtype):
    field = (100 * rain).astype(dtype)
    before = field.copy(deep=True)
    ours = field.isel(time=[2, 0, 3, 1]).geonet.interp(time=fine)
    assert ours.dtype == field.interp(time=fine).dtype
    assert (ours.values[::2] == field.values).all() and field.identical(before)


@pytest.mark.parametrize(
    "times",
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
def test_coordinates_are_those_of_interp(ensemble, times):
    field = ensemble.assign_coords(
        step=("time", np.arange(4.0)),
        height=(("y", "x"), np.ones((16, 20))),
        source="radar",
    )
    ours, theirs = field.geonet.interp(time=times), field.interp(time=times)
    assert_same_coordinates(ours, theirs)


def test_array_of_times_is_used_by_its_values_not_its_coordinate(rain):
    halfway = rain.time[:-1] + 5 * MINUTE
    ours = rain.geonet.interp(time=halfway)
    assert_same_coordinates(ours, rain.interp(time=halfway))
    assert (ours.values == rain.geonet.interp(time=halfway.values).values).all()
    assert not (ours.values == rain.values[:-1]).all()


@pytest.mark.parametrize("dims", [("x", "time", "y"), ("y", "x", "time")])
def test_dimensions_in_any_order(rain, fine, dims):
    ours = rain.transpose(*dims).geonet.interp(time=fine)
    assert ours.dims == dims
    # Another order of axes changes rounding: equal up to the solver's tolerance.
    expected = rain.geonet.interp(time=fine).transpose(*dims)
    assert float(abs(ours - expected).sum() / expected.sum()) < 1e-3


def test_times_as_numbers_durations_and_dates_of_other_calendars(rain, fine):
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


@pytest.mark.parametrize("cells", [(40,), (8, 9, 10)])
def test_one_to_three_spatial_dimensions(spots, cells):
    dims = ("time", "a", "b", "c")[: 1 + len(cells)]
    field = xr.DataArray(spots(2, cells), dims=dims, coords={"time": [0.0, 1.0]})
    ours = field.geonet.interp(time=[0.5], space=dims[1:])
    assert ours.shape == (1, *cells)
    np.testing.assert_allclose(ours.sum(), field.mean("time").sum(), rtol=1e-9)


def test_totals_are_interpolated_linearly(rain):
    shares = np.array([0.0, 0.2, 0.5, 0.9])
    times = START + (600 * shares).astype(int) * np.timedelta64(1, "s")
    totals = rain.geonet.interp(time=times).sum(("y", "x"))
    first, last = rain.sum(("y", "x")).values[:2]
    np.testing.assert_allclose(totals, (1 - shares) * first + shares * last, rtol=1e-9)
    unit = rain.geonet.interp(time=times, mass="one")
    np.testing.assert_allclose(unit.sum(("y", "x")) * 4.0, 1.0, rtol=1e-9)  # cells of 2 km × 2 km


def test_solver_and_options(rain, fine):
    by_name = rain.geonet.interp(time=fine, motion=None, solver="midpoint", tolerance=1e-4)
    solver = geonet.solver("midpoint", tolerance=1e-4)
    built = rain.geonet.interp(time=fine, motion=None, solver=solver)
    assert (by_name.values == built.values).all()
    assert not (by_name.values == rain.geonet.interp(time=fine, motion=None).values).all()


def test_times_outside_can_be_nan(rain):
    times = START + np.array([-5, 5, 35]) * MINUTE
    ours = rain.geonet.interp(time=times, outside="nan")
    assert np.isnan(ours.values[[0, 2]]).all()
    assert (ours.values[1] == rain.geonet.interp(time=times[1]).values).all()


# ---- Missing cells, empty frames, the globe, velocity, distance and report


@pytest.fixture
def gappy(rain):
    """Field with a missing cell in the first frame and another one in the second."""
    values = rain.values.copy()
    values[0, 2, 3] = values[1, 4, 5] = np.nan
    return rain.copy(data=values)


def test_excluded_cells_are_missing_between_frames(gappy):
    between = gappy.geonet.interp(time=HALF, missing="exclude")
    gaps = np.isnan(between.values)
    assert gaps[2, 3] and gaps[4, 5] and gaps.sum() == 2
    filled = gappy.geonet.interp(time=HALF, missing=0.5)
    assert (filled.values == gappy.fillna(0.5).geonet.interp(time=HALF).values).all()


@pytest.mark.parametrize("reach", [None, 8.0])
def test_cells_without_data_are_not_dry_ground(rain, reach):
    """Uniform rain stays uniform beside the edge of a radar's range, also if one radar fails."""
    seen = np.hypot(rain.y - 15, rain.x - 19) < 14
    works = (rain.time != rain.time[1]) | (rain.x < 22)
    uniform = xr.full_like(rain, 2.0).where(seen & works)
    ours = uniform.geonet.interp(time=HALF, missing="exclude", motion=None, reach=reach)
    is_known = uniform[1].notnull()
    assert (ours.notnull() == is_known).all() and 50 < is_known.sum() < seen.sum()
    np.testing.assert_allclose(ours.values[is_known.values], 2.0, rtol=1e-9)
    dry = uniform.geonet.interp(time=HALF, missing=0.0, motion=None, reach=reach)
    assert float(abs(dry.where(is_known) - 2.0).max()) > 0.05


def test_frames_keep_their_missing_cells(gappy):
    times = gappy.time.values
    for missing in ("exclude", 0.0):
        ours = gappy.geonet.interp(time=times, missing=missing)
        assert ours.fillna(-1).equals(gappy.fillna(-1).astype(ours.dtype))


def test_frame_without_values(rain):
    field = rain.where(rain.time != rain.time[1])
    ours = field.geonet.interp(time=START + np.array([5, 25]) * MINUTE, missing="exclude")
    assert np.isnan(ours.values[0]).all() and not np.isnan(ours.values[1]).any()


def test_empty_frames_fade_and_are_flagged(rain):
    field = rain.where(rain.time != rain.time[1], 0.0)
    times = START + np.array([0, 5, 10, 18, 25]) * MINUTE
    ours = field.geonet.interp(time=times, flag="faded")
    assert ours.faded.values.tolist() == [False, True, False, True, False]
    np.testing.assert_allclose(ours[1], field[0] / 2)
    np.testing.assert_allclose(ours[3], 0.8 * field[2])
    report = field.geonet.report()
    assert report.faded.values.tolist() == [True, True, False]
    assert report.solver.values.tolist() == ["fade", "fade", "midpoint"]
    assert np.isnan(report.distance.values[:2]).all()
    assert np.isnan(field.geonet.velocity(time=HALF).velocity_y.values).all()


def test_frames_of_unconverged_pairs_are_marked(ensemble):
    easy = ensemble.isel(time=[0, 0, 1]).assign_coords(time=ensemble.time[:3])
    times = START + np.array([0, 5, 10, 15, 20]) * MINUTE
    # Equal frames need no Newton step.
    with pytest.warns(ConvergenceWarning):
        ours = easy.geonet.interp(
            time=times,
            converged="ok",
            motion=None,
            solver="midpoint",
            max_iterations=1,
            refine=False,
        )
    assert ours.ok.dims == ("time", "member") and "faded" not in ours.coords
    expected = [True, True, True, False, True]
    assert ours.ok.transpose("member", "time").values.tolist() == [expected, expected]


def on_globe(values: np.ndarray, south: float = 40.0) -> xr.DataArray:
    """Return a field on cells of a quarter of a degree, from north to south."""
    latitude = south + 0.25 * np.arange(values.shape[1])[::-1]
    longitude = 5 + 0.25 * np.arange(values.shape[2])
    coords = {"time": START + np.arange(len(values)) * 10 * MINUTE}
    coords |= {"latitude": latitude, "longitude": longitude}
    return xr.DataArray(values, coords, ("time", "latitude", "longitude"), "cloud")


def test_globe_cells_are_weighted_by_area(spots):
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
    np.testing.assert_allclose(
        distance, METRES_PER_DEGREE * parallel, rtol=0.02
    )  # a degree to the east
    wind = field.geonet.velocity(time=HALF, motion=None)
    east = wind.velocity_longitude.values[8:12, 10:14].mean()
    assert wind.velocity_longitude.attrs["units"] == "m s-1"
    np.testing.assert_allclose(east, METRES_PER_DEGREE * parallel / 600, rtol=0.05)


def test_velocity_with_descending_coordinates(rain):
    upwards = rain.geonet.velocity(time=HALF)
    flipped = rain.assign_coords(y=("y", rain.y.values[::-1], {"units": "km"}))
    downwards = flipped.geonet.velocity(time=HALF)
    assert (downwards.velocity_y.values == -upwards.velocity_y.values).all()
    assert (downwards.velocity_x.values == upwards.velocity_x.values).all()
    assert upwards.velocity_y.attrs["units"] == "km s-1"
    middle = upwards.velocity_y.values[5:8, 7:10].mean()
    np.testing.assert_allclose(middle, 1.6 * 2 / 600, rtol=0.2)  # 1.6 cells of 2 km in ten minutes


def test_velocity_at_a_frame_belongs_to_the_next_pair(rain):
    exactly = rain.geonet.velocity(time=rain.time.values)
    soon = rain.geonet.velocity(time=rain.time.values[:-1] + np.timedelta64(1, "s"))
    for name in exactly:
        a, b = exactly[name].values[:-1], soon[name].values
        assert np.abs(a - b).max() < 0.05 * np.abs(a).max()
        assert np.isfinite(exactly[name].values[-1]).all()


def test_distance_is_a_length_independent_of_totals(rain):
    distance = rain.geonet.distance()
    assert distance.attrs["units"] == "km" and distance.dims == ("time",)
    assert (distance.until.values == rain.time.values[1:]).all()
    scaled = rain * xr.DataArray([1, 7, 2, 1], dims="time")
    np.testing.assert_allclose(scaled.geonet.distance(), distance, rtol=1e-6)


def test_report_of_every_pair(ensemble):
    report = ensemble.geonet.report()
    assert report.distance.dims == ("time", "member") and report.sizes["time"] == 3
    # A report moves a distance that is slightly outside of its bounds to the nearest bound.
    np.testing.assert_allclose(report.distance, ensemble.geonet.distance(), rtol=2e-3)
    assert (report.distance_lower_bound <= report.distance * 1.01).all()
    assert (report.distance_upper_bound >= report.distance * 0.99).all()
    totals = 4.0 * ensemble.sum(("y", "x"))
    np.testing.assert_allclose(report.source_mass, totals[:-1])
    np.testing.assert_allclose(report.target_mass, totals[1:])
    assert report.converged.all() and not report.faded.any()
    assert (report.error_estimate < 0.2).all()


def test_unconverged_pairs_warn(rain):
    settings = {"solver": "midpoint", "time_limit": 1e-9}
    times = r"rain at time 2026-07-01T12:00\S* to rain at time 2026-07-01T12:10\S* did not reach"
    with pytest.warns(ConvergenceWarning, match=f"{times} the tolerance .* longer time_limit"):
        rain.geonet.interp(time=HALF, motion=None, **settings)
    settings |= {"time_limit": None, "max_iterations": 1, "tolerance": 1e-9}
    remedy = "average the field to coarser cells"
    with pytest.warns(ConvergenceWarning, match=f"{remedy}, or give a reach=... of 10 to 25 cells"):
        rain[:2].geonet.distance(**settings)
    with pytest.warns(ConvergenceWarning, match=f"{remedy}[.]"):
        rain[:2].geonet.distance(reach=8.0, **settings)
    with pytest.warns(ConvergenceWarning, match=f"{times[:-14]}: back-and-forth stopped"):
        rain.geonet.interp(time=HALF, motion=None, solver="back-and-forth", max_iterations=1)
    with pytest.warns(ConvergenceWarning, match="tolerance"):
        assert not rain[:2].geonet.report(**settings).converged.any()
