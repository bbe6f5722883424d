"""Densities at sensors as sums of cosines."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Module

from geonet.fields.cosines import cosine_transform, frequencies
from geonet.operators.jets import Jet, Z, columns, cosine

MOST_MODES = 4096  # sensors an axis of which a series is made: its table has their square


class CosineModes(Module):
    """The cosine series through the values at sensors^d centres of cells, cut after modes^d terms.

    μ(x) = Σ_k c_k Π_i cos(k_i πx_i), with k_i < modes.
    """

    def __init__(self, dimension: int, sensors: int, modes: int):
        super().__init__()
        self.shape = (sensors,) * dimension
        self.modes = modes

    def forward(self, values: Tensor) -> Tensor:
        """Values (B, sensors^d) to c, (B, modes^d)."""
        found = values.reshape(-1, *self.shape)
        matrix = cosine_transform(self.shape[0])[: self.modes].T.to(values)
        for axis in range(1, len(self.shape) + 1):
            found = (found.movedim(axis, -1) @ matrix).movedim(-1, axis)
        return found.flatten(1)

    def functions(self, z: Z) -> Z:
        """(x, t), rows (..., d + 1), to Π_i cos(k_i πx_i) there, (..., modes^d)."""
        first, *others = (self._along(columns(z, i, i + 1)) for i in range(len(self.shape)))
        for other in others:
            first = _outer(first, other)
        return first

    def _along(self, x: Z) -> Z:
        """cos(kπx) of one coordinate, (..., 1) to (..., modes)."""
        kappa = frequencies(self.modes)
        if isinstance(x, Tensor):
            return torch.cos(x * kappa.to(x))
        return cosine(x.like(x.data * kappa.to(x.data)))


class LowModes(CosineModes):
    """What a branch reads instead of sensors: their first modes, as numbers of the same size."""

    def forward(self, values: Tensor) -> Tensor:
        """Values (B, sensors^d) to (B, modes^d)."""
        return math.prod(self.shape) ** 0.5 * super().forward(values)


def _outer(a: Z, b: Z) -> Z:
    """All products of an entry of each, (..., K) and (..., L) to (..., KL)."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (a[..., :, None] * b[..., None, :]).flatten(-2)
    assert isinstance(a, Jet) and isinstance(b, Jet)
    both = a.like(a.data[..., :, None]) * b.like(b.data[..., None, :])
    return both.like(both.data.flatten(-2))
