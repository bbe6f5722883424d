import math

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.func import grad, jacrev, vmap

from geonet.solvers.neural.jets import variables
from geonet.solvers.neural.layers import cartesian
from geonet.solvers.neural.losses import (
    boundary,
    continuity,
    densities_carried,
    hamilton_jacobi,
    momentum,
    softened,
)
from geonet.solvers.neural.transport.network import cosine_products

# At its first jvp torch warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

DIMENSIONS = [1, 2, 3]
EPSILON = 0.3


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
def test_vanish_on_the_geodesic_of_two_gaussians(d, commuting, where, generator, jet_of):
    density, potential, _ = geodesic(d, commuting, generator)
    asked = where(d)
    mu, u = (jet_of(function, *asked) for function in (density, potential))
    assert vanishes(continuity(mu, u))
    assert vanishes(hamilton_jacobi(u))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_do_not_vanish_on_a_geodesic_with_a_wrong_sign_or_epsilon(d, where, generator, jet_of):
    density, potential, _ = geodesic(d, False, generator)
    asked = where(d)
    mu, u = (jet_of(function, *asked) for function in (density, potential))
    down = u.like(-u.data)
    assert is_large(continuity(mu, down))
    assert is_large(hamilton_jacobi(down))
    assert is_large(continuity(mu, u, EPSILON))
    assert is_large(hamilton_jacobi(u, EPSILON))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_vanish_on_a_schrodinger_bridge(d, where, generator, jet_of):
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
def test_the_potential_of_a_bridge_is_the_forward_one(d, where, generator, jet_of):
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
def test_need_no_more_derivatives_than_they_contain(epsilon, where, generator, jet_of):
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


# ---- the gradient of Hamilton–Jacobi's residual


@pytest.mark.parametrize("d", DIMENSIONS)
def test_momentum_is_the_gradient_of_the_hamilton_jacobi_residual(d, where, generator, jet_of):
    """Of a potential that solves nothing; through the residual itself, by autograd."""
    tilt, turn = torch.randn(2, d, dtype=torch.float64, generator=generator)

    def potential(x, t):
        return torch.sin(tilt @ x + t) + (1 + t**2) * torch.cos(turn @ x)

    def residual(x, t):
        velocity = grad(potential)(x, t)
        return grad(potential, 1)(x, t) + 0.5 * velocity @ velocity

    points, times = where(d)
    jet = jet_of(potential, points, times, "mixed")
    assert vanishes(hamilton_jacobi(jet) - vmap(residual)(points, times))
    found = momentum(jet)
    assert found.shape == (d, 8)
    assert vanishes(found - vmap(grad(residual))(points, times).T)
    assert is_large(found)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_momentum_vanishes_on_the_geodesic_of_two_gaussians(d, where, generator, jet_of):
    _, potential, _ = geodesic(d, False, generator)
    asked = where(d)
    assert vanishes(momentum(jet_of(potential, *asked, "mixed")))
    assert is_large(momentum(jet_of(lambda x, t: -potential(x, t), *asked, "mixed")))


# ---- residuals that count linearly where they are large


@pytest.mark.parametrize("limit", [0.01, 0.1, 3.0])
def test_small_residuals_count_squared(limit):
    """The next term of the series is −r⁴/4limit², at most 2.5e-5 of r² here."""
    residual = limit * torch.linspace(-0.01, 0.01, 21, dtype=torch.float64)
    found = softened(residual, limit)
    assert torch.allclose(found, residual**2, rtol=3e-5, atol=0)
    assert not torch.allclose(found[0], residual[0] ** 2, rtol=2e-5, atol=0)


