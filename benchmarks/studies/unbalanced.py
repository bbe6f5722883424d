"""Unequal masses: closed forms, limits, showers, time and bounds by kind, POT and OTT.

    make benchmark NAME=unbalanced DATA=folder RADAR=folder   # of DOTmark and of radar images
    python -m benchmarks study unbalanced --sections gaussians,diracs --quick

Prints the tables and writes benchmarks/results/unbalanced.json. `python -m benchmarks.page` copies
them to docs/unbalanced.md. Run it on an otherwise idle machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import typer

import geonet
from benchmarks.dotmark.images import Pair, read_dotmark, read_showers
from benchmarks.measurement import format_count, observe_convergence, percent_error, run_study
from benchmarks.pages import RESULTS
from benchmarks.pairs import KINDS, draw
from benchmarks.peers import (
    ENTROPIC_COSTS,
    EXACT_COST,
    Cost,
    UnbalancedConfig,
    compute_costs,
    solve_pot_mm,
)
from benchmarks.problems import (
    SHOWERS,
    Gaussian,
    dirac_cost,
    draw_showers,
    gaussian_hellinger_cost,
)
from benchmarks.results import Cell, Table
from benchmarks.timing import repeat_within
from geonet import Density, Grid
from geonet.paths import QUARTERS

MASSES = (1.0, 1.8)
GROWTHS = ("hellinger", "wfr")
GAUSSIANS = {
    "isotropic": (
        Gaussian((0.40, 0.45), (0.05**2, 0.0, 0.05**2), MASSES[0]),
        Gaussian((0.60, 0.55), (0.07**2, 0.0, 0.07**2), MASSES[1]),
    ),
    "anisotropic": (
        Gaussian((0.42, 0.50), (0.0080, 0.0030, 0.0032), MASSES[0]),
        Gaussian((0.56, 0.46), (0.0032, -0.0010, 0.0060), MASSES[1]),
    ),
}


@dataclass(frozen=True)
class Config:
    """Sizes of the problems."""

    cells: tuple[int, ...] = (64, 128)
    reaches: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
    dirac_reach: float = 0.4
    dirac_steps: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)  # distances over the side, and diagonal
    large: tuple[float, ...] = (10.0, 100.0)
    small: tuple[float, ...] = (1e-2, 1e-3)
    shower_reach: float = 0.15
    kinds: tuple[str, ...] = KINDS
    kind_cells: tuple[int, ...] = (256,)
    kind_pairs: int = 2
    kind_reach: float = 0.1
    growth: float = 1.3  # mass of the target over the source's in random pairs
    repeats: int = 2  # the best one counts
    budget: float = 10.0  # seconds for the repeats of one problem
    peer_cells: int = 32  # dense plans between 64² cells take 24 GB in POT
    peer_reaches: tuple[float, ...] = (0.1, 0.5)
    peers: UnbalancedConfig = field(default_factory=UnbalancedConfig)


QUICK = Config(
    cells=(32,),
    reaches=(0.2,),
    dirac_steps=(0.25,),
    large=(10.0,),
    small=(1e-2,),
    kinds=("smooth",),
    kind_cells=(32,),
    kind_pairs=1,
    repeats=1,
    peer_cells=16,
    peer_reaches=(0.5,),
    peers=UnbalancedConfig(epsilons=(1e-3,), max_iterations=1000, max_mm_iterations=50),
)


def main(
    data: Annotated[Path | None, typer.Option(help="Folder of DOTmark images.")] = None,
    radar: Annotated[Path | None, typer.Option(help="Folder of radar images, *.pgm.gz.")] = None,
    sections: Annotated[
        str, typer.Option(help="gaussians, diracs, limits, showers, kinds, peers.")
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Check with small problems.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Measure unbalanced geodesics against closed forms, limits, balanced solves and peers."""
    config = QUICK if quick else Config()
    measurements = {
        "gaussians": partial(measure_gaussians, config),
        "diracs": partial(measure_diracs, config),
        "limits": partial(measure_limits, config),
        "showers": partial(measure_showers, config),
        "kinds": partial(measure_kinds, config, data, radar),
        "peers": partial(measure_peers, config),
    }
    run_study("unbalanced", measurements, sections, quick, out)


# ---- closed forms


def measure_gaussians(config: Config) -> Table:
    """Return errors of the Gaussian–Hellinger cost between Gaussians."""
    rows: list[list[Cell]] = []
    for name, pair in GAUSSIANS.items():
        for cells in config.cells:
            ends = [gaussian.to_density(Grid((cells, cells))) for gaussian in pair]
            for reach in config.reaches:
                truth = gaussian_hellinger_cost(*pair, reach)
                rows.append([name, f"{cells}²", f"{reach:g}", *_compare(ends, truth, reach=reach)])
    columns = ("Gaussians", "cells", "reach", *COMPARED)
    return Table(f"Gaussians of masses {MASSES[0]:g} and {MASSES[1]:g}", columns, rows)


