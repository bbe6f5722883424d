"""The U-Net: symmetries in torch, and the compiled kernel."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import pytest
import torch

from geonet.numerics import kernels
from geonet.numerics.splines import prolong_spline
from geonet.solvers.neural import unet as compiled
from geonet.solvers.neural.unet import SymmetricConv, SymmetricUNet, coarsen, prolong

SHAPES = {2: (8, 12), 3: (8, 12, 4)}
DIMENSIONS = pytest.mark.parametrize("d", [2, 3])


@pytest.fixture
def network(d):
    torch.manual_seed(0)
    net = SymmetricUNet((4, 6, 8), (0, 1, 2), (1, 1, 0), dimension=d)
    with torch.no_grad():
        for head in net.head:
            head.weight.mul_(100)  # initially small
    return net.double().requires_grad_(False)


@pytest.fixture
def fields(d):
    """Residual, weight and Poisson solution without any symmetry, (2, *cells) each."""
    generator = torch.Generator().manual_seed(1)
    shape = SHAPES[d]
    residual, poisson = torch.randn(2, 2, *shape, generator=generator, dtype=torch.float64)
    weight = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
    return residual, weight, 20 * poisson


@DIMENSIONS
def test_convolution_weights_depend_on_the_distance_from_the_centre(d):
    """The weight of the centre comes first, which files and the compiled kernel rely on."""
    spot = torch.zeros(1, 1, *(3,) * d)
    spot[(0, 0, *(1,) * d)] = 1
    outer = torch.tensor([[7.0, 5, 7], [5, 3, 5], [7, 5, 7]])
    inner = torch.tensor([[5.0, 3, 5], [3, 2, 3], [5, 3, 5]])
    layer = SymmetricConv(1, 1, 1.0, dimension=d)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 3.0, 5.0, 7.0])[: d + 1, None])
    expected = inner if d == 2 else torch.stack([outer, inner, outer])
    assert torch.equal(layer(spot)[0, 0], expected)


@DIMENSIONS
def test_network_commutes_with_reflections_and_permutations(d, network, fields):
    """It is also odd, local to pairs, and the same after freezing."""
    residual, weight, poisson = fields
    output = network(*fields)
    for axis in range(1, d + 1):
        torch.testing.assert_close(network(*(f.flip(axis) for f in fields)), output.flip(axis))
    for order in permutations(range(1, d + 1)):
        permuted = network(*(f.permute(0, *order) for f in fields))
        torch.testing.assert_close(permuted, output.permute(0, *order))
    torch.testing.assert_close(network(-residual, weight, -poisson), -output)
    torch.testing.assert_close(output[1:], network(*(f[1:] for f in fields)))
    assert float(output.abs().max()) > 0.1
    zero = torch.zeros_like(weight)
    assert torch.equal(network(zero, weight, zero), zero)
    single = network.float()
    single.freeze()
    with torch.no_grad():
        frozen = single(*(field.float() for field in fields))
    torch.testing.assert_close(frozen, output.float(), rtol=1e-3, atol=1e-3)


@DIMENSIONS
def test_prolongation_and_coarsening(d):
    c = torch.randn(1, *(4, 6, 2)[:d], dtype=torch.float64)
    finer = 4 * prolong_spline(c[0], (8, 12, 4)[:d])  # in squares of the smaller cells
    torch.testing.assert_close(prolong(c)[0], finer)
    blocks = c.reshape(1, *(part for n in c.shape[1:] for part in (n // 2, 2)))
    expected = blocks.mean(tuple(range(2, 2 * d + 1, 2)))
    torch.testing.assert_close(coarsen(c[:, None])[:, 0], expected)


# Widths that fill no block of outputs or several, grids that fill no vector or many.
CASES = {
    "one level": ((5,), (1,), (2,), (3, 7)),
    "one cell": ((8, 12), (1, 1), (1, 1), (2, 2)),
    "narrow": ((1, 2, 3), (1, 0, 1), (0, 1, 1), (12, 40)),
    "not in fours": ((10, 20, 7), (0, 1, 2), (2, 1, 0), (40, 24)),
    "fine": ((8, 16, 32, 32), (0, 1, 1, 1), (1, 1, 1, 0), (64, 64)),
    "wide": ((48, 64, 96), (1, 1, 2), (1, 1, 0), (16, 16)),
    "long": ((4, 12), (1, 1), (1, 1), (6, 1030)),
}

# A number is rounded by 6e-8 at each of up to 300 terms in each of some ten layers; the odd part is
# the difference of two numbers that are several times as large as itself.
SINGLE = 1e-5
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(
    params=[
        name if name == "default" else pytest.param(name, marks=pytest.mark.slow)
        for name in kernels.available_builds()
    ]
)
def build(request, monkeypatch):
    """Every build of the kernels that runs here."""
    monkeypatch.setenv("GEONET_COMPILED", request.param)
    assert compiled.is_available()


@cache
def compiled_network(name):
    """Random weights in double precision, biases that are not zero, heads of the others' size."""
    widths, down, up, _ = CASES[name]
    generator = torch.Generator().manual_seed(1)
    net = SymmetricUNet(widths, down, up).double().requires_grad_(False)
    for parameter in net.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(noise / (3 * len(parameter)) ** 0.5)
    return net


@cache
def compiled_fields(name, pairs=1):
    """Residual, weight and solved, (pairs, h, w): waves and noise, the weight not negative."""
    (h, w), generator = CASES[name][3], torch.Generator().manual_seed(2)
    noise = torch.randn((3, pairs, h, w), generator=generator)
    waves = torch.cos(torch.arange(h)[:, None] / 5 + torch.arange(w) / 7 + noise[..., :1, :1])
    residual, weight, solved = waves + noise / 2
    return residual, weight.abs(), 20 * solved


@every_case
@pytest.mark.parametrize("pairs", [1, 3])
def test_compiled_network_equals_torch(build, name, pairs):
    """And is odd; neither threads nor other pairs nor types nor strides change a bit."""
    net, fields = compiled.CompiledUNet(compiled_network(name)), compiled_fields(name, pairs)
    truth = compiled_network(name)(*(field.double() for field in fields))
    result = net(*fields, 1)
    assert result.shape == truth.shape and result.dtype == torch.float32
    assert float((result - truth).abs().max() / truth.abs().max()) < SINGLE
    for threads in (2, 100):
        assert torch.equal(net(*fields, threads), result)
    assert torch.equal(net(*(field[-1:] for field in fields), 1)[0], result[-1])
    assert torch.equal(net(*(field.double().mT.contiguous().mT for field in fields), 1), result)
    residual, weight, solved = fields
    assert torch.equal(net(-residual, weight, -solved, 1), -result)


@pytest.mark.parametrize("name", ["not in fours", "fine"])
@pytest.mark.parametrize("wild", [torch.nan, torch.inf, 3e38])
def test_nan_stays_in_its_pair(name, wild):
    """Pairs share their workspace."""
    net, several = compiled.CompiledUNet(compiled_network(name)), compiled_fields(name, 3)
    spoilt = [field.clone() for field in several]
    for field in spoilt:
        field[1] = wild
        field[1, ::2] = 0.0
    result, expected = net(*spoilt, 1), net(*several, 1)
    assert torch.equal(result[::2], expected[::2])
    assert result.shape == expected.shape
