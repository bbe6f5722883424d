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
from geonet.solvers.neural import model as model_module
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
    ("kind", "settings", "word"),
    [
        (TransportSettings, {"dimension": 4}, "dimension"),
        (TransportSettings, {"sensors": 1}, "sensors"),
        (TransportSettings, {"seen": 31}, "even"),
        (TransportSettings, {"dimension": 3, "sensors": 200, "seen": 102}, "seen"),
        (TransportSettings, {"dimension": 2, "modes": 1026}, "modes"),
        (TransportSettings, {"sensors": 30}, "30 sensors"),
        (TransportSettings, {"width": MAX_SIZE + 1}, "width"),
        (TransportSettings, {"depth": 101}, "depth"),
        (GeONetSettings, {"dimension": 4}, "dimension"),
        (GeONetSettings, {"rank": 0}, "rank"),
        (DeepONetSettings, {"rank": MAX_SIZE + 1}, "rank"),
    ],
)
def test_invalid_settings(kind, settings, word):
    with pytest.raises(ConfigError, match=word):
        kind(**settings)


SMALL = {
    GeONet: GeONetSettings(sensors=3, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)),
    DensityNet: DeepONetSettings(
        sensors=3, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)
    ),
    TransportNet: TransportSettings(sensors=6, seen=4, modes=6, width=3, depth=2),
}


@pytest.mark.parametrize("kind", SMALL)
def test_models_depend_on_settings_and_seed(kind):
    model = build_model(SMALL[kind], 7)
    assert type(model) is type(build_model(SMALL[kind])) is kind
    assert model.settings == SMALL[kind]
    first = model.state_dict()
    torch.rand(3)  # moves torch's own stream
    again, other = (build_model(SMALL[kind], seed).state_dict() for seed in (7, 8))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


