"""`--option name=value` as keyword arguments of a solver."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from geonet.errors import SolverError
from geonet.solvers.registry import solver_class

WORDS = {"true": True, "false": False, "none": None}


def parse_options(solver: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Values by name; one that is no number where the solver's default is one is refused."""
    fields = dataclasses.fields(solver_class(solver))  # type: ignore[arg-type]
    defaults = {field.name: field.default for field in fields}
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = (part.strip() for part in pair.partition("="))
        if not separator or not name or not text:
            raise SolverError(f"--option {pair!r} is not NAME=VALUE; write e.g. floor=0.01.")
        options[name] = _value(text)
        wanted = type(defaults.get(name))
        if wanted in (int, float, bool) and not _fits(options[name], wanted):
            raise SolverError(
                f"--option {name}={text}: {solver!r} needs {_article(wanted)} here, "
                f"such as {defaults[name]}."
            )
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


def _fits(value: object, wanted: type) -> bool:
    if wanted is bool or isinstance(value, bool):
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, int) or (wanted is float and isinstance(value, float))


def _article(wanted: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}[wanted]
