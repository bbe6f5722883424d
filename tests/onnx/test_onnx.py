"""ONNX files answer as torch does, and say so; anything else is refused."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import geonet
from geonet import onnx as onnx_files
from geonet.errors import ExportError, FileError, SolverError
from geonet.onnx import Part, export_onnx, parts_of
from geonet.solvers.neural.model import PRETRAINED, build, load_model

from .conftest import SMALL, Exported, export, small_model

SHIPPED = sorted(file.stem for file in PRETRAINED.glob("*.safetensors"))


def name_in(model: Path) -> str:
    """The name in a model's header, which its file may not have."""
    return load_model(model)[1]["name"]


SHIPPED.remove("mnist-autoencoder")
SHIPPED = [name for name in SHIPPED if not name.startswith("universal")]


@pytest.fixture(scope="module", params=["transport-2d", "geonet", "deeponet"])
def exported(request, tmp_path_factory) -> Exported:
    """Every kind of model."""
    if request.param == "transport-2d":
        return request.getfixturevalue("transport_2d")
    folder = tmp_path_factory.mktemp("onnx")
    return export(small_model(request.param, folder), folder / "new" / "folder")


def test_files_agree_with_torch(exported):
    """Over random inputs and shapes."""
    assert [file.name for file in exported.files] == [
        f"{name_in(exported.model)}-{part}.onnx" for part in ("branch", "basis")
    ]
    check(exported.model, exported.files)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_agree_with_torch(name, tmp_path):
    files = export_onnx(name, tmp_path)
    assert [file.name for file in files] == [f"{name}-branch.onnx", f"{name}-basis.onnx"]
    check(PRETRAINED / f"{name}.safetensors", files)


def test_process_is_as_before(exported):
    assert exported.changed == []


def test_what_networks_keep_has_values(exported):
    """Shapes without values would be kept if the export were the first to use a network."""
    for part in parts_of(load_model(exported.model)[0]):
        for answer in part(*part.drawn(2, torch.Generator().manual_seed(0))):
            assert type(answer) is torch.Tensor and bool(answer.isfinite().all())


def test_names_and_shapes(exported):
    network, _ = load_model(exported.model)
    for file, part in zip(exported.files, parts_of(network), strict=True):
        graph = onnx.load(file).graph
        case = part.drawn(4, torch.Generator().manual_seed(0))
        for values, tensors, names in (
            (graph.input, case, part.inputs),
            (graph.output, part(*case), part.outputs),
        ):
            assert tuple(value.name for value in values) == names
            for value, tensor in zip(values, tensors, strict=True):
                shape = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
                assert shape == [part.axis if n == 4 else n for n in tensor.shape]


def test_files_are_single_precision_and_whole(exported):
    for file in exported.files:
        kinds = {weight.data_type for weight in onnx.load(file).graph.initializer}
        assert kinds <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
        assert str(Path(geonet.__file__).parent).encode() not in file.read_bytes()
    assert set(exported.files[0].parent.iterdir()) == set(exported.files)


def test_files_describe_themselves(exported):
    settings = load_model(exported.model)[0].settings
    for file, part in zip(exported.files, ("branch", "basis"), strict=True):
        about = onnx_files.metadata(file)
        assert about["model"] == name_in(exported.model)
        assert (about["kind"], about["part"]) == (settings.kind, part)
        assert (int(about["dimension"]), int(about["sensors"])) == (
            settings.dimension,
            settings.sensors,
        )
        assert about["geonet"] == geonet.__version__
        assert float(about["epsilon"]) == 0
        assert 0 <= float(about["largest_difference"]) <= 5 * onnx_files.TOLERANCE
        session = onnxruntime.InferenceSession(file)
        assert session.get_modelmeta().custom_metadata_map == about


def test_too_large_a_difference_is_refused(tmp_path, monkeypatch):
    """What was there stays."""
    model = small_model("deeponet", tmp_path)
    old = tmp_path / "small-deeponet-branch.onnx"
    old.write_text("old")
    monkeypatch.setattr(onnx_files, "TOLERANCE", 0.0)
    monkeypatch.setattr(onnx_files, "AS_EXACT", 0.0)
    with pytest.raises(ExportError, match="branch of small-deeponet differs from torch by .*e-"):
        export_onnx(model, tmp_path)
    assert old.read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} == {model.name, old.name}


def test_difference_sees_wrong_numbers_and_shapes():
    part, _ = parts_of(build(SMALL["deeponet"], seed=0))
    cases = [part.drawn(count, torch.Generator().manual_seed(0)) for count in (1, 2)]
    answers = [part(*case) for case in cases]
    with torch.no_grad():
        right = [[answer.detach().numpy() for answer in some] for some in answers]
    detached = [tuple(answer.detach() for answer in some) for some in answers]

    def difference(found) -> float:
        return onnx_files._difference(found, detached)

    assert difference(right) == 0
    assert difference([[1.5 * value for value in some] for some in right]) == pytest.approx(0.5)
    assert np.isnan(difference([right[0], [np.nan * value for value in right[1]]]))
    assert difference([right[0], right[0]]) == np.inf  # an answer to another number of pairs


