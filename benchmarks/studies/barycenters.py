"""Barycenters: accuracy, gaps between objective and lower bound, times, and POT in the same run.

    make benchmark NAME=barycenters DATA=folder   # of DOTmark, for gaps of its images
    python -m benchmarks study barycenters --sections accuracy,times --quick

Prints the tables and writes benchmarks/results/barycenters.json and a picture. `python -m
benchmarks.page` copies them to docs/barycenters.md. Run it on an otherwise idle machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure

import geonet
from benchmarks.dotmark.images import read_dotmark
from benchmarks.measurement import format_count, observe_convergence, percent_error, run_study
from benchmarks.pages import RESULTS
from benchmarks.pairs import draw
from benchmarks.peers import (
    ENTROPIC,
    FREE_SUPPORT,
    BarycenterConfig,
    Centre,
    solve_entropic,
    solve_free_support,
)
from benchmarks.problems import (
    Gaussian,
    average_gaussians,
    draw_digits,
    draw_lumps,
    draw_shape,
    draw_shapes,
)
from benchmarks.results import Cell, Table, save_figure
from benchmarks.timing import measure_median, repeat_within
from geonet import Density, Grid
from geonet._files import atomic_write
from geonet.errors import ConvergenceError
from geonet.metrics import l1
from geonet.plotting import DENSITY_MAP

GEONET = "geonet"
PICTURE = "barycenters-peers.png"
WEIGHTS = (0.5, 0.3, 0.2)
GAUSSIANS = (
    Gaussian((0.42, 0.50), (0.010, 0.004, 0.004)),
    Gaussian((0.55, 0.45), (0.004, 0.000, 0.012)),
    Gaussian((0.50, 0.58), (0.006, -0.003, 0.008)),
)
TRANSLATES = ((0.3, 0.3), (0.6, 0.35), (0.4, 0.65))
SMOOTH = ("smooth", "moderate", "log-normal")  # kinds of benchmarks.pairs


@dataclass(frozen=True)
class Config:
    """Sizes of the problems."""

    accuracy_cells: tuple[int, ...] = (64, 128)
    gap_cells: int = 128
    time_cells: tuple[int, ...] = (64, 256, 512, 1024)
    repeats: int = 3  # the best one counts
    budget: float = 20.0  # seconds for the repeats of one problem
    digit_cells: tuple[int, ...] = (28, 128)
    digit_weights: int = 25
    shape_cells: int = 64
    slow_weights: int = 2  # weights for methods of POT that take several seconds each
    log_cells: int = 28  # cells up to which the log domain is measured; 64² takes half a minute
    fast_cells: int = 64  # cells above which every method of POT is slow
    pictures: int = 2  # barycenters of each problem in the picture
    peers: BarycenterConfig = field(default_factory=BarycenterConfig)


QUICK = Config(
    accuracy_cells=(32,),
    gap_cells=32,
    time_cells=(32,),
    repeats=1,
    digit_cells=(14,),
    digit_weights=2,
    shape_cells=16,
    slow_weights=1,
    pictures=2,
    peers=BarycenterConfig(regs=(4e-3, 8e-3), max_iterations=200, max_support=60),
)


def main(
    data: Annotated[Path | None, typer.Option(help="Folder of DOTmark images.")] = None,
    sections: Annotated[str, typer.Option(help="accuracy, gaps, times, peers.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Check with small problems.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Measure barycenters of exact problems, images, shapes and digits, and POT's."""
    config = QUICK if quick else Config()
    measurements = {
        "accuracy": partial(measure_accuracy, config),
        "gaps": partial(measure_gaps, config, data),
        "times": partial(measure_times, config),
        "peers": partial(measure_peers, config, out),
    }
    run_study("barycenters", measurements, sections, quick, out)


# ---- exact problems


@dataclass(frozen=True)
class ExactProblem:
    """Densities whose barycenter and objective Σ w_i W2² are known."""

    densities: Sequence[Density]
    weights: Sequence[float]
    truth: Density
    objective: float


def measure_accuracy(config: Config) -> Table:
    """Return errors of density and objective on exact problems, and N = 2 against geodesics."""
    rows: list[list[Cell]] = []
    for name, make in EXACT_PROBLEMS.items():
        for cells in config.accuracy_cells:
            problem = make(Grid((cells, cells)))
            call = partial(geonet.barycenter, problem.densities, problem.weights)
            found, converged = observe_convergence(call)
            rows.append(
                [
                    *(name, f"{cells}²", 100 * float(l1(found.density, problem.truth))),
                    percent_error(found.objective, problem.objective),
                    *(100 * float(found.gap), "yes" if converged else "no"),
                ]
            )
    columns = ("problem", "cells", "L1, %", "objective, %", "gap, %", "converged")
    return Table("Errors against exact barycenters", columns, rows)


def _make_translates(draw_at: Callable[[tuple[float, float], Grid], Density], grid: Grid):
    places = np.array(TRANSLATES)
    middle = np.array(WEIGHTS) @ places
    value = float(np.array(WEIGHTS) @ ((places - middle) ** 2).sum(-1))
    densities = [draw_at((x, y), grid) for x, y in TRANSLATES]
    return ExactProblem(densities, WEIGHTS, draw_at((middle[0], middle[1]), grid), value)


