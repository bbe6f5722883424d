"""The study of radar images: cases, scores, and methods on a small made-up sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import xarray as xr

from benchmarks.studies.radar_fields import (
    QUICK,
    SCORES,
    Case,
    draw_case,
    list_cases,
    make_methods,
    score,
)
from geonet.errors import InputError
from geonet.xarray import synthetic_rain


def make_field(images: int = 9, cells: int = 32) -> xr.DataArray:
    return synthetic_rain(range(0, 5 * images, 5), cells=cells).astype(float)


def test_left_out_images_are_never_read():
    field = make_field()
    cases = list(list_cases(field, 20, 3))
    minutes = [(case.time - field.time.values[0]) / np.timedelta64(1, "m") for case in cases]
    assert minutes == [10.0, 20.0, 30.0]
    for case in cases:
        assert case.time not in case.kept.time.values
        assert (np.diff(case.kept.time.values) == np.timedelta64(20, "m")).all()
        assert (case.truth == field.sel(time=case.time).values).all()
        around = [case.time + sign * np.timedelta64(10, "m") for sign in (-1, 1)]
        assert (case.pair == field.sel(time=around).values).all()


@pytest.mark.parametrize(("gap", "message"), [(15, "7 minutes"), (60, "less than 60")])
def test_gaps_that_do_not_fit_raise(gap, message):
    with pytest.raises(InputError, match=message):
        next(list_cases(make_field(), gap, 1))


def test_scores_of_known_frames():
    truth = np.zeros((8, 8))
    truth[2:4, 2:4] = 2.0
    assert score(truth, truth) == [0.0] + [100.0] * 5
    shifted = dict(zip(SCORES, score(np.roll(truth, 1, 0), truth), strict=True))
    assert shifted["error, %"] == 100.0 and shifted["sharpness, %"] == 100.0
    assert shifted["CSI at 1 mm/h, %"] == pytest.approx(100 / 3)  # 2 hits of 6 wet cells
    half = dict(zip(SCORES, score(truth / 4, truth), strict=True))
    assert half["CSI at 1 mm/h, %"] == 0 and half["CSI at 0.1 mm/h, %"] == 100
    assert half["wet area, %"] == 100 and half["total, %"] == half["sharpness, %"] == 25


def test_all_methods_and_their_picture(tmp_path):
    pytest.importorskip("pysteps")
    case = next(list_cases(make_field(cells=48), 10, 1))
    config = replace(QUICK, reach=8.0)  # in kilometres here
    methods = {n: m for n, m in make_methods(config).items() if "VET" not in n}
    errors = {name: score(method(case), case.truth)[0] for name, method in methods.items()}
    assert errors["`rain.geonet.interp`"] < errors["pysteps, Lucas–Kanade"]
    assert errors["pysteps, Lucas–Kanade"] < errors["`rain.interp`, which fades"]
    fades = dict.fromkeys(map(str, range(7)), lambda case: Case(*case).pair.mean(0))
    draw_case(case, fades, tmp_path / "frames.png")
    assert (tmp_path / "frames.png").stat().st_size > 1000
