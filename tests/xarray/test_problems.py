"""Reach, periodic longitudes and ensemble means of fields."""

from __future__ import annotations

import dask.array
import numpy as np
import pytest
import xarray as xr

import geonet
from geonet import Density, Grid
from geonet._threads import one_thread
from geonet.errors import ConvergenceWarning, DensityError, GridError, InputError, SolverError

START, MINUTE = np.datetime64("2026-07-01T12:00", "ns"), np.timedelta64(1, "m")
HALF = START + 5 * MINUTE
BOX = Grid((16, 20), (-1, -1), (31, 39))  # of the fixture `rain`, in km
every_growth = pytest.mark.parametrize("growth", ["hellinger", "wfr"])


@pytest.fixture
def globe() -> xr.DataArray:
    """Two frames of a spot that moves east by 20 degrees across the date line."""
    longitude, latitude = np.arange(-177.5, 180, 5), np.arange(-32.5, 35, 5)
    frames = []
    for centre in (170.0, 190.0):
        away = (longitude - centre + 180) % 360 - 180
        frames.append(np.exp(-np.add.outer(latitude**2, away**2) / 200))
    coords = {"time": [0.0, 1.0], "latitude": latitude, "longitude": longitude}
    return xr.DataArray(np.array(frames), coords, ("time", "latitude", "longitude"), "tracer")


def spot_centre(field: xr.DataArray) -> float:
    """Return the mean longitude on the circle, in degrees."""
    angle = np.exp(1j * np.radians(field.longitude.values))
    return float(np.degrees(np.angle((field.sum("latitude").values * angle).sum()))) % 360


# ---- Reach


@every_growth
def test_values_are_those_of_geonet_geodesic(rain, growth):
    own, rain = {"reach": 8.0, "growth": growth}, rain.isel(time=slice(2))
    with one_thread():
        ends = (Density(rain.values[k], BOX) for k in (0, 1))
        path = geonet.geodesic(*ends, **own)
        frame, points = path.density(0.5).numpy("given"), BOX.points().numpy()
        speed = path.velocity(0.5, points) / 600
    ours = rain.geonet.interp(time=HALF, motion=None, **own)
    np.testing.assert_allclose(ours.values, frame, rtol=1e-9, atol=1e-12)
    wind = rain.geonet.velocity(time=HALF, motion=None, **own)
    np.testing.assert_allclose(wind.velocity_y, speed[..., 0], atol=1e-12)
    report = rain.geonet.report(**own).isel(time=0)
    assert float(report.distance) == pytest.approx(path.distance, rel=1e-9)
    assert report.distance_lower_bound <= report.distance <= report.distance_upper_bound
    assert float(report.transported_share) == pytest.approx(path.transported_share)
    assert float(report.source_mass) == pytest.approx(path.source.mass)
    apart = rain[0].geonet.distance(rain[1], **own)
    following = rain.geonet.distance(**own)
    assert float(apart) == pytest.approx(path.distance) == pytest.approx(float(following[0]))
    assert "reach of 8" in following.attrs["long_name"] and "units" not in following.attrs


def test_a_reach_keeps_frames_and_totals(rain, fine):
    ours = rain.geonet.interp(time=fine, motion=None, reach=8.0)
    assert (ours.values[::2] == rain.values).all()
    totals = rain.sum(("y", "x"))
    np.testing.assert_allclose(ours.sum(("y", "x"))[1], totals[:2].mean(), rtol=1e-9)
    less = rain.geonet.interp(time=HALF, motion=None, reach=8.0, growth="wfr").sum()
    assert float(less) < float(totals[:2].mean())
    solver = geonet.solver("midpoint", reach=8.0)
    assert rain.geonet.interp(time=HALF, motion=None, solver=solver).equals(
        ours[1].assign_coords(time=HALF)
    )