def _make_gaussians(grid: Grid) -> ExactProblem:
    densities = [gaussian.to_density(grid) for gaussian in GAUSSIANS]
    return ExactProblem(densities, WEIGHTS, *average_gaussians(GAUSSIANS, WEIGHTS, grid))


def _make_pair(kind: str, grid: Grid, t: float = 0.3) -> ExactProblem:
    """Return two densities with weights (1 − t, t): the truth is the geodesic at t."""
    pair = draw(kind, grid.shape[0])
    path = geonet.geodesic(*pair)
    value = t * (1 - t) * float(path.distance) ** 2
    return ExactProblem(pair, (1 - t, t), path.density(t), value)


EXACT_PROBLEMS: dict[str, Callable[[Grid], ExactProblem]] = {
    "translates of a smooth lump": partial(_make_translates, draw_lumps),
    "translates of a disc": partial(
        _make_translates, lambda centre, grid: draw_shape("disc", grid, centre, 0.5)
    ),
    "Gaussians of any covariance": _make_gaussians,
    "two smooth densities against the geodesic": partial(_make_pair, "smooth"),
    "two shapes against the geodesic": partial(_make_pair, "shapes"),
}


# ---- gaps and times


def measure_gaps(config: Config, data: Path | None) -> Table:
    """Return the gap between objective and lower bound, with equal weights."""
    cells, rows = config.gap_cells, []
    for name, densities in _list_inputs(cells, data).items():
        found, converged = observe_convergence(partial(geonet.barycenter, densities))
        line = [name, len(densities), 100 * float(found.gap), "yes" if converged else "no"]
        rows.append(line)
    columns = ("densities", "number", "(objective − lower bound)/objective, %", "converged")
    return Table(f"Gaps at {cells}²", columns, rows)


def _list_inputs(cells: int, data: Path | None) -> dict[str, list[Density]]:
    inputs = {f"{kind} fields": _draw_four(kind, cells) for kind in SMOOTH}
    inputs["disc, ring, square, cross"] = draw_shapes(cells)
    inputs["other shapes"] = _draw_four("shapes", cells)
    inputs["ten digits"] = draw_digits(cells)
    pairs = [] if data is None else read_dotmark(data, [], [cells], [(1, 2), (3, 4)])
    for pair in pairs:
        inputs.setdefault(f"DOTmark: {pair.kind}", []).extend((pair.source, pair.target))
    return inputs


def _draw_four(kind: str, cells: int) -> list[Density]:
    return [density for k in (0, 1) for density in draw(kind, cells, k)]


def measure_times(config: Config) -> Table:
    """Return the best time of the barycenter of four shapes, and the time of its bounds."""
    rows: list[list[Cell]] = []
    for cells in config.time_cells:
        densities = draw_shapes(cells)
        calls = repeat_within(
            *(config.budget, config.repeats, lambda _: geonet.barycenter(densities).density)  # noqa: B023
        )
        found, converged = observe_convergence(partial(geonet.barycenter, densities))
        bounds = measure_median(lambda: found.gap)  # noqa: B023
        line = [f"{cells}²", min(calls.warm), len(calls.warm), bounds]
        rows.append([*line, 100 * float(found.gap), "yes" if converged else "no"])
    columns = ("cells", "s, best", "of", "bounds, s", "gap, %", "converged")
    return Table("Disc, ring, square and cross, equal weights", columns, rows)


# ---- peers


@dataclass(frozen=True)
class Run:
    """Barycenters of one method for the first weights; None for those that failed."""

    label: str
    reg: float | None
    centres: Sequence[Centre | None]


def measure_peers(config: Config, folder: Path) -> Table:
    """Return time and objective of geonet and POT on digits and shapes; draw their barycenters."""
    weights = np.random.default_rng(0).dirichlet(np.ones(10), config.digit_weights)
    problems = {f"ten digits, {n}²": (draw_digits(n), weights) for n in config.digit_cells}
    n = config.shape_cells
    problems[f"four shapes, {n}²"] = draw_shapes(n), np.full((1, 4), 0.25)
    rows: list[list[Cell]] = []
    columns: list[dict[str, Density]] = []
    for name, (densities, weights) in problems.items():
        runs = run_methods(densities, weights, config)
        objectives = {run.label: evaluate_run(run, densities, weights) for run in runs}
        rows += [[name, *_summarise(run, runs[0], objectives)] for run in runs]
        for k in range(min(config.pictures, len(weights))):
            columns.append({r.label: c.density for r in runs for c in r.centres[k : k + 1] if c})
    with atomic_write(folder / PICTURE) as temporary:
        save_figure(draw_centres(columns), temporary)
    header = ("inputs", "method", "reg", "weights", "ms each", "over geonet", "objective, 10⁻³")
    header += ("over geonet's, %", "its bounds, % wide", "converged")
    return Table("Barycenters by geonet and POT", header, rows)


