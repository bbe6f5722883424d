"""Densities in the unit cube as cubic B-splines, a batch of them, read in torch.

kernels.c reads 2D ones in the same way, where it was compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from geonet.grid import Grid, unit_box
from geonet.numerics.cosine import spline_coefficients

# ---- Fields on the unit cube, looked up between the nodes of a table.
#
# Everything here is single precision and batched: it is what a learned geodesic spends its time on,
# but in 2D where kernels.c was compiled.


Fields = Sequence[Tensor]  # the components of a vector or packed matrix, each (B, T, P)


def look_up(table: Tensor, points: Fields) -> Tensor:
    """Linear interpolation: table (B, C, *nodes) at points, d of (B, T, P), to (C, B, T, P).

    Nodes are equally spaced and include the faces of the cube; points outside move to its faces.
    """
    where, (batch, times, count) = _places(points), points[0].shape
    if table.ndim == 3:
        table = table[:, :, None]
    if batch == 1:  # threads share out the leading axis: let it be the times
        table, where = table.expand(times, *table.shape[1:]), where.transpose(0, 1)
    if table.ndim == 5:
        where = where[:, None]
    found = grid_sample(table, where, padding_mode="border", align_corners=True)
    found = found.flatten(2).transpose(0, 1)  # (C, B or T, rest)
    return found.reshape(len(found), batch, times, count)


def _places(points: Fields) -> Tensor:
    """2x − 1, (B, T, P, max(d, 2)), as grid_sample takes it: the last axis first."""
    d = len(points)
    where = points[0].new_zeros(*points[0].shape, max(d, 2))
    for i, x in enumerate(points):
        torch.add(x.new_tensor(-1.0), x, alpha=2, out=where[..., d - 1 - i])
    return where


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
