"""Transport of cells along the plan of a linear program, by POT, in any dimension.

Densities are constant in each cell. The linear program finds the optimal plan w_ij between the
centres of the cells, or of their parts. The mass w_ij fills a box A_ij in the source cell i and a
box B_ij in the target cell j: every cell is cut into such boxes, so that mass with the same goal is
adjacent. Each box moves straight and is stretched from A_ij to B_ij, which costs

    Σ w_ij (|a_ij − b_ij|² + |size of A_ij − size of B_ij|²/12) ≥ W2²,      a_ij, b_ij: centres.

In 1D this is the optimal map. In general the excess decreases with the square of the size of the
parts. Frames have the boxes at time t, and every output cell receives the mass of its overlap.

The dual variables are the Kantorovich potentials at the centres, −u_0(x_i) and u_1(y_j). The
Hopf–Lax formula extends them to all points and times:

    u_t(x) = max_j u_1(y_j) − |x − y_j|²/(2(1−t))   for t < ½,      v_t(x) = (y_j − x)/(1−t),
    u_t(x) = min_i u_0(x_i) + |x − x_i|²/(2t)       for t ≥ ½,      v_t(x) = (x − x_i)/t,

where j and i attain the maximum and the minimum. At a centre on its way from x_i to y_j the
velocity is y_j − x_i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
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
from geonet.numerics.c_transform import cell_centres, cell_faces, transform
from geonet.paths import Geodesic
from geonet.samples import deposit
from geonet.solvers.base import Solver, SolverInfo

Plan = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class LinearProgram(Solver):
    """Optimal plan between cells or parts of cells, by POT's network simplex.

    It takes any densities in any dimension. Densities count as constant in each cell. The plan
    between the centres determines which part of a cell moves to which other cell; these parts move
    straight as boxes, so the mass is exact. The distance is the cost of this motion. It is an upper
    bound of W2, exact in 1D; a lower bound follows from the dual variables. Velocity and potential
    follow from them, too.

    Size limits it: the cost matrix has the product of the numbers of non-empty cells, and takes
    about 50 bytes per entry. Above `max_cells` it raises `SolverError`, or solves on a coarser grid
    with `coarsen=True`. Cells of small problems are divided into parts: the excess of W2² decreases
    with the square of their size. The densities between the ends are grainy, on fine grids too.

    Attributes:
        max_cells: non-empty cells that either end may have; the cost matrix has the square of it.
        coarsen: whether a larger problem is solved on the finest coarser grid that fits; the report
            then names this grid.
        max_parts: most parts of a cell along each axis; fewer if the cost matrix of the parts has
            more than a million entries.
        max_iterations: limit on the iterations of the network simplex.
        method: POT's function; "emd" is the network simplex, "emd_1d" sorts. The latter takes 1D
            densities only; it needs no cost matrix, so `max_cells` does not limit it.
    """

    info = SolverInfo(
        name="linear-program",
        summary="any dimension, any densities: cells move along an optimal plan; grainy in between",
        family="exact",
        differentiable=("distance",),
        guarantee="cells move along the optimal plan between their centres",
        more_iterations="a larger max_iterations",
        less_blur="a larger max_cells",
    )

    max_cells: int = 48 * 48
    coarsen: bool = False
    max_parts: int = 8
    max_iterations: int = 10_000_000
    method: str = "emd"

    def __post_init__(self) -> None:
        if self.max_cells < 1 or not 1 <= self.max_iterations < 2**31:
            raise SolverError(
                f"max_cells is {self.max_cells} and max_iterations {self.max_iterations}; "
                "both must be positive, and iterations below 2^31."
            )
        if self.max_parts < 1:
            raise SolverError(f"max_parts is {self.max_parts}; give at least 1.")
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
        if self.method == "emd_1d":
            cells = source.grid
        else:
            cells = self._divide(self._choose_grid(source, target), source, target)
        start, end, mass, potential = self._plan(
            source.detach().resample(cells), target.detach().resample(cells)
        )
        info: dict[str, Any] = {"plan entries": len(mass)}
        if any(n < m for n, m in zip(cells.shape, source.grid.shape, strict=True)):
            info["solved on"] = str(cells)
        return PlanGeodesic(source, target, self.name, info, start, end, mass, potential, cells)

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

    def _divide(
        self, grid: Grid, source: Density, target: Density, max_entries: int = 1_000_000
    ) -> Grid:
        """Return the cells divided into as many parts as `max_parts` and `max_entries` allow."""
        if grid != source.grid:
            return grid
        parts, entries = 1, _count_atoms(source) * _count_atoms(target)
        while (
            parts < self.max_parts and entries * (parts + 1) ** (2 * grid.dimension) <= max_entries
        ):
            parts += 1
        return grid.with_shape([parts * n for n in grid.shape])

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
        start: centres of the source cells of the entries of the plan, (P, d).
        end: centres of the target cells, (P, d).
        mass: masses, (P,).
        cells: grid of the cells between which the plan moves mass: the path's own, or with parts of
            its cells, or a coarser one.
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

    @cached_property
    def _boxes(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Centres and sizes (P, d) of the boxes at t = 0 and at t = 1."""
        start, end = self.start.numpy(), self.end.numpy()
        size, mass = np.array(self.cells.spacing), self.mass.numpy()
        return _cut_cells(start, size, mass, end), _cut_cells(end, size, mass, start)

    def _distance(self) -> Tensor:
        (start, first), (end, last) = self._boxes
        cost = ((end - start) ** 2 + (last - first) ** 2 / 12).sum(-1)
        distance = (self.mass * cost).sum().sqrt()
        ends = self.source.resample(self.cells), self.target.resample(self.cells)
        return with_dual_gradient(distance, *ends, self._kantorovich)

    def _kantorovich(self) -> tuple[Tensor, Tensor]:
        """Return −u_0 and u_1 at the cells, also at empty ones: the cost of adding mass there."""
        points = self.cells.points().reshape(-1, self._dimension)
        first, second = self._potential(torch.tensor([0.0, 1.0]), points)
        return -first.reshape(self.cells.shape), second.reshape(self.cells.shape)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        (start, first), (end, last) = self._boxes
        frames = [
            deposit(torch.lerp(start, end, t), self.mass, torch.lerp(first, last, t), grid)
            for t in times.tolist()
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
        """Return bounds of W2, and the blur if the boxes are larger than the grid's cells."""
        lower, upper, values = self._lower_bound(), float(self._distance().detach()), {}
        if "solved on" in self.info:
            # To spread the mass in a cell of size H evenly costs at most |H|²/3.
            upper += 2 * math.hypot(*self.cells.spacing) / math.sqrt(3)
            values["blur"] = max(self.cells.spacing)
        values |= {
            "distance_lower_bound": lower,
            "distance_upper_bound": upper,
            "distance_uncertainty": upper - lower,
        }
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}

    def _lower_bound(self, max_parts: int = 16, max_points: int = 4_000_000) -> float:
        """Return a lower bound of W2 by duality.

        Let φ(p) + ψ(q) ≤ ½|p − q|² for the corners p and q of parts of cells with mass, and let F
        and G interpolate ½|p|² − φ(p) and ½|q|² − ψ(q) linearly along each axis. Then F(x) + G(z) ≥
        x·z for all points of these cells, since both sides are linear along each axis. So F and G
        are feasible for the dual problem, and with the masses w of the corners and the size h of
        the parts

            W2² ≥ 2 Σ w_p φ(p) + 2 Σ w_q ψ(q) − |h|²/3;

        the last term is the second moment of the corners minus the cells'.
        """
        grid = self.grid
        parts = int(min(max_parts, (max_points / grid.size) ** (1 / grid.dimension)))
        parts = grid.with_shape([max(1, parts) * n for n in grid.shape])
        first, second = (_corner_masses(end.resample(parts)) for end in (self.source, self.target))
        centres, corners = cell_centres(self.cells), cell_faces(parts)
        lower, spacing = (torch.tensor(x).double() for x in (self.cells.lower, self.cells.spacing))
        index = ((self.start - lower) / spacing).long()
        costs = torch.full(self.cells.shape, torch.inf, dtype=torch.float64)
        costs[tuple(index.T)] = self._start_potential
        psi = transform(costs, centres, corners, 0.5)
        phi = transform(torch.where(second > 0, -psi, torch.inf), corners, weight=0.5)
        dual = float((first * phi).sum() + (second * psi).sum())
        return math.sqrt(max(0.0, 2 * dual - math.hypot(*parts.spacing) ** 2 / 3))

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


