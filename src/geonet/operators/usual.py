"""Whether a density is like those that a model was trained on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

DIRECTIONS = 64  # along which the spread of the densities is known
FAINT = 1e-5  # of the largest variance: the smallest that a direction is taken to have
RARE = 0.001  # share of the model's own densities that are called unusual


class Usual(Module):
    """Mean and principal directions of the densities of a family, at m sensors.

    How unusual a density is: its squared distance from their mean, in units of the variance along
    each direction, divided by m. Lumps narrower than any of the family's lie far off along
    directions in which those hardly vary.
    """

    mean: Tensor
    directions: Tensor
    faint: Tensor
    limit: Tensor

    def __init__(self, sensors: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(sensors))
        self.register_buffer("directions", torch.zeros(sensors, min(DIRECTIONS, sensors)))
        self.register_buffer("faint", torch.ones(()))  # the variance along all other directions
        self.register_buffer("limit", torch.zeros(()))  # how unusual its own densities are at most

    @property
    def known(self) -> bool:
        """Whether it has seen a family."""
        return bool(self.limit > 0)

    @torch.no_grad()
    def learn(self, densities: Tensor) -> None:
        """The first half of the densities (N, m) tells how they spread, the second half the limit.

        A limit from densities that the directions were fitted to would be too low.
        """
        fitted, others = densities.double().chunk(2)
        mean = fitted.mean(0)
        _, scales, axes = torch.linalg.svd(fitted - mean, full_matrices=False)
        count = min(self.directions.shape[1], len(scales))
        variances = scales**2 / len(fitted)
        smallest = FAINT * variances[0].clamp(min=torch.finfo(torch.float32).tiny / FAINT)
        left = variances[count:].sum() / max(1, len(mean) - count)  # of noise, say
        faint = torch.maximum(smallest, left)
        directions = axes[:count].T / variances[:count].clamp(min=faint).sqrt()
        self.mean.copy_(mean)
        self.directions.zero_()
        self.directions[:, :count] = directions.to(self.directions)
        self.faint.copy_(faint)
        self.limit.copy_(torch.quantile(self.distance(others.float()), 1 - RARE))

    def distance(self, densities: Tensor) -> Tensor:
        """How unusual densities (B, m) are, (B,)."""
        off = (densities - self.mean).double()
        scaled = self.directions.double()
        along = off @ scaled
        lengths = (scaled**2).sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        rest = (off**2).sum(-1) - (along**2 / lengths).sum(-1)
        return ((along**2).sum(-1) + rest.clamp(min=0) / self.faint) / off.shape[-1]

    def forward(self, densities: Tensor) -> Tensor:
        """Whether densities (B, m) are no more unusual than nearly all of the family's, (B,)."""
        return self.distance(densities) <= self.limit
