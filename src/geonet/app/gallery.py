"""Densities to start from, on any number of cells."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.mnist import SIDE, as_densities, sample_digits
from geonet.density import Density
from geonet.grid import Grid
from geonet.io import from_image
from geonet.mixture import GaussianMixture
from geonet.training.random_fields import Range, smooth_fields

# ---- Shapes on the unit square, by what lies inside them.


Inside = Callable[[np.ndarray, np.ndarray], np.ndarray]

FINE = 4  # samples along each axis of a cell


def filled(inside: Inside, cells: int) -> np.ndarray:
    """The share of each cell that lies inside, (cells, cells); row 0 is at the top."""
    centres = (np.arange(FINE * cells) + 0.5) / (FINE * cells) - 0.5
    full = inside(centres[None, :], -centres[:, None])
    blocks = np.broadcast_to(full, (FINE * cells,) * 2).reshape(cells, FINE, cells, FINE)
    return blocks.mean(axis=(1, 3))


# x goes to the right and y upwards, both from −½ to ½.


def _disc(x: np.ndarray, y: np.ndarray, radius: float = 0.25) -> np.ndarray:
    return x**2 + y**2 < radius**2


def _ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _disc(x, y, 0.36) & ~_disc(x, y, 0.24)


def _square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(abs(x), abs(y)) < 0.25


def _star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Five points: between the tips the edge is straight."""
    sector = 2 * np.pi / 5
    angle = np.abs((np.arctan2(x, y) + sector / 2) % sector - sector / 2)  # from the nearest tip
    radius, tip, dent = np.hypot(x, y), 0.42, 0.17
    across, along = radius * np.sin(angle), radius * np.cos(angle)
    dent_across, dent_along = dent * np.sin(sector / 2), dent * np.cos(sector / 2)
    return across * (tip - dent_along) < (tip - along) * dent_across


