"""Exported ONNX files compute the same as torch and describe themselves."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import geonet
from experiments import MODELS
from geonet import onnx as onnx_export
from geonet.errors import ExportError, FileError, SolverError
from geonet.onnx import ExportConfig, Part, export, split_model
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import (
    PRETRAINED,
    Branch,
    Trunk,
    build_model,
    load_model,
    save_model,
)

SHIPPED = sorted(file.stem for file in PRETRAINED.glob("*.safetensors"))
SHIPPED = [name for name in SHIPPED if not name.startswith("universal")]
SMALL = {
    "geonet": GeONetSettings(
        dimension=2,
        sensors=5,
        rank=7,
        swap_symmetry="both",
        branch=Branch("mlp", width=6, depth=2),
        trunk=Trunk("separable", width=6, depth=3, features="fourier", modes=3),
    ),
    "deeponet": DeepONetSettings(
        sensors=9,
        rank=5,
        branch=Branch(width=6, depth=3),
        trunk=Trunk(width=4, depth=3, features="cosines", modes=3),
    ),
}
EXAMPLE = Path(__file__).parents[1] / "examples" / "onnx_without_torch.py"
DRIVER = """
import runpy, sys
import numpy as np
result = runpy.run_path(sys.argv[1])
frames = [result["density"](t) for t in (0.3, 1)]
np.savez(sys.argv[2], distance=result["distance"], potential=result["u"], frames=frames)
assert not {name for name in sys.modules if name.split(".")[0] in ("torch", "geonet", "onnx")}
"""


@pytest.fixture(scope="module")
def transport_2d(tmp_path_factory) -> tuple[Path, list[Path]]:
    model = PRETRAINED / "transport-2d.safetensors"
    return model, export(model, tmp_path_factory.mktemp("transport"))


@pytest.fixture(scope="module", params=["transport-2d", "geonet", "deeponet"])
def exported(request, tmp_path_factory) -> tuple[Path, list[Path]]:
    """Return a model of each form and the exported files."""
    if request.param == "transport-2d":
        return request.getfixturevalue("transport_2d")
    folder = tmp_path_factory.mktemp("onnx")
    model = make_small(request.param, folder)
    return model, export(model, folder / "new" / "folder")


def make_small(form: str, folder: Path) -> Path:
    """Save a small random model in half precision."""
    model = build_model(SMALL[form], seed=1)
    for weight in model.parameters():  # also those that start at zero
        weight.data += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    return save_model(folder / "model.safetensors", model.half(), {"name": f"small-{form}"})


def test_files_agree_with_torch(exported):
    name = load_model(exported[0])[1]["name"]
    assert [file.name for file in exported[1]] == [f"{name}-branch.onnx", f"{name}-basis.onnx"]
    assert set(exported[1][0].parent.iterdir()) == set(exported[1])
    check_files(exported[0], exported[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_agree_with_torch(name, tmp_path):
    files = export(name, tmp_path)
    assert [file.name for file in files] == [f"{name}-branch.onnx", f"{name}-basis.onnx"]
    check_files(PRETRAINED / f"{name}.safetensors", files)


def test_metadata(exported):
    network, header = load_model(exported[0])
    for file, part in zip(exported[1], ("branch", "basis"), strict=True):
        metadata = onnx_export.read_metadata(file)
        assert (metadata["model"], metadata["part"]) == (header["name"], part)
        assert metadata["kind"] == network.settings.kind
        assert int(metadata["dimension"]) == network.settings.dimension
        assert int(metadata["sensors"]) == network.settings.sensors
        assert metadata["geonet"] == geonet.__version__
        assert float(metadata["epsilon"]) == 0
        assert 0 <= float(metadata["largest_difference"]) <= 5e-5
        session = onnxruntime.InferenceSession(file)
        assert session.get_modelmeta().custom_metadata_map == metadata


def test_no_warning_of_missing_torchvision(transport_2d, tmp_path, caplog):
    # The logger may not propagate to the root, so the handler is added to it.
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level, _ = logger.level, logger.addHandler(caplog.handler)
    try:
        export(transport_2d[0], tmp_path)
    finally:
        logger.removeHandler(caplog.handler)
    assert logger.name not in {record.name for record in caplog.records}
    assert logger.level == level


def test_a_large_difference_is_an_error_and_nothing_is_written(tmp_path):
    model = make_small("deeponet", tmp_path)
    old = tmp_path / "small-deeponet-branch.onnx"
    old.write_text("old")
    with pytest.raises(ExportError, match="branch of small-deeponet differs from torch by .*e-"):
        export(model, tmp_path, ExportConfig(tolerance=0.0, rounding_factor=0.0))
    assert old.read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} == {model.name, old.name}


def test_the_name_of_a_file_is_not_a_folder(tmp_path):
    model = make_small("deeponet", tmp_path)
    with pytest.raises(FileError, match="two files, and .*m.onnx is the name of one"):
        export(model, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == [model]


def test_difference_detects_wrong_numbers_and_shapes():
    part, _ = split_model(build_model(SMALL["deeponet"], seed=0))
    with torch.no_grad():
        expected = [
            part(*part.random_inputs(count, torch.Generator().manual_seed(0))) for count in (1, 2)
        ]
    right = [[output.numpy() for output in outputs] for outputs in expected]

    def difference(actual) -> float:
        return onnx_export._max_difference(actual, expected)

    assert difference(right) == 0
    assert difference([[1.5 * x for x in outputs] for outputs in right]) == pytest.approx(0.5)
    assert np.isnan(difference([right[0], [np.nan * x for x in right[1]]]))
    assert difference([right[0], right[0]]) == np.inf  # another batch size


def test_a_file_that_does_not_run_is_an_error():
    part, _ = split_model(build_model(SMALL["deeponet"], seed=0))
    with pytest.raises(ExportError, match="does not run the exported branch"):
        onnx_export._run(onnx.ModelProto(), part, [])


@pytest.mark.parametrize("library", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_library(library, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ExportError, match=r"pip install 'geonet-ot\[onnx\]'"):
        export("transport-1d", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_models_that_cannot_be_exported(tmp_path):
    occupied = tmp_path / "occupied"
    occupied.write_text("")
    for model, error, message in (
        ("quantile", SolverError, "no trained network"),
        ("universal-2d", ExportError, "cannot be exported"),
        ("nowhere.safetensors", FileError, "nowhere.safetensors"),
        (MODELS / "mnist-autoencoder.safetensors", FileError, "autoencoder"),
    ):
        with pytest.raises(error, match=message):
            export(model, tmp_path / "new")
    with pytest.raises(FileError, match="occupied"):
        export("transport-1d", occupied)
    assert list(tmp_path.iterdir()) == [occupied]
    own = tmp_path / "own" / "model.safetensors"
    own.parent.mkdir()
    shutil.copy(PRETRAINED / "universal-2d.safetensors", own)
    with pytest.raises(ExportError, match=f"The model {re.escape(str(own))} is iterative"):
        export(own, tmp_path / "new")


def test_example_agrees_without_torch(transport_2d, tmp_path):
    """The example extrapolates its splines differently, so it agrees to about 1e-3."""
    process = subprocess.run(
        [sys.executable, "-c", DRIVER, EXAMPLE, tmp_path / "result.npz"],
        cwd=transport_2d[1][0].parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (process.returncode, process.stderr) == (0, "")
    grid = geonet.Grid((64, 64))
    source, target = (
        geonet.GaussianMixture.isotropic(means, 0.16).to_density(grid)
        for means in ([[0.32, 0.32], [0.68, 0.60]], [[0.36, 0.68], [0.68, 0.36]])
    )
    path = geonet.geodesic(source, target, solver="transport-2d")
    result = np.load(tmp_path / "result.npz")
    assert process.stdout == f"W2 = {float(path.distance):.4f}, mass at t = 0.3: 1.0000\n"
    assert abs(result["distance"] / float(path.distance) - 1) < 5e-4
    potential = np.asarray(path.potential(0.5, grid.points().reshape(-1, 2)))
    assert abs(result["potential"] - potential).max() < 2e-3 * abs(potential).max()
    errors = abs(result["frames"] - path.density([0.3, 1]).numpy()).mean((1, 2))  # L1
    assert errors.max() < 1e-3


def check_files(model: Path, files: list[Path]) -> None:
    """Compare files with torch for random densities, points and corners."""
    for file, part in zip(files, split_model(load_model(model)[0]), strict=True):
        session = onnxruntime.InferenceSession(file)
        generator = torch.Generator().manual_seed(7)
        counts = torch.randint(1, 40, (8,), generator=generator).tolist()
        check_agreement(
            session, part, [part.random_inputs(n, generator) for n in (1, 500, *counts)]
        )
        if part.name == "basis":
            corners = torch.tensor([[0.0], [1.0]]).repeat(1, part.model.settings.dimension)
            case = (corners, torch.tensor([0.0, 1.0]))[: len(part.inputs)]
            check_agreement(session, part, [case])


def check_agreement(session, part: Part, cases: list[tuple[torch.Tensor, ...]]) -> None:
    """Check that ONNX Runtime is as close to torch as torch to double precision, or to 1e-5.

    Differences are relative to the scale of each output over all cases. Sums over thousands of
    sensors are rounded differently by every library and processor.
    """
    double = deepcopy(part).double()
    with torch.no_grad():
        expected = [part(*case) for case in cases]
        exact = [double(*(value.double() for value in case)) for case in cases]
    feeds = [dict(zip(part.inputs, map(torch.Tensor.numpy, case), strict=True)) for case in cases]
    actual = [session.run(list(part.outputs), feed) for feed in feeds]
    for k in range(len(part.outputs)):
        onnx_, torch_, exact_ = (
            np.concatenate([np.ravel(outputs[k]) for outputs in results])
            for results in (actual, expected, exact)
        )
        limit = max(1e-5 * np.abs(exact_).max(), 4 * np.abs(torch_ - exact_).max())
        assert np.abs(onnx_ - torch_).max() <= limit
