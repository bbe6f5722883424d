"""Pairs on the unit square whose path and W2 are exact, also where mass is torn or has holes.

Everything is a mean over cells: ends and frames alike. No solver takes part in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from scipy.special import ndtr
from torch import Tensor

from geonet.errors import InputError
from geonet.fields.characteristics import Characteristics
from geonet.geodesics.known_map import random_potential
from geonet.measures.density import Density
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid

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
        """The exact cell means at a time in [0, 1]."""
        if not 0 <= t <= 1:
            raise InputError(f"t is {t:g}; give a time in [0, 1].")
        return Density(self.frame(float(t)), self.source.grid)


def exact_pair(name: str, cells: int) -> ExactPair:
    """A pair on `cells` × `cells` cells of the unit square."""
    if name not in _MAKERS:
        raise InputError(f"There is no exact pair {name!r}; choose from {', '.join(_MAKERS)}.")
    grid = Grid((cells, cells))
    frame, distance = _MAKERS[name](cells)
    source, target = (Density(frame(t), grid) for t in (0.0, 1.0))
    return ExactPair(name, source, target, distance, frame)


# ---- discs and rings


def _torn_disc(cells: int, radius: float = 0.21, apart: float = 0.17) -> tuple[Frame, float]:
    """A disc whose halves move apart, T(x) = x + a·sign(x₁ − ½)e₁."""
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
    """A ring that fills up: at the radius r(m) that encloses the mass m, all goes to c√m."""

    def ring(root: np.ndarray) -> np.ndarray:
        """r(m) for √m."""
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
    """Cell means (n, n) of a radial function around (centre, ½) where x₁ lies in a span.

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
    """A rough, rain-like texture on zero that moves by ⅛ and ¹⁄₁₆ of the square.

    These are whole cells at the quarters where 64 divides `cells`.
    """
    noise = gaussian_filter(
        np.random.default_rng(seed).normal(size=(TEXTURE, TEXTURE)), TEXTURE / 50
    )
    x = (np.arange(TEXTURE) + 0.5) / TEXTURE - 0.4
    inside = np.hypot(x[:, None], x) < 0.22
    rain = Density(np.exp(2 * noise / noise.std()) * inside, Grid((TEXTURE, TEXTURE)))
    values = rain.resample(Grid((cells, cells))).values

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
    """A floored mixture carried by id + ∇u, with a smooth random u that keeps the square."""
    generator = torch.Generator().manual_seed(seed)
    potential = random_potential(Grid((cells, cells)), generator, 4, strength)
    lines = Characteristics(potential)

    def frame(t: float) -> Tensor:
        times, points = torch.tensor([t], dtype=torch.float64), _gauss_points(cells)
        origin = lines.origins(times, points)[0]
        return _gauss_means(_floored(origin.point) / origin.determinant(t), cells)

    fine = 128  # cells for the integral of |∇u|² over the source
    points = _gauss_points(fine)
    source, moved = _floored(points), potential.at(points)[1].square().sum(-1)
    share = _gauss_means(source * moved, fine).sum() / _gauss_means(source, fine).sum()
    return frame, math.sqrt(float(share))


def _torn_mixture(cells: int, *slabs: tuple[float, float, float, float]) -> tuple[Frame, float]:
    """A floored mixture whose halves move apart: φ has a kink.

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
    """∫|T − id|² over a slab: by pieces of known mass, each at its middle."""
    low, high, first, last = slab
    x = np.linspace(low, high, pieces + 1)
    whole = np.diff(_cumulative(np.array([0.0, 1.0]), 1))[:, 0]
    mass = whole @ np.diff(_cumulative(x, 0))
    moved = np.linspace(first, last, pieces + 1) - x
    return float(mass @ ((moved[1:] + moved[:-1]) / 2) ** 2)


def _cumulative(x: np.ndarray, axis: int) -> np.ndarray:
    """Of each lump of the floored mixture, and of the floor, along an axis, (5, len(x))."""
    centres, spreads = LUMPS[:, axis, None], LUMPS[:, 2, None]
    lumps = ndtr((x - centres) / spreads)
    if axis == 1:  # the weights enter once
        return np.concatenate([SHARES[:, None] * lumps, FLOOR * x[None]])
    return np.concatenate([lumps, x[None]])


def _floored(points: Tensor) -> Tensor:
    """The same mixture at points (N, 2), (N,)."""
    spreads = torch.from_numpy(LUMPS[:, 2])
    lumps = GaussianMixture.isotropic(LUMPS[:, :2], spreads, SHARES)
    return float(SHARES.sum()) * lumps.pdf(points) + FLOOR


def _gauss_points(cells: int) -> Tensor:
    """Three Gauss points along each axis of each cell, (9n², 2)."""
    along = ((torch.arange(cells)[:, None] + 0.5 + GAUSS) / cells).reshape(-1)
    return torch.cartesian_prod(along, along)


def _gauss_means(values: Tensor, cells: int) -> Tensor:
    """Cell means (n, n) of values (9n²,) at `_gauss_points`."""
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