def _crescent(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _disc(x, y, 0.36) & ~_disc(x - 0.14, y, 0.3)


def _moons(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Two half rings, one inside the bow of the other."""
    return _half_ring(x + 0.115, y + 0.06) | _half_ring(0.115 - x, 0.06 - y)


def _half_ring(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return _disc(x, y, 0.26) & ~_disc(x, y, 0.19) & (y > 0)


def _letter_t(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    bar = (abs(x) < 0.3) & (abs(y - 0.24) < 0.06)
    return bar | ((abs(x) < 0.06) & (abs(y) < 0.3))


SHAPES: dict[str, tuple[str, Inside]] = {
    "disc": ("Disc", _disc),
    "ring": ("Ring", _ring),
    "square": ("Square", _square),
    "star": ("Star", _star),
    "crescent": ("Crescent", _crescent),
    "moons": ("Two moons", _moons),
    "letter-t": ("Letter T", _letter_t),
}


# ---- Curves on the unit interval, by their heights.


Height = Callable[[np.ndarray], np.ndarray]

FINE_CURVES = 8  # samples of a cell


def curve(name: str, cells: int) -> np.ndarray:
    """The mean height of a curve in each cell, (cells,)."""
    x = (np.arange(FINE_CURVES * cells) + 0.5) / (FINE_CURVES * cells)
    _, _, height = CURVES[name]
    return height(x).astype(np.float64).reshape(cells, FINE_CURVES).mean(axis=1)


def _lump(x: np.ndarray, middle: float, width: float) -> np.ndarray:
    return np.exp(-0.5 * ((x - middle) / width) ** 2)


def _skewed(x: np.ndarray) -> np.ndarray:
    """Steep on the left, with a long tail to the right."""
    past = np.clip(x - 0.08, 0, None)
    return past * np.exp(-past / 0.1)


# by name: the group, the label, and the height
CURVES: dict[str, tuple[str, str, Height]] = {
    "one-lump": ("Mixtures", "One lump", lambda x: _lump(x, 0.5, 0.08)),
    "two-lumps": (
        *("Mixtures", "Two lumps"),
        lambda x: _lump(x, 0.25, 0.05) + 0.7 * _lump(x, 0.75, 0.08),
    ),
    "skewed": ("Mixtures", "Skewed", _skewed),
    "box": ("Shapes", "Box", lambda x: abs(x - 0.5) < 0.2),
    "triangle": ("Shapes", "Triangle", lambda x: np.clip(1 - abs(x - 0.5) / 0.35, 0, None)),
    "two-boxes": (
        *("Shapes", "Two boxes"),
        lambda x: (abs(x - 0.2) < 0.1) | (abs(x - 0.8) < 0.1),
    ),
    "comb": ("Shapes", "Comb", lambda x: (10 * x) % 1 < 0.5),
}

HIGHEST = 65535  # of the page's numbers, uint16
KEPT = 6  # galleries
DETAIL = 128  # cells on which textures are drawn: the same on every grid
SOFT = 0.4  # of a pixel: the blur of what has fewer pixels than the grid has cells
PICTURES = {"heart": "Heart", "spiral": "Spiral"}
DIGITS = (0, 2, 3, 4, 7, 8)

# (label, means, standard deviations along both axes): rows go down.
MIXTURES: dict[str, tuple[str, list[tuple[float, float]], list[tuple[float, float]]]] = {
    "one-lump": ("One lump", [(0.5, 0.5)], [(0.1, 0.1)]),
    "two-lumps": ("Two lumps", [(0.3, 0.3), (0.7, 0.7)], [(0.07, 0.07), (0.1, 0.1)]),
    "three-lumps": (
        "Three lumps",
        [(0.25, 0.5), (0.7, 0.25), (0.7, 0.75)],
        [(0.07, 0.07), (0.06, 0.06), (0.08, 0.08)],
    ),
    "ridge": ("Ridge", [(0.5, 0.5)], [(0.04, 0.2)]),
    "cross": ("Cross", [(0.5, 0.5), (0.5, 0.5)], [(0.05, 0.2), (0.2, 0.05)]),
    "corners": (
        "Four corners",
        [(0.2, 0.2), (0.2, 0.8), (0.8, 0.2), (0.8, 0.8)],
        [(0.06, 0.06)] * 4,
    ),
}
# (label, seed, the range of lengths, the range of decays): see `smooth_fields`.
TEXTURES: dict[str, tuple[str, int, Range, Range]] = {
    "clouds": ("Clouds", 1, (0.2, 0.25), (2.5, 3.0)),
    "hills": ("Hills", 2, (0.06, 0.07), (5.0, 6.0)),
    "islands": ("Islands", 3, (0.03, 0.035), (5.0, 6.0)),
    "grains": ("Grains", 4, (0.015, 0.02), (2.0, 2.5)),
}


@lru_cache(maxsize=KEPT)
def gallery(dimension: int, cells: int) -> list[dict[str, Any]]:
    """Name, label, group and values (base64 of uint16) of each, as plain data."""
    entries = _pictures(cells) if dimension == 2 else _curves(cells)
    return [
        {"name": name, "label": label, "group": group, "values": encoded(values)}
        for group, name, label, values in entries
    ]


def encoded(values: np.ndarray) -> str:
    """Non-negative values as the page takes them: uint16, of which the highest is 65535."""
    levels = np.rint(values.astype(np.float64) * (HIGHEST / values.max())).astype("<u2")
    return base64.b64encode(levels.tobytes()).decode()


Entry = tuple[str, str, str, np.ndarray]  # group, name, label, values (*shape)


def _curves(cells: int) -> Iterator[Entry]:
    for name, (group, label, _) in CURVES.items():
        yield group, name, label, curve(name, cells)
    field = _field("hills")[DETAIL // 2]
    density = Density(field, Grid(DETAIL))
    yield "Textures", "hills", "Hills", _softened(density, Grid(cells), DETAIL)


def _pictures(cells: int) -> Iterator[Entry]:
    grid = Grid((cells, cells))
    for name, (label, means, deviations) in MIXTURES.items():
        covariances = torch.tensor(deviations, dtype=torch.float64).square().diag_embed()
        yield "Mixtures", name, label, GaussianMixture(means, covariances).on(grid).numpy()
    for name, (label, inside) in SHAPES.items():
        yield "Shapes", name, label, filled(inside, cells)
    for name, label in PICTURES.items():
        with as_file(files("geonet") / "demo_data" / f"{name}.png") as file:
            density = from_image(file)
        yield "Shapes", name, label, _softened(density, grid, density.grid.shape[0])
    digits = sample_digits()
    for digit in DIGITS:
        first = int(np.flatnonzero(digits.labels == digit)[0])
        density = as_densities(digits.images[first : first + 1], blur=0.0, floor=0.0)[0]
        yield "Digits", f"digit-{digit}", f"Digit {digit}", _softened(density, grid, SIDE)
    for name, (label, *_) in TEXTURES.items():
        density = Density(_field(name), Grid((DETAIL, DETAIL)))
        yield "Textures", name, label, _softened(density, grid, DETAIL)


def _field(name: str) -> Tensor:
    """A positive random field, (DETAIL, DETAIL)."""
    _, seed, length, decay = TEXTURES[name]
    generator = torch.Generator().manual_seed(seed)
    (field,) = smooth_fields(generator, 1, DETAIL, length, decay)
    return torch.sigmoid(2 * field.double())


def _softened(density: Density, grid: Grid, pixels: int) -> np.ndarray:
    """The density on other cells; where these are finer, without the edges of the old ones."""
    blur = SOFT * grid.shape[0] / pixels
    finer = density.resample(grid)
    return (finer.blurred(blur) if grid.shape[0] > pixels else finer).numpy()
