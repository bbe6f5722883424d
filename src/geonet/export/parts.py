"""The two halves of a trained model, as networks of plain tensors with named inputs and outputs.

The branch sees the densities and gives coefficients, once per pair; the basis sees points and gives
functions there, the same for all pairs. A product of both is the answer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from geonet.operators.model import BasisModel


class Branch(Module):
    """Densities at the sensors to coefficients, (B, functions) each."""

    name = "branch"
    axis = "batch"
    inputs = ("source", "target")

    def __init__(self, model: BasisModel):
        super().__init__()
        self.model = model
        self.outputs = tuple(f"{quantity}_coefficients" for quantity in model.quantities)

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Densities relative to uniform, (B, sensors^d) each."""
        return self.model.coefficients(source, target)

    def drawn(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random inputs: rough densities of mean one."""
        settings = self.model.settings
        shape = (2, count, settings.sensors**settings.dimension)
        values = torch.randn(shape, generator=generator).exp()
        return tuple(values / values.mean(-1, keepdim=True))


class Basis(Module):
    """Points, and times where the model's functions depend on them, to the functions there."""

    name = "basis"
    axis = "points"

    def __init__(self, model: BasisModel):
        super().__init__()
        self.model = model
        self.inputs = ("points",) if model.timeless else ("points", "times")
        self.outputs = model.basis_outputs

    def forward(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """(N, d) in the unit box, and (N,) in [0, 1]."""
        return self.model.basis_at(points, times)

    def drawn(self, count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Random points, and times."""
        points = torch.rand(count, self.model.settings.dimension, generator=generator)
        return (points, torch.rand(count, generator=generator))[: len(self.inputs)]


Part = Branch | Basis


def parts_of(model: BasisModel) -> tuple[Branch, Basis]:
    """Branch and basis, ready to answer."""
    return Branch(model).eval(), Basis(model).eval()
