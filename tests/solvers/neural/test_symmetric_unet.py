import pytest
import torch

from geonet.numerics.splines import refined
from geonet.solvers.neural.unet import SymmetricConv, SymmetricUNet, halved, shown

WIDTHS, DOWN, UP = (4, 6, 8), (0, 1, 2), (1, 1, 0)


@pytest.fixture
def network():
    torch.manual_seed(0)
    made = SymmetricUNet(WIDTHS, DOWN, UP)
    with torch.no_grad():
        for head in made.head:
            head.weight.mul_(100)  # which are small at first
    return made.double().requires_grad_(False)


@pytest.fixture
def fields():
    """Residual, weight and Poisson's solution, far from any symmetry, (2, 8, 12) each."""
    generator = torch.Generator().manual_seed(1)
    residual, solved = torch.randn(2, 2, 8, 12, generator=generator, dtype=torch.float64)
    weight = torch.rand(2, 8, 12, generator=generator, dtype=torch.float64)
    return residual, weight, 20 * solved


def test_a_convolution_has_one_weight_for_centre_edges_and_corners():
    layer = SymmetricConv(1, 1, 1.0)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0], [3.0], [5.0]]))
    spot = torch.zeros(1, 1, 3, 3)
    spot[0, 0, 1, 1] = 1
    expected = torch.tensor([[5.0, 3, 5], [3, 2, 3], [5, 3, 5]])
    assert torch.equal(layer(spot)[0, 0], expected)


def test_the_weights_of_one_tap_are_side_by_side():
    """The order on which files and the compiled loop rely: all inputs' centres come first."""
    layer = SymmetricConv(2, 1, 1.0)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[1] = 1.0  # the centre of the second input
    x = torch.randn(1, 2, 4, 4)
    assert torch.allclose(layer(x)[:, 0], x[:, 1])


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2)])
def test_it_commutes_with_reflections(network, fields, axes):
    there = network(*(field.flip(axes) for field in fields))
    torch.testing.assert_close(there, network(*fields).flip(axes))


def test_it_commutes_with_the_transposition(network, fields):
    there = network(*(field.mT for field in fields))
    torch.testing.assert_close(there, network(*fields).mT)


def test_it_is_odd_in_the_residual(network, fields):
    residual, weight, solved = fields
    answer = network(residual, weight, solved)
    torch.testing.assert_close(network(-residual, weight, -solved), -answer)
    assert float(answer.abs().max()) > 0.1  # it says something


def test_equal_ends_are_left_alone(network, fields):
    _, weight, _ = fields
    nothing = torch.zeros_like(weight)
    assert torch.equal(network(nothing, weight, nothing), nothing)


def test_pairs_do_not_mix(network, fields):
    alone = network(*(field[1:] for field in fields))
    torch.testing.assert_close(network(*fields)[1:], alone)


def test_what_is_shown_is_bounded(fields):
    """Whatever the densities are: residuals are at most twice the weight or so."""
    residual, weight, solved = fields
    huge = torch.stack([1e6 * residual, 1e6 * weight + 1e6, 1e9 * solved], 1)
    assert float(shown(huge, 0).abs().max()) < 10
    assert shown(huge, 0).shape == (4, 6, 8, 12)


def test_halved_cells_hold_the_same_spline():
    c = torch.randn(1, 4, 6, dtype=torch.float64)
    expected = 4 * refined(c[0], (8, 12))  # in squares of the smaller cells
    torch.testing.assert_close(halved(c)[0], expected)
