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
    root = sqrtm(a)
    expected = shift @ shift + (a + b - 2 * sqrtm(root @ b @ root).real).trace()
    path = geonet.geodesic(FIRST, SECOND, "bures")
    assert float(path.distance) ** 2 == pytest.approx(expected)


def test_one_dimension_by_hand():
    path = geonet.geodesic(gaussian([1.0], [[0.04]]), gaussian([3.0], [[0.25]]), "bures")
    assert float(path.distance) ** 2 == pytest.approx(4 + 0.09)
    assert path.trajectories(1.0, [[1.2]]).flatten().tolist() == pytest.approx([3.5])


def test_samples_carried_to_the_end_have_its_moments(generator):
    path = geonet.geodesic(FIRST, SECOND, "bures")
    start = FIRST.sample(100_000, generator)
    end = path.trajectories(1.0, start)
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
    with pytest.raises(InputError, match="no grid of their own; give grid="):
        path.density(0.5)
    with pytest.raises(GridError, match="10D, the grid is 1D"):
        path.density(0.5, grid=Grid(10))


def test_density_is_the_middle_gaussian():
    grid = Grid((60, 60), 0, 5)
    path = geonet.geodesic(FIRST, SECOND, "bures")
    assert float(l1(path.density(0.0, grid), FIRST.on(grid))) < 1e-12
    assert float(l1(path.density(1.0, grid), SECOND.on(grid))) < 1e-12


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (GaussianMixture.isotropic([[0.0], [1.0]], 1.0), gaussian([0.0], [[1.0]]), "2 components"),
        (FIRST, gaussian([0.0], [[1.0]]), "differ in dimension or batch"),
        (FIRST.on(Grid((8, 8), 0, 5)), SECOND, "both Gaussians on a grid, or both without"),
    ],
)
def test_what_is_not_a_pair_of_gaussians_is_refused(source, target, message):
    with pytest.raises(SolverError, match=message):
        geonet.geodesic(source, target, "bures")


def test_a_gridded_density_is_refused(pair_2d):
    plain = [geonet.Density(end.tensor, end.grid) for end in pair_2d]
    with pytest.raises(SolverError, match="bures needs Gaussians, this is a density on a grid"):
        geonet.geodesic(*plain, "bures")


def test_without_a_grid_it_prints_and_says_what_it_lacks(tmp_path):
    path = geonet.geodesic(FIRST, SECOND, "bures")
    assert repr(path) == "BuresGeodesic(2D, solver='bures')"
    with pytest.raises(InputError, match="without a grid has no report"):
        _ = path.report
    with pytest.raises(InputError, match="without a grid cannot be saved"):
        path.save(tmp_path / "p.npz", grid=Grid((8, 8), 0, 5))


def test_what_the_box_cuts_off_is_reported():
    path = geonet.geodesic(FIRST, SECOND, "bures", grid=Grid((40, 40), 0, 5))
    assert 0 < path.report.notes["mass outside the box"] < 1e-3
