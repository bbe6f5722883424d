"""Eleven kinds of pairs that no network here was trained on, the same pair on any grid.

A density is a function on the unit square, constant in the cells of its own fine grid; on a grid of
n × n cells it is the means over these, so grids of all sizes show the same pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from scipy.fft import idctn
from scipy.ndimage import gaussian_filter
from scipy.special import ndtr
from torch import Tensor

from experiments.mnist import sample_digits
from geonet.density import Density
from geonet.errors import InputError
from geonet.evaluation import SEED, random_potential
from geonet.grid import Grid
from geonet.mixture import GaussianMixture
from geonet.numerics.characteristics import Characteristics

FINEST = 1024  # cells of the fine grid, but for noise and digits
NOISE = 64  # cells of white noise, which has no finer detail
PAIRS = 4  # of a kind in the suite

Values = np.ndarray
Draw = Callable[[np.random.Generator], Values]


def draw(kind: str, cells: int, pair_index: int = 0, seed: int = SEED) -> tuple[Density, Density]:
    """Return source and target on `cells` × `cells` cells of the unit square.

    Args:
        kind: one of `KINDS`.
        cells: along each axis, any number; at best one that divides 1024.
        pair_index: which pair of the kind, from 0.
        seed: of the suite.
    """
    if kind not in _DRAWS:
        raise InputError(f"There is no kind {kind!r}; choose from {', '.join(_DRAWS)}.")
    if pair_index < 0:
        raise InputError(f"pair_index is {pair_index}; count from 0.")
    source, target = _drawn(kind, pair_index, seed)
    return _means(source, cells), _means(target, cells)


@lru_cache(maxsize=2)  # 16 MB a pair; grids of several sizes are asked for one after the other
def _drawn(kind: str, pair_index: int, seed: int) -> tuple[Values, Values]:
    """Return both ends on the fine grid; each has its own stream of random numbers."""
    number = KINDS.index(kind)
    streams = (np.random.default_rng((seed, number, pair_index, end)) for end in (0, 1))
    source, target = (_DRAWS[kind](stream) for stream in streams)
    return source, target


def _means(values: Values, cells: int) -> Density:
    """Return a density of mass one on other cells; blocks of whole cells are averaged without rounding."""
    own = len(values)
    if own % cells == 0:
        k = own // cells
        return Density(values.reshape(cells, k, cells, k).mean((1, 3)), Grid((cells, cells)))
    return Density(values, Grid((own, own))).resample(Grid((cells, cells)))


# ---- random fields


def _field(stream: np.random.Generator, length: float, power: float) -> Values:
    """Return a Gaussian field of mean 0 and variance 1 with the spectrum (1 + (k·length)²)^−power."""
    k = np.pi * np.arange(FINEST)
    amplitude = (1 + (k[:, None] ** 2 + k**2) * length**2) ** (-power / 2)
    amplitude[0, 0] = 0
    z = np.asarray(idctn(stream.normal(size=(FINEST, FINEST)) * amplitude, overwrite_x=True))
    return z / z.std()


def _from_zero(z: Values) -> Values:
    """Return the field, raised so that its least value is zero."""
    return z - z.min()


def _smooth(stream: np.random.Generator) -> Values:
    return _from_zero(_field(stream, 0.25, 5.0))


def _moderate(stream: np.random.Generator) -> Values:
    return _from_zero(_field(stream, 0.15, 2.5))


def _rough(stream: np.random.Generator) -> Values:
    return _from_zero(_field(stream, 0.1, 1.25))


def _log_normal(stream: np.random.Generator) -> Values:
    return np.exp(1.5 * _field(stream, 0.15, 3.0))


def _high_contrast(stream: np.random.Generator) -> Values:
    """Return a steep step function of a field: plateaus near 1 and valleys near 0, down to 1e-6."""
    return 1 / (1 + np.exp(-5 * _field(stream, 0.15, 2.5)))


# ---- peaks, spots, noise


def _peaks(stream: np.random.Generator, count: int = 6) -> Values:
    """Return sharp peaks with heavy tails, (1 + |A(x − m)|²)^−3/2, of different width and turn."""
    x = (np.arange(FINEST) + 0.5) / FINEST
    total = np.zeros((FINEST, FINEST))
    for _ in range(count):
        centre, turn = stream.uniform(0.1, 0.9, 2), stream.uniform(0, np.pi)
        widths, height = np.exp(stream.uniform(np.log(0.02), np.log(0.1), 2)), stream.uniform(0.3)
        a, b = x[:, None] - centre[0], x - centre[1]
        along, across = np.cos(turn) * a + np.sin(turn) * b, np.cos(turn) * b - np.sin(turn) * a
        total += height * (1 + (along / widths[0]) ** 2 + (across / widths[1]) ** 2) ** -1.5
    return total


def _spots(stream: np.random.Generator, count: int = 40) -> Values:
    """Return small round spots of all brightnesses on zero, in loose clusters, as under a microscope."""
    values = np.zeros((FINEST, FINEST))
    clusters = stream.uniform(0.2, 0.8, (4, 2))
    for _ in range(count):
        centre = clusters[stream.integers(4)] + stream.normal(0, 0.1, 2)
        centre, radius = np.clip(centre, 0.06, 0.94), stream.uniform(0.008, 0.035)
        window, distance = _around(centre, radius)
        values[window] += stream.exponential() * np.maximum(1 - distance**2, 0) ** 2
    return values


def _white_noise(stream: np.random.Generator) -> Values:
    return stream.uniform(size=(NOISE, NOISE))


def _around(
    centre: np.ndarray, radius: float, stretch: np.ndarray | None = None
) -> tuple[tuple[slice, slice], Values]:
    """Return the window of the fine grid around a disc, and |x − centre|/radius in it.

    With `stretch` (2, 2) it is |stretch·(x − centre)|/radius, for a stretch that does not shrink.
    """
    first = np.clip(np.floor((centre - radius) * FINEST), 0, FINEST).astype(int)
    last = np.clip(np.ceil((centre + radius) * FINEST), 0, FINEST).astype(int)
    rows, columns = (
        (np.arange(a, b) + 0.5) / FINEST - c for a, b, c in zip(first, last, centre, strict=True)
    )
    p, q = rows[:, None], columns[None]
    if stretch is not None:
        (a, b), (c, d) = stretch
        p, q = a * p + b * q, c * p + d * q
    window = slice(first[0], last[0]), slice(first[1], last[1])
    return window, np.hypot(p, q) / radius


# ---- photographs


def _photograph(stream: np.random.Generator, leaves: int = 250) -> Values:
    """Return leaves that hide each other, with a texture of spectrum 1/f², a fine blur and soft light.

    The radii follow r^−3, which gives edges at all scales as in photographs.
    """
    values = np.full((FINEST, FINEST), 0.5)
    texture = _field(stream, 1.0, 2.0)
    for _ in range(leaves):
        radius = stream.uniform(0.45**-2, 0.03**-2) ** -0.5
        centre, level, grain = stream.uniform(0, 1, 2), stream.uniform(), stream.uniform(0, 0.15)
        window, distance = _around(centre, radius, _ellipse(stream))
        square = stream.uniform() < 0.3  # these fill their window
        leaf = level + grain * texture[window]
        values[window] = leaf if square else np.where(distance < 1, leaf, values[window])
    light = _field(stream, 1.0, 5.0)
    return gaussian_filter(np.clip(values, 0.03, 1.2), 1.5) * np.exp(0.2 * light)


def _ellipse(stream: np.random.Generator) -> np.ndarray:
    """Return a turned stretch by 1 and by 1 to 3, (2, 2)."""
    turn, ratio = stream.uniform(0, np.pi), stream.uniform(1, 3)
    c, s = np.cos(turn), np.sin(turn)
    return np.array([[c, s], [-ratio * s, ratio * c]])


# ---- shapes


def _shapes(stream: np.random.Generator) -> Values:
    """Return ones on zero: an ellipse, a polygon or a letter, or two of them."""
    values = np.zeros((FINEST, FINEST), dtype=bool)
    for _ in range(stream.integers(1, 3)):
        part = (_oval, _polygon, _letter)[stream.integers(3)]
        values |= part(stream, stream.uniform(0.3, 0.7, 2), stream.uniform(0.18, 0.28))
    return values.astype(float)


def _oval(stream: np.random.Generator, centre: np.ndarray, radius: float) -> Values:
    """Return a filled ellipse, or one with a hole, (1024, 1024) of bool."""
    values = np.zeros((FINEST, FINEST), dtype=bool)
    window, distance = _around(centre, radius, _ellipse(stream))
    values[window] = (distance < 1) & (distance >= stream.choice([0.0, 0.6]))
    return values


def _polygon(stream: np.random.Generator, centre: np.ndarray, radius: float) -> Values:
    """Return a star of three to seven tips, or without notches, by the even-odd rule."""
    tips, notch = stream.integers(3, 8), stream.choice([0.45, 1.0])
    angles = np.linspace(0, 2 * np.pi, 2 * tips, endpoint=False) + stream.uniform(0, np.pi)
    radii = radius * np.where(np.arange(2 * tips) % 2, notch, 1.0)
    corners = centre + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)
    x = (np.arange(FINEST) + 0.5) / FINEST
    values = np.zeros((FINEST, FINEST), dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, 1, 0), strict=True):
        rows = np.flatnonzero((x >= min(ax, bx)) & (x < max(ax, bx)))
        crossing = ay + (x[rows] - ax) * (by - ay) / (bx - ax)
        values[rows] ^= x[None] < crossing[:, None]
    return values


LETTERS = (  # strokes between points of the square [−1, 1]²
    ((-0.6, -1, -0.6, 1), (-0.6, 1, 0.6, 1), (-0.6, 0, 0.4, 0), (-0.6, -1, 0.6, -1)),  # E
    ((-0.6, -1, -0.6, 1), (0.6, -1, 0.6, 1), (-0.6, 0, 0.6, 0)),  # H
    ((-0.7, -1, 0, 1), (0, 1, 0.7, -1), (-0.35, 0, 0.35, 0)),  # A
    ((-0.7, 1, 0.7, 1), (0, 1, 0, -1)),  # T
    ((-0.7, -1, 0.7, 1), (-0.7, 1, 0.7, -1)),  # X
    ((-0.6, 1, -0.6, -1), (-0.6, -1, 0.6, -1)),  # L
)


def _letter(stream: np.random.Generator, centre: np.ndarray, radius: float) -> Values:
    """Return a letter of thick strokes with round ends."""
    x = (np.arange(FINEST) + 0.5) / FINEST
    p, q = (x[:, None] - centre[0]) / radius, (x - centre[1]) / radius
    values = np.zeros((FINEST, FINEST), dtype=bool)
    thick = stream.uniform(0.12, 0.25)
    for ax, ay, bx, by in LETTERS[stream.integers(len(LETTERS))]:
        dx, dy = bx - ax, by - ay
        along = np.clip(((p - ax) * dx + (q - ay) * dy) / (dx**2 + dy**2), 0, 1)
        values |= (p - ax - along * dx) ** 2 + (q - ay - along * dy) ** 2 < thick**2
    return values


# ---- digits


def _digit(stream: np.random.Generator) -> Values:
    """Return one of MNIST's test set, rows from the top, (28, 28)."""
    images = sample_digits().images
    return images[stream.integers(len(images))] / 255


