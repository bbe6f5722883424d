"""Jets: every operation follows the chain rule."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Linear

from geonet.solvers.neural.jets import (
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
    "tanh of tanh": lambda z, f, g: apply_tanh_layer(HIDDEN, apply_tanh_layer(f, z)),
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
    assert [len(part) for part in jet.split()] == [1, 4, channels - 5]
    assert torch.equal(torch.cat(jet.split()), jet.data)
    assert torch.allclose(reverse_time(jet).value[:, 3], 1 - times)
    if second != "mixed":
        with pytest.raises(AssertionError):
            jet.gradient_rate  # noqa: B018
