"""How every picture looks: colours that everyone can tell apart, quiet frames, and labels."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from geonet.errors import UnavailableError
from geonet.geodesics.base import Geodesic
from geonet.measures.grid import Grid

Frames = NDArray[np.floating]

DPI = 150
DENSITY_MAP = matplotlib.colormaps["magma"]  # even steps of lightness, also for the colour-blind
TIME_MAP = ListedColormap(  # without its last yellow, which is hard to see on white
    matplotlib.colormaps["viridis"](np.linspace(0, 0.92, 256))
)
ERROR_MAP = matplotlib.colormaps["PuOr"]  # white is no error; the colour-blind see both signs
ROUNDING = 1e-9  # of the whole: smaller errors are not magnified
INK, FAINT = "#333333", "#c8c8c8"
NAMES = ("x", "y", "z")


def density_scale(frames: Frames) -> ScalarMappable:
    """Colours from zero to the highest value; negative values have the colour of zero."""
    return ScalarMappable(Normalize(0, float(frames.max())), DENSITY_MAP)


def error_scale(frames: Frames, unit: float) -> ScalarMappable:
    """Colours symmetric about zero; `unit` is the size of the quantity with the errors."""
    largest = max(float(np.abs(frames).max()), ROUNDING * unit)
    return ScalarMappable(Normalize(-largest, largest), ERROR_MAP)


def quieten(axis: Axes) -> None:
    """Thin grey frame and grey text, so that the density stands out."""
    for name, spine in axis.spines.items():
        spine.set(color=FAINT, linewidth=0.8)
        spine.set_visible(bool(axis.images) or name in ("left", "bottom"))
    axis.tick_params(color=FAINT, labelcolor=INK, labelsize="small")
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)


def colour_bar(figure: Figure, scale: ScalarMappable, axes: Axes | list[Axes], label: str) -> None:
    """A colour bar right of the axes."""
    bar = figure.colorbar(scale, ax=axes, label=label, fraction=0.05, aspect=25, pad=0.02)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(color=FAINT, labelcolor=INK, labelsize="small")
    bar.ax.yaxis.label.set_color(INK)


def name_box(axis: Axes, grid: Grid) -> None:
    """Ticks at the corners of a 2D box."""
    for set_ticks, low, high in zip(
        (axis.set_xticks, axis.set_yticks), grid.lower, grid.upper, strict=True
    ):
        set_ticks((low, high), (f"{low:.4g}", f"{high:.4g}"))


def extent(grid: Grid) -> tuple[float, float, float, float]:
    """The sides of a 2D box: left, right, bottom, top."""
    return grid.lower[0], grid.upper[0], grid.lower[1], grid.upper[1]


def entitle(figure: Figure, title: str) -> None:
    """The title above all frames."""
    figure.suptitle(title, color=INK, fontsize="medium")


def title_of(path: Geodesic) -> str:
    """The solver, and the distance if it gives one."""
    try:
        return f"{path.solver}   W₂ = {float(path.distance.detach()):.4g}"
    except UnavailableError:
        return path.solver


def moment(t: float) -> str:
    """A time, as it is written on a frame."""
    return f"t = {t:.3g}"
