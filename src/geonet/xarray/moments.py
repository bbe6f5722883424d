"""Moments in time: between which frames they lie, and how far on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from geonet.errors import InputError

Outside = Literal["refuse", "nan"]
SECOND = np.timedelta64(1, "s")


@dataclass(frozen=True)
class Moments:
    """Moments as places between frames.

    Attributes:
        frame: the last frame that is not later, (T,).
        share: of the way from there to the next frame, (T,), 0 ≤ share ≤ 1; NaN for a moment
            outside of all frames.
    """

    frame: np.ndarray
    share: np.ndarray

    def __len__(self) -> int:
        return len(self.frame)

    def chosen(self, which: Any, first: int) -> Moments:
        """Some of them, among frames that begin with number `first`."""
        return Moments(self.frame[which] - first, self.share[which])

    def with_next(self, frames: int) -> Moments:
        """The same with a next frame for each: the last frame is the end of the pair before it."""
        last = self.frame == frames - 1
        return Moments(self.frame - last, np.where(last, 1.0, self.share))


def starts(frames: int) -> Moments:
    """One moment for every pair of neighbouring frames."""
    return Moments(np.arange(frames - 1), np.zeros(frames - 1))


def located(times: np.ndarray, asked: np.ndarray, outside: Outside) -> Moments:
    """Where the moments `asked` (T,) lie between `times` (n,), which ascend.

    A moment that is one of the times has share 0, exactly: dates are compared as whole numbers.
    """
    old, new = comparable(times, asked)
    frame = np.searchsorted(old, new, side="right") - 1
    beyond = (new < old[0]) | (new > old[-1])
    if beyond.any() and outside == "refuse":
        raise InputError(
            f"The time {asked[beyond][0]} is outside of the field's, {times[0]} to {times[-1]}; "
            "leave it out, or give outside='nan' for a frame without values."
        )
    share = np.where(beyond, np.nan, 0.0)
    between = ~beyond & (frame < len(old) - 1)
    here = frame[between]
    share[between] = (new[between] - old[here]) / (old[here + 1] - old[here])
    return Moments(np.where(beyond, 0, frame), share)


def durations(times: np.ndarray) -> np.ndarray:
    """From each time to the next, (n − 1,): in seconds for dates, else in the times' own units."""
    steps = np.diff(times)
    if steps.dtype.kind == "m":
        return steps / SECOND
    if steps.dtype.kind == "O":  # of calendars that NumPy does not know
        return np.array([step.total_seconds() for step in steps])
    return steps.astype(float)


def is_dated(times: np.ndarray) -> bool:
    """Whether times are dates or durations, and not plain numbers."""
    return times.dtype.kind in "mMO"


def comparable(times: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as numbers of one unit; whole ones for dates."""
    kinds = {array.dtype.kind for array in (times, asked)}
    if kinds <= {"m"} or kinds <= {"M"}:
        common = np.promote_types(times.dtype, asked.dtype)
        old, new = (array.astype(common) for array in (times, asked))
        check_known(old, "The field's times")
        check_known(new, "The times asked for")
        return old.astype(np.int64), new.astype(np.int64)
    if kinds == {"O"}:
        old, new = (_microseconds(array, times[0]) for array in (times, asked))
        return old, new
    if kinds <= set("iuf"):
        old, new = times.astype(float), asked.astype(float)
        check_known(old, "The field's times")
        check_known(new, "The times asked for")
        return old, new
    raise InputError(
        f"The field's times are {times.dtype} and those asked for {asked.dtype}; "
        "give dates where the field has dates, and numbers where it has numbers."
    )


def check_known(times: np.ndarray, whose: str) -> None:
    """Refuse dates and numbers that are none."""
    unknown = np.isnat(times) if times.dtype.kind in "mM" else ~np.isfinite(times)
    if unknown.any():
        raise InputError(f"{whose} hold {int(unknown.sum())} without a value; leave these out.")


def _microseconds(array: np.ndarray, origin: object) -> np.ndarray:
    """Since the origin, as whole numbers."""
    try:
        steps = (array - origin).tolist()
        return np.array([(s.days * 86400 + s.seconds) * 10**6 + s.microseconds for s in steps])
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(
            "The times are neither numbers nor dates of one calendar; decode them first: "
            "xr.decode_cf(dataset)."
        ) from error
