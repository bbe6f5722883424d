"""Scores of forecasts against exact transport of Gaussians, and means of ensembles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import xarray as xr

from geonet.errors import DensityError, GeonetError, GridError, InputError, UnavailableError
from geonet.grid import Grid
from geonet.solvers.newton.unbalanced import UnbalancedGeodesic
from geonet.xarray import displacement_score, synthetic_rain

CELLS, REACH = 40, 10.0


def spot(x: float, y: float = 20.0, amount: float = 1.0, width: float = 3.0) -> xr.DataArray:
    """Return a Gaussian of the given mass, on cells of one kilometre."""
    centres = np.arange(CELLS) + 0.5
    square = (centres[None, :] - x) ** 2 + (centres[:, None] - y) ** 2
    values = np.exp(-square / (2 * width**2))
    units = {"units": "km"}
    coords = {"y": ("y", centres, units), "x": ("x", centres, units)}
    return xr.DataArray(amount * values / values.sum(), coords, ("y", "x"), "rain")


@pytest.mark.parametrize("shift", [2.0, 5.0])
def test_shifted_gaussians(shift):
    """The optimal plan shifts by δ = shift/(1 + 2σ²/λ), with mass exp(−δ²/4λ − δ²σ²/2λ²)."""
    penalty, variance = REACH**2 / 2, 9.0
    step = shift / (1 + 2 * variance / penalty)
    mass = math.exp(-(step**2) / (4 * penalty) - step**2 * variance / (2 * penalty**2))
    score = displacement_score(spot(17), spot(17 + shift), reach=REACH, tolerance=1e-3)
    assert score.cost == pytest.approx(2 * penalty * (1 - mass), rel=0.02)
    assert score.displacement == pytest.approx(step**2 / 2 * mass, rel=0.02)
    assert score.amplitude == pytest.approx(score.cost - score.displacement)
    assert score.transported_share == pytest.approx(mass, abs=1e-3)
    assert score.mean_displacement == pytest.approx(step, rel=0.02)
    assert score.mean_displacement.attrs["units"] == "km"
    # Along the plan both densities are Gaussians at a distance of shift − δ.
    missed = math.erf((shift - step) / 2 / math.sqrt(2 * variance))
    assert score.missed_mass == pytest.approx(missed, rel=0.03)
    assert score.false_mass == pytest.approx(missed, rel=0.03)
    assert score.converged


@pytest.mark.parametrize("amount", [0.25, 3.0])
def test_wrong_amounts_are_no_displacement(amount):
    score = displacement_score(spot(20), spot(20, amount=amount), reach=REACH)
    cost = REACH**2 / 2 * (1 - math.sqrt(amount)) ** 2  # λ∫(√μ0 − √μ1)²
    assert score.amplitude == pytest.approx(cost, rel=1e-3)
    assert score.displacement < 1e-3 * cost and score.mean_displacement < 0.01
    assert score.missed_mass == pytest.approx(max(0, amount - 1), abs=1e-3)
    assert score.false_mass == pytest.approx(max(0, 1 - amount), abs=1e-3)


def test_rain_out_of_reach_is_missed_and_false():
    score = displacement_score(spot(8, 8), spot(33, 33, amount=2.0), reach=3.0)
    assert score.cost == pytest.approx(4.5 * 3, rel=1e-3)  # λ times both masses
    assert score.missed_mass == pytest.approx(2, rel=1e-3)
    assert score.false_mass == pytest.approx(1, rel=2e-3)
    assert score.transported_share < 1e-3


def test_perfect_and_empty_forecasts():
    rain = spot(20)
    perfect = displacement_score(rain, rain, reach=REACH)
    assert perfect.cost == 0 and perfect.transported_share == 1
    missed = displacement_score(0 * rain, rain, reach=REACH)
    assert missed.cost == pytest.approx(50) and missed.displacement == 0
    assert missed.missed_mass == pytest.approx(1) and missed.false_mass == 0
    assert missed.transported_share == 0 and np.isnan(missed.mean_displacement)
    dry = displacement_score(0 * rain, 0 * rain, reach=REACH)
    assert dry.cost == 0 and np.isnan(dry.transported_share)


def test_scores_per_time_and_member():
    observed = xr.concat([spot(15), spot(20)], xr.IndexVariable("time", [0, 10]))
    shifts = xr.IndexVariable("member", [0, 2, 4])
    forecast = xr.concat(
        [xr.concat([spot(15 + k), spot(20 + k)], observed.time) for k in shifts.values], shifts
    )
    score = displacement_score(forecast, observed, reach=REACH)
    assert dict(score.sizes) == {"member": 3, "time": 2} and score.attrs == {"reach": REACH}
    assert (score.mean_displacement.diff("member") > 1).all()
    single = displacement_score(forecast[1, 0], observed[0], reach=REACH)
    assert single.cost == score.cost[1, 0]
    lazy = displacement_score(forecast.chunk(member=1), observed.chunk(time=1), reach=REACH)
    assert lazy.cost.chunks is not None
    assert lazy.compute().equals(score)


def test_missing_cells_count_in_neither_field():
    forecast, observed = spot(12) + spot(33, 33), spot(13)
    hidden = (observed.x > 26) & (observed.y > 26)
    masked = observed.where(~hidden)
    score = displacement_score(forecast, masked, reach=REACH, missing="exclude")
    assert score.false_mass < 0.2 < displacement_score(forecast, observed, reach=REACH).false_mass
    with pytest.raises(DensityError, match="the observation has 196 of 1600 cells without a value"):
        displacement_score(forecast, masked, reach=REACH)


@pytest.mark.parametrize(
    "change, arguments, kind, message",
    [
        (lambda f: f, {"reach": None}, InputError, "reach is None; give the length"),
        (lambda f: f, {"reach": -1.0}, InputError, "reach is -1"),
        (lambda f: f, {"reach": 0}, InputError, "reach is 0; give a finite length above 0[.]"),
        (lambda f: f, {"reach": np.inf}, InputError, "reach is inf; give a finite length above 0"),
        (lambda f: f, {"reach": np.nan}, InputError, "reach is nan"),
        (
            lambda f: f,
            {"reach": 0.06},
            InputError,
            "0.06 of a cell, .* units of the coordinates[.]",
        ),
        (lambda f: f, {"reach": 1e9}, InputError, "more than 1000 times the longest side"),
        (lambda f: f - 1, {"reach": 5.0}, DensityError, "the observation has 1600 negative"),
        (lambda f: f[:, :20], {"reach": 5.0}, GridError, "differ along 'x'"),
        (lambda f: f.assign_coords(x=f.x + 3), {"reach": 5.0}, GridError, "different boxes"),
        (lambda f: f.values, {"reach": 5.0}, InputError, "the observation is"),
        (lambda f: f, {"reach": 5.0, "speed": 3}, InputError, "speed"),
    ],
)
def test_bad_scores(change, arguments, kind, message):
    with pytest.raises(GeonetError, match=message) as caught:
        displacement_score(spot(20), change(spot(20)), **arguments)
    assert isinstance(caught.value, kind)


def test_curved_paths_have_no_parts():
    import geonet

    grid = Grid((CELLS, CELLS), (0, 0), (CELLS, CELLS))
    ends = [geonet.Density(spot(x).values, grid) for x in (18, 22)]
    path = geonet.geodesic(*ends, reach=REACH, growth="wfr")
    assert isinstance(path, UnbalancedGeodesic)
    with pytest.raises(UnavailableError, match="growth='hellinger'"):
        path.split_cost()


# ---- Ensembles


def sharpness(field: xr.DataArray) -> float:
    """Return the sum of all slopes."""
    return float(sum(abs(field.diff(dim)).sum() for dim in ("y", "x")))


def test_wasserstein_mean_is_as_sharp_and_as_wet_as_its_members():
    rain = synthetic_rain([0], cells=48)[0]
    moves = [(-5, -2), (2, 4), (4, -3)]  # cells
    members = xr.concat([rain.shift(y=y, x=x, fill_value=0.0) for y, x in moves], "member")
    mean, blend = members.geonet.mean("member", reach=48.0), members.mean("member")
    typical = np.mean([sharpness(member) for member in members])
    wet = float((members > 0.1).sum(("y", "x")).mean())
    assert sharpness(blend) < 0.85 * typical < 0.93 * typical < sharpness(mean)
    assert sharpness(mean) < 1.1 * typical
    assert float((blend > 0.1).sum()) > 1.25 * wet
    assert 0.93 * wet < float((mean > 0.1).sum()) < 1.07 * wet
    assert float(blend.max()) < 0.5 * float(rain.max()) < 0.7 * float(rain.max()) < mean.max()
    assert float(mean.sum()) == pytest.approx(float(blend.sum()), rel=1e-6)
