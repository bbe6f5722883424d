"""Model files: what is written comes back; whatever else is refused in one sentence."""

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
from geonet.errors import FileError
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build, load_model, save_model, write_tensors

TINY = GeONetSettings(
    sensors=12, rank=6, branch=Branch(width=8, depth=3), trunk=Trunk(width=8, depth=3)
)
SETTINGS = {
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
    return save_model(tmp_path / "model.safetensors", build(TINY, 0), {"name": "tiny"})


@pytest.fixture
def line_pair(tmp_path):
    """Two 1D arrays."""
    ends = tmp_path / "a.npy", tmp_path / "b.npy"
    for end, shift in zip(ends, (3, 5), strict=True):
        np.save(end, np.exp(-((np.arange(20) / 2 - shift) ** 2)))
    return ends


@pytest.fixture
def refused(line_pair, capsys):
    """A file is refused by `load_model`, and with exit code 2 and one line by `geonet`."""

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


# ---- what is written comes back


@pytest.mark.parametrize("name", SETTINGS)
def test_round_trip(tmp_path, generator, name):
    settings = SETTINGS[name]
    model = build(settings, 3)
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


def test_a_file_says_which_densities_are_usual(tmp_path, generator):
    model = build(TINY, 3)
    model.prepare(torch.rand(100, 12, generator=generator))
    loaded, _ = load_model(save_model(tmp_path / "model.safetensors", model, {}))
    asked = 2 * torch.rand(20, 12, generator=generator)
    assert loaded.usual.known
    assert torch.equal(loaded.usual.distance(asked), model.usual.distance(asked))
    assert torch.equal(loaded.usual(asked), model.usual(asked))


def test_a_file_of_an_earlier_version(file, line_pair):
    """It knows nothing of usual densities, nor of settings that came later; all else is the same.

    Whether a pair is like those of the training is told by the ends, if the model was tested.
    """
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
        assert not model.usual.known
        path = geonet.geodesic(*ends, solver=str(file))
        assert path.report.in_distribution is expected
        assert torch.equal(path.density([0.0, 0.4]).tensor, now.density([0.0, 0.4]).tensor)


def test_a_path_that_an_earlier_version_saved(file, line_pair):
    """It has no usual densities either."""
    path = geonet.geodesic(*map(geonet.read, line_pair), solver=str(file))
    state = path._state()
    old = {name: array for name, array in state.items() if "usual." not in name}
    assert len(old) < len(state)
    loaded = type(path)._from_state(path.source, path.target, path.solver, path.notes, old)
    assert torch.equal(loaded.density(0.4).tensor, path.density(0.4).tensor)
    assert loaded.report.in_distribution is None


def test_a_loaded_model_is_ready_for_use(file):
    model, _ = load_model(file)
    assert not model.training
    for parameter in model.parameters():
        assert not parameter.requires_grad
        assert (parameter.device.type, parameter.dtype) == ("cpu", torch.float32)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileError, match="The folder .*nowhere does not exist; create it first."):
        save_model(tmp_path / "nowhere" / "model.safetensors", build(TINY, 0), {})


def test_a_model_can_be_read_by_others(file):
    """As any file that is written here: the mode is what the umask leaves."""
    plain = file.with_name("plain.txt")
    plain.write_text("")
    assert oct(file.stat().st_mode) == oct(plain.stat().st_mode)


# ---- broken files


def test_missing_empty_and_no_file(refused, tmp_path):
    refused(tmp_path / "nowhere.safetensors", "There is no file")
    (tmp_path / "folder.safetensors").mkdir()
    refused(tmp_path / "folder.safetensors", "is a folder; give a file.")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    refused(tmp_path / "empty.safetensors", "is empty; write it again.")


@pytest.mark.parametrize("kept", [1, 8, 9, 200, 0.5, 0.9, -1])
def test_cut_off(refused, file, kept):
    whole = file.read_bytes()
    file.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    refused(file, f"Cannot read {file} as a geonet model")


def test_more_than_the_whole(refused, file):
    file.write_bytes(file.read_bytes() + b"more")
    refused(file, f"Cannot read {file} as a geonet model")


