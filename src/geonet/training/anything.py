"""Pairs of any densities on the unit square, as people bring them, new ones at every draw.

The ends are mixtures, fields, textures, shapes, strokes, spots or noise, with or without empty
regions and a uniform share. Some pairs show two parts of one canvas, some fill a rectangle only,
some are constant in blocks of cells.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators.objective import EndFunctions
from geonet.training.cells import Cells
from geonet.training.drawn_densities import (
    Kind,
    fields,
    mixtures,
    noise,
    shapes,
    spots,
    strokes,
    textures,
)
from geonet.training.problem import Problem
from geonet.training.random_fields import chance, normalised, smooth_fields, uniform

CELLS = 64  # along an axis
KINDS: dict[str, tuple[Kind, float]] = {  # each with how often it is drawn
    "mixtures": (mixtures, 3.0),
    "fields": (fields, 4.0),
    "textures": (textures, 2.0),
    "shapes": (shapes, 3.0),
    "strokes": (strokes, 2.0),
    "spots": (spots, 2.0),
    "noise": (noise, 1.0),
}
ALIKE = 0.4  # of all pairs: the target is of the source's kind, not of a random one
ELSEWHERE = 0.15  # of all pairs: two windows of one canvas
CUT = 0.15  # of all pairs: empty outside a rectangle
BLOCKY, BLOCKIER = 0.12, 0.04  # of all pairs: constant in blocks of two by two, four by four cells
EMPTY = 0.12  # of all densities: multiplied by a mask with empty regions
LIFTED = 0.5  # of all densities: they get a uniform share,
SHARE = 0.3  # which is at most this
FAINT, FAINTER = 0.3, 0.1  # some of these shares are smaller, by this factor
REMAINDER = 1e-3  # so much is added before a cut, which may leave next to nothing
PIECE = 32 * CELLS**2  # cells that are drawn at once, which bounds the memory


class Anything(Problem):
    """Random pairs of every kind on 64×64 cells of the unit square."""

    def __init__(self) -> None:
        self.box = Grid((CELLS, CELLS))

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """New pairs, by their cells."""
        source, target = random_pairs(generator, count)
        return Cells(source), Cells(target)

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """The pairs that `draw` would give."""
        source, target = random_pairs(generator, count)
        return Density(source.double(), self.box), Density(target.double(), self.box)


def random_pairs(generator: torch.Generator, count: int, cells: int = CELLS) -> Tensor:
    """Sources and targets of mean one, (2, count, cells, cells), float32.

    Their law does not change if the square is reflected or transposed or the ends are swapped.
    """
    ends = torch.empty(2, count, cells, cells)
    elsewhere = chance(generator, ELSEWHERE, count)
    windows = int(elsewhere.sum())
    ends[:, elsewhere] = two_windows(generator, windows, cells)
    ends[:, ~elsewhere] = two_densities(generator, count - windows, cells)
    cut = chance(generator, CUT, count)
    inside = rectangles(generator, int(cut.sum()), cells)
    ends[:, cut] = (ends[:, cut] + REMAINDER) * inside
    blocks = torch.where(chance(generator, BLOCKY, count), 2, 1)
    blocks = torch.where(chance(generator, BLOCKIER, count), 4, blocks)
    for size in (2, 4):
        ends[:, blocks == size] = coarse(ends[:, blocks == size], size)
    return normalised(turned_about(generator, ends))


def coarse(ends: Tensor, size: int) -> Tensor:
    """Densities (2, count, n, n) that are constant in blocks of cells, as on coarser grids."""
    if not ends.numel():  # which torch refuses to average
        return ends
    means = avg_pool2d(ends, size)
    return means.repeat_interleave(size, 2).repeat_interleave(size, 3)


def two_densities(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Pairs of independent densities, often of one kind, (2, count, cells, cells)."""
    first, second = (random_kinds(generator, count) for _ in range(2))
    second = torch.where(chance(generator, ALIKE, count), first, second)
    drawn = random_densities(generator, torch.cat([first, second]), cells)
    return drawn.unflatten(0, (2, count))


