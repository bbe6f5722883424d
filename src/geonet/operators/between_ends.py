"""A density between two ends that it has by construction."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from geonet.operators.branch_trunk import BranchTrunkSettings, DeepONet, unscaled
from geonet.operators.cosine_modes import CosineModes
from geonet.operators.jets import Z, backwards, columns, joined
from geonet.operators.trunk import JointTrunk, SeparableTrunk


class BetweenEnds(Module):
    """C(x, t) = (1 − t)·μ0(x) + t·μ1(x) + t(1 − t)·F(μ0, μ1)(x, t), where F is a DeepONet.

    μ0 and μ1 are the cosine series through their sensors. So C is Σ_k B0_k·B1_k·T_k still, as in
    the paper's eq. 9: in the first terms one branch is known and linear, and the other is one.
    """

    def __init__(self, settings: BranchTrunkSettings, parity: int, scale: float):
        super().__init__()
        self.inner = DeepONet(settings, parity, scale)
        self.ends = CosineModes(settings.dimension, settings.sensors, settings.sensors)
        self.dimension = settings.dimension

    @property
    def trunk(self) -> JointTrunk | SeparableTrunk:
        """That of F."""
        return self.inner.trunk

    def coefficients(self, source: Tensor, target: Tensor) -> Tensor:
        """Sensor values (B, m) of both ends, scaled, to what multiplies `basis`, (B, functions)."""
        ends = (self.ends(unscaled(end)) for end in (source, target))
        return torch.cat([self.inner.coefficients(source, target), *ends], dim=1)

    def basis(self, z: Z) -> Z:
        """(x, t) in the unit box, rows (..., d + 1), to the functions there, (..., functions)."""
        past, left = (columns(way, self.dimension) for way in (z, backwards(z)))
        waves = self.ends.functions(z)
        return joined([past * left * self.inner.basis(z), left * waves, past * waves])
