"""Interpolation along a motion: exact ends, totals, known translations, gaps, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from scipy.ndimage import gaussian_filter

from geonet.errors import DensityError, GeonetError, GridError, InputError, SolverError
from geonet.xarray.motion import match_values

START, MINUTE = np.datetime64("2026-07-01T12:00", "ns"), np.timedelta64(1, "m")
STEP = (1.5, -2.5)  # cells of 2 km in ten minutes


def texture(cells: int = 160) -> np.ndarray:
    """Return a rain area with holes, much wider than a frame."""
    noise = np.random.default_rng(5).standard_normal((cells, cells))
    return np.clip(np.exp(1.5 * gaussian_filter(noise, 3) * 10) - 0.6, 0, None)


def moving_rain(minutes, cells: tuple[int, int] = (48, 64), step=STEP) -> xr.DataArray:
    """Return a part of the texture that moves by even steps of half cells, exact for even ones.

    The texture is on cells of half the size, and frames are means over 2 × 2 of them.
    """
    values, frames = texture(), []
    for minute in minutes:
        shift = [round(2 * s * minute / 10) for s in step]
        top, left = (20 - k for k in shift)
        part = values[top : top + 2 * cells[0], left : left + 2 * cells[1]]
        frames.append(part.reshape(cells[0], 2, cells[1], 2).mean((1, 3)))
    coords = {
        "time": START + np.asarray(minutes) * MINUTE,
        "y": ("y", 2.0 * np.arange(cells[0]), {"units": "km"}),
        "x": ("x", 2.0 * np.arange(cells[1]), {"units": "km"}),
    }
    return xr.DataArray(np.array(frames), coords, ("time", "y", "x"), "rain", {"units": "mm h-1"})


@pytest.fixture(scope="module")
def moving() -> xr.DataArray:
    """Four frames, ten minutes apart."""
    return moving_rain([0, 10, 20, 30], cells=(40, 48))


@pytest.fixture(scope="module")
def winds(moving) -> xr.Dataset:
    """The exact velocities, without time, in km/s."""
    shape = moving.shape[1:]
    speeds = zip(("y", "x"), STEP, strict=True)
    return xr.Dataset(
        {f"velocity_{d}": (("y", "x"), np.full(shape, s * 2 / 600), KM) for d, s in speeds},
        {"y": moving.y, "x": moving.x},
    )


KM = {"units": "km s-1"}
HALF = START + np.array([4, 12, 26]) * MINUTE


def set_units(winds: xr.Dataset, units: str | None) -> xr.Dataset:
    attrs = {} if units is None else {"units": units}
    return xr.Dataset({n: v.drop_attrs().assign_attrs(attrs) for n, v in winds.items()})


def error(found: xr.DataArray, truth: xr.DataArray) -> float:
    return float(abs(found - truth).sum() / truth.sum())


def test_texture_that_moves_is_recovered(moving):
    # Steps of 10 minutes are whole half-cells, and so are 4, 12 and 26 minutes for no axis: compare
    # at 20 minutes, left out.
    kept, truth = moving.isel(time=[0, 1, 3]), moving.isel(time=2)
    found = kept.geonet.interp(time=truth.time.values)
    fade, moved = error(kept.interp(time=truth.time), truth), error(found, truth)
    assert moved < 0.25 * fade
    sharpness = [float(abs(f.diff("x")).sum()) for f in (found, truth)]
    assert 0.9 < sharpness[0] / sharpness[1] < 1.1


def test_velocity_is_that_of_the_texture(moving):
    wind = moving.geonet.velocity(time=HALF)
    for dim, step in zip(("y", "x"), STEP, strict=True):
        component = wind[f"velocity_{dim}"]
        assert component.attrs["units"] == "km s-1"
        # A tenth of a cell in ten minutes is 2e-4 km/s × 10 / 6.
        np.testing.assert_allclose(component.median(), step * 2 / 600, atol=0.2 * 2 / 600)


def test_exchanged_frames_move_backwards(moving):
    pair = moving[:2]
    forth = pair.geonet.velocity(time=pair.time.values[:1])
    back = pair.copy(data=pair.values[::-1]).geonet.velocity(time=pair.time.values[:1])
    for name in forth:  # single precision
        first, second = forth[name].values, back[name].values
        np.testing.assert_allclose(second, -first, atol=1e-3 * abs(first).max())


def test_given_velocities_are_followed(moving, winds):
    kept, truth = moving.isel(time=[0, 1, 3]), moving.isel(time=2)
    found = kept.geonet.interp(time=truth.time.values, motion=winds)
    assert error(found, truth) < 0.25 * error(kept.interp(time=truth.time), truth)
    metres = set_units(1000 * winds, "m/s")
    same = kept.geonet.interp(time=truth.time.values, motion=metres)
    np.testing.assert_allclose(same, found, rtol=1e-9, atol=1e-12)
    own = moving.geonet.velocity(time=START + np.array([5, 15, 25]) * MINUTE)
    again = moving.geonet.interp(time=HALF, motion=own)
    np.testing.assert_allclose(again, moving.geonet.interp(time=HALF), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"reach": 3.0}, {"given": True}])
def test_ends_are_exact_and_totals_linear(moving, winds, options):
    options = {"motion": winds} if options.pop("given", False) else options
    exact = moving.geonet.interp(time=moving.time.values, **options)
    assert (exact.values == moving.values).all()
    times = START + np.array([1, 5, 9]) * MINUTE
    totals = moving.geonet.interp(time=times, **options).sum(("y", "x"))
    np.testing.assert_allclose(totals, moving.interp(time=times).sum(("y", "x")), rtol=1e-9)
    soon = moving.geonet.interp(time=START + np.timedelta64(10, "ms"), **options)
    assert error(soon, moving[0]) < 1e-3  # continuous at the frame


def test_values_keep_their_distribution(moving):
    found = moving.geonet.interp(time=START + 5 * MINUTE).values
    expected = (np.sort(moving.values[0].ravel()) + np.sort(moving.values[1].ravel())) / 2
    np.testing.assert_allclose(np.sort(found.ravel()), expected, rtol=0.02, atol=0.02)


def test_match_keeps_zeros_and_ties():
    values, area = np.array([0.0, 0.0, 1.0, 1.0, 3.0]), np.ones(5)
    matched = match_values(values, area, [(np.array([0.0, 2.0, 4.0, 6.0, 8.0]), area)], (1.0,))
    assert matched[0] == matched[1] == 0 and matched[2] == matched[3] < matched[4]
    np.testing.assert_allclose(matched.sum(), 20.0)


@pytest.mark.parametrize("chunks", [{"time": 1}, {"time": 3, "y": 20}])
def test_dask_gives_the_bits_of_numpy(moving, winds, chunks):
    both = xr.concat([moving, moving[:, ::-1].assign_coords(y=moving.y)], "member")
    later = moving.time.values[-1] + np.array([5, 10]) * MINUTE
    calls: list[Callable[[xr.DataArray], Any]] = [
        lambda field: field.geonet.interp(time=HALF, flag="faded"),
        lambda field: field.geonet.interp(time=HALF, motion=winds),
        lambda field: field.geonet.velocity(time=HALF),
        lambda field: field.geonet.nowcast(time=later),
        lambda field: field.geonet.accumulate("15min"),
        lambda field: field.geonet.accumulate("4min", motion=winds),
    ]
    for call in calls:
        lazy = call(both.chunk(chunks))
        with dask.config.set(scheduler="threads", num_workers=2):
            computed = lazy.compute()
        expected = call(both)
        xr.testing.assert_equal(computed, expected)


def test_motion_of_members_is_matched_by_their_labels(moving, winds):
    both = xr.concat([moving, moving], "member").assign_coords(member=["a", "b"])
    still = xr.concat([winds, 0 * winds], "member").assign_coords(member=["a", "b"])
    still = set_units(still, "km s-1")
    found = both.geonet.interp(time=HALF, motion=still)
    expected = moving.geonet.interp(time=HALF, motion=winds)
    assert (found.sel(member="a").values == expected.values).all()
    assert not (found.sel(member="b").values == expected.values).all()
    with pytest.raises(InputError, match="does not match the field"):
        both.geonet.interp(time=HALF, motion=still.assign_coords(member=["a", "c"]))


def test_motion_varies_with_time(moving, winds):
    hours = [START - 5 * MINUTE, START + 35 * MINUTE]
    varying = xr.concat([0 * winds, 2 * winds], "time").assign_coords(time=hours)
    varying = set_units(varying, "km s-1")
    found = moving.geonet.velocity(time=START + 15 * MINUTE, motion=varying)
    np.testing.assert_allclose(found.velocity_x, winds.velocity_x, rtol=1e-9)  # their mean
    lazy = moving.chunk(time=2).geonet.interp(time=HALF, motion=varying.chunk(time=1))
    assert (lazy.values == moving.geonet.interp(time=HALF, motion=varying).values).all()


def test_periodic_axis_has_no_edge():
    base = gaussian_filter(np.random.default_rng(1).random((32, 32)), 2, mode="wrap")
    frames = np.array([np.roll(base, (k, -2 * k), (0, 1)) for k in range(3)]) ** 4
    field = xr.DataArray(frames, dims=("time", "y", "x"), coords={"time": [0.0, 1.0, 2.0]})
    found = field[::2].geonet.interp(time=[1.0], periodic=True)
    assert error(found[0], field[1]) < 0.02


def test_gaps_stay_and_do_not_leak(moving):
    field = moving.where((moving.x < 30) | (moving.x > 40))
    found = field.geonet.interp(time=HALF, missing="exclude")
    gaps = np.isnan(found.values)
    assert gaps[:, np.isnan(field.values[0])].all()
    assert gaps.mean() < np.isnan(field.values).mean() + 0.05
    kept, truth = field.isel(time=[0, 1, 3]), field.isel(time=2)
    between = kept.geonet.interp(time=truth.time.values, missing="exclude")
    fade = error(kept.interp(time=truth.time), truth)
    assert error(between, truth.where(between.notnull())) < 0.3 * fade


def test_nowcast_extrapolates(moving):
    past, future = moving[:3], moving[3]
    found = past.geonet.nowcast(time=future.time.values)
    assert found.dims == ("y", "x") and found.time == future.time
    known = found.notnull()
    assert 0.85 < float(known.mean()) < 1  # what enters the map is unknown
    persistence = error(past[2].where(known), future.where(known))
    assert error(found, future.where(known)) < 0.35 * persistence


@pytest.mark.parametrize("minutes", [[30], [30, 60], [45, 60]])
def test_nowcast_follows_winds_from_the_last_frame_on(moving, winds, minutes):
    future = START + 40 * MINUTE
    speeds = [(1 + 0.1 * k) * winds for k in range(len(minutes))]
    later = xr.concat(speeds, "time").assign_coords(time=START + np.array(minutes) * MINUTE)
    later = set_units(later.isel(time=slice(None, None, -1)), "km s-1")
    found = moving.geonet.nowcast(time=future, motion=later)
    xr.testing.assert_identical(found, moving.geonet.nowcast(time=future, motion=winds))
    earlier = later.assign_coords(time=later.time - 60 * MINUTE)
    if len(minutes) > 1:
        with pytest.raises(InputError, match="1 of 1 pairs of frames"):
            moving.geonet.nowcast(time=future, motion=earlier)


def test_velocity_is_missing_in_gaps(moving, winds):
    field = moving.where((moving.x < 30) | (moving.x > 40))
    for motion in ("estimate", winds, None):
        wind = field.geonet.velocity(time=HALF, motion=motion, missing="exclude")
        for component in wind.values():
            assert (np.isnan(component) == np.isnan(field.values[0])).all()


@pytest.mark.parametrize(
    ("units", "factor"),
    [("mm/hour", 1), ("mm day-1", 24), ("mm/day", 24), ("mm minute-1", 1 / 60), ("mm/s", 1 / 3600)],
)
def test_accumulation_accepts_units(moving, units, factor):
    expected = moving.geonet.accumulate("15min")
    total = (moving * factor).assign_attrs(units=units).geonet.accumulate("15min")
    assert total.attrs == {"units": "mm"}
    np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-9)


def test_accumulation_integrates_along_the_motion(moving):
    total = moving.geonet.accumulate("15min")
    assert total.attrs == {"units": "mm"} and total.sizes["time"] == 2
    assert (total.until.values - total.time.values == 15 * MINUTE).all()
    expected = moving.integrate("time", datetime_unit="h")
    np.testing.assert_allclose(total.sum(), expected.sum(), rtol=1e-6)
    every_minute = moving_rain(np.arange(0, 31, 2), cells=(40, 48))
    truth = every_minute.integrate("time", datetime_unit="h")
    assert error(total.sum("time"), truth) < 0.5 * error(expected, truth)
    numbers = moving.assign_coords(time=np.arange(4.0))
    plain = numbers.geonet.accumulate("1.5")
    np.testing.assert_allclose(plain.values / 6, total.values, rtol=1e-9)


def test_empty_frame_fades_unless_the_motion_is_given(moving, winds):
    field = moving.where(moving.time != moving.time[1], 0.0)
    fade = field.geonet.interp(time=START + 5 * MINUTE, flag="faded")
    assert bool(fade.faded)
    np.testing.assert_allclose(fade, field[0] / 2)
    carried = field.geonet.interp(time=START + 5 * MINUTE, motion=winds, flag="faded")
    assert not bool(carried.faded)
    np.testing.assert_allclose(carried.sum(), field[0].sum() / 2, rtol=1e-9)


def test_cells_from_outside_on_both_sides_are_blended(moving, winds):
    speeds = {"velocity_y": 20, "velocity_x": 24}  # half of the cells of both axes
    far = xr.Dataset({n: (winds[n] * 0 + c * 2 / 600).assign_attrs(KM) for n, c in speeds.items()})
    found = moving.geonet.interp(time=START + 5 * MINUTE, motion=far)
    blend = moving.interp(time=START + 5 * MINUTE)
    corners = [(slice(-10, None), slice(12)), (slice(10), slice(-12, None))]
    for y, x in corners:
        np.testing.assert_allclose(found[y, x], blend[y, x], rtol=1e-12)
    assert not np.allclose(found[:30, :36], blend[:30, :36])
    np.testing.assert_allclose(found.sum(), blend.sum(), rtol=1e-9)


@pytest.mark.parametrize("call", ["interp", "velocity"])
def test_motion_out_of_the_map_raises(moving, winds, call):
    fast = winds.copy()
    fast["velocity_y"] = set_units(1e3 * winds, "km s-1")["velocity_y"]
    message = (
        r"velocity_y of up to 5 km s-1 moves 1.5e\+03 cells .* has 40: 100 % .* check the units"
    )
    with pytest.raises(InputError, match=message):
        getattr(moving.geonet, call)(time=HALF, motion=fast)
    periodic = moving.geonet.interp(time=HALF, motion=fast, periodic=True)
    assert np.isfinite(periodic).all()


def test_a_reach_far_below_a_cell_raises(moving):
    message = "reach is 0.02 km, 0.01 of a cell, .* units of the coordinates, or leave it out for"
    for motion, without in (("estimate", "the motion alone"), (None, "balanced transport")):
        with pytest.raises(InputError, match=f"{message} {without}[.]"):
            moving.geonet.interp(time=HALF, reach=0.02, motion=motion)


BAD: dict[str, tuple[Callable[[xr.DataArray, xr.Dataset], Any], type[GeonetError], str]] = {
    "unknown word": (lambda r, w: r.geonet.interp(time=HALF, motion="flow"), InputError, "'flow'"),
    "array": (lambda r, w: r.geonet.interp(time=HALF, motion=r), InputError, "give 'estimate'"),
    "no velocity_y": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.rename(velocity_y="v")),
        InputError,
        "no variable 'velocity_y' but v, velocity_x",
    ),
    "wrong shape": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.isel(x=slice(9))),
        GridError,
        "9 cells along 'x' and the field 48",
    ),
    "no space": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.isel(y=0)),
        GridError,
        "no cells along 'y'",
    ),
    "other cells": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.assign_coords(x=w.x + 1)),
        GridError,
        "different coordinates along 'x'; .*interp_like",
    ),
    "wrong units": (
        lambda r, w: r.geonet.interp(time=HALF, motion=set_units(w, "degrees")),
        InputError,
        "units 'degrees', and the coordinates of the field are in km",
    ),
    "no units": (
        lambda r, w: r.geonet.interp(time=HALF, motion=set_units(w, None)),
        InputError,
        "units None",
    ),
    "words": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.astype(str)),
        InputError,
        "not numbers",
    ),
    "no value": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.where(w.x > 3)),
        InputError,
        r"160 components without a finite value between rain at time 2026-07-01T12:00",
    ),
    "other dimension": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.expand_dims(level=2)),
        InputError,
        "dimension 'level', which the field lacks",
    ),
    "other times": (
        lambda r, w: r.geonet.interp(
            time=HALF, motion=w.expand_dims(time=[START + 60 * MINUTE, START + 90 * MINUTE])
        ),
        InputError,
        "3 of 3 pairs of frames, .* lie outside of it",
    ),
    "times as numbers": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.expand_dims(time=[0.0, 1.0])),
        InputError,
        "give dates if the field has dates",
    ),
    "times without coordinate": (
        lambda r, w: r.geonet.interp(time=HALF, motion=w.expand_dims(time=3)),
        InputError,
        "several times and no coordinate 'time'",
    ),
    "misspelled argument": (
        lambda r, w: r.geonet.interp(time=HALF, motoin=None),
        InputError,
        "There is no argument 'motoin'; did you mean 'motion'?",
    ),
    "reach of zero": (
        lambda r, w: r.geonet.interp(time=HALF, reach=0.0),
        SolverError,
        "reach is 0.0; give a finite length above 0, or leave it out for the motion alone[.]",
    ),
    "negative reach": (
        lambda r, w: r.geonet.accumulate("5min", reach=-1),
        SolverError,
        "reach is -1; give a finite length above 0",
    ),
    "growth": (
        lambda r, w: r.geonet.interp(time=HALF, reach=3.0, growth="wfr"),
        InputError,
        "only 'hellinger' is possible",
    ),
    "solver": (
        lambda r, w: r.geonet.interp(time=HALF, solver="midpoint"),
        InputError,
        "solver is for transport",
    ),
    "option": (
        lambda r, w: r.geonet.interp(time=HALF, tolerance=1e-3),
        InputError,
        "tolerance is for transport, .* motion=None",
    ),
    "no texture": (
        lambda r, w: r.where(r.time != r.time[1], 2.0).geonet.interp(time=HALF),
        DensityError,
        "12:10:00.* has the same value in all cells",
    ),
    "nowcast without motion": (
        lambda r, w: r.geonet.nowcast(time=HALF, motion=None),
        InputError,
        "motion is None; give 'estimate' or a Dataset of velocities[.]",
    ),
    "nowcast of the past": (
        lambda r, w: r.geonet.nowcast(time=HALF),
        InputError,
        "12:04:00.* is not after the last frame",
    ),
    "nowcast too far": (
        lambda r, w: r.geonet.nowcast(time=START + 120 * MINUTE),
        InputError,
        "9 intervals after the last frame, and longest is 6",
    ),
    "option of a nowcast": (
        lambda r, w: r.geonet.nowcast(time=START + 40 * MINUTE, reach=3.0),
        InputError,
        "no option 'reach'",
    ),
    "no rate": (
        lambda r, w: r.assign_attrs(units="dBZ").geonet.accumulate("5min"),
        InputError,
        "units 'dBZ', which are no rate",
    ),
    "no unit": (
        lambda r, w: r.geonet.accumulate(600),
        InputError,
        "every is 600 without a unit, and the times are dates; give 600s or 600min",
    ),
    "no interval": (lambda r, w: r.geonet.accumulate("fast"), InputError, "every is 'fast'"),
    "long interval": (
        lambda r, w: r.geonet.accumulate("2h"),
        InputError,
        "less than one interval",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(moving, winds, case):
    call, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        call(moving, winds)
