"""Sensors read histograms of particles, the equations hold for the mixtures they are from."""

import pytest
import torch

from experiments.point_clouds import BOX_CLOUDS, PARTICLES, cell_masses, cloud_mixtures
from experiments.problems import Clouds, sample_histograms
from geonet.solvers.neural.deeponet import BasisCache
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build_model
from geonet.training.problems import sensor_points

COUNT = 6
CELLS = sensor_points(25, 2)  # the centres of the bins in the unit box


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def ends():
    return Clouds().draw(COUNT, seeded())


@pytest.mark.parametrize("end", [0, 1])
def test_histograms_are_relative_to_uniform(ends, end):
    histograms = ends[end].histograms
    assert histograms.shape == (COUNT, 25, 25) and histograms.dtype == torch.float32
    assert float(histograms.min()) == 0  # there are gaps
    means = histograms.double().mean((-2, -1))
    assert torch.allclose(means, torch.ones(COUNT, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("end", [0, 1])
def test_sensors_at_the_bins_read_the_histogram(ends, end):
    read = Clouds().read_sensors(ends[end], CELLS)
    assert read.dtype == torch.float32
    assert torch.allclose(read, ends[end].histograms.flatten(1), atol=1e-4)


def test_training_and_solver_read_the_same_sensors():
    """A model is asked with densities; its branches must see the same numbers as in training."""
    settings = GeONetSettings(
        dimension=2, sensors=9, rank=4, branch=Branch("mlp", 4, 2), trunk=Trunk("mlp", 4, 2)
    )
    model, problem = build_model(settings, 0).requires_grad_(False), Clouds()
    ends = [problem.read_sensors(end, sensor_points(9, 2)) for end in problem.draw(3, seeded())]
    trained = model.coefficients(*ends)
    solved = BasisCache(model).coefficients(*problem.draw_densities(3, seeded()))
    for a, b in zip(trained, solved, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("end", [0, 1])
def test_an_end_is_the_mixture_of_its_particles(ends, end, generator):
    mixture = cloud_mixtures(2 * COUNT, seeded())  # the draw begins with these
    unit = torch.rand(200, 2, generator=generator)
    expected = 25 * mixture.pdf(5 * unit.double()).chunk(2)[end]
    computed = ends[end](unit)
    assert computed.shape == (COUNT, 200) and computed.dtype == torch.float32
    assert torch.allclose(computed.double(), expected, rtol=2e-2, atol=1e-4)
    chi = _chi_square(ends[end].histograms, cell_masses(mixture, BOX_CLOUDS).chunk(2)[end])
    assert bool((chi < 1.35).all())  # so the particles are of this one and no other


def _chi_square(histograms, masses):
    """Σ (n − e)²/e per cell over cells with five particles or more, which is about one."""
    expected = PARTICLES * masses / masses.sum((-2, -1), keepdim=True)
    counts = PARTICLES * histograms.double() / 625
    full = expected > 5
    squares = torch.where(full, (counts - expected) ** 2 / expected.clamp(min=1), 0.0)
    return squares.sum((-2, -1)) / full.sum((-2, -1))


def test_counts_are_poisson_numbers():
    """Their mean is the mass of the cell, and so is their variance, in units of particles."""
    draws = 1_500
    mixture = cloud_mixtures(1, seeded())
    mixture = type(mixture)(
        *(part.expand(draws, *part.shape[1:]) for part in mixture.parameters().values())
    )
    expected = PARTICLES * cell_masses(mixture, BOX_CLOUDS)[0]
    densities = sample_histograms(mixture, BOX_CLOUDS, seeded())
    counts = PARTICLES * densities * BOX_CLOUDS.cell_volume  # the total varies by 2 % only
    full = expected > 10
    mean, variance = counts.mean(0)[full], counts.var(0)[full]
    off = (mean / expected[full] - 1) / (1 / (expected[full] * draws)).sqrt()
    assert float(off.abs().max()) < 5 and 0.8 < float(off.std()) < 1.2
    binomial = expected[full] * (1 - expected[full] / PARTICLES)  # given the total
    assert float((variance / binomial).mean()) == pytest.approx(1, abs=0.03)
    assert float((variance / binomial - 1).abs().max()) < 0.25  # six deviations of √(2/draws)


@pytest.mark.parametrize("end", [0, 1])
def test_validation_draws_the_pairs_of_training(ends, end):
    density = Clouds().draw_densities(COUNT, seeded())[end]
    assert torch.allclose(25 * density.tensor, ends[end].histograms.double(), atol=1e-5)
