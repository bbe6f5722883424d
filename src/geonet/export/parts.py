"""The two halves of a trained model, as networks of plain tensors with named inputs and outputs.

The branch sees the densities and gives coefficients, once per pair; the basis sees points and gives
functions there, the same for all pairs. A product of both is the answer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from geonet.operators.build import Model
from geonet.operators.deeponet import DensityNet, GeONet
from geonet.operators.jets import variables
from geonet.operators.transport import TransportNet


class Branch(Module):
    """Densities at the sensors to coefficients, (B, functions) each."""

    name = "branch"
    axis = "batch"
    inputs = ("source", "target")

    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        self.outputs = tuple(f"{quantity}_coefficients" for quantity in quantities(model))

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Densities relative to uniform, (B, sensors^d) each."""
        found = self.model.coefficients(source, target)
        return found if isinstance(found, tuple) else (found,)

    def drawn(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random inputs: rough densities of mean one."""
        settings = self.model.settings
        shape = (2, count, settings.sensors**settings.dimension)
        values = torch.randn(shape, generator=generator).exp()
        return tuple(values / values.mean(-1, keepdim=True))


class TransportBasis(Module):
    """Points to Π_i cos(k_i π x_i), (N, functions), their gradients and second derivatives."""

    name = "basis"
    axis = "points"
    inputs = ("points",)
    outputs = ("potential", "potential_gradient", "potential_hessian")

    def __init__(self, model: TransportNet):
        super().__init__()
        self.model = model

    def forward(self, points: Tensor) -> tuple[Tensor, ...]:
        """(N, d) in the unit box."""
        jet = self.model.basis(variables(points, torch.zeros_like(points[:, 0]), "hessian"))
        return jet.value, jet.gradient, jet.hessian

    def drawn(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random points."""
        return (torch.rand(count, self.model.settings.dimension, generator=generator),)


class DeepONetBasis(Module):
    """Points and times to the functions of every quantity of the model, (N, functions) each."""

    name = "basis"
    axis = "points"
    inputs = ("points", "times")

    def __init__(self, model: DensityNet | GeONet):
        super().__init__()
        self.model = model
        self.outputs = quantities(model)

    def forward(self, points: Tensor, times: Tensor) -> tuple[Tensor, ...]:
        """(N, d) in the unit box, and (N,) in [0, 1]."""
        rows = torch.cat([points, times[:, None]], dim=1)
        return tuple(getattr(self.model, quantity).basis(rows) for quantity in self.outputs)

    def drawn(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random points and times."""
        points = torch.rand(count, self.model.settings.dimension, generator=generator)
        return points, torch.rand(count, generator=generator)


Part = Branch | TransportBasis | DeepONetBasis


def parts_of(model: Model) -> tuple[Part, Part]:
    """Branch and basis, ready to answer."""
    kind = TransportBasis if isinstance(model, TransportNet) else DeepONetBasis
    return Branch(model).eval(), kind(model).eval()  # pyright: ignore[reportArgumentType]


def quantities(model: Model) -> tuple[str, ...]:
    """What a model gives: its potential, its density, or both."""
    if isinstance(model, TransportNet):
        return ("potential",)
    return ("density", "potential") if isinstance(model, GeONet) else ("density",)
