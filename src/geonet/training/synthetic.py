"""Pairs of any densities on the unit square or cube, as people bring them, new ones at every draw.

The ends are mixtures, fields, textures, shapes, strokes or tubes, spots or noise, with or without
empty regions and a uniform share. Some pairs show two parts of one canvas, some fill a box only,
some are constant in blocks of cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, avg_pool3d

from geonet.density import Density
from geonet.grid import Grid
from geonet.solvers.neural.losses import EndFunctions
from geonet.training import drawn_densities as on_square
from geonet.training import drawn_densities_3d as in_cube
from geonet.training.drawn_densities import Kind
from geonet.training.problems import Cells, Problem
from geonet.training.random_fields import chance, normalised, smooth_fields, uniform

ALIKE = 0.4  # of all pairs: the target is of the source's kind, not of a random one
ELSEWHERE = 0.15  # of all pairs: two windows of one canvas
CUT = 0.15  # of all pairs: empty outside a box
BLOCKY, BLOCKIER = 0.12, 0.04  # of all pairs: constant in blocks of two, four cells along an axis
EMPTY = 0.12  # of all densities: multiplied by a mask with empty regions
LIFTED = 0.5  # of all densities: they get a uniform share,
SHARE = 0.3  # which is at most this
FAINT, FAINTER = 0.3, 0.1  # some of these shares are smaller, by this factor
REMAINDER = 1e-3  # so much is added before a cut, which may leave next to nothing


@dataclass(frozen=True)
class Family:
    """What is different on the square and in the cube.

    Attributes:
        cells: along an axis.
        dimension: 2 or 3.
        kinds: what draws the densities of each kind, and how often it does.
        room: the canvas of two windows has cells // room more cells along an axis.
        piece: how many cells are drawn at once, of one kind.
    """

    cells: int
    dimension: int
    kinds: dict[str, tuple[Kind, float]]
    room: int
    piece: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The cells along all axes."""
        return (self.cells,) * self.dimension


SQUARE = Family(
    cells=64,
    dimension=2,
    kinds={
        "mixtures": (on_square.mixtures, 3.0),
        "fields": (on_square.fields, 4.0),
        "textures": (on_square.textures, 2.0),
        "shapes": (on_square.shapes, 3.0),
        "strokes": (on_square.strokes, 2.0),
        "spots": (on_square.spots, 2.0),
        "noise": (on_square.noise, 1.0),
    },
    room=2,
    piece=32 * 64**2,  # which bounds the memory
)
CUBE = Family(
    cells=32,
    dimension=3,
    kinds={
        "mixtures": (in_cube.mixtures, 3.0),
        "fields": (partial(on_square.fields, dimension=3), 4.0),
        "textures": (in_cube.textures, 2.0),
        "shapes": (in_cube.shapes, 3.0),
        "tubes": (in_cube.tubes, 2.0),
        "spots": (in_cube.spots, 2.0),
        "noise": (partial(on_square.noise, dimension=3), 1.0),
    },
    room=4,
    piece=2 * 32**3,  # more do not stay near the processor
)


class Anything(Problem):
    """Random pairs of every kind on 64×64 cells of the unit square or 32×32×32 of the unit cube."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.box = Grid(family.shape)

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """New pairs, by their cells."""
        source, target = random_pairs(generator, count, self.family)
        return Cells(source), Cells(target)

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """The pairs that `draw` would give."""
        source, target = random_pairs(generator, count, self.family)
        return Density(source.double(), self.box), Density(target.double(), self.box)


def random_pairs(generator: torch.Generator, count: int, family: Family) -> Tensor:
    """Sources and targets of mean one, (2, count, *shape), float32.

    Their law does not change if the box is reflected or its axes or the ends are exchanged.
    """
    ends = torch.empty(2, count, *family.shape)
    elsewhere = chance(generator, ELSEWHERE, count)
    windows = int(elsewhere.sum())
    ends[:, elsewhere] = two_windows(generator, windows, family)
    ends[:, ~elsewhere] = two_densities(generator, count - windows, family)
    cut = chance(generator, CUT, count)
    ends[:, cut] = (ends[:, cut] + REMAINDER) * boxes(generator, int(cut.sum()), family)
    blocks = torch.where(chance(generator, BLOCKY, count), 2, 1)
    blocks = torch.where(chance(generator, BLOCKIER, count), 4, blocks)
    for size in (2, 4):
        ends[:, blocks == size] = coarse(ends[:, blocks == size], size)
    return normalised(turned_about(generator, ends), family.dimension)


def coarse(ends: Tensor, size: int) -> Tensor:
    """Densities (2, count, *shape) that are constant in blocks of cells, as on coarser grids."""
    if not ends.numel():  # which torch refuses to average
        return ends
    means = avg_pool2d(ends, size) if ends.ndim == 4 else avg_pool3d(ends, size)
    for axis in range(2, ends.ndim):
        means = means.repeat_interleave(size, axis)
    return means


def two_densities(generator: torch.Generator, count: int, family: Family) -> Tensor:
    """Pairs of independent densities, often of one kind, (2, count, *shape)."""
    first, second = (random_kinds(generator, count, family) for _ in range(2))
    second = torch.where(chance(generator, ALIKE, count), first, second)
    drawn = random_densities(generator, torch.cat([first, second]), family)
    return drawn.unflatten(0, (2, count))


def two_windows(generator: torch.Generator, count: int, family: Family) -> Tensor:
    """Two parts of one density each, (2, count, *shape): much the same, but moved.

    On the square, the density is half as wide again, in the cube a quarter. Along each axis the
    windows are at most cells/6 apart.
    """
    cells, d = family.cells, family.dimension
    room, step = cells // family.room, cells // 6
    kinds = random_kinds(generator, count, family)
    canvas = random_densities(generator, kinds, replace(family, cells=cells + room))
    first = torch.randint(room + 1, (count, d), generator=generator)
    moved = first + torch.randint(-step, step + 1, (count, d), generator=generator)
    ends = torch.empty(2, count, *family.shape)
    for end, corners in zip(ends, (first, moved.clamp(0, room)), strict=True):
        for k, corner in enumerate(corners.tolist()):
            end[k] = canvas[k][tuple(slice(place, place + cells) for place in corner)]
    return normalised(ends + REMAINDER, d)


def random_kinds(generator: torch.Generator, count: int, family: Family) -> Tensor:
    """Kinds by their places in the family's table, (count,)."""
    weights = torch.tensor([weight for _, weight in family.kinds.values()])
    if count == 0:  # which torch refuses to draw
        return torch.zeros(0, dtype=torch.long)
    return torch.multinomial(weights, count, replacement=True, generator=generator)


