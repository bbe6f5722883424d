"""Shapes on the unit square, by what lies inside them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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