TINY = GeONetSettings(
    sensors=12, rank=6, branch=Branch(width=8, depth=3), trunk=Trunk(width=8, depth=3)
)
ARCHITECTURES = {
    "perceptrons": dataclasses.replace(TINY, branch=Branch("mlp", 8, 2), trunk=Trunk("mlp", 8, 2)),
    "3D, separable, ends given": dataclasses.replace(
        TINY,
        dimension=3,
        sensors=5,
        swap_symmetry="density",
        ends="given",
        branch=Branch(width=8, depth=3, modes=4),
        trunk=Trunk("separable", width=8, depth=3, features="fourier", modes=3),
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
    """Check that `load_model` raises FileError and `geonet` exits with code 2 and one line."""

    def check(file: Path, message: str) -> None:
        with pytest.raises(FileError) as caught:
            load_model(file)
        assert message in str(caught.value)
        assert main(["geodesic", *map(str, line_pair), "--solver", str(file)]) == 2
        out, err = capsys.readouterr()
        assert (out, err) == ("", f"error: {' '.join(str(caught.value).split())}\n")

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
    """Loaded models are frozen and independent of the file from then on."""
    settings = ARCHITECTURES[name]
    model = build_model(settings, 3)
    sensors, d = settings.sensors**settings.dimension, settings.dimension
    model.prepare(torch.rand(100, sensors, generator=generator))
    file = save_model(tmp_path / "model.safetensors", model, {"name": name, "epsilon": 0.25})
    loaded, header = load_model(file)
    file.write_bytes(bytes(len(file.read_bytes())))  # weights are read, not mapped
    assert loaded.settings == settings
    assert (header["name"], header["epsilon"]) == (name, 0.25)
    assert header["architecture"] == to_table(settings)
    assert not loaded.training and loaded.usual.is_fitted
    assert not any(p.requires_grad for p in loaded.parameters())
    ends = 2 * torch.rand(2, 3, sensors, generator=generator)
    z = torch.rand(7, d + 1, generator=generator)
    results = [
        [
            *m.coefficients(*ends),
            m.density.basis(z),
            m.potential.basis(z),
            m.usual.distance(ends[0]),
        ]
        for m in (model, loaded)
    ]
    assert all(torch.equal(*both) for both in zip(*results, strict=True))


def test_older_files_load(file, line_pair):
    """Without input distribution and newer settings; then the errors of the ends are decisive."""
    ends = [geonet.read(end) for end in line_pair]
    frames = geonet.geodesic(*ends, solver=str(file)).density([0.0, 0.4]).tensor
    header = _header(file)
    del header["architecture"]["ends"], header["architecture"]["branch"]["modes"]
    old = {k: v for k, v in load_file(file).items() if not k.startswith("usual.")}
    assert len(old) < len(load_file(file))
    good, bad = ({"measured": {"test": {"mean": [m] * 5, "sd": [0.0] * 5}}} for m in (1e6, 0.0))
    for tested, expected in (({}, None), (good, True), (bad, False)):
        write_tensors(file, old, header | tested)
        model, _ = load_model(file)
        assert model.settings == TINY and not model.usual.is_fitted
        path = geonet.geodesic(*ends, solver=str(file))
        assert path.report.in_distribution is expected
        assert torch.equal(path.density([0.0, 0.4]).tensor, frames)


def test_missing_empty_truncated_and_foreign_files(assert_rejected, file, tmp_path):
    assert_rejected(tmp_path / "nowhere.safetensors", "There is no file")
    (tmp_path / "folder.safetensors").mkdir()
    assert_rejected(tmp_path / "folder.safetensors", "is a folder")
    whole = file.read_bytes()
    for kept in (0, 1, 8, 9, 200, len(whole) // 2, -1):
        file.write_bytes(whole[:kept])
        assert_rejected(file, "is empty" if kept == 0 else f"Cannot read {file}")
    for metadata in (None, {"format": "pt"}, {"geonet": "{}"}):
        save_file({"weight": torch.zeros(3)}, file, metadata)
        assert_rejected(file, "is not a geonet model")


def test_flipped_bits_are_detected(file):
    """In the length, the header and the weights; never anything but a `FileError`."""
    whole = file.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    random = np.random.default_rng(0)
    header = 8 + random.permutation(length)[:60]
    weights = 8 + length + random.permutation(len(whole) - 8 - length)[:30]
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2 and kind 'geonet'"),
        ({"kind": "checkpoint"}, "has format 1 and kind 'checkpoint'"),
        ({"architecture": [1]}, "has an invalid architecture"),
        ({"architecture": {"ranks": 3}}, "did you mean 'rank'?"),
        ({"architecture": {"rank": "6"}}, "rank is '6'"),
        ({"architecture": {"rank": -6}}, "rank is -6"),
        ({"architecture": to_table(dataclasses.replace(TINY, rank=7))}, "do not fit its arch"),
        ({"architecture": to_table(ARCHITECTURES["perceptrons"])}, "do not fit its architecture"),
    ],
)
def test_invalid_headers(assert_rejected, file, changes, message):
    assert_rejected(_rewrite(file, _header(file) | changes), message)


def test_invalid_weights(assert_rejected, file):
    """Not finite, additional and missing ones."""
    name = "density.branches.0.first.bias"
    tensors = load_file(file)
    for value in (torch.nan, torch.inf):
        assert_rejected(_rewrite(file, **{name: torch.full((8,), value)}), f"{name} in {file} are")
    missing = {k: v for k, v in tensors.items() if k != name}
    for wrong in (tensors | {"more": torch.zeros(3)}, missing):
        write_tensors(file, wrong, _header(file))
        assert_rejected(file, "do not fit its architecture")


@pytest.mark.parametrize("epsilon", ["much", [0.1], -1.0, float("nan"), 10**400])
def test_invalid_epsilon(file, line_pair, epsilon):
    _rewrite(file, _header(file) | {"epsilon": epsilon})
    with pytest.raises(FileError, match="epsilon"):
        geonet.geodesic(*map(geonet.read, line_pair), solver=str(file))


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
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_rejected(file, "do not fit its architecture")
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 200e6


def test_cache_of_models(file, monkeypatch):
    """Files are read once, and again if their time or size changed; other forms are rejected."""
    first, header = load_cached(file, 1)
    assert isinstance(first, GeONet) and header["name"] == "tiny"
    with monkeypatch.context() as patch:
        patch.setattr(model_module, "load_model", lambda *_: pytest.fail("read again"))
        assert load_cached(file, 1)[0] is first
    with pytest.raises(SolverError, match="is of the kind 'geonet'"):
        load_cached(file, 1, "transport")
    time = file.stat().st_mtime_ns
    for name, change in (("tiny", 1), ("another name", 0)):
        save_model(file, build_model(TINY, 1), {"name": name})
        os.utime(file, ns=(time, time + change))
        again, _ = load_cached(file, 1)
        assert again is not first
        first, time = again, time + change
