"""`--option name=value` as keyword arguments of a solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geonet.errors import SolverError

WORDS = {"true": True, "false": False, "none": None}


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Values by name; the solver checks whether they fit."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = (part.strip() for part in pair.partition("="))
        if not separator or not name or not text:
            raise SolverError(f"--option {pair!r} is not NAME=VALUE; write e.g. floor=0.01.")
        options[name] = _value(text)
    return options


def _value(text: str) -> int | float | bool | str | None:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
