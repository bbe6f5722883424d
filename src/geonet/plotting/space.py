"""Slices through a 3D path."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from geonet.arguments import is_number, is_whole, shown
from geonet.errors import InputError
from geonet.geodesics.base import QUARTERS, Geodesic, Times
from geonet.measures.grid import Grid
from geonet.plotting.checks import check, check_dimension
from geonet.plotting.look import PLAIN, Look, entitle, moment, title_of
from geonet.plotting.panels import BETWEEN_TICKS, draw_strip, plane_of
from geonet.plotting.upright import axis_names, name_axes


def plot_slices(
    path: Geodesic,
    times: Times = QUARTERS,
    grid: Grid | None = None,
    look: Look = PLAIN,
    axis: int = 2,
    at: float = 0.5,
) -> Figure:
    """A layer of cells of a 3D path at `times`.

    Args:
        path: the path.
        times: of the frames.
        grid: whose layer is shown, the path's own by default.
        look: the colours.
        axis: across which the box is cut: 0, 1 or 2.
        at: where, as a share of the side: 0 is the lower face, 1 the upper.
    """
    moments, grid = check(path, times, grid, look)
    check_dimension(grid, 3, "slices are")
    if not is_whole(axis) or axis not in (0, 1, 2):
        raise InputError(f"axis is {shown(axis)}; cut across axis 0, 1 or 2.")
    if not is_number(at) or not 0 <= at <= 1:
        raise InputError(f"at is {shown(at)}; give a share of the side, from 0 to 1.")
    layer = min(int(at * grid.shape[axis]), grid.shape[axis] - 1)
    first, second = (i for i in range(3) if i != axis)
    frames = np.moveaxis(look.frames(path, moments, grid), 1 + axis, 0)[layer]
    labels = [moment(t) for t in moments]
    plane = plane_of(grid, (first, second))
    figure, axes = draw_strip(frames, labels, plane, look.scale(frames), look.name_of(path))
    names = axis_names(grid)
    name_axes(axes[0], (names[first], names[second]), plane, BETWEEN_TICKS)
    centre = float(grid.axes()[axis][layer])
    entitle(figure, f"{title_of(path)}   at {names[axis]} = {centre:.4g}")
    return figure
