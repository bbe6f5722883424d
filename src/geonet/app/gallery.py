"""Example densities of the page, on any number of cells."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet._files import read_arrays
from geonet.density import Density
from geonet.grid import Grid
from geonet.io import from_image
from geonet.mixture import GaussianMixture
from geonet.synthetic import (
    Range,
    box_distance,
    cell_centres,
    fill,
    gaussian_fields,
    star_distance,
)

Entry = tuple[str, str, str, np.ndarray]  # group, name, label, values (*shape)
Point = tuple[float, float]
FULL = 65535  # value of full ink


@lru_cache(maxsize=6)
def build_gallery(dimension: int, cells: int) -> list[dict[str, Any]]:
    """Return name, label, group and values (see `encode_values`) of each density, as plain data."""
    entries = _entries_2d(cells) if dimension == 2 else _entries_1d(cells)
    return [
        {"name": name, "label": label, "group": group, "values": encode_values(values)}
        for group, name, label, values in entries
    ]


def encode_values(values: np.ndarray) -> str:
    """Scale non-negative values to a maximum of FULL and return them as base64 of uint16."""
    levels = np.rint(values.astype(np.float64) * (FULL / values.max())).astype("<u2")
    return base64.b64encode(levels.tobytes()).decode()


# ---- 1D


def _entries_1d(cells: int) -> Iterator[Entry]:
    x = (np.arange(8 * cells) + 0.5) / (8 * cells)  # eight samples per cell
    for name, (group, label, height) in CURVES.items():
        yield group, name, label, height(x).astype(np.float64).reshape(cells, 8).mean(axis=1)
    field = _random_texture("hills")
    row = Density(field[len(field) // 2], Grid(len(field)))
    yield "Textures", "hills", "Hills", _resample(row, Grid(cells))


def _bump(x: np.ndarray, middle: float, width: float) -> np.ndarray:
    return np.exp(-0.5 * ((x - middle) / width) ** 2)


def _gamma(x: np.ndarray) -> np.ndarray:
    """Return a density that is steep on the left and has a long tail on the right."""
    past = np.clip(x - 0.08, 0, None)
    return past * np.exp(-past / 0.1)


# By name: group, label and height.
CURVES: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "one-lump": ("Mixtures", "One lump", lambda x: _bump(x, 0.5, 0.08)),
    "two-lumps": (
        "Mixtures",
        "Two lumps",
        lambda x: _bump(x, 0.25, 0.05) + 0.7 * _bump(x, 0.75, 0.08),
    ),
    "skewed": ("Mixtures", "Skewed", _gamma),
    "box": ("Shapes", "Box", lambda x: abs(x - 0.5) < 0.2),
    "triangle": ("Shapes", "Triangle", lambda x: np.clip(1 - abs(x - 0.5) / 0.35, 0, None)),
    "two-boxes": ("Shapes", "Two boxes", lambda x: abs(abs(x - 0.5) - 0.3) < 0.1),
    "comb": ("Shapes", "Comb", lambda x: (10 * x) % 1 < 0.5),
}


# ---- 2D


def _entries_2d(cells: int) -> Iterator[Entry]:
    grid = Grid((cells, cells))
    for name, (label, means, deviations) in MIXTURES.items():
        covariances = torch.tensor(deviations, dtype=torch.float64).square().diag_embed()
        density = GaussianMixture(means, covariances).to_density(grid)
        yield "Mixtures", name, label, density.tensor.numpy()
    for name, (label, distance) in SHAPES.items():
        yield "Shapes", name, label, draw_shape(distance, cells)
    for name, label in {"heart": "Heart", "spiral": "Spiral"}.items():
        with as_file(files("geonet") / "demo_data" / f"{name}.png") as file:
            yield "Shapes", name, label, _resample(from_image(file), grid)
    with as_file(files("geonet") / "demo_data" / "mnist-sample.npz") as file:
        digits = read_arrays(file, "an npz archive")
    for digit in (0, 2, 3, 4, 7, 8):
        image = digits["images"][np.flatnonzero(digits["labels"] == digit)[0]]
        density = Density(image / 255, Grid(image.shape))
        yield "Digits", f"digit-{digit}", f"Digit {digit}", _resample(density, grid)
    for name, (label, *_) in TEXTURES.items():
        field = _random_texture(name)
        yield "Textures", name, label, _resample(Density(field, Grid(tuple(field.shape))), grid)


# By name: label, means and standard deviations along both axes; rows count downwards.
MIXTURES: dict[str, tuple[str, list[Point], list[Point]]] = {
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


def draw_shape(distance: Callable[[Tensor], Tensor], cells: int) -> np.ndarray:
    """Return a shape as an image, (cells, cells); row 0 is at the top."""
    down, right = cell_centres(cells, 2)
    points = torch.stack([0.5 - down, right - 0.5])  # upwards and to the right
    return fill(distance(points), cells).view(cells, cells).double().numpy()


def _disc(x: Tensor, radius: float, right: float = 0.0) -> Tensor:
    return torch.hypot(x[0], x[1] - right) - radius


def _crescent_shape(x: Tensor) -> Tensor:
    return torch.maximum(_disc(x, 0.36), -_disc(x, 0.3, 0.14))


def _moons(x: Tensor) -> Tensor:
    """Return the distance to two half rings, one inside the bow of the other."""
    shift = torch.tensor([[0.06], [0.115]])
    half_rings = [
        torch.maximum(_disc(moved, 0.225).abs() - 0.035, -moved[0])
        for moved in (x + shift, shift - x)
    ]
    return torch.minimum(*half_rings)


def _letter_t(x: Tensor) -> Tensor:
    bar = box_distance(x - torch.tensor([[0.24], [0.0]]), 0.06, 0.3)
    return torch.minimum(bar, box_distance(x, 0.3, 0.06))


# By name: label and signed distance.
SHAPES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "disc": ("Disc", lambda x: _disc(x, 0.25)),
    "ring": ("Ring", lambda x: _disc(x, 0.3).abs() - 0.06),
    "square": ("Square", lambda x: box_distance(x, 0.25, 0.25)),
    "star": ("Star", lambda x: star_distance(x, 5, 0.42, 0.17)),
    "crescent": ("Crescent", _crescent_shape),
    "moons": ("Two moons", _moons),
    "letter-t": ("Letter T", _letter_t),
}


# By name: label, seed, and the ranges of length and decay (see `gaussian_fields`).
TEXTURES: dict[str, tuple[str, int, Range, Range]] = {
    "clouds": ("Clouds", 1, (0.2, 0.25), (2.5, 3.0)),
    "hills": ("Hills", 2, (0.06, 0.07), (5.0, 6.0)),
    "islands": ("Islands", 3, (0.03, 0.035), (5.0, 6.0)),
    "grains": ("Grains", 4, (0.015, 0.02), (2.0, 2.5)),
}


def _random_texture(name: str, cells: int = 128) -> Tensor:
    """Return a positive random field, (cells, cells), always on the same grid."""
    _, seed, length, decay = TEXTURES[name]
    generator = torch.Generator().manual_seed(seed)
    (field,) = gaussian_fields(generator, 1, cells, 2, length, decay)
    return torch.sigmoid(2 * field.double())


def _resample(density: Density, grid: Grid) -> np.ndarray:
    """Return a density on another grid, blurred by 0.4 pixels if that is finer, to hide edges."""
    pixels, cells = density.grid.shape[0], grid.shape[0]
    result = density.resample(grid)
    if cells > pixels:
        result = result.gaussian_blur(0.4 * cells / pixels)
    return result.tensor.numpy()
