"""geonet: the whole Wasserstein geodesic between two densities.

Public names are imported when they are first used: importing torch takes seconds, and tab
completion must not wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from geonet._utils import VERSION, import_object

if TYPE_CHECKING:
    from geonet._progress import progress_callback
    from geonet.api import geodesic, list_solvers, load, solver
    from geonet.barycenters import Barycenter, Barycenters, barycenter
    from geonet.density import Density
    from geonet.distances import PairwiseDistances, distance, pairwise_distances
    from geonet.grid import Grid
    from geonet.io import from_image, read
    from geonet.mixture import GaussianMixture
    from geonet.paths import Geodesic
    from geonet.samples import from_function, from_samples
    from geonet.solvers.base import Solver
    from geonet.solvers.registry import register

__version__ = VERSION

__all__ = [
    "Barycenter",
    "Barycenters",
    "Density",
    "GaussianMixture",
    "Geodesic",
    "Grid",
    "PairwiseDistances",
    "Solver",
    "barycenter",
    "distance",
    "from_function",
    "from_image",
    "from_samples",
    "geodesic",
    "list_solvers",
    "load",
    "pairwise_distances",
    "progress_callback",
    "read",
    "register",
    "solver",
]

_HOMES = {
    "geonet.api": ("geodesic", "list_solvers", "load", "solver"),
    "geonet.barycenters": ("Barycenter", "Barycenters", "barycenter"),
    "geonet.distances": ("PairwiseDistances", "distance", "pairwise_distances"),
    "geonet.paths": ("Geodesic",),
    "geonet.density": ("Density",),
    "geonet.mixture": ("GaussianMixture",),
    "geonet.grid": ("Grid",),
    "geonet.io": ("from_image", "read"),
    "geonet.samples": ("from_function", "from_samples"),
    "geonet._progress": ("progress_callback",),
    "geonet.solvers.base": ("Solver",),
    "geonet.solvers.registry": ("register",),
}

_MODULES = (
    "colours",
    "errors",
    "evaluation",
    "metrics",
    "onnx",
    "plotting",
    "training",
    "weights",
    "xarray",
)


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = import_object(f"{home}:{name}")
            return value
    if name in _MODULES:
        return import_module(f"geonet.{name}")
    raise AttributeError(f"module 'geonet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
