"""Pairs of digits, as images and as codes, with the last tenth held out."""

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
from geonet import Density, Grid
from geonet.solvers.neural.model import write_tensors
from geonet.training.problems import sensor_points
from geonet.training.user_data import DensityDataset

GRIDS = [Grid(9, 0.0, 5.0), Grid((6, 7), (1.0, 2.0), (3.0, 6.0))]


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def centres(grid):
    """Of the cells, in the unit box."""
    return Grid(grid.shape).points().reshape(-1, grid.dimension).float()


def rows_of(values, density):
    """Which densities of the set these are, given relative to uniform, one index for each."""
    relative = density.tensor.flatten(1) * density.grid.volume
    off = (values.double().flatten(1)[:, None] - relative).abs().amax(-1)
    assert float(off.amin(1).max()) < 1e-4
    return off.argmin(1).tolist()


def some(count, grid):
    values = torch.rand(count, *grid.shape, dtype=torch.float64, generator=seeded(5))
    return Density(values, grid)


@pytest.fixture(scope="module")
def images():
    return sample_digits().images[::25]  # four of each class


@pytest.fixture
def small_mnist(monkeypatch, images):
    """A world in which MNIST's training set has 40 digits and no other is asked for."""
    monkeypatch.setattr(module, "mnist", lambda part: {"train": Digits(images, images)}[part])
    return images


# ---- any set


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(("count", "seen"), [(10, 8), (30, 27), (39, 35)])
def test_the_last_tenth_is_held_out(grid, count, seen):
    densities = some(count, grid)
    pool = DensityDataset(densities)
    assert pool.box == grid
    for end in pool.draw(300, seeded()):
        assert set(rows_of(end(centres(grid)), densities)) == set(range(seen))
    for end in pool.draw_densities(300, seeded()):
        assert end.grid == grid and end.tensor.dtype == torch.float64
        assert set(rows_of(end.tensor * grid.volume, densities)) == set(range(seen, count))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_ends_are_splines_through_the_cells(grid):
    """Each takes its value at the centres; in between it is what a solver reads of a density."""
    densities = some(10, grid)
    end = DensityDataset(densities).draw(5, seeded())[0]
    computed = end(centres(grid))
    assert computed.shape == (5, grid.size) and computed.dtype == torch.float32
    rows = rows_of(computed, densities)
    unit = torch.rand(30, grid.dimension, generator=seeded())
    lengths = torch.tensor(grid.lengths, dtype=torch.float64)
    there = densities.at(grid.lower_tensor + unit.double() * lengths) * grid.volume
    assert torch.allclose(end(unit).double(), there[rows], atol=1e-4)


def test_ends_are_chosen_apart_and_by_the_seed():
    densities, generator = some(40, GRIDS[0]), seeded()
    pool, cells = DensityDataset(densities), centres(GRIDS[0])
    draws = [
        tuple(rows_of(end(cells), densities))
        for draw in (pool.draw(20, generator), pool.draw(20, generator))
        for end in draw
    ]
    assert len(set(draws)) == 4
    again = [tuple(rows_of(end(cells), densities)) for end in pool.draw(20, seeded())]
    assert again == draws[:2]
    held = [tuple(rows_of(end.tensor * 5, densities)) for end in pool.draw_densities(20, seeded())]
    assert held[0] != held[1]


# ---- images


def test_images_are_blurred_and_nowhere_zero(small_mnist):
    pool = digit_images()
    expected = as_densities(small_mnist, BLUR, FLOOR)
    assert pool.box == Grid((28, 28)) and len(pool.values) == 40
    assert torch.allclose(pool.values.double(), expected.tensor, atol=1e-5)  # on a box of volume one
    assert float(pool.values.min()) >= 0.99 * FLOOR
    means = pool.values.double().mean((-2, -1))
    assert torch.allclose(means, torch.ones_like(means), atol=1e-5)


def test_sensors_read_the_pixels(small_mnist):
    pool = digit_images()
    end = pool.draw(8, seeded())[0]
    rows = rows_of(pool.read_sensors(end, sensor_points(28, 2)), as_densities(small_mnist, BLUR, FLOOR))
    assert len(set(rows)) > 1


# ---- codes


def test_codes_are_those_of_the_shipped_autoencoder(small_mnist):
    pool = digit_codes()
    assert pool.box == CODE_BOX == Grid(32, 0.0, 5.0)
    codes = load_autoencoder(SHIPPED).encode(as_rows(small_mnist)).double()
    assert len(codes.unique(dim=0)) == 40
    shifted = codes + 10
    assert torch.allclose(
        5 * pool.values.double(), shifted / shifted.mean(1, keepdim=True), rtol=1e-5, atol=0
    )


def test_codes_can_be_of_another_autoencoder(small_mnist, tmp_path):
    weights, kind = Autoencoder(width=5).state_dict(), {"kind": "autoencoder"}
    file = write_tensors(tmp_path / "other.safetensors", weights, kind)
    ours, theirs = digit_codes(file).values, digit_codes().values
    expected = code_densities(load_autoencoder(file).encode(as_rows(small_mnist)))
    assert torch.allclose(ours.double(), expected.tensor, rtol=1e-5)
    assert not torch.allclose(ours, theirs, rtol=1e-2)


def test_densities_of_codes_lead_back_to_the_codes():
    codes = 18 * torch.rand(7, 32, generator=seeded()) - 9
    densities = code_densities(codes)
    assert densities.grid == CODE_BOX and densities.batch_shape == (7,)
    assert float(densities.tensor.min()) > 0
    back = codes_of(densities.tensor, densities.mass)
    assert back.shape == (7, 32)
    assert torch.allclose(back, codes.double(), atol=1e-9)


def test_frames_on_the_way_lead_back_to_codes_too():
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
    """Whatever the weights and the image."""
    assert BOUND == 9
    model = Autoencoder().requires_grad_(False)
    for weights in model.encoder.parameters():
        weights.copy_(size * torch.randn(weights.shape, generator=seeded()))
    codes = model.encode(torch.rand(50, 784, generator=seeded(4)))
    assert codes.shape == (50, 32)
    assert float(codes.abs().max()) <= 9
    assert float(code_densities(codes).tensor.min()) > 0


def test_small_codes_are_not_bent():
    model = Autoencoder().requires_grad_(False)
    rows = torch.rand(5, 784, generator=seeded())
    straight = model.encoder(rows)
    assert float(straight.abs().max()) < 1
    assert torch.allclose(model.encode(rows), straight, rtol=5e-3)


def test_decoded_images_are_images():
    model = Autoencoder().requires_grad_(False)
    images = model.decode(18 * torch.rand(5, 32, generator=seeded()) - 9)
    assert images.shape == (5, 784)
    assert float(images.min()) > 0 and float(images.max()) < 1
