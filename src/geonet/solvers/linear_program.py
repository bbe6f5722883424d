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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from geonet._progress import report_progress
from geonet._utils import suppress_warnings
from geonet.density import Density
from geonet.errors import ConvergenceError, SolverError
from geonet.grid import Grid, UnitBox, unit_box
from geonet.numerics.autograd import with_dual_gradient
from geonet.numerics.c_transform import (
    cell_centres,
    cell_faces,
    transform,
    transform_with_minimisers,
)
from geonet.paths import Geodesic
from geonet.samples import deposit
from geonet.solvers.base import Solver, SolverInfo

if TYPE_CHECKING:
    from scipy.sparse import coo_matrix


class Atoms(NamedTuple):
    """Centres of cells in the unit cube, (N, d), and their masses, (N,), with sum one."""

    points: np.ndarray
    mass: np.ndarray


class Plan(NamedTuple):
    """Indices of the atoms and masses of the entries of a plan, (P,), and the dual variables.

    Attributes:
        rows: indices of the source atoms.
        columns: indices of the target atoms.
        mass: masses.
        u: dual variables of all source atoms, (N,).
        v: dual variables of all target atoms, (M,).
    """

    rows: np.ndarray
    columns: np.ndarray
    mass: np.ndarray
    u: np.ndarray
    v: np.ndarray


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
        max_parts: most parts of a cell along each axis. Cells are halved until the cost hardly
            decreases, there would be more than 24,000 parts with mass, or the linear program would
            have more than 400,000 entries.
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
        cells = source.grid if self.method == "emd_1d" else self._choose_grid(source, target)
        # In a unit box at zero: POT's tolerances are absolute, and ot.dist expands the square.
        unit, parts = unit_box(cells), 1
        first, second = (_extract_atoms(end.resample(cells), unit) for end in (source, target))
        if self.method == "emd_1d":
            plan = _sort(first, second)
        else:
            max_parts = self.max_parts if cells == source.grid else 1
            first, second, plan, parts = self._solve_program(first, second, unit.cells, max_parts)
        info: dict[str, Any] = {"plan entries": len(plan.mass)}
        if cells != source.grid:
            info["solved on"] = str(cells)
        start, end = first.points[plan.rows], second.points[plan.columns]
        return PlanGeodesic(
            source,
            target,
            self.name,
            info,
            unit.from_points(torch.from_numpy(start)),
            unit.from_points(torch.from_numpy(end)),
            torch.from_numpy(plan.mass),
            unit.from_potential(torch.from_numpy(0.5 * plan.v[plan.columns])),
            cells.with_shape([parts * n for n in cells.shape]),
        )

    def bound_coarsening(self, source: Density, target: Density) -> float:
        """Return how much of the upper bound of W2 is due to `coarsen`; zero on the own cells."""
        cells = self._choose_grid(source, target)
        return 0.0 if cells == source.grid else _bound_spread(cells)

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

    def _solve_program(
        self,
        source: Atoms,
        target: Atoms,
        cells: Grid,
        max_parts: int,
        tolerance: float = 5e-3,
        max_entries: int = 400_000,
        max_atoms: int = 24_000,
        max_size: int = 4_000_000,
    ) -> tuple[Atoms, Atoms, Plan, int]:
        """Solve the linear program of the cells, of their halves along each axis, of quarters, …

        Each program starts with the entries between parts of pairs that were in the plan before, or
        nearly in it.

        Args:
            source: cells at t = 0.
            target: cells at t = 1.
            cells: grid in the unit cube.
            max_parts: most parts of a cell along each axis.
            tolerance: relative decrease of the cost by halving cells that ends it.
            max_entries: largest number of entries of the programs after the first.
            max_atoms: largest number of parts with mass at both ends.
            max_size: largest number of parts of all cells.

        Returns:
            The parts at t = 0 and 1, the plan, and the number of parts along each axis.
        """
        costs = _import_pot().dist(source.points, target.points, metric="sqeuclidean")
        plan, parts, count = self._run_simplex(source, target, costs), 1, 2**cells.dimension
        if max_parts == 1:
            return source, target, plan, 1
        pairs, before, cost = (
            _find_near_pairs(costs, plan),
            math.inf,
            _dual_value(plan, source, target),
        )
        while (
            2 * parts <= max_parts
            and before - cost > tolerance * cost
            and pairs.shape[1] * count**2 <= max_entries
            and (len(source.mass) + len(target.mass)) * count <= max_atoms
            and cells.size * count <= max_size
        ):
            source, target = (_halve(atoms, cells) for atoms in (source, target))
            parts, cells = 2 * parts, cells.with_shape([2 * n for n in cells.shape])
            children = np.indices((count, count)).reshape(2, 1, -1)
            pairs = (pairs[..., None] * count + children).reshape(2, -1)
            plan = plan._replace(u=np.repeat(plan.u, count), v=np.repeat(plan.v, count))
            plan, pairs = self._generate_columns(source, target, cells, pairs, plan)
            before, cost = cost, _dual_value(plan, source, target)
        return source, target, plan, parts

    def _generate_columns(
        self,
        source: Atoms,
        target: Atoms,
        cells: Grid,
        pairs: np.ndarray,
        plan: Plan,
        tolerance: float = 1e-3,
        max_rounds: int = 6,
    ) -> tuple[Plan, np.ndarray]:
        """Solve the linear program of pairs (2, K), and of those that violate its dual constraints.

        Args:
            source: parts at t = 0.
            target: parts at t = 1.
            cells: grid of the parts in the unit cube.
            pairs: indices of the parts between which mass may move.
            plan: its dual variables are the initial ones.
            tolerance: loss of the dual value, relative to the cost, that ends the iteration.
            max_rounds: largest number of linear programs.

        Returns:
            The plan, and the pairs that are nearly in it.
        """
        from scipy.sparse import coo_matrix  # importing it takes a tenth of a second

        for k in range(max_rounds):
            costs = ((source.points[pairs[0]] - target.points[pairs[1]]) ** 2).sum(1)
            matrix = coo_matrix((costs, tuple(pairs)), (len(source.mass), len(target.mass)))
            plan = self._run_simplex(source, target, matrix, (plan.u, plan.v))
            pairs = _keep_near_pairs(pairs, costs, plan)
            missing, loss = _find_missing_pairs(source, target, cells, plan)
            if loss <= tolerance * _dual_value(plan, source, target) or k == max_rounds - 1:
                break
            pairs = np.concatenate([pairs, missing], 1)
        return plan, pairs

    def _run_simplex(
        self,
        source: Atoms,
        target: Atoms,
        cost: np.ndarray | coo_matrix,
        duals: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Plan:
        """Solve the linear program.

        Args:
            source: N atoms.
            target: M atoms.
            cost: cost matrix (N, M); a plan has no entries where a sparse one has none.
            duals: initial dual variables, (N,) and (M,).
        """
        from scipy.sparse import coo_matrix

        count = f"{len(source.mass):,} to {len(target.mass):,}"
        report_progress(f"linear-program: {count} cells")
        options = {"numItermax": self.max_iterations, "log": True, "potentials_init": duals}
        with suppress_warnings():  # POT warns if it stops early; this is an error below
            matrix, log = _import_pot().emd(source.mass, target.mass, cost, **options)
        if log["warning"] is not None:
            raise ConvergenceError(
                f"linear-program stopped early ({log['warning']}); raise max_iterations or use a "
                "coarser grid.",
                float("nan"),
            )
        plan = coo_matrix(matrix)
        filled = plan.data > 0
        return Plan(plan.row[filled], plan.col[filled], plan.data[filled], log["u"], log["v"])


def _import_pot() -> Any:
    """Import POT, which takes a second."""
    import ot

    return ot


def _dual_value(plan: Plan, source: Atoms, target: Atoms) -> float:
    return float(source.mass @ plan.u + target.mass @ plan.v)


def _find_near_pairs(costs: np.ndarray, plan: Plan, count: int = 6) -> np.ndarray:
    """Return pairs (2, K) of atoms: the plan, and the least reduced costs of each row and column.

    The plan between parts of cells hardly ever has entries between others.
    """
    reduced, (n, m) = costs - plan.u[:, None] - plan.v, costs.shape
    near_columns = np.argpartition(reduced, min(count, m) - 1, axis=1)[:, :count]
    near_rows = np.argpartition(reduced, min(count, n) - 1, axis=0)[:count]
    rows = np.repeat(np.arange(n), near_columns.shape[1]), near_rows.ravel(), plan.rows
    columns = near_columns.ravel(), np.tile(np.arange(m), len(near_rows)), plan.columns
    flat = np.unique(np.concatenate(rows) * m + np.concatenate(columns))
    return np.stack(np.divmod(flat, m))


def _keep_near_pairs(
    pairs: np.ndarray, costs: np.ndarray, plan: Plan, count: int = 6
) -> np.ndarray:
    """Like `_find_near_pairs`, of pairs (2, K) with costs (K,)."""
    rows, columns = pairs
    reduced, m = costs - plan.u[rows] - plan.v[columns], len(plan.v)
    is_near = np.isin(rows * m + columns, plan.rows.astype(int) * m + plan.columns)
    for index in pairs:
        order = np.lexsort((reduced, index))
        rank = np.arange(len(order)) - np.searchsorted(index[order], index[order])
        is_near[order[rank < count]] = True
    return pairs[:, is_near]


def _find_missing_pairs(
    source: Atoms, target: Atoms, cells: Grid, plan: Plan
) -> tuple[np.ndarray, float]:
    """Return the pair (2, K) of each atom whose dual constraint is violated most, and their sum."""
    lattice, found, loss = cell_centres(cells), [], 0.0
    first, second = (source, plan.u), (target, plan.v)
    for (here, own), (there, other) in ((first, second), (second, first)):
        at, to = (tuple((atoms.points / cells.spacing).astype(int).T) for atoms in (there, here))
        values, number = np.full(cells.shape, np.inf), np.empty(cells.shape, int)
        values[at], number[at] = -other, np.arange(len(other))
        least, where = transform_with_minimisers(torch.from_numpy(values), lattice)
        violation = own - least.numpy()[to]
        nearest = number[tuple(where.numpy()[(slice(None), *to)])]
        is_missing = violation > 1e-12
        pairs = np.stack([np.arange(len(own)), nearest])[:, is_missing]
        found.append(pairs if here is source else pairs[::-1])
        loss += float((here.mass * violation)[is_missing].sum())
    return np.concatenate(found, 1), loss


def _halve(atoms: Atoms, cells: Grid) -> Atoms:
    """Halve cells along each axis, (N · 2^d)."""
    d = cells.dimension
    offsets = (np.indices((2,) * d).reshape(d, -1).T / 2 - 0.25) * cells.spacing
    points = (atoms.points[:, None] + offsets).reshape(-1, d)
    return Atoms(points, np.repeat(atoms.mass / len(offsets), len(offsets)))


def _bound_spread(cells: Grid) -> float:
    """Bound W2 of spreading both ends evenly in cells of size H, at most |H|/√3 for each end."""
    return 2 * math.hypot(*cells.spacing) / math.sqrt(3)


def _sort(source: Atoms, target: Atoms) -> Plan:
    """Solve the 1D problem by sorting.

    Entries of the plan are monotone. If column j is followed by j + 1, the dual constraints of x_i
    with y_j and of x_i with y_{j+1} are both set to equality.
    """
    (x, a), (y, b) = source, target
    plan = _import_pot().emd_1d(x, y, a, b, metric="sqeuclidean", dense=False)
    filled = plan.data > 0  # rounding of equal levels leaves entries without mass
    rows, columns = plan.row[filled], plan.col[filled]
    from_x, to_y = x[rows[:-1], 0], y[columns, 0]
    increments = (to_y[1:] - from_x) ** 2 - (to_y[:-1] - from_x) ** 2
    u, v = np.zeros(len(x)), np.zeros(len(y))
    v[columns] = np.concatenate([[0.0], increments.cumsum()])
    u[rows] = (to_y - x[rows, 0]) ** 2 - v[columns]
    return Plan(rows, columns, plan.data[filled], u, v)


def _count_atoms(density: Density) -> int:
    return int((density.tensor > 0).sum())


def _extract_atoms(density: Density, unit: UnitBox) -> Atoms:
    """Return the non-empty cells."""
    mass = density.tensor.detach().to(torch.float64).reshape(-1)
    points = unit.cells.points().reshape(-1, density.grid.dimension)  # the same for boxes anywhere
    filled = mass > 0
    return Atoms(points[filled].numpy(), (mass[filled] / mass[filled].sum()).numpy())


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
        centres = cell_centres(cells)
        costs = transform(self._on_lattice(end, -potential), centres, weight=0.5)
        self._start_potential = -costs[self._index(start)]  # u_0 at the start points, (P,)

    def _index(self, points: Tensor) -> tuple[Tensor, ...]:
        """Return the indices of the cells with centres (P, d)."""
        first, spacing = self.cells.lower_tensor, torch.tensor(self.cells.spacing).double()
        return ((points - first) / spacing).long().unbind(-1)

    def _on_lattice(self, points: Tensor, values: Tensor) -> Tensor:
        """Return values (P,) of cells with centres (P, d) on all cells, ∞ elsewhere."""
        lattice = torch.full(self.cells.shape, torch.inf, dtype=torch.float64)
        return lattice.index_put_(self._index(points), values)

    @cached_property
    def _boxes(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Centres and sizes (P, d) of the boxes at t = 0 and at t = 1."""
        unit = unit_box(self.cells)
        size, mass = np.array(unit.cells.spacing), self.mass.numpy()
        start, end = (
            (torch.stack(self._index(points), 1).numpy() + 0.5) * size
            for points in (self.start, self.end)
        )
        boxes = _cut_cells(start, size, mass, end), _cut_cells(end, size, mass, start)
        first, last = ((unit.from_points(c), unit.from_length(w)) for c, w in boxes)
        return first, last

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
            best = Tensor.amax if t < 0.5 else Tensor.amin
            parts = [best(self._candidates(t, some), 1) for some in self._split(points)]
            frames.append(torch.cat(parts))
        return torch.stack(frames)

    def _candidates(self, t: float, points: Tensor) -> Tensor:
        """Return the terms of the Hopf–Lax formula at points (N, d), (N, P)."""
        if t < 0.5:
            return self._end_potential - _distances(points, self.end) ** 2 / (2 * (1 - t))
        return self._start_potential + _distances(points, self.start) ** 2 / (2 * t)

    def _split(self, points: Tensor, entries: int = 2**22) -> tuple[Tensor, ...]:
        """Split points such that at most `entries` distances are in memory."""
        return points.split(max(1, entries // len(self.mass)))

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        """Lower and upper bound of W2."""
        report_progress("bounding W2")
        upper = float(self._distance().detach())
        if "solved on" in self.info:
            upper += _bound_spread(self.cells)
        return min(self._lower_bound(), upper), upper

    def _diagnostics(self) -> dict[str, Tensor]:
        """Return bounds of W2, and the blur if the boxes are larger than the grid's cells."""
        lower, upper = self._bounds
        values = {
            "distance_lower_bound": lower,
            "distance_upper_bound": upper,
            "distance_uncertainty": upper - lower,
        }
        if "solved on" in self.info:
            values["blur"] = max(self.cells.spacing)
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
        costs = self._on_lattice(self.start, self._start_potential)
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
