"""Cost against size: values, and the slope that is fitted."""

from dataclasses import replace

import pytest

from benchmarks import suites as scaling
from benchmarks.suites import LADDERS, Ladder, measure_curves
from geonet.mixture import BOX_1D, mixtures_1d


def test_ladders():
    assert [ladder.solver for ladder in LADDERS] == ["transport-1d", "transport-2d"]
    for ladder in LADDERS:
        assert (max(ladder.times), max(ladder.pairs)) == (64, 256)
        quick = ladder.reduce()
        for name in ("cells", "times", "pairs"):
            assert 2 <= len(getattr(quick, name)) < len(getattr(ladder, name))
    assert (min(LADDERS[1].cells), max(LADDERS[1].cells)) == (32, 256)


def test_curves(monkeypatch):
    """Of a solver that costs in proportion to all that is asked."""
    asked = []

    def calls_within(budget, repeats, call):
        answer = call(0).tensor
        asked.append(tuple(answer.shape))
        return scaling_calls([answer.numel() * 1e-6])

    def scaling_calls(warm):
        return type("Calls", (), {"warm": warm})

    monkeypatch.setattr(scaling, "calls_within", calls_within)
    ladder = Ladder(
        "linear", mixtures_1d, BOX_1D.with_shape(20), (10, 20, 40), (1, 2, 4), (1, 2, 4)
    )
    found = {curve.axis: curve for curve in measure_curves(ladder)}
    assert asked == [
        (1, 20),
        (5, 10),
        (5, 20),
        (5, 40),
        (1, 20),
        (2, 20),
        (4, 20),
        (5, 20),
        (2, 5, 20),
        (4, 5, 20),
    ]
    assert found["output points"].tensor == [10, 20, 40]
    assert found["times"].tensor == found["pairs"].tensor == [1, 2, 4]
    for curve in found.values():
        assert curve.solver == "linear" and curve.slope == pytest.approx(1)


def test_curves_are_timed():
    ladder = replace(LADDERS[0], cells=(50, 100), times=(1, 2), pairs=(1, 2), repeats=1)
    for curve in measure_curves(replace(ladder, grid=BOX_1D)):
        assert len(curve.seconds) == 2 and min(curve.seconds) > 0
