"""Pairs of densities on the unit square for benchmarks and tests.

- `draw(kind, cells)`: eleven kinds of random pairs that no network here was trained on. A density
  is constant in the cells of a fine grid; on n × n cells it is averaged, so that grids of all
  sizes show the same pair.
- `exact_pair(name, cells)`: six pairs with exact path and distance. Ends and frames are means over
  cells, computed without a solver, also for discontinuous maps and densities with holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
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
from geonet.synthetic import cell_centres, filter_noise, segment_distance, star_distance

PAIRS = 4  # number of pairs of a kind in the suite
NOISE_CELLS = 64  # along each axis of white noise
FINE = 1024  # cells along each axis of the fine grid; divisible by powers of two

Rng = np.random.Generator


def draw(kind: str, cells: int, pair_index: int = 0, seed: int = SEED) -> tuple[Density, Density]:
    """Return source and target on `cells` × `cells` cells.

    Args:
        kind: one of `KINDS`.
        cells: along each axis; preferably a divisor of 1024.
        pair_index: number of the pair, from 0.
        seed: seed of the suite.
    """
    if kind not in _KINDS:
        raise InputError(f"There is no kind {kind!r}; choose from {', '.join(_KINDS)}.")
    if pair_index < 0:
        raise InputError(f"pair_index is {pair_index}; count from 0.")
    source, target = _draw_fine(kind, pair_index, seed)
    return _average(source, cells), _average(target, cells)


@lru_cache(maxsize=2)  # 16 MB a pair; several grid sizes of one pair are often used in turn
def _draw_fine(kind: str, pair_index: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends on the fine grid; each has its own random numbers."""
    number = KINDS.index(kind)
    source, target = (
        _KINDS[kind](np.random.default_rng((seed, number, pair_index, end))) for end in (0, 1)
    )
    return source, target


def _average(values: np.ndarray, cells: int) -> Density:
    """Return the density of mass one on other cells; blocks of whole cells without rounding."""
    fine = len(values)
    if fine % cells == 0:
        k = fine // cells
        return Density(values.reshape(cells, k, cells, k).mean((1, 3)), Grid((cells, cells)))
    return Density(values, Grid((fine, fine))).resample(Grid((cells, cells)))


# ---- Random kinds


def _random_field(rng: Rng, length: float, decay: float) -> np.ndarray:
    """Return an isotropic Gaussian random field of mean zero and variance one."""
    noise = torch.from_numpy(rng.normal(size=(1, FINE, FINE))).float()
    noise[:, 0] *= 0.5**0.5  # as in the published suite, which used another normalisation
    noise[:, :, 0] *= 0.5**0.5
    return filter_noise(noise, length, decay)[0].double().numpy()


def _positive_field(rng: Rng, length: float, decay: float) -> np.ndarray:
    field = _random_field(rng, length, decay)
    return field - field.min()


def _log_normal(rng: Rng) -> np.ndarray:
    return np.exp(1.5 * _random_field(rng, 0.15, 3.0))


def _high_contrast(rng: Rng) -> np.ndarray:
    """Return plateaus near 1 and valleys near 0, down to 1e-6: a steep function of a field."""
    return 1 / (1 + np.exp(-5 * _random_field(rng, 0.15, 2.5)))


def _peaks(rng: Rng, count: int = 6) -> np.ndarray:
    """Return rotated peaks with heavy tails, (1 + |A(x − m)|²)^(−3/2), of different widths."""
    total = np.zeros((FINE, FINE))
    for _ in range(count):
        centre, angle = rng.uniform(0.1, 0.9, 2), rng.uniform(0, np.pi)
        widths, height = np.exp(rng.uniform(np.log(0.02), np.log(0.1), 2)), rng.uniform(0.3)
        a, b = _fine_offsets(centre, angle).numpy() / widths[:, None]
        total += (height * (1 + a**2 + b**2) ** -1.5).reshape(FINE, FINE)
    return total


def _spots(rng: Rng, count: int = 40) -> np.ndarray:
    """Return small round spots of very different brightness on zero, in loose clusters."""
    values = np.zeros((FINE, FINE))
    clusters = rng.uniform(0.2, 0.8, (4, 2))
    for _ in range(count):
        centre = clusters[rng.integers(4)] + rng.normal(0, 0.1, 2)
        centre, radius = np.clip(centre, 0.06, 0.94), rng.uniform(0.008, 0.035)
        window, distance = _ellipse_distance(centre, radius)
        values[window] += rng.exponential() * np.maximum(1 - distance**2, 0) ** 2
    return values


