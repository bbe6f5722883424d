"""Small fields that change in time, shared by the tests of geonet.xarray."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import xarray as xr

import geonet.xarray  # noqa: F401  registers da.geonet

START = np.datetime64("2026-07-01T12:00", "ns")
MINUTE = np.timedelta64(1, "m")


def moving_spots(frames: int = 4, cells: tuple[int, ...] = (16, 20), seed: int = 0) -> np.ndarray:
    """Return spots that move along the first axis and gain mass, (frames, *cells)."""
    places = np.meshgrid(*(np.arange(n) + 0.5 for n in cells), indexing="ij")
    values = []
    for k in range(frames):
        middle = [cells[0] * (0.3 + 0.1 * k + 0.02 * seed), *(n * 0.4 for n in cells[1:])]
        away = sum((p - m) ** 2 for p, m in zip(places, middle, strict=True))
        values.append((1 + 0.2 * k) * np.exp(-away / 9) + 0.02)
    return np.array(values)


def as_rain(values: np.ndarray, dims=("time", "y", "x"), minutes=10) -> xr.DataArray:
    """Return a field with dates and with coordinates in kilometres."""
    array = xr.DataArray(values, dims=dims, name="rain", attrs={"units": "mm h-1"})
    sizes = array.sizes
    array = array.assign_coords(time=START + np.arange(sizes["time"]) * minutes * MINUTE)
    for dim in ("y", "x"):
        array = array.assign_coords({dim: (dim, np.arange(sizes[dim]) * 2.0, {"units": "km"})})
    return array


@pytest.fixture
def spots() -> Callable[..., np.ndarray]:
    """Function that makes spots, (frames, *cells)."""
    return moving_spots


@pytest.fixture
def rain() -> xr.DataArray:
    """Four frames, ten minutes apart."""
    return as_rain(moving_spots())


@pytest.fixture
def ensemble() -> xr.DataArray:
    """Two members, between time and space."""
    values = np.stack([moving_spots(seed=0), moving_spots(seed=3)], axis=1)
    return as_rain(values, ("time", "member", "y", "x")).assign_coords(member=[3, 7])


@pytest.fixture
def fine() -> np.ndarray:
    """Every five minutes."""
    return START + np.arange(7) * 5 * MINUTE
