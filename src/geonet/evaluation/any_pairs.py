"""Eleven kinds of pairs that no network here was trained on, the same pair on any grid.

A density is a function on the unit square, constant in the cells of its own fine grid; on a grid of
n × n cells it is the means over these, so grids of all sizes show the same pair.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.fft import idctn
from scipy.ndimage import gaussian_filter

from geonet.errors import InputError
from geonet.evaluation.suites import SEED
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.mnist import sample_digits

FINEST = 1024  # cells of the fine grid, but for noise and digits
NOISE = 64  # cells of white noise, which has no finer detail
PAIRS = 4  # of a kind in the suite

Values = np.ndarray
Draw = Callable[[np.random.Generator], Values]


def draw(kind: str, cells: int, pair_index: int = 0, seed: int = SEED) -> tuple[Density, Density]:
    """Source and target on `cells` × `cells` cells of the unit square.

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
    """Both ends on the fine grid; each has its own stream of random numbers."""
    number = KINDS.index(kind)
    streams = (np.random.default_rng((seed, number, pair_index, end)) for end in (0, 1))
    source, target = (_DRAWS[kind](stream) for stream in streams)
    return source, target


def _means(values: Values, cells: int) -> Density:
    """A density of mass one on other cells; blocks of whole cells are averaged without rounding."""
    own = len(values)
    if own % cells == 0:
        k = own // cells
        return Density(values.reshape(cells, k, cells, k).mean((1, 3)), Grid((cells, cells)))
    return Density(values, Grid((own, own))).resample(Grid((cells, cells)))


# ---- random fields


def _field(stream: np.random.Generator, length: float, power: float) -> Values:
    """A Gaussian field of mean 0 and variance 1 with the spectrum (1 + (k·length)²)^−power."""
    k = np.pi * np.arange(FINEST)
    amplitude = (1 + (k[:, None] ** 2 + k**2) * length**2) ** (-power / 2)
    amplitude[0, 0] = 0
    z = np.asarray(idctn(stream.normal(size=(FINEST, FINEST)) * amplitude, overwrite_x=True))
    return z / z.std()


def _from_zero(z: Values) -> Values:
    """Raised so that its least value is zero."""
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
    """A steep step function of a field: plateaus near 1 and valleys near 0, down to 1e-6."""
    return 1 / (1 + np.exp(-5 * _field(stream, 0.15, 2.5)))


# ---- peaks, spots, noise


def _peaks(stream: np.random.Generator, count: int = 6) -> Values:
    """Sharp peaks with heavy tails, (1 + |A(x − m)|²)^−3/2, of different width and turn."""
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
    """Small round spots of all brightnesses on zero, in loose clusters, as under a microscope."""
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
    """The window of the fine grid around a disc, and |x − centre|/radius in it.

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
    """Leaves that hide each other, with a texture of spectrum 1/f², a fine blur and soft light.

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
    """A turned stretch by 1 and by 1 to 3, (2, 2)."""
    turn, ratio = stream.uniform(0, np.pi), stream.uniform(1, 3)
    c, s = np.cos(turn), np.sin(turn)
    return np.array([[c, s], [-ratio * s, ratio * c]])


# ---- shapes


def _shapes(stream: np.random.Generator) -> Values:
    """Ones on zero: an ellipse, a polygon or a letter, or two of them."""
    values = np.zeros((FINEST, FINEST), dtype=bool)
    for _ in range(stream.integers(1, 3)):
        part = (_oval, _polygon, _letter)[stream.integers(3)]
        values |= part(stream, stream.uniform(0.3, 0.7, 2), stream.uniform(0.18, 0.28))
    return values.astype(float)


def _oval(stream: np.random.Generator, centre: np.ndarray, radius: float) -> Values:
    """A filled ellipse, or one with a hole, (1024, 1024) of bool."""
    values = np.zeros((FINEST, FINEST), dtype=bool)
    window, distance = _around(centre, radius, _ellipse(stream))
    values[window] = (distance < 1) & (distance >= stream.choice([0.0, 0.6]))
    return values


def _polygon(stream: np.random.Generator, centre: np.ndarray, radius: float) -> Values:
    """A star of three to seven tips, or without notches, by the even-odd rule."""
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
    """A letter of thick strokes with round ends."""
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
    """One of MNIST's test set, rows from the top, (28, 28)."""
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