def test_file_that_does_not_run_is_refused():
    part, _ = parts_of(build(SMALL["deeponet"], seed=0))
    with pytest.raises(ExportError, match="ONNX Runtime does not run the exported branch: .*"):
        onnx_files._run(onnx.ModelProto(), part, [])


@pytest.mark.parametrize("library", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_library(library, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ExportError, match=r"run pip install 'geonet\[export\]'\."):
        export_onnx("transport-1d", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["auto", "quantile", "linear", "pinn"])
def test_solver_without_a_network(name, tmp_path):
    with pytest.raises(SolverError, match=f"{name!r} has no trained network to export; choose"):
        export_onnx(name, tmp_path)
    with pytest.raises(SolverError, match="transport-2d"):
        export_onnx(geonet.solver(name), tmp_path)


def test_a_cascade_cannot_be_exported(tmp_path):
    with pytest.raises(ExportError, match="again and again.*; choose a model of another form"):
        export_onnx("universal-2d", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_files_that_cannot_be_exported(tmp_path):
    with pytest.raises(FileError, match="There is no file nowhere.safetensors"):
        export_onnx("nowhere.safetensors", tmp_path)
    with pytest.raises(FileError, match="kind 'autoencoder'"):
        export_onnx(PRETRAINED / "mnist-autoencoder.safetensors", tmp_path)
    with pytest.raises(SolverError, match="did you mean 'transport-2d'"):
        export_onnx("transport-2", tmp_path)
    taken = tmp_path / "taken"
    taken.write_text("")
    with pytest.raises(FileError, match="Cannot make the folder .*taken"):
        export_onnx("transport-1d", taken)
    assert list(tmp_path.iterdir()) == [taken]


@pytest.mark.parametrize("name", SHIPPED)
def test_solver_and_name_are_the_same_model(name):
    assert onnx_files.model_file(geonet.solver(name)) == onnx_files.model_file(name)
    assert onnx_files.model_file(name).stem == name


def check(model: Path, files: list[Path]) -> None:
    """Compare files with torch: rough and smooth densities, points, corners of the box."""
    for file, part in zip(files, parts_of(load_model(model)[0]), strict=True):
        session = onnxruntime.InferenceSession(file)
        generator = torch.Generator().manual_seed(7)
        counts = torch.randint(1, 40, (8,), generator=generator).tolist()
        cases = [part.drawn(count, generator) for count in (1, 500, *counts)]
        _check_agreement(session, part, cases)
        if part.name == "basis":
            _check_agreement(session, part, [_corners(part)])
        else:
            _check_agreement(session, part, [_mixtures(part, count, generator) for count in counts])


def _check_agreement(session, part: Part, cases: list[tuple[torch.Tensor, ...]]) -> None:
    """ONNX Runtime is as near to torch as torch is to double precision, or nearer than 1e-5.

    Relative to the scale of each output over all cases. A sum over thousands of sensors is rounded
    differently by every library and processor.
    """
    exact = deepcopy(part).double()
    with torch.no_grad():
        answers = [part(*case) for case in cases]
        true = [exact(*(value.double() for value in case)) for case in cases]
    feeds = [dict(zip(part.inputs, map(torch.Tensor.numpy, case), strict=True)) for case in cases]
    found = [session.run(list(part.outputs), feed) for feed in feeds]
    for k in range(len(part.outputs)):
        scale = max(float(some[k].abs().max()) for some in true)
        rounding = max(_gap(ours[k], some[k]) for ours, some in zip(answers, true, strict=True))
        off = max(_gap(theirs[k], ours[k]) for theirs, ours in zip(found, answers, strict=True))
        assert off <= max(1e-5 * scale, 4 * rounding)


def _gap(first, second) -> float:
    """The largest difference of two arrays of one shape."""
    first, second = np.asarray(first), np.asarray(second)
    assert first.shape == second.shape
    return float(np.abs(first - second).max())


def _corners(part: Part) -> tuple[torch.Tensor, ...]:
    """Opposite corners of the box at both ends of a path."""
    corners = torch.tensor([[0.0], [1.0]]).repeat(1, part.model.settings.dimension)
    return (corners, torch.tensor([0.0, 1.0]))[: len(part.inputs)]


def _mixtures(part: Part, count: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Three round Gaussians in the box, with deviations of 0.1 to 0.25, relative to uniform."""
    settings = part.model.settings
    d = settings.dimension
    points = geonet.Grid((settings.sensors,) * d).points().reshape(-1, d).float()
    means = 0.2 + 0.6 * torch.rand(2, count, 3, 1, d, generator=generator)
    spread = 0.1 + 0.15 * torch.rand(2, count, 3, 1, generator=generator)
    values = torch.exp(-((points - means) ** 2).sum(-1) / (2 * spread**2)).sum(2)
    return tuple(values / values.mean(-1, keepdim=True))
