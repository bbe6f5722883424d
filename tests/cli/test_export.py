"""`geonet export`."""

from __future__ import annotations

import json

import pytest

from geonet import onnx as onnx_files
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.model import PRETRAINED, Branch, Trunk, build, save_model


def test_writes_files_and_says_so(run, tmp_path, monkeypatch):
    branch, trunk = Branch("mlp", width=2, depth=2), Trunk("mlp", width=2, depth=2)
    settings = DeepONetSettings(sensors=4, rank=2, branch=branch, trunk=trunk)
    model = save_model(tmp_path / "mine.safetensors", build(settings, seed=0), {})
    folder = tmp_path / "onnx"
    code, out, err = run("export", model, "-o", folder, "--json")
    assert (code, err) == (0, "")
    answer = json.loads(out)
    files = [folder / "mine-branch.onnx", folder / "mine-basis.onnx"]
    assert answer["model"] == str(model)
    assert [entry["file"] for entry in answer["files"]] == [str(file) for file in files]
    for entry, file in zip(answer["files"], files, strict=True):
        assert entry["bytes"] == file.stat().st_size
        assert 0 <= entry["largest_difference"] <= 1e-5

    monkeypatch.setattr(onnx_files, "export_onnx", lambda *_: files)  # once is enough
    code, out, err = run("export", model, "-o", folder)
    assert (code, err) == (0, "")
    heading, *rows = out.splitlines()
    assert heading.split("  ")[0] == "written" and "largest difference from torch" in heading
    for row, file in zip(rows, files, strict=True):
        assert row.startswith(str(file)) and " kB " in row


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("quantile", "The solver 'quantile' has no trained network to export; choose"),
        ("transport-2", "There is no solver 'transport-2'; did you mean 'transport-2d'?"),
        ("nowhere.safetensors", "There is no file nowhere.safetensors; check the path."),
        (PRETRAINED / "mnist-autoencoder.safetensors", "kind 'autoencoder'"),
    ],
)
def test_wrong_models(refused, tmp_path, model, message):
    assert message in refused("export", model, "-o", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be(refused, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("")
    assert "Cannot make the folder" in refused("export", "transport-1d", "-o", taken)


def test_help_has_an_example(run):
    assert "geonet export transport-2d -o models" in run("export", "--help").out
