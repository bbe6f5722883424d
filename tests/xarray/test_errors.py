"""Bad fields and bad arguments: each raises an error of its kind with a key word."""

from __future__ import annotations

import dask.array
import numpy as np
import pytest
import xarray as xr

from geonet.errors import DensityError, GeonetError, GridError, InputError
from geonet.xarray import displacement_score, geodesic

START, MINUTE = np.datetime64("2026-07-01T12:00", "ns"), np.timedelta64(1, "m")
HALF = START + 5 * MINUTE


def replace_cell(rain: xr.DataArray, value: float) -> xr.DataArray:
    """Return the field with another value in one cell of the second frame."""
    values = rain.values.copy()
    values[1, 3, 4] = value
    return rain.copy(data=values)


def shift_coordinate(rain: xr.DataArray) -> xr.DataArray:
    x = rain.x.values.copy()
    x[7] += 0.5
    return rain.assign_coords(x=x)


def on_latitudes(rain: xr.DataArray, low: float, high: float) -> xr.DataArray:
    named = rain.rename(y="lat", x="lon").drop_vars(("lat", "lon"))
    return named.assign_coords(lat=np.linspace(low, high, 16), lon=np.linspace(0, 10, 20))


def with_unknown_size(rain: xr.DataArray) -> xr.DataArray:
    data = dask.array.from_array(rain.values, chunks=(2, -1, -1))
    return xr.DataArray(data[data.sum((1, 2)) > 0], dims=rain.dims)


def with_pressure_levels(rain: xr.DataArray) -> xr.DataArray:
    levels = ("level", [1.0, 2.0], {"units": "hPa"})
    return on_latitudes(rain, 40, 45).expand_dims(level=[1.0, 2.0]).assign_coords(level=levels)


FIELDS = {  # a field that cannot be interpolated, the error and a key word
    "negative": (
        lambda r: replace_cell(r, -2.0),
        DensityError,
        r"rain at time 2026-07-01T12:10\S* has 1 negative value \(minimum -2\);",
    ),
    "missing": (
        lambda r: replace_cell(r, np.nan),
        DensityError,
        r"rain at time 2026-07-01T12:10\S* has 1 of 320 cells without a value; .*'exclude'",
    ),
    "uneven": (shift_coordinate, GridError, "'x' is not evenly spaced: 14.5 instead of 14"),
    "infinite": (lambda r: replace_cell(r, np.inf), DensityError, "1 infinite"),
    "one cell": (lambda r: r.isel(x=[0]), GridError, "'x' has 1 cell"),
    "words": (lambda r: r.assign_coords(x=["a"] * 20), GridError, "finite numbers"),
    "different units": (
        lambda r: r.assign_coords(x=("x", r.x.values, {"units": "m"})),
        GridError,
        "different units, 'y' in km, 'x' in m",
    ),
    "near a pole": (lambda r: on_latitudes(r, 60, 89), GridError, "do not fit a plane"),
    "longitudes that jump": (
        lambda r: on_latitudes(r, 40, 45).assign_coords(lon=(np.arange(20) + 350) % 360.0),
        GridError,
        r"'lon' jumps from 359 to 0; .*% 360 - 180",
    ),
    "repeated time": (
        lambda r: r.isel(time=[0, 1, 1, 2]),
        InputError,
        r"2026-07-01T12:10\S* occurs twice along 'time'; .*drop_duplicates",
    ),
    "one frame": (lambda r: r.isel(time=[0]), InputError, "1 frame along 'time'"),
    "unknown space": (
        lambda r: r.rename(y="row", x="column"),
        InputError,
        r"space=\('row'",
    ),
    "chunks of unknown size": (with_unknown_size, InputError, "compute_chunk_sizes"),
    "words along time": (
        lambda r: r.assign_coords(time=list("abcd")),
        InputError,
        "neither dates nor numbers",
    ),
}


@pytest.mark.parametrize("case", FIELDS)
def test_bad_fields(rain, case):
    change, kind, message = FIELDS[case]
    with pytest.raises(GeonetError, match=message) as caught:
        change(rain).geonet.interp(time=HALF)
    assert type(caught.value) is kind
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


ARGUMENTS = {  # arguments of interp, the error and a key word
    "no latitude": ({"geographic": True}, GridError, "one latitude and one longitude"),
    "outside": ({"time": START + 45 * MINUTE}, InputError, "is outside of .*outside='nan'"),
    "no date": ({"time": np.array(["NaT"], "datetime64[ns]")}, InputError, "1 without a value"),
    "times along space": (
        {"time": xr.DataArray(START + np.arange(16) * MINUTE, dims="y")},
        InputError,
        "lie along 'y'",
    ),
    "two dimensions": ({"x": [1.0]}, InputError, "along 2 of the field's dimensions"),
    "words": ({"time": ["noon"]}, InputError, "do not fit the field's, datetime64"),
    "nested times": ({"time": [[HALF], [HALF, HALF]]}, InputError, "not a list of times"),
    "negative filling": ({"missing": -1}, InputError, "missing is -1"),
    "no space": ({"space": ()}, InputError, "one to three"),
    "no such space": ({"space": ("y", "z")}, InputError, "no dimension 'z'"),
    "time as space": ({"space": ("time", "y")}, InputError, "as time and as space"),
    "flag of a coordinate": ({"flag": "time"}, InputError, "has 'time' already"),
    "equal flags": ({"flag": "a", "converged": "a"}, InputError, "has 'a' already"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_bad_arguments(rain, case):
    arguments, kind, message = ARGUMENTS[case]
    with pytest.raises(GeonetError, match=message) as caught:
        rain.geonet.interp(**{"time": HALF, **arguments})
    assert type(caught.value) is kind


def test_arguments_of_other_methods_raise(rain):
    first, second = rain.isel(time=0, drop=True), rain.isel(time=1, drop=True)
    for call in (
        lambda **options: rain.geonet.distance(**options),
        lambda **options: rain.geonet.report(**options),
        lambda **options: displacement_score(first, second, reach=9.0, **options),
        lambda **options: geodesic(first, second, 0.5, **options),
    ):
        with pytest.raises(InputError, match="no argument 'mising'; did you mean 'missing'?"):
            call(mising="exclude")
        with pytest.raises(InputError, match="no argument 'motion'; leave it out[.]"):
            call(motion=None)


@pytest.mark.parametrize("dim", ["nonsense", "time"])
def test_distance_to_another_field_takes_no_dimension(rain, dim):
    with pytest.raises(InputError, match=f"dim is '{dim}', .* time, y, x; leave dim out"):
        rain.geonet.distance(rain, dim=dim)


def test_times_are_given_along_a_dimension(rain):
    for call in (
        lambda: rain.geonet.interp(),
        lambda: rain.geonet.interp(hour=[1]),
        lambda: rain.geonet.interp([HALF]),
    ):
        with pytest.raises(InputError, match=r"interp\(time=new_times\)"):
            call()
    with pytest.raises(InputError, match="no dimension 'hour'"):
        rain.geonet.interp({"hour": [1]})


def test_ambiguous_time(rain):
    hours = rain.rename(time="hour").assign_coords(hour=[0, 1, 2, 3])
    with pytest.raises(InputError, match="ambiguous; name it: dim="):
        hours.geonet.report()
    assert hours.geonet.report(dim="hour").sizes["hour"] == 3


def test_heights_above_a_globe_are_metres(rain):
    with pytest.raises(GridError, match="'level' is in hPa"):
        with_pressure_levels(rain).geonet.interp(time=HALF, space=("level", "lat", "lon"))
