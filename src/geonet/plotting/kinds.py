"""The kinds of pictures by name, for `Geodesic.plot`."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.figure import Figure

from geonet.arguments import shown
from geonet.errors import InputError
from geonet.geodesics.base import QUARTERS, Geodesic, Times
from geonet.measures.grid import Grid
from geonet.plotting.fields import plot_tracks, plot_velocity
from geonet.plotting.figures import plot_geodesic, plot_history
from geonet.plotting.look import PLAIN, Look
from geonet.plotting.space import plot_slices

AT_TIMES = {"frames": plot_geodesic, "velocity": plot_velocity, "slices": plot_slices}
OF_ALL_TIMES = ("history", "tracks")


def plot_kind(
    path: Geodesic,
    kind: str,
    times: Times | None = None,
    grid: Grid | None = None,
    look: Look = PLAIN,
) -> Figure:
    """The picture of that kind: frames, velocity, slices, history or tracks."""
    kinds = (*AT_TIMES, *OF_ALL_TIMES)
    if isinstance(times, str) and times in kinds:
        raise InputError(f"The first argument is the times; name a kind by kind={times!r}.")
    if not isinstance(kind, str) or kind not in kinds:
        known = ", ".join(kinds)
        raise InputError(f"There is no kind {shown(kind)} of picture; choose one of {known}.")
    if kind in AT_TIMES:
        return AT_TIMES[kind](path, QUARTERS if times is None else times, grid, look)
    if times is not None:
        raise InputError(f"A picture of kind {kind!r} shows all times; leave `times` out.")
    if kind == "history":
        return plot_history(path, grid, look)
    if replace(look, mass=PLAIN.mass) != PLAIN:
        raise InputError("Tracks have the colours of time; leave cmap, norm, vmin and vmax out.")
    return plot_tracks(path, grid, mass=look.mass)
