"""What the page offers exists, and works."""

from __future__ import annotations

import base64

import numpy as np
import pytest

import geonet
from geonet.app.requests import (
    CELLS,
    LEAST_EPSILON,
    MOST_CELLS,
    MOST_EPSILON,
    SOLVERS,
    USUAL_CELLS,
    USUAL_EPSILON,
    parse_request,
    page_settings,
)
from geonet.plotting.style import DENSITY_MAP
from geonet.solvers.registry import make_solver
from geonet.solvers.schrodinger import min_epsilon

OFFERS = [(d, offer) for d, offers in SOLVERS.items() for offer in offers]


@pytest.mark.parametrize(("dimension", "offer"), OFFERS, ids=lambda o: getattr(o, "name", str(o)))
def test_every_solver_exists(dimension, offer):
    noise = {"epsilon": USUAL_EPSILON} if offer.epsilon else {}
    solver = make_solver(offer.name, **offer.options, **noise)
    assert solver.info.takes(dimension)
    assert offer.epsilon == hasattr(solver, "epsilon")
    assert hasattr(solver, "time_limit") == ("time_limit" in offer.options)


@pytest.mark.parametrize(("dimension", "offer"), OFFERS, ids=lambda o: getattr(o, "name", str(o)))
def test_every_solver_answers(solving, question, drawn, encoded, dimension, offer):
    shape = (32,) * dimension
    ends = {
        "source": encoded(drawn(*shape)),
        "target": encoded(drawn(*shape, at=(0.6, 0.55))),
    }
    noise = LEAST_EPSILON if offer.epsilon else None
    given = question(shape=list(shape), solver=offer.name, epsilon=noise, **ends)
    path = solving.solved(parse_request(given)).path
    assert np.isfinite(path.density(0.5).numpy()).all()


def test_settings():
    found = page_settings()
    assert found["epsilon"] == {"least": 0.0005, "most": 0.05, "usual": 0.002}
    assert found["cells"] == {"1": [128, 256, 512], "2": [32, 64, 128]}
    assert found["usual"] == {"1": 256, "2": 64}
    assert found["version"] == geonet.__version__
    for dimension in ("1", "2"):
        solvers = found["solvers"][dimension]
        assert solvers[0]["name"] == "auto"
        assert [s["name"] for s in solvers if s["epsilon"]] == ["schrodinger"]
        assert all(set(solver) == {"name", "label", "epsilon"} for solver in solvers)
        assert len({solver["label"] for solver in solvers}) == len(solvers)


def test_colours():
    colours = np.frombuffer(base64.b64decode(page_settings()["colours"]), np.uint8).reshape(256, 3)
    assert np.array_equal(colours, DENSITY_MAP(range(256), bytes=True)[:, :3])


def test_limits_fit_each_other():
    for dimension, cells in CELLS.items():
        assert USUAL_CELLS[dimension] in cells and max(cells) <= MOST_CELLS[dimension]
    assert LEAST_EPSILON < USUAL_EPSILON < MOST_EPSILON
    assert min_epsilon(geonet.Grid((min(CELLS[2]),) * 2)) <= LEAST_EPSILON
