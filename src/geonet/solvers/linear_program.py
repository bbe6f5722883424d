"""Any densities: the exact optimal plan between cell centres, by POT.

The network simplex finds it in any dimension; in 1D POT can also sort (`emd_1d`).

Mass w_ij travels straight from cell i to cell j. At time t it fills a box of one cell's size around
(1−t)x_i + t·y_j, and every output cell takes the share of the box that lies in it. The distance is
exact for the discrete problem; the densities in between carry the lattice's grain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import ot
import torch
from torch import Tensor

from geonet._advice import argument, either, setting
from geonet._progress import report_progress
from geonet._utils import suppress_warnings
from geonet.density import Density
from geonet.errors import ConvergenceError, SolverError
from geonet.grid import Grid, unit_box
from geonet.numerics.autograd import with_dual_gradient
from geonet.paths import Geodesic
from geonet.samples import deposit
from geonet.solvers.base import Solver, SolverInfo

# ---- Paths given by a transport plan between cells.
#
# Mass w_ij travels straight from cell i to cell j. At time t it fills a box of one cell's size around
# (1−t)x_i + t·y_j, and every output cell takes the share of the box that lies in it.


DISTANCES = 2**22  # held at a time


class PlanGeodesic(Geodesic):
    """Boxes of mass moving straight. `cells` is the grid whose cell the boxes have the size of."""

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
        cells: Grid,
        dual: Tensor | None = None,
    ):
        super().__init__(source, target, solver, info)
        self.start, self.end, self.mass, self.cells = start, end, mass, cells
        self._dual = dual  # ψ at the plan's end points, (P,)

    def _distance(self) -> Tensor:
        distance = (self.mass * ((self.end - self.start) ** 2).sum(-1)).sum().sqrt()
        ends = self.source.resample(self.cells), self.target.resample(self.cells)
        return with_dual_gradient(distance, *ends, self._kantorovich)

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """φ is the least of ½|x − y|² − ψ(y) over the plan's end points, ψ likewise of φ.

        So cells without mass have what it would cost to put some there.
        """
        assert self._dual is not None
        points = self.cells.points().reshape(-1, self._dimension)
        first = _conjugate(points, self.end, self._dual)
        at_starts = _conjugate(self.start, self.end, self._dual)
        second = _conjugate(points, self.start, at_starts)
        return first.reshape(self.cells.shape), second.reshape(self.cells.shape)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        frames = [
            deposit(torch.lerp(self.start, self.end, float(t)), self.mass, self.cells.spacing, grid)
            for t in times
        ]
        return torch.stack(frames)

    def _diagnostics(self) -> dict[str, Tensor]:
        """Boxes of coarser cells than the grid's are the blur."""
        if self.cells == self.grid:
            return {}
        return {"blur": torch.tensor(max(self.cells.spacing), dtype=torch.float64)}

    def _state(self) -> dict[str, np.ndarray]:
        return {
            "start": self.start.numpy(),
            "end": self.end.numpy(),
            "mass": self.mass.numpy(),
            "cells": np.array(self.cells.shape),
        }

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> PlanGeodesic:
        start, end, mass = (torch.from_numpy(state[key]) for key in ("start", "end", "mass"))
        cells = source.grid.with_shape(state["cells"].tolist())
        return cls(source, target, solver, info, start, end, mass, cells)


