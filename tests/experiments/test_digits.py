"""Digits as images and as codes of the autoencoder."""

import pytest
import torch

from experiments import problems as module
from experiments.autoencoder import (
    BOUND,
    CODE_BOX,
    SHIPPED,
    Autoencoder,
    as_rows,
    code_densities,
    codes_of,
    load_autoencoder,
)
from experiments.mnist import Digits, as_densities, sample_digits
from experiments.problems import BLUR, FLOOR, digit_codes, digit_images
from geonet import Grid


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def rows_of(values, density):
    """Return the index of each density, given relative to uniform."""
    relative = density.tensor.flatten(1) * density.grid.volume
    off = (values.double().flatten(1)[:, None] - relative).abs().amax(-1)
    assert float(off.amin(1).max()) < 1e-4
    return off.argmin(1).tolist()


@pytest.fixture(scope="module")
def images():
    return sample_digits().images[::25]  # four of each class


@pytest.fixture
def small_mnist(monkeypatch, images):
    """Replace MNIST's training set by 40 digits."""
    monkeypatch.setattr(module, "mnist", lambda part: {"train": Digits(images, images)}[part])
    return images


# ---- images


def test_images_are_blurred_and_nowhere_zero(small_mnist):
    pool = digit_images()
    expected = as_densities(small_mnist, BLUR, FLOOR)
    assert pool.box == Grid((28, 28)) and len(pool.values) == 40
    assert torch.allclose(
        pool.values.double(), expected.tensor, atol=1e-5
    )  # on a box of volume one
    assert float(pool.values.min()) >= 0.99 * FLOOR
    means = pool.values.double().mean((-2, -1))
    assert torch.allclose(means, torch.ones_like(means), atol=1e-5)


# ---- codes


def test_codes_of_the_default_autoencoder(small_mnist):
    pool = digit_codes()
    assert pool.box == CODE_BOX == Grid(32, 0.0, 5.0)
    codes = load_autoencoder(SHIPPED).encode(as_rows(small_mnist)).double()
    assert len(codes.unique(dim=0)) == 40
    shifted = codes + 10
    assert torch.allclose(
        5 * pool.values.double(), shifted / shifted.mean(1, keepdim=True), rtol=1e-5, atol=0
    )


def test_codes_are_recovered_from_densities():
    codes = 18 * torch.rand(7, 32, generator=seeded()) - 9
    densities = code_densities(codes)
    assert densities.grid == CODE_BOX and densities.batch_shape == (7,)
    assert float(densities.tensor.min()) > 0
    back = codes_of(densities.tensor, densities.mass)
    assert back.shape == (7, 32)
    assert torch.allclose(back, codes.double(), atol=1e-9)


def test_codes_are_recovered_from_frames():
    """Densities (pairs, times, 32) with the mass of each."""
    codes = torch.rand(3, 32, generator=seeded())
    densities = code_densities(codes)
    frames = densities.tensor[:, None].expand(3, 5, 32)
    mass = densities.mass[:, None] * torch.linspace(1, 2, 5)
    back = codes_of(frames, mass)
    assert torch.allclose(back[:, 0], codes.double(), atol=1e-6)
    assert torch.allclose(back[:, 4], 2 * codes.double() + 10, atol=1e-6)


@pytest.mark.parametrize("size", [1.0, 1e6])
def test_codes_are_bounded_so_that_the_shift_makes_them_positive(size):
    assert BOUND == 9
    model = Autoencoder().requires_grad_(False)
    for weights in model.encoder.parameters():
        weights.copy_(size * torch.randn(weights.shape, generator=seeded()))
    codes = model.encode(torch.rand(50, 784, generator=seeded(4)))
    assert codes.shape == (50, 32)
    assert float(codes.abs().max()) <= 9
    assert float(code_densities(codes).tensor.min()) > 0
