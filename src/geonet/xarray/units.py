"""Units of lengths and rates."""

from __future__ import annotations

import re

LENGTHS = {"m": 1.0, "metre": 1.0, "meter": 1.0, "metres": 1.0, "meters": 1.0, "km": 1e3}
DEPTHS = {"mm": 1.0, "kg m-2": 1.0, "m": 1e3}  # of water, in mm
DURATIONS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
RATE = re.compile(r"(?P<amount>.+?)\s*(?:/\s*(?P<per>[a-z]+)|\s(?P<unit>[a-z]+)\s?(?:\^|\*\*)?-1)")


def split_rate(units: str) -> tuple[str, float]:
    """Split units such as "mm h-1" or "m/s" into "mm" and seconds; 0.0 if they are no rate."""
    found = RATE.fullmatch(units.strip())
    seconds = DURATIONS.get(found["per"] or found["unit"], 0.0) if found else 0.0
    return (found["amount"], seconds) if found and seconds else (units, 0.0)


def convert_rain_rate(units: str) -> float | None:
    """Return the factor from the units of a rain rate to mm/h; None if they are no rain rate."""
    amount, seconds = split_rate(units)
    return DEPTHS[amount] * 3600 / seconds if seconds and amount in DEPTHS else None
