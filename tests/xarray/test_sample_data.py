"""Synthetic rain, and the errors of interpolations of it."""

from __future__ import annotations

import numpy as np

from geonet.xarray import synthetic_rain


def test_shape_units_and_dry_cells():
    rain = synthetic_rain()
    assert rain.dims == ("time", "y", "x") and rain.shape == (9, 96, 96)
    assert rain.dtype == np.float32 and rain.attrs["units"] == "mm h-1"
    assert rain.time.values[1] - rain.time.values[0] == np.timedelta64(10, "m")
    assert ((rain == 0) | (rain >= 0.1)).all() and 0.3 < float((rain == 0).mean()) < 0.9


def test_consistency_between_times_and_resolutions():
    rain = synthetic_rain((0, 7.5, 20))
    assert (synthetic_rain((7.5,)).values == rain.values[1:2]).all()
    coarse = synthetic_rain((20,), cells=48)
    np.testing.assert_allclose(coarse.sum() * 4, rain[2].sum(), rtol=0.02)


def test_geodesic_has_a_third_of_the_error_of_fading():
    truth = synthetic_rain(cells=48)
    kept, left_out = truth[::2], truth[1::2]
    errors = [
        float(abs(result - left_out).sum() / left_out.sum())
        for result in (kept.geonet.interp(time=left_out.time), kept.interp(time=left_out.time))
    ]
    # On 96² cells the ratio is a sixth (make benchmark NAME=radar).
    assert errors[0] < errors[1] / 3
