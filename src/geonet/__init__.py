"""geonet: the whole Wasserstein geodesic between two densities.

What is public is imported when it is first asked for: torch takes seconds, and a shell that
completes `geonet geod…` has none.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geonet.api import geodesic, load, solver, solvers
    from geonet.geodesic import Geodesic
    from geonet.measures.density import Density
    from geonet.measures.gaussian_mixture import GaussianMixture
    from geonet.measures.grid import Grid
    from geonet.measures.readers import from_function, from_image, from_samples, read
    from geonet.solvers.base import Solver

__version__ = "0.1.0"

__all__ = [
    "Density",
    "GaussianMixture",
    "Geodesic",
    "Grid",
    "Solver",
    "from_function",
    "from_image",
    "from_samples",
    "geodesic",
    "load",
    "read",
    "solver",
    "solvers",
]

_HOMES = {
    "geonet.api": ("geodesic", "load", "solver", "solvers"),
    "geonet.geodesic": ("Geodesic",),
    "geonet.measures.density": ("Density",),
    "geonet.measures.gaussian_mixture": ("GaussianMixture",),
    "geonet.measures.grid": ("Grid",),
    "geonet.measures.readers": ("from_function", "from_image", "from_samples", "read"),
    "geonet.solvers.base": ("Solver",),
}

_PACKAGES = ("errors", "evaluation", "export", "measures", "plotting", "training")


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(home), name)
            globals()[name] = value
            return value
    if name in _PACKAGES:
        return import_module(f"geonet.{name}")
    raise AttributeError(f"module 'geonet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _Package(ModuleType):
    """Two functions have the names of modules, which importing those must not take from them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in ("geodesic", "solvers") and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
