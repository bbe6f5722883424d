"""geonet: the whole Wasserstein geodesic between two densities."""

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
