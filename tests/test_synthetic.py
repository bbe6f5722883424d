"""Synthetic densities: laws of random fields and blurs, properties of kinds, signed distances."""

import math
from dataclasses import replace

import pytest
import torch

from geonet.synthetic import (
    CUBE,
    KINDS,
    SQUARE,
    bernoulli,
    box_distance,
    cell_centres,
    fill,
    gaussian_fields,
    log_uniform,
    normalise_mean,
    random_blur,
    segment_distance,
    star_distance,
    uniform,
)

COUNT = {2: 150, 3: 40}
CONFIGS = pytest.mark.parametrize("config", [SQUARE, CUBE], ids=["2d", "3d"])


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def space(values):
    """Return the axes of (count, n, …, n) except the first."""
    return tuple(range(1, values.ndim))


@pytest.fixture(scope="module")
def samples():
    """Many densities by kind and dimension."""
    return {
        (name, config.dimension): kind(seeded(), COUNT[config.dimension], config)
        for config in (SQUARE, CUBE)
        for name, (kind, _) in KINDS.items()
    }


# ---- kinds


@CONFIGS
@pytest.mark.parametrize("name", KINDS)
def test_densities_are_finite_non_negative_and_different(samples, config, name):
    """Nearly all have mass; the others lie outside of the box and are replaced by uniform ones."""
    values = samples[name, config.dimension]
    assert values.shape == (COUNT[config.dimension], *config.shape)
    assert values.dtype == torch.float32
    assert bool(torch.isfinite(values).all()) and float(values.min()) >= 0
    has_mass = values.mean(space(values)) > 1e-5
    assert float(has_mass.float().mean()) > 0.9
    flat = normalise_mean(values[has_mass], config.dimension).flatten(1)
    assert float((flat.double().mean(1) - 1).abs().max()) < 1e-6
    assert float(torch.cdist(flat, flat).fill_diagonal_(torch.inf).min()) > 1e-2


@CONFIGS
@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_cells_and_reproducible_by_seed(config, name):
    kind, _ = KINDS[name]
    for cells in (10, 40):
        assert (
            kind(seeded(), 2, replace(config, cells=cells)).shape[1:] == (cells,) * config.dimension
        )
    small = replace(config, cells=10)
    first, again, other = (kind(seeded(seed), 4, small) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@CONFIGS
@pytest.mark.parametrize("name", ["shapes", "strokes"])
def test_shapes_and_strokes_have_edges_and_empty_space(samples, config, name):
    """Most leave most cells below a thousandth of the maximum; a blur of 2 cells has slope 0.2."""
    values = samples[name, config.dimension]
    values = values / values.amax(space(values), keepdim=True)
    dark = (values < 1e-3).float().mean(space(values))
    assert float((dark > 0.5).float().mean()) > 0.8
    assert float(values.diff(dim=1).abs().amax(space(values)).min()) > 0.1


# ---- geometry


def area(distance, cells=200):
    return float(fill(distance, cells).mean())


def test_areas_of_filled_shapes():
    x = cell_centres(200, 2) - 0.5
    assert area(box_distance(x, 0.2, 0.3)) == pytest.approx(0.4 * 0.6, rel=1e-3)
    star = 5 * 0.4 * 0.2 * math.sin(math.pi / 5)  # ten triangles
    assert area(star_distance(x, 5, 0.4, 0.2)) == pytest.approx(star, rel=0.01)
    octagon = 8 / 2 * 0.4**2 * math.sin(math.tau / 8)
    assert area(star_distance(x, 4, 0.4, 0.4)) == pytest.approx(octagon, rel=0.01)
    start, along = torch.tensor([-0.2, 0.0]), torch.tensor([0.4, 0.0])
    capsule = 0.4 * 0.2 + math.pi * 0.1**2
    assert area(segment_distance(x, start, along) - 0.1) == pytest.approx(capsule, rel=0.01)


# ---- fields, blurs, random numbers


def test_uniform_log_uniform_and_bernoulli_numbers():
    """A fifth of 10,000 numbers lies below each fifth of the range, within five deviations."""
    n, levels = 10_000, torch.arange(1, 5) / 5
    for numbers in (
        uniform(seeded(), -1, 3, n) / 4 + 0.25,
        log_uniform(seeded(), 1, 10, n).log10(),
    ):
        assert float(numbers.min()) >= 0 and float(numbers.max()) <= 1
        assert float(((numbers[:, None] < levels).float().mean(0) - levels).abs().max()) < 0.02
    rates = bernoulli(seeded(), torch.tensor([[0.0], [0.3], [1.0]]), 3, n).float().mean(1)
    assert rates.tolist() == pytest.approx([0, 0.3, 1], abs=0.025)


@pytest.mark.parametrize(("dimension", "cells"), [(1, 200), (2, 24), (2, 64), (3, 24)])
def test_fields_have_mean_zero_and_variance_one(dimension, cells):
    fields = gaussian_fields(seeded(), 20, cells, dimension)
    assert fields.shape == (20, *(cells,) * dimension) and fields.dtype == torch.float32
    assert float(fields.mean(space(fields)).abs().max()) < 1e-4
    assert torch.allclose(fields.std(space(fields), correction=0), torch.ones(20), atol=1e-4)
    assert gaussian_fields(seeded(), 0, cells, dimension).shape == (0, *(cells,) * dimension)


def test_a_blur_is_a_gaussian_of_its_width():
    """A point in the middle gets the variance of the blur; the walls are far away."""
    values = torch.zeros(100, 33, 33)
    values[:, 16, 16] = 1
    after = random_blur(seeded(), values, 2.0)
    variance = (after.sum(2) * (torch.arange(33) - 16) ** 2).sum(1)
    width = uniform(seeded(), 0, 2, 100)  # drawn first
    wide = (after[:, 16, 16] < 1) & (width > 1.3)  # narrower ones are clipped at zero
    assert int(wide.sum()) > 10
    assert torch.allclose(variance[wide], width[wide] ** 2, rtol=1e-2)
