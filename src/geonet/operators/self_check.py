"""How well C and H of a path solve their equations, and what that says about its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from geonet.measures.grid import Grid
from geonet.operators.jets import Jet
from geonet.operators.residuals import continuity, hamilton_jacobi

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)  # on [−1, 1]
GAUSS = ((_NODES + 1) / 2).tolist(), (_WEIGHTS / 2).tolist()  # times and weights on [0, 1]


class SelfCheck(NamedTuple):
    """Residuals of a batch of paths in the unit box, integrated over x and t, each (B,).

    Attributes:
        created: ∫∫|r| with r = ∂tC + ∇·(C∇H) + εΔC: mass that comes from nowhere, or goes there.
        bent: √∫∫|a|²dC over √∫∫|∇H|²dC, where a = ∇(∂tH + ½|∇H|² − εΔH) is the acceleration of
            particles, which is zero on a geodesic.
        displaced: ∫∫|∇·(Ca)|: the rate at which that acceleration changes the density.
    """

    created: Tensor
    bent: Tensor
    displaced: Tensor

    @property
    def expected(self) -> Tensor:
        """The L1 error at t = ½ that the residuals can explain, up to a factor.

        What comes from nowhere until then, ½∫∫|r|, and what particles bring that are off their
        lines, by a/8 at most where a does not change.
        """
        return self.created / 2 + self.displaced / 8


def self_check(jets: Callable[[float], tuple[Jet, Jet]], grid: Grid, epsilon: float) -> SelfCheck:
    """By Gauss's rule in t, and on the cells of a grid.

    Args:
        jets: the jets of C and H, with their Laplacians, at all cells at a time, (channels, B, N).
        grid: these cells in the unit box.
        epsilon: of a bridge, in the unit box.
    """
    sums = [torch.zeros(()) for _ in range(4)]
    for t, weight in zip(*GAUSS, strict=True):
        density, potential = jets(t)
        mass = density.value.clamp(min=0)
        bend = _gradient(hamilton_jacobi(potential, epsilon), grid)
        displaced = sum(_slope(mass * a, grid, i) for i, a in enumerate(bend))
        found = (
            continuity(density, potential, epsilon).abs(),
            displaced.abs(),  # pyright: ignore[reportAttributeAccessIssue]
            mass * sum(a**2 for a in bend),
            mass * (potential.gradient**2).sum(0),
        )
        whole = weight * grid.volume
        sums = [s + whole * f.double().mean(-1) for s, f in zip(sums, found, strict=True)]
    created, displaced, bent, moved = sums
    tiny = torch.finfo(torch.float64).tiny
    return SelfCheck(created, (bent / moved.clamp(min=tiny)).sqrt(), displaced)


def _gradient(values: Tensor, grid: Grid) -> list[Tensor]:
    """∂_i of values (B, cells) for every axis, each (B, cells)."""
    return [_slope(values, grid, axis) for axis in range(grid.dimension)]


def _slope(values: Tensor, grid: Grid, axis: int) -> Tensor:
    """∂_axis by central differences, (B, cells) to the same."""
    field = values.unflatten(-1, grid.shape)
    return torch.gradient(field, spacing=grid.spacing[axis], dim=axis + 1)[0].flatten(1)
