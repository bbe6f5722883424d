"""From densities on any grid to the square of a cascade, and from its potentials back."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields.elliptic import Totals, levels_on
from geonet.fields.levels import repeated
from geonet.fields.looks import Looked, looked
from geonet.fields.quadratic import axis_taps, interpolated
from geonet.geodesics.base import Geodesic
from geonet.geodesics.midpoint.newton import MOST_HALVINGS, unbalanced, wants_more
from geonet.geodesics.midpoint.splined import SplineGeodesic
from geonet.geodesics.stack import Stack
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box
from geonet.operators.cascade import COARSEST, CascadeNet
from geonet.operators.symmetric_unet import halved
from geonet.threads import threads_for

LEAST, MOST = 2 * COARSEST, 512  # cells of the square along an axis


def square_cells(grid: Grid) -> int:
    """Cells an axis of the square around a box: a power of two, at best not coarser than it."""
    finest = max(n / side for n, side in zip(grid.shape, unit_box(grid).sides, strict=True))
    return min(max(2 ** math.ceil(math.log2(finest) - 1e-9), LEAST), MOST)


@torch.no_grad()
def potentials_of(model: CascadeNet, source: Density, target: Density) -> list[Tensor]:
    """Spline coefficients in the unit cube, (*cells) of every pair, double precision.

    The cells are the grid's; or halves or quarters of them, where the potential on larger ones
    cannot balance the densities and the network on smaller ones raises the dual value. One call of
    the network for all pairs of one size.
    """
    grid, cells = source.grid, square_cells(source.grid)
    pairs = list(range(len(source) if source.leading else 1))
    ends = [end.values.reshape(-1, *grid.shape) for end in (source, target)]
    squares = [_on_square(end, grid, cells) for end in ends]
    found = model(*squares)[-1]
    answers = list(_on_grid(found.double() / cells**2, grid, 0))
    look = _looked(found, squares)
    for halvings in range(1, MOST_HALVINGS + 1):
        some = _lacking(look, grid, halvings)
        if not some or 2 * cells > MOST:
            break
        cells, pairs = 2 * cells, [pairs[i] for i in some]
        squares = [_on_square(end[pairs], grid, cells) for end in ends]
        found, before = model.corrected(halved(found[some]), *squares), look.dual[some]
        look = _looked(found, squares)
        better = [i for i, gain in enumerate((look.dual > before).tolist()) if gain]
        found, look = found[better], Looked(*(part[better] for part in look))
        pairs, squares = [pairs[i] for i in better], [square[better] for square in squares]
        for k, own in zip(pairs, _on_grid(found.double() / cells**2, grid, halvings), strict=True):
            answers[k] = own
    return answers


def _looked(found: Tensor, squares: list[Tensor]) -> Looked:
    source, target = squares
    return looked(found, source, target, torch.get_num_threads())


def _lacking(look: Looked, grid: Grid, times: int) -> list[int]:
    """The pairs that want smaller cells a first or second time.

    Of what does not match halfway, smaller cells mend only what is not a matter of the potential.
    """
    cell, lacking = 1 / square_cells(grid), []
    unbalanced = look.residual.abs().mean((1, 2)).tolist()
    for k, (own, left) in enumerate(zip(look.totals.tolist(), unbalanced, strict=True)):
        totals = Totals(*own)
        if wants_more(totals._replace(mismatch=totals.mismatch - left), cell, times):
            lacking.append(k)
    return lacking


def network_path(model: CascadeNet, source: Density, target: Density, name: str) -> Geodesic:
    """The path of the network's potential as it is."""
    potentials = potentials_of(model, source.detach(), target.detach())
    if not source.leading:
        return _path(source, target, potentials[0], name)
    return Stack([_path(source[k], target[k], own, name) for k, own in enumerate(potentials)])


def _path(source: Density, target: Density, coefficients: Tensor, name: str) -> SplineGeodesic:
    box, cells = unit_box(source.grid), coefficients.shape
    equation = levels_on(cells, box.sides, threads_for(coefficients.numel())).at(0)
    first, second = (
        repeated(box.to_density(end.values.detach()), cells) for end in (source, target)
    )
    equation.between(first, second, 0.0)
    residual, totals = equation.look(coefficients)
    c = coefficients - coefficients.mean()  # the constant is free
    known = c, unbalanced(residual, totals), Totals(*totals)
    return SplineGeodesic(source, target, name, {}, *known)


def _on_square(values: Tensor, grid: Grid, cells: int) -> Tensor:
    """Means over the cells of the square in whose middle the box is, (B, cells, cells)."""
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
    if shape == (cells, cells) and sides == (1.0, 1.0):
        return coefficients
    for axis, (n, side) in enumerate(zip(shape, sides, strict=True), 1):
        coefficients = _along(coefficients, _values(n, side, cells), axis)
    return torch.stack([interpolated(own) for own in coefficients])


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