@every_growth
def test_empty_frames_fade_with_a_reach(rain, growth):
    field = rain.copy(data=rain.values.copy())
    field[1] = 0
    own = {"reach": 8.0, "growth": growth}
    ours = field.geonet.interp(
        time=START + np.array([5, 12]) * MINUTE, flag="faded", motion=None, **own
    )
    assert ours.faded.all()
    shares = (0.5, 0.2) if growth == "hellinger" else (0.25, 0.04)
    np.testing.assert_allclose(ours[0], shares[0] * field[0])
    np.testing.assert_allclose(ours[1], shares[1] * field[2])
    report = field.geonet.report(**own)
    exact = 8 * np.sqrt(field.values[0].sum() * 4)
    assert float(report.distance[0]) == pytest.approx(exact)
    assert report.transported_share.values[0] == 0 and report.faded.values[0]
    # nearly empty frames have nearly the same distance
    field[1] = 1e-9 * rain.values[1]
    assert float(field.geonet.distance(**own)[0]) == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reach": 0}, SolverError, "reach is 0; give a finite length above 0, or .* balanced"),
        ({"reach": np.inf}, SolverError, "reach is inf; give a finite length"),
        ({"reach": 0.1}, InputError, "reach is 0.1 km, 0.05 of a cell"),
        ({"reach": 1e9}, SolverError, "reach is 1e[+]09, more than 1000 times"),
        ({"reach": "far"}, SolverError, "reach is 'far'"),
        ({"reach": 8.0, "growth": "x"}, SolverError, "growth is 'x'; give 'hellinger' or 'wfr'"),
        ({"growth": "wfr"}, InputError, "without a reach"),
        ({"reach": 8.0, "solver": "schrodinger"}, SolverError, "balanced transport.*midpoint"),
        ({"reach": 8.0, "solver": geonet.solver("linear")}, InputError, "Solver instance"),
        ({"periodic": "z"}, InputError, "'z'"),
        ({"periodic": "time"}, InputError, "'time', which is not a dimension of space"),
        ({"periodic": True, "solver": "monge-ampere"}, SolverError, "takes no periodic axes"),
    ],
)
def test_bad_options_raise(rain, options, error, message):
    with pytest.raises(error, match=message):
        rain.geonet.interp(time=HALF, motion=None, **options)
    if "reach" in options and "growth" not in options and "solver" not in options:
        with pytest.raises(InputError, match="reach is"):
            rain.geonet.mean("time", reach=options["reach"])


# ---- Periodic dimensions


def test_mass_crosses_the_date_line(globe):
    ours = globe.geonet.interp(time=0.5, periodic="longitude")
    assert spot_centre(ours) == pytest.approx(180, abs=0.5)
    metres = 20 * 6_371_000 * np.pi / 180
    with_seam = float(globe.geonet.distance(periodic=True)[0])
    assert with_seam == pytest.approx(metres, rel=0.01)
    assert float(globe.geonet.distance()[0]) > 5 * with_seam
    wind = globe.geonet.velocity(time=0.5, periodic=True)
    east = wind.velocity_longitude.sel(latitude=2.5, longitude=[177.5, -177.5])
    np.testing.assert_allclose(east, metres, rtol=0.02)
    report = globe.geonet.report(periodic="longitude", reach=5e6)
    assert report.converged.all() and float(report.transported_share[0]) > 0.9


def test_longitudes_may_start_anywhere(globe):
    expected = globe.geonet.interp(time=0.5, periodic=True)
    rolled = globe.roll(longitude=31, roll_coords=True)  # with a jump by 360 degrees
    shifted = globe.assign_coords(longitude=globe.longitude % 360).sortby("longitude")
    for field in (rolled, shifted):
        ours = field.geonet.interp(time=0.5, periodic=True)
        assert np.array_equal(ours.longitude, field.longitude)
        ours = ours.assign_coords(longitude=(ours.longitude + 180) % 360 - 180).sortby("longitude")
        assert float(abs(ours - expected).sum() / expected.sum()) < 2e-3


def test_periodic_planes(rain):
    field = rain.roll(y=8)
    expected = rain.geonet.interp(time=HALF, periodic=True).roll(y=8)
    ours = field.geonet.interp(time=HALF, periodic=["y", "x"])
    assert float(abs(ours - expected).sum() / expected.sum()) < 2e-3
    assert float(field.geonet.distance(periodic="y")[0]) < 0.9 * float(field.geonet.distance()[0])


def test_wrong_circles_raise(globe):
    part = globe.isel(longitude=slice(0, 40))
    with pytest.raises(GridError, match="cover 200 degrees, and a full circle has 360"):
        part.geonet.interp(time=0.5, periodic=True)
    again = globe.pad(longitude=(0, 1), mode="wrap")
    again = again.assign_coords(longitude=np.arange(-177.5, 183, 5))
    with pytest.raises(GridError, match="repeats the first"):
        again.geonet.interp(time=0.5, periodic=True)
    with pytest.raises(GridError, match="latitudes end at the poles"):
        globe.geonet.interp(time=0.5, periodic="latitude")


# ---- Means of ensembles


