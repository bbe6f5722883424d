"""Kinds of densities on the unit cube: what `drawn_densities` has on the square, in space.

A kind takes a generator, a count and a number of cells along an axis, and gives (count, cells,
cells, cells), float32: finite and nowhere negative, but of any mass, perhaps none. Lengths are in
units of the cube.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from geonet.numerics.cosine import centres
from geonet.training.drawn_densities import (
    FAR,
    FLOOR,
    TINY,
    above_a_level,
    chosen,
    filled,
    parts_present,
    spot_profiles,
)
from geonet.training.random_fields import (
    blurred,
    chance,
    log_uniform,
    normal,
    smooth_fields,
    uniform,
)

BUMPS, SHAPES, SEGMENTS, TILES = 8, 4, 4, 16  # at most, of one
ONE = (1, 1, 1)


def mixtures(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Up to 8 bumps, turned and of three widths each: all Gaussian, or all with heavy tails.

    Each is exp(−q/2) or (1 + q/2)^(−p), where q is the squared distance in widths. Widths are 0.012
    to 0.64 and p is 1.7 to 8. They lie all over the cube or around one point.
    """
    around = uniform(generator, 0.15, 0.85, count, 1, 3)
    apart = chance(generator, 0.5, count, 1, 1)
    anywhere = uniform(generator, 0.03, 0.97, count, BUMPS, 3)
    near = around + 0.15 * normal(generator, count, BUMPS, 3)
    width = log_uniform(generator, 0.02, 0.4, count, BUMPS, 3)
    width = width * log_uniform(generator, 0.6, 1.6, count, 1, 1)
    q = _turned(generator, torch.where(apart, anywhere, near), cells, width).square_().sum(2)
    half = q.mul_(0.5)
    gaussian = chance(generator, 0.5, count, 1, 1)
    power = log_uniform(generator, 1.7, 8, count, 1, 1)
    bumps = torch.exp(-torch.where(gaussian, half, power * torch.log1p(half)))
    height = uniform(generator, 0, 1, count, BUMPS) ** uniform(generator, 0, 2, count, 1)
    height = height * parts_present(generator, (0.2, 1.2), count, BUMPS)
    height[:, 0] = 1
    return (height[:, None] @ bumps).view(count, cells, cells, cells)


