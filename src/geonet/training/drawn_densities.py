"""Kinds of densities on the unit square, as people bring them: each a function that draws some.

A kind takes a generator, a count and a number of cells along an axis, and gives (count, cells,
cells), float32: finite and nowhere negative, but of any mass, perhaps none. Lengths are in units of
the square.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from geonet.numerics.cosine import centres
from geonet.training.random_fields import (
    Range,
    blurred,
    chance,
    log_uniform,
    normal,
    smooth_fields,
    uniform,
)

Kind = Callable[[torch.Generator, int, int], Tensor]

BUMPS, SPOTS, GROUPS, SHAPES, SEGMENTS, TILES = 10, 48, 5, 5, 5, 24  # at most, of one density
FAR = 1.0  # the distance of a shape that is left out
FLOOR = 1e-4  # of fields and textures, which else could be zero all over
TINY = 1e-12  # under a root or a logarithm


def mixtures(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Up to 10 bumps, turned and of two widths each: all Gaussian, or all with heavy tails.

    Each is exp(−q/2) or (1 + q/2)^(−p), where q is the squared distance in widths. Widths are 0.007
    to 0.64 and p is 1.2 to 8. They lie all over the square or around one point.
    """
    around = uniform(generator, 0.15, 0.85, count, 1, 2)
    apart = chance(generator, 0.5, count, 1, 1)
    anywhere = uniform(generator, 0.03, 0.97, count, BUMPS, 2)
    near = around + 0.15 * normal(generator, count, BUMPS, 2)
    x, y = _turned(generator, torch.where(apart, anywhere, near), cells)
    width = log_uniform(generator, 0.012, 0.4, count, BUMPS, 2)
    width = width * log_uniform(generator, 0.6, 1.6, count, 1, 1)
    half = 0.5 * ((x / _spread(width[..., 0])) ** 2 + (y / _spread(width[..., 1])) ** 2)
    gaussian = chance(generator, 0.5, count, 1, 1, 1)
    power = log_uniform(generator, 1.2, 8, count, 1, 1, 1)
    bumps = torch.exp(-torch.where(gaussian, half, power * torch.log1p(half)))
    height = uniform(generator, 0, 1, count, BUMPS) ** uniform(generator, 0, 2, count, 1)
    height = height * parts_present(generator, (0.2, 1.2), count, BUMPS)
    height[:, 0] = 1
    return torch.einsum("nk,nkij->nij", height, bumps)


def fields(generator: torch.Generator, count: int, cells: int, dimension: int = 2) -> Tensor:
    """Random fields z, from white noise to one slope, made positive in one of six ways.

    z − min z and its power up to 3, exp(sz), a logistic function of z, the part above a level (to
    the power ½ to 2), and |z| to the power 1 to 2.
    """
    z, one = smooth_fields(generator, count, cells, dimension=dimension), (1,) * dimension
    s = uniform(generator, 0, 1, count, *one)
    lifted = z - z.amin(tuple(range(1, z.ndim)), keepdim=True)
    shift = 2 * uniform(generator, -1, 1, count, *one)
    above = (z - uniform(generator, -1, 1.2, count, *one)).clamp(min=0)
    ways = (
        lifted,
        torch.exp((0.3 + 2.2 * s) * z),
        torch.sigmoid((1.5 + 8 * s) * z + shift),
        above ** (0.5 + 1.5 * s),
        z.abs() ** (1 + s),
        lifted ** (1 + 2 * s),
    )
    way = torch.randint(len(ways), (count, *one), generator=generator)
    return chosen(way, *ways) + FLOOR