def _photograph(rng: Rng, leaves: int = 250) -> np.ndarray:
    """Return dead leaves with a texture of spectrum 1/f², a slight blur and smooth light.

    The density of the radii is proportional to r^(−3), which yields edges at all scales.
    """
    values = np.full((FINE, FINE), 0.5)
    texture = _random_field(rng, 1.0, 2.0)
    for _ in range(leaves):
        radius = rng.uniform(0.45**-2, 0.03**-2) ** -0.5
        centre, level, grain = rng.uniform(0, 1, 2), rng.uniform(), rng.uniform(0, 0.15)
        window, distance = _ellipse_distance(centre, radius, _random_stretch(rng))
        is_square = rng.uniform() < 0.3
        leaf = level + grain * texture[window]
        values[window] = leaf if is_square else np.where(distance < 1, leaf, values[window])
    light = _random_field(rng, 1.0, 5.0)
    return gaussian_filter(np.clip(values, 0.03, 1.2), 1.5) * np.exp(0.2 * light)


def _ellipse_distance(
    centre: np.ndarray, radius: float, stretch: np.ndarray | None = None
) -> tuple[tuple[slice, slice], np.ndarray]:
    """Return |A(x − centre)|/radius, A = `stretch` or 1, and the window that contains the disc.

    A window of the fine grid is much faster than the whole grid for many small ellipses. The
    singular values of A are at least 1.
    """
    first = np.clip(np.floor((centre - radius) * FINE), 0, FINE).astype(int)
    last = np.clip(np.ceil((centre + radius) * FINE), 0, FINE).astype(int)
    rows, columns = (
        (np.arange(a, b) + 0.5) / FINE - c for a, b, c in zip(first, last, centre, strict=True)
    )
    p, q = rows[:, None], columns[None]
    if stretch is not None:
        (a, b), (c, d) = stretch
        p, q = a * p + b * q, c * p + d * q
    window = slice(first[0], last[0]), slice(first[1], last[1])
    return window, np.hypot(p, q) / radius


def _random_stretch(rng: Rng) -> np.ndarray:
    """Return a rotation, then a stretch of the second axis by 1 to 3, (2, 2)."""
    angle, ratio = rng.uniform(0, np.pi), rng.uniform(1, 3)
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, s], [-ratio * s, ratio * c]])


def _shapes(rng: Rng) -> np.ndarray:
    """Return one or two ellipses, rings, stars, polygons or letters: ones on zero."""
    inside = np.zeros((FINE, FINE), dtype=bool)
    for _ in range(rng.integers(1, 3)):
        shape = (_draw_ellipse, _draw_star, _draw_letter)[rng.integers(3)]
        inside |= shape(rng, rng.uniform(0.3, 0.7, 2), rng.uniform(0.18, 0.28))
    return inside.astype(float)


def _draw_ellipse(rng: Rng, centre: np.ndarray, radius: float) -> np.ndarray:
    """Return the inside of an ellipse, or of one with a hole, (1024, 1024)."""
    inside = np.zeros((FINE, FINE), dtype=bool)
    window, distance = _ellipse_distance(centre, radius, _random_stretch(rng))
    inside[window] = (distance < 1) & (distance >= rng.choice([0.0, 0.6]))
    return inside


def _draw_star(rng: Rng, centre: np.ndarray, radius: float) -> np.ndarray:
    """Return the inside of a star with three to seven tips, or of a regular polygon."""
    tips, notch = int(rng.integers(3, 8)), rng.choice([0.45, 1.0])
    offsets = _fine_offsets(centre, rng.uniform(0, np.pi))
    inside = star_distance(offsets, tips, radius, notch * radius) < 0
    return inside.view(FINE, FINE).numpy()