def textures(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Up to 16 tiles of different brightness, or steps of a field; with grain and blur.

    The tiles are those of a Voronoi diagram whose sites have distances of their own.
    """
    tiles = _tiles(generator, count, cells)
    field = smooth_fields(generator, count, cells, (0.1, 0.6), (1.5, 5), dimension=3)
    steps = (torch.floor(field * uniform(generator, 0.5, 3, count, *ONE)) * 0.25).remainder(1.0)
    values = torch.where(chance(generator, 0.7, count, *ONE), tiles, steps)
    grain = smooth_fields(generator, count, cells, (0.05, 1), (1, 3), dimension=3)
    values = (values + uniform(generator, 0, 0.2, count, *ONE) * grain).clamp(0, 1.5)
    return blurred(generator, values, 1.5) + FLOOR


def shapes(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Up to 4 ellipsoids, shells, boxes, cylinders and rings, mostly of one sort, with sharp edges.

    Radii are 0.08 to 0.38, walls and rings 0.04 to 0.14 thick. Most are equally bright. An edge is
    a cell wide, or blurred by up to 1.5 cells.
    """
    around = uniform(generator, 0.25, 0.75, count, 1, 3)
    together = chance(generator, 0.5, count, 1, 1)
    near = around + 0.12 * normal(generator, count, SHAPES, 3)
    anywhere = uniform(generator, 0.12, 0.88, count, SHAPES, 3)
    place = _turned(generator, torch.where(together, near, anywhere), cells)
    distance = _distance_to_shapes(generator, *place.unbind(2))
    present = parts_present(generator, (0.1, 1), count, SHAPES)[..., None]
    distance = torch.where(present, distance, FAR)
    alike = chance(generator, 0.6, count, 1, 1)
    level = torch.where(alike, 1.0, uniform(generator, 0.2, 1, count, SHAPES, 1))
    values = (filled(distance, cells) * level).amax(1)
    return blurred(generator, values.view(count, cells, cells, cells), 1.5)


def tubes(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """One tube with corners or bends, as of vessels and wires: up to 4 segments with round ends.

    It is 0.05 to 0.18 thick, with edges as those of `shapes`.
    """
    corners = _walk(generator, count)
    along = corners.diff(dim=1)
    sideways = torch.linalg.cross(along, normal(generator, count, SEGMENTS, 3), dim=-1)
    bow = uniform(generator, -0.4, 0.4, count, SEGMENTS, 1) * chance(generator, 0.7, count, 1, 1)
    bow = bow * sideways / (along.norm(dim=-1, keepdim=True) + TINY)
    offset = _offsets(corners[:, :-1], cells)  # (count, SEGMENTS, 3, cells³)
    squared = along.square().sum(-1)[..., None] + 1e-6
    t = ((along[:, :, None] @ offset)[:, :, 0] / squared).clamp(0, 1)
    line = along[..., None] * t[:, :, None] + bow[..., None] * (4 * t * (1 - t))[:, :, None]
    distance = ((offset - line).square().sum(2) + TINY).sqrt()
    present = chance(generator, 0.75, count, SEGMENTS, 1)
    present[:, 0] = True
    nearest = torch.where(present, distance, FAR).amin(1)
    thickness = uniform(generator, 0.025, 0.09, count, 1)
    values = filled(nearest - thickness, cells).view(count, cells, cells, cells)
    return blurred(generator, values, 1.5)


def spots(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """Up to 48 small round spots of very different heights, in 5 groups or all over the cube.

    Standard deviations are 0.01 to 0.06. Below a small level, most are cut off to zero.
    """
    x, y, z = spot_profiles(generator, count, cells, (0.04, 0.3), (0.015, 0.07), dimension=3)
    plane = (y[..., :, None] * z[..., None, :]).flatten(2)  # (count, SPOTS, cells²)
    return above_a_level(generator, (x.mT @ plane).view(count, cells, cells, cells))


def _tiles(generator: torch.Generator, count: int, cells: int) -> Tensor:
    """The brightness of the nearest site, (count, *cells), each site by its own distance."""
    site = uniform(generator, -0.05, 1.05, count, TILES, 3)
    weight = log_uniform(generator, 0.3, 3, count, TILES, 1)
    weight = weight * log_uniform(generator, 0.6, 1.7, count, TILES, 3)
    present = parts_present(generator, (0.1, 1), count, TILES)
    brightness = uniform(generator, 0, 1, count, TILES) ** uniform(generator, 0.5, 3, count, 1)
    x, y, z = (
        weight[..., i, None] * (centres(cells).float() - site[..., i, None]) ** 2 for i in range(3)
    )
    x = x + torch.where(present, 0.0, 1e3)[..., None]
    distance = x[..., None, None] + (y[..., None] + z[..., None, :])[:, :, None]
    nearest = distance.min(1).indices  # argmin takes thrice the time
    return brightness.gather(1, nearest.flatten(1)).view(count, cells, cells, cells)


def _distance_to_shapes(generator: torch.Generator, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """About the signed distances to random shapes around the origin, (count, k, N) as x, y, z."""
    one = (*x.shape[:2], 1)
    radius = log_uniform(generator, 0.08, 0.38, *one)
    wide, high = (log_uniform(generator, 0.3, 1, *one) for _ in range(2))
    least = torch.minimum(wide, high)
    polar = (x**2 + (y / wide) ** 2 + (z / high) ** 2 + TINY).sqrt()
    ellipsoid = (polar - radius) * least
    thickness = uniform(generator, 0.02, 0.07, *one)
    shell = (ellipsoid + thickness).abs() - thickness
    box = torch.maximum(x.abs() - radius, y.abs() - radius * wide)
    box = torch.maximum(box, z.abs() - radius * high)
    round_about = (x**2 + y**2 + TINY).sqrt()
    cylinder = torch.maximum(round_about - radius * wide, z.abs() - radius * high)
    ring = ((round_about - radius) ** 2 + z**2).sqrt() - thickness
    sorts = (ellipsoid, shell, box, cylinder, ring)
    likely = uniform(generator, 0, 1, one[0], len(sorts)) ** 3 + 1e-3  # so that one sort prevails
    sort = torch.multinomial(likely.repeat_interleave(one[1], 0), 1, generator=generator)
    return chosen(sort.view(one), *sorts)


def _walk(generator: torch.Generator, count: int) -> Tensor:
    """The corners of random lines near the middle, (count, SEGMENTS + 1, 3)."""
    start = torch.zeros(count, 1, 3)
    length = uniform(generator, 0.1, 0.45, count, SEGMENTS, 1)
    heading = normalize(normal(generator, count, SEGMENTS, 3) + 1e-6, dim=-1)
    corners = torch.cat([start, length * heading], 1).cumsum(1)
    middle = uniform(generator, 0.35, 0.65, count, 1, 3)
    return (corners - corners.mean(1, keepdim=True) + middle).clamp(0.08, 0.92)


def _turned(
    generator: torch.Generator, centre: Tensor, cells: int, widths: Tensor | None = None
) -> Tensor:
    """Coordinates of all cells in frames turned about centres (count, k, 3): (count, k, 3, cells³).

    With widths (count, k, 3) they are in units of these.
    """
    frames = torch.linalg.qr(normal(generator, *centre.shape, 3)).Q  # their rows are the axes
    if widths is not None:
        frames = frames / widths[..., None]
    return frames @ _points(cells) - frames @ centre[..., None]


def _offsets(centre: Tensor, cells: int) -> Tensor:
    """Coordinates of all cells less those of centres (count, k, 3): (count, k, 3, cells³)."""
    return _points(cells) - centre[..., None]


def _points(cells: int) -> Tensor:
    """The centres of all cells of the unit cube, (3, cells³)."""
    line = centres(cells).float()
    return torch.stack(torch.meshgrid(line, line, line, indexing="ij")).flatten(1)
