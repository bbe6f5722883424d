"""Methods that are measured on DOTmark, and the reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
import ot

import geonet
from benchmarks.baselines.ott_barycenter import import_library
from benchmarks.dotmark.images import Pair
from geonet import Density, Geodesic
from geonet.errors import ConvergenceError
from geonet.paths import QUARTERS
from geonet.solvers.auto import Auto


@dataclass(frozen=True)
class MethodConfig:
    """Settings of the methods; costs and ε are for the unit square and |x − y|²."""

    max_reference: int = 256  # cells along each axis up to which there is a reference
    stricter: float = 10.0  # tolerance of geonet over the tolerance of the reference
    change: float = 1e-3  # tolerance of back-and-forth: change of W2 over three iterations
    epsilon: float = 1e-3  # weight of the entropy, POT and OTT
    marginal: float = 1e-5  # L2 error of the marginals at which POT's Sinkhorn stops
    ott_marginal: float = 1e-3  # L1 error of the marginals at which OTT's Sinkhorn stops
    max_iterations: int = 5000  # of Sinkhorn
    max_pivots: int = 10**7  # of the network simplex


CONFIG = MethodConfig()


@dataclass(frozen=True)
class Answer:
    """The answer of a method to a pair.

    Attributes:
        seconds: of the path with five frames, or of the distance alone if there is no path.
        distance: W2.
        converged: False if it stopped early.
        path: None if the method returns the distance only.
        report_seconds: of `path.report`, which includes the bounds on W2.
    """

    seconds: float
    distance: float
    converged: bool
    path: Geodesic | None = None
    report_seconds: float | None = None


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        label: name in tables.
        solve: solves a pair.
        max_cells: largest number of cells along each axis; None for no limit.
        pairs: number of pairs of each class that it solves; None for all.
        package: optional package that it needs.
    """

    label: str
    solve: Callable[[Pair], Answer]
    max_cells: int | None = None
    pairs: int | None = None
    package: str | None = None

    @property
    def is_installed(self) -> bool:
        """Return False if its package is missing."""
        return self.package is None or find_spec(self.package) is not None

    def can_solve(self, pair: Pair, solved: int) -> bool:
        """Return False for pairs that are too large, or if enough of the class are solved."""
        too_large = self.max_cells is not None and pair.cells > self.max_cells
        return not too_large and (self.pairs is None or solved < self.pairs)


def solve_path(pair: Pair, solver: str = "auto", **options: Any) -> Answer:
    """Solve a pair by a solver of geonet, and evaluate frames at the quarters, then the report."""
    start = perf_counter()
    path = geonet.geodesic(pair.source, pair.target, solver, **options)
    path.density(QUARTERS)
    solved = perf_counter()
    distance = path.report.distance
    seconds = solved - start, perf_counter() - solved
    converged = bool(path.info.get("converged", True))
    return Answer(seconds[0], distance, converged, path, seconds[1])


def solve_reference(pair: Pair) -> Answer | None:
    """Solve a pair with every cell cut into 2 × 2, with a smaller tolerance; None if too large."""
    if pair.cells > CONFIG.max_reference:
        return None
    grid = pair.source.grid.with_shape(2 * pair.cells)
    finer = Pair(pair.kind, pair.name, *(end.resample(grid) for end in (pair.source, pair.target)))
    return solve_path(finer, tolerance=Auto.tolerance / CONFIG.stricter)


def solve_simplex(pair: Pair) -> Answer:
    """Return W2 of atoms at the cell centres by POT's network simplex."""
    masses, costs = _list_masses(pair), _compute_costs(pair.cells)
    start = perf_counter()
    cost, log = ot.emd2(*masses, costs, numItermax=CONFIG.max_pivots, log=True)
    return Answer(perf_counter() - start, float(cost) ** 0.5, log["warning"] is None)


def solve_sinkhorn(pair: Pair) -> Answer:
    """Return the root of the transport cost of POT's entropic plan between the cell centres.

    Cells without mass are left out: the kernel can underflow in those far from all mass.
    """
    masses = _list_masses(pair)
    costs = _compute_costs(pair.cells)[np.ix_(*(mass > 0 for mass in masses))]
    masses = [mass[mass > 0] for mass in masses]
    options = {"numItermax": CONFIG.max_iterations, "stopThr": CONFIG.marginal, "log": True}
    start = perf_counter()
    cost, log = ot.sinkhorn2(*masses, costs, CONFIG.epsilon, **options)
    if not log["err"]:
        raise ConvergenceError("The kernel underflows at this ε.", math.inf)
    converged = bool(log["err"][-1] <= CONFIG.marginal)
    return Answer(perf_counter() - start, float(cost) ** 0.5, converged)


def solve_ott(pair: Pair) -> Answer:
    """Return the root of the Sinkhorn divergence between the cell centres by OTT-JAX."""
    source, target = _list_masses(pair)
    axis = (np.arange(pair.cells) + 0.5) / pair.cells
    start = perf_counter()
    with import_library("jax").enable_x64(True):  # this call only: the setting is global
        problems = ((source, target), (source, source), (target, target))
        costs, converged = zip(*(_compile_ott()(axis, *ends) for ends in problems), strict=True)
        divergence = float(costs[0]) - (float(costs[1]) + float(costs[2])) / 2
    return Answer(perf_counter() - start, max(divergence, 0) ** 0.5, all(map(bool, converged)))


@cache
def _compile_ott() -> Callable[..., Any]:
    """Return OTT's Sinkhorn on a grid: axis and two densities to cost and convergence."""
    geometry = import_library("ott.geometry.grid")
    linear = import_library("ott.solvers.linear")

    def solve(axis: Any, source: Any, target: Any) -> tuple[Any, Any]:
        found = linear.solve(
            geometry.Grid(x=[axis, axis], epsilon=CONFIG.epsilon),
            *(source, target),
            threshold=CONFIG.ott_marginal,
            max_iterations=CONFIG.max_iterations,
            lse_mode=False,  # the kernel itself is much faster than its logarithm
        )
        return found.ent_reg_cost, found.converged

    return import_library("jax").jit(solve)


@cache
def _compute_costs(cells: int) -> np.ndarray:
    """Return the squared distances between all cell centres, (cells², cells²); it is not timed."""
    axis = (np.arange(cells) + 0.5) / cells
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    return ot.dist(points)


def _list_masses(pair: Pair) -> list[np.ndarray]:
    """Return the masses of all cells of both ends, (cells²,)."""
    ends = [np.asarray(end).astype(np.float64).ravel() for end in (pair.source, pair.target)]
    return [end / end.sum() for end in ends]


def evaluate_frames(path: Geodesic, pair: Pair) -> Density:
    """Return the frames of a path between its ends on the cells of a pair."""
    return path.density(QUARTERS[1:-1], pair.source.grid)


GEONET, BACK_AND_FORTH, REFERENCE = "geonet", "back-and-forth", "reference"
METHODS = (
    Method(GEONET, solve_path),
    Method(BACK_AND_FORTH, partial(solve_path, solver=BACK_AND_FORTH, tolerance=CONFIG.change)),
    Method("network simplex (POT)", solve_simplex, 64, 1),
    Method(f"Sinkhorn (POT), ε {CONFIG.epsilon:g}", solve_sinkhorn, 64, 1),
    Method(f"Sinkhorn divergence (OTT), ε {CONFIG.epsilon:g}", solve_ott, 256, package="ott"),
)
