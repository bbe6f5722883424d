"""Time for a pair against POT's, on grids of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from matplotlib.figure import Figure

from benchmarks.results import Cell, Result, Spread, Table, format_digits
from experiments.paper.experiments import Conditions
from geonet.density import Density
from geonet.evaluation import SEED
from geonet.grid import Grid
from geonet.mixture import BOX_1D, BOX_2D, GaussianMixture, mixtures_1d, mixtures_2d
from geonet.solvers.base import Solver
from geonet.solvers.registry import make_solver


@dataclass(frozen=True)
class Race:
    """One dimension: the paper's number of times, and the threshold at which it stops POT."""

    dimension: int
    family: Callable[..., GaussianMixture]
    box: Grid
    sizes: tuple[int, ...]
    times: int
    early: float
    exact: str


RACES = (
    Race(1, mixtures_1d, BOX_1D, (50, 100, 200), 20, 0.5, "quantile"),
    Race(2, mixtures_2d, BOX_2D, (40, 50, 64), 5, 10.0, "monge-ampere"),
)


def runtime(conditions: Conditions) -> Result:
    """Measure milliseconds per path, one pair at a time: mean and standard deviation."""
    tables, curves = [], {}
    for race in RACES:
        sizes = race.sizes[:: conditions.count(1, 2)]
        found = {name: {} for name in _entrants(race, conditions)}
        for cells in sizes:
            pairs = _pairs(race, cells, conditions.count(30, 2))
            for name, solver in _entrants(race, conditions).items():
                found[name][cells] = _milliseconds(solver, pairs, race.times)
        title = f"{race.dimension}D, {race.times} times, milliseconds a pair"
        columns = ("cells a side", *map(str, sizes))
        tables.append(Table(title, columns, [[n, *row.values()] for n, row in found.items()]))
        tables.append(_ratios(found, race, columns))
        curves[race.dimension] = found
    count = conditions.count(30, 2)
    remark = f"{count} pairs on {torch.get_num_threads()} threads, all in one run."
    return Result("runtime", "Time for a path", conditions.quick, tables, [remark], _figure(curves))


def _entrants(race: Race, conditions: Conditions) -> dict[str, Solver]:
    d = race.dimension
    return {
        "POT": make_solver("barycenter"),
        f"POT, stopped at {race.early:g}": make_solver("barycenter", tolerance=race.early),
        race.exact: make_solver(race.exact),
        f"geonet-{d}d": make_solver(conditions.solver(f"geonet-{d}d")),
        f"transport-{d}d": make_solver(conditions.solver(f"transport-{d}d")),
    }


def _pairs(race: Race, cells: int, count: int) -> list[tuple[Density, Density]]:
    grid = race.box.with_shape(cells)
    mixtures = race.family(2 * count, torch.Generator().manual_seed(SEED))
    values = [mixtures[k].to_density(grid).tensor for k in range(2 * count)]
    ends = [Density(end, grid) for end in values]  # cells alone, without the formula
    return list(zip(ends[:count], ends[count:], strict=True))


def _milliseconds(solver: Solver, pairs: list[tuple[Density, Density]], times: int) -> Spread:
    moments = torch.linspace(0, 1, times, dtype=torch.float64)
    solver(*pairs[0]).density(moments)  # imports, caches
    taken = []
    for source, target in pairs:
        began = perf_counter()
        solver(source, target).density(moments)
        taken.append(1000 * (perf_counter() - began))
    measured = torch.tensor(taken, dtype=torch.float64)
    return Spread(float(measured.mean()), float(measured.std()))


def _ratios(found: dict[str, dict[int, Spread]], race: Race, columns: tuple[str, ...]) -> Table:
    """Return the speed relative to POT."""
    rows: list[list[Cell]] = []
    for name in (f"geonet-{race.dimension}d", f"transport-{race.dimension}d"):
        for against in list(found)[:2]:
            ratios = [
                format_digits(a.mean / b.mean)
                for a, b in zip(found[against].values(), found[name].values(), strict=True)
            ]
            rows.append([f"{against} / {name}", *ratios])
    return Table(f"{race.dimension}D, times as fast", columns, rows)


def _figure(curves: dict[int, dict[str, dict[int, Spread]]]) -> Figure:
    """Draw the times, linear above and logarithmic below."""
    figure = Figure(figsize=(9, 6.4), layout="constrained")
    axes = figure.subplots(2, len(curves))
    for column, (d, found) in zip(axes.T, curves.items(), strict=True):
        for axis, scale in zip(column, ("linear", "log"), strict=True):
            for name, row in found.items():
                mean, sd = ([getattr(c, key) for c in row.values()] for key in ("mean", "sd"))
                axis.errorbar(list(row), mean, sd, label=name, marker=".", lw=1, capsize=2)
            axis.set(xscale=scale, yscale=scale, xlabel="cells a side", ylabel="ms a pair")
            axis.set_title(f"{d}D")
    axes[0][0].legend(frameon=False, fontsize="x-small")
    axes[0][1].legend(frameon=False, fontsize="x-small")
    return figure
