"""Bad fields and bad questions: each has a sentence of its own, with the cause and the remedy."""

from __future__ import annotations

import dask.array
import numpy as np
import pytest
import xarray as xr

from geonet.errors import DensityError, GeonetError, GridError, InputError, SolverError

START, MINUTE = np.datetime64("2026-07-01T12:00", "ns"), np.timedelta64(1, "m")
HALF = START + 5 * MINUTE


def changed(rain: xr.DataArray, value: float) -> xr.DataArray:
    """The second frame with another value in a cell."""
    values = rain.values.copy()
    values[1, 3, 4] = value
    return rain.copy(data=values)


def uneven(rain: xr.DataArray) -> xr.DataArray:
    x = rain.x.values.copy()
    x[7] += 0.5
    return rain.assign_coords(x=x)


def latitudes(rain: xr.DataArray, low: float, high: float) -> xr.DataArray:
    named = rain.rename(y="lat", x="lon").drop_vars(("lat", "lon"))
    return named.assign_coords(lat=np.linspace(low, high, 16), lon=np.linspace(0, 10, 20))


def unknown_size(rain: xr.DataArray) -> xr.DataArray:
    data = dask.array.from_array(rain.values, chunks=(2, -1, -1))
    return xr.DataArray(data[data.sum((1, 2)) > 0], dims=rain.dims)


