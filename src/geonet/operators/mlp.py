"""Plain and modified multilayer perceptrons, on tensors and on jets."""

from __future__ import annotations

from itertools import pairwise

from torch.nn import Linear, Module, ModuleList
from torch.nn.init import zeros_

from geonet.operators.initial import glorot
from geonet.operators.jets import Z, affine, tanh_layer


class MLP(Module):
    """`depth` layers: tanh(W_k · + b_k), `depth − 1` of them, and a linear output."""

    def __init__(self, inputs: int, width: int, depth: int, outputs: int):
        super().__init__()
        sides = [inputs] + [width] * (depth - 1)
        self.layers = ModuleList(linear(i, o) for i, o in pairwise(sides))
        self.output = linear(sides[-1], outputs)

    def features(self, z: Z) -> Z:
        """What the output layer sees, (..., width)."""
        for layer in self.layers:
            z = tanh_layer(layer, z)  # pyright: ignore[reportArgumentType]
        return z

    def forward(self, z: Z) -> Z:
        """(..., inputs) to (..., outputs)."""
        return affine(self.output, self.features(z))


class ModifiedMLP(Module):
    """The paper's gated network, of `depth` layers from H¹ to the output:

        U = σ(W¹X + b¹),  V = σ(W²X + b²),  H¹ = σ(W^h X + b^h)
        Z^k = σ(W^k H^k + b^k),  H^{k+1} = (1 − Z^k)⊙U + Z^k⊙V.

    (The paper prints U for the second gate, a slip.)
    """

    def __init__(self, inputs: int, width: int, depth: int, outputs: int):
        super().__init__()
        self.gate_u, self.gate_v, self.first = (linear(inputs, width) for _ in range(3))
        self.layers = ModuleList(linear(width, width) for _ in range(depth - 2))
        self.output = linear(width, outputs)

    def features(self, z: Z) -> Z:
        """What the output layer sees, (..., width)."""
        u, v, h = (tanh_layer(layer, z) for layer in (self.gate_u, self.gate_v, self.first))
        between = v - u
        for layer in self.layers:
            h = u + tanh_layer(layer, h) * between  # pyright: ignore[reportArgumentType]
        return h

    def forward(self, z: Z) -> Z:
        """(..., inputs) to (..., outputs)."""
        return affine(self.output, self.features(z))


def linear(inputs: int, outputs: int) -> Linear:
    """Glorot's normal weights, zero biases."""
    layer = Linear(inputs, outputs)
    glorot(layer.weight)
    zeros_(layer.bias)
    return layer
