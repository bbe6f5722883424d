"""Colours, scales and decorations that all figures share."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Literal

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from geonet._validation import as_number, check_choice, check_instance, short_repr
from geonet.density import MASSES, Mass
from geonet.errors import InputError, UnavailableError
from geonet.grid import Grid
from geonet.paths import Geodesic, Times, check_path, check_times

Frames = NDArray[np.floating]

DENSITY_MAP = matplotlib.colormaps["magma"]  # perceptually uniform, safe for colour blindness
TIME_MAP = ListedColormap(  # without the last yellow, which is hard to see on white
    matplotlib.colormaps["viridis"](np.linspace(0, 0.92, 256))
)
INK, FAINT = "#333333", "#c8c8c8"


@dataclass(frozen=True)
class Style:
    """Colours of densities and the units in which they are drawn.

    Attributes:
        cmap: a matplotlib colour map or its name.
        norm: scale from values to colours: "linear", "sqrt" or "log".
        vmin: value of the first colour, which smaller values share. By default zero, or 1e-4 of
            `vmax` for "log", which cannot show zero.
        vmax: value of the last colour; by default the maximum of the drawn values.
        mass: "one" to draw normalised densities, "given" to draw them in the units of the input.
            `vmin` and `vmax` have the same units.
    """

    cmap: str | Colormap = "magma"
    norm: str = "linear"
    vmin: float | None = None
    vmax: float | None = None
    mass: Mass = "one"

    def __post_init__(self) -> None:
        if not isinstance(self.cmap, Colormap):
            _check_name("cmap", self.cmap, list(matplotlib.colormaps), "'magma' or 'viridis'")
        _check_name("norm", self.norm, ["linear", "sqrt", "log"], "'linear', 'sqrt' or 'log'")
        check_choice(self.mass, MASSES, "mass")
        vmin, vmax = _check_limit("vmin", self.vmin), _check_limit("vmax", self.vmax)
        if vmax is not None and not (vmin or 0.0) < vmax:
            bound = "zero" if vmin is None else f"vmin={vmin:g}"
            raise InputError(f"vmax is {vmax:g}; give a number above {bound}.")
        if self.norm == "log" and vmin is not None and vmin <= 0:
            raise InputError(f"vmin is {vmin:g}; norm='log' needs a positive number.")
        if self.norm == "sqrt" and vmin is not None and vmin < 0:
            raise InputError(f"vmin is {vmin:g}; norm='sqrt' needs zero or a positive number.")

    def colormap(self) -> Colormap:
        """Return the colour map object."""
        return self.cmap if isinstance(self.cmap, Colormap) else matplotlib.colormaps[self.cmap]

    def evaluate(self, path: Geodesic, times: Times, grid: Grid) -> Frames:
        """Return the densities of a path in the units that are drawn, (T, *grid.shape)."""
        return path.density(times, grid).numpy(self.mass)

    def label(self, path: Geodesic) -> str:
        """Return the axis label of the values that `evaluate` returns."""
        return f"density{self.mass_note(path)}"

    def mass_note(self, path: Geodesic) -> str:
        """Return ", mass one" if normalised densities hide a change of mass, else ""."""
        masses = [float(end.mass_tensor.detach()) for end in (path.source, path.target)]
        is_constant = max(masses) - min(masses) <= 0.005 * max(masses)
        return "" if is_constant or self.mass == "given" else ", mass one"

    def scale(self, frames: Frames) -> ScalarMappable:
        """Return the colour scale of these values; values beyond a limit get its colour."""
        vmax = float(frames.max()) if self.vmax is None else self.vmax
        if vmax == 0 and self.vmin is None:
            vmax = 1.0  # an empty picture has the first colour everywhere
        default = 1e-4 * vmax if self.norm == "log" else 0.0
        vmin = default if self.vmin is None else self.vmin
        if not vmin < vmax:
            raise InputError(
                f"vmin is {vmin:g} and the highest value drawn is {vmax:.4g}; "
                "give a smaller vmin, or vmax too."
            )
        if self.norm == "log":
            norm = LogNorm(vmin, vmax, clip=True)  # zeros get the first colour
        elif self.norm == "sqrt":
            norm = PowerNorm(0.5, vmin, vmax, clip=True)
        else:
            norm = Normalize(vmin, vmax)
        return ScalarMappable(norm, self.colormap())


def _check_name(option: str, name: object, known: list[str], examples: str) -> None:
    if isinstance(name, str) and name in known:
        return
    close = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"did you mean {close[0]!r}?" if close else f"give a name such as {examples}."
    raise InputError(f"{option} is {short_repr(name)}; {hint}")


def _check_limit(option: str, value: object) -> float | None:
    if value is None:
        return None
    limit = as_number(value, option, "give a finite number")
    if not math.isfinite(limit):
        raise InputError(f"{option} is {limit}; give a finite number.")
    return limit


DEFAULT_STYLE = Style()


def check_drawable(
    path: Geodesic, times: Times, grid: Grid | None, style: Style = DEFAULT_STYLE
) -> tuple[list[float], Grid]:
    """Raise InputError unless the path is one pair in 1D to 3D and the other arguments fit it.

    Returns:
        The times as a list, and the grid to draw on (the path's own by default).
    """
    check_path(path)
    check_style(style)
    if path.batch:
        raise InputError(
            f"This path holds {path.batch[0]} pairs; draw one of them, as in path[0].plot()."
        )
    grid = path._output_grid(grid)
    if grid.dimension > 3:
        raise InputError(f"The path is {grid.dimension}D; figures exist for 1D, 2D and 3D.")
    return check_times(times)[0].tolist(), grid


def check_style(style: Style) -> None:
    """Raise InputError if `style` is something else, such as the name of a colour map."""
    check_instance(style, Style, "style", "give a geonet.plotting.Style(cmap, norm, vmin, vmax)")


def check_dimension(grid: Grid, dimension: int, kind: str) -> None:
    """Raise InputError if a kind of figure does not exist in the dimension of the grid."""
    if grid.dimension != dimension:
        raise InputError(
            f"The path is {grid.dimension}D and kind={kind!r} is for {dimension}D paths; "
            "use kind='frames', which is for 1D, 2D and 3D."
        )


def make_figure(
    width: float, height: float, layout: Literal["constrained", "compressed"] = "constrained"
) -> Figure:
    """Return an empty figure of this size in inches, unknown to pyplot."""
    return Figure(figsize=(width, height), dpi=150, layout=layout)


def set_height_limits(axis: Axes, scale: ScalarMappable, values: Frames) -> None:
    """Give an axis with curves the scale and the limits that colours have elsewhere."""
    vmin, vmax = scale.get_clim()
    if isinstance(scale.norm, LogNorm):
        axis.set_yscale("log", nonpositive="clip")
    elif isinstance(scale.norm, PowerNorm):
        axis.set_yscale("function", functions=(_clipped_sqrt, np.square))
    elif vmin == 0 and values.min() < 0:
        return  # negative densities, an error of the solver, stay visible
    axis.set_ylim(1.05 * vmin if vmin < 0 else vmin, 1.05 * vmax)


def _clipped_sqrt(values: Frames) -> Frames:
    return np.sqrt(np.clip(values, 0, None))


def despine(axis: Axes) -> None:
    """Draw the frame thin and grey, without the upper and right side unless there is an image."""
    for name, spine in axis.spines.items():
        spine.set(color=FAINT, linewidth=0.8)
        spine.set_visible(bool(axis.images) or name in ("left", "bottom"))
    axis.tick_params(color=FAINT, labelcolor=INK, labelsize="small")
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)


def add_colour_bar(
    figure: Figure, scale: ScalarMappable, axes: Axes | list[Axes], label: str
) -> None:
    """Add a colour bar to the right of the axes; a logarithmic one names its first value."""
    if isinstance(scale.norm, LogNorm):
        label = f"{label}\nat least {scale.norm.vmin:.2g}"
    place = {"fraction": 0.05, "aspect": 25, "pad": 0.02, "panchor": False}  # axes stay in place
    bar = figure.colorbar(scale, ax=axes, label=label, **place)
    if isinstance(scale.norm, PowerNorm):  # ticks of high values would overlap
        bar.locator = MaxNLocator(3)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(color=FAINT, labelcolor=INK, labelsize="small")
    bar.ax.yaxis.label.set_color(INK)


def set_title(figure: Figure, title: str) -> None:
    """Set the title above all frames."""
    figure.suptitle(title, color=INK, fontsize="medium")


def format_title(path: Geodesic) -> str:
    """Return the solver's name, with the distance if it provides one."""
    sign = "≥" if path.distance_is_lower_bound else "="
    try:
        distance = float(to_numpy(path.distance))
    except UnavailableError:
        return path.solver
    return f"{path.solver}   W₂ {sign} {distance:.4g}"


def to_numpy(result: ArrayLike | Tensor) -> np.ndarray:
    """Return a result of a path, NumPy or torch, as a NumPy array without gradients."""
    return torch.as_tensor(result).detach().numpy()


def format_time(t: float) -> str:
    """Return the label of a frame."""
    return f"t = {t:.3g}"