_DRAWS: dict[str, Draw] = {
    "smooth": _smooth,
    "moderate": _moderate,
    "rough": _rough,
    "log-normal": _log_normal,
    "high-contrast": _high_contrast,
    "peaks": _peaks,
    "photographs": _photograph,
    "shapes": _shapes,
    "spots": _spots,
    "white-noise": _white_noise,
    "digits": _digit,
}
KINDS = tuple(_DRAWS)


# ---- Pairs on the unit square whose path and W2 are exact, also where mass is torn or has holes.
#
# Everything is a mean over cells: ends and frames alike. No solver takes part in them.


Frame = Callable[[float], Tensor]
NODES, WEIGHTS = (a / 2 for a in np.polynomial.legendre.leggauss(24))  # on [−½, ½]
SHELLS = 4096  # of equal mass, in which a radial density is taken as constant
TEXTURE = 512  # cells of the texture that moves; on other grids it is averaged
LUMPS = np.array(  # of the mixture with known maps: centre and standard deviation
    [[0.34, 0.36, 0.09], [0.61, 0.28, 0.07], [0.47, 0.52, 0.11], [0.63, 0.72, 0.08]]
)
ROUNDING = 1e-12
SHARES, FLOOR = np.array([0.27, 0.18, 0.225, 0.225]), 0.1
GAUSS = math.sqrt(0.15) * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
GAUSS_WEIGHTS = torch.tensor([5.0, 8.0, 5.0], dtype=torch.float64) / 18


