import pytest
import torch
from scipy.stats import multivariate_normal

from experiments.point_clouds import BOX_CLOUDS, cell_masses, cloud_mixtures
from geonet import GaussianMixture, Grid
from geonet.errors import DensityError
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d

FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}
ANISOTROPIC = {2: mixtures_2d, 3: mixtures_3d}


def random_mixture(d, generator, batch=()):
    means = torch.rand(*batch, 3, d, dtype=torch.float64, generator=generator)
    factor = torch.randn(*batch, 3, d, d, dtype=torch.float64, generator=generator)
    covariances = factor @ factor.transpose(-1, -2) + 0.1 * torch.eye(d, dtype=torch.float64)
    return GaussianMixture(means, covariances, torch.rand(*batch, 3, generator=generator) + 0.1)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_pdf_equals_scipy(d, generator):
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


def test_batches(generator):
    mixture = random_mixture(2, generator, batch=(4,))
    points = torch.rand(3, 5, 2, dtype=torch.float64, generator=generator)
    together = mixture.pdf(points)
    assert together.shape == (4, 3, 5)
    assert torch.allclose(together[2], mixture[2].pdf(points))
    on_grid = mixture.to_density(Grid((8, 8)))
    assert on_grid.batch_shape == (4,)
    assert torch.allclose(on_grid[1].at(points), on_grid.at(points)[1])


def test_samples_have_the_right_moments(generator):
    mixture = random_mixture(2, generator, batch=(2,))
    samples = mixture.sample(200_000, generator)
    assert samples.shape == (2, 200_000, 2)
    mean = (mixture.weights[..., None] * mixture.means).sum(-2)
    assert torch.allclose(samples.mean(1), mean, atol=0.03)
    second = mixture.covariances + mixture.means[..., None] * mixture.means[..., None, :]
    expected = (mixture.weights[..., None, None] * second).sum(1)
    measured = samples.transpose(1, 2) @ samples / 200_000
    assert torch.allclose(measured, expected, atol=0.1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.0, 0.0]], [[[1.0]]]), "do not fit"),
        (([[0.0]], [[[-1.0]]]), "positive definite"),
        (([[0.0, 0.0]], [[[1.0, 0.5], [0.0, 1.0]]]), "symmetric"),
        (([[float("nan")]], [[[1.0]]]), "finite means"),
        (([[0.0]], [[[1.0]]], [0.0]), "Weights of a mixture must be positive"),
    ],
)
def test_invalid_mixtures_raise(arguments, message):
    with pytest.raises(DensityError, match=message):
        GaussianMixture(*arguments)
    for std in (-0.5, [0.1, 0.2, 0.3]):
        with pytest.raises(DensityError, match="deviations"):
            GaussianMixture.isotropic([[0.0], [1.0]], std)


def test_batches_can_be_sliced():
    batch = GaussianMixture.isotropic(torch.ones(3, 2, 1), 0.5)
    first, *_, last = batch
    assert len(batch) == 3 and len(batch[1:]) == 2
    assert first.means.shape == last.means.shape == (2, 1)
    with pytest.raises(DensityError, match="no batch axis"):
        len(first)
    assert first


# ---- Random families


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def fills(values, low, high):
    """Return whether values look uniform between the bounds, by range and mean."""
    spread = (values - low) / (high - low)
    inside = bool((spread >= 0).all() and (spread <= 1).all())
    return (
        inside and spread.min() < 0.02 and spread.max() > 0.98 and abs(spread.mean() - 0.5) < 0.04
    )


@pytest.mark.parametrize("d", ANISOTROPIC)
@pytest.mark.parametrize(
    ("narrow", "wide"), [((0.35, 0.4), (0.75, 0.9)), ((0.25, 0.3), (0.65, 0.8))]
)
def test_anisotropic_mixtures_are_as_documented(d, narrow, wide):
    mixture = ANISOTROPIC[d](400, seeded(), narrow=narrow, wide=wide)
    diagonal = mixture.covariances.diagonal(dim1=-2, dim2=-1)
    rows, columns = torch.triu_indices(d, d, offset=1)
    assert fills(mixture.means, 0.8, 4.2)
    assert fills(diagonal[:, :6], *narrow)
    assert fills(diagonal[:, 6:], *wide)
    assert fills(mixture.covariances[..., rows, columns], -0.1, 0.1)
    assert torch.equal(mixture.covariances, mixture.covariances.mT)
    assert torch.allclose(mixture.weights, torch.full((400, 12), 1 / 12, dtype=torch.float64))


def test_1d_mixtures_are_as_documented():
    for spread in ((0.5, 0.6), (0.3, 0.4)):
        mixture = mixtures_1d(400, seeded(), spread)
        assert fills(mixture.covariances.sqrt(), *spread)
        assert fills(mixture.means, 2.0, 8.0)


# ---- Point clouds


def scale_to_paper(lengths):
    """Scale lengths from [0, 5] to [−7, 7]."""
    return lengths * 14 / 5


def test_cloud_mixtures_are_as_documented():
    """Three equal isotropic Gaussians; the domain [−7, 7]² of the paper is scaled to [0, 5]²."""
    mixture = cloud_mixtures(400, seeded())
    assert mixture.means.shape == (400, 3, 2)
    assert Grid((25, 25), 0.0, 5.0) == BOX_CLOUDS
    assert fills(scale_to_paper(mixture.means) - 7, -3.0, 3.0)
    variances = mixture.covariances.diagonal(dim1=-2, dim2=-1)
    assert fills(scale_to_paper(variances.sqrt()), 0.9, 1.3)
    assert torch.equal(mixture.covariances, torch.diag_embed(variances))
    assert torch.equal(variances[..., 0], variances[..., 1])
    assert torch.allclose(mixture.weights, torch.full((400, 3), 1 / 3, dtype=torch.float64))


def test_cell_masses_are_integrals_over_the_cells():
    """Compare with midpoint sums on 12×12 finer cells, of second order."""
    mixture, cut = cloud_mixtures(3, seeded()), 12
    fine = BOX_CLOUDS.with_shape([cut * n for n in BOX_CLOUDS.shape])
    values = mixture.pdf(fine.points()) * fine.cell_volume
    expected = values.unflatten(-1, (-1, cut)).sum(-1).unflatten(-2, (-1, cut)).sum(-2)
    computed = cell_masses(mixture, BOX_CLOUDS)
    assert torch.allclose(computed, expected, rtol=5e-3, atol=1e-8)
    assert 0.997 < float(computed.sum((-2, -1)).min()) < 1


def test_mixtures_are_wrapped_on_periodic_axes(generator):
    grid = Grid((12, 9), (0, -1), (1, 1), periodic=(True, False))
    mixture = random_mixture(2, generator)
    points = grid.points()
    expected = sum(
        mixture.pdf(points + torch.tensor([k, 0.0], dtype=torch.float64)) for k in range(-40, 41)
    )
    expected = expected / (expected.sum() * grid.cell_volume)
    density = mixture.to_density(grid)
    assert torch.allclose(density.tensor, expected, rtol=1e-12)
    assert torch.allclose(density.at(points + torch.tensor([3.0, 0.0])), expected, rtol=1e-12)
    moved = GaussianMixture(mixture.means + 7 / 12 * torch.tensor([1, 0]), mixture.covariances)
    equal = GaussianMixture(mixture.means, mixture.covariances)
    rolled = equal.to_density(grid).tensor.roll(7, 0)
    assert torch.allclose(moved.to_density(grid).tensor, rolled, rtol=1e-10)
