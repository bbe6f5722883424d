"""The benchmark runs, records failures, and its results become tables, figures and pages."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import page, run
from benchmarks.__main__ import app
from benchmarks.any_pair import run as any_run
from benchmarks.any_pair.suite import AnySuite
from benchmarks.contestants import Contestant
from benchmarks.pictures import make_figures
from benchmarks.process import run_in_process
from benchmarks.records import (
    Benchmark,
    Measurement,
    Seconds,
    compute_break_even,
    find_equal_error,
    find_pareto_front,
    read_benchmark,
)
from benchmarks.run import make_plan, run_benchmark
from benchmarks.suites import QUICK_CELLS, SUITES, Suite, prescribed_map_pairs
from benchmarks.tables import make_tables
from benchmarks.timing import repeat_within
from benchmarks.worker import Limits
from geonet.errors import InputError, SolverError
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.solvers import registry
from geonet.solvers.linear import Linear


@dataclass(frozen=True)
class Failing(Linear):
    """A solver that fails on 30 cells."""

    def _solve(self, source, target):
        if source.grid.shape[0] == 30:
            raise ZeroDivisionError("division by zero")
        return super()._solve(source, target)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Replace the 1D suite by a small one."""
    monkeypatch.chdir(tmp_path)
    suite = Suite("1d", mixtures_1d, BOX_1D, (20, 30), 30, batches=(1, 3))
    monkeypatch.setitem(SUITES, "1d", suite)
    monkeypatch.setitem(QUICK_CELLS, "1d", (20, 30))
    monkeypatch.setattr(run, "FULL", Limits(5.0, 2, 2))
    monkeypatch.setattr(registry, "_LOCATIONS", dict(registry._LOCATIONS))


@pytest.fixture
def one_process(monkeypatch):
    """Run all jobs in this process."""
    for module in (run, any_run):
        monkeypatch.setattr(module, "run_in_process", lambda function, given: function(given))


def make_row(**changes: Any) -> Measurement:
    """Return a row of a classical solver with changes; `seconds` is the median."""
    seconds = changes.pop("seconds", 1.0)
    values: dict[str, Any] = {
        **{"suite": "2d", "dimension": 2, "cells": 64, "pairs": 1, "times": 5},
        **{"label": "some", "solver": "some", "options": {}, "kind": "classical"},
        "setup_seconds": 0.1,
        "seconds_per_pair": Seconds(seconds, 0.9 * seconds, 1.2 * seconds, 0.8 * seconds),
        **{"repeats": 20, "l1_percent": 1.0, "l1_quarters": [0.0, 0.5, 1.0, 0.5, 0.0]},
        **{"w2_percent": None, "pairs_measured": 16, "memory_mb": 12.5, "threads": 2},
        **{"dtype": "float64", "training_seconds": None},
    }
    return Measurement(**values | changes)


# ---- runs


