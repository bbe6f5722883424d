"""`python -m experiments NAME`: selection, output and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from benchmarks.results import Result, Spread, Table
from experiments import __main__ as command
from experiments.paper.experiments import EXPERIMENTS, Conditions, Experiment
from geonet.errors import ConvergenceError


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """Replace the experiments by three fast ones; return the runs with their conditions."""
    monkeypatch.chdir(tmp_path)
    runs: list[tuple[str, Conditions]] = []

    def make_experiment(name, *parts):
        def measure(conditions):
            runs.append((name, conditions))
            return Result(name, f"About {name}", conditions.quick, *parts)

        return Experiment(name, f"Title of {name}", measure, (f"{name}-model",))

    rows = [["`geonet`", Spread(4.917, 0.5)], ["[b]old", None]]
    experiments = (
        make_experiment("first", [Table("Errors in %", ("", "t = 0"), rows)], ["A remark."]),
        make_experiment("second", [], [], Figure(figsize=(1, 1))),
        make_experiment("third", []),
    )
    monkeypatch.setattr(command, "EXPERIMENTS", {e.name: e for e in experiments})
    return runs


def run(*arguments: str):
    return CliRunner().invoke(command.app, arguments)


def test_list():
    result = run()
    assert result.exit_code == 0
    names = [line.split()[0] for line in result.output.splitlines() if line]
    assert names == list(EXPERIMENTS)


def test_output_and_files(runs):
    result = run("first", "second", "--quick", "--out", "some/folder")
    assert result.exit_code == 0, result.output
    assert runs == [("first", Conditions(quick=True)), ("second", Conditions(quick=True))]
    for text in (
        "first: About first (quick)",
        "Errors in %",
        "4.92 ± 0.500",
        "[b]old",
        "A remark.",
    ):
        assert text in result.output
    files = sorted(Path("some/folder").iterdir())
    assert [file.suffix for file in files] == [".json", ".md", ".json", ".md", ".png"]
    assert all(str(file) in result.output for file in files)
    content = json.loads(files[0].read_text(encoding="utf-8"))
    assert (content["name"], content["quick"]) == ("first", True)
    assert content["provenance"].keys() == {"commit", "date", "machine"}
    assert files[1].read_text(encoding="utf-8").startswith("**Errors in %**")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["second", "all"], ["first", "second", "third"]),
        (["second", "first", "second"], ["second", "first"]),
    ],
)
def test_every_experiment_runs_once(runs, arguments, expected):
    assert run(*arguments).exit_code == 0
    assert [name for name, _ in runs] == expected


def test_earlier_results_are_kept_after_a_failure(runs, monkeypatch):
    def fail(conditions):
        raise ConvergenceError("No convergence; choose another solver.", 1.0)

    monkeypatch.setitem(command.EXPERIMENTS, "third", Experiment("third", "", fail))
    result = run("all")
    assert result.exit_code == 2 and "third: No convergence" in result.output
    assert Path("results/first.json").exists() and not Path("results/third.json").exists()


@pytest.mark.parametrize("options", [["--train"], ["--train", "--quick"]])
def test_models_are_trained_first(runs, monkeypatch, options):
    calls = []

    def train_models(conditions, models, folder):
        calls.append((conditions, models, folder))
        return Conditions(conditions.quick, (("first-model", "new.safetensors"),))

    monkeypatch.setattr(command, "train_models", train_models)
    assert run("first", *options).exit_code == 0
    quick = "--quick" in options
    folder = Path("runs/reproduce-quick" if quick else "runs/reproduce")
    assert calls == [(Conditions(quick), ("first-model",), folder)]
    assert runs == [("first", Conditions(quick, (("first-model", "new.safetensors"),)))]


def test_unknown_experiment(runs):
    result = run("first", "table-9")
    assert result.exit_code == 2 and "table-9" in result.output and runs == []