def _draw_letter(rng: Rng, centre: np.ndarray, radius: float) -> np.ndarray:
    """Return the inside of a letter made of thick strokes with round ends."""
    letters = (  # strokes between points of the square [−1, 1]²
        ((-0.6, -1, -0.6, 1), (-0.6, 1, 0.6, 1), (-0.6, 0, 0.4, 0), (-0.6, -1, 0.6, -1)),  # E
        ((-0.6, -1, -0.6, 1), (0.6, -1, 0.6, 1), (-0.6, 0, 0.6, 0)),  # H
        ((-0.7, -1, 0, 1), (0, 1, 0.7, -1), (-0.35, 0, 0.35, 0)),  # A
        ((-0.7, 1, 0.7, 1), (0, 1, 0, -1)),  # T
        ((-0.7, -1, 0.7, 1), (-0.7, 1, 0.7, -1)),  # X
        ((-0.6, 1, -0.6, -1), (-0.6, -1, 0.6, -1)),  # L
    )
    offsets, thickness = _fine_offsets(centre) / radius, rng.uniform(0.12, 0.25)
    inside = torch.zeros(FINE * FINE, dtype=torch.bool)
    for stroke in letters[rng.integers(len(letters))]:
        start, end = torch.tensor(stroke[:2]), torch.tensor(stroke[2:])
        inside |= segment_distance(offsets, start, end - start) < thickness
    return inside.view(FINE, FINE).numpy()


def _fine_offsets(centre: np.ndarray, angle: float = 0.0) -> Tensor:
    """Return the fine grid's coordinates in axes rotated about a centre, (2, 1024²)."""
    c, s = math.cos(angle), math.sin(angle)
    offset = cell_centres(FINE, 2) - torch.from_numpy(centre).float()[:, None]
    return torch.tensor([[c, s], [-s, c]]) @ offset


def _digit(rng: Rng) -> np.ndarray:
    """Return one of MNIST's test images, rows from the top, (28, 28)."""
    images = sample_digits().images
    return images[rng.integers(len(images))] / 255


_KINDS: dict[str, Callable[[Rng], np.ndarray]] = {
    "smooth": lambda rng: _positive_field(rng, 0.25, 5.0),
    "moderate": lambda rng: _positive_field(rng, 0.15, 2.5),
    "rough": lambda rng: _positive_field(rng, 0.1, 1.25),
    "log-normal": _log_normal,
    "high-contrast": _high_contrast,
    "peaks": _peaks,
    "photographs": _photograph,
    "shapes": _shapes,
    "spots": _spots,
    "white-noise": lambda rng: rng.uniform(size=(NOISE_CELLS, NOISE_CELLS)),
    "digits": _digit,
}
KINDS = tuple(_KINDS)


# ---- Exact pairs


Frame = Callable[[float], Tensor]


@dataclass(frozen=True)
class ExactPair:
    """Two densities with their exact geodesic.

    Attributes:
        name: one of `EXACT_PAIRS`.
        source: cell means at t = 0, (n, n).
        target: cell means at t = 1, (n, n).
        distance: W2.
        frame: maps t to cell means, (n, n), up to a constant factor.
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
    if name not in _EXACT_PAIRS:
        raise InputError(f"There is no exact pair {name!r}; choose from {', '.join(_EXACT_PAIRS)}.")
    grid = Grid((cells, cells))
    frame, distance = _EXACT_PAIRS[name](cells)
    source, target = (Density(frame(t), grid) for t in (0.0, 1.0))
    return ExactPair(name, source, target, distance, frame)


def _torn_disc(cells: int, radius: float = 0.21, shift: float = 0.17) -> tuple[Frame, float]:
    """Return a disc whose halves move apart, T(x) = x + a·sign(x₁ − ½)e₁."""
    disc = np.array([0.0, radius]), np.ones(1)

    def frame(t: float) -> Tensor:
        left, right = 0.5 - t * shift, 0.5 + t * shift
        return _radial_means(cells, *disc, left, (0.0, left)) + _radial_means(
            cells, *disc, right, (right, 1.0)
        )

    return frame, shift


def _ring_to_disc(
    cells: int, inner: float = 0.18, outer: float = 0.40, disc: float = 0.27, shells: int = 4096
) -> tuple[Frame, float]:
    """Return a ring that fills up: the radius r(m) that encloses the mass m moves to c√m.

    Frames are constant in shells of equal mass.
    """

    def ring(root: np.ndarray) -> np.ndarray:
        """Return r(m) for √m."""
        return np.sqrt(inner**2 + root**2 * (outer**2 - inner**2))

    def frame(t: float) -> Tensor:
        root = np.linspace(0, 1, shells + 1)
        radii = (1 - t) * ring(root) + t * disc * root
        heights = np.diff(root**2) / (math.pi * np.diff(radii**2))
        return _radial_means(cells, radii, heights)

    nodes, weights = _gauss_legendre()
    root = nodes + 0.5  # dm = 2√m d√m
    squared = weights @ (2 * root * (ring(root) - disc * root) ** 2)
    return frame, math.sqrt(float(squared))


def _radial_means(
    cells: int,
    radii: np.ndarray,
    heights: np.ndarray,
    centre: float = 0.5,
    span: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Return cell means (n, n) of a radial function around (centre, ½), zero for x₁ outside a span.

    It is heights[k] between radii[k] and radii[k + 1], and zero elsewhere. The integral along x₂ is
    exact, the one along x₁ by Gauss–Legendre quadrature.
    """
    edges = np.linspace(0, 1, cells + 1)
    low, high = max(span[0], centre - radii[-1]), min(span[1], centre + radii[-1])
    cut = np.clip(edges, low, high)
    means = np.zeros((cells, cells))
    for i in np.flatnonzero(np.diff(cut)):
        left, width = cut[i], cut[i + 1] - cut[i]
        for node, weight in zip(*_gauss_legendre(), strict=True):
            x = left + width * (0.5 + node) - centre
            half_chord = np.sqrt(np.maximum(radii**2 - x**2, 0))
            below = np.concatenate([[0.0], np.cumsum(heights * np.diff(half_chord))])
            upwards = np.interp(np.abs(edges - 0.5), half_chord, below)
            means[i] += weight * width * np.diff(np.sign(edges - 0.5) * upwards)
    return torch.from_numpy(means * cells**2)


