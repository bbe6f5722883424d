"""One density."""

from __future__ import annotations

from matplotlib.figure import Figure

from geonet.errors import InputError
from geonet.measures.density import Density, check_density
from geonet.plotting.checks import check_look
from geonet.plotting.look import DPI, PLAIN, Look, fit_height, quieten
from geonet.plotting.panels import draw_projections, draw_strip
from geonet.plotting.upright import tallness

SIZE = (4.8, 3.2)  # inches, of a curve
SIDE = 3.2  # inches: the longer side of a 2D box


def plot_density(density: Density, look: Look = PLAIN) -> Figure:
    """A curve in 1D, an image with its colours in 2D, projections in 3D."""
    check_density(density)
    check_look(look)
    grid = density.grid
    if density.leading:
        raise InputError(
            f"These are {' × '.join(map(str, density.leading))} densities; "
            f"draw one of them, as in density{'[0]' * len(density.leading)}.plot()."
        )
    if grid.dimension > 3:
        raise InputError(
            f"The density is {grid.dimension}D; pictures are made in one to three dimensions."
        )
    values = density.numpy(look.mass)[None]
    if grid.dimension == 2:
        side = SIDE / max(1, tallness(grid))
        return draw_strip(values, [""], grid, look.scale(values), "density", side)[0]
    if grid.dimension == 3:
        return draw_projections(values, [""], grid, look.scale, "density")
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axis, x, colour = figure.subplots(), grid.axes()[0].numpy(), look.colours()(0.45)
    axis.plot(x, values[0], color=colour, linewidth=1.6)
    axis.set(xlabel="x", ylabel="density", xlim=(grid.lower[0], grid.upper[0]))
    fit_height(axis, look.scale(values), values)
    quieten(axis)
    return figure
