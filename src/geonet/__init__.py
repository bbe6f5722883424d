"""geonet: the whole Wasserstein geodesic between two densities.

Public names are imported when they are first used: importing torch takes seconds, and tab
completion must not wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geonet.locations import located
from geonet.version import VERSION

if TYPE_CHECKING:
    from geonet.api import geodesic, list_solvers, load, solver
    from geonet.geodesics.base import Geodesic
    from geonet.measures.density import Density
    from geonet.measures.gaussian_mixture import GaussianMixture
    from geonet.measures.grid import Grid
    from geonet.measures.readers import from_image, read
    from geonet.measures.samples import from_function, from_samples
    from geonet.progress import listening
    from geonet.solvers.base import Solver
    from geonet.solvers.registry import register

__version__ = VERSION

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
    "list_solvers",
    "listening",
    "load",
    "read",
    "register",
    "solver",
]

_HOMES = {
    "geonet.api": ("geodesic", "list_solvers", "load", "solver"),
    "geonet.geodesics.base": ("Geodesic",),
    "geonet.measures.density": ("Density",),
    "geonet.measures.gaussian_mixture": ("GaussianMixture",),
    "geonet.measures.grid": ("Grid",),
    "geonet.measures.readers": ("from_image", "read"),
    "geonet.measures.samples": ("from_function", "from_samples"),
    "geonet.progress": ("listening",),
    "geonet.solvers.base": ("Solver",),
    "geonet.solvers.registry": ("register",),
}

_PACKAGES = ("errors", "evaluation", "export", "measures", "plotting", "training")


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = located(f"{home}:{name}")
            return value
    if name in _PACKAGES:
        return import_module(f"geonet.{name}")
    raise AttributeError(f"module 'geonet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
