"""½D²u of splines, and its largest |eigenvalue|, with a gradient that is always finite."""

import pytest
import torch

from geonet.numerics.symmetric_matrices import unpacked
from geonet.solvers.neural.unet import bends, steepest

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
def test_bends_of_a_quadratic_are_its_matrix(d):
    matrix = symmetric(d)
    along, mixed = bends(quadratic(matrix))
    assert len(along) == d and len(mixed) == d * (d - 1) // 2
    rows, columns = torch.triu_indices(d, d, offset=1)
    for entry, value in zip(
        [*along, *mixed], [*matrix.diag(), *matrix[rows, columns]], strict=True
    ):
        torch.testing.assert_close(inside(entry), value.expand((4,) * d), rtol=0, atol=1e-10)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_steepest_is_the_largest_eigenvalue(d, seed):
    matrix = symmetric(d, seed)
    largest = torch.linalg.eigvalsh(matrix).abs().max()
    found = inside(steepest(quadratic(matrix)))
    torch.testing.assert_close(found, largest.expand_as(found), rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", EQUAL)
def test_equal_eigenvalues_are_found_and_have_a_gradient(name):
    """To a thousandth in single precision; moving the matrix along itself changes it as much."""
    turn = torch.linalg.qr(symmetric(3)).Q
    matrix = (turn * torch.tensor(EQUAL[name], dtype=torch.float64)) @ turn.T
    c = quadratic(matrix).float().requires_grad_()
    found = inside(steepest(c))
    torch.testing.assert_close(
        found, torch.full_like(found, abs(EQUAL[name][-1])), rtol=2e-3, atol=0
    )
    (slope,) = torch.autograd.grad(found.mean(), c)
    assert bool(torch.isfinite(slope).all())
    assert float((slope * c.detach()).sum()) == pytest.approx(abs(EQUAL[name][-1]), rel=2e-2)


@pytest.mark.parametrize("d", [2, 3])
def test_nothing_has_a_gradient_too(d):
    c = torch.zeros(1, *(4,) * d).requires_grad_()
    steepest(c).sum().backward()
    assert bool(torch.isfinite(c.grad).all())


def test_the_gradient_is_that_of_the_eigenvalue():
    """Against autograd through LAPACK, on random coefficients."""
    generator = torch.Generator().manual_seed(5)
    c = torch.randn(2, 4, 5, 3, generator=generator, dtype=torch.float64).requires_grad_()
    (found,) = torch.autograd.grad(steepest(c).square().sum(), c)
    (xx, yy, zz), (xy, xz, yz) = bends(c)
    eigenvalues = torch.linalg.eigvalsh(unpacked([xx, xy, xz, yy, yz, zz], 3))
    (expected,) = torch.autograd.grad(eigenvalues.abs().amax(-1).square().sum(), c)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
