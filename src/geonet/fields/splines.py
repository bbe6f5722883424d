"""Densities in the unit cube as cubic B-splines, a batch of them, read in torch.

kernels.c reads 2D ones in the same way, where it was compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.fields.lookup import Fields
from geonet.fields.matrices import spline_coefficients
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box

FACE = 1.000001  # of the box, a little wider than it is: FACE of kernels.c
BLOCK = 2**17  # points that are read together: memory stays bounded


@dataclass(frozen=True, eq=False)
class Splines:
    """Densities relative to uniform on the cube, cut off at zero; zero outside their box.

    Attributes:
        coefficients: (B, *(cells + 4)), two more on each side, single precision.
        grid: where the densities live.
    """

    coefficients: Tensor
    grid: Grid

    @classmethod
    def through(cls, values: Tensor, grid: Grid) -> Splines:
        """The splines through densities (B, *grid.shape)."""
        return cls(spline_coefficients(unit_box(grid).to_density(values).float(), grid), grid)

    def __len__(self) -> int:
        return len(self.coefficients)

    def __getitem__(self, some: slice) -> Splines:
        return Splines(self.coefficients[some], self.grid)

    def at(self, points: Tensor, velocity: Fields, s: float | Tensor) -> Tensor:
        """Densities at x − s·v, (B, T, P).

        Points x (d, P), velocities d of (B, T, P), both in the unit cube; s a number or (T, 1).
        """
        each, size = velocity[0][0].numel(), self.coefficients[0].numel()
        kind = torch.int32 if self.coefficients.numel() < 2**31 else torch.int64
        begins = torch.arange(0, len(self) * size, size, dtype=kind)
        begins = begins[:, None].expand(-1, each).flatten()
        scaled = []  # cells from half a cell before the face: its whole part is the first of four
        for x, v, cells, side in zip(points, velocity, self.grid.shape, self._sides, strict=True):
            back = torch.as_tensor(s * (-cells / side), dtype=torch.float32)
            scaled.append(torch.addcmul(x * (cells / side) + 0.5, v, back).flatten())
        blocks = zip(*(part.split(BLOCK) for part in (begins, *scaled)), strict=True)
        found = [self._read(begin, places) for begin, *places in blocks]
        return torch.cat(found).reshape(velocity[0].shape)

    @property
    def _sides(self) -> tuple[float, ...]:
        return unit_box(self.grid).sides

    def _read(self, begin: Tensor, places: Sequence[Tensor]) -> Tensor:
        """Values (N,) at `places`, d of (N,), which it overwrites; each table starts at `begin`."""
        index, weights, outside = begin, [], []
        shape, count = self.coefficients.shape, len(places)
        strides = [math.prod(shape[axis:]) for axis in range(2, count + 2)]
        axes = zip(places, self.grid.shape, self._sides, strides, strict=True)
        for place, cells, side, stride in axes:
            if FACE * side < 1:  # else nothing in the cube is
                outside.append(place > FACE * cells + 0.5)
            place.clamp_(0.5, cells + 0.5)
            index = torch.add(index, place.to(index.dtype), alpha=stride)
            weights.append(_weights(place.frac_()))
        index.clamp_(0, shape.numel() - 1 - 3 * sum(strides))  # NaN places
        value = _sum(self.coefficients.flatten(), index, weights, strides)
        value.mul_(6.0**-count).clamp_(min=0)
        for beyond in outside:
            value.masked_fill_(beyond, 0.0)
        return value


def _sum(table: Tensor, index: Tensor, weights: list[list[Tensor]], strides: list[int]) -> Tensor:
    """Σ weight · coefficient over four of them along each axis, from the first at `index`."""
    total = None
    for k, weight in enumerate(weights[0]):
        rest = table[k * strides[0] :]
        if len(weights) == 1:
            part = rest.index_select(0, index)
        else:
            part = _sum(rest, index, weights[1:], strides[1:])
        total = part.mul_(weight) if total is None else total.addcmul_(part, weight)
    assert total is not None
    return total


def _weights(s: Tensor) -> list[Tensor]:
    """Six times the weights of the four coefficients around offset s ∈ [0, 1], each (N,)."""
    r = 1 - s
    squares = s * s, r * r
    four, six = s.new_tensor(4.0), s.new_tensor(-6.0)
    middle = [
        torch.addcmul(four, square, torch.add(six, way, alpha=3))
        for square, way in zip(squares, (s, r), strict=True)
    ]
    return [squares[1].mul_(r), *middle, squares[0].mul_(s)]