def _corner_masses(density: Density) -> Tensor:
    """Return the masses of the corners, to which each cell gives equal parts: (*(shape + 1))."""
    mass = density.tensor.detach().double()
    mass = mass / mass.sum()
    for axis, n in enumerate(mass.shape):
        mass = torch.nn.functional.pad(mass.movedim(axis, -1), [1, 1])
        mass = (mass[..., 1:] + mass[..., : n + 1]).movedim(-1, axis) / 2
    return mass


def _cut_cells(
    centres: np.ndarray, size: np.ndarray, mass: np.ndarray, goals: np.ndarray
) -> tuple[Tensor, Tensor]:
    """Cut cells into one box for each entry of the plan, with the entry's share of the mass.

    Every cell is cut in two, and the parts again, until each has one goal. A cut separates the
    goals along the axis and at the place where this increases Σ mass · (box centre · goal) most.

    Args:
        centres: centres of the cells of the entries, (P, d).
        size: side lengths of the cells, (d,).
        mass: masses of the entries, (P,).
        goals: positions to which or from which the mass moves, (P, d).

    Returns:
        Centres and sizes of the boxes, (P, d) each.
    """
    low, high = centres - size / 2, centres + size / 2
    entries, group = np.arange(len(mass)), np.unique(centres, axis=0, return_inverse=True)[1]
    group = group.reshape(-1)  # of NumPy 2.0 it is a column
    while np.bincount(group).max() > 1:
        share = mass / np.bincount(group, mass)[group]
        axes = zip(goals.T, (high - low).T, strict=True)
        cuts = [_find_cuts(group, share, goal, width) for goal, width in axes]
        gains, below, is_above = (np.stack(arrays) for arrays in zip(*cuts, strict=True))
        axis = gains.argmax(0)[group]
        above = is_above[axis, entries]
        first, last = low[entries, axis], high[entries, axis]
        cut = first + below[axis, group] * (last - first)
        low[entries, axis] = np.where(above, cut, first)
        high[entries, axis] = np.where(above, last, cut)
        group = np.unique(2 * group + above, return_inverse=True)[1]
    return torch.from_numpy((low + high) / 2), torch.from_numpy(high - low)


def _find_cuts(
    group: np.ndarray, share: np.ndarray, goal: np.ndarray, width: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find the best cut of every group of entries along one axis.

    Args:
        group: index of the group, (P,).
        share: share of the mass of the group, (P,).
        goal: coordinate of the goal, (P,).
        width: side of the box of the group, (P,).

    Returns:
        For each group the gain, −∞ for a single entry, and the share of the mass below the cut;
        for each entry whether it is above.
    """
    order = np.lexsort((goal, group))
    mean = np.bincount(group, share * goal)
    gain = width[order] * (share * (mean[group] - goal))[order].cumsum()
    last = np.bincount(group).cumsum() - 1
    gain[last] = -np.inf  # nothing would be above
    best = np.lexsort((gain, group[order]))[last]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    is_above = rank > best[group]
    return gain[best], np.bincount(group, share * ~is_above), is_above