@lru_cache(maxsize=1)
def _gauss_legendre() -> tuple[np.ndarray, np.ndarray]:
    """Return 24 nodes and weights on [−½, ½]."""
    nodes, weights = np.polynomial.legendre.leggauss(24)
    return nodes / 2, weights / 2


def _texture_shift(cells: int, seed: int = 1, fine: int = 512) -> tuple[Frame, float]:
    """Return a rough, rain-like texture on zero that moves by ⅛ and ¹⁄₁₆ of the square.

    These are whole cells at t = 0, ¼, ½, ¾, 1 if 64 divides `cells`.
    """
    noise = gaussian_filter(np.random.default_rng(seed).normal(size=(fine, fine)), fine / 50)
    x = (np.arange(fine) + 0.5) / fine - 0.4
    inside = np.hypot(x[:, None], x) < 0.22
    rain = Density(np.exp(2 * noise / noise.std()) * inside, Grid((fine, fine)))
    values = rain.resample(Grid((cells, cells))).tensor

    def frame(t: float) -> Tensor:
        shifted = values
        for axis, share in enumerate((1 / 8, 1 / 16)):
            whole, part = divmod(t * share * cells, 1)
            near, far = (shifted.roll(int(whole) + k, axis) for k in (0, 1))
            shifted = (1 - part) * near + part * far
        return shifted

    return frame, math.hypot(1 / 8, 1 / 16)


def _known_map(cells: int, seed: int = 3, strength: float = 0.6) -> tuple[Frame, float]:
    """Return a lifted mixture pushed forward by id + ∇u, with a smooth random u on the square."""
    generator = torch.Generator().manual_seed(seed)
    potential = random_potential(Grid((cells, cells)), generator, 4, strength)
    lines = Characteristics(potential)

    def frame(t: float) -> Tensor:
        times, points = torch.tensor([t], dtype=torch.float64), gauss_points(cells)
        origin = lines.trace_back(times, points)[0]
        return gauss_means(LIFTED_MIXTURE.pdf(origin.point) / origin.determinant(t), cells)

    fine = 128  # cells for the integral of |∇u|² over the source
    points = gauss_points(fine)
    source, squared = LIFTED_MIXTURE.pdf(points), potential.at(points)[1].square().sum(-1)
    share = gauss_means(source * squared, fine).sum() / gauss_means(source, fine).sum()
    return frame, math.sqrt(float(share))


