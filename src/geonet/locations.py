"""Objects by their location, "module:attribute", imported when they are first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def located(location: str) -> Any:
    """The object at "module:attribute"."""
    module, attribute = location.split(":")
    return getattr(import_module(module), attribute)