@dataclass(frozen=True)
class ExactPair:
    """Two densities with their geodesic.

    Attributes:
        name: one of `EXACT_PAIRS`.
        source: cell means at t = 0, (n, n).
        target: cell means at t = 1, (n, n).
        distance: W2.
        frame: gives the cell means at any t, (n, n), up to a constant factor.
    """

    name: str
    source: Density
    target: Density
    distance: float
    frame: Frame = field(repr=False)

    def truth(self, t: float) -> Density:
        """Return the exact cell means at a time in [0, 1]."""
        if not 0 <= t <= 1:
            raise InputError(f"t is {t:g}; give a time in [0, 1].")
        return Density(self.frame(float(t)), self.source.grid)


def exact_pair(name: str, cells: int) -> ExactPair:
    """Return a pair on `cells` × `cells` cells of the unit square."""
    if name not in _MAKERS:
        raise InputError(f"There is no exact pair {name!r}; choose from {', '.join(_MAKERS)}.")
    grid = Grid((cells, cells))
    frame, distance = _MAKERS[name](cells)
    source, target = (Density(frame(t), grid) for t in (0.0, 1.0))
    return ExactPair(name, source, target, distance, frame)


# ---- discs and rings


def _torn_disc(cells: int, radius: float = 0.21, apart: float = 0.17) -> tuple[Frame, float]:
    """Return a disc whose halves move apart, T(x) = x + a·sign(x₁ − ½)e₁."""
    disc = np.array([0.0, radius]), np.ones(1)

    def frame(t: float) -> Tensor:
        moved = t * apart
        left = _radial_means(cells, *disc, 0.5 - moved, (0.0, 0.5 - moved))
        right = _radial_means(cells, *disc, 0.5 + moved, (0.5 + moved, 1.0))
        return left + right

    return frame, apart


