"""What potentials leave unbalanced halfway, for batches of pairs on the unit cube.

The same as `fields.elliptic` has for one pair, in the units of networks: lengths in cells,
densities relative to the uniform one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from geonet.fields.compiled import elliptic as compiled
from geonet.fields.elliptic import PlainLevels, Totals

LEAST = 1e-6  # of what is divided by: a potential may lead everything to empty cells


class Looked(NamedTuple):
    """The equation at given potentials.

    Attributes:
        residual: Σ over half-cells of B_i(ρ1 − ρ0), (B, *cells), relative to the uniform density.
        weight: trace A/d, (B, *cells), likewise.
        totals: as in `fields.elliptic.Totals`, (B, 6).
        potentials: in the unit cube, (B, *cells).
    """

    residual: Tensor
    weight: Tensor
    totals: Tensor
    potentials: Tensor

    @property
    def dual(self) -> Tensor:
        """Kantorovich's dual value of the potentials, (B,): at most W2² where no map folds.

        Sums over half-cells give both ends masses that differ a little. A constant in the potential
        would count with this difference, and could make the value as large as one likes. So the
        potentials are taken with mean zero where the mass is.
        """
        source, target, energy, gain = (
            self.totals[:, Totals._fields.index(name)]
            for name in ("source", "target", "energy", "gain")
        )
        where = self.weight.flatten(1).double()
        mean = (self.potentials.flatten(1) * where).sum(1) / where.sum(1).clamp(min=LEAST)
        return energy / 2 + 2 * (gain - mean * (target - source))

    @property
    def gradient(self) -> Tensor:
        """Half the derivative of `dual` in the potentials, (B, *cells): the residual of mean zero.

        What both masses differ by is taken away where the mass is; that they depend on the
        potentials is left out.
        """
        cells = tuple(range(1, self.residual.ndim))
        mass = self.weight.mean(cells, keepdim=True).clamp(min=LEAST)
        return self.residual - self.residual.mean(cells, keepdim=True) / mass * self.weight


@torch.no_grad()
def looked(coefficients: Tensor, source: Tensor, target: Tensor, threads: int) -> Looked:
    """Look at potentials, (B, *cells) in squared cells, between densities (B, *cells) of mean one.

    Pairs are shared out among the threads; a single pair has them all.
    """
    shape = coefficients.shape[1:]
    potentials = coefficients.double() / max(shape) ** 2
    sides = [n / max(shape) for n in shape]
    if compiled.available():
        found = compiled.looks(potentials, source, target, sides, threads)
    else:
        found = _plainly(potentials, source, target, sides)
    residual, weight, totals = found
    return Looked(residual * math.prod(shape), weight, totals, potentials)


def _plainly(
    potentials: Tensor, source: Tensor, target: Tensor, sides: Sequence[float]
) -> tuple[Tensor, Tensor, Tensor]:
    """Pair by pair in torch."""
    residual, weight = torch.empty_like(source), torch.empty_like(source)
    totals = potentials.new_empty(len(source), len(Totals._fields))
    equation = PlainLevels(source.shape[1:], sides).at(0)
    for k, ends in enumerate(zip(source, target, strict=True)):
        equation.between(*ends, 0.0)
        residual[k], sums = equation.look(potentials[k])
        weight[k], totals[k] = equation.mean_weight(), potentials.new_tensor(sums)
    return residual, weight, totals
