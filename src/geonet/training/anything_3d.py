"""Pairs of any densities on the unit cube, new ones at every draw: `anything`, in space.

The ends are mixtures, fields, textures, shapes, tubes, spots or noise, with or without empty
regions and a uniform share. Some pairs show two parts of one canvas, some fill a box only, some are
constant in blocks of cells.
"""

from __future__ import annotations

from functools import partial
from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool3d

from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators.objective import EndFunctions
from geonet.training.anything import (
    ALIKE,
    BLOCKIER,
    BLOCKY,
    CUT,
    ELSEWHERE,
    EMPTY,
    REMAINDER,
    random_kinds,
    uniform_share,
)
from geonet.training.cells import Cells
from geonet.training.drawn_densities import Kind, fields, noise
from geonet.training.drawn_densities_3d import mixtures, shapes, spots, textures, tubes
from geonet.training.problem import Problem
from geonet.training.random_fields import chance, normalised, smooth_fields, uniform

CELLS = 32  # along an axis
KINDS: dict[str, tuple[Kind, float]] = {  # each with how often it is drawn
    "mixtures": (mixtures, 3.0),
    "fields": (partial(fields, dimension=3), 4.0),
    "textures": (textures, 2.0),
    "shapes": (shapes, 3.0),
    "tubes": (tubes, 2.0),
    "spots": (spots, 2.0),
    "noise": (partial(noise, dimension=3), 1.0),
}
ORDERS = list(permutations((2, 3, 4)))  # of the axes of pairs (2, count, n, n, n)
PIECE = 2 * CELLS**3  # cells that are drawn at once: more do not stay near the processor


class Anything3D(Problem):
    """Random pairs of every kind on 32×32×32 cells of the unit cube."""

    def __init__(self) -> None:
        self.box = Grid((CELLS,) * 3)

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """New pairs, by their cells."""
        source, target = random_pairs(generator, count)
        return Cells(source), Cells(target)

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """The pairs that `draw` would give."""
        source, target = random_pairs(generator, count)
        return Density(source.double(), self.box), Density(target.double(), self.box)


def random_pairs(generator: torch.Generator, count: int, cells: int = CELLS) -> Tensor:
    """Sources and targets of mean one, (2, count, cells, cells, cells), float32.

    Their law does not change if the cube is reflected, its axes or the ends are exchanged.
    """
    ends = torch.empty(2, count, cells, cells, cells)
    elsewhere = chance(generator, ELSEWHERE, count)
    windows = int(elsewhere.sum())
    ends[:, elsewhere] = two_windows(generator, windows, cells)
    ends[:, ~elsewhere] = two_densities(generator, count - windows, cells)
    cut = chance(generator, CUT, count)
    ends[:, cut] = (ends[:, cut] + REMAINDER) * boxes(generator, int(cut.sum()), cells)
    blocks = torch.where(chance(generator, BLOCKY, count), 2, 1)
    blocks = torch.where(chance(generator, BLOCKIER, count), 4, blocks)
    for size in (2, 4):
        ends[:, blocks == size] = coarse(ends[:, blocks == size], size)
    return normalised(turned_about(generator, ends), 3)


def coarse(ends: Tensor, size: int) -> Tensor:
    """Densities (2, count, n, n, n) that are constant in blocks of cells, as on coarser grids."""
    if not ends.numel():  # which torch refuses to average
        return ends
    means = avg_pool3d(ends, size)
    for axis in (2, 3, 4):
        means = means.repeat_interleave(size, axis)
    return means


def two_densities(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Pairs of independent densities, often of one kind, (2, count, cells, cells, cells)."""
    first, second = (random_kinds(generator, count, KINDS) for _ in range(2))
    second = torch.where(chance(generator, ALIKE, count), first, second)
    drawn = random_densities(generator, torch.cat([first, second]), cells)
    return drawn.unflatten(0, (2, count))


def two_windows(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Two parts of one density each, (2, count, cells, cells, cells): much the same, but moved.

    The density is a quarter as wide again; along each axis the windows are at most cells/6 apart.
    """
    room, step = cells // 4, cells // 6
    canvas = random_densities(generator, random_kinds(generator, count, KINDS), cells + room)
    first = torch.randint(room + 1, (count, 3), generator=generator)
    moved = first + torch.randint(-step, step + 1, (count, 3), generator=generator)
    ends = torch.empty(2, count, cells, cells, cells)
    for end, corners in zip(ends, (first, moved.clamp(0, room)), strict=True):
        for k, (x, y, z) in enumerate(corners.tolist()):
            end[k] = canvas[k, x : x + cells, y : y + cells, z : z + cells]
    return normalised(ends + REMAINDER, 3)


def random_densities(generator: torch.Generator, kinds: Tensor, cells: int) -> Tensor:
    """Densities of given kinds (count,), of mean one, (count, cells, cells, cells)."""
    values = torch.empty(len(kinds), cells, cells, cells)
    for number, (kind, _) in enumerate(KINDS.values()):
        of_this = torch.nonzero(kinds == number).flatten()
        for piece in of_this.split(max(1, PIECE // cells**3)):
            if len(piece):
                values[piece] = normalised(kind(generator, len(piece), cells), 3)
    empty = chance(generator, EMPTY, len(kinds))
    mask = _mask(generator, int(empty.sum()), cells)
    values[empty] = normalised(values[empty] * mask, 3)
    share = uniform_share(generator, len(kinds))[..., None]
    return values * (1 - share) + share


def _mask(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """One in a part of the cube and zero in another, (count, *cells), edges of any width.

    A field above a random level; between them lies an edge.
    """
    field = smooth_fields(generator, count, cells, (0.2, 0.6), (3, 6), dimension=3)
    height = field + uniform(generator, -1, 1.2, count, 1, 1, 1)
    return (0.5 + height * uniform(generator, 1, 8, count, 1, 1, 1)).clamp(0, 1)


def boxes(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """One in a box of whole cells and zero outside, (count, cells, cells, cells).

    Its first side is a third of the cube's or longer, and so is the second of every other box. The
    others are those of the cube as often as not, and at least four fifths of them.
    """
    short, also_short = (uniform(generator, 1 / 3, 1, count) for _ in range(2))
    long, longest = (uniform(generator, 0.8, 1.2, count).clamp(max=1) for _ in range(2))
    middle = torch.where(chance(generator, 0.5, count), also_short, long)
    line, inside = torch.arange(cells), torch.ones(count, cells, cells, cells)
    for axis, share in enumerate((short, middle, longest)):
        length = (share * cells).ceil()
        first = (uniform(generator, 0, 1, count) * (cells - length + 1)).floor()
        within = (line >= first[:, None]) & (line < (first + length)[:, None])
        inside *= within.view(count, *(1,) * axis, cells, *(1,) * (2 - axis))
    return inside


def turned_about(generator: torch.Generator, ends: Tensor) -> Tensor:
    """Pairs (2, count, n, n, n), reflected, turned and swapped or not, all equally likely."""
    coins = chance(generator, 0.5, 4, ends.shape[1], 1, 1, 1)
    for axis, coin in zip((0, 2, 3, 4), coins, strict=True):
        ends = torch.where(coin, ends.flip(axis), ends)
    order = torch.randint(len(ORDERS), (ends.shape[1],), generator=generator)
    turned = ends.clone()
    for k, axes in enumerate(ORDERS):
        turned[:, order == k] = ends[:, order == k].permute(0, 1, *axes)
    return turned
