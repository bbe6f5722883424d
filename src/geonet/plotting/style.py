"""How every picture looks: colours that everyone can tell apart, quiet frames, and labels."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TypeVar

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from geonet._advice import argument, either, setting
from geonet._validation import as_number, check_choice, check_instance, short_repr
from geonet.density import MASSES, Mass
from geonet.errors import InputError, UnavailableError
from geonet.grid import Grid
from geonet.paths import Geodesic, Times, check_path, check_times

Frames = NDArray[np.floating]

DPI = 150
DENSITY_MAP = matplotlib.colormaps["magma"]  # even steps of lightness, also for the colour-blind
TIME_MAP = ListedColormap(  # without its last yellow, which is hard to see on white
    matplotlib.colormaps["viridis"](np.linspace(0, 0.92, 256))
)
ERROR_MAP = matplotlib.colormaps["PuOr"]  # white is no error; the colour-blind see both signs
ROUNDING = 1e-9  # of the whole: smaller errors are not magnified
DECADES = 4  # that logarithmic colours span, unless vmin says otherwise
NORMS = ("linear", "sqrt", "log")
ALIKE = 0.005  # of the larger mass: what two masses may differ by and count as the same
INK, FAINT = "#333333", "#c8c8c8"


@dataclass(frozen=True)
class Look:
    """The colours of densities, and the units in which they are drawn.

    Attributes:
        cmap: a colour map of matplotlib, or its name.
        norm: how colours follow values: "linear", "sqrt" or "log".
        vmin: the value of the first colour, which all below have too. By default zero, or 1e-4 of
            `vmax` for "log", where zero has no place.
        vmax: the value of the last colour; by default the highest that is drawn.
        mass: of the densities: "one", or "given" for the units that went in, those of `vmin` and
            `vmax` too.
    """

    cmap: str | Colormap = "magma"
    norm: str = "linear"
    vmin: float | None = None
    vmax: float | None = None
    mass: Mass = "one"

    def __post_init__(self) -> None:
        if not isinstance(self.cmap, Colormap):
            _check_name("cmap", self.cmap, list(matplotlib.colormaps), "'magma' or 'viridis'")
        _check_name("norm", self.norm, list(NORMS), "'linear', 'sqrt' or 'log'")
        check_choice(self.mass, MASSES, argument("mass"))
        lowest, highest = (_limit(name, getattr(self, name)) for name in ("vmin", "vmax"))
        vmin, vmax = argument("vmin"), argument("vmax")
        if highest is not None and not (lowest or 0.0) < highest:
            bound = "zero" if lowest is None else setting("vmin", lowest)
            raise InputError(f"{vmax} is {highest:g}; give a number above {bound}.")
        if self.norm == "log" and lowest is not None and lowest <= 0:
            raise InputError(f"{vmin} is {lowest:g}; a logarithmic scale begins above zero.")
        if self.norm == "sqrt" and lowest is not None and lowest < 0:
            raise InputError(f"{vmin} is {lowest:g}; a scale of roots begins at zero or above.")

    def colours(self) -> Colormap:
        """The colour map."""
        return self.cmap if isinstance(self.cmap, Colormap) else matplotlib.colormaps[self.cmap]

    def frames(self, path: Geodesic, times: Times, grid: Grid) -> Frames:
        """The densities of a path as they are drawn, (times?, *grid.shape)."""
        return path.density(times, grid).numpy(self.mass)

    def name_of(self, path: Geodesic) -> str:
        """What the values of `frames` are called."""
        return f"density{self.note_on(path)}"

    def note_on(self, path: Geodesic) -> str:
        """Says that mass one is drawn where the given mass changes along the path; else empty."""
        masses = float(path.source.mass.detach()), float(path.target.mass.detach())
        alike = max(masses) - min(masses) <= ALIKE * max(masses)
        return "" if alike or self.mass == "given" else ", mass one"

    def scale(self, frames: Frames) -> ScalarMappable:
        """Colours for these values; those beyond either limit have the colour of the limit."""
        highest = float(frames.max()) if self.vmax is None else self.vmax
        if highest == 0 and self.vmin is None:
            highest = 1.0  # nothing is there: all has the first colour
        floor = highest * 10.0**-DECADES if self.norm == "log" else 0.0
        lowest = floor if self.vmin is None else self.vmin
        if not lowest < highest:
            raise InputError(
                f"{argument('vmin')} is {lowest:g} and the highest value drawn is {highest:.4g}; "
                f"give a smaller {argument('vmin')}, or {argument('vmax')} too."
            )
        return ScalarMappable(_norm(self.norm, lowest, highest), self.colours())


def _norm(name: str, lowest: float, highest: float) -> Normalize:
    if name == "log":
        return LogNorm(lowest, highest, clip=True)  # zeros have the first colour
    if name == "sqrt":
        return PowerNorm(0.5, lowest, highest, clip=True)
    return Normalize(lowest, highest)


def _check_name(what: str, name: object, known: list[str], examples: str) -> None:
    if isinstance(name, str) and name in known:
        return
    close = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"did you mean {close[0]!r}?" if close else f"give a name such as {examples}."
    raise InputError(f"{argument(what)} is {short_repr(name)}; {hint}")


def _limit(name: str, value: object) -> float | None:
    if value is None:
        return None
    limit = as_number(value, argument(name), "give a finite number")
    if not math.isfinite(limit):
        raise InputError(f"{argument(name)} is {limit}; give a finite number.")
    return limit


PLAIN = Look()


def error_scale(frames: Frames, unit: float) -> ScalarMappable:
    """Colours symmetric about zero; `unit` is the size of the quantity with the errors."""
    largest = max(float(np.abs(frames).max()), ROUNDING * unit)
    return ScalarMappable(Normalize(-largest, largest), ERROR_MAP)


def fit_height(axis: Axes, scale: ScalarMappable, values: Frames) -> None:
    """The height of an axis with curves, on the scale that their colours have elsewhere."""
    lowest, highest = scale.get_clim()
    if isinstance(scale.norm, LogNorm):
        axis.set_yscale("log", nonpositive="clip")
    elif isinstance(scale.norm, PowerNorm):
        axis.set_yscale("function", functions=(_root, np.square))
    elif lowest == 0 and values.min() < 0:
        return  # a negative density, an error of its solver, stays visible
    axis.set_ylim(1.05 * lowest if lowest < 0 else lowest, 1.05 * highest)


def _root(values: Frames) -> Frames:
    return np.sqrt(np.clip(values, 0, None))


def quieten(axis: Axes) -> None:
    """Thin grey frame and grey text, so that the density stands out."""
    for name, spine in axis.spines.items():
        spine.set(color=FAINT, linewidth=0.8)
        spine.set_visible(bool(axis.images) or name in ("left", "bottom"))
    axis.tick_params(color=FAINT, labelcolor=INK, labelsize="small")
    axis.xaxis.label.set_color(INK)
    axis.yaxis.label.set_color(INK)


def colour_bar(figure: Figure, scale: ScalarMappable, axes: Axes | list[Axes], label: str) -> None:
    """A colour bar right of the axes; that of logarithmic colours says where they begin."""
    if isinstance(scale.norm, LogNorm):
        label = f"{label}\nat least {scale.norm.vmin:.2g}"
    bar = figure.colorbar(scale, ax=axes, label=label, fraction=0.05, aspect=25, pad=0.02)
    if isinstance(scale.norm, PowerNorm):  # high values are close to each other
        bar.locator = MaxNLocator(3)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(color=FAINT, labelcolor=INK, labelsize="small")
    bar.ax.yaxis.label.set_color(INK)


def entitle(figure: Figure, title: str) -> None:
    """The title above all frames."""
    figure.suptitle(title, color=INK, fontsize="medium")


def title_of(path: Geodesic) -> str:
    """The solver, and the distance if it gives one."""
    sign = "≥" if path.distance_is_lower_bound else "="
    try:
        return f"{path.solver}   W₂ {sign} {float(path.distance.detach()):.4g}"
    except UnavailableError:
        return path.solver


def moment(t: float) -> str:
    """A time, as it is written on a frame."""
    return f"t = {t:.3g}"


# ---- Checks what can be drawn: one pair, at times in [0, 1], in a dimension the picture takes.


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
    check_instance(look, Look, "look", "give a geonet.plotting.Look(cmap, norm, vmin, vmax)")


def check_dimension(grid: Grid, dimension: int, what: str) -> None:
    """Refuse a picture that is made for paths of another dimension."""
    if grid.dimension != dimension:
        raise InputError(
            f"The path is {grid.dimension}D and {what} drawn in {dimension}D; "
            + either("use path.plot() for frames, which are drawn", "--plot frames is drawn")
            + " in 1D to 3D."
        )


# ---- Which way the axes of a grid run on a picture: see `Grid.drawn`.


LETTERS = ("x", "y", "z")
LONGEST = 6  # times the other side: a longer box would be a sliver, beside a bar without height
Values = TypeVar("Values", bound=np.generic)
Side = TypeVar("Side")


def upright(values: NDArray[Values], grid: Grid) -> NDArray[Values]:
    """Values (..., n, m) as rows from the top of a picture: what `imshow` takes by default."""
    return values if grid.drawn == "image" else values.swapaxes(-1, -2)[..., ::-1, :]


def across_and_along(pair: tuple[Side, Side], grid: Grid) -> tuple[Side, Side]:
    """Of a pair in the order of the axes, what belongs to the picture's width and to its height."""
    first, second = pair
    return (second, first) if grid.drawn == "image" else (first, second)


