"""Endpoint densities in the unit cube, evaluated between their cells, for a batch of pairs.

`Splines` are cubic B-splines in single precision, in torch or, in 2D, in cosine_paths.c.
`DifferentiableDensity` is the same in double precision with gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.numerics.cosine import spline_coefficients
from geonet.numerics.interpolation import CubicSpline
from geonet.solvers.neural.transport import compiled

Fields = Sequence[Tensor]  # the components of a vector or packed matrix, each (B, T, P)


@dataclass(frozen=True, eq=False)
class Splines:
    """Densities relative to uniform on the cube, clipped at zero; zero outside their box.

    Attributes:
        coefficients: (B, *(cells + 4)), two more on each side, single precision.
        grid: the grid of the densities.
    """

    coefficients: Tensor
    grid: Grid

    @classmethod
    def through(cls, values: Tensor, grid: Grid) -> Splines:
        """Return the splines through densities (B, *grid.shape)."""
        return cls(spline_coefficients(unit_box(grid).to_density(values).float(), grid), grid)

    def __len__(self) -> int:
        return len(self.coefficients)

    def __getitem__(self, pairs: slice) -> Splines:
        return Splines(self.coefficients[pairs], self.grid)

    def at(self, points: Tensor, velocity: Fields, s: float | Tensor) -> Tensor:
        """Return the densities at x − s·v, (B, T, P).

        Args:
            points: x in the unit cube, (d, P).
            velocity: components of v, d tensors (B, T, P).
            s: a number or (T, 1).
        """
        if compiled.supports(self.grid):
            return compiled.evaluate_splines(self, points, velocity, s)
        return self._evaluate(points, velocity, s)

    def _evaluate(
        self, points: Tensor, velocity: Fields, s: float | Tensor, block: int = 2**17
    ) -> Tensor:
        """Evaluate in torch, in blocks of points to bound the memory."""
        each, size = velocity[0][0].numel(), self.coefficients[0].numel()
        dtype = torch.int32 if self.coefficients.numel() < 2**31 else torch.int64
        offsets = torch.arange(0, len(self) * size, size, dtype=dtype)
        offsets = offsets[:, None].expand(-1, each).flatten()
        scaled = []  # in cells from half a cell before the face: the integer part is the first of 4
        for x, v, cells, side in zip(points, velocity, self.grid.shape, self._sides, strict=True):
            factor = torch.as_tensor(s * (-cells / side), dtype=torch.float32)
            scaled.append(torch.addcmul(x * (cells / side) + 0.5, v, factor).flatten())
        blocks = zip(*(part.split(block) for part in (offsets, *scaled)), strict=True)
        values = [self._evaluate_block(offset, positions) for offset, *positions in blocks]
        return torch.cat(values).reshape(velocity[0].shape)

    @property
    def _sides(self) -> tuple[float, ...]:
        return unit_box(self.grid).sides

    def _evaluate_block(self, offset: Tensor, positions: Sequence[Tensor]) -> Tensor:
        """Return values (N,) at positions, d of (N,), which are overwritten.

        `offset` is the first index of the coefficients of each position's density.
        """
        index, weights, outside = offset, [], []
        shape, count = self.coefficients.shape, len(positions)
        strides = [math.prod(shape[axis:]) for axis in range(2, count + 2)]
        face = 1.000001  # the box is slightly wider, as FACE of cosine_paths.c
        axes = zip(positions, self.grid.shape, self._sides, strides, strict=True)
        for position, cells, side, stride in axes:
            if face * side < 1:  # otherwise no point of the cube is outside
                outside.append(position > face * cells + 0.5)
            position.clamp_(0.5, cells + 0.5)
            index = torch.add(index, position.to(index.dtype), alpha=stride)
            weights.append(_spline_weights(position.frac_()))
        index.clamp_(0, shape.numel() - 1 - 3 * sum(strides))  # for NaN positions
        value = _weighted_sum(self.coefficients.flatten(), index, weights, strides)
        value.mul_(6.0**-count).clamp_(min=0)
        for beyond in outside:
            value.masked_fill_(beyond, 0.0)
        return value


def _weighted_sum(
    table: Tensor, index: Tensor, weights: list[list[Tensor]], strides: list[int]
) -> Tensor:
    """Return Σ weight · coefficient over four coefficients along each axis from `index`."""
    total = None
    for k, weight in enumerate(weights[0]):
        rest = table[k * strides[0] :]
        if len(weights) == 1:
            part = rest.index_select(0, index)
        else:
            part = _weighted_sum(rest, index, weights[1:], strides[1:])
        total = part.mul_(weight) if total is None else total.addcmul_(part, weight)
    assert total is not None
    return total


def _spline_weights(s: Tensor) -> list[Tensor]:
    """Return six times the weights of the four coefficients around s ∈ [0, 1], each (N,)."""
    r = 1 - s
    squares = s * s, r * r
    four, six = s.new_tensor(4.0), s.new_tensor(-6.0)
    middle = [
        torch.addcmul(four, square, torch.add(six, way, alpha=3))
        for square, way in zip(squares, (s, r), strict=True)
    ]
    return [squares[1].mul_(r), *middle, squares[0].mul_(s)]


@dataclass(frozen=True)
class DifferentiableDensity:
    """Cubic splines of densities (B, *grid.shape) with gradients."""

    tensor: Tensor
    grid: Grid

    @classmethod
    def from_density(cls, density: Density) -> DifferentiableDensity:
        """Return a density as a batch of one, or a batch."""
        return cls(density.tensor.reshape(-1, *density.grid.shape), density.grid)

    def __len__(self) -> int:
        return len(self.tensor)

    def at(
        self, points: Tensor, velocity: Fields, s: float | Tensor, rounding: float = 1e-6
    ) -> Tensor:
        """Return the densities at x − s·v, (B, T, P), as `Splines.at`.

        Points that are outside the box by up to `rounding` count as inside.
        """
        box = unit_box(self.grid)
        positions = points.T - torch.as_tensor(s)[..., None] * torch.stack(list(velocity), -1)
        spline = CubicSpline(box.to_density(self.tensor), box.cells)
        values = spline(positions.double().flatten(1, 2)).reshape(positions.shape[:-1])
        outside = (positions < -rounding) | (positions > box.cells.upper_tensor + rounding)
        return values.clamp(min=0).masked_fill(outside.any(-1), 0.0)


class DensityPairs:
    """The endpoints of one path or of a batch, with their splines.

    Attributes:
        grid: the grid of the densities.
        box: the unit box of the grid.
        ends: both densities, (B, *grid.shape) each.
        max_stored: largest number of cells for which the splines are kept (32 MB per end).
        chunk_points: number of points that are evaluated at once, to bound the memory.
    """

    max_stored = 2**23
    chunk_points = 2**19

    def __init__(self, source: Density, target: Density):
        self.grid = source.grid
        self.box = unit_box(self.grid)
        self.ends = [end.tensor.reshape(-1, *self.grid.shape) for end in (source, target)]
        self._stored: tuple[Splines, Splines] | None = None

    def __len__(self) -> int:
        return len(self.ends[0])

    def chunks(self, points: int) -> Iterator[tuple[slice, tuple[Splines, Splines]]]:
        """Iterate over as many pairs at a time as `points` points of each allow."""
        step = max(1, self.chunk_points // max(points, self.grid.size))
        for start in range(0, len(self), step):
            pairs = slice(start, min(start + step, len(self)))
            yield pairs, self._splines(pairs)

    def _splines(self, pairs: slice) -> tuple[Splines, Splines]:
        if len(self) * self.grid.size > self.max_stored:
            return self._fit(pairs)
        if self._stored is None:
            self._stored = self._fit(slice(None))
        if pairs == slice(0, len(self)):
            return self._stored
        return self._stored[0][pairs], self._stored[1][pairs]

    def _fit(self, pairs: slice) -> tuple[Splines, Splines]:
        source, target = (end[pairs] for end in self.ends)
        both = Splines.through(torch.cat([source, target]), self.grid)
        return both[: len(source)], both[len(source) :]
