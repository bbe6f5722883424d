"""Settings, construction, files and cache of models."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import resource
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import geonet
from geonet._toml import to_table
from geonet.cli import main
from geonet.errors import ConfigError, FileError, SolverError
from geonet.solvers.neural import model as opening
from geonet.solvers.neural.deeponet import DeepONetSettings, DensityNet
from geonet.solvers.neural.geonet import GeONet, GeONetSettings
from geonet.solvers.neural.model import (
    MAX_SIZE,
    Branch,
    Trunk,
    build_model,
    load_cached,
    load_model,
    save_model,
    write_tensors,
)
from geonet.solvers.neural.transport.network import TransportNet, TransportSettings


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"dimension": 0}, "dimension"),
        ({"dimension": 4}, "dimension"),
        ({"sensors": 1}, "sensors"),
        ({"sensors": 4097}, "sensors"),
        ({"seen": 0}, "seen"),
        ({"seen": 31}, "even"),
        ({"dimension": 3, "sensors": 200, "seen": 102}, "seen"),
        ({"modes": -2}, "modes"),
        ({"dimension": 2, "modes": 1026}, "modes"),
        ({"sensors": 30}, "30 sensors"),
        ({"width": 0}, "width"),
        ({"width": MAX_SIZE + 1}, "width"),
        ({"depth": 101}, "depth"),
    ],
)
def test_invalid_transport_settings(settings, word):
    with pytest.raises(ConfigError, match=word):
        TransportSettings(**settings)


@pytest.mark.parametrize("kind", [GeONetSettings, DeepONetSettings])
@pytest.mark.parametrize("settings", [{"dimension": 4}, {"rank": 0}, {"rank": MAX_SIZE + 1}])
def test_invalid_operator_settings(kind, settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        kind(**settings)


SMALL = {
    GeONet: GeONetSettings(sensors=3, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)),
    DensityNet: DeepONetSettings(
        sensors=3, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)
    ),
    TransportNet: TransportSettings(sensors=6, seen=4, modes=6, width=3, depth=2),
}


@pytest.mark.parametrize("kind", SMALL)
def test_settings_select_the_model_class(kind):
    for model in (build_model(SMALL[kind], 0), build_model(SMALL[kind])):
        assert type(model) is kind
        assert model.settings == SMALL[kind]


@pytest.mark.parametrize("kind", SMALL)
def test_weights_depend_only_on_the_seed(kind):
    first = build_model(SMALL[kind], 7).state_dict()
    torch.rand(3)  # moves torch's own stream
    again, other = (
        build_model(SMALL[kind], 7).state_dict(),
        build_model(SMALL[kind], 8).state_dict(),
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


TINY = GeONetSettings(
    sensors=12, rank=6, branch=Branch(width=8, depth=3), trunk=Trunk(width=8, depth=3)
)


ARCHITECTURES = {
    "plain": TINY,
    "symmetric": dataclasses.replace(TINY, swap_symmetry="both"),
    "perceptrons": dataclasses.replace(
        TINY, branch=Branch("mlp", width=8, depth=2), trunk=Trunk("mlp", width=8, depth=2)
    ),
    "2D, separable": dataclasses.replace(
        TINY,
        dimension=2,
        swap_symmetry="density",
        trunk=Trunk("separable", width=8, depth=3, features="fourier", modes=4),
    ),
    "3D, cosines": dataclasses.replace(
        TINY, dimension=3, sensors=3, trunk=Trunk(width=8, depth=3, features="cosines", modes=3)
    ),
    "2D, ends given": dataclasses.replace(
        TINY, dimension=2, sensors=5, ends="given", branch=Branch(width=8, depth=3, modes=4)
    ),
}


@pytest.fixture
def file(tmp_path):
    """A whole model file."""
    return save_model(tmp_path / "model.safetensors", build_model(TINY, 0), {"name": "tiny"})


@pytest.fixture
def line_pair(tmp_path):
    """Two 1D arrays."""
    ends = tmp_path / "a.npy", tmp_path / "b.npy"
    for end, shift in zip(ends, (3, 5), strict=True):
        np.save(end, np.exp(-((np.arange(20) / 2 - shift) ** 2)))
    return ends


@pytest.fixture
def assert_rejected(line_pair, capsys):
    """A file is assert_rejected by `load_model`, and with exit code 2 and one line by `geonet`."""

    def check(file: Path, message: str) -> None:
        with pytest.raises(FileError) as caught:
            load_model(file)
        assert message in str(caught.value)
        assert str(caught.value)[-1] in ".?"
        assert main(["geodesic", *map(str, line_pair), "--solver", str(file)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"error: {' '.join(str(caught.value).split())}\n"

    return check


def _rewrite(file: Path, header: object = None, **weights: torch.Tensor) -> Path:
    """Another header or other weights, with a checksum that fits: as a forger would."""
    tensors = load_file(file) | weights
    return write_tensors(file, tensors, _header(file) if header is None else header)  # type: ignore[arg-type]


def _header(file: Path) -> dict:
    (length,) = struct.unpack("<Q", file.read_bytes()[:8])
    return json.loads(json.loads(file.read_bytes()[8 : 8 + length])["__metadata__"]["geonet"])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_round_trip(tmp_path, generator, name):
    settings = ARCHITECTURES[name]
    model = build_model(settings, 3)
    file = save_model(tmp_path / "model.safetensors", model, {"name": name, "epsilon": 0.25})
    loaded, header = load_model(file)
    assert loaded.settings == settings
    assert (header["name"], header["epsilon"]) == (name, 0.25)
    assert header["architecture"] == to_table(settings)
    ends = torch.rand(2, 3, settings.sensors**settings.dimension, generator=generator)
    z = torch.rand(7, settings.dimension + 1, generator=generator)
    for ours, theirs in zip(model.coefficients(*ends), loaded.coefficients(*ends), strict=True):
        assert torch.equal(ours, theirs)
    for part in ("density", "potential"):
        assert torch.equal(getattr(model, part).basis(z), getattr(loaded, part).basis(z))


def test_input_distribution_round_trip(tmp_path, generator):
    model = build_model(TINY, 3)
    model.prepare(torch.rand(100, 12, generator=generator))
    loaded, _ = load_model(save_model(tmp_path / "model.safetensors", model, {}))
    asked = 2 * torch.rand(20, 12, generator=generator)
    assert loaded.usual.is_fitted
    assert torch.equal(loaded.usual.distance(asked), model.usual.distance(asked))
    assert torch.equal(loaded.usual(asked), model.usual(asked))


def test_older_files_load(file, line_pair):
    """Without input distribution and newer settings; then the errors of the ends are decisive."""
    ends = [geonet.read(end) for end in line_pair]
    now = geonet.geodesic(*ends, solver=str(file))
    header = _header(file)
    del header["architecture"]["ends"], header["architecture"]["branch"]["modes"]
    old = {k: v for k, v in load_file(file).items() if not k.startswith("usual.")}
    assert len(old) < len(load_file(file))
    good, bad = ({"measured": {"test": {"mean": [m] * 5, "sd": [0.0] * 5}}} for m in (1e6, 0.0))
    for tested, expected in (({}, None), (good, True), (bad, False)):
        write_tensors(file, old, header | tested)
        model, _ = load_model(file)
        assert model.settings == TINY
        assert not model.usual.is_fitted
        path = geonet.geodesic(*ends, solver=str(file))
        assert path.report.in_distribution is expected
        assert torch.equal(path.density([0.0, 0.4]).tensor, now.density([0.0, 0.4]).tensor)


def test_loaded_models_are_frozen(file):
    model, _ = load_model(file)
    assert not model.training
    for parameter in model.parameters():
        assert not parameter.requires_grad
        assert (parameter.device.type, parameter.dtype) == ("cpu", torch.float32)


def test_missing_empty_and_folder(assert_rejected, tmp_path):
    assert_rejected(tmp_path / "nowhere.safetensors", "There is no file")
    (tmp_path / "folder.safetensors").mkdir()
    assert_rejected(tmp_path / "folder.safetensors", "is a folder; give a file.")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    assert_rejected(tmp_path / "empty.safetensors", "is empty; write it again.")


@pytest.mark.parametrize("kept", [1, 8, 9, 200, 0.5, 0.9, -1])
def test_truncated_files(assert_rejected, file, kept):
    whole = file.read_bytes()
    file.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    assert_rejected(file, f"Cannot read {file} as a geonet model")


def test_flipped_bits_are_detected(file):
    """In the length, the header and the weights; never anything but a `FileError`."""
    whole = file.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    random = np.random.default_rng(0)
    header = 8 + random.permutation(length)[:150]
    weights = 8 + length + random.permutation(len(whole) - 8 - length)[:50]
    for place in [*range(8), *header, *weights]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(random.integers(8))
        file.write_bytes(flipped)
        with pytest.raises(FileError, match="model.safetensors"):
            load_model(file)


def test_pickles_are_not_executed(assert_rejected, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    file = tmp_path / "model.safetensors"
    for write in (lambda: file.write_bytes(pickle.dumps(Trap())), lambda: torch.save(Trap(), file)):
        write()
        assert_rejected(file, f"Cannot read {file} as a geonet model")
        assert not (tmp_path / "sprung").exists()
    with pytest.raises(FileExistsError):  # the trap works
        (tmp_path / "sprung").mkdir()
        pickle.loads(pickle.dumps(Trap()))


def test_foreign_safetensors(assert_rejected, tmp_path):
    file = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "pt"}, {"geonet": "{}"}):
        save_file({"weight": torch.zeros(3)}, file, metadata)
        assert_rejected(file, "holds tensors but is not a geonet model; `geonet train` writes one.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2 and kind 'geonet', which this version does not support"),
        ({"format": None}, "has format None"),
        ({"kind": "checkpoint"}, "has format 1 and kind 'checkpoint'"),
        ({"architecture": None}, "has an invalid architecture"),
        ({"architecture": [1]}, "has an invalid architecture"),
        ({"architecture": {"ranks": 3}}, "architecture: Unknown key ranks; did you mean 'rank'?"),
        (
            {"architecture": {"rank": "6"}},
            "rank is '6'",
        ),
        (
            {"architecture": {"rank": -6}},
            "rank is -6",
        ),
        ({"architecture": to_table(dataclasses.replace(TINY, rank=7))}, "do not fit its arch"),
        ({"architecture": to_table(dataclasses.replace(TINY, dimension=2))}, "do not fit its arch"),
        ({"architecture": to_table(ARCHITECTURES["perceptrons"])}, "do not fit its architecture"),
    ],
)
def test_invalid_headers(assert_rejected, file, changes, message):
    assert_rejected(_rewrite(file, _header(file) | changes), message)


@pytest.mark.parametrize("epsilon", ["much", [0.1], -1.0, float("nan"), 10**400])
def test_invalid_epsilon(file, line_pair, epsilon):
    """Read by the solver, so it has to be sound."""
    _rewrite(file, _header(file) | {"epsilon": epsilon})
    with pytest.raises(FileError, match="epsilon"):
        geonet.geodesic(*map(geonet.read, line_pair), solver=str(file))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights(assert_rejected, file, value):
    name = "density.branches.0.first.bias"
    _rewrite(file, **{name: torch.full((8,), value)})
    assert_rejected(file, f"The weights {name} in {file} are not finite")


def test_missing_and_additional_weights(assert_rejected, file):
    _rewrite(file, more=torch.zeros(3))
    assert_rejected(file, "do not fit its architecture")
    tensors = load_file(file)
    del tensors["more"], tensors["density.branches.0.first.bias"]
    write_tensors(file, tensors, _header(file))
    assert_rejected(file, "do not fit its architecture")


def test_huge_architecture_allocates_nothing(assert_rejected, file):
    """Terabytes, if they were allocated; 200 MB are allowed."""
    huge = GeONetSettings(
        dimension=3,
        sensors=4096,
        rank=1 << 20,
        branch=Branch(width=1 << 20, depth=100),
        trunk=Trunk(width=1 << 20, depth=100, features="cosines", modes=1 << 16),
    )
    _rewrite(file, _header(file) | {"architecture": to_table(huge)})
    before = _resident()
    assert_rejected(file, "do not fit its architecture")
    assert _resident() - before < 200e6


def _resident() -> int:
    """Bytes of memory this process has ever held, at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_weights_are_copied_from_the_file(file):
    """The weights are read, not mapped: `cp` over the file would change them, or crash."""
    model, _ = load_model(file)
    before = [parameter.clone() for parameter in model.parameters()]
    file.write_bytes(bytes(len(file.read_bytes())))
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


