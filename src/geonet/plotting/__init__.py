"""Figures and animations of densities and paths, without pyplot or other global state."""

from geonet.plotting.animation import animate_geodesics
from geonet.plotting.barycenters import plot_barycenter, plot_barycenters
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
from geonet.plotting.style import DENSITY_MAP, FAINT, INK, Style, despine

__all__ = [
    "DENSITY_MAP",
    "FAINT",
    "INK",
    "Style",
    "animate_geodesics",
    "despine",
    "plot_barycenter",
    "plot_barycenters",
    "plot_density",
    "plot_error",
    "plot_geodesic",
    "plot_history",
    "plot_kind",
    "plot_slices",
    "plot_together",
    "plot_tracks",
    "plot_velocity",
]
