"""Numbers as people write them."""

from __future__ import annotations

import math

MINUTE, HOUR = 60, 3600


def format_percent(share: float) -> str:
    """A share in percent with two digits at most and no exponent: "160 %", "0.081 %"."""
    return f"{_plain(100 * share, 2)} %"


def format_seconds(duration: float) -> str:
    """A time span: "15 ms", "0.8 s", "34 s", "3 min 20 s", "2 h 5 min"."""
    if duration < 0.0995:
        return f"{format_number(1000 * duration, digits=2)} ms"
    if duration < 9.95:
        return f"{format_number(duration, digits=2)} s"
    whole = round(duration)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return _two_units(whole, MINUTE, "min", 1, "s")
    return _two_units(round(duration / MINUTE) * MINUTE, HOUR, "h", MINUTE, "min")


def format_number(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, plain from 1e-4 to 1e6: "0.00012", "123500"."""
    rounded = abs(float(f"{value:.{digits - 1}e}"))
    if rounded == 0 or 1e-4 <= rounded < 1e6 or not math.isfinite(value):
        return _plain(value, digits)
    mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
    return "e".join((_trimmed(mantissa), str(int(power))))


def _plain(value: float, digits: int) -> str:
    """Without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value + 0.0:g}"  # not "-0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    return _trimmed(f"{rounded:.{max(digits - 1 - exponent, 0)}f}")


def _trimmed(text: str) -> str:
    """Without the zeros at the end of a fraction."""
    return text.rstrip("0").rstrip(".") if "." in text else text


def _two_units(whole: int, large: int, of_large: str, small: int, of_small: str) -> str:
    count, rest = divmod(whole, large)
    return f"{count} {of_large} {rest // small} {of_small}" if rest else f"{count} {of_large}"
