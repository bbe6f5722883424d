import pytest
import torch
from scipy.stats import multivariate_normal

from geonet import GaussianMixture, Grid
from geonet.errors import DensityError


def random_mixture(d, generator, batch=()):
    means = torch.rand(*batch, 3, d, dtype=torch.float64, generator=generator)
    factor = torch.randn(*batch, 3, d, d, dtype=torch.float64, generator=generator)
    covariances = factor @ factor.transpose(-1, -2) + 0.1 * torch.eye(d, dtype=torch.float64)
    return GaussianMixture(means, covariances, torch.rand(*batch, 3, generator=generator) + 0.1)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_density_is_scipys(d, generator):
    mixture = random_mixture(d, generator)
    points = torch.rand(7, d, dtype=torch.float64, generator=generator)
    expected = sum(
        w * multivariate_normal(m, c).pdf(points.numpy())
        for w, m, c in zip(
            mixture.weights.tolist(),
            mixture.means.numpy(),
            mixture.covariances.numpy(),
            strict=True,
        )
    )
    assert torch.allclose(mixture.pdf(points), torch.as_tensor(expected).reshape(7))


def test_a_batch_is_its_parts(generator):
    mixture = random_mixture(2, generator, batch=(4,))
    points = torch.rand(3, 5, 2, dtype=torch.float64, generator=generator)
    together = mixture.pdf(points)
    assert together.shape == (4, 3, 5)
    assert torch.allclose(together[2], mixture[2].pdf(points))
    on_grid = mixture.on(Grid((8, 8)))
    assert on_grid.leading == (4,)
    assert torch.allclose(on_grid[1].at(points), on_grid.at(points)[1])


def test_on_a_grid_it_is_renormalised_to_the_box(generator):
    density = random_mixture(2, generator).on(Grid((30, 30)))
    assert float(density.tensor.sum() * density.grid.cell_volume) == pytest.approx(1)
    assert 0 < float(density.mass) < 1


def test_samples_have_the_moments(generator):
    mixture = random_mixture(2, generator, batch=(2,))
    samples = mixture.sample(200_000, generator)
    assert samples.shape == (2, 200_000, 2)
    mean = (mixture.weights[..., None] * mixture.means).sum(-2)
    assert torch.allclose(samples.mean(1), mean, atol=0.03)
    second = mixture.covariances + mixture.means[..., None] * mixture.means[..., None, :]
    expected = (mixture.weights[..., None, None] * second).sum(1)
    measured = samples.transpose(1, 2) @ samples / 200_000
    assert torch.allclose(measured, expected, atol=0.1)


def test_samples_follow_the_generator():
    mixture = GaussianMixture.isotropic([[0.0], [1.0]], [0.1, 0.2])
    first, second = (mixture.sample(5, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.0, 0.0]], [[[1.0]]]), "do not fit"),
        (([0.0], [[1.0]]), "do not fit"),
        (([[0.0]], [[[-1.0]]]), "positive definite"),
        (([[0.0, 0.0]], [[[1.0, 0.5], [0.0, 1.0]]]), "symmetric"),
        (([[float("nan")]], [[[1.0]]]), "finite means"),
        (([[0.0]], [[[1.0]]], [0.0]), "Weights of a mixture must be positive"),
    ],
)
def test_what_is_not_a_mixture_is_refused(arguments, message):
    with pytest.raises(DensityError, match=message):
        GaussianMixture(*arguments)


@pytest.mark.parametrize("std", [-0.5, 0.0, float("inf"), [0.1, 0.2, 0.3]])
def test_impossible_deviations_are_refused(std):
    with pytest.raises(DensityError, match="deviations"):
        GaussianMixture.isotropic([[0.0], [1.0]], std)


def test_the_callers_tensors_are_not_shared():
    means = torch.zeros(1, 1, dtype=torch.float64)
    mixture = GaussianMixture.isotropic(means, 1.0)
    means += 5
    assert float(mixture.means) == 0


def test_a_batch_can_be_unpacked_and_sliced():
    batch = GaussianMixture.isotropic(torch.ones(3, 2, 1), 0.5)
    first, *_, last = batch
    assert len(batch) == 3 and len(batch[1:]) == 2
    assert first.means.shape == last.means.shape == (2, 1)
    with pytest.raises(DensityError, match="no batch axis"):
        len(first)
    assert first
