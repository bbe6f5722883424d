import math

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.func import grad, hessian, vmap

from geonet.operators.jets import Jet
from geonet.training.residuals import boundary, continuity, hamilton_jacobi

# At its first jvp torch warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

DIMENSIONS = [1, 2, 3]
EPSILON = 0.3


def jet_of(function, points, times, second="hessian"):
    """The jet of f(x, t) by autograd: value, gradient, rate and second derivatives."""
    d = points.shape[1]
    curvature = vmap(hessian(function))(points, times)
    rows, columns = torch.triu_indices(d, d)
    seconds = {
        "none": points.new_zeros(0, len(points)),
        "laplacian": curvature.diagonal(dim1=1, dim2=2).sum(1)[None],
        "hessian": curvature[:, rows, columns].T,
    }[second]
    value = vmap(function)(points, times)[None]
    gradient = vmap(grad(function))(points, times).T
    rate = vmap(grad(function, argnums=1))(points, times)[None]
    return Jet(torch.cat([value, gradient, rate, seconds]), d, second)


def gaussian(x, mean, covariance):
    z = x - mean
    exponent = -0.5 * z @ torch.linalg.inv(covariance) @ z
    return exponent.exp() / (math.tau ** len(mean) * torch.linalg.det(covariance)).sqrt()


def covariance(d, generator, commuting=False):
    factor = torch.randn(d, d, dtype=torch.float64, generator=generator)
    made = 0.5 * torch.eye(d, dtype=torch.float64) + 0.3 * factor @ factor.T
    return torch.diag(made.diagonal()) if commuting else made


def root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.sqrt() @ vectors.T


def geodesic(d, commuting, generator):
    """μ and u between two Gaussians: x ↦ m1 + A(x − m0) is the optimal map.

    u is quadratic, its curvature (A − I)M⁻¹ with M = (1 − t)I + tA.
    """
    start, end = torch.randn(2, d, dtype=torch.float64, generator=generator)
    before, after = (covariance(d, generator, commuting) for _ in range(2))
    half = root(before)
    inverse = torch.linalg.inv(half)
    A = inverse @ root(half @ after @ half) @ inverse
    one, shift = torch.eye(d, dtype=torch.float64), end - start

    def density(x, t):
        M = (1 - t) * one + t * A
        return gaussian(x, start + t * shift, M @ before @ M)

    def potential(x, t):
        z = x - start - t * shift
        K = (A - one) @ torch.linalg.inv((1 - t) * one + t * A)
        return shift @ z + 0.5 * z @ K @ z + 0.5 * t * shift @ shift

    ends = tuple(
        MultivariateNormal(m, S) for m, S in ((start, before), (end, (after + after.T) / 2))
    )
    return density, potential, ends


def bridge(d, generator):
    """μ = f g with ∂t f = εΔf and ∂t g = −εΔg, sums of Gaussians, and u = −2ε log f."""
    one = torch.eye(d, dtype=torch.float64)
    means = torch.randn(4, d, dtype=torch.float64, generator=generator)
    covariances = [covariance(d, generator) for _ in range(4)]

    def f(x, t):
        return sum(gaussian(x, means[k], covariances[k] + 2 * EPSILON * t * one) for k in (0, 1))

    def g(x, t):
        spread = 2 * EPSILON * (1 - t) * one
        return sum(gaussian(x, means[k], covariances[k] + spread) for k in (2, 3))

    return f, g


@pytest.fixture
def where(generator):
    def drawn(d):
        points = torch.randn(8, d, dtype=torch.float64, generator=generator)
        return points, torch.rand(8, dtype=torch.float64, generator=generator)

    return drawn


def vanishes(residual):
    return bool(residual.abs().max() < 1e-10)


def is_large(residual):
    return bool(residual.abs().max() > 1e-3)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("commuting", [True, False])
def test_vanish_on_the_geodesic_of_two_gaussians(d, commuting, where, generator):
    density, potential, _ = geodesic(d, commuting, generator)
    asked = where(d)
    mu, u = (jet_of(function, *asked) for function in (density, potential))
    assert vanishes(continuity(mu, u))
    assert vanishes(hamilton_jacobi(u))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_do_not_vanish_on_a_geodesic_with_a_wrong_sign_or_epsilon(d, where, generator):
    density, potential, _ = geodesic(d, False, generator)
    asked = where(d)
    mu, u = (jet_of(function, *asked) for function in (density, potential))
    down = u.like(-u.data)
    assert is_large(continuity(mu, down))
    assert is_large(hamilton_jacobi(down))
    assert is_large(continuity(mu, u, EPSILON))
    assert is_large(hamilton_jacobi(u, EPSILON))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_vanish_on_a_schrodinger_bridge(d, where, generator):
    f, g = bridge(d, generator)
    asked = where(d)
    mu = jet_of(lambda x, t: f(x, t) * g(x, t), *asked)
    u = jet_of(lambda x, t: -2 * EPSILON * f(x, t).log(), *asked)
    assert vanishes(continuity(mu, u, EPSILON))
    assert vanishes(hamilton_jacobi(u, EPSILON))
    for wrong in (0.0, -EPSILON, 2 * EPSILON):
        assert is_large(continuity(mu, u, wrong))
        assert is_large(hamilton_jacobi(u, wrong))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_the_potential_of_a_bridge_is_the_forward_one(d, where, generator):
    """2ε log g solves the equations with −ε instead: the signs of ε tell the two apart."""
    f, g = bridge(d, generator)
    asked = where(d)
    mu = jet_of(lambda x, t: f(x, t) * g(x, t), *asked)
    u = jet_of(lambda x, t: 2 * EPSILON * g(x, t).log(), *asked)
    assert vanishes(continuity(mu, u, -EPSILON))
    assert vanishes(hamilton_jacobi(u, -EPSILON))
    assert is_large(continuity(mu, u, EPSILON))
    assert is_large(hamilton_jacobi(u, EPSILON))


@pytest.mark.parametrize("epsilon", [0.0, EPSILON])
def test_need_no_more_derivatives_than_they_contain(epsilon, where, generator):
    density, potential, _ = geodesic(2, False, generator)
    asked = where(2)
    lean = "laplacian" if epsilon else "none"
    full = [jet_of(function, *asked) for function in (density, potential)]
    mu, u = jet_of(density, *asked, lean), jet_of(potential, *asked, "laplacian")
    assert torch.allclose(continuity(mu, u, epsilon), continuity(*full, epsilon), atol=1e-14)
    assert torch.allclose(
        hamilton_jacobi(u, epsilon), hamilton_jacobi(full[1], epsilon), atol=1e-14
    )


@pytest.mark.parametrize("d", DIMENSIONS)
def test_boundary_residual_vanishes_at_the_ends(d, where, generator):
    density, _, ends = geodesic(d, False, generator)
    points, times = where(d)
    for k in (0, 1):
        computed = vmap(density)(points, torch.full_like(times, k))
        given = [end.log_prob(points).exp() for end in ends]
        assert vanishes(boundary(computed, given[k]))
        assert is_large(boundary(computed, given[1 - k]))
        assert torch.equal(boundary(computed, 0 * computed), computed)
