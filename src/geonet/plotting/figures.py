"""The densities of a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from geonet.arguments import check_kind
from geonet.errors import InputError
from geonet.geodesics.base import QUARTERS, Geodesic, Times, check_times
from geonet.measures.grid import Grid
from geonet.plotting.checks import check, check_dimension
from geonet.plotting.look import (
    DENSITY_MAP,
    DPI,
    PLAIN,
    Frames,
    Look,
    entitle,
    moment,
    quieten,
    title_of,
)
from geonet.plotting.panels import Asked, draw, draw_frames, draw_history, label_frames
from geonet.plotting.upright import tallness


def plot_geodesic(
    path: Geodesic, times: Times = QUARTERS, grid: Grid | None = None, look: Look = PLAIN
) -> Figure:
    """The path at `times`: in 1D curves and space × time, in 2D frames, in 3D projections."""
    moments, grid = check(path, times, grid, look)
    labels = [moment(t) for t in moments]
    figure = draw(
        _densities(path, grid, look), moments, labels, grid, look.scale, look.name_of(path)
    )
    entitle(figure, title_of(path))
    return figure


def plot_history(path: Geodesic, grid: Grid | None = None, look: Look = PLAIN) -> Figure:
    """A 1D path in space × time."""
    _, grid = check(path, QUARTERS, grid, look)
    check_dimension(grid, 1, "space × time is")
    figure = Figure(figsize=(5.2, 3.6), dpi=DPI, layout="constrained")
    values, what = _densities(path, grid, look), look.name_of(path)
    draw_history(figure, figure.subplots(), values, grid, look.scale, what)
    entitle(figure, title_of(path))
    return figure


def plot_together(paths: Mapping[str, Geodesic], times: Times = QUARTERS) -> Figure:
    """Paths in 1D or 2D under each other, a row each with its name, at the same times."""
    check_kind(paths, Mapping, "paths", "give a dict of paths by their names")
    if not paths:
        raise InputError("There are no paths; give at least one, by its name.")
    moments = check_times(times)[0].tolist()
    heights = [_row_height(path) for path in paths.values()]
    size = (1.7 * len(moments) + 0.4, sum(1.7 * height + 0.1 for height in heights) + 0.2)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = figure.subplots(len(paths), len(moments), squeeze=False, height_ratios=heights)
    for row, (name, path) in zip(axes, paths.items(), strict=True):
        frames = path.density(moments).numpy()
        if path.grid.dimension == 1:
            _draw_curves(row, frames, path.grid)
        else:
            draw_frames(row, frames, path.grid, PLAIN.scale(frames))
        row[0].set_ylabel(name)
    label_frames(axes[0], [moment(t) for t in moments])
    return figure


def _densities(path: Geodesic, grid: Grid, look: Look) -> Asked:
    return lambda times: look.frames(path, times, grid)


def _row_height(path: Geodesic) -> float:
    """Height over width of one frame."""
    _, grid = check(path, 0.0, None)
    if grid.dimension > 2:
        raise InputError(
            f"A path is {grid.dimension}D; rows are made in one or two dimensions, "
            "use path.plot() for this one."
        )
    return 0.7 if grid.dimension == 1 else tallness(grid)


def _draw_curves(axes: Sequence[Axes], frames: Frames, grid: Grid) -> None:
    """Frames (T, n) as filled curves with a common height."""
    x = grid.axes()[0].numpy()
    for axis, frame in zip(axes, frames, strict=True):
        axis.fill_between(x, frame, color=DENSITY_MAP(0.45), alpha=0.25, linewidth=0)
        axis.plot(x, frame, color=DENSITY_MAP(0.45), linewidth=1.4)
        axis.set(xlim=(grid.lower[0], grid.upper[0]), xticks=(), yticks=())
        axis.set_ylim(0, 1.05 * float(frames.max()))
        quieten(axis)
