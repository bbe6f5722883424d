import pytest
import torch

import geonet
from geonet import Density, GaussianMixture, Grid
from geonet.errors import InputError
from geonet.evaluation import known_map_geodesic, random_potential
from geonet.metrics import l1, mass_error
from geonet.numerics.cosine import CosineSeries

SHAPES = {1: 200, 2: 64, 3: 24}


def example(d, generator, n=None):
    grid = Grid((n or SHAPES[d],) * d, 0.0, 2.0)
    means = 0.4 + 1.2 * torch.rand(3, d, dtype=torch.float64, generator=generator)
    source = GaussianMixture.isotropic(means, 0.5).on(grid)
    return known_map_geodesic(source, random_potential(grid, generator))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_target_is_the_pushed_forward_source(d, generator):
    """∫g(∇φ(x)) dμ_0 = ∫g dμ_1 for a test function g."""
    path = example(d, generator)
    points = path.grid.points().reshape(-1, d)
    image = path.trajectories(1.0, points)

    def g(x):
        return torch.sin(2 * x).sum(-1) + (x**2).prod(-1)

    carried = (g(image) * path.source.tensor.reshape(-1)).sum()
    assert float(carried) == pytest.approx(
        float((g(points) * path.target.tensor.reshape(-1)).sum()), rel=2e-3
    )
    assert float(mass_error(path.density([0.3, 0.7])).max()) < 1e-3


def test_one_dimension_is_the_quantile_path(generator):
    path = example(1, generator)
    exact = geonet.geodesic(path.source, path.target, "quantile")
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=1e-4)
    assert float(l1(path.density(0.5), exact.density(0.5))) < 2e-3


@pytest.mark.parametrize("d", [1, 2, 3])
def test_resolution_does_not_matter(d, generator):
    """The density at a point is exact, whatever grid it is asked on."""
    path = example(d, generator, n=12)
    finer = path.density(0.5, path.grid.with_shape(36)).tensor
    centres = finer[(slice(1, None, 3),) * d]
    assert torch.allclose(centres, path.density(0.5).tensor, atol=1e-8)


def test_potentials_are_convex_up_to_their_strength(generator):
    grid = Grid((16, 16))
    _, hessian = random_potential(grid, generator, strength=0.8).derivatives_on(grid.with_shape(50))
    eigenvalues = torch.linalg.eigvalsh(hessian.reshape(2, 2, -1).movedim(-1, 0))
    assert 0.7 < float(eigenvalues.abs().max()) < 0.85


def test_bad_input_is_refused(generator):
    grid = Grid((8, 8))
    potential = random_potential(grid, generator)
    with pytest.raises(InputError, match="strength is 1"):
        random_potential(grid, generator, strength=1.0)
    with pytest.raises(InputError, match="on the same box"):
        known_map_geodesic(Density(torch.ones(8, 8), Grid((8, 8), 0, 2)), potential)
    with pytest.raises(InputError, match="positive source"):
        known_map_geodesic(Density(torch.eye(8), grid), potential)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_series_derivatives_are_autograds(d, generator):
    grid = Grid((6, 5, 4)[:d], -1.0, 2.0)
    series = CosineSeries(torch.randn(grid.shape, dtype=torch.float64, generator=generator), grid)
    points = -1 + 3 * torch.rand(9, d, dtype=torch.float64, generator=generator)
    _, gradient, hessian = series.at(points)
    for n, x in enumerate(points):
        own = torch.autograd.functional.jacobian(lambda p: series.at(p[None])[0][0], x)
        assert torch.allclose(own, gradient[n])
        own = torch.autograd.functional.hessian(lambda p: series.at(p[None])[0][0], x)
        assert torch.allclose(own, hessian[n])
    centres = grid.points().reshape(-1, d)
    assert torch.allclose(series.values_on(grid).reshape(-1), series.at(centres)[0])
    on_grid = series.derivatives_on(grid)[1].reshape(d, d, -1).movedim(-1, 0)
    assert torch.allclose(on_grid, series.at(centres)[2])
    through = CosineSeries.through(series.values_on(grid), grid)
    assert torch.allclose(through.coefficients, series.coefficients)
