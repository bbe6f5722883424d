"""Both ends of a pair moved towards each other by whole cells, until their means agree.

Transport commutes with translations. If a source is moved by s and its target by −s, the pair meets
at the same places halfway, and the potential lacks the part 2s·y. What is small and has far to go
is then no harder than what stays.

A potential is flat at the faces of the box. So 2s·y is bent there, between the places where the
ends can meet and the face, and so little that nothing folds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BORDER = 1  # empty cells that a move leaves
TIE = 1e-3  # of a cell: what is nearer to half a cell counts as less, whichever way one looks


class Moves(NamedTuple):
    """By how much pairs are moved, in the unit square or cube.

    Attributes:
        steps: what is added to a source's place and taken from a target's, (B, d).
        centre: the mean of both ends, where `potential` is zero, (B, d). A constant would count:
            sums over half-cells give both ends masses that differ a little.
        room: from the lower and the upper face to where the ends can meet, (B, d, 2).
    """

    steps: Tensor
    centre: Tensor
    room: Tensor

    def of(self, k: int) -> Moves:
        """One pair's."""
        return Moves(*(part[k : k + 1] for part in self))

    def apply(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The moved ends, (B, n, …, n) each."""
        cells = (self.steps * source.shape[-1]).round().long()
        return _rolled(source, cells), _rolled(target, -cells)

    def potential(self, axis: int, n: int, side: float) -> Tensor:
        """What moved ends lack along an axis: spline coefficients (B, n) in the middle's `side`.

        Between two cells the slope of a spline is the difference of their coefficients.
        """
        outside, step = (1 - side) / 2, 2 * self.steps[:, axis, None]
        edges = side * torch.arange(1, n, dtype=torch.float64) / n + outside
        low, high = self.room[:, axis, :, None].clamp(min=TIE / n).unbind(1)
        slope = step * torch.minimum(edges / low, (1 - edges) / high).clamp(max=1)
        values = torch.nn.functional.pad(slope.cumsum(1) * side / n, (1, 0))
        place = (self.centre[:, axis, None] - outside) / side * n - 0.5  # in cells
        nearest = place.round().clamp(0, n - 1).long()
        return values - values.gather(1, nearest) - step * (place - nearest) * side / n


def moves_between(source: Tensor, target: Tensor) -> Moves:
    """For densities (B, n, …, n), as far as the empty cells around them allow."""
    count, n, d = len(source), source.shape[-1], source.ndim - 1
    if not count or min(float(source.min()), float(target.min())) > 0:  # often, and soon said
        nothing = torch.zeros(count, d, dtype=torch.float64)
        return Moves(nothing, nothing, torch.zeros(count, d, 2, dtype=torch.float64))
    along = [_along(source, target, axis) for axis in range(1, d + 1)]
    steps, centre, low, high = (torch.stack(parts, 1) / n for parts in zip(*along, strict=True))
    return Moves(steps, centre, torch.stack([low, high], 2))


def _along(source: Tensor, target: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Step, centre and room at both faces along an axis, in cells, (B,) each."""
    n = source.shape[-1]
    line = torch.arange(n, dtype=torch.float64)
    (mean0, low0, high0), (mean1, low1, high1) = (
        _extent(_marginal(end, axis), line) for end in (source, target)
    )
    half = (mean1 - mean0) / 2
    wanted = half.sign() * (half.abs() + 0.5 - TIE).floor()
    low, high = (low0 + low1) / 2, (high0 + high1) / 2
    unfolded = torch.minimum(low, high).floor()
    up = torch.minimum(torch.minimum(high0, low1) - BORDER, unfolded).clamp(min=0)
    down = torch.minimum(torch.minimum(low0, high1) - BORDER, unfolded).clamp(min=0)
    step = torch.maximum(torch.minimum(wanted, up), -down)
    return step, (mean0 + mean1) / 2 + 0.5, low, high


def _marginal(density: Tensor, axis: int) -> Tensor:
    """Along an axis, (B, n), of sum one."""
    others = [other for other in range(1, density.ndim) if other != axis]
    own = density.double().sum(others)
    return own / own.sum(1, keepdim=True)


def _extent(marginal: Tensor, line: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean cell, and how many are empty below and above, (B,) each."""
    full, last = marginal > 0, len(line) - 1
    below = torch.where(full, line, last).amin(1)
    above = torch.where(full, last - line, last).amin(1)
    return (marginal * line).sum(1), below, above


def _rolled(values: Tensor, cells: Tensor) -> Tensor:
    """Fields (B, n, …, n) moved by whole cells (B, d); what is rolled round is empty."""
    axes = tuple(range(values.ndim - 1))
    pairs = zip(values, cells.tolist(), strict=True)
    return torch.stack([own.roll(by, axes) if any(by) else own for own, by in pairs])
