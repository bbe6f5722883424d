"""PDE residuals, the pseudo-Huber loss, integrated residuals and the fold penalty."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.func import grad, jacrev, vmap

from geonet import Grid
from geonet.numerics.symmetric_matrices import unpack
from geonet.solvers.neural.jets import Jet, make_variables
from geonet.solvers.neural.layers import combine_cartesian
from geonet.solvers.neural.losses import (
    acceleration,
    continuity_residual,
    half_hessian,
    hamilton_jacobi_residual,
    integrate_residuals,
    max_abs_eigenvalue,
    pseudo_huber,
    push_forward_endpoints,
)
from geonet.solvers.neural.transport.network import evaluate_cosine_basis

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]


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


def gaussian_geodesic(d, commuting, generator):
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


def gaussian_bridge(d, generator):
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
def draw_points(generator):
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
def test_residuals_vanish_on_a_gaussian_geodesic(d, commuting, draw_points, generator, jet_of):
    density, potential, _ = gaussian_geodesic(d, commuting, generator)
    points_and_times = draw_points(d)
    mu, u = (jet_of(function, *points_and_times) for function in (density, potential))
    assert vanishes(continuity_residual(mu, u))
    assert vanishes(hamilton_jacobi_residual(u))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_residuals_vanish_on_a_schrodinger_bridge(d, draw_points, generator, jet_of):
    f, g = gaussian_bridge(d, generator)
    points_and_times = draw_points(d)
    mu = jet_of(lambda x, t: f(x, t) * g(x, t), *points_and_times)
    u = jet_of(lambda x, t: -2 * EPSILON * f(x, t).log(), *points_and_times)
    assert vanishes(continuity_residual(mu, u, EPSILON))
    assert vanishes(hamilton_jacobi_residual(u, EPSILON))
    for wrong in (0.0, -EPSILON, 2 * EPSILON):
        assert is_large(continuity_residual(mu, u, wrong))
        assert is_large(hamilton_jacobi_residual(u, wrong))


@pytest.mark.parametrize("d", DIMENSIONS)
def test_acceleration_is_the_gradient_of_the_residual(d, draw_points, generator, jet_of):
    """The reference differentiates the residual by autograd."""
    tilt, turn = torch.randn(2, d, dtype=torch.float64, generator=generator)

    def potential(x, t):
        return torch.sin(tilt @ x + t) + (1 + t**2) * torch.cos(turn @ x)

    def residual(x, t):
        velocity = grad(potential)(x, t)
        return grad(potential, 1)(x, t) + 0.5 * velocity @ velocity

    points, times = draw_points(d)
    jet = jet_of(potential, points, times, "mixed")
    assert vanishes(hamilton_jacobi_residual(jet) - vmap(residual)(points, times))
    found = acceleration(jet)
    assert found.shape == (d, 8)
    assert vanishes(found - vmap(grad(residual))(points, times).T)
    assert is_large(found)


def test_pseudo_huber_values():
    """√(3² + 4²) = 5: 2·4·(5 − 4) for r = 3."""
    assert pseudo_huber(torch.tensor([3.0, -3.0, 0.0]), 4.0).tolist() == [8.0, 8.0, 0.0]


@pytest.mark.parametrize("limit", [0.1, 3.0])
def test_pseudo_huber_gradient_is_bounded(limit):
    residual = torch.tensor([-1e3, -1.0, 1e-3, 2.0, 1e3], requires_grad=True)
    pseudo_huber(residual, limit).sum().backward()
    assert bool((residual.grad.sign() == residual.sign()).all())
    assert float(residual.grad.abs().max()) == pytest.approx(2 * limit, rel=1e-5)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("commuting", [True, False])
@pytest.mark.parametrize("halfway", [True, False])
def test_push_forward_of_gaussians(d, commuting, halfway, draw_points, generator, jet_of):
    """The default is t = ½; times may differ from point to point."""
    density, potential, ends = gaussian_geodesic(d, commuting, generator)
    points, times = draw_points(d)
    times, given = (torch.full_like(times, 0.5), ()) if halfway else (times, (times,))
    functions = tuple(lambda x, end=end: end.log_prob(x).exp() for end in ends)
    jet = jet_of(potential, points, times)
    sides, determinants = push_forward_endpoints(jet, points, functions, *given)
    expected = vmap(density)(points, times)
    assert all(vanishes(side - expected) for side in sides)
    assert all(bool((determinant > 0).all()) for determinant in determinants)
    backwards = jet_of(lambda x, t: -potential(x, t), points, times)
    sides, _ = push_forward_endpoints(backwards, points, functions, *given)
    assert is_large(sides[0] - sides[1])


@pytest.fixture
def series(generator):
    """Three potentials as cosine series in the unit box, with 4 modes along each axis."""

    def drawn(d):
        coefficients = torch.randn(3, 4**d, dtype=torch.float64, generator=generator)
        points = torch.rand(5, d, dtype=torch.float64, generator=generator)
        basis = evaluate_cosine_basis(
            make_variables(points, torch.zeros_like(points[:, 0]), "hessian"), 4
        )
        return 0.02 * coefficients, points, basis

    return drawn


@pytest.mark.parametrize("d", DIMENSIONS)
def test_push_forward_is_a_change_of_variables(d, series):
    """μ0 after y ↦ y − ½∇u and μ1 after y ↦ y + ½∇u, with the determinants by autograd."""
    coefficients, points, basis = series(d)
    found, determinants = push_forward_endpoints(
        combine_cartesian(coefficients, basis), points, (bumps, waves)
    )
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


def bumps(x):
    """A density of each of three pairs, at points (3, N, d) of their own."""
    width = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)[:, None]
    return (-((x - 0.4) ** 2).sum(-1) / width).exp()


def waves(x):
    return 1.5 + torch.sin(torch.tensor([1, 2, 3])[:, None] * x.sum(-1))


GRIDS = {
    "1D": Grid(200),
    "2D": Grid((50, 50)),
    "2D, not a cube": Grid((60, 30), 0.0, (1.0, 0.6)),
    "3D, not a cube": Grid((25, 20, 15), 0.0, (1.0, 0.8, 0.7)),
}


SIGMA = 0.06  # of the lumps, at least 4σ away from the faces: no more than 3e-5 are outside
V = (0.2, 0.1, -0.05)  # velocities
A = (0.3, -0.4, 0.1)  # accelerations
NOISE = 0.01


every_grid = pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())


def numbers(values, grid):
    return torch.tensor(values[: grid.dimension])


def lump(x, mean, sigma=SIGMA):
    """A Gaussian of mass one."""
    z = (x - mean) / sigma
    return torch.exp(-0.5 * z @ z) / (sigma * math.sqrt(math.tau)) ** len(mean)


def path_of(grid):
    """C and H of a lump that moves by v: ρ(x − vt) and v·x − ½|v|²t."""
    v, start = numbers(V, grid), 0.5 * grid.upper_tensor - 0.5 * numbers(V, grid)

    def density(x, t):
        return lump(x, start + v * t)

    def potential(x, t):
        return v @ x - 0.5 * t * v @ v

    return density, potential


@pytest.fixture
def integrate(jet_of):
    """The integrate of paths (C, H), each a pair of functions of (x, t)."""

    def found(grid, *paths, epsilon=0.0):
        points = grid.points().reshape(-1, grid.dimension)

        def jets(t):
            times = torch.full_like(points[:, 0], t)
            both = []
            for functions in zip(*paths, strict=True):
                made = [jet_of(function, points, times, "laplacian") for function in functions]
                data = torch.stack([jet.data for jet in made], dim=1)
                both.append(Jet(data, grid.dimension, "laplacian"))
            return tuple(both)

        return integrate_residuals(jets, grid, epsilon)

    return found


@every_grid
def test_integrated_residuals_of_an_exact_path(grid, integrate):
    for part in integrate(grid, path_of(grid)):
        assert part.shape == (1,)
        assert part.abs().max() < 1e-10


@every_grid
@pytest.mark.parametrize("share", [0.3, -0.2])
def test_created_mass(grid, share, integrate):
    """C gains a lump that moves along: r = s(x − vt), and its integral is known."""
    density, potential = path_of(grid)
    made = integrate(grid, (lambda x, t: (1 + share * t) * density(x, t), potential))
    assert made.continuity_residual.item() == pytest.approx(abs(share), rel=1e-4)
    assert made.acceleration.item() < 1e-10 and made.displaced_mass.item() < 1e-10


@every_grid
def test_acceleration_is_relative_to_the_speed(grid, integrate):
    """−a·x·t in H bends by a: ∇H = v − at, whose mean square is |v|² − v·a + ⅓|a|²."""
    v, a = numbers(V, grid), numbers(A, grid)
    density, potential = path_of(grid)
    made = integrate(grid, (density, lambda x, t: potential(x, t) - t * a @ x))
    speed = (v @ v - v @ a + a @ a / 3).sqrt()
    assert made.acceleration.item() == pytest.approx((a.norm() / speed).item(), rel=1e-4)


def test_acceleration_displaces_mass(integrate):
    """∫|a·∇ρ| = 2|a|/(σ√2π) for a Gaussian; differences over cells of σ/12 lose 1e-3 of it."""
    for grid in (GRIDS["1D"], Grid((200, 20))):
        a = numbers((0.3, 0.0), grid)
        density, potential = path_of(grid)
        made = integrate(grid, (density, lambda x, t, u=potential, a=a: u(x, t) - t * a @ x))
        expected = 2 * 0.3 / (SIGMA * math.sqrt(math.tau))
        assert made.displaced_mass.item() == pytest.approx(expected, rel=3e-3)


def test_empty_regions_do_not_count(integrate):
    """H is wrong in the right half of the box alone, the lump is in the left."""

    def density(x, t):
        return lump(x, torch.tensor([0.25]), 0.03)

    def wrong(x, t):
        return 0.1 * x.sum() + t * torch.relu(x.sum() - 0.6)

    made = integrate(GRIDS["1D"], (density, wrong))
    assert made.acceleration.item() < 1e-10 and made.displaced_mass.item() < 1e-10


def lump_bridge(d):
    """C = f·g and H = −2ε log f, draw_points two lumps f spread by ε, and one, g, the other way."""
    left, right, end = (torch.full((d,), place) for place in (0.3, 0.5, 0.45))

    def f(x, t):
        width = (SIGMA**2 + 2 * NOISE * t).sqrt()
        return lump(x, left, width) + lump(x, right, width)

    def g(x, t):
        return lump(x, end, (SIGMA**2 + 2 * NOISE * (1 - t)).sqrt())

    return lambda x, t: f(x, t) * g(x, t), lambda x, t: -2 * NOISE * f(x, t).log()


@pytest.mark.parametrize("grid", [Grid(100), Grid((40, 32), 0.0, (1.0, 0.8))], ids=["1D", "2D"])
def test_integrated_residuals_of_a_bridge(grid, integrate):
    path = lump_bridge(grid.dimension)
    right, without = (integrate(grid, path, epsilon=epsilon) for epsilon in (NOISE, 0.0))
    assert all(part.item() < 1e-9 for part in right)
    assert all(part.item() > 1e-3 for part in without)


EQUAL = {  # eigenvalues of ½D²u, some of them equal, of which the last is the largest
    "all": (0.7, 0.7, 0.7),
    "upper two": (0.2, 0.9, 0.9),
    "lower two": (0.2, 0.2, 0.9),
    "opposite": (-0.9, 0.1, 0.9),
    "negative": (-0.1, -0.4, -1.3),
}


def quadratic(matrix, cells=6):
    """Coefficients of yᵀ·matrix·y, with ½D²u = matrix, in squared cells, (1, *cells)."""
    d = len(matrix)
    line = torch.arange(cells, dtype=matrix.dtype)
    y = torch.stack(torch.meshgrid(*[line] * d, indexing="ij"), -1)
    return torch.einsum("...i,ij,...j->...", y, matrix, y)[None]


def symmetric(d, seed=0):
    matrix = torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return matrix + matrix.T


def inside(field):
    return field[(0, *(slice(1, -1),) * (field.ndim - 1))]


@pytest.mark.parametrize("d", [2, 3])
def test_half_hessian_of_a_quadratic(d):
    matrix = symmetric(d)
    along, mixed = half_hessian(quadratic(matrix))
    assert len(along) == d and len(mixed) == d * (d - 1) // 2
    rows, columns = torch.triu_indices(d, d, offset=1)
    for entry, value in zip(
        [*along, *mixed], [*matrix.diag(), *matrix[rows, columns]], strict=True
    ):
        torch.testing.assert_close(inside(entry), value.expand((4,) * d), rtol=0, atol=1e-10)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_largest_eigenvalue_of_a_quadratic(d, seed):
    matrix = symmetric(d, seed)
    largest = torch.linalg.eigvalsh(matrix).abs().max()
    found = inside(max_abs_eigenvalue(quadratic(matrix)))
    torch.testing.assert_close(found, largest.expand_as(found), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", EQUAL)
def test_equal_eigenvalues_have_a_finite_gradient(name):
    """Accurate to a thousandth in single precision; the eigenvalue is homogeneous."""
    turn = torch.linalg.qr(symmetric(3)).Q
    matrix = (turn * torch.tensor(EQUAL[name], dtype=torch.float64)) @ turn.T
    c = quadratic(matrix).float().requires_grad_()
    found = inside(max_abs_eigenvalue(c))
    torch.testing.assert_close(
        found, torch.full_like(found, abs(EQUAL[name][-1])), rtol=2e-3, atol=0
    )
    (slope,) = torch.autograd.grad(found.mean(), c)
    assert bool(torch.isfinite(slope).all())
    assert float((slope * c.detach()).sum()) == pytest.approx(abs(EQUAL[name][-1]), rel=2e-2)


def test_gradient_of_the_largest_eigenvalue():
    """Against autograd through LAPACK, on random coefficients."""
    generator = torch.Generator().manual_seed(5)
    c = torch.randn(2, 4, 5, 3, generator=generator, dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(max_abs_eigenvalue(c).square().sum(), c)
    (xx, yy, zz), (xy, xz, yz) = half_hessian(c)
    eigenvalues = torch.linalg.eigvalsh(unpack([xx, xy, xz, yy, yz, zz], 3))
    (expected,) = torch.autograd.grad(eigenvalues.abs().amax(-1).square().sum(), c)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
