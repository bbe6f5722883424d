"""Numbers in text for people."""

from __future__ import annotations

import math


def choose_verb(count: int, one: str, many: str) -> str:
    """Return the form of a verb for a number of things: "1 of 9 values is", "2 of 9 values are"."""
    return one if count == 1 else many


def format_percent(share: float, least: float = 1e-4) -> str:
    """Return a share in percent with two digits at most and no exponent: "160 %", "0.081 %".

    A positive share of less than `least` percent is rounded up to it.
    """
    percent = 100 * share
    return f"{_without_exponent(least if 0 < percent < least else percent, 2)} %"


def format_seconds(duration: float) -> str:
    """Return a time span: "15 ms", "0.8 s", "34 s", "3 min 20 s", "2 h 5 min"."""
    if duration < 0.0995:
        return f"{format_number(1000 * duration, digits=2)} ms"
    if duration < 9.95:
        return f"{format_number(duration, digits=2)} s"
    seconds = round(duration)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return _two_units(seconds, "min", "s")
    return _two_units(round(duration / 60), "h", "min")


def format_number(value: float, digits: int = 4) -> str:
    """Return a number with `digits` significant digits, without exponent from 1e-4 to 1e6."""
    rounded = abs(float(f"{value:.{digits - 1}e}"))
    if rounded == 0 or 1e-4 <= rounded < 1e6 or not math.isfinite(value):
        return _without_exponent(value, digits)
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{strip_zeros(mantissa)}e{int(power)}"


def _without_exponent(value: float, digits: int) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value + 0.0:g}"  # not "-0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    return strip_zeros(f"{rounded:.{max(digits - 1 - exponent, 0)}f}")


def strip_zeros(text: str) -> str:
    """Return a number without the zeros at the end of its fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _two_units(count: int, large: str, small: str) -> str:
    """Return a count of small units as large and small ones, 60 to one."""
    whole, rest = divmod(count, 60)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"
