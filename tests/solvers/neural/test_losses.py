"""PDE residuals, the pseudo-Huber loss, integrated residuals and the fold penalty."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.func import vmap

from geonet import Grid
from geonet.numerics.symmetric_matrices import unpack
from geonet.solvers.neural.jets import Jet
from geonet.solvers.neural.losses import (
    continuity_residual,
    half_hessian,
    hamilton_jacobi_residual,
    integrate_residuals,
    max_abs_eigenvalue,
    pseudo_huber,
    push_forward_endpoints,
)

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


def covariance(d, generator):
    factor = torch.randn(d, d, dtype=torch.float64, generator=generator)
    return 0.5 * torch.eye(d, dtype=torch.float64) + 0.3 * factor @ factor.T


def root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.sqrt() @ vectors.T


def gaussian_geodesic(d, generator):
    """μ and u between two Gaussians: x ↦ m1 + A(x − m0) is the optimal map.

    u is quadratic, its curvature (A − I)M⁻¹ with M = (1 − t)I + tA.
    """
    start, end = torch.randn(2, d, dtype=torch.float64, generator=generator)
    before, after = (covariance(d, generator) for _ in range(2))
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


@pytest.mark.parametrize("limit", [0.1, 4.0])
def test_pseudo_huber(limit):
    """√(3² + 4²) = 5: 2·4·(5 − 4) for r = 3. The gradient is bounded."""
    assert pseudo_huber(torch.tensor([3.0, -3.0, 0.0]), 4.0).tolist() == [8.0, 8.0, 0.0]
    residual = torch.tensor([-1e3, -1.0, 1e-3, 2.0, 1e3], requires_grad=True)
    pseudo_huber(residual, limit).sum().backward()
    assert bool((residual.grad.sign() == residual.sign()).all())
    assert float(residual.grad.abs().max()) == pytest.approx(2 * limit, rel=1e-4)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_residuals_vanish_on_a_gaussian_geodesic(d, draw_points, generator, jet_of):
    density, potential, _ = gaussian_geodesic(d, generator)
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
@pytest.mark.parametrize("halfway", [True, False])
def test_push_forward_of_gaussians(d, halfway, draw_points, generator, jet_of):
    """The default is t = ½; times may differ from point to point."""
    density, potential, ends = gaussian_geodesic(d, generator)
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


SIGMA = 0.06  # of the lumps, at least 4σ away from the faces: no more than 3e-5 are outside
V = (0.2, 0.1, -0.05)  # velocities
A = (0.3, -0.4, 0.1)  # accelerations


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
    """Integrate the residuals of a path (C, H), a pair of functions of (x, t)."""

    def integrated(grid, path, epsilon=0.0):
        points = grid.points().reshape(-1, grid.dimension)

        def jets(t):
            times = torch.full_like(points[:, 0], t)
            made = [jet_of(function, points, times, "laplacian") for function in path]
            return tuple(Jet(jet.data[:, None], grid.dimension, "laplacian") for jet in made)

        return integrate_residuals(jets, grid, epsilon)

    return integrated


@pytest.mark.parametrize(
    "grid",
    [Grid(200), Grid((60, 30), 0.0, (1.0, 0.6)), Grid((25, 20, 15), 0.0, (1.0, 0.8, 0.7))],
    ids=["1D", "2D", "3D"],
)
def test_integrated_residuals_of_a_moving_lump(grid, integrate):
    """Zero for the exact path; known integrals of created mass and of a bent path."""
    v, a = numbers(V, grid), numbers(A, grid)
    density, potential = path_of(grid)
    for part in integrate(grid, (density, potential)):
        assert part.shape == (1,) and vanishes(part)
    for share in (0.3, -0.2):  # C gains a lump that moves along
        made = integrate(grid, (lambda x, t, s=share: (1 + s * t) * density(x, t), potential))
        assert made.continuity_residual.item() == pytest.approx(abs(share), rel=1e-4)
        assert vanishes(made.acceleration) and vanishes(made.displaced_mass)
    # −a·x·t in H bends by a: ∇H = v − at, whose mean square is |v|² − v·a + ⅓|a|².
    made = integrate(grid, (density, lambda x, t: potential(x, t) - t * a @ x))
    speed = (v @ v - v @ a + a @ a / 3).sqrt()
    assert made.acceleration.item() == pytest.approx((a.norm() / speed).item(), rel=1e-4)
    if grid.dimension == 1:  # ∫|a·∇ρ|; differences over cells of σ/12 lose 1e-3 of it
        expected = 2 * a.item() / (SIGMA * math.sqrt(math.tau))
        assert made.displaced_mass.item() == pytest.approx(expected, rel=3e-3)

        def wrong(x, t):  # in the empty part of the box alone
            return 0.1 * x.sum() + t * torch.relu(x.sum() - 0.6)

        made = integrate(grid, (lambda x, t: lump(x, torch.tensor([0.25]), 0.03), wrong))
        assert vanishes(made.acceleration) and vanishes(made.displaced_mass)


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
@pytest.mark.parametrize("seed", range(2))
def test_largest_eigenvalue_of_a_quadratic(d, seed):
    """The half Hessian is constant inside, and its eigenvalue that of the matrix."""
    matrix = symmetric(d, seed)
    along, mixed = half_hessian(quadratic(matrix))
    assert len(along) == d and len(mixed) == d * (d - 1) // 2
    values = [*matrix.diag(), *matrix[tuple(torch.triu_indices(d, d, offset=1))]]
    for entry, value in zip([*along, *mixed], values, strict=True):
        torch.testing.assert_close(inside(entry), value.expand((4,) * d), rtol=0, atol=1e-10)
    largest = torch.linalg.eigvalsh(matrix).abs().max()
    result = inside(max_abs_eigenvalue(quadratic(matrix)))
    torch.testing.assert_close(result, largest.expand_as(result), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "own", [(0.7, 0.7, 0.7), (0.2, 0.9, 0.9), (0.2, 0.2, 0.9), (-0.9, 0.1, 0.9)]
)
def test_equal_eigenvalues_have_a_finite_gradient(own):
    """Accurate to a thousandth in single precision; the eigenvalue is homogeneous."""
    turn = torch.linalg.qr(symmetric(3)).Q
    c = quadratic((turn * torch.tensor(own)) @ turn.T).float().requires_grad_()
    result = inside(max_abs_eigenvalue(c))
    torch.testing.assert_close(result, torch.full_like(result, own[-1]), rtol=2e-3, atol=0)
    (slope,) = torch.autograd.grad(result.mean(), c)
    assert bool(torch.isfinite(slope).all())
    assert float((slope * c.detach()).sum()) == pytest.approx(own[-1], rel=2e-2)


def test_gradient_of_the_largest_eigenvalue():
    """Against autograd through LAPACK, on random coefficients."""
    generator = torch.Generator().manual_seed(5)
    c = torch.randn(2, 4, 5, 3, generator=generator, dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(max_abs_eigenvalue(c).square().sum(), c)
    (xx, yy, zz), (xy, xz, yz) = half_hessian(c)
    eigenvalues = torch.linalg.eigvalsh(unpack([xx, xy, xz, yy, yz, zz], 3))
    (expected,) = torch.autograd.grad(eigenvalues.abs().amax(-1).square().sum(), c)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
