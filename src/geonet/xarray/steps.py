"""Times at even steps, from the first frame to the last."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd

from geonet.errors import InputError

MOST = 10**7  # times
ROUNDING = 1e-6  # of a step: numbers that are no further from a frame's time stand for it


def stepped(times: np.ndarray, every: str) -> np.ndarray:
    """From the first of `times` to the last, which they may not hit.

    Args:
        times: that ascend, (n,): dates, durations or numbers.
        every: the step, such as "2min", or a number where times are numbers.
    """
    kind = times.dtype.kind
    step: Any = _number(every) if kind in "iuf" else _duration(every)
    if kind in "mM":
        step = step.to_timedelta64()
        times = times.astype(np.promote_types(times.dtype, f"{kind}8[{np.datetime_data(step)[0]}]"))
    elif kind == "O":
        step = max(step.to_pytimedelta(), timedelta.resolution)
    count = float((times[-1] - times[0]) / step)
    if not count < MOST:
        raise InputError(f"--every {every} makes {count:.3g} frames; give a longer step.")
    found = times[0] + np.arange(int(count + ROUNDING) + 1) * step
    return _on_frames(found, times.astype(float), step) if kind in "iuf" else found


def _on_frames(found: np.ndarray, times: np.ndarray, step: float) -> np.ndarray:
    """Numbers (T,) moved onto times of frames from which only rounding keeps them."""
    after = np.searchsorted(times, found).clip(max=len(times) - 1)
    nearest = np.where(
        np.abs(times[after] - found) < np.abs(times[after - 1] - found),
        times[after],
        times[after - 1],
    )
    return np.where(np.abs(nearest - found) <= ROUNDING * step, nearest, found)


def _number(every: str) -> float:
    try:
        step = float(every)
    except ValueError:
        step = np.nan
    if not 0 < step < np.inf:
        raise InputError(f"--every is {every!r} and times are numbers; give one above zero.")
    return step


def _duration(every: str) -> pd.Timedelta:
    try:
        step = pd.Timedelta(every)
        if isinstance(step, pd.Timedelta) and step > pd.Timedelta(0):
            return step
    except (ValueError, TypeError, OverflowError):
        pass
    raise InputError(f"--every is {every!r}; give a duration above zero, such as 2min or 6h.")
