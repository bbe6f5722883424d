"""Rain whose truth is known at any time: cells that travel, grow, decay and split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from geonet._validation import check_count

WIDTH = 192.0  # kilometres along each side of the map
START = np.datetime64("2026-07-01T12:00", "ns")
DRY = 0.1  # mm/h below which a radar sees nothing
WIND = (0.30, 0.90)  # kilometres a minute, northwards and eastwards
WAVES = 80  # of the texture
GOLDEN, SILVER = (5**0.5 - 1) / 2, 2**0.5 - 1  # their multiples fill the circle evenly


class Cell(NamedTuple):
    """A shower, in kilometres, minutes and mm/h.

    Attributes:
        place: of its middle at the start, northwards and eastwards.
        radius: along both axes.
        rate: of its middle at the start.
        growth: of the rate, a minute; negative where it decays.
        drift: a minute, beside the wind.
    """

    place: tuple[float, float]
    radius: tuple[float, float]
    rate: float
    growth: float = 0.0
    drift: tuple[float, float] = (0.0, 0.0)


CELLS = (
    Cell((140, 30), (6, 10), 18.0),
    Cell((110, 75), (6, 5), 8.0, growth=0.015),
    Cell((30, 60), (6, 8), 22.0, growth=-0.012),
    # One shower that splits: both parts begin at the same place.
    Cell((78, 35), (6, 6), 12.0, drift=(0.25, -0.08)),
    Cell((78, 35), (6, 6), 12.0, drift=(-0.25, 0.08)),
)
BAND = Cell((80, 50), (30, 22), 2.0)  # widespread rain with a texture, which travels as it is


def synthetic_rain(
    minutes: Sequence[float] = range(0, 81, 10), cells: int = 96, growth: float = 1.0
) -> xr.DataArray:
    """Rain rates of a made-up afternoon, (time, y, x) in mm/h, as they truly are at these times.

    Showers travel with the wind; one grows, one decays, one splits in two. A band of widespread
    rain travels as it is. What is below 0.1 mm/h is zero.

    Args:
        minutes: after the start, at 12:00.
        cells: along each side of the map, which is 192 km wide.
        growth: a factor of all growth and decay; zero for showers that only travel and split.
    """
    check_count(cells, 2, "cells")
    moments = np.asarray(list(minutes), dtype=float)
    along = (np.arange(cells) + 0.5) * WIDTH / cells
    north, east = np.meshgrid(along, along, indexing="ij")
    frames = [_frame(north, east, minute, growth) for minute in moments]
    times = START + np.round(moments * 60e9).astype("timedelta64[ns]")
    units = {"units": "km"}
    return xr.DataArray(
        np.array(frames, dtype=np.float32).reshape(-1, cells, cells),
        {"time": times, "y": ("y", along, units), "x": ("x", along, units)},
        ("time", "y", "x"),
        "rain_rate",
        {"units": "mm h-1", "long_name": "synthetic rain rate"},
    )


def _frame(north: np.ndarray, east: np.ndarray, minute: float, growth: float) -> np.ndarray:
    """Rain rates at one moment, (n, n)."""
    rates = sum(
        _shower(cell._replace(growth=growth * cell.growth), north, east, minute) for cell in CELLS
    )
    texture = _texture(north - WIND[0] * minute, east - WIND[1] * minute)
    rates = rates + _shower(BAND, north, east, minute) * np.exp(texture)
    return np.where(rates < DRY, 0.0, rates)


def _shower(cell: Cell, north: np.ndarray, east: np.ndarray, minute: float) -> np.ndarray:
    middle = [
        place + (wind + drift) * minute
        for place, wind, drift in zip(cell.place, WIND, cell.drift, strict=True)
    ]
    away = ((north - middle[0]) / cell.radius[0]) ** 2 + ((east - middle[1]) / cell.radius[1]) ** 2
    return cell.rate * np.exp(cell.growth * minute - away / 2)


def _texture(north: np.ndarray, east: np.ndarray) -> np.ndarray:
    """Waves of 8 to 60 km in all directions, of which long ones are higher."""
    total = np.zeros_like(north)
    for k in range(1, WAVES + 1):
        angle, phase = 2 * np.pi * (k * GOLDEN % 1), 2 * np.pi * (k * SILVER % 1)
        length = 8.0 * (60.0 / 8.0) ** (k / WAVES)
        travelled = np.cos(angle) * north + np.sin(angle) * east
        total += length / 60.0 * np.cos(2 * np.pi * travelled / length + phase)
    return 0.35 * total