@pytest.mark.parametrize("limit", [0.01, 0.1, 3.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_large_residuals_count_linearly(limit, sign):
    """2·limit·(|r| − limit), up to limit³/|r|."""
    residual = sign * limit * torch.tensor([100.0, 1e4], dtype=torch.float64)
    expected = 2 * limit * (residual.abs() - limit)
    assert torch.allclose(softened(residual, limit), expected, rtol=1e-4, atol=0)


def test_softened_by_hand():
    """√(3² + 4²) = 5: 2·4·(5 − 4) for r = 3."""
    assert softened(torch.tensor([3.0, -3.0, 0.0]), 4.0).tolist() == [8.0, 8.0, 0.0]


def test_residuals_without_a_limit_count_squared():
    residual = torch.tensor([-3.0, 0.0, 1e-3, 50.0])
    assert torch.equal(softened(residual, 0.0), residual**2)


@pytest.mark.parametrize("limit", [0.0, 0.1, 3.0])
def test_softened_residuals_have_a_slope_of_zero_at_zero(limit):
    residual = torch.zeros(3, requires_grad=True)
    softened(residual, limit).sum().backward()
    assert torch.equal(residual.grad, torch.zeros(3))


@pytest.mark.parametrize("limit", [0.1, 3.0])
def test_softened_residuals_pull_no_more_than_their_limit(limit):
    residual = torch.tensor([-1e3, -1.0, 1e-3, 2.0, 1e3], requires_grad=True)
    softened(residual, limit).sum().backward()
    assert bool((residual.grad.sign() == residual.sign()).all())
    assert float(residual.grad.abs().max()) == pytest.approx(2 * limit, rel=1e-5)


# ---- what both ends bring along straight lines


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("commuting", [True, False])
@pytest.mark.parametrize("halfway", [True, False])
def test_both_sides_are_the_density_between_two_gaussians(
    d, commuting, halfway, where, generator, jet_of
):
    """At t = ½ if no times are given, and at times that differ from point to point."""
    density, potential, ends = geodesic(d, commuting, generator)
    points, times = where(d)
    times, given = (torch.full_like(times, 0.5), ()) if halfway else (times, (times,))
    functions = tuple(lambda x, end=end: end.log_prob(x).exp() for end in ends)
    jet = jet_of(potential, points, times)
    sides, determinants = densities_carried(jet, points, functions, *given)
    expected = vmap(density)(points, times)
    assert all(vanishes(side - expected) for side in sides)
    assert all(bool((determinant > 0).all()) for determinant in determinants)
    backwards = jet_of(lambda x, t: -potential(x, t), points, times)
    sides, _ = densities_carried(backwards, points, functions, *given)
    assert is_large(sides[0] - sides[1])


@pytest.fixture
def series(generator):
    """Three potentials as cosine series in the unit box, with 4 modes along each axis."""

    def drawn(d):
        coefficients = torch.randn(3, 4**d, dtype=torch.float64, generator=generator)
        points = torch.rand(5, d, dtype=torch.float64, generator=generator)
        basis = cosine_products(variables(points, torch.zeros_like(points[:, 0]), "hessian"), 4)
        return 0.02 * coefficients, points, basis

    return drawn


@pytest.mark.parametrize("d", DIMENSIONS)
def test_both_sides_are_changes_of_variables(d, series):
    """μ0 after y ↦ y − ½∇u and μ1 after y ↦ y + ½∇u, with the determinants by autograd."""
    coefficients, points, basis = series(d)
    found, determinants = densities_carried(cartesian(coefficients, basis), points, (bumps, waves))
    modes = torch.cartesian_prod(*[torch.arange(4)] * d).reshape(-1, d).double()
    for b, c in enumerate(coefficients):

        def potential(y, c=c):
            return c @ torch.cos(math.pi * modes * y).prod(-1)

        for k, (end, s) in enumerate(((bumps, -0.5), (waves, 0.5))):

            def lines(y, s=s, potential=potential):
                return y + s * grad(potential)(y)

            there = vmap(lines)(points)
            determinant = torch.linalg.det(vmap(jacrev(lines))(points))
            values = end(there.expand(3, *there.shape))[b]
            assert torch.allclose(determinants[k][b], determinant, rtol=1e-11, atol=1e-12)
            assert torch.allclose(found[k][b], values * determinant, rtol=1e-11, atol=1e-12)
            assert is_large(determinant - 1)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_both_sides_agree_where_the_target_is_made_by_the_map(d, series):
    """μ1 is what the straight lines of u make of μ0; another μ1 is not."""
    coefficients, points, basis = series(d)
    jet = cartesian(coefficients, basis)

    def uniform(x):
        return torch.ones_like(x[..., 0])

    (source, target), (before, after) = densities_carried(jet, points, (uniform, uniform))
    assert torch.equal(source, before) and torch.equal(target, after)
    pushed = before / after  # at y + ½∇u
    (source, target), _ = densities_carried(jet, points, (uniform, lambda x: pushed))
    assert vanishes(source - target)
    (source, target), _ = densities_carried(jet, points, (uniform, uniform))
    assert is_large(source - target)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_both_sides_can_be_differentiated_in_the_potential(d, series):
    coefficients, points, basis = series(d)

    def sides(c):
        (source, target), _ = densities_carried(cartesian(c, basis), points, (bumps, waves))
        return source - target

    assert torch.autograd.gradcheck(sides, coefficients.requires_grad_())


def bumps(x):
    """A density of each of three pairs, at points (3, N, d) of their own."""
    width = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)[:, None]
    return (-((x - 0.4) ** 2).sum(-1) / width).exp()


def waves(x):
    return 1.5 + torch.sin(torch.tensor([1, 2, 3])[:, None] * x.sum(-1))