def two_windows(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Two parts of one density each, (2, count, cells, cells): much the same, but moved.

    The density is half as wide again; along each axis the windows are at most cells/6 apart.
    """
    room, step = cells // 2, cells // 6
    canvas = random_densities(generator, random_kinds(generator, count), cells + room)
    first = torch.randint(room + 1, (count, 2), generator=generator)
    moved = first + torch.randint(-step, step + 1, (count, 2), generator=generator)
    corners = torch.stack([first, moved.clamp(0, room)])  # (2, count, 2)
    rows, columns = (corners[..., None] + torch.arange(cells)).unbind(2)  # (2, count, cells)
    which = torch.arange(count)[:, None, None]
    return normalised(canvas[which, rows[..., :, None], columns[..., None, :]] + REMAINDER)


def random_kinds(
    generator: torch.Generator, count: int, kinds: dict[str, tuple[Kind, float]] = KINDS
) -> Tensor:
    """Kinds by their places in a table, (count,)."""
    weights = torch.tensor([weight for _, weight in kinds.values()])
    if count == 0:  # which torch refuses to draw
        return torch.zeros(0, dtype=torch.long)
    return torch.multinomial(weights, count, replacement=True, generator=generator)


def random_densities(generator: torch.Generator, kinds: Tensor, cells: int) -> Tensor:
    """Densities of given kinds (count,), of mean one, (count, cells, cells)."""
    values = torch.empty(len(kinds), cells, cells)
    for number, (kind, _) in enumerate(KINDS.values()):
        of_this = torch.nonzero(kinds == number).flatten()
        for piece in of_this.split(max(1, PIECE // cells**2)):
            if len(piece):
                values[piece] = normalised(kind(generator, len(piece), cells))
    empty = chance(generator, EMPTY, len(kinds))
    mask = _mask(generator, int(empty.sum()), cells)
    values[empty] = normalised(values[empty] * mask)
    share = uniform_share(generator, len(kinds))
    return values * (1 - share) + share


def _mask(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """One in a part of the square and zero in another, (count, cells, cells), edges of any width.

    A field above a random level; between them lies an edge.
    """
    field = smooth_fields(generator, count, cells, (0.2, 0.6), (3, 6))
    height = field + uniform(generator, -1, 1.2, count, 1, 1)
    return (0.5 + height * uniform(generator, 1, 8, count, 1, 1)).clamp(0, 1)


def uniform_share(generator: torch.Generator, count: int) -> Tensor:
    """How much of each density is uniform, (count, 1, 1): none of about half of them."""
    share = SHARE * uniform(generator, 0, 1, count, 1, 1)
    lifted = chance(generator, LIFTED, count, 1, 1)
    factor = torch.where(chance(generator, FAINT, count, 1, 1), FAINTER, 1.0)
    return share * lifted * factor


def rectangles(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """One in a rectangle of whole cells and zero outside, (count, cells, cells).

    One side is a third of the square's or longer. The other, across the columns, is that of the
    square in every other rectangle, and at least four fifths of it.
    """
    short = uniform(generator, 1 / 3, 1, count)
    long = uniform(generator, 0.8, 1.2, count).clamp(max=1)
    line, within = torch.arange(cells), []
    for share in (short, long):
        length = (share * cells).ceil()
        first = (uniform(generator, 0, 1, count) * (cells - length + 1)).floor()
        begin, end = first[:, None], (first + length)[:, None]
        within.append((line >= begin) & (line < end))
    rows, columns = within
    return (rows[:, :, None] & columns[:, None, :]).float()


def turned_about(generator: torch.Generator, ends: Tensor) -> Tensor:
    """Pairs (2, count, n, n), each reflected, transposed and swapped or not, all equally likely."""
    coins = chance(generator, 0.5, 4, ends.shape[1], 1, 1)
    swapped, upside_down, mirrored, transposed = coins
    ends = torch.where(swapped, ends.flip(0), ends)
    ends = torch.where(upside_down, ends.flip(2), ends)
    ends = torch.where(mirrored, ends.flip(3), ends)
    return torch.where(transposed, ends.mT, ends)