def measure_diracs(config: Config) -> Table:
    """Return errors of the Wasserstein–Fisher–Rao cost between single cells."""
    rows: list[list[Cell]] = []
    reach = config.dirac_reach
    for cells in config.cells:
        for step in config.dirac_steps:
            places = (cells // 8, cells // 8), (cells // 8 + round(step * cells), cells // 4)
            ends = [_draw_cell(cells, *given) for given in zip(places, MASSES, strict=True)]
            distance = float(np.hypot(*np.subtract(*places))) / cells
            truth = dirac_cost(MASSES, distance, reach)
            line = [f"{cells}²", f"{distance / reach:.3g}"]
            rows.append([*line, *_compare(ends, truth, reach=reach, growth="wfr")])
    title = f"Two cells of masses {MASSES[0]:g} and {MASSES[1]:g}, reach {reach:g}, `wfr`"
    return Table(title, ("cells", "distance over reach", *COMPARED), rows)


def _draw_cell(cells: int, place: tuple[int, int], mass: float) -> Density:
    values = np.zeros((cells, cells))
    values[place] = mass * cells**2
    return Density(values, Grid((cells, cells)))


COMPARED = ("cost, 10⁻³", "error, %", "bounds, % wide", "inside", "converged")


def _compare(ends: list[Density], truth: float, **options) -> list[Cell]:
    """Return cost, error against the truth, width of the bounds, and whether they contain it."""
    path, converged = observe_convergence(partial(geonet.geodesic, *ends, **options))
    low, high = map(float, path.cost_bounds)
    return [
        *(1e3 * float(path.cost), percent_error(path.cost, truth), 100 * (high - low) / truth),
        *("yes" if low <= truth <= high else "no", "yes" if converged else "no"),
    ]


# ---- limits and showers


def measure_limits(config: Config) -> Table:
    """Return differences to the balanced path for large reach, and to the fade for small reach.

    The limits of the cost are W2²/2 and reach²/2·∫(√μ_0 − √μ_1)².
    """
    rows: list[list[Cell]] = []
    for kind in ("smooth", "shapes"):
        source, target = (_with_mass(end, 1.0) for end in draw(kind, config.cells[-1]))
        balanced = geonet.geodesic(source, target)
        value = float(balanced.distance) ** 2 / 2
        for reach in config.large:
            path = geonet.geodesic(source, target, reach=reach)
            errors = percent_error(path.cost, value), _frame_error(path, balanced.density(0.5))
            rows.append([kind, f"{reach:g}", "balanced", *errors])
        volume, ends = source.grid.cell_volume, [np.sqrt(end.numpy()) for end in (source, target)]
        hellinger = float(((ends[0] - ends[1]) ** 2).sum() * volume)
        fade = Density((source.numpy() + target.numpy()) / 2, source.grid)
        for reach in config.small:
            path = geonet.geodesic(source, target, reach=reach)
            value = reach**2 / 2 * hellinger
            errors = percent_error(path.cost, value), _frame_error(path, fade)
            rows.append([kind, f"{reach:g}", "fade", *errors])
    columns = ("kind", "reach", "limit", "cost, %", "L1 at ½, %")
    return Table(f"Limits at {config.cells[-1]}²", columns, rows)


def _frame_error(path: geonet.Geodesic, truth: Density) -> float:
    """Return the L1 error at t = ½ of densities with their masses, in per cent."""
    frame = path.density(0.5).numpy("given")
    return 100 * float(np.abs(frame - truth.numpy()).mean())


def measure_showers(config: Config) -> Table:
    """Return the masses of a growing and a decaying shower, against each shower alone."""
    grid, rows = Grid((config.cells[-1],) * 2), []
    x = grid.axes()[0].numpy()
    first = x[:, None] + x < 1  # the other shower is beyond the diagonal
    for growth in GROWTHS:
        solve = partial(geonet.geodesic, reach=config.shower_reach, growth=growth)
        path = solve(*draw_showers(grid))
        alone = [solve(*(shower.at_end(k).to_density(grid) for k in (0, 1))) for shower in SHOWERS]
        for t in QUARTERS:
            line: list[Cell] = [growth, f"{t:g}"]
            frame = path.density(t).numpy("given") * grid.cell_volume
            for single, region in zip(alone, (first, ~first), strict=True):
                mass = float(frame[region].sum())
                line += [mass, percent_error(mass, single.density(t).mass)]
            rows.append(line)
    columns = ("growth", "t", "growing", "against it alone, %", "decaying", "against it alone, %")
    return Table(f"Two showers, reach {config.shower_reach:g}, {grid.shape[0]}²", columns, rows)


# ---- time and bounds by kind


def measure_kinds(config: Config, data: Path | None, radar: Path | None) -> Table:
    """Return time over the balanced solve and width of the bounds, medians over pairs."""
    by_kind: dict[tuple[str, int], list[Pair]] = {}
    for pair in _list_pairs(config, data, radar):
        by_kind.setdefault((pair.kind, pair.cells), []).append(pair)
    rows: list[list[Cell]] = []
    for (kind, cells), pairs in by_kind.items():
        balanced = [_time_path(pair, config) for pair in pairs]
        line: list[Cell] = [kind, f"{cells}²", 1e3 * median(balanced)]
        for growth in GROWTHS:
            ratios, widths, flags = [], [], []
            for pair, before in zip(pairs, balanced, strict=True):
                options = {"reach": config.kind_reach, "growth": growth}
                ratios.append(_time_path(pair, config, **options) / before)
                solve = partial(geonet.geodesic, pair.source, pair.target, **options)
                path, converged = observe_convergence(solve)
                low, high = map(float, path.cost_bounds)
                widths.append(100 * (high - low) / float(path.cost))
                flags.append(converged)
            line += [median(ratios), median(widths), format_count(flags)]
        rows.append(line)
    columns = ["kind", "cells", "balanced, ms"]
    for growth in GROWTHS:
        columns += [f"{growth}: time over balanced", "bounds, % wide", "converged"]
    rows.append(["median", "", *(_median_column(rows, k) for k in range(2, len(columns)))])
    return Table(f"Path and five frames, reach {config.kind_reach:g}", columns, rows)


def _list_pairs(config: Config, data: Path | None, radar: Path | None) -> Iterator[Pair]:
    """Return random pairs, images of DOTmark and radar images; the last two have given masses."""
    for cells in config.kind_cells:
        for kind in config.kinds:
            for k in range(config.kind_pairs):
                source, target = draw(kind, cells, k)
                ends = _with_mass(source, 1.0), _with_mass(target, config.growth)
                yield Pair(kind, f"{k}", *ends)
        if data is not None:
            yield from read_dotmark(data, [], [cells], [(1, 2), (3, 4)])
        if radar is not None:
            yield from read_showers(radar, [cells])


def _with_mass(density: Density, mass: float) -> Density:
    return Density(density.tensor * mass, density.grid)


def _time_path(pair: Pair, config: Config, **options) -> float:
    """Return the best time of a path with its frames at the quarters."""

    def solve(_: int) -> Density:
        return geonet.geodesic(pair.source, pair.target, **options).density(QUARTERS)

    return min(repeat_within(config.budget, config.repeats, solve).warm)


def _median_column(rows: list[list[Cell]], column: int) -> Cell:
    numbers = [row[column] for row in rows if isinstance(row[column], float)]
    return median(numbers) if numbers else None


# ---- peers


def measure_peers(config: Config) -> Table:
    """Return error and time of geonet, POT and OTT on Gaussians, at the same reach."""
    cells, rows = config.peer_cells, []
    compute_costs(cells)
    for name, pair in GAUSSIANS.items():
        ends = [gaussian.to_density(Grid((cells, cells))) for gaussian in pair]
        for reach in config.peer_reaches:
            truth = gaussian_hellinger_cost(*pair, reach)
            found = {"geonet": (None, _solve_twice(_solve_geonet, ends, reach))}
            found |= _solve_peers(ends, reach, config.peers)
            seconds = found["geonet"][1].seconds
            for label, (epsilon, cost) in found.items():
                rows.append(
                    [
                        *(name, f"{reach:g}", label, epsilon and f"{epsilon:g}"),
                        *(percent_error(cost.cost, truth), 1e3 * cost.seconds),
                        *(cost.seconds / seconds, "yes" if cost.converged else "no"),
                    ]
                )
    columns = ("Gaussians", "reach", "method", "ε", "error, %", "ms", "over geonet", "converged")
    return Table(f"Cost of the plan without entropy, {cells}²", columns, rows)


def _solve_geonet(ends: list[Density], reach: float) -> Cost:
    start = perf_counter()
    path, converged = observe_convergence(partial(geonet.geodesic, *ends, reach=reach))
    return Cost(float(path.cost), perf_counter() - start, converged)


def _solve_peers(
    ends: list[Density], reach: float, config: UnbalancedConfig
) -> dict[str, tuple[float | None, Cost]]:
    """Return ε and the cost by method; ε has the smallest cost among those that converge."""
    found: dict[str, tuple[float | None, Cost]] = {}
    for label, solve in ENTROPIC_COSTS.items():
        if "OTT" in label and find_spec("ott") is None:
            continue
        tried = [(eps, _solve_twice(solve, *ends, reach, eps, config)) for eps in config.epsilons]
        tried = [entry for entry in tried if np.isfinite(entry[1].cost)]
        good = [entry for entry in tried if entry[1].converged] or tried
        if good:
            found[label] = min(good, key=lambda entry: entry[1].cost)
    found[EXACT_COST] = (None, solve_pot_mm(*ends, reach, 0.0, config))
    return found


def _solve_twice(solve: Callable[..., Cost], *given) -> Cost:
    """Return the second answer: the first call compiles code."""
    solve(*given)
    return solve(*given)


if __name__ == "__main__":
    typer.run(main)
