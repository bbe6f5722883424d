"""`geonet benchmark`: what is measured, printed and left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import run as benchmark_run
from benchmarks.any_pair import run as any_run
from benchmarks.any_pair import suite as any_suite
from benchmarks.any_pair.suite import AnySuite
from benchmarks.suites import QUICK_CELLS, SUITES, Suite
from geonet.mixture import BOX_1D, mixtures_1d


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SUITES, "1d", Suite("1d", mixtures_1d, BOX_1D, (20, 30), 30))
    monkeypatch.setitem(QUICK_CELLS, "1d", (20, 30))


@pytest.fixture
def here(tiny, monkeypatch):
    """Without processes of their own."""
    monkeypatch.setattr(benchmark_run, "in_new_process", lambda function, given: function(given))


def test_two_solvers_in_processes_of_their_own(run, tiny):
    code, out, err = run("benchmark", "--suite", "1d", "--solvers", "linear, quantile", "--quick")
    assert code == 0
    assert [line.split(",")[0] for line in err.splitlines()] == [
        "1d: exact paths of 4 pairs",
        "1d 1/2 linear: 2 settings",
        "1d 2/2 quantile: 2 settings",
    ]
    assert "1D, 30 cells, one pair, 5 times; ●: no other is better in both" in out
    files = ["benchmark-pareto.png", "benchmark-resolution.png", "benchmark.json"]
    assert sorted(file.name for file in Path("results").iterdir()) == files
    assert all(f"results/{file}" in out for file in files)
    content = json.loads(Path("results/benchmark.json").read_text(encoding="utf-8"))
    assert content["quick"] is True and content["skipped"] == []
    assert [row["label"] for row in content["settings"]] == ["linear"] * 2 + ["quantile"] * 2


def test_json_alone(run, here):
    arguments = ("benchmark", "--suite", "1d", "--quick", "--json", "--out", "made/here")
    code, out, _ = run(*arguments, "--solvers", "linear", "--solvers", "quantile")
    assert code == 0
    assert json.loads(out) == json.loads(Path("made/here/benchmark.json").read_text("utf-8"))


def test_a_refusal_is_printed_with_its_reason(run, here):
    code, out, _ = run("benchmark", "--suite", "1d", "--quick", "--solvers", "schrodinger")
    assert code == 0
    assert "Not measured" in out and "below the grid's resolution" in out


def test_any_pair(run, here, monkeypatch):
    """Against a reference that is quick on few cells."""
    monkeypatch.setattr(any_run, "in_new_process", lambda function, given: function(given))
    suite = AnySuite({16: 32}, ("digits", "spots"), 1, "linear-program")
    monkeypatch.setattr(any_suite, "SUITE", suite)
    code, out, err = run("benchmark", "--suite", "any", "--solvers", "linear-program,schrodinger")
    assert code == 0
    assert [line.split(",")[0] for line in err.splitlines()] == [
        "any: 2 of 2 references of 16² cells on 32²",
        "any 1/2 linear-program",
        "any 2/2 schrodinger",
    ]
    assert "Any pair: medians over the pairs that were answered" in out
    assert "16² cells, against 32², kind by kind" in out
    assert "Pairs that were not measured" in out  # ε is too small for so few cells
    content = json.loads(Path("results/benchmark.json").read_text(encoding="utf-8"))
    assert [row["kind"] for row in content["any"]["answers"]] == ["digits", "spots"]
    assert Path("results/benchmark-any.png").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--suite", "3d"], "There is no suite '3d'; choose from 1d, 2d, any, scaling."),
        (["--solvers", "quantil"], "There is no solver 'quantil'; did you mean 'quantile'?"),
        (["--solvers", "a.safetensors"], "There is no file a.safetensors; check the path."),
    ],
)
def test_bad_input(refused, tiny, arguments, line):
    assert refused("benchmark", *arguments) == f"error: {line}\n"
    assert not Path("results").exists()


def test_a_folder_that_cannot_be_made(refused, here):
    Path("file").write_text("")
    line = refused("benchmark", "--suite", "1d", "--solvers", "linear", "--out", "file/results")
    assert line == "error: Cannot make the folder file/results: Not a directory.\n"


def test_it_is_in_the_help(run):
    assert "benchmark" in run("--help").out
    text = run("benchmark", "--help").out
    for option in ("--suite", "--solvers", "--quick", "--out", "--json"):
        assert option in text
    assert "geonet benchmark --suite 1d --solvers quantile" in " ".join(text.split())
