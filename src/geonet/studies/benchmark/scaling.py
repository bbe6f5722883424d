"""How the cost of a learned path grows with output points, times and pairs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch

from geonet.evaluation.suites import SEED
from geonet.evaluation.timing import calls_within
from geonet.measures.density import Density
from geonet.measures.families import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.solvers.registry import make_solver
from geonet.studies.benchmark.analysis import slope
from geonet.studies.benchmark.result import Curve
from geonet.studies.benchmark.suites import TIMES, Call

BUDGET, REPEATS = 8.0, 9
QUICK_BUDGET, QUICK_REPEATS = 2.0, 3


@dataclass(frozen=True)
class Ladder:
    """What is asked of a solver, along three axes.

    Attributes:
        solver: the name.
        family: of its pairs.
        grid: on which they are given, and answered but for the first axis.
        cells: along each axis of the grid that is asked for.
        times: numbers of times.
        pairs: numbers of pairs in a call.
    """

    solver: str
    family: Callable[..., GaussianMixture]
    grid: Grid
    cells: tuple[int, ...]
    times: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    pairs: tuple[int, ...] = (1, 4, 16, 64, 256)
    budget: float = BUDGET
    repeats: int = REPEATS

    def quickly(self) -> Ladder:
        """A check: half of the sizes, and no more than eight times and pairs."""
        return replace(
            self,
            cells=self.cells[: len(self.cells) // 2],
            times=(1, 4, 8),
            pairs=(1, 4, 8),
            budget=QUICK_BUDGET,
            repeats=QUICK_REPEATS,
        )


LADDERS = (
    Ladder(
        "transport-1d",
        mixtures_1d,
        BOX_1D.with_shape(200),
        (100, 200, 400, 800, 1600, 3200, 6400, 12800),
    ),
    Ladder("transport-2d", mixtures_2d, BOX_2D, (32, 64, 96, 128, 192, 256)),
)


def curves(ladder: Ladder) -> list[Curve]:
    """Seconds along the three axes."""
    warnings.simplefilter("ignore")
    solver = make_solver(ladder.solver)
    most = max(ladder.pairs)
    mixtures = ladder.family(2 * most, torch.Generator().manual_seed(SEED))
    ends = mixtures.on(ladder.grid).values  # cells alone, without the formula

    def seconds(pairs: int, times: int, grid: Grid) -> float:
        first, second = ends[:pairs], ends[most : most + pairs]
        if pairs == 1:
            first, second = first[0], second[0]
        given = Density(first, ladder.grid), Density(second, ladder.grid)
        moments = Call(ladder.grid.shape[0], times=times).moments()
        calls = calls_within(
            ladder.budget, ladder.repeats, lambda k: solver(*given).density(moments, grid)
        )
        return median(calls.warm)

    seconds(1, 1, ladder.grid)  # reads the model
    grids = [ladder.grid.with_shape(n) for n in ladder.cells]
    found = {
        "output points": {grid.size: seconds(1, TIMES, grid) for grid in grids},
        "times": {n: seconds(1, n, ladder.grid) for n in ladder.times},
        "pairs": {n: seconds(n, TIMES, ladder.grid) for n in ladder.pairs},
    }
    return [_curve(ladder.solver, axis, along) for axis, along in found.items()]


def _curve(solver: str, axis: str, along: dict[int, float]) -> Curve:
    values, seconds = list(along), list(along.values())
    return Curve(solver, axis, values, seconds, slope(values, seconds))
