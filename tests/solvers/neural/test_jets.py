"""Jets: every operation follows the chain rule."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Linear

from geonet.solvers.neural.jets import (
    Jet,
    append_constant,
    apply_linear,
    apply_tanh_layer,
    concatenate,
    cosine,
    make_variables,
    reverse_time,
    select_columns,
    sine,
)

# At its first jvp torch warns of itself.
pytestmark = [
    pytest.mark.usefixtures("double_precision"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]


def layer(inputs, bias=True):
    """Fixed numbers of order one."""
    made = Linear(inputs, 4, bias=bias)
    made.weight.data = torch.sin(1.0 + torch.arange(4.0 * inputs)).reshape(4, inputs)
    if bias:
        made.bias.data = torch.cos(torch.arange(4.0))
    return made


HIDDEN = layer(4).double()
OPERATIONS = {
    "affine": lambda z, f, g: apply_linear(f, z),
    "affine without bias": lambda z, f, g: apply_linear(g, z),
    "tanh of affine": lambda z, f, g: apply_tanh_layer(f, z),
    "tanh of tanh": lambda z, f, g: apply_tanh_layer(HIDDEN, apply_tanh_layer(f, z)),
    "cosine": lambda z, f, g: cosine(apply_linear(f, z)),
    "sine": lambda z, f, g: sine(apply_linear(f, z)),
    "cosine of sine": lambda z, f, g: cosine(sine(apply_linear(f, z))),
    "sum": lambda z, f, g: sine(z) + cosine(z),
    "difference": lambda z, f, g: sine(z) - cosine(z),
    "product": lambda z, f, g: sine(apply_linear(f, z)) * cosine(apply_linear(g, z)),
    "columns": lambda z, f, g: sine(select_columns(z, 1)),
    "joined": lambda z, f, g: concatenate([sine(z), cosine(z)]),
    "with constant": lambda z, f, g: append_constant(sine(z)),
    "backwards": lambda z, f, g: sine(reverse_time(z)),
}


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_follow_the_chain_rule(operation, d, check_jets):
    f, g = layer(d + 1), layer(d + 1, bias=False)
    check_jets(lambda z: OPERATIONS[operation](z, f, g), d)


@pytest.mark.parametrize(
    ("second", "channels"), [("none", 5), ("laplacian", 6), ("hessian", 11), ("mixed", 14)]
)
def test_layout_of_channels(second, channels, generator):
    points, times = torch.rand(7, 3, generator=generator), torch.rand(7, generator=generator)
    jet = make_variables(points, times, second)
    assert jet.data.shape == (channels, 7, 4)
    assert torch.equal(jet.value, torch.cat([points, times[:, None]], dim=1))
    assert torch.equal(jet.data[1:5], torch.eye(4)[:, None].expand(4, 7, 4))
    assert not jet.data[5:].any()


def test_derivatives_of_a_polynomial():
    """x·y²·t at (2, 3) and t = 5: ∂t∂x = y² and ∂t∂y = 2xy stand behind the Hessian."""
    jet = make_variables(torch.tensor([[2.0, 3.0]]), torch.tensor([5.0]), "mixed")
    x, y, t = (select_columns(jet, k, k + 1) for k in range(3))
    found = x * y * y * t
    assert found.gradient_rate.flatten().tolist() == [9, 12]
    assert found.hessian.reshape(2, 2).tolist() == [[0, 30], [30, 20]]
    assert found.laplacian.item() == 20
    assert found.data.flatten().tolist() == [90, 45, 60, 18, 0, 30, 20, 9, 12]


@pytest.mark.parametrize("second", ["none", "laplacian", "hessian"])
def test_mixed_derivatives_need_a_mixed_jet(second):
    jet = make_variables(torch.tensor([[2.0, 3.0]]), torch.tensor([5.0]), second)
    with pytest.raises(AssertionError):
        _ = jet.gradient_rate


def test_backwards_twice_is_the_identity(generator):
    jet = make_variables(torch.rand(5, 2, generator=generator), torch.tensor([0.25] * 5), "hessian")
    assert torch.equal(reverse_time(reverse_time(jet)).data, jet.data)
    assert torch.equal(reverse_time(jet).value[:, 2], torch.full((5,), 0.75))
    assert torch.equal(reverse_time(jet).rate[:, 2], -torch.ones(5))


def test_parts_together_are_the_jet(generator):
    for second, count in (("none", 0), ("laplacian", 1), ("hessian", 3), ("mixed", 5)):
        jet = Jet(torch.rand(4 + count, 5, generator=generator), 2, second)
        assert [len(part) for part in jet.split()] == [1, 3, count]
        assert torch.equal(torch.cat(jet.split()), jet.data)