def test_quick_comparison_in_separate_processes(tiny):
    options = ["compare", "--suite", "1d", "--quick", "--solvers", "linear,quantile"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    assert "1d 2/2 quantile: 2 settings" in result.output
    stored = json.loads(Path("results/benchmark.json").read_text(encoding="utf-8"))
    assert [row["label"] for row in stored["settings"]] == ["linear"] * 2 + ["quantile"] * 2
    assert stored["quick"] and stored["skipped"] == []
    assert set(stored["provenance"]) == {"commit", "date", "machine"}
    errors = {row["label"]: row["l1_percent"] for row in stored["settings"]}
    assert errors["quantile"] < errors["linear"]
    assert os.path.exists("results/benchmark-pareto.png")


def test_update_keeps_other_solvers_and_rejects_other_kinds_of_run(tiny, one_process):
    runner = CliRunner()
    common = ["compare", "--suite", "1d", "--quick"]
    assert runner.invoke(app, [*common, "--solvers", "linear"]).exit_code == 0
    updated = runner.invoke(app, [*common, "--update", "--solvers", "quantile"])
    assert updated.exit_code == 0, updated.output
    stored = json.loads(Path("results/benchmark.json").read_text(encoding="utf-8"))
    assert {row["label"] for row in stored["settings"]} == {"linear", "quantile"}
    full = runner.invoke(app, ["compare", "--suite", "1d", "--update", "--solvers", "linear"])
    assert full.exit_code == 2 and "omit --update" in full.output


def test_failures_are_recorded_with_their_reason(tiny, one_process, monkeypatch):
    registry.register("failing", f"{__name__}:Failing")
    load = registry.load_solver_class
    monkeypatch.setattr(
        registry, "load_solver_class", lambda name: Failing if name == "failing" else load(name)
    )
    result = run_benchmark(make_plan(["1d"], ["failing"]))
    assert [row.cells for row in result.settings] == [20]
    assert {row.reason for row in result.skipped} == {"ZeroDivisionError: division by zero"}
    assert result.provenance is not None and result.provenance.machine == result.machine


def test_errors_and_deaths_of_processes_become_solver_errors():
    with pytest.raises(SolverError, match="killed"):
        run_in_process(os._exit, 1)
    with pytest.raises(SolverError, match="ValueError"):
        run_in_process(math.sqrt, -1.0)


def test_suite_of_any_pairs(one_process, tmp_path):
    suite = AnySuite({16: 32}, ("digits", "spots"), 1, "linear-program", repeats=2)
    own = [Contestant("linear-program", "linear-program", (2,)), Contestant("new", "none", (2,))]
    lines: list[str] = []
    pairs = any_run.run_any_pairs(suite, own, lines.append)
    assert [row.kind for row in pairs.answers] == ["digits", "spots"]
    assert all(row.w2_percent is not None and row.frame_percent > 0 for row in pairs.answers)
    assert [row.label for row in pairs.unanswered] == ["new", "new"]
    assert lines[0].startswith("any: 2 of 2 references")
    result = Benchmark(pairs.machine, False, any=pairs)
    result.save(tmp_path)
    assert read_benchmark(tmp_path) == result
    titles = [table.title for table in make_tables(result)]
    assert "Any pair: medians over the pairs that were answered" in titles
    assert "any" in make_figures(result)


@pytest.mark.parametrize(
    ("suites", "solvers", "word"),
    [
        (["3d"], [], "'3d'"),
        ([], ["no"], "'no'"),
        (["2d"], ["quantile"], "'quantile'"),
        (["any"], ["quantile"], "'quantile'"),
        ([], ["a.safetensors"], "a.safetensors"),
    ],
)
def test_unknown_suites_and_solvers_raise(suites, solvers, word):
    with pytest.raises((InputError, SolverError, OSError, ValueError), match=word):
        make_plan(suites, solvers)


def test_repeats_stay_within_the_budget():
    calls = repeat_within(10.0, 3, lambda k: k)
    assert len(calls.warm) == 3 and calls.first >= 0


# ---- analysis and pages


def test_pareto_front_break_even_and_slope():
    net = make_row(label="net", kind="learned", seconds=0.01, l1_percent=0.1, training_seconds=99.0)
    exact = make_row(label="exact", seconds=1.0, l1_percent=0.05)
    rough = make_row(label="rough", seconds=0.001, l1_percent=5.0)
    slow = make_row(label="slow", seconds=2.0, l1_percent=5.0)
    rows = [slow, exact, rough, net]
    assert find_pareto_front(rows) == [rough, net, exact]
    assert find_equal_error(rows, net) == exact
    assert find_equal_error(rows, net, 10.0) == rough
    assert compute_break_even(net, exact) == pytest.approx(100)
    assert compute_break_even(net, rough) is None


def test_stored_results_are_on_the_pages():
    for name, sections in page.collect_sections().items():
        text = (page.ROOT / name).read_text(encoding="utf-8")
        for marker, section in sections.items():
            shown = text.split(f"<!-- {marker} -->")[1].split(f"<!-- /{marker} -->")[0]
            assert shown.strip() == section.strip(), f"{name}, {marker}: run benchmarks.page"


def test_incomplete_results_are_rejected(tmp_path):
    result = page.read_comparison()
    replace(result, quick=True).save(tmp_path)
    with pytest.raises(SystemExit, match="quick"):
        page.read_comparison(tmp_path)
    result.drop_suites(["1d"]).save(tmp_path)
    with pytest.raises(SystemExit, match="lacks suites"):
        page.read_comparison(tmp_path)


@pytest.mark.slow
def test_prescribed_pairs_in_3d_have_values_on_cells_and_exact_ends():
    pairs = prescribed_map_pairs(2)
    assert pairs.source.mixture is None and float(pairs.distance.min()) > 0
    for k, end in ((0, pairs.source), (-1, pairs.target)):
        error = (pairs.truth.tensor[:, k] - end.tensor).abs().sum((1, 2, 3)) * end.grid.cell_volume
        assert float(error.max()) < 1e-3