def _torn_mixture(cells: int, *slabs: tuple[float, float, float, float]) -> tuple[Frame, float]:
    """Return a lifted mixture whose halves move apart, so that the potential has a kink.

    Each slab low ≤ x₁ ≤ high is mapped along x₁ to its last two numbers by an affine map; the
    source is zero outside of the slabs. Integrals over cells are exact, by error functions.
    """
    edges = np.linspace(0, 1, cells + 1)
    rows = np.diff(LIFTED_MIXTURE.cumulative(edges, 1))

    def frame(t: float) -> Tensor:
        means = np.zeros((cells, cells))
        for low, high, *image in slabs:
            now = (1 - t) * low + t * image[0], (1 - t) * high + t * image[1]
            back = low + (edges - now[0]) * (high - low) / (now[1] - now[0])
            columns = np.diff(LIFTED_MIXTURE.cumulative(np.clip(back, low, high), 0))
            means += np.einsum("ki,kj->ij", columns, rows)
        means[means < 1e-12 * means.max()] = 0  # rounding, if edges of gap and cell coincide
        return torch.from_numpy(means * cells**2)

    cost = sum(_slab_cost(slab) for slab in slabs)
    return frame, math.sqrt(cost / float(frame(0.0).mean()))


def _slab_cost(slab: tuple[float, float, float, float], pieces: int = 4096) -> float:
    """Return ∫|T − id|² over a slab, by the mass of small pieces and the map at their middle."""
    low, high, first, last = slab
    x = np.linspace(low, high, pieces + 1)
    whole = np.diff(LIFTED_MIXTURE.cumulative(np.array([0.0, 1.0]), 1))[:, 0]
    mass = whole @ np.diff(LIFTED_MIXTURE.cumulative(x, 0))
    displacement = np.linspace(first, last, pieces + 1) - x
    return float(mass @ ((displacement[1:] + displacement[:-1]) / 2) ** 2)


@dataclass(frozen=True)
class LiftedMixture:
    """A mixture of isotropic Gaussians on the unit square and a uniform part.

    Attributes:
        bumps: centre and standard deviation of each Gaussian.
        weights: weights of the Gaussians.
        floor: weight of the uniform part.
    """

    bumps: tuple[tuple[float, float, float], ...]
    weights: tuple[float, ...]
    floor: float

    def pdf(self, points: Tensor) -> Tensor:
        """Return the density at points (N, 2), (N,)."""
        bumps, weights = np.array(self.bumps), np.array(self.weights)
        deviations = torch.from_numpy(bumps[:, 2].copy())
        mixture = GaussianMixture.isotropic(bumps[:, :2], deviations, weights)
        return float(weights.sum()) * mixture.pdf(points) + self.floor

    def cumulative(self, x: np.ndarray, axis: int) -> np.ndarray:
        """Return the distribution functions of all parts along an axis, (5, len(x)).

        The weights are factors of the ones along axis 1.
        """
        bumps = np.array(self.bumps)
        parts = ndtr((x - bumps[:, axis, None]) / bumps[:, 2, None])
        if axis == 1:
            return np.concatenate([np.array(self.weights)[:, None] * parts, self.floor * x[None]])
        return np.concatenate([parts, x[None]])


LIFTED_MIXTURE = LiftedMixture(
    bumps=((0.34, 0.36, 0.09), (0.61, 0.28, 0.07), (0.47, 0.52, 0.11), (0.63, 0.72, 0.08)),
    weights=(0.27, 0.18, 0.225, 0.225),
    floor=0.1,
)


def gauss_points(cells: int) -> Tensor:
    """Return three Gauss points along each axis of each cell, (9n², 2)."""
    nodes = math.sqrt(0.15) * torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    along = ((torch.arange(cells)[:, None] + 0.5 + nodes) / cells).reshape(-1)
    return torch.cartesian_prod(along, along)


def gauss_means(values: Tensor, cells: int) -> Tensor:
    """Return cell means (n, n) of values (9n²,) at `gauss_points`."""
    weights = torch.tensor([5.0, 8.0, 5.0], dtype=torch.float64) / 18
    inside = values.reshape(cells, 3, cells, 3)
    return torch.einsum("aibj,i,j->ab", inside, weights, weights)


_EXACT_PAIRS: dict[str, Callable[[int], tuple[Frame, float]]] = {
    "torn-disc": _torn_disc,
    "ring-to-disc": _ring_to_disc,
    "texture-shift": _texture_shift,
    "known-map": _known_map,
    "torn-mixture": lambda cells: _torn_mixture(cells, (0.1, 0.5, 0, 0.4), (0.5, 0.9, 0.6, 1)),
    "torn-and-squeezed": lambda cells: _torn_mixture(cells, (0, 0.5, 0, 0.4), (0.5, 1, 0.6, 1)),
}
EXACT_PAIRS = tuple(_EXACT_PAIRS)
