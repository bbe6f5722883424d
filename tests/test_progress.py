"""Solvers report their progress."""

from __future__ import annotations

import numpy as np
import pytest

import geonet
from geonet._progress import report_progress
from geonet.errors import InputError

ITERATIVE = ("midpoint", "monge-ampere", "back-and-forth", "linear-program", "schrodinger")


@pytest.fixture
def pair():
    grid = geonet.Grid((64,))
    x = grid.points()[:, 0].numpy()
    return [geonet.Density(0.1 + np.exp(-(((x - at) / 0.15) ** 2)), grid) for at in (0.35, 0.6)]


@pytest.mark.parametrize("name", [*ITERATIVE, "transport-1d"])
def test_solvers_report_progress(name, pair):
    lines: list[str] = []
    with geonet.progress_callback(lines.append):
        geonet.geodesic(*pair, name).density(0.5)
    assert any(name in line for line in lines), lines
    assert not any("e+" in line or "nan" in line or "inf" in line for line in lines)


def test_lines_in_between_are_dropped():
    lines: list[str] = []
    report_progress("unlines")
    with geonet.progress_callback(lines.append, every=3600):
        for k in range(5):
            report_progress(f"line {k}")
    report_progress("unlines")
    assert lines == ["line 0"]


@pytest.mark.parametrize(("callback", "every"), [(3, 0), (print, -1), (print, float("nan"))])
def test_invalid_callbacks_raise(callback, every):
    with pytest.raises(InputError), geonet.progress_callback(callback, every):
        pass