def _conjugate(points: Tensor, others: Tensor, dual: Tensor) -> Tensor:
    """min_j ½|x − y_j|² − ψ_j at points x (N, d), for y (M, d) and ψ (M,): (N,)."""
    rows = max(1, DISTANCES // len(others))
    parts = [(_distances(some, others) ** 2 / 2 - dual).amin(1) for some in points.split(rows)]
    return torch.cat(parts)


def _distances(points: Tensor, others: Tensor) -> Tensor:
    """(n, m); by differences, since squares would lose the digits of boxes far from zero."""
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")


METHODS = ("emd", "emd_1d")


@dataclass(frozen=True)
class LinearProgram(Solver):
    """Finds the exact optimal plan between the cell centres, by POT's network simplex.

    It takes any densities in any dimension. Mass travels straight from cell to cell. On its way it
    fills a box of one cell's size, and every cell of the output takes its share, so the mass is
    exact.

    Size limits it: the cost matrix has the square of the number of non-empty cells. Above
    `max_cells` it refuses, or solves on a coarser grid with `coarsen=True`. The densities between
    the ends are grainy, on fine grids too. Atoms on a lattice make the distance a little too large:
    W2² by a share of the cell size squared.

    Attributes:
        max_cells: non-empty cells that either end may have; the cost matrix has the square of it.
        coarsen: whether a larger problem is solved on the finest coarser grid that fits instead of
            being refused; the report then says so.
        max_iterations: the most iterations of the network simplex.
        method: POT's function; "emd" is the network simplex, "emd_1d" sorts. The latter takes 1D
            densities only; it makes no cost matrix, so `max_cells` does not limit it.
    """

    info = SolverInfo(
        name="linear-program",
        summary="any dimension, any densities, exact discrete distance; grainy in between",
        family="exact",
        provides=("density", "distance"),
        differentiable=("distance",),
        exact=True,
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
        if self.method not in METHODS:
            raise SolverError(
                f"The solver {self.name!r} has no method {self.method!r}; "
                f"choose from {', '.join(METHODS)}."
            )

    def _check(self, source: Density, target: Density) -> None:
        super()._check(source, target)
        d = source.grid.dimension
        if self.method == "emd_1d" and d != 1:
            raise SolverError(
                f"The method 'emd_1d' takes 1D densities, these are {d}D; "
                f"give {setting('method', 'emd')}."
            )

    def _solve_pair(self, source: Density, target: Density) -> PlanGeodesic:
        sorts = self.method == "emd_1d"
        grid = source.grid if sorts else self._affordable_grid(source, target)
        fixed = source.detach().resample(grid), target.detach().resample(grid)
        start, end, mass, dual = self._plan(*fixed)
        info: dict[str, Any] = {"plan entries": len(mass)}
        if grid != source.grid:
            info["solved on"] = str(grid)
        return PlanGeodesic(source, target, self.name, info, start, end, mass, grid, dual)

    def _affordable_grid(self, source: Density, target: Density) -> Grid:
        """The finest grid on which both ends have at most `max_cells` non-empty cells."""
        grid = source.grid
        while (occupied := max(_occupied(end.resample(grid)) for end in (source, target))) > (
            self.max_cells
        ):
            shrink = (self.max_cells / occupied) ** (1 / grid.dimension)
            coarser = grid.with_shape([max(2, min(n - 1, int(n * shrink))) for n in grid.shape])
            if not self.coarsen or coarser == grid:
                raise SolverError(
                    f"{occupied:,} non-empty cells are more than linear-program's max_cells, "
                    f"{self.max_cells:,}; "
                    + either("resample to a coarser grid", "give a smaller --resolution")
                    + f", raise {argument('max_cells')} (memory grows with its square) or give "
                    f"{setting('coarsen', True)}."
                )
            grid = coarser
        return grid

    def _plan(self, source: Density, target: Density) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Start and end points (P, d) and masses (P,) of the plan's entries, and ψ at the ends."""
        (x, a), (y, b) = _atoms(source), _atoms(target)
        # In a unit box at zero: POT's tolerances are absolute, and ot.dist expands the square.
        unit = unit_box(source.grid)
        plan = _sorted_plan if self.method == "emd_1d" else self._simplex_plan
        first, second = (unit.to_points(end).numpy() for end in (x, y))
        rows, columns, mass, dual = map(torch.from_numpy, plan(first, second, a, b))
        return x[rows], y[columns], mass, unit.from_potential(0.5 * dual[columns])

    def _simplex_plan(
        self, x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Rows, columns and masses (P,) of the plan from atoms x (N, d), a (N,) to y, b (M,).

        And the dual variables (M,) of y.
        """
        report_progress(f"linear-program: from {len(x):,} to {len(y):,} cells, in one piece")
        cost = ot.dist(x, y, metric="sqeuclidean")
        with suppress_warnings():  # POT warns where it stops early; that is an error below
            plan, log = ot.emd(a, b, cost, numItermax=self.max_iterations, log=True)
        if log["warning"] is not None:
            raise ConvergenceError(
                f"linear-program stopped early ({log['warning']}); raise max_iterations or use a "
                "coarser grid.",
                float("nan"),
            )
        rows, columns = np.nonzero(plan)
        return rows, columns, plan[rows, columns], log["v"]


def _sorted_plan(
    x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and masses (P,) of the plan from atoms x (N, 1), a (N,) to y, b (M,).

    And dual variables (M,) of y: along the plan, whose entries go up from left to right, φ + ψ is
    the cost of both x_i with y_j and x_i with y_{j+1} wherever j goes up.
    """
    plan: Any = ot.emd_1d(x, y, a, b, metric="sqeuclidean", dense=False)
    filled = plan.data > 0  # levels of both that rounding alone tells apart carry nothing
    rows, columns = plan.row[filled], plan.col[filled]
    from_x, to_y = x[rows[:-1], 0], y[columns, 0]
    rises = (to_y[1:] - from_x) ** 2 - (to_y[:-1] - from_x) ** 2
    dual = np.zeros(len(y))
    dual[columns] = np.concatenate([[0.0], rises.cumsum()])
    return rows, columns, plan.data[filled], dual


def _occupied(density: Density) -> int:
    return int((density.tensor > 0).sum())


def _atoms(density: Density) -> tuple[Tensor, np.ndarray]:
    """Centres (P, d) and masses (P,) of the non-empty cells; the masses sum to one exactly."""
    mass = density.tensor.to(torch.float64).reshape(-1)
    points = density.grid.points().reshape(-1, density.grid.dimension)
    filled = mass > 0
    mass = mass[filled] / mass[filled].sum()
    return points[filled], mass.numpy()
