"""From densities on any grid to the square of a cascade, and from its potentials back.

In 3D the square is a cube.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields.quadratic import axis_taps, interpolated
from geonet.geodesics.base import Geodesic
from geonet.geodesics.midpoint.newton import Newton, Start
from geonet.geodesics.midpoint.splined import SplineGeodesic
from geonet.geodesics.stack import Stack
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box
from geonet.operators.cascade import COARSEST, CascadeNet
from geonet.operators.moves import Moves, moves_between
from geonet.operators.symmetric_unet import halved
from geonet.threads import threads_for

LEAST = {d: 2 * cells for d, cells in COARSEST.items()}  # cells of the square along an axis
MOST = {2: 512, 3: 64}


def square_cells(grid: Grid) -> int:
    """Cells an axis of the square around a box: a power of two, at best not coarser than it."""
    finest = max(n / side for n, side in zip(grid.shape, unit_box(grid).sides, strict=True))
    cells, d = 2 ** math.ceil(math.log2(finest) - 1e-9), grid.dimension
    return min(max(cells, LEAST[d]), MOST[d])


class Guess(Start):
    """A network's potential for one pair, and those on smaller cells.

    Args:
        model: the network.
        ends: both densities of the pair, (2, *cells).
        grid: whose cells these are.
        moves: of the ends, when the network saw them.
        square: spline coefficients on the cells of the square, (n, …, n), in their squares.
        halvings: how often cells were halved.
    """

    def __init__(
        self,
        model: CascadeNet,
        ends: Tensor,
        grid: Grid,
        moves: Moves,
        square: Tensor,
        halvings: int = 0,
    ):
        self.known, self.square, self.halvings = (model, ends, grid, moves), square, halvings
        potential = square[None].double() / len(square) ** 2
        super().__init__(_unmoved(_on_grid(potential, grid, halvings), grid, moves)[0])

    @torch.no_grad()
    def finer(self) -> Guess | None:
        """The network's correction on cells of half the side; None beyond the finest."""
        (model, ends, grid, moves), cells = self.known, 2 * len(self.square)
        if cells > MOST[grid.dimension]:
            return None
        source, target = moves.apply(*_on_square(ends, grid, cells)[:, None])
        (found,) = model.corrected(halved(self.square[None]), source, target)
        return Guess(model, ends, grid, moves, found, self.halvings + 1)


@torch.no_grad()
def guesses_of(model: CascadeNet, source: Density, target: Density) -> list[Guess]:
    """The potential of every pair on the grid's own cells, by one call of the network."""
    grid, cells = source.grid, square_cells(source.grid)
    first, second = (end.values.reshape(-1, *grid.shape) for end in (source, target))
    on_square = _on_square(first, grid, cells), _on_square(second, grid, cells)
    moves = moves_between(*on_square)
    answers = model(*moves.apply(*on_square))[-1]
    pairs = zip(torch.stack([first, second], 1), answers, strict=True)
    return [Guess(model, ends, grid, moves.of(k), own) for k, (ends, own) in enumerate(pairs)]


def network_path(model: CascadeNet, source: Density, target: Density, name: str) -> Geodesic:
    """The path of the network's potential as it is."""
    guesses = guesses_of(model, source.detach(), target.detach())
    if not source.leading:
        return _path(source, target, guesses[0], name)
    return Stack([_path(source[k], target[k], own, name) for k, own in enumerate(guesses)])


def _path(source: Density, target: Density, guess: Guess, name: str) -> SplineGeodesic:
    box = unit_box(source.grid)
    first, second = (box.to_density(end.values.detach()) for end in (source, target))
    newton = Newton(1.0, max_steps=0, threads=threads_for(source.grid.size))
    found = newton.polished(first, second, box.sides, guess)
    c = found.coefficients - found.coefficients.mean()  # the constant is free
    return SplineGeodesic(source, target, name, {}, c, found.residual, found.totals)


def _on_square(values: Tensor, grid: Grid, cells: int) -> Tensor:
    """Means over the cells of the square in whose middle the box is, (B, cells, …)."""
    box = unit_box(grid)
    values = box.to_density(values).float()
    for axis, (n, side) in enumerate(zip(grid.shape, box.sides, strict=True), 1):
        if (n, side) != (cells, 1.0):
            values = _along(values, _means(n, side, cells), axis)
    return values


def _on_grid(coefficients: Tensor, grid: Grid, halvings: int) -> Tensor:
    """The potential on the square in splines on the grid's cells, halved or not, (B, *cells)."""
    cells, sides = coefficients.shape[-1], unit_box(grid).sides
    shape = tuple(n << halvings for n in grid.shape)
    if shape == (cells,) * len(shape) and set(sides) == {1.0}:
        return coefficients
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True), 1):
        coefficients = _along(coefficients, _values(n, side, cells), axis)
    return torch.stack([interpolated(own) for own in coefficients])


def _unmoved(coefficients: Tensor, grid: Grid, moves: Moves) -> Tensor:
    """Potentials (B, *cells) of moved ends to those of the ends themselves."""
    if not bool(moves.steps.any()):
        return coefficients
    for axis, side in enumerate(unit_box(grid).sides):
        n, after = coefficients.shape[axis + 1], grid.dimension - 1 - axis
        own = moves.potential(axis, n, side)
        coefficients = coefficients + own.view(-1, *(1,) * axis, n, *(1,) * after)
    return coefficients


def _along(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    return (values.movedim(axis, -1) @ matrix.to(values.dtype).T).movedim(-1, axis)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _means(n: int, side: float, cells: int) -> Tensor:
    """(cells, n): from n cells of a side to means over those of [0, 1], in whose middle it is."""
    own = side * torch.arange(n + 1, dtype=torch.float64) / n + (1 - side) / 2
    edges = torch.arange(cells + 1, dtype=torch.float64) / cells
    upper = torch.minimum(edges[1:, None], own[1:])
    lower = torch.maximum(edges[:-1, None], own[:-1])
    return cells * (upper - lower).clamp(min=0)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _values(n: int, side: float, cells: int) -> Tensor:
    """(n, cells): from spline coefficients on [0, 1] to values at the centres of a side's cells."""
    centres = side * (torch.arange(n, dtype=torch.float64) + 0.5) / n + (1 - side) / 2
    taps, (weights, _, _) = axis_taps(centres, 1 / cells, cells)
    return torch.zeros(n, cells, dtype=torch.float64).scatter_add_(1, taps, weights)
