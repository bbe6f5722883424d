"""`geonet evaluate` and `geonet export`."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import geonet
from geonet import onnx as onnx_export
from geonet.cli.models import _format_remarks
from geonet.evaluation import TEST_SETS, Accuracy, sample_pairs
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build_model, save_model


def test_evaluate_measures_against_the_truth(run):
    code, out, err = run("evaluate", "transport-1d", "--count", 3, "--json")
    assert (code, err) == (0, "")
    ((name, accuracy),) = json.loads(out).items()
    pairs = sample_pairs(TEST_SETS["1D random"], 3)
    path = geonet.geodesic(pairs.source, pairs.target, "transport-1d")
    errors = 100 * l1(path.density(QUARTERS), pairs.truth)
    # Single precision: sums over one pair and over a batch differ.
    assert accuracy["mean"] == pytest.approx(errors.mean(0).tolist(), abs=1e-3)
    assert accuracy["worst"] == pytest.approx(errors.amax(0).tolist(), abs=1e-3)
    error = 100 * ((torch.as_tensor(path.distance) - pairs.distance) / pairs.distance).abs().mean()
    assert accuracy["distance"] == pytest.approx(float(error), abs=1e-3)
    assert (name, accuracy["pairs"], accuracy["failures"]) == ("1d-random", 3, [])


def test_evaluate_prints_a_table_for_each_suite(run):
    suites = ("--suite", "1d-identity", "--suite", "1d-ood")
    code, out, err = run("evaluate", "linear", *suites, "--count", 2)
    assert (code, err) == (0, "")
    assert "1d-identity: linear, 2 pairs, L1 in %" in out and "1d-ood: linear" in out
    assert "W2" not in out  # linear provides no distance
    assert "Mean error of W2" in run("evaluate", "quantile", "--count", 2).out


def test_evaluate_on_pairs_of_a_file(run, tmp_path):
    x = np.linspace(0, 1, 40)
    bumps = np.exp(-(((x - np.linspace(0.3, 0.7, 20)[:, None]) / 0.1) ** 2))
    file = tmp_path / "pairs.npz"
    np.savez(file, source=bumps, target=bumps[::-1])
    result = json.loads(run("evaluate", "quantile", "--pairs", file, "--json").out)[str(file)]
    assert result["pairs"] == 20 and result["truth"] == {"quantile": 20}
    assert max(result["mean"]) < 1e-9
    out = run("evaluate", "linear", "--pairs", file, "--count", 3).out
    assert "linear, 3 pairs" in out and "Measured against quantile (3)" in out


def test_a_model_is_evaluated_on_the_pairs_that_its_training_held_out(run, tmp_path, monkeypatch):
    """The floor of the training applies, as in the report of the training."""
    monkeypatch.chdir(tmp_path)
    x = np.linspace(0, 1, 24)
    bumps = np.exp(-(((x - np.linspace(0.3, 0.7, 12)[:, None]) / 0.1) ** 2))
    np.savez("my.npz", values=bumps * (bumps > 0.01))
    assert run("train", "--pairs", "my.npz", "--steps", 2).code == 0
    report = json.loads((tmp_path / "runs/my/report.json").read_text())
    model = "runs/my/model.safetensors"
    result = json.loads(run("evaluate", model, "--pairs", "my.npz", "--json").out)["my.npz"]
    assert result["pairs"] == 2  # one pair in both directions
    assert {key: result[key] for key in report["model"]} == report["model"]


def test_remarks_show_some_of_the_failures():
    accuracy = Accuracy("x", 1, ["a", "b", "c", "d"], [0.0] * 5, [0.0] * 5, [0.0] * 5, None)
    assert _format_remarks(accuracy, {})[1:] == ["  a", "  b", "  c"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("linear", "--suite", "4d"), "There is no suite '4d'; choose from 1d-identity, "),
        (("linear", "--suite", "1d-ood", "--pairs", "x.npz"), "exclude each other"),
        (("transport-3d",), "No suite has pairs for 'transport-3d'"),
        (("quantile", "--suite", "2d-identity", "--count", "1"), "fails for all pairs: The"),
    ],
)
def test_wrong_arguments_of_evaluate(run_failing, arguments, message):
    assert message in run_failing("evaluate", *arguments)


def test_export_writes_files_and_prints_them(run, tmp_path, monkeypatch):
    branch, trunk = Branch("mlp", width=2, depth=2), Trunk("mlp", width=2, depth=2)
    settings = DeepONetSettings(sensors=4, rank=2, branch=branch, trunk=trunk)
    model = save_model(tmp_path / "mine.safetensors", build_model(settings, seed=0), {})
    folder = tmp_path / "onnx"
    code, out, err = run("export", model, "-o", folder, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    files = [folder / "mine-branch.onnx", folder / "mine-basis.onnx"]
    assert result["model"] == str(model)
    assert [entry["file"] for entry in result["files"]] == [str(file) for file in files]
    for entry, file in zip(result["files"], files, strict=True):
        assert entry["bytes"] == file.stat().st_size
        assert 0 <= entry["largest_difference"] <= 1e-5

    monkeypatch.setattr(onnx_export, "export", lambda *_: files)  # the files exist
    code, out, err = run("export", model, "-o", folder)
    assert (code, err) == (0, "")
    heading, *rows = out.splitlines()
    assert heading.startswith("written") and "largest difference from torch" in heading
    for row, file in zip(rows, files, strict=True):
        assert row.startswith(str(file)) and " kB " in row