def random_densities(generator: torch.Generator, kinds: Tensor, family: Family) -> Tensor:
    """Densities of given kinds (count,), of mean one, (count, *shape)."""
    cells, d = family.cells, family.dimension
    values = torch.empty(len(kinds), *family.shape)
    for number, (kind, _) in enumerate(family.kinds.values()):
        of_this = torch.nonzero(kinds == number).flatten()
        for piece in of_this.split(max(1, family.piece // cells**d)):
            if len(piece):
                values[piece] = normalised(kind(generator, len(piece), cells), d)
    empty = chance(generator, EMPTY, len(kinds))
    mask = _mask(generator, int(empty.sum()), family)
    values[empty] = normalised(values[empty] * mask, d)
    share = _uniform_share(generator, len(kinds)).view(-1, *(1,) * d)
    return values * (1 - share) + share


def _mask(generator: torch.Generator, count: int, family: Family) -> Tensor:
    """One in a part of the box and zero in another, (count, *shape), edges of any width.

    A field above a random level; between them lies an edge.
    """
    d = family.dimension
    one = (1,) * d
    field = smooth_fields(generator, count, family.cells, (0.2, 0.6), (3, 6), dimension=d)
    height = field + uniform(generator, -1, 1.2, count, *one)
    return (0.5 + height * uniform(generator, 1, 8, count, *one)).clamp(0, 1)


def _uniform_share(generator: torch.Generator, count: int) -> Tensor:
    """How much of each density is uniform, (count,): none of about half of them."""
    share = SHARE * uniform(generator, 0, 1, count)
    lifted = chance(generator, LIFTED, count)
    factor = torch.where(chance(generator, FAINT, count), FAINTER, 1.0)
    return share * lifted * factor


def boxes(generator: torch.Generator, count: int, family: Family) -> Tensor:
    """One in a rectangle or box of whole cells and zero outside, (count, *shape)."""
    cells, d = family.cells, family.dimension
    line, inside = torch.arange(cells), torch.ones(count, *family.shape)
    for axis, share in enumerate(_sides(generator, count, d)):
        length = (share * cells).ceil()
        first = (uniform(generator, 0, 1, count) * (cells - length + 1)).floor()
        within = (line >= first[:, None]) & (line < (first + length)[:, None])
        inside *= within.view(count, *(1,) * axis, cells, *(1,) * (d - 1 - axis))
    return inside


def _sides(generator: torch.Generator, count: int, dimension: int) -> list[Tensor]:
    """The sides of boxes as shares of the square's or cube's, (count,) for each axis.

    The first side is short: a third or more. The last is long: all of it as often as not, and at
    least four fifths. The one between, in the cube, is as often short as long.
    """
    short = [uniform(generator, 1 / 3, 1, count) for _ in range(dimension - 1)]
    long = [uniform(generator, 0.8, 1.2, count).clamp(max=1) for _ in range(dimension - 1)]
    if dimension == 2:
        return [*short, *long]
    middle = torch.where(chance(generator, 0.5, count), short[1], long[0])
    return [short[0], middle, long[1]]


def turned_about(generator: torch.Generator, ends: Tensor) -> Tensor:
    """Pairs (2, count, *shape), reflected, turned and swapped or not, all equally likely."""
    count, axes = ends.shape[1], range(2, ends.ndim)
    coins = chance(generator, 0.5, 4, count, *(1 for _ in axes))
    for axis, coin in zip((0, *axes), coins, strict=False):  # on the square, one coin is left
        ends = torch.where(coin, ends.flip(axis), ends)
    if len(axes) == 2:
        return torch.where(coins[3], ends.mT, ends)
    orders = list(permutations(axes))
    order = torch.randint(len(orders), (count,), generator=generator)
    turned = ends.clone()
    for k, permuted in enumerate(orders):
        turned[:, order == k] = ends[:, order == k].permute(0, 1, *permuted)
    return turned
