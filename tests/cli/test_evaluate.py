"""`geonet evaluate SOLVER`: errors against exact paths."""

from __future__ import annotations

import json

import numpy as np
import pytest

import geonet
from geonet.cli.models import _remarks
from geonet.errors import DensityError
from geonet.evaluation import CASES, measure, pairs_of
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.quantile import Quantile


def test_errors_are_those_against_the_truth(run):
    code, out, err = run("evaluate", "transport-1d", "--count", 3, "--json")
    assert (code, err) == (0, "")
    (found,) = json.loads(out).items()
    assert found[0] == "1d-random"
    pairs = pairs_of(CASES["1D random"], 3)
    path = geonet.geodesic(pairs.source, pairs.target, "transport-1d")
    errors = 100 * l1(path.density(QUARTERS), pairs.truth)
    # single precision: alone and in a batch the sums differ
    assert found[1]["mean"] == pytest.approx(errors.mean(0).tolist(), abs=1e-3)
    assert found[1]["worst"] == pytest.approx(errors.amax(0).tolist(), abs=1e-3)
    off = 100 * ((path.distance - pairs.distance) / pairs.distance).abs().mean()
    # In percent; W2 is a sum in single precision, right to some 1e-6 of itself.
    assert found[1]["distance"] == pytest.approx(float(off), abs=1e-3)
    assert (found[1]["pairs"], found[1]["failures"]) == (3, [])


def test_tables_and_suites(run):
    suites = ("--suite", "1d-identity", "--suite", "1d-ood")
    code, out, err = run("evaluate", "linear", *suites, "--count", 2)
    assert (code, err) == (0, "")
    assert "1d-identity: linear, 2 pairs, L1 in %" in out and "1d-ood: linear" in out
    assert "W2 is off" not in out  # it gives none
    assert "W2 is off by" in run("evaluate", "quantile", "--count", 2).out


def test_own_pairs(run, tmp_path):
    x = np.linspace(0, 1, 40)
    bumps = np.exp(-(((x - np.linspace(0.3, 0.7, 20)[:, None]) / 0.1) ** 2))
    file = tmp_path / "pairs.npz"
    np.savez(file, source=bumps, target=bumps[::-1])
    answer = json.loads(run("evaluate", "quantile", "--pairs", file, "--json").out)[str(file)]
    assert answer["pairs"] == 20 and answer["truth"] == {"quantile": 20}
    assert max(answer["mean"]) < 1e-9
    out = run("evaluate", "linear", "--pairs", file, "--count", 3).out
    assert "linear, 3 pairs" in out and "Measured against quantile (3), the best classical" in out


def test_failures_are_counted(run):
    """monge-ampere refuses the hundredth part of these tolerances."""
    options = ("--option", "tolerance=1e-14", "--option", "max_iterations=3")
    assert (
        "answers none of the pairs"
        in run("evaluate", "monge-ampere", "--suite", "1d-random", "--count", 1, *options).err
    )


def test_a_model_is_measured_on_what_its_training_held_out(run, tmp_path, monkeypatch):
    """With the floor that it was trained with, as in the report of the training."""
    monkeypatch.chdir(tmp_path)
    x = np.linspace(0, 1, 24)
    bumps = np.exp(-(((x - np.linspace(0.3, 0.7, 12)[:, None]) / 0.1) ** 2))
    np.savez("my.npz", values=bumps * (bumps > 0.01))
    assert run("train", "--pairs", "my.npz", "--steps", 2).code == 0
    report = json.loads((tmp_path / "runs/my/report.json").read_text())
    model = "runs/my/model.safetensors"
    answer = json.loads(run("evaluate", model, "--pairs", "my.npz", "--json").out)["my.npz"]
    assert answer["pairs"] == 2  # two are held out: there and back
    assert {key: answer[key] for key in report["model"]} == report["model"]


def test_some_failures_are_spelled_out(run, monkeypatch):
    solve, calls = Quantile.__call__, []

    def sometimes(self, source, target):
        calls.append(1)
        if len(calls) % 2:
            raise DensityError("too odd")
        return solve(self, source, target)

    monkeypatch.setattr(Quantile, "__call__", sometimes)
    pairs = pairs_of(CASES["1D identity"], 4)
    found = measure(Quantile(), pairs.source, pairs.target, pairs.truth, pairs.distance)
    assert (found.pairs, found.failures) == (2, ["too odd", "too odd"])
    assert _remarks(found, {})[-3:] == ["2 pairs without an answer:", "  too odd", "  too odd"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody",), "There is no solver 'nobody'"),
        (("linear", "--suite", "4d"), "There is no suite '4d'; choose from 1d-identity, "),
        (("linear", "--suite", "1d-ood", "--pairs", "x.npz"), "leave one of the two out"),
        (("linear", "--pairs", "none.npz"), "There is no file none.npz"),
        (("transport-3d",), "No suite has pairs for 'transport-3d'"),
        (("quantile", "--suite", "2d-identity", "--count", "1"), "answers none of the pairs: The"),
    ],
)
def test_bad_usage(refused, arguments, message):
    assert message in refused("evaluate", *arguments)