LINE = TransportSettings(sensors=8, seen=4, modes=4, width=3, depth=1)
OTHER = GeONetSettings(
    sensors=8, rank=4, branch=Branch(width=4, depth=3), trunk=Trunk(width=4, depth=3)
)


@pytest.fixture
def line_file(tmp_path):
    return save_model(tmp_path / "model.safetensors", build_model(LINE, 0), {"name": "tiny"})


def test_load_cached_returns_model_and_header(line_file):
    model, header = load_cached(line_file, 1)
    assert isinstance(model, TransportNet)
    assert (model.settings, header["name"], header["kind"]) == (LINE, "tiny", "transport")


def test_files_are_read_once(line_file, monkeypatch):
    first, _ = load_cached(line_file, 1)
    monkeypatch.setattr(opening, "load_model", lambda *_: pytest.fail("read again"))
    assert load_cached(line_file, 1)[0] is first


@pytest.mark.parametrize("how", ["time", "size"])
def test_changed_files_are_read_again(line_file, how):
    first, _ = load_cached(line_file, 1)
    before = line_file.stat().st_mtime_ns
    save_model(
        line_file, build_model(LINE, 1), {"name": "tiny" if how == "time" else "another name"}
    )
    os.utime(line_file, ns=(before, before + 1 if how == "time" else before))
    second, _ = load_cached(line_file, 1)
    assert second is not first


def test_other_forms_are_rejected(line_file, tmp_path):
    other = save_model(tmp_path / "other.safetensors", build_model(OTHER, 0), {})
    for wrong, kind, named in ((line_file, "geonet", "transport"), (other, "transport", "geonet")):
        with pytest.raises(SolverError) as caught:
            load_cached(wrong, 1, kind)
        assert f"is of the kind '{named}', which this solver does not support" in str(caught.value)
        assert f"solver={str(wrong)!r}." in str(caught.value)
