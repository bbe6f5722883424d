"""Random densities on the unit interval, square and cube, and signed distances of shapes.

A *kind* is a function ``kind(generator, count, config)``. It draws ``count`` densities on
``config.cells`` cells along each of ``config.dimension`` axes and returns them as a float32 tensor
(count, cells, …, cells): finite, non-negative and of any mass, possibly zero. `KINDS` lists all of
them. All random numbers come from the generator. Lengths are in units of the box.

A shape is given by its signed distance, negative inside: a function of points (…, d, N) with values
(…, N), which `fill` converts to a density whose edges are one cell wide. Distances of stretched
shapes are lower estimates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import normalize

Range = tuple[float, float]
Kind = Callable[[torch.Generator, int, "SyntheticConfig"], Tensor]

EPSILON = 1e-12  # added under roots and logarithms


@dataclass(frozen=True)
class SyntheticConfig:
    """Distribution of random densities; the defaults are for the unit square."""

    dimension: int = 2
    cells: int = 64  # along each axis
    cells_per_call: int = 32 * 64**2  # drawn together, at most: bounds the memory
    bumps: int = 10  # of a mixture, at most
    bump_width: Range = (0.012, 0.4)
    tail_power: Range = (1.2, 8)  # exponents of heavy tails
    tiles: int = 24  # of a texture, at most
    light: float = 0.4  # largest amplitude of slow changes of the brightness of a texture
    shapes: int = 5  # at most
    shape_radius: Range = (0.05, 0.35)
    shape_aspect: Range = (0.25, 1)  # ratio of a shorter side to the longest
    line_radius: Range = (0.015, 0.06)  # half the thickness of arcs, shells and tori
    segments: int = 5  # of a stroke, at most
    segment_length: Range = (0.06, 0.35)
    segment_bend: float = 0.3  # largest deflection of a segment, relative to its length
    stroke_radius: Range = (0.015, 0.08)  # half the thickness
    margin: float = 0.1  # between the boundary and the centres of shapes
    blur: float = 2.0  # largest width in cells of the blur of shapes and strokes
    spots: int = 48  # at most
    group_width: Range = (0.03, 0.3)  # of a group of spots
    spot_radius: Range = (0.008, 0.05)

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along all axes."""
        return (self.cells,) * self.dimension


SQUARE = SyntheticConfig()
CUBE = SyntheticConfig(
    dimension=3,
    cells=32,
    cells_per_call=2 * 32**3,  # more do not fit into the cache of a core
    bumps=8,
    bump_width=(0.02, 0.4),
    tail_power=(1.7, 8),
    tiles=16,
    light=0.0,
    shapes=4,
    shape_radius=(0.08, 0.38),
    shape_aspect=(0.3, 1),
    line_radius=(0.02, 0.07),
    segments=4,
    segment_length=(0.1, 0.45),
    segment_bend=0.4,
    stroke_radius=(0.025, 0.09),
    margin=0.12,
    blur=1.5,
    group_width=(0.04, 0.3),
    spot_radius=(0.015, 0.07),
)


# ---- Kinds


