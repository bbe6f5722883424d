"""Figures and animations of a path. Nothing here touches pyplot or any other global state."""

from geonet.plotting.animation import animate_geodesic
from geonet.plotting.densities import plot_density
from geonet.plotting.errors import plot_error
from geonet.plotting.fields import plot_tracks, plot_velocity
from geonet.plotting.figures import plot_geodesic, plot_history, plot_together
from geonet.plotting.kinds import plot_kind
from geonet.plotting.look import DENSITY_MAP, FAINT, INK, Look, quieten
from geonet.plotting.space import plot_slices

__all__ = [
    "DENSITY_MAP",
    "FAINT",
    "INK",
    "Look",
    "animate_geodesic",
    "plot_density",
    "plot_error",
    "plot_geodesic",
    "plot_history",
    "plot_kind",
    "plot_slices",
    "plot_together",
    "plot_tracks",
    "plot_velocity",
    "quieten",
]