def test_any_flipped_bit_is_found(file):
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


@pytest.mark.parametrize("place", ["name", "weights"])
def test_a_flipped_byte_has_its_own_line(refused, file, place):
    whole = bytearray(file.read_bytes())
    whole[whole.index(b"tiny") if place == "name" else -10] ^= 1
    file.write_bytes(whole)
    refused(file, "was changed after it was written; get the file again.")


def test_a_pickle_is_never_executed(refused, tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    file = tmp_path / "model.safetensors"
    for write in (lambda: file.write_bytes(pickle.dumps(Trap())), lambda: torch.save(Trap(), file)):
        write()
        refused(file, f"Cannot read {file} as a geonet model")
        assert not (tmp_path / "sprung").exists()
    with pytest.raises(FileExistsError):  # the trap works
        (tmp_path / "sprung").mkdir()
        pickle.loads(pickle.dumps(Trap()))


def test_tensors_of_someone_else(refused, tmp_path):
    file = tmp_path / "model.safetensors"
    for metadata in (None, {"format": "pt"}, {"geonet": "{}"}):
        save_file({"weight": torch.zeros(3)}, file, metadata)
        refused(file, "holds tensors but is not a geonet model; `geonet train` writes one.")


# ---- forged files: the checksum fits


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2 and kind 'geonet', which this version does not know"),
        ({"format": None}, "has format None"),
        ({"kind": "checkpoint"}, "has format 1 and kind 'checkpoint'"),
        ({"architecture": None}, "describes no model"),
        ({"architecture": [1]}, "describes no model"),
        ({"architecture": {"ranks": 3}}, "no model: Unknown key ranks; did you mean 'rank'?"),
        ({"architecture": {"rank": "6"}}, "describes no model: rank is '6'; give a whole number"),
        ({"architecture": {"rank": -6}}, "describes no model: rank is -6; give 1 to 1048576"),
        ({"architecture": to_table(dataclasses.replace(TINY, rank=7))}, "do not fit its arch"),
        ({"architecture": to_table(dataclasses.replace(TINY, dimension=2))}, "do not fit its arch"),
        ({"architecture": to_table(SETTINGS["perceptrons"])}, "do not fit its architecture"),
    ],
)
def test_another_header(refused, file, changes, message):
    refused(_rewrite(file, _header(file) | changes), message)


@pytest.mark.parametrize("header", [[1, 2], "text"])
def test_a_header_that_is_no_table(refused, file, header):
    refused(_rewrite(file, header), str(file))


@pytest.mark.parametrize("epsilon", ["much", [0.1], -1.0, float("nan"), 10**400])
def test_an_epsilon_that_makes_no_sense(file, line_pair, epsilon):
    """Read by the solver, so it has to be sound."""
    _rewrite(file, _header(file) | {"epsilon": epsilon})
    with pytest.raises(FileError, match="epsilon"):
        geonet.geodesic(*map(geonet.read, line_pair), solver=str(file))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(refused, file, value):
    name = "density.branches.0.first.bias"
    _rewrite(file, **{name: torch.full((8,), value)})
    refused(file, f"The weights {name} in {file} are not finite; get the file again.")


def test_other_weights(refused, file):
    _rewrite(file, more=torch.zeros(3))
    refused(file, "do not fit its architecture")
    tensors = load_file(file)
    del tensors["more"], tensors["density.branches.0.first.bias"]
    write_tensors(file, tensors, _header(file))
    refused(file, "do not fit its architecture")


def test_a_huge_architecture_takes_no_memory(refused, file):
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
    refused(file, "do not fit its architecture")
    assert _resident() - before < 200e6


def _resident() -> int:
    """Bytes of memory this process has ever held, at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_a_loaded_model_does_not_change_with_its_file(file):
    """The weights are read, not mapped: `cp` over the file would change them, or crash."""
    model, _ = load_model(file)
    before = [parameter.clone() for parameter in model.parameters()]
    file.write_bytes(bytes(len(file.read_bytes())))
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
