"""Checks what can be drawn: one pair, at times in [0, 1], in a dimension the picture takes."""

from __future__ import annotations

from geonet.advice import either
from geonet.arguments import check_kind
from geonet.errors import InputError
from geonet.geodesics.base import Geodesic, Times, check_path, check_times
from geonet.measures.grid import Grid
from geonet.plotting.look import PLAIN, Look


def check(
    path: Geodesic, times: Times, grid: Grid | None, look: Look = PLAIN
) -> tuple[list[float], Grid]:
    """The times as a list, and the grid to draw on: the path's own unless another is given."""
    check_path(path)
    check_look(look)
    if path.batch:
        raise InputError(
            f"This path holds {path.batch[0]} pairs; draw one of them, as in path[0].plot()."
        )
    grid = path._output_grid(grid)
    if grid.dimension > 3:
        raise InputError(
            f"The path is {grid.dimension}D; pictures are made in one to three dimensions."
        )
    return check_times(times)[0].tolist(), grid


def check_look(look: Look) -> None:
    """Refuse what is not a look, such as the name of a colour map."""
    check_kind(look, Look, "look", "give a geonet.plotting.Look(cmap, norm, vmin, vmax)")


def check_dimension(grid: Grid, dimension: int, what: str) -> None:
    """Refuse a picture that is made for paths of another dimension."""
    if grid.dimension != dimension:
        raise InputError(
            f"The path is {grid.dimension}D and {what} drawn in {dimension}D; "
            + either("use path.plot() for frames, which are drawn", "--plot frames is drawn")
            + " in 1D to 3D."
        )
