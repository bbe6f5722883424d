"""`geonet reproduce NAME`: which experiments are run, and what they print and leave."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.results import Result, Spread, Table
from experiments.paper import experiments
from experiments.paper.experiments import Conditions, Experiment
from geonet.errors import ConvergenceError


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Three experiments that take no time, and a list of those that ran, with conditions.

    The first has two tables and a remark, the second a figure, the third nothing.
    """
    monkeypatch.chdir(tmp_path)
    runs: list[tuple[str, Conditions]] = []

    def experiment(name, *parts):
        def measure(conditions):
            runs.append((name, conditions))
            return Result(name, f"About {name}", conditions.quick, *parts)

        return Experiment(name, f"Title of {name}", measure, (f"{name}-model", "other-model"))

    rows = [["`geonet`", Spread(4.917, 0.5)], ["[b]old", 12.345]]
    tables = [Table("Errors in %", ("", "t = 0"), rows), Table("More", ("a", "b"), [["x", None]])]
    made = (
        experiment("first", tables, ["A remark."]),
        experiment("second", [], [], Figure(figsize=(1, 1))),
        experiment("third", []),
    )
    monkeypatch.setattr(experiments, "EXPERIMENTS", {e.name: e for e in made})
    return runs


def names(ran):
    return [name for name, _ in ran]


def test_the_list(run):
    code, out, err = run("reproduce", "--list")
    assert (code, err) == (0, "")
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    assert [(name, title.rstrip()) for name, title in lines] == [
        (name, experiment.title) for name, experiment in experiments.EXPERIMENTS.items()
    ]


def test_the_list_as_json(run):
    code, out, err = run("reproduce", "--list", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    assert list(listed) == list(experiments.EXPERIMENTS)
    assert listed["table-2"] == experiments.EXPERIMENTS["table-2"].title


def test_listing_runs_nothing(run, ran):
    assert run("reproduce", "first", "--list").code == 0
    assert ran == [] and list(Path.cwd().iterdir()) == []


def test_results_are_stamped(run, ran):
    assert run("reproduce", "third").code == 0
    stamp = json.loads(Path("results/third.json").read_text(encoding="utf-8"))["stamp"]
    assert stamp.keys() == {"commit", "date", "machine", "sources"}
    assert stamp["machine"]["python"] and re.fullmatch("[0-9a-f]{16}", stamp["sources"])


def test_what_is_printed(run, ran):
    code, out, err = run("reproduce", "first", "--out", "made/here")
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[:2] == ["", "first: About first"]
    assert lines[3] == "Errors in %" and lines[4].split() == ["t", "=", "0"]
    assert lines[5].split() == ["`geonet`", "4.92", "±", "0.500"]
    assert lines[6].split() == ["[b]old", "12.3"]
    assert lines[8] == "More" and lines[10].split() == ["x", "–"]
    assert lines[12] == "A remark."
    assert lines[14].startswith("made/here/first.json, made/here/first.md; ")
    assert lines[14].endswith("s") and len(lines) == 15  # seconds, or milliseconds


@pytest.mark.parametrize("quick", [False, True])
def test_what_is_written(run, ran, quick):
    options = ("--quick",) if quick else ()
    code, out, _ = run("reproduce", "first", "second", "--out", "made/here", *options)
    assert code == 0
    assert ran == [("first", Conditions(quick)), ("second", Conditions(quick))]
    assert ("first: About first (quick)" in out) is quick
    files = sorted(str(file) for file in Path("made/here").iterdir())
    assert [Path(file).name for file in files] == [
        "first.json",
        "first.md",
        "second.json",
        "second.md",
        "second.png",
    ]
    assert all(file in out for file in files)
    content = json.loads(Path("made/here/first.json").read_text(encoding="utf-8"))
    assert (content["name"], content["quick"]) == ("first", quick)
    assert Path("made/here/first.md").read_text(encoding="utf-8").startswith("**Errors in %**")


def test_results_are_in_results(run, ran):
    assert run("reproduce", "second").code == 0
    assert sorted(file.name for file in Path("results").iterdir()) == [
        "second.json",
        "second.md",
        "second.png",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["all"], ["first", "second", "third"]),
        (["second", "all", "first"], ["first", "second", "third"]),
        (["second", "first"], ["second", "first"]),
        (["second", "first", "second"], ["second", "first"]),
    ],
)
def test_each_is_run_once(run, ran, arguments, expected):
    assert run("reproduce", *arguments).code == 0
    assert names(ran) == expected


def test_what_was_made_before_a_failure_is_kept(run, ran, monkeypatch):
    def fails(conditions):
        raise ConvergenceError("No luck\ntoday; try another day.", 1.0)

    monkeypatch.setitem(experiments.EXPERIMENTS, "third", Experiment("third", "", fails))
    code, out, err = run("reproduce", "all")
    assert code == 2
    assert err == "error: No luck today; try another day.\n"
    assert "first: About first" in out and "third" not in out
    assert Path("results/first.json").exists() and not Path("results/third.json").exists()


# ---- training first


@pytest.mark.parametrize(
    ("options", "folder"),
    [(["--train"], "runs/reproduce"), (["--train", "--quick"], "runs/reproduce-quick")],
)
def test_models_are_trained_first(run, ran, monkeypatch, options, folder):
    """Into another folder if they are trained for some steps only."""
    trained = []

    def recorded(conditions, models, where):
        trained.append((conditions, models, where, names(ran)))
        return Conditions(conditions.quick, (("first-model", "new.safetensors"),))

    monkeypatch.setattr("experiments.paper.experiments.train_models", recorded)
    assert run("reproduce", "first", *options).code == 0
    quick = "--quick" in options
    assert trained == [(Conditions(quick), ("first-model", "other-model"), Path(folder), [])]
    assert ran == [("first", Conditions(quick, (("first-model", "new.safetensors"),)))]


def test_without_a_clone_nothing_can_be_trained(refused, ran):
    line = refused("reproduce", "first", "--train", "--quick")
    assert "No config in studies/configs/ is called first-model; run --train in a clone" in line
    assert ran == []


# ---- what it refuses


@pytest.mark.parametrize("arguments", [["table-9"], ["first", "table-9"], ["all", "table-9"]])
def test_an_unknown_experiment(refused, ran, arguments):
    line = refused("reproduce", *arguments)
    expected = "There is no experiment 'table-9'; choose from all, first, second, third."
    assert line == f"error: {expected}\n"
    assert ran == []


def test_no_experiment(refused, ran):
    expected = "Which experiment? Name one, or all; geonet reproduce --list names them."
    assert refused("reproduce") == f"error: {expected}\n"
    assert refused("reproduce", "--quick") == f"error: {expected}\n"
    assert ran == []


def test_a_folder_that_cannot_be_made(run, ran):
    Path("file").write_text("")
    code, _, err = run("reproduce", "first", "--out", "file/results")
    assert code == 2
    assert err == "error: Cannot make the folder file/results: Not a directory.\n"


def test_it_is_in_the_help(run):
    assert "reproduce" in run("--help").out
    text = run("reproduce", "--help").out
    for option in ("--list", "--quick", "--train", "--out", "--json"):
        assert option in text