def test_mean_is_the_barycenter(ensemble):
    weights = [0.25, 0.75]
    ours = ensemble.geonet.mean("member", weights=weights)
    plain = ensemble.mean("member", keep_attrs=True)
    assert ours.dims == plain.dims and ours.attrs == ensemble.attrs and ours.name == "rain"
    assert set(ours.coords) == set(plain.coords)
    with one_thread():
        ends = [Density(ensemble.values[1, k], BOX) for k in (0, 1)]
        frame = geonet.barycenter(ends, weights).density.numpy()
    total = float(np.array(weights) @ ensemble.values[1].sum((1, 2)))
    np.testing.assert_allclose(ours[1], frame * total / frame.sum(), rtol=1e-6, atol=1e-9)
    labelled = xr.DataArray(weights[::-1], {"member": [7, 3]}, ("member",))
    assert ensemble.geonet.mean(weights=labelled).equals(ours)
    single = ensemble.geonet.mean(weights=[0, 1])
    np.testing.assert_allclose(single, ensemble.isel(member=1), rtol=1e-9)
    unit = ensemble.geonet.mean(mass="one").sum(("y", "x")) * 4.0
    np.testing.assert_allclose(unit, 1.0, rtol=1e-9)


def test_equal_members_are_their_mean(rain):
    """Barycenters interpolate densities linearly within cells, which widens spots of four cells."""
    field = xr.concat([rain, rain, rain], "member")
    ours = field.geonet.mean("member", weights=[0.2, 0.3, 0.5])
    assert float(abs(ours - rain).sum() / rain.sum()) < 0.05


def test_dry_members(ensemble):
    field = ensemble.copy(data=ensemble.values.copy())
    field[0, 1] = 0
    field[2] = 0
    with pytest.raises(DensityError, match="member 7.* is zero everywhere.*give a reach"):
        field.geonet.mean()
    with pytest.raises(DensityError, match="member 7"):
        field.geonet.mean(weights=[0.5, 0.5])
    ours = field.geonet.mean(weights=[1.0, 0.0])
    np.testing.assert_allclose(ours[:2], field[:2, 0], rtol=1e-9)
    ours = field.geonet.mean(reach=8.0)
    np.testing.assert_allclose(ours[0], 0.5 * field[0, 0], rtol=1e-9)
    assert (ours[2] == 0).all() and bool(np.isfinite(ours).all())
    totals = field.mean("member").sum(("y", "x"))
    np.testing.assert_allclose(ours.sum(("y", "x")), totals, rtol=1e-9)


def test_unconverged_means_warn(ensemble):
    members = r"The mean of rain at member 3, time 2026-07-01T12:10\S* to rain at member 7, time "
    reason = r"2026-07-01T12:10\S* did not reach the tolerance of 1e-7 % .* may be inaccurate; "
    for options, remedy in (
        ({"max_iterations": 1}, "average the field to coarser cells, or give a larger"),
        ({"time_limit": 1e-9}, "give a longer time_limit[.]"),
    ):
        with pytest.warns(ConvergenceWarning, match=members + reason + remedy):
            ensemble.isel(time=slice(1, 2)).geonet.mean(tolerance=1e-9, **options)


def test_mean_with_gaps_and_periodic_dimensions(ensemble, globe):
    field = ensemble.isel(time=[0]).copy()
    field[0, 0, :, 15:] = np.nan
    with pytest.raises(DensityError, match="without a value"):
        field.geonet.mean()
    ours = field.geonet.mean(missing="exclude")
    assert bool(np.isnan(ours[0, :, 15:]).all()) and bool(np.isfinite(ours[0, :, :15]).all())
    members = globe.rename(time="member")
    assert spot_centre(members.geonet.mean(periodic=True)) == pytest.approx(180, abs=0.5)


def test_bad_means_raise(ensemble):
    for options, message in (
        ({"dim": "height"}, "height"),
        ({"weights": [0.5, 0.6]}, "sum to 1.1"),
        ({"weights": [1.0]}, "weight"),
        ({"weights": xr.DataArray([0.5, 0.5], {"member": [1, 2]}, ("member",))}, "labels"),
        ({"tolerance": 0}, "tolerance is 0"),
    ):
        with pytest.raises(InputError, match=message):
            ensemble.geonet.mean(**options)


# ---- Dask


def test_results_are_lazy_and_equal(ensemble):
    lazy = ensemble.isel(time=slice(2)).chunk(time=1, member=1)
    for compute in (
        lambda field: field.geonet.mean(weights=[0.4, 0.6]),
        lambda field: field.geonet.mean(reach=8.0),
        lambda field: field.geonet.interp(time=HALF, reach=8.0),
        lambda field: field.geonet.interp(time=HALF, periodic=True),
        lambda field: field.geonet.distance(reach=8.0, growth="wfr"),
    ):
        answer = compute(lazy)
        assert isinstance(answer.data, dask.array.Array)
        xr.testing.assert_equal(answer.compute(), compute(ensemble.isel(time=slice(2))))
    velocity = lazy.geonet.velocity(time=HALF, reach=8.0)
    assert isinstance(velocity.velocity_x.data, dask.array.Array)
    report = lazy.geonet.report(periodic=True, reach=8.0)
    assert isinstance(report.transported_share.data, dask.array.Array)
