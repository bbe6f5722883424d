"""Exact optimal transport between cell centres, by POT, for densities of any kind and dimension.

The plan moves mass w_ij along a straight line from x_i to y_j. At time t this mass fills a box of
one cell's size around (1−t)x_i + t·y_j, and every output cell receives the mass of its overlap with
the box. The distance is exact for the discrete problem; the densities in between show the lattice.

The dual variables are the Kantorovich potentials at the atoms, −u_0(x_i) and u_1(y_j). The Hopf–Lax
formula extends them to all points and times:

    u_t(x) = max_j u_1(y_j) − |x − y_j|²/(2(1−t))   for t < ½,      v_t(x) = (y_j − x)/(1−t),
    u_t(x) = min_i u_0(x_i) + |x − x_i|²/(2t)       for t ≥ ½,      v_t(x) = (x − x_i)/t,

where j and i attain the maximum and the minimum. At an atom on its way from x_i to y_j the velocity
is y_j − x_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet._progress import report_progress
from geonet._utils import suppress_warnings
from geonet.density import Density
from geonet.errors import ConvergenceError, SolverError
from geonet.grid import Grid, unit_box
from geonet.numerics.autograd import with_dual_gradient
from geonet.paths import Geodesic
from geonet.samples import deposit
from geonet.solvers.base import Solver, SolverInfo

Plan = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class LinearProgram(Solver):
    """Exact optimal plan between the cell centres, by POT's network simplex.

    It takes any densities in any dimension. Mass moves straight from cell to cell in boxes of one
    cell's size, so the mass is exact. Velocity and potential follow from the dual variables.

    Size limits it: the cost matrix has the square of the number of non-empty cells. Above
    `max_cells` it raises `SolverError`, or solves on a coarser grid with `coarsen=True`. The
    densities between the ends are grainy, on fine grids too. Atoms on a lattice make the distance
    a little too large: W2² by a fraction of the cell size squared.

    Attributes:
        max_cells: non-empty cells that either end may have; the cost matrix has the square of it.
        coarsen: whether a larger problem is solved on the finest coarser grid that fits; the report
            then names this grid.
        max_iterations: limit on the iterations of the network simplex.
        method: POT's function; "emd" is the network simplex, "emd_1d" sorts. The latter takes 1D
            densities only; it needs no cost matrix, so `max_cells` does not limit it.
    """

    info = SolverInfo(
        name="linear-program",
        summary="any dimension, any densities, exact discrete distance; grainy in between",
        family="exact",
        differentiable=("distance",),
        exact=True,
        guarantee="the distance is exact for point masses at the cell centres",
        more_iterations="a larger max_iterations",
        less_blur="a larger max_cells",
    )

    max_cells: int = 48 * 48
    coarsen: bool = False
    max_iterations: int = 10_000_000
    method: str = "emd"

    def __post_init__(self) -> None:
        if self.max_cells < 1 or not 1 <= self.max_iterations < 2**31:
            raise SolverError(
                f"max_cells is {self.max_cells} and max_iterations {self.max_iterations}; "
                "both must be positive, and iterations below 2^31."
            )
        if self.method not in ("emd", "emd_1d"):
            raise SolverError(f"method is {self.method!r}; choose 'emd' or 'emd_1d'.")

    def _check(self, source: Density, target: Density) -> None:
        super()._check(source, target)
        if self.method == "emd_1d" and source.grid.dimension != 1:
            raise SolverError(
                f"The method 'emd_1d' takes 1D densities, these are {source.grid.dimension}D; "
                "give method='emd'."
            )

    def _solve_pair(self, source: Density, target: Density) -> PlanGeodesic:
        grid = source.grid if self.method == "emd_1d" else self._choose_grid(source, target)
        start, end, mass, potential = self._plan(
            source.detach().resample(grid), target.detach().resample(grid)
        )
        info: dict[str, Any] = {"plan entries": len(mass)}
        if grid != source.grid:
            info["solved on"] = str(grid)
        return PlanGeodesic(source, target, self.name, info, start, end, mass, potential, grid)

    def _choose_grid(self, source: Density, target: Density) -> Grid:
        """Return the finest grid on which both ends have at most `max_cells` non-empty cells."""
        grid = source.grid
        while (count := max(_count_atoms(end.resample(grid)) for end in (source, target))) > (
            self.max_cells
        ):
            shrink = (self.max_cells / count) ** (1 / grid.dimension)
            coarser = grid.with_shape([max(2, min(n - 1, int(n * shrink))) for n in grid.shape])
            if not self.coarsen or coarser == grid:
                raise SolverError(
                    f"{count:,} non-empty cells are more than max_cells = {self.max_cells:,} of "
                    "linear-program; resample to a coarser grid, raise max_cells (memory grows "
                    "with its square) or set coarsen=True."
                )
            grid = coarser
        return grid

    def _plan(self, source: Density, target: Density) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return start and end points (P, d), masses (P,) and u_1 at the end points (P,)."""
        (x, a), (y, b) = _extract_atoms(source), _extract_atoms(target)
        # In a unit box at zero: POT's tolerances are absolute, and ot.dist expands the square.
        unit = unit_box(source.grid)
        first, second = unit.to_points(x).numpy(), unit.to_points(y).numpy()
        plan = _sort if self.method == "emd_1d" else self._run_simplex
        rows, columns, mass, dual = map(torch.from_numpy, plan(first, second, a, b))
        return x[rows], y[columns], mass, unit.from_potential(0.5 * dual[columns])

    def _run_simplex(self, x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> Plan:
        """Solve the linear program.

        Args:
            x: source atoms, (N, d).
            y: target atoms, (M, d).
            a: masses of the source atoms, (N,).
            b: masses of the target atoms, (M,).

        Returns:
            Rows, columns and masses of the entries of the plan, (P,) each, and the dual variables
            of y, (M,).
        """
        import ot  # takes a second

        report_progress(f"linear-program: {len(x):,} to {len(y):,} cells, without progress lines")
        cost = ot.dist(x, y, metric="sqeuclidean")
        with suppress_warnings():  # POT warns if it stops early; this is an error below
            plan, log = ot.emd(a, b, cost, numItermax=self.max_iterations, log=True)
        if log["warning"] is not None:
            raise ConvergenceError(
                f"linear-program stopped early ({log['warning']}); raise max_iterations or use a "
                "coarser grid.",
                float("nan"),
            )
        rows, columns = np.nonzero(plan)
        return rows, columns, plan[rows, columns], log["v"]


def _sort(x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> Plan:
    """Solve the 1D problem by sorting; arguments and results as for `_run_simplex`.

    Entries of the plan are monotone. If column j is followed by j + 1, the dual constraints of x_i
    with y_j and of x_i with y_{j+1} are both set to equality.
    """
    import ot  # takes a second

    plan: Any = ot.emd_1d(x, y, a, b, metric="sqeuclidean", dense=False)
    filled = plan.data > 0  # rounding of equal levels leaves entries without mass
    rows, columns = plan.row[filled], plan.col[filled]
    from_x, to_y = x[rows[:-1], 0], y[columns, 0]
    increments = (to_y[1:] - from_x) ** 2 - (to_y[:-1] - from_x) ** 2
    dual = np.zeros(len(y))
    dual[columns] = np.concatenate([[0.0], increments.cumsum()])
    return rows, columns, plan.data[filled], dual


def _count_atoms(density: Density) -> int:
    return int((density.tensor > 0).sum())


def _extract_atoms(density: Density) -> tuple[Tensor, np.ndarray]:
    """Return centres (P, d) and masses (P,) of the non-empty cells; the masses sum to one."""
    mass = density.tensor.to(torch.float64).reshape(-1)
    points = density.grid.points().reshape(-1, density.grid.dimension)
    filled = mass > 0
    mass = mass[filled] / mass[filled].sum()
    return points[filled], mass.numpy()


class PlanGeodesic(Geodesic):
    """Boxes of mass that move straight, with potentials by the Hopf–Lax formula.

    Attributes:
        start: start points of the entries of the plan, (P, d).
        end: end points, (P, d).
        mass: masses, (P,).
        cells: grid whose cells have the size of the boxes.
    """

    kind = "plan"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        start: Tensor,
        end: Tensor,
        mass: Tensor,
        potential: Tensor,
        cells: Grid,
    ):
        super().__init__(source, target, solver, info)
        self.start, self.end, self.mass, self.cells = start, end, mass, cells
        self._end_potential = potential  # u_1 at the end points, (P,)
        self._start_potential = self._potential(torch.zeros(1), start)[0]

    def _distance(self) -> Tensor:
        distance = (self.mass * ((self.end - self.start) ** 2).sum(-1)).sum().sqrt()
        ends = self.source.resample(self.cells), self.target.resample(self.cells)
        return with_dual_gradient(distance, *ends, self._kantorovich)

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """Return −u_0 and u_1 at the cells, also at empty ones: the cost of adding mass there."""
        points = self.cells.points().reshape(-1, self._dimension)
        first, second = self._potential(torch.tensor([0.0, 1.0]), points)
        return -first.reshape(self.cells.shape), second.reshape(self.cells.shape)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        frames = [
            deposit(torch.lerp(self.start, self.end, float(t)), self.mass, self.cells.spacing, grid)
            for t in times
        ]
        return torch.stack(frames)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        frames = []
        for t in times.tolist():
            atoms, elapsed = (self.end, t - 1) if t < 0.5 else (self.start, t)
            parts = [
                (some - self._weigh(t, some) @ atoms) / elapsed for some in self._split(points)
            ]
            frames.append(torch.cat(parts))
        return torch.stack(frames)

    def _weigh(self, t: float, points: Tensor) -> Tensor:
        """Return weights (N, P) of the entries that attain u_t at points (N, d), with sum one.

        Degenerate plans have ties at t = 0 and 1, also with entries without mass at the point.
        Among ties, the entries nearest to the point are weighted by their mass.
        """
        candidates, length = self._candidates(t, points), 1e-9 * max(self.grid.lengths)
        best = candidates.amax(1, keepdim=True) if t < 0.5 else candidates.amin(1, keepdim=True)
        is_tied = (candidates - best).abs() <= length * max(self.grid.lengths)
        distances = _distances(points, torch.lerp(self.start, self.end, t))
        distances = distances.masked_fill(~is_tied, torch.inf)
        weights = self.mass * (distances <= distances.amin(1, keepdim=True) + length)
        return weights / weights.sum(1, keepdim=True)

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        frames = []
        for t in times.tolist():
            parts = [self._candidates(t, some) for some in self._split(points)]
            best = [part.amax(1) if t < 0.5 else part.amin(1) for part in parts]
            frames.append(torch.cat(best))
        return torch.stack(frames)

    def _candidates(self, t: float, points: Tensor) -> Tensor:
        """Return the terms of the Hopf–Lax formula at points (N, d), (N, P)."""
        if t < 0.5:
            return self._end_potential - _distances(points, self.end) ** 2 / (2 * (1 - t))
        return self._start_potential + _distances(points, self.start) ** 2 / (2 * t)

    def _split(self, points: Tensor, entries: int = 2**22) -> tuple[Tensor, ...]:
        """Split points such that at most `entries` distances are in memory."""
        return points.split(max(1, entries // len(self.mass)))

    def _diagnostics(self) -> dict[str, Tensor]:
        """Return the blur: boxes of coarser cells than the grid's."""
        if self.cells == self.grid:
            return {}
        return {"blur": torch.tensor(max(self.cells.spacing), dtype=torch.float64)}

    def _state(self) -> dict[str, np.ndarray]:
        return {
            "start": self.start.numpy(),
            "end": self.end.numpy(),
            "mass": self.mass.numpy(),
            "potential": self._end_potential.numpy(),
            "cells": np.array(self.cells.shape),
        }

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> PlanGeodesic:
        keys = ("start", "end", "mass", "potential")
        start, end, mass, potential = (torch.from_numpy(state[key]) for key in keys)
        cells = source.grid.with_shape(state["cells"].tolist())
        return cls(source, target, solver, info, start, end, mass, potential, cells)


def _distances(points: Tensor, others: Tensor) -> Tensor:
    """Return distances (N, M) by differences: squares would lose digits far from the origin."""
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")
