import pytest
import torch

from geonet import GaussianMixture, Grid
from geonet.mixture import (
    BOX_1D,
    BOX_2D,
    BOX_3D,
    BOX_CLOUDS,
    cell_masses,
    clouds,
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


# ---- clouds of particles


def on_the_papers_box(lengths):
    """Lengths on [0, 5] as those on [−7, 7]."""
    return lengths * 14 / 5


def test_clouds_are_as_documented():
    """Three equal round lumps; the paper's particles are in [−7, 7]², ours in [0, 5]²."""
    mixture = clouds(400, seeded())
    assert mixture.means.shape == (400, 3, 2)
    assert Grid((25, 25), 0.0, 5.0) == BOX_CLOUDS
    assert fills(on_the_papers_box(mixture.means) - 7, -3.0, 3.0)
    variances = mixture.covariances.diagonal(dim1=-2, dim2=-1)
    assert fills(on_the_papers_box(variances.sqrt()), 0.9, 1.3)
    assert torch.equal(mixture.covariances, torch.diag_embed(variances))
    assert torch.equal(variances[..., 0], variances[..., 1])
    assert torch.allclose(mixture.weights, torch.full((400, 3), 1 / 3, dtype=torch.float64))


def test_every_lump_is_drawn_by_itself():
    mixture, again = (clouds(50, seeded()) for _ in range(2))
    drawn = torch.cat([mixture.means, mixture.covariances[..., :1, 0]], -1)
    assert len(drawn.unique()) == drawn.numel()
    assert torch.equal(mixture.means, again.means)
    assert torch.equal(mixture.covariances, again.covariances)


def test_hardly_a_particle_of_a_cloud_is_outside_the_box():
    inside = cell_masses(clouds(200, seeded()), BOX_CLOUDS).sum((-2, -1))
    assert float(inside.min()) > 0.997
    assert float(inside.max()) < 1


def lopsided(count):
    """Unequal weights, and means off any diagonal."""
    generator = seeded(8)
    means = 3 * torch.rand(count, 2, 2, dtype=torch.float64, generator=generator)
    spread = 0.5 + torch.rand(count, 2, dtype=torch.float64, generator=generator)
    return GaussianMixture.isotropic(means, spread, torch.tensor([0.2, 0.8]).expand(count, 2))


@pytest.mark.parametrize(
    ("mixture", "grid"),
    [(clouds(3, seeded()), BOX_CLOUDS), (lopsided(3), Grid((4, 7), (-1.0, 0.0), (2.0, 5.0)))],
)
def test_cell_masses_are_integrals_over_the_cells(mixture, grid):
    """Against sums over cells cut in 12×12, whose error falls with the square of their size."""
    cut = 12
    fine = grid.with_shape([cut * n for n in grid.shape])
    values = mixture.pdf(fine.points()) * fine.cell_volume
    expected = values.unflatten(-1, (-1, cut)).sum(-1).unflatten(-2, (-1, cut)).sum(-2)
    computed = cell_masses(mixture, grid)
    assert computed.shape == (3, *grid.shape) and computed.dtype == torch.float64
    assert torch.allclose(computed, expected, rtol=5e-3, atol=1e-8)


def test_cell_masses_add_up_to_all_the_mass():
    """On a box that leaves nothing outside, with cells of any size; coarse cells hold fine ones."""
    wide = Grid((30, 40), -20.0, 25.0)
    masses = cell_masses(lopsided(5), wide)
    assert float(masses.min()) >= 0
    assert torch.allclose(masses.sum((-2, -1)), torch.ones(5, dtype=torch.float64), atol=1e-12)
    coarse = cell_masses(lopsided(5), wide.with_shape((15, 10)))
    assert torch.allclose(
        coarse, masses.unflatten(-1, (10, 4)).sum(-1).unflatten(-2, (15, 2)).sum(-2), atol=1e-12
    )
