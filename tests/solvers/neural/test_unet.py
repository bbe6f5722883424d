"""The U-Net: symmetries in torch, and the compiled kernel."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from itertools import permutations

import pytest
import torch

from geonet.numerics import kernels
from geonet.numerics.splines import prolong_spline
from geonet.solvers.neural import unet as compiled
from geonet.solvers.neural.unet import SymmetricConv, SymmetricUNet, coarsen, make_inputs, prolong

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


def test_convolution_weights_depend_on_the_distance_from_the_centre():
    spot = torch.zeros(1, 1, 3, 3, 3)
    spot[0, 0, 1, 1, 1] = 1
    outer = torch.tensor([[7.0, 5, 7], [5, 3, 5], [7, 5, 7]])
    inner = torch.tensor([[5.0, 3, 5], [3, 2, 3], [5, 3, 5]])
    plane, space = SymmetricConv(1, 1, 1.0), SymmetricConv(1, 1, 1.0, dimension=3)
    with torch.no_grad():
        plane.weight.copy_(torch.tensor([[2.0], [3.0], [5.0]]))
        space.weight.copy_(torch.tensor([[2.0], [3.0], [5.0], [7.0]]))
    assert torch.equal(plane(spot[:, :, 1])[0, 0], inner)
    assert torch.equal(space(spot)[0, 0], torch.stack([outer, inner, outer]))


@DIMENSIONS
def test_convolution_weights_of_the_centre_come_first(d):
    """Files and the compiled kernel rely on this order."""
    layer = SymmetricConv(2, 1, 1.0, dimension=d)
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[1] = 1.0  # the centre of the second input
    x = torch.randn(1, 2, *(4,) * d)
    assert torch.allclose(layer(x)[:, 0], x[:, 1])


@DIMENSIONS
def test_network_commutes_with_reflections_and_permutations(d, network, fields):
    output = network(*fields)
    for axis in range(1, d + 1):
        torch.testing.assert_close(network(*(f.flip(axis) for f in fields)), output.flip(axis))
    for order in permutations(range(1, d + 1)):
        permuted = network(*(f.permute(0, *order) for f in fields))
        torch.testing.assert_close(permuted, output.permute(0, *order))


@DIMENSIONS
def test_network_is_odd_and_local_to_pairs(d, network, fields):
    residual, weight, poisson = fields
    output = network(residual, weight, poisson)
    torch.testing.assert_close(network(-residual, weight, -poisson), -output)
    assert float(output.abs().max()) > 0.1
    torch.testing.assert_close(output[1:], network(*(f[1:] for f in fields)))
    zero = torch.zeros_like(weight)
    assert torch.equal(network(zero, weight, zero), zero)


@pytest.mark.parametrize("d", [3])
def test_freezing_changes_nothing_without_a_kernel(network, fields):
    network, fields = network.float(), [field.float() for field in fields]
    before = network(*fields)
    network.freeze()
    with torch.no_grad():
        assert torch.equal(network(*fields), before)


@DIMENSIONS
def test_inputs_are_bounded(d, fields):
    residual, weight, poisson = fields
    huge = torch.stack([1e6 * residual, 1e6 * weight + 1e6, 1e9 * poisson], 1)
    assert float(make_inputs(huge, 0).abs().max()) < 10
    assert make_inputs(huge, 0).shape == (4, 6, *SHAPES[d])


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


def compile_network(name):
    return compiled.CompiledUNet(compiled_network(name))


@cache
def expected(name, pairs):
    """Return the output of torch in double precision."""
    return compiled_network(name)(*(field.double() for field in compiled_fields(name, pairs)))


@every_case
@pytest.mark.parametrize("pairs", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled_network_equals_torch(build, name, pairs, threads):
    found, truth = (
        compile_network(name)(*compiled_fields(name, pairs), threads),
        expected(name, pairs),
    )
    assert found.shape == truth.shape and found.dtype == torch.float32
    assert float((found - truth).abs().max() / truth.abs().max()) < SINGLE


@every_case
def test_threads_and_other_pairs_change_nothing(name):
    net, several = compile_network(name), compiled_fields(name, 3)
    together = net(*several, 1)
    for threads in (2, 5, 100):
        assert torch.equal(net(*several, threads), together)
    for k, answer in enumerate(together):
        assert torch.equal(net(*(field[k : k + 1] for field in several), 1)[0], answer)


@every_case
def test_compiled_network_is_odd(name):
    residual, weight, solved = compiled_fields(name)
    net = compile_network(name)
    assert torch.equal(net(-residual, weight, -solved, 1), -net(residual, weight, solved, 1))


@pytest.mark.parametrize("name", ["not in fours", "fine"])
@pytest.mark.parametrize("wild", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_nan_stays_in_its_pair(name, wild):
    """Pairs share their workspace."""
    net, several = compile_network(name), compiled_fields(name, 3)
    spoilt = [field.clone() for field in several]
    for field in spoilt:
        field[1] = wild
        field[1, ::2] = 0.0
    found, expected = net(*spoilt, 1), net(*several, 1)
    assert torch.equal(found[::2], expected[::2])
    assert found.shape == expected.shape


def test_inputs_of_any_type_and_order():
    name = "not in fours"
    turned = [field.double().mT.contiguous().mT for field in compiled_fields(name, 3)]
    assert torch.equal(
        compile_network(name)(*turned, 1), compile_network(name)(*compiled_fields(name, 3), 1)
    )


def test_weights_are_copied():
    net = copy.deepcopy(compiled_network("narrow"))
    ours = compiled.CompiledUNet(net)
    before = ours(*compiled_fields("narrow"), 1)
    for parameter in net.parameters():
        parameter.zero_()
    assert torch.equal(ours(*compiled_fields("narrow"), 1), before)


def test_copies_and_pickles_are_equal():
    ours = compile_network("narrow")
    before = ours(*compiled_fields("narrow"), 1)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(other(*compiled_fields("narrow"), 1), before)


@pytest.mark.parametrize(
    "shapes",
    [
        [(1, 12, 42)] * 3,  # which halves evenly once, not twice
        [(1, 14, 40)] * 3,
        [(1, 0, 40)] * 3,
        [(12, 40)] * 3,
        [(1, 12, 40), (1, 12, 40), (2, 12, 40)],
        [(1, 12, 40), (1, 40, 12), (1, 12, 40)],
    ],
    ids=str,
)
def test_wrong_shapes_are_rejected(shapes):
    net = compile_network("narrow")
    with pytest.raises(AssertionError):
        net(*(torch.zeros(shape) for shape in shapes), 1)


def test_libraries_of_other_versions_are_not_used():
    try:
        with pytest.MonkeyPatch.context() as patch:
            compiled._declare.cache_clear()
            patch.setattr(compiled.CompiledUNet, "version", 99)
            assert not compiled.is_available()
    finally:
        compiled._declare.cache_clear()
    assert compiled.is_available()