def placed(points: NDArray[np.floating], grid: Grid) -> NDArray[np.floating]:
    """Points or vectors (..., 2) as they are drawn: to the right, and along the picture's height.

    The latter counts downwards where the rows of an image do: `extent` turns the axis.
    """
    return points[..., ::-1] if grid.drawn == "image" else points


def extent(grid: Grid) -> tuple[float, float, float, float]:
    """The sides of a 2D box: left, right, bottom, top."""
    (left, low), (right, high) = (_two(corner, grid) for corner in (grid.lower, grid.upper))
    return (left, right, high, low) if grid.drawn == "image" else (left, right, low, high)


def tallness(grid: Grid) -> float:
    """Height over width of a picture of a 2D box: the box's own, but a very long box is square."""
    ratio = _ratio(grid)
    return ratio if 1 / LONGEST <= ratio <= LONGEST else 1.0


def aspect(grid: Grid) -> float:
    """How much longer a unit is along the picture's height than across."""
    return tallness(grid) / _ratio(grid)


def equally_long(grid: Grid) -> NDArray[np.float64]:
    """Lengths along the axes of a 2D box that are equally long on a picture, the longest there."""
    return np.array(grid.lengths if aspect(grid) != 1 else (grid.longest, grid.longest))


def axis_names(grid: Grid) -> tuple[str, ...]:
    """Of every axis of the grid: letters for coordinates, numbers for the axes of an array."""
    if grid.drawn == "plane" or grid.dimension == 1:
        return LETTERS[: grid.dimension]
    return tuple(f"axis {i}" for i in range(grid.dimension))


def name_box(axis: Axes, grid: Grid) -> None:
    """Ticks at the corners of a 2D box."""
    lower, upper = (_two(corner, grid) for corner in (grid.lower, grid.upper))
    setters = axis.set_xticks, axis.set_yticks
    for set_ticks, low, high in zip(setters, lower, upper, strict=True):
        set_ticks((low, high), (f"{low:.4g}", f"{high:.4g}"))


def name_axes(axis: Axes, names: tuple[str, str], grid: Grid, labelpad: float = 4) -> None:
    """The names of the two axes that are shown, in their order, beside the picture."""
    across, along = across_and_along(names, grid)
    axis.set_xlabel(across, labelpad=labelpad)
    axis.set_ylabel(along, rotation=0 if len(along) == 1 else 90)


def _ratio(grid: Grid) -> float:
    width, height = _two(grid.lengths, grid)
    return height / width


def _two(corner: tuple[float, ...], grid: Grid) -> tuple[float, float]:
    first, second = corner
    return across_and_along((first, second), grid)
