"""Solvers report their progress."""

from __future__ import annotations

import numpy as np
import pytest

import geonet
from geonet._progress import report_progress
from geonet.errors import InputError
from geonet.solvers.registry import load_solver_class

ITERATIVE = ("midpoint", "monge-ampere", "back-and-forth", "linear-program", "schrodinger")


@pytest.fixture
def pair():
    grid = geonet.Grid((32,))
    x = grid.points()[:, 0].numpy()
    return [geonet.Density(0.1 + np.exp(-(((x - at) / 0.15) ** 2)), grid) for at in (0.35, 0.6)]


@pytest.mark.parametrize("name", [*ITERATIVE, "transport-1d"])
def test_solvers_report_progress(name, pair):
    lines: list[str] = []
    with geonet.progress_callback(lines.append):
        geonet.geodesic(*pair, name).density(0.5)
    assert any(name in line for line in lines), lines
    assert not any("e+" in line or "nan" in line or "inf" in line for line in lines)


def test_auto_reports_its_choice():
    grid = geonet.Grid((16, 16))
    shape = np.zeros(grid.shape)
    shape[2:7, 2:9] = 1
    lines: list[str] = []
    with geonet.progress_callback(lines.append):
        path = geonet.geodesic(geonet.Density(shape, grid), geonet.Density(shape.T[::-1], grid))
    assert path.solver == "midpoint"
    assert lines[:2] == ["auto: midpoint", "evaluating universal-2d"]
    assert lines[-1].startswith("midpoint: ")


def test_batches_report_their_pairs(pair):
    batch = [geonet.Density(np.stack([end.tensor.numpy()] * 2), end.grid) for end in pair]
    lines: list[str] = []
    with geonet.progress_callback(lines.append):
        load_solver_class("linear-program")()(*batch)
    assert [line for line in lines if line.startswith("pair ")] == ["pair 1 of 2", "pair 2 of 2"]


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
