"""A whole run: the plan, the processes, and what happens when one of them dies."""

import math
import os

import pytest

from benchmarks import run
from benchmarks.any_pair.suite import CONTESTANTS, SUITE
from benchmarks.process import run_in_process
from benchmarks.run import run_benchmark, make_plan
from benchmarks.suites import SUITES, Suite
from benchmarks.worker import FULL, QUICK, Limits
from geonet.errors import InputError, SolverError
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers import registry

TINY = Suite("1d", mixtures_1d, BOX_1D, (20, 30), 30, times=(1, 5), batches=(1, 3))
OWN_SOLVER = '''
from dataclasses import dataclass

from geonet.solvers.linear import Linear


@dataclass(frozen=True)
class Mine(Linear):
    """A user's own."""

    name = "mine"
'''


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(SUITES, "1d", TINY)


@pytest.fixture
def here(monkeypatch):
    """Everything in this process."""
    monkeypatch.setattr(run, "in_new_process", lambda function, given: function(given))


# ---- the plan


def test_all_is_planned():
    plan = make_plan()
    assert [suite.name for suite, _ in plan.parts] == ["1d", "2d"]
    assert [ladder.solver for ladder in plan.ladders] == ["transport-1d", "transport-2d"]
    assert plan.any == (SUITE, list(CONTESTANTS))
    quick = make_plan(quick=True)
    assert plan.limits == FULL and quick.limits == QUICK
    assert QUICK.budget < FULL.budget and 5 <= QUICK.repeats < FULL.repeats
    assert len(quick.parts[1][1]) < len(plan.parts[1][1])
    suite, own = quick.any
    assert list(suite.finer) == [64] and suite.pairs == 1 and 0 < len(own) < len(CONTESTANTS)


def test_what_is_named_is_planned():
    plan = make_plan(["2d"], ["linear", "transport-2d"])
    ((suite, own),) = plan.parts
    assert suite.name == "2d" and plan.ladders == [] and plan.any is None
    assert {entrant.solver for entrant in own} == {"linear", "transport-2d"}
    plan = make_plan([], ["quantile"])
    assert [suite.name for suite, _ in plan.parts] == ["1d"] and plan.ladders == []
    assert plan.any is None
    plan = make_plan(["any"], ["linear", "schrodinger"])
    assert plan.parts == [] and plan.ladders == []
    assert [entrant.solver for entrant in plan.any[1]] == ["linear", "schrodinger"]
    plan = make_plan(["scaling"], ["transport-2d"])
    assert plan.parts == [] and [ladder.solver for ladder in plan.ladders] == ["transport-2d"]


@pytest.mark.parametrize(
    ("suites", "solvers", "message"),
    [
        (["3d"], [], "There is no suite '3d'; choose from 1d, 2d, any, scaling."),
        ([], ["no"], "There is no solver 'no'"),
        (["2d"], ["quantile"], "'quantile' takes no part in the chosen suites, which have 2D"),
        (["scaling"], ["linear"], "'linear' takes no part"),
        (["any"], ["quantile"], "'quantile' takes no part in the chosen suites, which have 2D"),
        (["any", "2d"], ["quantile"], "which have 2D densities"),
        ([], ["linear", "transport-3d"], "'transport-3d' takes no part"),
    ],
)
def test_what_is_refused(suites, solvers, message):
    with pytest.raises(InputError, match=message):
        make_plan(suites, solvers)


# ---- the run


def test_a_run(tiny, here, monkeypatch):
    monkeypatch.setattr(run, "FULL", Limits(5.0, 2, 2))
    lines = []
    found = run_benchmark(make_plan(["1d"], ["linear", "quantile", "schrodinger"]), lines.append)
    assert not found.quick and found.machine["torch"]
    assert found.stamp is not None and found.stamp.is_fresh(["benchmarks.run"])
    assert found.stamp.machine == found.machine
    assert {row.label for row in found.settings if row.cells == 30} == {
        "linear",
        "quantile",
        "schrodinger, ε 0.1, tolerance 0.001",
    }
    refusals = [one for one in found.skipped if one.solver == "schrodinger"]
    assert refusals and all("below the grid's resolution" in one.reason for one in refusals)
    assert lines[0].startswith("1d: exact paths of 2 pairs, ")
    assert lines[1].startswith("1d 1/4 linear: 4 settings, ")
    assert "1d 3/4 schrodinger, ε 0.01, tolerance 0.001: 0 settings, 4 left out" in lines[3]
    assert len(lines) == 5


def test_a_process_of_its_own(tiny, monkeypatch, tmp_path):
    """With a user's solver, from a module that only the user has."""
    (tmp_path / "solver_of_mine.py").write_text(OWN_SOLVER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    registry.register("mine", "solver_of_mine:Mine")
    found = run_benchmark(make_plan(["1d"], ["mine"]))
    assert found.skipped == []
    assert [(row.label, row.cells, row.pairs, row.times) for row in found.settings] == [
        ("mine", 20, 1, 5),
        ("mine", 30, 1, 5),
        ("mine", 30, 1, 1),
        ("mine", 30, 3, 5),
    ]


def test_a_process_that_dies():
    with pytest.raises(SolverError, match="Its process was killed"):
        run_in_process(os._exit, 1)


def test_an_error_in_a_process():
    with pytest.raises(SolverError, match="ValueError: math domain error|expected a nonneg"):
        run_in_process(math.sqrt, -1.0)


def test_what_a_dead_process_leaves_is_told(tiny, monkeypatch):
    def dies(function, given):
        raise SolverError("Its process was killed.")

    monkeypatch.setattr(run, "in_new_process", dies)
    found = run_benchmark(make_plan(["1d", "scaling"], ["transport-1d", "linear"]))
    assert found.settings == [] and found.scaling == []
    assert {one.reason for one in found.skipped} == {"Its process was killed."}
    assert [one.suite for one in found.skipped] == ["1d"] * 8 + ["scaling"]