def run_methods(densities: Sequence[Density], weights: np.ndarray, config: Config) -> list[Run]:
    """Return the runs of geonet and of POT's methods, geonet first."""
    runs = [Run(GEONET, None, solve_geonet(densities, weights))]
    cells = densities[0].grid.shape[0]
    for label, (function, method) in ENTROPIC.items():
        is_slow = cells > config.fast_cells or method == "sinkhorn_log"
        if method == "sinkhorn_log" and cells > config.log_cells:
            continue
        solve = partial(solve_entropic, config=config.peers, function=function, method=method)
        few = weights[: config.slow_weights] if is_slow else weights
        if (reg := choose_reg(solve, densities, weights[0], config)) is not None:
            runs.append(Run(label, reg, [_try(solve, densities, each, reg) for each in few]))
    few = weights[: config.slow_weights] if cells > config.fast_cells else weights
    centres = [solve_free_support(densities, each, config.peers) for each in few]
    return [*runs, Run(FREE_SUPPORT, None, centres)]


def solve_geonet(densities: Sequence[Density], weights: np.ndarray) -> list[Centre | None]:
    """Return barycenters for all weights from one call, with equal shares of its time.

    It is the second call, as POT's functions are called before by `choose_reg`.
    """

    def solve() -> list[Density]:
        return [found.density for found in geonet.barycenter(densities, weights)]

    solve()
    start = perf_counter()
    found, converged = observe_convergence(solve)
    seconds = (perf_counter() - start) / len(weights)
    return [Centre(each, seconds, converged) for each in found]


def choose_reg(
    solve: Callable[..., Centre], densities: Sequence[Density], weights: np.ndarray, config: Config
) -> float | None:
    """Return the reg with the smallest objective among those that converge; None if none does."""
    objectives = {}
    for reg in config.peers.regs:
        centre = _try(solve, densities, weights, reg)
        if centre is not None and centre.converged:
            objectives[reg] = evaluate_objective(centre.density, densities, weights)[0]
    return min(objectives, key=lambda reg: objectives[reg]) if objectives else None


def _try(solve: Callable[..., Centre], *given) -> Centre | None:
    try:
        return solve(*given)
    except ConvergenceError:
        return None


Bounded = tuple[float, float, float]  # a value with its lower and its upper bound


def evaluate_run(run: Run, densities: Sequence[Density], weights: np.ndarray) -> list[Bounded]:
    """Return the objectives of the barycenters that a run found; NaN for the others."""
    return [
        (np.nan,) * 3 if c is None else evaluate_objective(c.density, densities, each)
        for c, each in zip(run.centres, weights, strict=False)
    ]


def evaluate_objective(
    centre: Density, densities: Sequence[Density], weights: np.ndarray
) -> Bounded:
    """Return Σ w_i W2²(centre, μ_i) by geodesics, with bounds, the same way for every method."""
    total = np.zeros(3)
    for weight, density in zip(weights, densities, strict=True):
        if weight > 0:
            report = geonet.geodesic(centre, density).report
            bounds = report.distance_lower_bound, report.distance_upper_bound
            total += weight * np.array([report.distance, *bounds]) ** 2
    return float(total[0]), float(total[1]), float(total[2])


def _summarise(run: Run, ours: Run, objectives: dict[str, list[Bounded]]) -> list[Cell]:
    """Return the cells of a run; ratios to geonet are for the same weights."""
    known = [k for k, centre in enumerate(run.centres) if centre is not None]
    seconds = mean(centre.seconds for centre in run.centres if centre is not None)
    own, reference = ([objectives[each.label][k] for k in known] for each in (run, ours))
    ratios = [a[0] / b[0] for a, b in zip(own, reference, strict=True)]
    first = next(centre for centre in ours.centres if centre is not None)
    return [
        *(run.label, run.reg and f"{run.reg:g}", len(run.centres), 1e3 * seconds),
        *(seconds / first.seconds, 1e3 * mean(value for value, _, _ in own)),
        100 * (mean(ratios) - 1),
        100 * mean((high - low) / value for value, low, high in own),
        format_count([c is not None and c.converged for c in run.centres]),
    ]


def draw_centres(columns: Sequence[dict[str, Density]]) -> Figure:
    """Draw barycenters: one row per method, one column per problem."""
    labels = list(dict.fromkeys(label for column in columns for label in column))
    figure = Figure(figsize=(1.3 * len(columns) + 1.6, 1.3 * len(labels)), layout="constrained")
    axes = figure.subplots(len(labels), len(columns), squeeze=False)
    for line, label in zip(axes, labels, strict=True):
        line[0].set_ylabel(
            label.replace(" (", "\n("), rotation=0, ha="right", va="center", fontsize=8
        )
        for panel, column in zip(line, columns, strict=True):
            panel.set(xticks=[], yticks=[], frame_on=False)
            if label in column:
                panel.imshow(column[label].numpy(), cmap=DENSITY_MAP, vmin=0)
    return figure


if __name__ == "__main__":
    typer.run(main)
