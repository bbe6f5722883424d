import pytest
import torch

from geonet.measures.families import (
    BOX_1D,
    BOX_2D,
    BOX_3D,
    mixtures_1d,
    mixtures_2d,
    mixtures_3d,
)

FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}
ANISOTROPIC = {2: mixtures_2d, 3: mixtures_3d}


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def fills(values, low, high):
    """Whether values are uniform between the bounds, as far as their range and mean can tell."""
    spread = (values - low) / (high - low)
    inside = bool((spread >= 0).all() and (spread <= 1).all())
    return (
        inside and spread.min() < 0.02 and spread.max() > 0.98 and abs(spread.mean() - 0.5) < 0.04
    )


@pytest.mark.parametrize("d", FAMILIES)
def test_boxes_have_the_dimension_of_the_family(d):
    family, box = FAMILIES[d]
    mixture = family(3, seeded())
    assert box.dimension == mixture.dimension == d
    assert mixture.means.shape == (3, 12 if d > 1 else 6, d)


@pytest.mark.parametrize("d", ANISOTROPIC)
def test_means_variances_and_covariances_are_as_documented(d):
    mixture = ANISOTROPIC[d](400, seeded())
    diagonal = mixture.covariances.diagonal(dim1=-2, dim2=-1)
    rows, columns = torch.triu_indices(d, d, offset=1)
    assert fills(mixture.means, 0.8, 4.2)
    assert fills(diagonal[:, :6], 0.35, 0.4)
    assert fills(diagonal[:, 6:], 0.75, 0.9)
    assert fills(mixture.covariances[..., rows, columns], -0.1, 0.1)
    assert torch.equal(mixture.covariances, mixture.covariances.mT)
    assert torch.allclose(mixture.weights, torch.full((400, 12), 1 / 12, dtype=torch.float64))


@pytest.mark.parametrize("d", ANISOTROPIC)
def test_every_entry_is_drawn_by_itself(d):
    mixture = ANISOTROPIC[d](50, seeded())
    rows, columns = torch.triu_indices(d, d)
    drawn = torch.cat([mixture.means, mixture.covariances[..., rows, columns]], -1)
    assert len(drawn.unique()) == drawn.numel()


@pytest.mark.parametrize("d", ANISOTROPIC)
def test_variances_can_be_out_of_distribution(d):
    mixture = ANISOTROPIC[d](100, seeded(), narrow=(0.25, 0.3), wide=(0.65, 0.8))
    diagonal = mixture.covariances.diagonal(dim1=-2, dim2=-1)
    assert fills(diagonal[:, :6], 0.25, 0.3)
    assert fills(diagonal[:, 6:], 0.65, 0.8)


def test_deviations_in_1d_can_be_out_of_distribution():
    for spread in ((0.5, 0.6), (0.3, 0.4)):
        mixture = mixtures_1d(400, seeded(), spread)
        assert fills(mixture.covariances.sqrt(), *spread)
        assert fills(mixture.means, 2.0, 8.0)


@pytest.mark.parametrize("d", FAMILIES)
def test_draws_follow_the_generator(d):
    family, generator = FAMILIES[d][0], seeded()
    first, second = family(3, generator), family(3, generator)
    again = family(3, seeded())
    assert torch.equal(first.means, again.means)
    assert torch.equal(first.covariances, again.covariances)
    assert not torch.equal(first.means, second.means)


@pytest.mark.parametrize("d", FAMILIES)
def test_most_of_the_mass_lies_in_the_box(d):
    family, box = FAMILIES[d]
    mass = family(20, seeded()).on(box.with_shape(20)).mass
    assert float(mass.min()) > (0.99 if d == 1 else 0.6)
    assert float(mass.max()) < 1 + 1e-6
