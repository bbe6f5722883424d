"""Periodic axes: shapes across the seam, shifts of both ends, known maps, the circle against POT.

    make benchmark NAME=periodic
    python -m benchmarks study periodic --sections seam,circle --quick

Prints the tables and writes benchmarks/results/periodic.json. `python -m benchmarks.page` copies
them to docs/periodic.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import ot
import typer

import geonet
from benchmarks.measurement import percent_error, run_study
from benchmarks.pages import RESULTS
from benchmarks.problems import (
    CIRCLE_MAPS,
    Gaussian,
    draw_circle_maps,
    draw_shape,
)
from benchmarks.results import Cell, Table
from benchmarks.timing import repeat_within
from geonet import Density, Grid
from geonet.metrics import l1

BETWEEN = (0.25, 0.5, 0.75)
AXES = {"both axes": (True, True), "axis 0": (True, False), "axis 1": (False, True)}


@dataclass(frozen=True)
class Config:
    """Sizes of the problems."""

    cells: tuple[int, ...] = (64, 128)
    shifts: tuple[tuple[int, int], ...] = ((1, 0), (5, 17), (32, 32))  # in cells
    circle_cells: tuple[int, ...] = (64, 1024)
    atoms: int = 64  # for POT, in each cell of the circle
    repeats: int = 5  # the best one counts
    budget: float = 5.0  # seconds for the repeats of one problem


QUICK = Config(cells=(32,), shifts=((5, 17),), circle_cells=(32,), atoms=8, repeats=1)


def main(
    sections: Annotated[str, typer.Option(help="seam, shifts, maps, circle.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Check with small problems.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Measure periodic axes against walls, shifts, known maps and POT."""
    config = QUICK if quick else Config()
    measurements = {
        "seam": partial(measure_seam, config),
        "shifts": partial(measure_shifts, config),
        "maps": partial(measure_maps, config),
        "circle": partial(measure_circle, config),
    }
    run_study("periodic", measurements, sections, quick, out)


# ---- the seam and shifts


def _draw_pair(name: str, grid: Grid) -> tuple[Density, Density]:
    """Return a pair in the middle, so small that no way around the box is shorter."""
    if name == "Gaussians":
        source = Gaussian((0.44, 0.47), (0.0030, 0.0010, 0.0020))
        target = Gaussian((0.55, 0.52), (0.0016, -0.0004, 0.0028))
        return source.to_density(grid), target.to_density(grid)
    first, second = name.split(" to ")
    return (
        draw_shape(first, grid, (0.45, 0.48), 0.5),
        draw_shape(second, grid, (0.54, 0.53), 0.5),
    )


PAIRS = ("Gaussians", "disc to ring", "square to cross")


