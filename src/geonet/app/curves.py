"""Curves on the unit interval, by their heights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Height = Callable[[np.ndarray], np.ndarray]

FINE = 8  # samples of a cell


def curve(name: str, cells: int) -> np.ndarray:
    """The mean height of a curve in each cell, (cells,)."""
    x = (np.arange(FINE * cells) + 0.5) / (FINE * cells)
    _, _, height = CURVES[name]
    return height(x).astype(np.float64).reshape(cells, FINE).mean(axis=1)


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
