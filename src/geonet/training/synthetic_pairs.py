"""The problems `anything-2d` and `anything-3d`: pairs of synthetic densities of many kinds.

Both ends of a pair are drawn by `geonet.synthetic`, or are two crops of one larger density. Some
pairs are empty outside of a box, some are constant in blocks of cells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, avg_pool3d

from geonet.density import Density
from geonet.grid import Grid
from geonet.solvers.neural.losses import DensityFunctions
from geonet.synthetic import (
    KINDS,
    SyntheticConfig,
    bernoulli,
    gaussian_fields,
    normalise_mean,
    uniform,
)
from geonet.training.problems import CellMeans, Problem


@dataclass(frozen=True)
class PairConfig:
    """Distribution of pairs: probabilities, unless a comment says otherwise."""

    same_kind: float = 0.4  # the target is of the source's kind
    cropped: float = 0.15  # the ends are two crops of one density
    boxed: float = 0.15  # both ends are empty outside of a box
    blocks_of_2: float = 0.12  # constant in blocks of 2^d cells
    blocks_of_4: float = 0.04
    masked: float = 0.12  # an end has empty regions
    lifted: float = 0.5  # an end has a uniform part
    uniform_share: float = 0.3  # its largest share of the mass
    remainder: float = 1e-3  # density that is added before a crop, which may be empty


PAIR_CONFIG = PairConfig()


class SyntheticPairs(Problem):
    """Random pairs of every kind, on 64×64 cells of the unit square or 32×32×32 of the cube."""

    def __init__(self, config: SyntheticConfig):
        self.config = config
        self.box = Grid(config.shape)

    def draw(self, count: int, generator: torch.Generator) -> DensityFunctions:
        """Draw pairs as functions, given by their cell means."""
        source, target = random_pairs(generator, count, self.config)
        return CellMeans(source), CellMeans(target)

    def draw_densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Draw the pairs that `draw` would return."""
        source, target = random_pairs(generator, count, self.config)
        return Density(source.double(), self.box), Density(target.double(), self.box)


def random_pairs(
    generator: torch.Generator,
    count: int,
    config: SyntheticConfig,
    pair: PairConfig = PAIR_CONFIG,
) -> Tensor:
    """Draw sources and targets of mean one, (2, count, cells, …, cells), float32.

    Their distribution is invariant under reflections of the box, permutations of its axes, and the
    exchange of source and target.
    """
    ends = torch.empty(2, count, *config.shape)
    cropped = bernoulli(generator, pair.cropped, count)
    crops = int(cropped.sum())
    ends[:, cropped] = shifted_crops(generator, crops, config, pair)
    first, second = (random_kinds(generator, count - crops) for _ in range(2))
    second = torch.where(bernoulli(generator, pair.same_kind, count - crops), first, second)
    drawn = random_densities(generator, torch.cat([first, second]), config, pair)
    ends[:, ~cropped] = drawn.unflatten(0, (2, -1))
    boxed = bernoulli(generator, pair.boxed, count)
    boxes = random_boxes(generator, int(boxed.sum()), config)
    ends[:, boxed] = (ends[:, boxed] + pair.remainder) * boxes
    blocks = torch.where(bernoulli(generator, pair.blocks_of_2, count), 2, 1)
    blocks = torch.where(bernoulli(generator, pair.blocks_of_4, count), 4, blocks)
    for size in (2, 4):
        ends[:, blocks == size] = average_blocks(ends[:, blocks == size], size)
    return normalise_mean(random_symmetry(generator, ends), config.dimension)


def random_kinds(generator: torch.Generator, count: int) -> Tensor:
    """Draw positions in `KINDS`, (count,), with the frequencies given there."""
    if count == 0:  # torch.multinomial does not accept it
        return torch.zeros(0, dtype=torch.long)
    weights = torch.tensor([weight for _, weight in KINDS.values()])
    return torch.multinomial(weights, count, replacement=True, generator=generator)


