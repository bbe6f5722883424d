"""Pictures of the comparison: error against time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.any_pair.records import AnyPairs
from benchmarks.records import (
    Benchmark,
    Measurement,
    find_pareto_front,
    select_setting,
)
from benchmarks.results import save_figure
from benchmarks.suites import SUITES, TIMES
from benchmarks.tables import describe_setting
from geonet._files import atomic_write
from geonet.plotting import FAINT, INK, despine

ORANGE, SKY, GREEN, BLUE = "#E69F00", "#56B4E9", "#009E73", "#0072B2"  # Okabe and Ito's colours,
RED, PURPLE, BLACK, GREY = (
    "#D55E00",
    "#CC79A7",
    "#000000",
    "#999999",
)  # distinguishable for all readers
STYLES = {  # by the name without its dimension; circles are learned
    "auto": (RED, "*"),
    "midpoint": (BLACK, "o"),
    "back-and-forth": (BLACK, "D"),
    "transport": (RED, "o"),
    "geonet": (BLUE, "o"),
    "deeponet": (SKY, "o"),
    "quantile": (GREEN, "D"),
    "monge-ampere": (GREEN, "s"),
    "linear-program": (ORANGE, "^"),
    "schrodinger": (PURPLE, "v"),
    "barycenter": (BLACK, "X"),
    "debiased-barycenter": (BLUE, "P"),
    "ott-barycenter": (ORANGE, "X"),
    "linear": (GREY, "s"),
    "pinn": (SKY, "<"),
    "flow-matching": (PURPLE, ">"),
    "rectified-flow": (GREEN, ">"),
}
OTHER = (RED, "d")
FLOOR = 1e-3  # percent: the truth is no better than that
PANEL, LETTER, LINE = (330, 260), 4.5, 9  # points, nearly: a panel, a letter, a line of its labels
Draw = Callable[
    [Axes, str, Sequence[Measurement]], str | None
]  # gives the title, if it drew anything


def make_figures(found: Benchmark) -> dict[str, Figure]:
    """Return the figures by name, without empty ones."""
    rows = [row for row in found.settings if row.solver != "auto"]  # delegates to another solver
    drawn = {
        "any": _any_pair(found.any),
        "pareto": _panels(rows, _draw_front),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def save_figures(found: Benchmark, folder: Path) -> list[Path]:
    """Write benchmark-NAME.png for every figure."""
    files = []
    for name, figure in make_figures(found).items():
        files.append(folder / f"benchmark-{name}.png")
        with atomic_write(files[-1]) as temporary:
            save_figure(figure, temporary)
    return files


def _any_pair(found: AnyPairs | None) -> Figure | None:
    """Draw error over time for each grid: medians, and small points for the kinds."""
    if found is None or not found.answers:
        return None
    figure = Figure(figsize=(3.6 * len(found.finer), 4.2), layout="constrained")
    panels = figure.subplots(1, len(found.finer), sharey=True, squeeze=False)[0]
    for axis, cells in zip(panels, found.finer, strict=True):
        rows = [row for row in found.answers if row.cells == cells]
        for solver in dict.fromkeys(row.solver for row in found.answers):
            own = [row for row in rows if row.solver == solver]
            kinds = dict.fromkeys(row.kind for row in own)
            groups = [[row for row in own if row.kind == kind] for kind in kinds]
            colour, marker = _style(solver)
            for group, size, label in [*((g, 9, None) for g in groups), (own, 60, solver)]:
                if group:
                    ms = median(1e3 * row.seconds for row in group)
                    error = max(median(row.frame_percent for row in group), FLOOR)
                    axis.scatter(ms, error, size, colour, marker=marker, label=label, lw=0)
        axis.set(xscale="log", yscale="log", xlabel="ms per pair")
        axis.set_title(f"{cells}² cells", color=INK, fontsize="medium")
        _finish(axis)
    panels[0].set_ylabel("L1 error of frames on 16² blocks, %")
    _legend(figure, panels, 4)
    return figure


def _panels(rows: Sequence[Measurement], draw: Draw) -> Figure | None:
    """Return a panel for each suite with something to draw, and a legend for all."""
    own = {name: [row for row in rows if row.suite == name] for name in SUITES}
    own = {name: found for name, found in own.items() if draw(Figure().subplots(), name, found)}
    if not own:
        return None
    figure = Figure(figsize=(5.4 * len(own), 5.0), layout="constrained")
    panels = figure.subplots(1, len(own), squeeze=False)[0]
    for axis, (name, found) in zip(panels, own.items(), strict=True):
        axis.set_title(draw(axis, name, found) or "", color=INK, fontsize="medium")
        _finish(axis)
    _legend(figure, panels, 4 * len(own) // 2 + 1)
    return figure


def _legend(figure: Figure, panels: Sequence[Axes], columns: int) -> None:
    """Return one for all panels, below them."""
    entries = {
        label: handle
        for axis in panels
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize="small",
        labelcolor=INK,
    )


def _draw_front(axis: Axes, suite: str, rows: Sequence[Measurement]) -> str | None:
    """Return error over time at the reference size, a point for each row, and the front."""
    own = select_setting(rows, suite, SUITES[suite].reference)
    if not own:
        return None
    front = find_pareto_front(own)
    x, y = [1e3 * row.seconds for row in front], [_clip_to_floor(row) for row in front]
    # nothing is below this line or left of it
    axis.step([*x, 1e3 * own[-1].seconds], [*y, y[-1]], where="post", color=FAINT, lw=1.2, zorder=0)
    for solver in dict.fromkeys(row.solver for row in own):
        points = [row for row in own if row.solver == solver]
        colour, marker = _style(solver)
        axis.scatter(
            [1e3 * row.seconds for row in points],
            [_clip_to_floor(row) for row in points],
            c=colour,
            marker=marker,
            s=44,
            linewidths=0.4,
            edgecolors="white",
            label=_family(solver),
        )
    axis.set(xscale="log", yscale="log", xlabel="ms per pair", ylabel="L1 error, %")
    low, high = axis.get_xlim()
    axis.set_xlim(low / (high / low) ** 0.2, high)  # room for the first label
    low, high = axis.get_ylim()
    axis.set_ylim(low / (high / low) ** 0.1, high)
    _label_front(axis, front)
    return f"{describe_setting(suite, SUITES[suite].reference)}, one pair, {TIMES} times"


def _label_front(axis: Axes, front: Sequence[Measurement]) -> None:
    """Write names below and left of the points, without overlap."""
    before_x, before_y = -np.inf, np.inf
    for row in front:
        place = (1e3 * row.seconds, _clip_to_floor(row))
        x, y = axis.transAxes.inverted().transform(axis.transData.transform(place)) * PANEL
        in_the_way = x - LETTER * len(row.label) < before_x
        lower = min(y - 4, before_y - LINE) if in_the_way else y - 4
        axis.annotate(
            row.label,
            place,
            xytext=(-4, lower - y),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize="x-small",
            color=INK,
        )
        before_x, before_y = x, lower


def _clip_to_floor(row: Measurement) -> float:
    """Return the error at which a point is drawn."""
    return max(row.l1_percent, FLOOR)


def _finish(axis: Axes) -> None:
    despine(axis)
    axis.tick_params(which="minor", color=FAINT, labelcolor=INK, labelsize="x-small")
    axis.grid(color=FAINT, lw=0.4, alpha=0.6)
    axis.set_axisbelow(True)


def _family(solver: str) -> str:
    """Return the name without its dimension, or a model's without its folder."""
    return Path(solver).stem.removesuffix("-1d").removesuffix("-2d")


def _style(solver: str) -> tuple[str, str]:
    return STYLES.get(_family(solver), OTHER)
