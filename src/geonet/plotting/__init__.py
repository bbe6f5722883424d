"""Figures and animations of a path. Nothing here touches pyplot or any other global state."""

from geonet.plotting.animation import animate_geodesic
from geonet.plotting.figures import (
    plot_density,
    plot_error,
    plot_geodesic,
    plot_history,
    plot_kind,
    plot_slices,
    plot_together,
    plot_tracks,
    plot_velocity,
)
from geonet.plotting.style import DENSITY_MAP, FAINT, INK, Look, quieten

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
