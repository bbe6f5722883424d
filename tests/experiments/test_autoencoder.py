"""The autoencoder learns digits, and its file gives it back."""

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
from geonet.solvers.neural.model import PRETRAINED, read_tensors, write_tensors

EPOCHS = 20  # of 18 steps each


@pytest.fixture(scope="module")
def digits():
    """900 to learn from and 100 that are never seen, of every class."""
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


def test_rows_are_the_images_row_by_row(digits):
    rows = as_rows(digits[1])
    assert rows.shape == (100, 784) and rows.dtype == torch.float32
    assert torch.equal(rows.reshape(100, 28, 28), torch.from_numpy(digits[1] / np.float32(255)))
    assert float(rows.min()) == 0 and float(rows.max()) == 1


def test_reconstruction_is_better_than_the_mean_image(digits, trained):
    seen, unseen = digits
    mean = as_rows(seen).mean(0)
    error = squared_error(load_autoencoder(trained), unseen)
    assert error < 0.5 * float(((as_rows(unseen) - mean) ** 2).mean())


def test_the_header_has_the_measured_errors(digits, trained):
    _, header = read_tensors(trained, "an autoencoder")
    model = load_autoencoder(trained)
    codes = model.encode(as_rows(digits[1]))
    assert (header["kind"], header["epochs"], header["seed"]) == ("autoencoder", EPOCHS, 0)
    error = squared_error(model, digits[1])
    assert header["unseen_squared_error"] == pytest.approx(error, rel=1e-4)
    assert header["code_spread"] == pytest.approx(float(codes.std()), rel=1e-4)
    assert header["largest_code"] == pytest.approx(float(codes.abs().max()), rel=1e-4)
    assert header["seconds"] > 0


def test_the_file_holds_the_weights(digits, trained):
    """Loaded, they are frozen, and stay the same object until another file is asked for."""
    tensors, _ = read_tensors(trained, "an autoencoder")
    model = load_autoencoder(trained)
    state = model.state_dict()
    assert state.keys() == tensors.keys()
    assert all(torch.equal(state[name], tensors[name]) for name in tensors)
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert load_autoencoder(trained) is model


def test_any_width_is_loaded(tmp_path):
    model = Autoencoder(width=5).requires_grad_(False)
    file = write_tensors(tmp_path / "a.safetensors", model.state_dict(), {"kind": "autoencoder"})
    rows = torch.rand(3, 784)
    loaded = load_autoencoder(file)
    assert torch.equal(loaded.encode(rows), model.encode(rows))
    assert torch.equal(loaded.decode(loaded.encode(rows)), model.decode(model.encode(rows)))


def test_training_depends_on_its_own_seed_only(digits, tmp_path):
    """Whatever the caller drew before."""
    tensors = []
    for k, seed in enumerate((4, 4, 5)):
        torch.rand(3)
        before = torch.random.get_rng_state()
        file = train_autoencoder(digits[1], digits[1], tmp_path / f"{k}.safetensors", 2, seed)
        assert torch.equal(torch.random.get_rng_state(), before)
        tensors.append(read_tensors(file, "an autoencoder")[0])
    first, again, other = tensors
    assert all(torch.equal(first[name], again[name]) for name in first)
    for name in first:  # not merely rounded otherwise
        assert not torch.allclose(first[name], other[name], rtol=1e-2, atol=1e-3)


def test_large_codes_are_discouraged(digits, tmp_path, monkeypatch):
    spreads = []
    for penalty in (0.0, 1.0):
        monkeypatch.setattr("experiments.autoencoder.PENALTY", penalty)
        file = train_autoencoder(*digits, tmp_path / f"{penalty}.safetensors", 10)
        spreads.append(read_tensors(file, "an autoencoder")[1]["code_spread"])
    assert spreads[1] < spreads[0] / 3


def test_another_kind_of_file_is_rejected(tmp_path):
    file = PRETRAINED / "geonet-1d.safetensors"
    with pytest.raises(FileError) as error:
        load_autoencoder(file)
    assert str(error.value) == f"{file} holds a 'geonet' and no autoencoder; give another."
    nothing = tmp_path / "nothing.safetensors"
    with pytest.raises(FileError) as error:
        load_autoencoder(nothing)
    assert str(error.value) == f"There is no file {nothing}; check the path."


@pytest.mark.parametrize("odd", ["missing", "none", "more", "shape", "not finite"])
def test_weights_that_do_not_fit_are_rejected(tmp_path, odd):
    tensors = dict(Autoencoder(width=3).state_dict())
    if odd == "missing":
        del tensors["encoder.0.bias"]
    elif odd == "none":
        tensors["encoder.0.bias"] = torch.zeros(0)
    elif odd == "more":
        tensors["odd"] = torch.zeros(3)
    else:
        tensors["decoder.0.bias"] = torch.full((4 if odd == "shape" else 3,), torch.nan)
    file = tmp_path / "odd.safetensors"
    write_tensors(file, tensors, {"kind": "autoencoder"})
    message = "are not finite" if odd == "not finite" else "do not fit|has no layer"
    with pytest.raises(FileError, match=f"{message}.*; get the file again"):
        load_autoencoder(file)


def test_the_shipped_autoencoder_is_good():
    """On digits of the test set, which it never saw; the codes have room below their bound."""
    model, images = load_autoencoder(), sample_digits().images
    assert squared_error(model, images) < 0.01
    assert load_autoencoder(SHIPPED).encode(as_rows(images)).abs().max() < 8.9