def measure_seam(config: Config) -> Table:
    """Return differences between pairs across the seam and the same pairs between walls."""
    rows: list[list[Cell]] = []
    for cells in config.cells:
        for name in PAIRS:
            walls = geonet.geodesic(*_draw_pair(name, Grid((cells, cells))))
            for label, periodic in AXES.items():
                grid = Grid((cells, cells), periodic=periodic)
                shift = [cells // 2 if wraps else 0 for wraps in periodic]
                ends = [_roll(end, shift, grid) for end in _draw_pair(name, grid)]
                path, back = geonet.geodesic(*ends), [-k for k in shift]
                errors = [
                    float(l1(_roll(path.density(t), back, grid), _regrid(walls.density(t), grid)))
                    for t in BETWEEN
                ]
                distance = percent_error(path.distance, walls.distance)
                rows.append([name, f"{cells}²", label, 100 * max(errors), distance])
    columns = ("pair", "cells", "periodic", "L1 at ¼, ½, ¾: largest, %", "W2, %")
    return Table("Pairs across the seam against the same pairs in the middle", columns, rows)


def measure_shifts(config: Config) -> Table:
    """Return changes of the path if both ends are shifted by whole cells."""
    rows: list[list[Cell]] = []
    for cells in config.cells:
        grid = Grid((cells, cells), periodic=True)
        for name in PAIRS:
            ends = _draw_pair(name, grid)
            path = geonet.geodesic(*ends)
            for shift in config.shifts:
                moved = geonet.geodesic(*(_roll(end, shift, grid) for end in ends))
                back = _roll(moved.density(0.5), [-k for k in shift], grid)
                change = abs(float(moved.distance) / float(path.distance) - 1)
                error = float(l1(back, path.density(0.5)))
                label = f"{shift[0]}, {shift[1]}"
                rows.append([name, f"{cells}²", label, f"{change:.1e}", f"{error:.1e}"])
    columns = ("pair", "cells", "cells shifted", "relative change of W2", "L1 at ½")
    return Table("Shifts of both ends", columns, rows)


def _roll(density: Density, shift: tuple[int, ...] | list[int], grid: Grid) -> Density:
    """Return a density on a periodic grid, shifted by whole cells."""
    return Density(density.tensor.roll(tuple(shift), tuple(range(len(shift)))), grid)


def _regrid(density: Density, grid: Grid) -> Density:
    return Density(density.tensor, grid)


# ---- known maps


def measure_maps(config: Config) -> Table:
    """Return errors on products of periodic 1D maps, whose frames are exact in cells."""
    rows: list[list[Cell]] = []
    problems = [(1, n) for n in config.circle_cells] + [(2, n) for n in config.cells]
    for dimension, cells in problems:
        grid, maps = Grid((cells,) * dimension, periodic=True), CIRCLE_MAPS[:dimension]
        path = geonet.geodesic(*(draw_circle_maps(maps, t, grid) for t in (0.0, 1.0)))
        errors = [
            100 * float(l1(path.density(t), draw_circle_maps(maps, t, grid))) for t in BETWEEN
        ]
        truth = sum(each.squared_distance for each in maps) ** 0.5
        label = f"{cells}²" if dimension == 2 else f"{cells}"
        rows.append([label, *errors, percent_error(path.distance, truth)])
    return Table("Known maps", ("cells", "L1 at ¼, %", "½", "¾", "W2, %"), rows)


# ---- the circle


def measure_circle(config: Config) -> Table:
    """Return W2 on the circle by geonet and by POT's binary search, with time."""
    rows: list[list[Cell]] = []
    for cells in config.circle_cells:
        grid = Grid((cells,), periodic=True)
        for name, make in CIRCLES.items():
            source, target = make(grid)
            solve = partial(geonet.geodesic, source, target)
            own = repeat_within(config.budget, config.repeats, lambda _: solve().distance)  # noqa: B023
            atoms = [_list_atoms(end, config.atoms) for end in (source, target)]
            peer = repeat_within(config.budget, config.repeats, lambda _: _solve_pot(*atoms))  # noqa: B023
            values = float(solve().distance), _solve_pot(*atoms)
            difference = f"{abs(values[0] / values[1] - 1):.1e}"
            times = [1e3 * min(calls.warm) for calls in (own, peer)]
            rows.append([name, cells, f"{values[0]:.6f}", f"{values[1]:.6f}", difference, *times])
    columns = ("pair", "cells", "W2, geonet", "W2, POT", "relative difference", "geonet, ms")
    title = f"The circle; POT has {config.atoms} atoms in each cell"
    return Table(title, (*columns, "POT, ms"), rows)


def _solve_pot(source: tuple[np.ndarray, np.ndarray], target: tuple[np.ndarray, np.ndarray]):
    cost = ot.wasserstein_circle(source[0], target[0], source[1], target[1], p=2, eps=1e-12)
    return float(np.asarray(cost).item()) ** 0.5


def _list_atoms(density: Density, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and masses of atoms that are spread evenly over every cell with mass."""
    masses = np.repeat(density.numpy().astype(np.float64), count)
    places = (np.arange(len(masses)) + 0.5) / len(masses)
    return places[masses > 0], masses[masses > 0] / masses.sum()


def _make_noise(grid: Grid) -> tuple[Density, Density]:
    values = np.random.default_rng(0).uniform(size=(2, *grid.shape))
    return Density(values[0], grid), Density(values[1], grid)


def _make_bumps(grid: Grid) -> tuple[Density, Density]:
    """Return a bump on either side of the seam; the way through the seam is shorter."""
    x = (np.arange(grid.shape[0]) + 0.5) / grid.shape[0]
    bumps = [np.maximum(0.1 - np.abs(x - centre), 0) for centre in (0.1, 0.85)]
    return Density(bumps[0], grid), Density(bumps[1], grid)


def _make_known(grid: Grid) -> tuple[Density, Density]:
    source, target = (draw_circle_maps(CIRCLE_MAPS[:1], t, grid) for t in (0.0, 1.0))
    return source, target


CIRCLES: dict[str, Callable[[Grid], tuple[Density, Density]]] = {
    "noise": _make_noise,
    "bumps beside the seam": _make_bumps,
    "known map": _make_known,
}


if __name__ == "__main__":
    typer.run(main)
