"""The compiled network gives what torch gives, to single precision."""

import copy
import pickle
from functools import cache

import pytest
import torch

from geonet.solvers.neural import unet as compiled
from geonet.solvers.neural.transport import compiled as loops
from geonet.solvers.neural.unet import SymmetricUNet, layers_of

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


@pytest.fixture(params=loops.loadable(), autouse=True)
def each_build(request, monkeypatch):
    """Every build of the loops that runs here."""
    monkeypatch.setenv("GEONET_COMPILED", request.param)
    assert compiled.available()


@cache
def network(name):
    """Random weights in double precision, biases that are not zero, heads of the others' size."""
    widths, down, up, _ = CASES[name]
    generator = torch.Generator().manual_seed(1)
    net = SymmetricUNet(widths, down, up).double().requires_grad_(False)
    for parameter in net.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(noise / (3 * len(parameter)) ** 0.5)
    return net


@cache
def fields(name, pairs=1):
    """Residual, weight and solved, (pairs, h, w): waves and noise, the weight not negative."""
    (h, w), generator = CASES[name][3], torch.Generator().manual_seed(2)
    noise = torch.randn((3, pairs, h, w), generator=generator)
    waves = torch.cos(torch.arange(h)[:, None] / 5 + torch.arange(w) / 7 + noise[..., :1, :1])
    residual, weight, solved = waves + noise / 2
    return residual, weight.abs(), 20 * solved


def made(name):
    return compiled.CompiledUNet(layers_of(network(name)))


@cache
def expected(name, pairs):
    """By torch in double precision, once for all builds."""
    return network(name)(*(field.double() for field in fields(name, pairs)))


@every_case
@pytest.mark.parametrize("pairs", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_torchs_answers(name, pairs, threads):
    found, truth = made(name)(*fields(name, pairs), threads), expected(name, pairs)
    assert found.shape == truth.shape and found.dtype == torch.float32
    assert float((found - truth).abs().max() / truth.abs().max()) < SINGLE


@every_case
def test_neither_threads_nor_other_pairs_change_anything(name):
    net, several = made(name), fields(name, 3)
    together = net(*several, 1)
    for threads in (2, 5, 100):
        assert torch.equal(net(*several, threads), together)
    for k, answer in enumerate(together):
        assert torch.equal(net(*(field[k : k + 1] for field in several), 1)[0], answer)


def test_no_pairs():
    empty = torch.zeros(0, 16, 16)
    assert made("wide")(empty, empty, empty, 2).shape == (0, 16, 16)


@every_case
def test_a_swap_of_the_ends_changes_the_sign(name):
    residual, weight, solved = fields(name)
    net = made(name)
    assert torch.equal(net(-residual, weight, -solved, 1), -net(residual, weight, solved, 1))


@pytest.mark.parametrize("name", ["not in fours", "fine"])
@pytest.mark.parametrize("wild", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_what_is_no_number_stays_in_its_pair(name, wild):
    """The room of one pair is that of the next: nothing may be left in it."""
    net, several = made(name), fields(name, 3)
    spoilt = [field.clone() for field in several]
    for field in spoilt:
        field[1] = wild
        field[1, ::2] = 0.0
    found, expected = net(*spoilt, 1), net(*several, 1)
    assert torch.equal(found[::2], expected[::2])
    assert found.shape == expected.shape


def test_inputs_of_any_type_and_order():
    name = "not in fours"
    turned = [field.double().mT.contiguous().mT for field in fields(name, 3)]
    assert torch.equal(made(name)(*turned, 1), made(name)(*fields(name, 3), 1))


def test_weights_are_copied():
    net = copy.deepcopy(network("narrow"))
    ours = compiled.CompiledUNet(layers_of(net))
    before = ours(*fields("narrow"), 1)
    for parameter in net.parameters():
        parameter.zero_()
    assert torch.equal(ours(*fields("narrow"), 1), before)


def test_copies_and_pickles_answer_alike():
    ours = made("narrow")
    before = ours(*fields("narrow"), 1)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(other(*fields("narrow"), 1), before)


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
def test_fields_that_do_not_fit_are_not_handed_over(shapes):
    net = made("narrow")
    with pytest.raises(AssertionError):
        net(*(torch.zeros(shape) for shape in shapes), 1)


def test_layers_that_do_not_fit_are_not_handed_over():
    layers = layers_of(network("narrow"))
    for wrong in (
        layers._replace(rise=layers.fall),
        layers._replace(up=layers.up[1:]),
        layers._replace(head=[head.T for head in layers.head]),
        layers._replace(enter=[(matrix[1:], bias) for matrix, bias in layers.enter]),
        layers._replace(enter=[(matrix, bias[:0]) for matrix, bias in layers.enter]),
    ):
        with pytest.raises(AssertionError):
            compiled.CompiledUNet(wrong)


def test_a_library_of_another_version_is_not_called():
    try:
        with pytest.MonkeyPatch.context() as patch:
            compiled._declared.cache_clear()
            patch.setattr(compiled, "VERSION", compiled.VERSION + 1)
            assert not compiled.available()
    finally:
        compiled._declared.cache_clear()
    assert compiled.available()