def random_densities(
    generator: torch.Generator,
    kinds: Tensor,
    config: SyntheticConfig,
    pair: PairConfig = PAIR_CONFIG,
) -> Tensor:
    """Draw one density of mean one for each position in `KINDS`, (count, cells, …, cells)."""
    d, count = config.dimension, len(kinds)
    values = torch.empty(count, *config.shape)
    per_call = max(1, config.cells_per_call // config.cells**d)
    for number, (kind, _) in enumerate(KINDS.values()):
        for part in torch.nonzero(kinds == number).flatten().split(per_call):
            if len(part):
                values[part] = normalise_mean(kind(generator, len(part), config), d)
    masked = bernoulli(generator, pair.masked, count)
    values[masked] *= _random_masks(generator, int(masked.sum()), config)
    values[masked] = normalise_mean(values[masked], d)
    share = uniform(generator, 0, pair.uniform_share, count)
    share *= bernoulli(generator, pair.lifted, count)
    share *= torch.where(bernoulli(generator, 0.3, count), 0.1, 1.0)  # some are faint
    share = share.view(-1, *(1,) * d)
    return values * (1 - share) + share


def _random_masks(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Return masks that are one where a random field exceeds a level, with edges of any width."""
    one = (1,) * config.dimension
    field = gaussian_fields(generator, count, config.cells, config.dimension, (0.2, 0.6), (3, 6))
    height = field + uniform(generator, -1, 1.2, count, *one)
    return (0.5 + height * uniform(generator, 1, 8, count, *one)).clamp(0, 1)


def shifted_crops(
    generator: torch.Generator,
    count: int,
    config: SyntheticConfig,
    pair: PairConfig = PAIR_CONFIG,
) -> Tensor:
    """Draw two crops of one larger density, (2, count, cells, …, cells): nearly equal, but moved.

    The density is wider than the box by a half in 2D and by a quarter in 3D. The crops are at most
    a sixth of the box apart along each axis.
    """
    n, d = config.cells, config.dimension
    room, step = n // (2 if d == 2 else 4), n // 6
    canvas_config = replace(config, cells=n + room)
    canvas = random_densities(generator, random_kinds(generator, count), canvas_config, pair)
    first = torch.randint(room + 1, (count, d), generator=generator)
    second = first + torch.randint(-step, step + 1, (count, d), generator=generator)
    ends = torch.empty(2, count, *config.shape)
    for end, corners in zip(ends, (first, second.clamp(0, room)), strict=True):
        for k, corner in enumerate(corners.tolist()):
            end[k] = canvas[k][tuple(slice(start, start + n) for start in corner)]
    return normalise_mean(ends + pair.remainder, d)


def random_boxes(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Draw indicator functions of boxes of whole cells, (count, cells, …, cells).

    The first side is at least a third of the domain's. The last is all of it as often as not, and
    at least four fifths. In 3D, the second is as often like the first as like the last.
    """
    n, d = config.cells, config.dimension
    short, medium = (uniform(generator, 1 / 3, 1, count) for _ in range(2))
    long, longer = (uniform(generator, 0.8, 1.2, count).clamp(max=1) for _ in range(2))
    medium = torch.where(bernoulli(generator, 0.5, count), medium, longer)
    sides = (short, long) if d == 2 else (short, medium, long)
    cell, inside = torch.arange(n), torch.ones(count, *config.shape)
    for axis, share in enumerate(sides):
        length = (share * n).ceil()
        start = (uniform(generator, 0, 1, count) * (n - length + 1)).floor()
        within = (cell >= start[:, None]) & (cell < (start + length)[:, None])
        inside *= within.view(count, *(1,) * axis, n, *(1,) * (d - 1 - axis))
    return inside


def average_blocks(ends: Tensor, size: int) -> Tensor:
    """Average densities (2, count, n, …, n) over blocks of size^d cells, on the same grid."""
    if not ends.numel():  # avg_pool does not accept it
        return ends
    means = avg_pool2d(ends, size) if ends.ndim == 4 else avg_pool3d(ends, size)
    for axis in range(2, ends.ndim):
        means = means.repeat_interleave(size, axis)
    return means


def random_symmetry(generator: torch.Generator, ends: Tensor) -> Tensor:
    """Reflect, permute the axes of, and swap pairs (2, count, n, …, n), uniformly at random."""
    count, axes = ends.shape[1], range(2, ends.ndim)
    for axis in (0, *axes):
        coin = bernoulli(generator, 0.5, count, *(1 for _ in axes))
        ends = torch.where(coin, ends.flip(axis), ends)
    orders = list(permutations(axes))
    order = torch.randint(len(orders), (count,), generator=generator)
    result = ends.clone()
    for k, axes_order in enumerate(orders[1:], start=1):
        result[:, order == k] = ends[:, order == k].permute(0, 1, *axes_order)
    return result