def _ring_to_disc(
    cells: int, inner: float = 0.18, outer: float = 0.40, disc: float = 0.27
) -> tuple[Frame, float]:
    """Return a ring that fills up: at the radius r(m) that encloses the mass m, all goes to c√m."""

    def ring(root: np.ndarray) -> np.ndarray:
        """Return r(m) for √m."""
        return np.sqrt(inner**2 + root**2 * (outer**2 - inner**2))

    def frame(t: float) -> Tensor:
        root = np.linspace(0, 1, SHELLS + 1)
        radii = (1 - t) * ring(root) + t * disc * root
        heights = np.diff(root**2) / (math.pi * np.diff(radii**2))
        return _radial_means(cells, radii, heights)

    root = NODES + 0.5  # dm = 2√m d√m
    squared = WEIGHTS @ (2 * root * (ring(root) - disc * root) ** 2)
    return frame, math.sqrt(float(squared))


def _radial_means(
    cells: int,
    radii: np.ndarray,
    heights: np.ndarray,
    centre: float = 0.5,
    span: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Return cell means (n, n) of a radial function around (centre, ½) where x₁ lies in a span.

    It is heights[k] between radii[k] and radii[k + 1], and zero elsewhere. Along x₂ the integral is
    exact, along x₁ it is Gauss's.
    """
    edges = np.linspace(0, 1, cells + 1)
    low, high = max(span[0], centre - radii[-1]), min(span[1], centre + radii[-1])
    cut = np.clip(edges, low, high)
    means = np.zeros((cells, cells))
    for i in np.flatnonzero(np.diff(cut)):
        left, width = cut[i], cut[i + 1] - cut[i]
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            x = left + width * (0.5 + node) - centre
            chord = np.sqrt(np.maximum(radii**2 - x**2, 0))  # half of it, for each radius
            below = np.concatenate([[0.0], np.cumsum(heights * np.diff(chord))])
            upwards = np.interp(np.abs(edges - 0.5), chord, below)
            means[i] += weight * width * np.diff(np.sign(edges - 0.5) * upwards)
    return torch.from_numpy(means * cells**2)


# ---- a texture that moves


def _texture_shift(cells: int, seed: int = 1) -> tuple[Frame, float]:
    """Return a rough, rain-like texture on zero that moves by ⅛ and ¹⁄₁₆ of the square.

    These are whole cells at the quarters where 64 divides `cells`.
    """
    noise = gaussian_filter(
        np.random.default_rng(seed).normal(size=(TEXTURE, TEXTURE)), TEXTURE / 50
    )
    x = (np.arange(TEXTURE) + 0.5) / TEXTURE - 0.4
    inside = np.hypot(x[:, None], x) < 0.22
    rain = Density(np.exp(2 * noise / noise.std()) * inside, Grid((TEXTURE, TEXTURE)))
    values = rain.resample(Grid((cells, cells))).tensor

    def frame(t: float) -> Tensor:
        moved = values
        for axis, share in enumerate((1 / 8, 1 / 16)):
            whole, part = divmod(t * share * cells, 1)
            near, far = (moved.roll(int(whole) + k, axis) for k in (0, 1))
            moved = (1 - part) * near + part * far
        return moved

    return frame, math.hypot(1 / 8, 1 / 16)


# ---- known maps


def _known_map(cells: int, seed: int = 3, strength: float = 0.6) -> tuple[Frame, float]:
    """Return a floored mixture carried by id + ∇u, with a smooth random u that keeps the square."""
    generator = torch.Generator().manual_seed(seed)
    potential = random_potential(Grid((cells, cells)), generator, 4, strength)
    lines = Characteristics(potential)

    def frame(t: float) -> Tensor:
        times, points = torch.tensor([t], dtype=torch.float64), _gauss_points(cells)
        origin = lines.trace_back(times, points)[0]
        return _gauss_means(_floored(origin.point) / origin.determinant(t), cells)

    fine = 128  # cells for the integral of |∇u|² over the source
    points = _gauss_points(fine)
    source, moved = _floored(points), potential.at(points)[1].square().sum(-1)
    share = _gauss_means(source * moved, fine).sum() / _gauss_means(source, fine).sum()
    return frame, math.sqrt(float(share))


def _torn_mixture(cells: int, *slabs: tuple[float, float, float, float]) -> tuple[Frame, float]:
    """Return a floored mixture whose halves move apart: φ has a kink.

    Each slab low ≤ x₁ ≤ high is carried along x₁, by an affine map, to its last two numbers; the
    source is zero outside of the slabs. Cells are integrated exactly, by error functions.
    """
    edges = np.linspace(0, 1, cells + 1)
    rows = np.diff(_cumulative(edges, 1))

    def frame(t: float) -> Tensor:
        means = np.zeros((cells, cells))
        for low, high, *image in slabs:
            now = (1 - t) * low + t * image[0], (1 - t) * high + t * image[1]
            back = low + (edges - now[0]) * (high - low) / (now[1] - now[0])
            columns = np.diff(_cumulative(np.clip(back, low, high), 0))
            means += np.einsum("ki,kj->ij", columns, rows)
        means[means < ROUNDING * means.max()] = 0  # where edges of gap and cell nearly coincide
        return torch.from_numpy(means * cells**2)

    return frame, math.sqrt(sum(_squared(slab) for slab in slabs) / float(frame(0.0).mean()))


def _squared(slab: tuple[float, float, float, float], pieces: int = 4096) -> float:
    """Return ∫|T − id|² over a slab: by pieces of known mass, each at its middle."""
    low, high, first, last = slab
    x = np.linspace(low, high, pieces + 1)
    whole = np.diff(_cumulative(np.array([0.0, 1.0]), 1))[:, 0]
    mass = whole @ np.diff(_cumulative(x, 0))
    moved = np.linspace(first, last, pieces + 1) - x
    return float(mass @ ((moved[1:] + moved[:-1]) / 2) ** 2)


def _cumulative(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the integrals of each lump of the floored mixture, and of the floor, along an axis, (5, len(x))."""
    centres, spreads = LUMPS[:, axis, None], LUMPS[:, 2, None]
    lumps = ndtr((x - centres) / spreads)
    if axis == 1:  # the weights enter once
        return np.concatenate([SHARES[:, None] * lumps, FLOOR * x[None]])
    return np.concatenate([lumps, x[None]])


def _floored(points: Tensor) -> Tensor:
    """Return the same mixture at points (N, 2), (N,)."""
    spreads = torch.from_numpy(LUMPS[:, 2])
    lumps = GaussianMixture.isotropic(LUMPS[:, :2], spreads, SHARES)
    return float(SHARES.sum()) * lumps._pdf(points) + FLOOR


def _gauss_points(cells: int) -> Tensor:
    """Return three Gauss points along each axis of each cell, (9n², 2)."""
    along = ((torch.arange(cells)[:, None] + 0.5 + GAUSS) / cells).reshape(-1)
    return torch.cartesian_prod(along, along)


def _gauss_means(values: Tensor, cells: int) -> Tensor:
    """Return cell means (n, n) of values (9n²,) at `_gauss_points`."""
    inside = values.reshape(cells, 3, cells, 3)
    return torch.einsum("aibj,i,j->ab", inside, GAUSS_WEIGHTS, GAUSS_WEIGHTS)


_MAKERS: dict[str, Callable[[int], tuple[Frame, float]]] = {
    "torn-disc": _torn_disc,
    "ring-to-disc": _ring_to_disc,
    "texture-shift": _texture_shift,
    "known-map": _known_map,
    "torn-mixture": lambda cells: _torn_mixture(cells, (0.1, 0.5, 0, 0.4), (0.5, 0.9, 0.6, 1)),
    "torn-and-squeezed": lambda cells: _torn_mixture(cells, (0, 0.5, 0, 0.4), (0.5, 1, 0.6, 1)),
}
EXACT_PAIRS = tuple(_MAKERS)