def textures(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Up to 24 tiles of different brightness, or steps of a field; with grain, blur and light.

    The tiles are those of a Voronoi diagram whose sites have distances of their own.
    """
    tiles = _tiles(generator, count, cells)
    field = smooth_fields(generator, count, cells, (0.1, 0.6), (1.5, 5))
    steps = (torch.floor(field * uniform(generator, 0.5, 3, count, 1, 1)) * 0.25).remainder(1.0)
    values = torch.where(chance(generator, 0.7, count, 1, 1), tiles, steps)
    grain = smooth_fields(generator, count, cells, (0.05, 1), (1, 3))
    values = (values + uniform(generator, 0, 0.15, count, 1, 1) * grain).clamp(0, 1.5)
    strength = uniform(generator, 0, 0.4, count, 1, 1)
    light = torch.exp(strength * smooth_fields(generator, count, cells, (0.5, 1), (4, 6)))
    return blurred(generator, values, 1.5) * light + FLOOR


def shapes(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Up to 5 discs, stars, rings, rectangles and arcs, mostly of one sort, with sharp edges.

    Radii are 0.05 to 0.35, lines 0.03 to 0.12 thick. Most are equally bright. An edge is a cell
    wide, or blurred by up to 2 cells.
    """
    around = uniform(generator, 0.25, 0.75, count, 1, 2)
    together = chance(generator, 0.5, count, 1, 1)
    near = around + 0.12 * normal(generator, count, SHAPES, 2)
    anywhere = uniform(generator, 0.1, 0.9, count, SHAPES, 2)
    x, y = _turned(generator, torch.where(together, near, anywhere), cells)
    distance = _distance_to_shapes(generator, x, y)
    present = _spread(parts_present(generator, (0.1, 1), count, SHAPES))
    distance = torch.where(present, distance, FAR)
    alike = chance(generator, 0.6, count, 1)
    level = torch.where(alike, 1.0, uniform(generator, 0.2, 1, count, SHAPES))
    values = (filled(distance, cells) * _spread(level)).amax(1)
    return blurred(generator, values, 2.0)


def strokes(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """One line with corners or bends, as of letters and digits: up to 5 segments with round ends.

    It is 0.03 to 0.16 thick, with edges as those of `shapes`.
    """
    corners = _walk(generator, count)
    start, along = corners[:, :-1], corners.diff(dim=1)
    x, y = _offsets(start, cells)
    dx, dy = _spread(along[..., 0]), _spread(along[..., 1])
    t = ((x * dx + y * dy) / (dx**2 + dy**2 + 1e-6)).clamp(0, 1)
    bow = uniform(generator, -0.3, 0.3, count, SEGMENTS, 1, 1)
    bow = bow * chance(generator, 0.7, count, 1, 1, 1) * 4 * t * (1 - t)
    distance = ((x - t * dx + bow * dy) ** 2 + (y - t * dy - bow * dx) ** 2 + TINY).sqrt()
    present = chance(generator, 0.75, count, SEGMENTS)
    present[:, 0] = True
    nearest = torch.where(_spread(present), distance, FAR).amin(1)
    thickness = uniform(generator, 0.015, 0.08, count, 1, 1)
    return blurred(generator, filled(nearest - thickness, cells), 2.0)


def spots(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Up to 48 small round spots of very different heights, in 5 groups or all over the square.

    Standard deviations are 0.005 to 0.043. Below a small level, most are cut off to zero.
    """
    across, down = spot_profiles(generator, count, cells, (0.03, 0.3), (0.008, 0.05), dimension=2)
    return above_a_level(generator, across.mT @ down)


def noise(generator: torch.Generator, count: int, cells: int, dimension: int = 2) -> Tensor:
    """Every cell by itself: U[0, 1] to a power ½ to 4; on a constant, some of them."""
    grains, one = uniform(generator, 0, 1, count, *(cells,) * dimension), (1,) * dimension
    power = log_uniform(generator, 0.5, 4, count, *one)
    constant = uniform(generator, 0, 1, count, *one) * chance(generator, 0.3, count, *one)
    return grains**power + constant


def spot_profiles(
    generator: torch.Generator, count: int, cells: int, spread: Range, radius: Range, dimension: int
) -> list[Tensor]:
    """Spots as products of one profile per axis, (count, SPOTS, cells) each.

    The first profiles have the heights. A group has a width in `spread`, a spot one in `radius`.
    """
    middles = uniform(generator, 0.1, 0.9, count, GROUPS, dimension)
    group = torch.randint(GROUPS, (count, SPOTS, 1), generator=generator)
    size = log_uniform(generator, *spread, count, 1, 1)
    near = middles.gather(1, group.expand(-1, -1, dimension))
    near = near + size * normal(generator, count, SPOTS, dimension)
    apart = chance(generator, 0.4, count, 1, 1)
    anywhere = uniform(generator, 0.02, 0.98, count, SPOTS, dimension)
    centre = torch.where(apart, anywhere, near.clamp(0.02, 0.98))
    radii = log_uniform(generator, *radius, count, SPOTS)
    radii = radii * log_uniform(generator, 0.7, 1.5, count, 1)
    squared = radii**2 + (0.4 / cells) ** 2  # no spot falls between the cells
    height = -torch.log(uniform(generator, 0, 1, count, SPOTS) + TINY)
    height = height * parts_present(generator, (0.1, 1), count, SPOTS)
    height[:, 0] = 1
    first, *others = (
        torch.exp(-1.5 * (centres(cells).float() - centre[..., i, None]) ** 2 / squared[..., None])
        for i in range(dimension)
    )
    return [height[..., None] * first, *others]


def above_a_level(generator: torch.Generator, values: Tensor) -> Tensor:
    """Values (count, n, …, n) less small levels of their own, zero below; some are left alone."""
    one = (1,) * (values.ndim - 1)
    level = 0.06 * uniform(generator, 0, 1, len(values), *one)
    level = level * chance(generator, 0.7, len(values), *one)
    return (values - level * values.amax(tuple(range(1, values.ndim)), keepdim=True)).clamp(min=0)


def _tiles(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """The brightness of the nearest site, (count, cells, cells), each site by its own distance."""
    site = uniform(generator, -0.05, 1.05, count, TILES, 2)
    stretch = log_uniform(generator, 0.5, 2, count, TILES, 1)
    weight = log_uniform(generator, 0.3, 3, count, TILES, 1)
    present = parts_present(generator, (0.1, 1), count, TILES)
    brightness = uniform(generator, 0, 1, count, TILES) ** uniform(generator, 0.5, 3, count, 1)
    x, y = (centres(cells).float() - site[..., i, None] for i in (0, 1))
    down = weight * stretch * x**2 + torch.where(present, 0.0, 1e3)[..., None]
    across = weight / stretch * y**2
    distance = down[..., :, None] + across[..., None, :]
    nearest = distance.min(1).indices  # argmin takes thrice the time
    return brightness.gather(1, nearest.flatten(1)).view(count, cells, cells)


def _distance_to_shapes(generator: torch.Generator, x: Tensor, y: Tensor) -> Tensor:
    """Signed distances to random shapes about the origin of x and y, (count, k, n, n) each."""
    count, k = x.shape[:2]
    one = (count, k, 1, 1)
    radius, aspect = log_uniform(generator, 0.05, 0.35, *one), log_uniform(generator, 0.25, 1, *one)
    tips = torch.randint(2, 8, one, generator=generator)
    depth = uniform(generator, 0, 0.6, *one) * chance(generator, 0.5, *one)
    polar = (x**2 + (y / aspect) ** 2 + TINY).sqrt()
    star = (polar - radius * (1 + depth * torch.cos(tips * torch.atan2(y, x)))) * aspect
    inset, half = (
        0.5 * (1 - uniform(generator, 0.3, 0.8, *one)) * radius * aspect for _ in range(2)
    )
    ring = (star + inset).abs() - half
    rectangle = torch.maximum(x.abs() - radius, y.abs() - radius * aspect)
    thickness = uniform(generator, 0.015, 0.06, count, 1, 1, 1)
    bend = uniform(generator, -3, 3, *one)
    along = x.clamp(-radius, radius)
    middle = bend * (along**2 - radius**2 / 3)
    arc = ((x - along) ** 2 + (y - middle) ** 2 + TINY).sqrt() - thickness
    likely = uniform(generator, 0, 1, count, 4) ** 3 + 1e-3  # so that one sort prevails
    sort = torch.multinomial(likely.repeat_interleave(k, 0), 1, generator=generator)
    return chosen(sort.view(one), star, ring, rectangle, arc)


def _walk(generator: torch.Generator, count: int) -> Tensor:
    """The corners of random lines near the middle, (count, SEGMENTS + 1, 2)."""
    start = uniform(generator, 0.3, 0.7, count, 1, 2)
    length = uniform(generator, 0.06, 0.35, count, SEGMENTS, 1)
    heading = normalize(normal(generator, count, SEGMENTS, 2) + 1e-6, dim=-1)
    corners = torch.cat([start, length * heading], 1).cumsum(1)
    middle = uniform(generator, 0.35, 0.65, count, 1, 2)
    return (corners - corners.mean(1, keepdim=True) + middle).clamp(0.06, 0.94)


def parts_present(generator: torch.Generator, share: Range, count: int, parts: int) -> Tensor:
    """Which parts a density has, (count, parts): a share of its own, and always the first."""
    present = uniform(generator, 0, 1, count, parts) < uniform(generator, *share, count, 1)
    present[:, 0] = True
    return present


def _turned(generator: torch.Generator, centre: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """Coordinates in frames turned about centres (count, k, 2), (count, k, cells, cells) each."""
    x, y = _offsets(centre, cells)
    angle = _spread(uniform(generator, 0, math.pi, *centre.shape[:2]))
    c, s = angle.cos(), angle.sin()
    return c * x + s * y, c * y - s * x


def _offsets(centre: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """x and y less those of centres (count, k, 2): (count, k, cells, 1), (count, k, 1, cells)."""
    line = centres(cells).float()
    return line[:, None] - _spread(centre[..., 0]), line - _spread(centre[..., 1])


def filled(distance: Tensor, cells: int) -> Tensor:
    """One inside, where the signed distance is negative, and zero outside; edges a cell wide."""
    return (0.5 - distance * cells).clamp(0, 1)


def chosen(which: Tensor, *options: Tensor) -> Tensor:
    """The option with the number `which`, element by element."""
    found = options[0]
    for k, option in enumerate(options[1:], start=1):
        found = torch.where(which == k, option, found)
    return found


def _spread(values: Tensor) -> Tensor:
    """One number per part, (count, k), to be used in every cell: (count, k, 1, 1)."""
    return values[..., None, None]
