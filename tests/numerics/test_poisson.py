import pytest
import torch

from geonet.numerics.cosine import poisson_solved


@pytest.mark.parametrize("shape", [(12,), (8, 12), (4, 6, 8)])
def test_it_inverts_the_laplacian_with_faces_that_nothing_crosses(shape):
    generator = torch.Generator().manual_seed(len(shape))
    right = torch.randn(2, *shape, generator=generator)
    right = right - right.flatten(1).mean(1).reshape(-1, *(1,) * len(shape))
    found = poisson_solved(right)
    total = torch.zeros_like(right)
    for axis in range(1, len(shape) + 1):
        first, last = found.narrow(axis, 0, 1), found.narrow(axis, found.shape[axis] - 1, 1)
        wide = torch.cat([first, found, last], axis)
        n = found.shape[axis]
        total += 2 * found - wide.narrow(axis, 0, n) - wide.narrow(axis, 2, n)
    # Single precision, and an inverse that is some hundred times as large as its argument.
    torch.testing.assert_close(total, right, rtol=1e-3, atol=1e-4)


def test_it_follows_reflections_and_is_linear():
    right = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(poisson_solved(right.flip(1)), poisson_solved(right).flip(1))
    torch.testing.assert_close(poisson_solved(-2 * right), -2 * poisson_solved(right))
    constant = poisson_solved(torch.full((1, 8, 8), 3.0))
    assert float(constant.abs().max()) < 1e-4  # which no flow balances