CASES = {
    "negative": (
        lambda r: changed(r, -2.0).geonet.interp(time=HALF),
        DensityError,
        r"^rain at time 2026-07-01T12:10\S* holds 1 negative values, down to -2; .*clip",
    ),
    "missing": (
        lambda r: changed(r, np.nan).geonet.interp(time=HALF),
        DensityError,
        r"^rain at time 2026-07-01T12:10\S* has 1 of 320 cells without a value; .*'exclude'",
    ),
    "infinite": (
        lambda r: changed(r, np.inf).geonet.interp(time=HALF),
        DensityError,
        r"^rain at time 2026-07-01T12:10\S* holds 1 infinite values; .*isfinite",
    ),
    "uneven": (
        lambda r: uneven(r).geonet.interp(time=HALF),
        GridError,
        r"^The coordinate 'x' is not evenly spaced: 14.5 stands where 14 is due; .*linspace",
    ),
    "words along space": (
        lambda r: r.assign_coords(x=list("abcdefghijklmnopqrst")).geonet.interp(time=HALF),
        GridError,
        "^The coordinate 'x' does not hold finite numbers; assign some",
    ),
    "one cell": (
        lambda r: r.isel(x=[0]).geonet.interp(time=HALF),
        GridError,
        "^'x' has 1 cell; space needs two",
    ),
    "different units": (
        lambda r: r.assign_coords(x=("x", r.x.values, {"units": "m"})).geonet.report(),
        GridError,
        "^The axes of space have different units, 'y' in km, 'x' in m; convert",
    ),
    "near a pole": (
        lambda r: latitudes(r, 60, 89).geonet.interp(time=HALF),
        GridError,
        r"^The latitudes 59.* to 89.* do not fit a plane: .*reproject",
    ),
    "no latitude": (
        lambda r: r.geonet.interp(time=HALF, geographic=True),
        GridError,
        "^geographic needs one latitude and one longitude among y, x; set",
    ),
    "outside": (
        lambda r: r.geonet.interp(time=START + 45 * MINUTE),
        InputError,
        "^The time 2026-07-01T12:45.* is outside of the field's, .*outside='nan'",
    ),
    "twice": (
        lambda r: r.isel(time=[0, 1, 1, 2]).geonet.interp(time=HALF),
        InputError,
        r"^The time 2026-07-01T12:10\S* stands twice along 'time'; .*drop_duplicates",
    ),
    "one frame": (
        lambda r: r.isel(time=[0]).geonet.interp(time=START),
        InputError,
        "^The field has 1 frame along 'time'; give two",
    ),
    "no time": (
        lambda r: r.geonet.interp(hour=[1]),
        InputError,
        "^The field has no dimension 'hour'; its dimensions are time, y, x",
    ),
    "two dimensions": (
        lambda r: r.geonet.interp(time=HALF, x=[1.0]),
        InputError,
        "^The new times are given along 2 dimensions; give one",
    ),
    "none": (
        lambda r: r.geonet.interp(),
        InputError,
        "^The new times are given along 0 dimensions; give one",
    ),
    "numbers for dates": (
        lambda r: r.geonet.interp(time=[0.5]),
        InputError,
        "^The .*times.*; give dates where the field has dates",
    ),
    "dates for numbers": (
        lambda r: r.assign_coords(time=[0, 1, 2, 3]).geonet.interp(time=HALF),
        InputError,
        "^The .*times.*; give dates where the field has dates, and numbers",
    ),
    "words": (
        lambda r: r.geonet.interp(time=["noon"]),
        InputError,
        "^The times asked for do not fit the field's, datetime64.*; give dates",
    ),
    "no date": (
        lambda r: r.geonet.interp(time=np.array(["NaT"], "datetime64[ns]")),
        InputError,
        "^The times asked for hold 1 without a value; leave",
    ),
    "a table of times": (
        lambda r: r.geonet.interp(time=np.array([[HALF]])),
        InputError,
        r"^time has the shape \(1, 1\); give one time or a list",
    ),
    "no times": (
        lambda r: r.geonet.interp(time=[]),
        InputError,
        r"^time has the shape \(0,\); give one time or a list",
    ),
    "unknown space": (
        lambda r: r.rename(y="row", x="column").geonet.interp(time=HALF),
        InputError,
        r"^None of the dimensions row, column is called like space .*space=\('row'",
    ),
    "no such space": (
        lambda r: r.geonet.interp(time=HALF, space=("y", "z")),
        InputError,
        "^The field has no dimension 'z'; its dimensions are time, y, x",
    ),
    "time as space": (
        lambda r: r.geonet.interp(time=HALF, space=("time", "y")),
        InputError,
        "^'time' is named as time and as space",
    ),
    "no space": (
        lambda r: r.geonet.interp(time=HALF, space=()),
        InputError,
        r"^Space has the dimensions \(none\); give one to three",
    ),
    "unclear time": (
        lambda r: r.rename(time="hour").assign_coords(hour=[0, 1, 2, 3]).geonet.report(),
        InputError,
        "^Of hour, y, x it is not clear which dimension is time; name it: dim=",
    ),
    "truths": (
        lambda r: (r > 0.5).geonet.interp(time=HALF),
        InputError,
        r"^The field holds bool, not numbers; convert it: .astype\(float\)",
    ),
    "unknown solver": (
        lambda r: r.geonet.interp(time=HALF, solver="teleport"),
        SolverError,
        "teleport",
    ),
    "a filling below zero": (
        lambda r: r.geonet.interp(time=HALF, missing=-1),
        InputError,
        "^missing is -1; give a number from zero up",
    ),
    "a treatment that is none": (
        lambda r: r.geonet.interp(time=HALF, missing="zero"),
        InputError,
        "^missing is 'zero'; give 'refuse', 'exclude' or a number",
    ),
    "a mass that is none": (
        lambda r: r.geonet.interp(time=HALF, mass="two"),
        InputError,
        "^mass is 'two'; give 'one' or 'given'",
    ),
    "an outside that is none": (
        lambda r: r.geonet.velocity(time=HALF, outside="edge"),
        InputError,
        "^outside is 'edge'; give 'refuse' or 'nan'",
    ),
    "times along space": (
        lambda r: r.geonet.interp(time=xr.DataArray(START + np.arange(16) * MINUTE, dims="y")),
        InputError,
        "^The times asked for lie along 'y', which is a dimension of the field; give",
    ),
    "times of many lengths": (
        lambda r: r.geonet.interp(time=[[HALF], [HALF, HALF]]),
        InputError,
        "^time is no list of times; give one time or a list",
    ),
    "a list of times alone": (
        lambda r: r.geonet.interp([HALF]),
        InputError,
        r"^coords is .*; give interp\(time=new_times\)",
    ),
    "several fillings": (
        lambda r: r.geonet.interp(time=HALF, missing=np.array([1, 2])),
        InputError,
        "^missing is an array of shape .*; give 'refuse', 'exclude' or a number",
    ),
    "a flag that is a coordinate": (
        lambda r: r.geonet.interp(time=HALF, flag="time"),
        InputError,
        "^The field has 'time' already; give the flag another name",
    ),
    "a flag that is no name": (
        lambda r: r.geonet.interp(time=HALF, flag=True),
        InputError,
        "^flag is True; give the name of a coordinate",
    ),
    "pressure above a globe": (
        lambda r: (
            latitudes(r, 40, 45)
            .expand_dims(level=[1.0, 2.0])
            .assign_coords(level=("level", [1.0, 2.0], {"units": "hPa"}))
            .geonet.interp(time=HALF, space=("level", "lat", "lon"))
        ),
        GridError,
        "^On the globe lengths are metres, and 'level' is in hPa; convert it to m",
    ),
    "longitudes that jump": (
        lambda r: (
            latitudes(r, 40, 45)
            .assign_coords(lon=(np.arange(20) + 350) % 360.0)
            .geonet.interp(time=HALF)
        ),
        GridError,
        r"^The coordinate 'lon' jumps from 359 to 0; .*% 360 - 180",
    ),
    "chunks of unknown size": (
        lambda r: unknown_size(r).geonet.interp(time=HALF),
        InputError,
        r"^The field has chunks of unknown size; .*compute_chunk_sizes\(\)",
    ),
    "words for times": (
        lambda r: r.assign_coords(time=list("abcd")).geonet.interp(time="b"),
        InputError,
        "^The coordinate 'time' holds .*, neither dates nor numbers; decode",
    ),
    "options that are none": (
        lambda r: r.geonet.interp(time=HALF, options=[1]),
        InputError,
        r"^options is \[1\]; give a dictionary",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_gets_a_sentence_with_a_remedy(rain, case):
    ask, kind, message = CASES[case]
    with pytest.raises(GeonetError, match=message) as caught:
        ask(rain)
    assert type(caught.value) is kind
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)
