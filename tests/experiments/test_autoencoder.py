"""Training, files and quality of the autoencoder of digits."""

import numpy as np
import pytest
import torch

from experiments.autoencoder import (
    SHIPPED,
    Autoencoder,
    as_rows,
    load_autoencoder,
    train_autoencoder,
)
from experiments.mnist import sample_digits
from geonet.errors import FileError
from geonet.solvers.neural.model import read_tensors, write_tensors

EPOCHS = 20  # of 18 steps each


@pytest.fixture(scope="module")
def digits():
    """Return 900 training digits and 100 others of every class."""
    images = sample_digits().images
    held_out = np.arange(len(images)) % 10 == 0
    return images[~held_out], images[held_out]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    file = tmp_path_factory.mktemp("autoencoder") / "model.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.autoencoder.BATCH", 50)
        assert train_autoencoder(*digits, file, EPOCHS) == file
    return file


def squared_error(model, images):
    rows = as_rows(images)
    return float(((model.decode(model.encode(rows)) - rows) ** 2).mean())


def test_reconstruction_is_better_than_the_mean_image(digits, trained):
    seen, unseen = digits
    mean = as_rows(seen).mean(0)
    error = squared_error(load_autoencoder(trained), unseen)
    assert error < 0.5 * float(((as_rows(unseen) - mean) ** 2).mean())


def test_header_has_the_measured_errors(digits, trained):
    _, header = read_tensors(trained, "an autoencoder")
    model = load_autoencoder(trained)
    codes = model.encode(as_rows(digits[1]))
    assert (header["kind"], header["epochs"], header["seed"]) == ("autoencoder", EPOCHS, 0)
    error = squared_error(model, digits[1])
    assert header["unseen_squared_error"] == pytest.approx(error, rel=1e-4)
    assert header["code_spread"] == pytest.approx(float(codes.std()), rel=1e-4)
    assert header["largest_code"] == pytest.approx(float(codes.abs().max()), rel=1e-4)
    assert header["seconds"] > 0


def test_file_has_the_weights(digits, trained):
    """A loaded model is frozen and cached."""
    tensors, _ = read_tensors(trained, "an autoencoder")
    model = load_autoencoder(trained)
    state = model.state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], tensors[name]) for name in tensors)
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert load_autoencoder(trained) is model


def test_training_depends_on_its_own_seed_only(digits, tmp_path):
    tensors = []
    for k, seed in enumerate((4, 4, 5)):
        torch.rand(3)
        before = torch.random.get_rng_state()
        file = train_autoencoder(digits[1], digits[1], tmp_path / f"{k}.safetensors", 2, seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        tensors.append(read_tensors(file, "an autoencoder")[0])
    first, again, other = tensors
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name in first:
        assert not torch.allclose(first[name], other[name], rtol=1e-2, atol=1e-3)


def test_penalty_makes_codes_small(digits, tmp_path, monkeypatch):
    spreads = []
    for penalty in (0.0, 1.0):
        monkeypatch.setattr("experiments.autoencoder.PENALTY", penalty)
        file = train_autoencoder(*digits, tmp_path / f"{penalty}.safetensors", 10)
        spreads.append(read_tensors(file, "an autoencoder")[1]["code_spread"])
    assert spreads[1] < spreads[0] / 3


@pytest.mark.parametrize("fault", ["missing", "shape", "nan", "kind", "no file"])
def test_invalid_files_raise(tmp_path, fault):
    tensors = dict(Autoencoder(width=3).state_dict())
    if fault == "missing":
        del tensors["encoder.0.bias"]
    elif fault == "shape":
        tensors["decoder.0.bias"] = torch.zeros(4)
    elif fault == "nan":
        tensors["decoder.0.bias"] = torch.full((3,), torch.nan)
    file = tmp_path / "model.safetensors"
    if fault != "no file":
        write_tensors(file, tensors, {"kind": "geonet" if fault == "kind" else "autoencoder"})
    with pytest.raises(FileError, match="model.safetensors"):
        load_autoencoder(file)


def test_shipped_autoencoder_is_accurate():
    """Its error is small on digits of the test set, and codes stay below their bound."""
    model, images = load_autoencoder(), sample_digits().images
    assert squared_error(model, images) < 0.01
    assert load_autoencoder(SHIPPED).encode(as_rows(images)).abs().max() < 8.9
