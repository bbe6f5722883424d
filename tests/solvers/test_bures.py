"""The closed form between Gaussians."""

import pytest
import torch
from scipy.linalg import sqrtm

import geonet
from geonet import GaussianMixture, Grid
from geonet.errors import GridError, InputError, SolverError
from geonet.metrics import l1


def gaussian(mean, covariance):
    return GaussianMixture([mean], [covariance])


FIRST = gaussian([1.7, 2.2], [[0.2, 0.05], [0.05, 0.3]])
SECOND = gaussian([2.8, 2.6], [[0.3, -0.05], [-0.05, 0.15]])


def test_distance_is_the_bures_formula():
    a, b = FIRST.covariances[0].numpy(), SECOND.covariances[0].numpy()
    shift = (SECOND.means - FIRST.means)[0].numpy()
    half = sqrtm(a)
    expected = shift @ shift + (a + b - 2 * sqrtm(half @ b @ half).real).trace()
    path = geonet.geodesic(FIRST, SECOND, "bures")
    assert float(path.distance) ** 2 == pytest.approx(expected)


def test_1d_by_hand():
    path = geonet.geodesic(gaussian([1.0], [[0.04]]), gaussian([3.0], [[0.25]]), "bures")
    assert float(path.distance) ** 2 == pytest.approx(4 + 0.09)
    assert path.trajectories(1.0, [[1.2]]).flatten().tolist() == pytest.approx([3.5])


def test_trajectories_have_the_moments_of_the_target(generator):
    path = geonet.geodesic(FIRST, SECOND, "bures")
    end = torch.as_tensor(path.trajectories(1.0, FIRST.sample(100_000, generator)))
    assert torch.allclose(end.mean(0), SECOND.means[0], atol=1e-2)
    assert torch.allclose(end.T.cov(), SECOND.covariances[0], atol=1e-2)


def test_high_dimension_needs_no_grid(generator):
    d = 10
    factor = torch.randn(2, d, d, dtype=torch.float64, generator=generator)
    covariances = factor @ factor.transpose(1, 2) + torch.eye(d)
    path = geonet.geodesic(
        *(GaussianMixture(torch.zeros(1, d), c[None]) for c in covariances), "bures"
    )
    assert path.velocity([0.0, 0.5], torch.zeros(3, d)).shape == (2, 3, d)
    with pytest.raises(InputError, match="give grid="):
        path.density(0.5)
    with pytest.raises(GridError, match="10D"):
        path.density(0.5, grid=Grid(10))


def test_ends_are_exact():
    grid = Grid((60, 60), 0, 5)
    path = geonet.geodesic(FIRST, SECOND, "bures")
    assert float(l1(path.density(0.0, grid), FIRST.to_density(grid))) < 1e-12
    assert float(l1(path.density(1.0, grid), SECOND.to_density(grid))) < 1e-12


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (GaussianMixture.isotropic([[0.0], [1.0]], 1.0), gaussian([0.0], [[1.0]]), "2 components"),
        (FIRST, gaussian([0.0], [[1.0]]), "differ in dimension or batch"),
        (FIRST.to_density(Grid((8, 8), 0, 5)), SECOND, "two densities or two Gaussian mixtures"),
    ],
)
def test_other_ends_raise(source, target, message):
    with pytest.raises(SolverError, match=message):
        geonet.geodesic(source, target, "bures")


def test_densities_without_a_formula_raise(pair_2d):
    plain = [geonet.Density(end.tensor, end.grid) for end in pair_2d]
    with pytest.raises(SolverError, match="needs Gaussians"):
        geonet.geodesic(*plain, "bures")


def test_paths_without_a_grid(tmp_path):
    path = geonet.geodesic(FIRST, SECOND, "bures")
    assert repr(path) == "BuresGeodesic(2D, solver='bures')"
    with pytest.raises(InputError, match="report"):
        _ = path.report
    with pytest.raises(InputError, match="saved"):
        path.save(tmp_path / "p.npz", grid=Grid((8, 8), 0, 5))


def test_mass_outside_the_box_is_reported():
    path = geonet.geodesic(FIRST, SECOND, "bures", grid=Grid((40, 40), 0, 5))
    assert 0 < path.report.info["mass outside the box"] < 1e-3