def mixtures(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Draw sums of rotated bumps: all of one density are Gaussian, or all have heavy tails.

    A bump is exp(−q/2) or (1 + q/2)^(−p), where q is the squared distance in widths. The bumps lie
    all over the box or around one point.
    """
    k, d = config.bumps, config.dimension
    centre = _random_centres(generator, count, k, d, 0.03, (0.15, 0.85), 0.15)
    width = log_uniform(generator, *config.bump_width, count, k, d)
    width *= log_uniform(generator, 0.6, 1.6, count, 1, 1)
    frames = random_frames(generator, centre) / width[..., None]
    half = _coordinates(frames, centre, config.cells).square_().sum(2).mul_(0.5)
    heavy = ~bernoulli(generator, 0.5, count)
    power = log_uniform(generator, *config.tail_power, count, 1, 1)
    half[heavy] = torch.log1p(half[heavy]) * power[heavy]
    height = uniform(generator, 0, 1, count, k) ** uniform(generator, 0, 2, count, 1)
    height *= _present_parts(generator, (0.2, 1.2), count, k)
    height[:, 0] = 1
    return (height[:, None] @ half.neg_().exp_()).view(count, *config.shape)


def fields(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Draw random fields z, from white noise to a single slope, made positive in one of six ways.

    These are z − min z and a power up to 3 of it, exp(sz), a logistic function of z, a power ½ to 2
    of the part above a level, and |z| to a power 1 to 2.
    """
    d, one = config.dimension, (1,) * config.dimension
    z = gaussian_fields(generator, count, config.cells, d)
    s = uniform(generator, 0, 1, count, *one)
    lifted = z - z.amin(tuple(range(1, z.ndim)), keepdim=True)
    shift = uniform(generator, -2, 2, count, *one)
    above = (z - uniform(generator, -1, 1.2, count, *one)).clamp(min=0)
    options = (
        lifted,
        torch.exp((0.3 + 2.2 * s) * z),
        torch.sigmoid((1.5 + 8 * s) * z + shift),
        above ** (0.5 + 1.5 * s),
        z.abs() ** (1 + s),
        lifted ** (1 + 2 * s),
    )
    choice = torch.randint(len(options), (count, *one), generator=generator)
    return _select(choice, options) + 1e-4  # a field may be zero everywhere


def textures(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Draw Voronoi tiles or steps of a field, with grain, blur and light."""
    n, d, one = config.cells, config.dimension, (1,) * config.dimension
    tiles = _random_tiles(generator, count, config)
    field = gaussian_fields(generator, count, n, d, (0.1, 0.6), (1.5, 5))
    steps = (torch.floor(field * uniform(generator, 0.5, 3, count, *one)) * 0.25).remainder(1.0)
    values = torch.where(bernoulli(generator, 0.7, count, *one), tiles, steps)
    grain = gaussian_fields(generator, count, n, d, (0.05, 1), (1, 3))
    values = (values + uniform(generator, 0, 0.17, count, *one) * grain).clamp(0, 1.5)
    values = random_blur(generator, values, 1.5)
    if config.light:
        strength = uniform(generator, 0, config.light, count, *one)
        light = gaussian_fields(generator, count, n, d, (0.5, 1), (4, 6))
        values = values * torch.exp(strength * light)
    return values + 1e-4  # all tiles may be black


def _random_tiles(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Return the brightness of the nearest site; each site has its own metric."""
    n, d, k = config.cells, config.dimension, config.tiles
    site = uniform(generator, -0.05, 1.05, count, k, d)
    weight = log_uniform(generator, 0.3, 3, count, k, 1)
    weight = weight * log_uniform(generator, 0.55, 1.8, count, k, d)
    absent = 1e3 * ~_present_parts(generator, (0.1, 1), count, k)
    brightness = uniform(generator, 0, 1, count, k) ** uniform(generator, 0.5, 3, count, 1)
    line = cell_centres(n, 1)[0]
    distance = absent.view(count, k, *(1,) * d)
    for axis in reversed(range(d)):  # the last axis first: the sum grows to its full size once
        square = weight[..., axis, None] * (line - site[..., axis, None]) ** 2
        distance = distance + square.view(count, k, *(1,) * axis, n, *(1,) * (d - 1 - axis))
    nearest = distance.min(1).indices  # three times as fast as argmin
    return brightness.gather(1, nearest.flatten(1)).view(count, *config.shape)


def shapes(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Draw sharp shapes, mostly of one sort and one brightness.

    They are stars and ellipses, rings, rectangles and arcs in 2D; ellipsoids, shells, boxes,
    cylinders and tori in 3D.
    """
    k, d = config.shapes, config.dimension
    centre = _random_centres(generator, count, k, d, config.margin, (0.25, 0.75), 0.12)
    x = _coordinates(random_frames(generator, centre), centre, config.cells)
    sorts = _random_shapes_2d if d == 2 else _random_shapes_3d
    options = sorts(generator, x, config)
    likely = uniform(generator, 0, 1, count, len(options)) ** 3 + 1e-3  # one sort prevails
    sort = torch.multinomial(likely.repeat_interleave(k, 0), 1, generator=generator)
    distance = _select(sort.view(count, k, 1), options)
    level = uniform(generator, 0.2, 1, count, k)
    level = torch.where(bernoulli(generator, 0.6, count, 1), 1.0, level)
    level *= _present_parts(generator, (0.1, 1), count, k)
    values = (fill(distance, config.cells) * level[..., None]).amax(1)
    return random_blur(generator, values.view(count, *config.shape), config.blur)


def _random_shapes_2d(
    generator: torch.Generator, x: Tensor, config: SyntheticConfig
) -> Sequence[Tensor]:
    """Return distances to a star, a ring, a rectangle and an arc, (count, k, N)."""
    one = (*x.shape[:2], 1)
    radius = log_uniform(generator, *config.shape_radius, *one)
    aspect = log_uniform(generator, *config.shape_aspect, *one)
    tips = torch.randint(2, 8, one, generator=generator)
    depth = uniform(generator, 0, 0.6, *one) * bernoulli(generator, 0.5, *one)
    u, v = x.unbind(2)
    polar = (u**2 + (v / aspect) ** 2 + EPSILON).sqrt()
    star = (polar - radius * (1 + depth * torch.cos(tips * torch.atan2(v, u)))) * aspect
    inset, half = (uniform(generator, 0.1, 0.35, *one) * radius * aspect for _ in range(2))
    bend = uniform(generator, -3, 3, *one)
    along = u.clamp(-radius, radius)
    middle = bend * (along**2 - radius**2 / 3)
    line = uniform(generator, *config.line_radius, one[0], 1, 1)
    arc = ((u - along) ** 2 + (v - middle) ** 2 + EPSILON).sqrt() - line
    rectangle = torch.maximum(u.abs() - radius, v.abs() - radius * aspect)
    return star, (star + inset).abs() - half, rectangle, arc


def _random_shapes_3d(
    generator: torch.Generator, x: Tensor, config: SyntheticConfig
) -> Sequence[Tensor]:
    """Return distances to an ellipsoid, a shell, a box, a cylinder and a torus, (count, k, N)."""
    one = (*x.shape[:2], 1)
    radius = log_uniform(generator, *config.shape_radius, *one)
    wide, high = (log_uniform(generator, *config.shape_aspect, *one) for _ in range(2))
    line = uniform(generator, *config.line_radius, *one)
    u, v, w = x.unbind(2)
    polar = (u**2 + (v / wide) ** 2 + (w / high) ** 2 + EPSILON).sqrt()
    ellipsoid = (polar - radius) * torch.minimum(wide, high)
    sides = u.abs() - radius, v.abs() - radius * wide, w.abs() - radius * high
    box = torch.maximum(torch.maximum(sides[0], sides[1]), sides[2])
    axial = (u**2 + v**2 + EPSILON).sqrt()
    cylinder = torch.maximum(axial - radius * wide, sides[2])
    torus = ((axial - radius) ** 2 + w**2).sqrt() - line
    return ellipsoid, (ellipsoid + line).abs() - line, box, cylinder, torus


def strokes(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Draw one stroke with corners or bends, as in letters; in 3D a tube. Its ends are round."""
    k, d = config.segments, config.dimension
    length = uniform(generator, *config.segment_length, count, k, 1)
    step = length * normalize(normal(generator, count, k, d) + 1e-6, dim=-1)
    corners = torch.cat([torch.zeros(count, 1, d), step], 1).cumsum(1)
    corners += uniform(generator, 0.35, 0.65, count, 1, d) - corners.mean(1, keepdim=True)
    near = 0.65 * config.margin
    corners = corners.clamp(near, 1 - near)
    along = corners.diff(dim=1)
    if d == 2:
        sideways = torch.stack([-along[..., 1], along[..., 0]], -1)
    else:
        sideways = torch.linalg.cross(along, normal(generator, count, k, 3), dim=-1)
        sideways = sideways / (along.norm(dim=-1, keepdim=True) + EPSILON)
    bend = uniform(generator, -config.segment_bend, config.segment_bend, count, k, 1)
    bend = bend * bernoulli(generator, 0.7, count, 1, 1) * sideways
    points = cell_centres(config.cells, d)
    distance = segment_distance(points, corners[:, :-1], along, bend)
    present = bernoulli(generator, 0.75, count, k, 1)
    present[:, 0] = True
    nearest = torch.where(present, distance, 1.0).amin(1)
    values = fill(nearest - uniform(generator, *config.stroke_radius, count, 1), config.cells)
    return random_blur(generator, values.view(count, *config.shape), config.blur)


def spots(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Draw small round spots of very different heights, in groups or all over the box.

    Most densities are cut off to zero below a small level.
    """
    k, d, one = config.spots, config.dimension, (1,) * config.dimension
    middles = uniform(generator, 0.1, 0.9, count, 5, d)
    group = torch.randint(5, (count, k, 1), generator=generator)
    near = middles.gather(1, group.expand(-1, -1, d))
    near = near + log_uniform(generator, *config.group_width, count, 1, 1) * normal(
        generator, count, k, d
    )
    scattered = bernoulli(generator, 0.4, count, 1, 1)
    anywhere = uniform(generator, 0.02, 0.98, count, k, d)
    centre = torch.where(scattered, anywhere, near.clamp(0.02, 0.98))
    radius = log_uniform(generator, *config.spot_radius, count, k)
    radius = radius * log_uniform(generator, 0.7, 1.5, count, 1)
    square = radius**2 + (0.4 / config.cells) ** 2  # no spot falls between the cell centres
    height = -torch.log(uniform(generator, 0, 1, count, k) + EPSILON)
    height *= _present_parts(generator, (0.1, 1), count, k)
    height[:, 0] = 1
    offset = cell_centres(config.cells, 1) - centre[..., None]  # (count, k, d, cells)
    profiles = torch.exp(-1.5 * offset**2 / square[..., None, None])
    first = height[..., None] * profiles[:, :, 0]
    rest = profiles[:, :, 1] if d > 1 else torch.ones(count, k, 1)
    if d == 3:
        rest = (rest[..., :, None] * profiles[:, :, 2, None]).flatten(2)
    values = (first.mT @ rest).view(count, *config.shape)
    level = uniform(generator, 0, 0.06, count, *one) * bernoulli(generator, 0.7, count, *one)
    peak = values.amax(tuple(range(1, values.ndim)), keepdim=True)
    return (values - level * peak).clamp(min=0)


def noise(generator: torch.Generator, count: int, config: SyntheticConfig) -> Tensor:
    """Draw independent cells, U[0, 1] to a power ½ to 4, some on a constant background."""
    one = (1,) * config.dimension
    power = log_uniform(generator, 0.5, 4, count, *one)
    background = uniform(generator, 0, 1, count, *one) * bernoulli(generator, 0.3, count, *one)
    return uniform(generator, 0, 1, count, *config.shape) ** power + background


# The kinds by name, each with its relative frequency.
KINDS: dict[str, tuple[Kind, float]] = {
    "mixtures": (mixtures, 3.0),
    "fields": (fields, 4.0),
    "textures": (textures, 2.0),
    "shapes": (shapes, 3.0),
    "strokes": (strokes, 2.0),
    "spots": (spots, 2.0),
    "noise": (noise, 1.0),
}


def _random_centres(
    generator: torch.Generator,
    count: int,
    parts: int,
    dimension: int,
    margin: float,
    middle: Range,
    width: float,
) -> Tensor:
    """Return centres (count, parts, d), all over the box or, as often, around one point."""
    anywhere = uniform(generator, margin, 1 - margin, count, parts, dimension)
    around = uniform(generator, *middle, count, 1, dimension)
    near = around + width * normal(generator, count, parts, dimension)
    return torch.where(bernoulli(generator, 0.5, count, 1, 1), anywhere, near)


def _present_parts(generator: torch.Generator, share: Range, count: int, parts: int) -> Tensor:
    """Return which parts each density has, (count, parts), at a random rate; the first always."""
    present = bernoulli(generator, uniform(generator, *share, count, 1), count, parts)
    present[:, 0] = True
    return present


def _select(choice: Tensor, options: Sequence[Tensor]) -> Tensor:
    """Return options[choice], element by element."""
    result = options[0]
    for k, option in enumerate(options[1:], start=1):
        result = torch.where(choice == k, option, result)
    return result


# ---- Geometry


def cell_centres(cells: int, dimension: int) -> Tensor:
    """Return the centres of all cells of the unit box, (d, cells^d)."""
    line = (torch.arange(cells) + 0.5) / cells
    return torch.stack(torch.meshgrid(*[line] * dimension, indexing="ij")).flatten(1)


def random_frames(generator: torch.Generator, centre: Tensor) -> Tensor:
    """Return one random orthogonal matrix per centre (…, d), (…, d, d); its rows are the axes."""
    d = centre.shape[-1]
    if d == 3:
        return torch.linalg.qr(normal(generator, *centre.shape, d)).Q
    angle = uniform(generator, 0, math.pi, *centre.shape[:-1])
    c, s = angle.cos(), angle.sin()
    return torch.stack([c, s, -s, c], -1).unflatten(-1, (2, 2))


def _coordinates(frames: Tensor, centre: Tensor, cells: int) -> Tensor:
    """Return the coordinates of all cells in frames about centres, (count, k, d, cells^d)."""
    d = centre.shape[-1]
    rotated = frames.reshape(-1, d) @ cell_centres(cells, d)  # faster than many small products
    return rotated.view(*frames.shape[:-1], -1).sub_(frames @ centre[..., None])


def fill(distance: Tensor, cells: int) -> Tensor:
    """Return one where the signed distance is negative, else zero, with edges one cell wide."""
    return (0.5 - distance * cells).clamp(0, 1)


def box_distance(x: Tensor, *half_sides: float) -> Tensor:
    """Return the signed distance in the maximum norm to a box about the origin."""
    return (x.abs() - torch.tensor(half_sides)[:, None]).amax(-2)


def star_distance(x: Tensor, tips: int, outer: float, inner: float) -> Tensor:
    """Return the signed distance to a star with straight edges; one tip is on the first axis.

    With `inner` = `outer` it is a regular polygon with 2·tips corners.
    """
    sector = 2 * math.pi / tips
    angle = ((torch.atan2(x[..., 1, :], x[..., 0, :]) + sector / 2) % sector - sector / 2).abs()
    radius = x.norm(dim=-2)
    across, along = inner * math.sin(sector / 2), outer - inner * math.cos(sector / 2)
    height = radius * angle.sin() * along - (outer - radius * angle.cos()) * across
    return height / math.hypot(across, along)


def segment_distance(x: Tensor, start: Tensor, along: Tensor, bend: Tensor | None = None) -> Tensor:
    """Return the distance to segments from `start` to `start + along`, (…, d) each.

    With `bend` (…, d), a segment is a parabola whose middle is displaced by it. The distance is
    then an estimate: it is measured to the point above the projection on the chord.
    """
    offset = x - start[..., None]
    square = along.square().sum(-1)[..., None] + 1e-6
    t = ((along[..., None] * offset).sum(-2) / square).clamp(0, 1)
    offset = offset - along[..., None] * t[..., None, :]
    if bend is not None:
        offset -= bend[..., None] * (4 * t * (1 - t))[..., None, :]
    return (offset.square_().sum(-2) + EPSILON).sqrt()


# ---- Gaussian random fields


def gaussian_fields(
    generator: torch.Generator,
    count: int,
    cells: int,
    dimension: int,
    length: Range = (0.02, 0.6),
    decay: Range = (0.0, 6.0),
) -> Tensor:
    """Draw Gaussian random fields of mean zero and variance one, (count, cells, …, cells).

    Each has a correlation length log-uniform in `length`, a decay of its spectrum uniform in
    `decay` (0 is white noise), and is stretched along each axis by a factor up to 2; see
    `filter_noise`.
    """
    one = (1,) * dimension
    stretches = [log_uniform(generator, 0.5, 2, count, *one) for _ in range(dimension - 1)]
    scale = log_uniform(generator, *length, count, *one)
    power = uniform(generator, *decay, count, *one)
    return filter_noise(normal(generator, count, *(cells,) * dimension), scale, power, stretches)


def filter_noise(
    noise: Tensor, length: float | Tensor, decay: float | Tensor, stretches: Sequence[Tensor] = ()
) -> Tensor:
    """Convert coefficients of cosines to fields of mean zero and variance one.

    The coefficient of cos(πk₁x)·cos(πk₂y)·… is multiplied by (1 + ℓ²π²κ²)^(−p/2), where κ² is
    rk₁² + k₂²/r, in 3D rk₁² + k₂²s/r + k₃²/s.

    Args:
        noise: white noise, (count, n, …, n), float32.
        length: ℓ, below which detail fades.
        decay: p.
        stretches: r and s, one fewer than axes; all 1 if empty.
    """
    n, d = noise.shape[-1], noise.ndim - 1
    amplitude = (1 + _squared_frequencies(n, d, stretches) * length**2) ** (-decay / 2)
    amplitude.flatten(1)[:, 0] = 0
    field = _transform(amplitude * noise, _cosines(n))
    return field / field.square().mean(tuple(range(1, d + 1)), keepdim=True).sqrt()


def random_blur(generator: torch.Generator, values: Tensor, max_width: float) -> Tensor:
    """Blur values (count, n, …, n) by Gaussians of random width up to `max_width` cells.

    The walls reflect. Two fifths of the densities stay as they are.
    """
    (count, n), d = values.shape[:2], values.ndim - 1
    one = (1,) * d
    width = uniform(generator, 0, max_width, count, *one)
    sharp = bernoulli(generator, 0.4, count, *one)
    damping = torch.exp(-0.5 * (width / n) ** 2 * _squared_frequencies(n, d))
    smooth = _transform(_transform(values, _cosines(n).T) * damping, _cosines(n))
    return torch.where(sharp, values, smooth.clamp(min=0))  # rounding may go below


def normalise_mean(values: Tensor, dimension: int) -> Tensor:
    """Return values (…, n, …, n) of mean one.

    Densities with a mean below 1e-5 are replaced by the uniform one: that much is left by rounding
    in a blur, or is the tail of a shape outside the box.
    """
    mean = values.mean(tuple(range(-dimension, 0)), keepdim=True)
    return torch.where(mean > 1e-5, values / mean, 1.0)


def _squared_frequencies(n: int, d: int, stretches: Sequence[Tensor] = ()) -> Tensor:
    """Return π²κ² of `filter_noise` for k < n, (count or 1, n, …, n)."""
    k_squared, one = (math.pi * torch.arange(n)) ** 2, torch.ones((1,) * d)
    factors = [one, *(stretches or [one] * (d - 1)), one]
    total = torch.zeros((1,) * (d + 1))
    for axis, (before, after) in enumerate(pairwise(factors)):
        total = total + k_squared.view(-1, *(1,) * (d - 1 - axis)) * after / before
    return total


def _transform(values: Tensor, table: Tensor) -> Tensor:
    """Multiply fields (count, n, …, n) by a matrix (n, n) along each of their one to three axes."""
    values = values @ table.T
    if values.ndim > 2:
        values = table @ values
    return values if values.ndim < 4 else (table @ values.flatten(2)).view_as(values)


@lru_cache(maxsize=8)
def _cosines(n: int) -> Tensor:
    """Return cosines at n cell centres as an orthogonal matrix (n, n), one column per mode."""
    centre = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    table = torch.cos(math.pi * centre[:, None] * torch.arange(n)) * math.sqrt(2 / n)
    table[:, 0] /= math.sqrt(2)
    return table.float()


# ---- Random numbers, single precision


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Draw numbers uniform in [low, high)."""
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float32)


def log_uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Draw numbers whose logarithms are uniform between log(low) and log(high)."""
    return uniform(generator, math.log(low), math.log(high), *shape).exp()


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Draw standard normal numbers."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def bernoulli(generator: torch.Generator, probability: float | Tensor, *shape: int) -> Tensor:
    """Draw booleans that are true with this probability."""
    return uniform(generator, 0, 1, *shape) < probability
