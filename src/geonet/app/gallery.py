"""Densities to start from, on any number of cells."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.app.curves import CURVES, curve
from geonet.app.shapes import SHAPES, filled
from geonet.measures.density import Density
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.measures.mnist import SIDE, as_densities, sample_digits
from geonet.measures.readers import from_image
from geonet.training.random_fields import Range, smooth_fields

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
