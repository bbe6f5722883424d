"""Long work says where it is."""

from __future__ import annotations

import numpy as np
import pytest

import geonet
from geonet._progress import report_progress
from geonet.solvers.registry import solver_class

TOLD = {  # what begins a line of each solver that works step by step
    "midpoint": ("midpoint: 32 cells, Newton step 1, residual ", {}),
    "monge-ampere": ("monge-ampere: 16 cells, Newton step 1, residual ", {}),
    "back-and-forth": ("back-and-forth: iteration 4, W2 still changes by ", {}),
    "linear-program": ("linear-program: from 32 to 32 cells", {}),
    "schrodinger": ("schrodinger: iteration 1, the end is missed by ", {}),
    "barycenter": ("barycenter: the frame at t = 0.5", {}),
    "pinn": ("pinn: step 2 of 3, loss ", {"steps": 3, "points": 8, "width": 4, "depth": 2}),
    "flow-matching": ("training a flow: step 2 of 3", {"steps": 3, "particles": 20}),
    "transport-1d": ("asking transport-1d", {}),
    "geonet-1d": ("asking ", {}),
}


@pytest.fixture
def pair():
    grid = geonet.Grid((32,))
    x = grid.points()[:, 0].numpy()
    return [geonet.Density(0.1 + np.exp(-(((x - at) / 0.15) ** 2)), grid) for at in (0.35, 0.6)]


@pytest.mark.parametrize("name", TOLD)
def test_every_iterative_solver_says_where_it_is(name, pair):
    begins, options = TOLD[name]
    heard: list[str] = []
    with geonet.listening(heard.append):
        geonet.geodesic(*pair, name, **options).density(0.5)
    assert any(line.startswith(begins) for line in heard), heard
    assert not any("e+" in line or "nan" in line or "inf" in line for line in heard)


def test_auto_announces_its_attempts():
    grid = geonet.Grid((16, 16))
    shape = np.zeros(grid.shape)
    shape[2:7, 2:9] = 1
    heard: list[str] = []
    with geonet.listening(heard.append):
        path = geonet.geodesic(geonet.Density(shape, grid), geonet.Density(shape.T[::-1], grid))
    assert path.solver == "midpoint"
    assert heard[:2] == ["auto: midpoint", "asking universal-2d"]
    assert heard[-1].startswith("midpoint: ")


def test_a_batch_is_counted(pair):
    batch = [geonet.Density(np.stack([end.tensor.numpy()] * 2), end.grid) for end in pair]
    heard: list[str] = []
    with geonet.listening(heard.append):
        solver_class("linear-program")()(*batch)
    assert [line for line in heard if line.startswith("pair ")] == ["pair 1 of 2", "pair 2 of 2"]


def test_lines_in_between_are_dropped_and_nobody_need_listen():
    heard: list[str] = []
    report_progress("unheard")
    with geonet.listening(heard.append, every=3600):
        for k in range(5):
            report_progress(f"line {k}")
    report_progress("unheard")
    assert heard == ["line 0"]
