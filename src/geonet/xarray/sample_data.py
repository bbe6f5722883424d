"""Synthetic rain that is known at any time: showers that travel, grow, decay and split."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from geonet._validation import check_count

WIND = (0.30, 0.90)  # kilometres a minute, northwards and eastwards


class Shower(NamedTuple):
    """A Gaussian shower, in kilometres, minutes and mm/h.

    Attributes:
        centre: at the start, northwards and eastwards.
        radius: along both axes.
        rate: at the centre at the start.
        growth: of the rate per minute; negative if it decays.
        drift: velocity relative to the wind.
    """

    centre: tuple[float, float]
    radius: tuple[float, float]
    rate: float
    growth: float = 0.0
    drift: tuple[float, float] = (0.0, 0.0)

    def evaluate(self, north: np.ndarray, east: np.ndarray, minute: float) -> np.ndarray:
        """Return the rain rate at points, at one time."""
        y, x = (
            c + (wind + drift) * minute
            for c, wind, drift in zip(self.centre, WIND, self.drift, strict=True)
        )
        square = ((north - y) / self.radius[0]) ** 2 + ((east - x) / self.radius[1]) ** 2
        return self.rate * np.exp(self.growth * minute - square / 2)


SHOWERS = (
    Shower((140, 30), (6, 10), 18.0),
    Shower((110, 75), (6, 5), 8.0, growth=0.015),
    Shower((30, 60), (6, 8), 22.0, growth=-0.012),
    # One shower that splits: both parts start at the same place.
    Shower((78, 35), (6, 6), 12.0, drift=(0.25, -0.08)),
    Shower((78, 35), (6, 6), 12.0, drift=(-0.25, 0.08)),
)


def synthetic_rain(
    minutes: Sequence[float] = range(0, 81, 10), cells: int = 96, growth: float = 1.0
) -> xr.DataArray:
    """Return exact rain rates of a synthetic afternoon, (time, y, x) in mm/h.

    Showers travel with the wind; one grows, one decays, one splits in two. A band of widespread,
    textured rain travels unchanged. Rates below 0.1 mm/h are zero, as for a radar.

    Args:
        minutes: times in minutes after 12:00.
        cells: cells along each side of the map, which is 192 km wide.
        growth: factor of all growth and decay; zero for showers that only travel and split.
    """
    check_count(cells, 2, "cells")
    moments = np.asarray(list(minutes), dtype=float)
    centres = (np.arange(cells) + 0.5) * 192.0 / cells
    north, east = np.meshgrid(centres, centres, indexing="ij")
    frames = [_rain_rate(north, east, minute, growth) for minute in moments]
    start = np.datetime64("2026-07-01T12:00", "ns")
    units = {"units": "km"}
    return xr.DataArray(
        np.array(frames, dtype=np.float32).reshape(-1, cells, cells),
        {
            "time": start + np.round(moments * 60e9).astype("timedelta64[ns]"),
            "y": ("y", centres, units),
            "x": ("x", centres, units),
        },
        ("time", "y", "x"),
        "rain_rate",
        {"units": "mm h-1", "long_name": "synthetic rain rate"},
    )


def _rain_rate(north: np.ndarray, east: np.ndarray, minute: float, growth: float) -> np.ndarray:
    rates = sum(
        shower._replace(growth=growth * shower.growth).evaluate(north, east, minute)
        for shower in SHOWERS
    )
    band = Shower((80, 50), (30, 22), 2.0).evaluate(north, east, minute)
    rates = rates + band * np.exp(_texture(north - WIND[0] * minute, east - WIND[1] * minute))
    return np.where(rates < 0.1, 0.0, rates)


def _texture(north: np.ndarray, east: np.ndarray, waves: int = 80) -> np.ndarray:
    """Sum waves of 8 to 60 km in all directions, with amplitudes proportional to the length."""
    golden, silver = (5**0.5 - 1) / 2, 2**0.5 - 1  # their multiples fill the circle evenly
    total = np.zeros_like(north)
    for k in range(1, waves + 1):
        angle, phase = 2 * np.pi * (k * golden % 1), 2 * np.pi * (k * silver % 1)
        length = 8.0 * (60.0 / 8.0) ** (k / waves)
        position = np.cos(angle) * north + np.sin(angle) * east
        total += length / 60.0 * np.cos(2 * np.pi * position / length + phase)
    return 0.35 * total
