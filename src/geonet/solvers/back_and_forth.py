"""Any densities: the back-and-forth method of Jacobs and Léger (2020).

Kantorovich's dual problem for c(x, y) = ½|x − y|² is that of one potential, either φ or ψ:

    J(φ) = ∫φ dμ_1 + ∫φ^c dμ_0,        I(ψ) = ∫ψ dμ_0 + ∫ψ^c dμ_1,        φ^c(x) = min_y c − φ(y).

The derivative of J is μ_1 − T#μ_0 with T(x) = x − ∇φ^c(x), and (−Δ)⁻¹ of that its gradient in H¹;
those of I likewise. The method climbs J and I by turns and takes c-transforms in between: where T
spreads mass out one of them is flat, where it gathers mass the other.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import fft
from torch import Tensor

from geonet._advice import argument
from geonet._format import format_number, format_percent
from geonet._progress import report_progress
from geonet._utils import user_stacklevel
from geonet.density import Density
from geonet.errors import ConvergenceWarning, SolverError
from geonet.grid import Grid, unit_box
from geonet.numerics.c_transform import cell_centres, cell_faces, push_cells, transform
from geonet.paths import Geodesic
from geonet.solvers.base import MenuEntry, Solver, SolverInfo

# ---- Paths that push both ends along maps: those of Kantorovich potentials known at the cells.
#
# With c(x, y) = ½|x − y|², potentials ψ at the source and φ at the target with φ(y) + ψ(x) ≤ c give
#
#     W2² ≥ 2∫ψ dμ_0 + 2∫φ dμ_1,        T(x) = x − ∇ψ(x),   T⁻¹(y) = y − ∇φ(y).


PARTS = 2  # of a cell along each axis, where one of the potentials is found for the distance


class MapGeodesic(Geodesic):
    """Both ends, pushed towards each other: (1−t)·(T_t)#μ_0 + t·(T⁻¹_{1−t})#μ_1.

    T_t(x) = x + t(T(x) − x), and likewise backwards. So mass and both ends are exact. Where the
    potentials are exact the two parts agree; the lattice makes both noisy in their own way, and
    `report.mismatch` tells how far they are apart halfway.

    Potentials are in the unit box (see `UnitBox`).
    """

    kind = "pushed"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        psi: Tensor,
        phi: Tensor,
    ):
        super().__init__(source, target, solver, info)
        self._unit = unit_box(source.grid)
        self._psi, self._phi = psi, phi  # (*grid.shape), at source and target

    def _distance(self) -> Tensor:
        """By the dual value; see `dual_squares`."""
        return self._unit.from_length(self._squares[1].clamp(min=0).sqrt())

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        frames = [torch.lerp(*self._both(t, grid), t) for t in times.tolist()]
        return torch.stack(frames)

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """x + t(T(x) − x), with the map that pushes the source."""
        start = self._unit.to_points(points)
        step = _between_corners(self._displacements[0], start, self._unit.cells)
        sides = torch.tensor(self._unit.sides, dtype=torch.float64)
        end = (start + step).clamp(torch.zeros_like(sides), sides)
        return self._unit.from_points(torch.lerp(start, end, times[:, None, None]))

    def _diagnostics(self) -> dict[str, Tensor]:
        forward, backward = self._both(0.5, self.grid)
        unknown = torch.tensor(math.nan, dtype=torch.float64)
        return {
            "distance_lower_bound": self._unit.from_length(self._squares[0].clamp(min=0).sqrt()),
            "distance_upper_bound": unknown,
            "mismatch": (forward - backward).abs().sum() * self.grid.cell_volume,
        }

    def _both(self, t: float, grid: Grid) -> tuple[Tensor, Tensor]:
        """What either end becomes at time t, (*grid.shape) each."""
        first, second = (
            push_forward(cell_masses(end), t * step, self._unit.cells, grid.shape)
            / grid.cell_volume
            for end, t, step in zip(
                (self.source, self.target), (t, 1 - t), self._displacements, strict=True
            )
        )
        return first, second

    @cached_property
    def _displacements(self) -> tuple[Tensor, Tensor]:
        cells = self._unit.cells
        return displacement(self._psi, cells), displacement(self._phi, cells)

    @cached_property
    def _squares(self) -> tuple[Tensor, Tensor]:
        """W2² at least, and W2² as estimated, in the unit box; the larger of both directions."""
        first, second = cell_masses(self.source), cell_masses(self.target)
        both = (
            dual_estimates(first, second, self._phi, self._unit.cells),
            dual_estimates(second, first, self._psi, self._unit.cells),
        )
        return torch.maximum(both[0][0], both[1][0]), torch.maximum(both[0][1], both[1][1])

    def _state(self) -> dict[str, np.ndarray]:
        return {"psi": self._psi.numpy(), "phi": self._phi.numpy()}

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> MapGeodesic:
        potentials = (torch.from_numpy(state[key]) for key in ("psi", "phi"))
        return cls(source, target, solver, info, *potentials)


def cell_masses(density: Density) -> Tensor:
    """The mass of each cell in float64; they sum to one to rounding."""
    values = density.tensor.detach().to(torch.float64)
    return values / values.sum()


# ---- maps


def displacement(potential: Tensor, cells: Grid) -> Tensor:
    """−∇ψ at the corners of the cells, (d, *(shape + 1)), for ψ at their centres.

    Differences of neighbours, averaged over those that meet in a corner, and linear beyond.
    """
    slopes = []
    for axis, h in enumerate(cells.spacing):
        slope = _continued(potential.diff(dim=axis) / -h, axis)
        for other in range(potential.ndim):
            if other != axis:
                wide = _continued(slope, other)
                n = wide.shape[other] - 1
                slope = (wide.narrow(other, 0, n) + wide.narrow(other, 1, n)) / 2
        slopes.append(slope)
    return torch.stack(slopes)


def _continued(values: Tensor, axis: int) -> Tensor:
    """One value more at either end of an axis, linearly where there are two to go by."""
    last = values.shape[axis] - 1
    first, final = values.narrow(axis, 0, 1), values.narrow(axis, last, 1)
    if last > 0:
        first = 2 * first - values.narrow(axis, 1, 1)
        final = 2 * final - values.narrow(axis, last - 1, 1)
    return torch.cat([first, values, final], axis)


def push_forward(mass: Tensor, step: Tensor, cells: Grid, shape: tuple[int, ...]) -> Tensor:
    """Masses (*shape) of the cells of the same box after their corners went by `step`."""
    edges = torch.meshgrid(*cells.edges(), indexing="ij")
    corners = [
        (edge + along - low) * (n / length) - 0.5
        for edge, along, low, n, length in zip(
            edges, step, cells.lower, shape, cells.lengths, strict=True
        )
    ]
    return push_cells(mass, torch.stack(corners), shape)


def _between_corners(field: Tensor, points: Tensor, cells: Grid) -> Tensor:
    """A field (d, *(shape + 1)) at corners, multilinear between them, at points (N, d): (N, d)."""
    spacing = torch.tensor(cells.spacing, dtype=torch.float64)
    most = torch.tensor(cells.shape) - 1
    place = (points - cells.lower_tensor) / spacing
    low = torch.minimum(place.long().clamp(min=0), most)
    share = (place - low).clamp(0, 1)
    found = torch.zeros_like(points)
    for corner in product((0, 1), repeat=cells.dimension):
        up = torch.tensor(corner)
        weight = torch.where(up == 1, share, 1 - share).prod(-1)
        found += weight[:, None] * field[(slice(None), *(low + up).unbind(-1))].T
    return found


# ---- the distance


def dual_estimates(
    first: Tensor, second: Tensor, phi: Tensor, cells: Grid
) -> tuple[Tensor, Tensor]:
    """W2² at least, and W2² as estimated, by a potential φ at the centres of the second's cells.

    Both are for densities that are constant in each cell, with masses `first` and `second`, and not
    for atoms at the centres, whose W2² is larger by about h²/6 an axis.

    **At least.** ψ is the c-transform of φ at the corners of the first's cells and PARTS − 1 places
    between; φ that of ψ at the centres of the second's, and one cell beyond. Where φ + ψ ≤ c holds
    on two lattices it holds between their points too, if ½|x|² − ψ and ½|y|² − φ are multilinear
    there: a linear function below such values at the corners of a cell is below them inside too.
    Compared with φ and ψ that are multilinear themselves, that costs Σh²/12 for φ and
    Σ(h/PARTS)²/12 for ψ. Only cells with mass take part.

    **Estimated.** Between its points φ need not be as low as that: a smooth φ through these values
    has a mean over a cell that is higher by (h² − δ²φ)/24 an axis, δ² being the second difference,
    which is at most h². For equal ends the estimate is zero to rounding.
    """
    fine, wide = cell_faces(cells, PARTS), cell_centres(cells, beyond=1)
    psi = transform(torch.where(second > 0, -phi, torch.inf), cell_centres(cells), fine, 0.5)
    phi = transform(torch.where(_corners_of(first > 0), -psi, torch.inf), fine, wide, 0.5)
    squares = sum(h**2 for h in cells.spacing)
    mean, curvature = phi, torch.zeros_like(second)
    for axis in range(second.ndim):
        psi = _mean_of_parts(psi, axis)
        mean = mean + _second_difference(mean, axis) / 8
        curvature += _inner(_second_difference(phi, axis))
    half = (first * psi).sum() + (second * _inner(mean)).sum()
    half = half - squares * (1 + PARTS**-2) / 12
    return 2 * half, 2 * half + (squares - (second * curvature).sum()) / 12


def _corners_of(filled: Tensor) -> Tensor:
    """Which of the places of `nodes(cells, PARTS)` belong to a cell that is filled."""
    for axis in range(filled.ndim):
        parts = filled.repeat_interleave(PARTS, axis)
        none = torch.zeros_like(parts.narrow(axis, 0, 1))
        filled = torch.cat([parts, none], axis) | torch.cat([none, parts], axis)
    return filled


def _mean_of_parts(values: Tensor, axis: int) -> Tensor:
    """Means over cells along an axis of what is linear between the places of `nodes`."""
    n = values.shape[axis] - 1
    middle = (values.narrow(axis, 0, n) + values.narrow(axis, 1, n)) / 2
    return middle.unflatten(axis, (n // PARTS, PARTS)).mean(axis + 1)


def _second_difference(values: Tensor, axis: int) -> Tensor:
    """f(k − 1) − 2f(k) + f(k + 1) along an axis; zero at both ends."""
    none = torch.zeros_like(values.narrow(axis, 0, 1))
    return torch.cat([none, values.diff(n=2, dim=axis), none], axis)


def _inner(values: Tensor) -> Tensor:
    """Without the first and the last along every axis."""
    return values[(slice(1, -1),) * values.ndim]


FIRST_STEP = 300.0  # over the largest density
# Steps change where they gain more, or less, than a share of what the gradient promises.
STEEP, FLAT, NONE = 0.6, 0.1, 1e-3
LONGER, SHORTER, HALF = 1.25, 0.8, 0.5
SETTLED = 3  # iterations over which the dual value may not change
LEAST = 1e-3  # of a cell squared: W2² that need not be told from zero
ROUNDING = 1e-7  # of dual values


@dataclass(frozen=True)
class BackAndForth(Solver):
    """The back-and-forth method (Jacobs and Léger, 2020): a quick W2 between any densities.

    It takes densities with holes, islands and jumps in 1D to 3D, on any box. Two potentials climb
    Kantorovich's dual problem by turns. Each step pushes one end along the current map, solves
    Poisson's equation for what is missing at the other, and takes two c-transforms, whose cost
    grows with the number of cells alone. Ten to twenty iterations are usual at any size.

    **Distance.** It is the dual value for densities that are constant in each cell. For atoms at
    the cell centres W2² would be larger by about h²/6 an axis, h being the cell's width. So one
    potential is transformed to places between the centres, and both are continued between their
    points such that they stay admissible: this is the lower bound in the report, which holds
    whether or not the method converged. The distance adds what continuing them so costs on average,
    (h² − δ²φ)/12 an axis with second differences δ²φ. It is usually too small, as dual values are:
    W2² by some tenths of h², and by what the method leaves where there is little mass, which a
    smaller tolerance need not change. The tests allow 0.2 % of W2 in 1D and 2D and 1 % in 3D.

    **Densities.** Both ends are pushed towards each other along straight lines, and weighed by
    1 − t and t, so mass and ends are exact. In between they carry the noise of the lattice, for
    maps are differences of potentials that are minima over cells; `report.mismatch` shows how far
    the two parts are apart halfway. The particles of `path.trajectories` follow the map that pushes
    the source.

    Atoms that fill single cells are hard for it: it then stops well below W2, and the densities in
    between are mere noise. `linear-program` is made for these.

    The rule of the steps is the authors': longer after a gain above a share of what the gradient
    promises, shorter below another. They are halved where nothing is gained. Where
    `max_iterations` end before the dual value settles, a `ConvergenceWarning` says so.

    Attributes:
        tolerance: the relative change of W2 over three iterations at which it stops; the error may
            be larger.
        max_iterations: the most iterations; each climbs twice.
    """

    info = SolverInfo(
        name="back-and-forth",
        summary="1D to 3D, any densities, quick W2 with a lower bound; noisy densities in between",
        family="dual ascent",
        dimensions=(1, 2, 3),
        provides=("density", "distance", "trajectories"),
        tolerance="relative change of W2 over three iterations",
        more_iterations="a larger max_iterations",
        menu=MenuEntry("Back-and-forth method", dimensions=(2,)),
    )

    tolerance: float = 1e-3
    max_iterations: int = 200

    def __post_init__(self) -> None:
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g} and max_iterations {self.max_iterations}; "
                "both must be positive."
            )

    def _solve_pair(self, source: Density, target: Density) -> MapGeodesic:
        ascent = _Ascent(cell_masses(source), cell_masses(target), unit_box(source.grid).cells)
        iterations, change = 0, math.inf
        while change > self.tolerance and iterations < self.max_iterations:
            ascent.climb()
            iterations, change = iterations + 1, ascent.relative_change()
            left = f", W2 still changes by {format_percent(change)}" if change < math.inf else ""
            report_progress(f"back-and-forth: iteration {iterations}{left}")
        converged = change <= self.tolerance
        if not converged:
            warnings.warn(
                f"back-and-forth stopped after {iterations} iterations while W2 still changed by "
                f"{format_number(change, 2)} (tolerance {self.tolerance:g}); give more "
                f"{argument('max_iterations')}.",
                ConvergenceWarning,
                stacklevel=user_stacklevel(),
            )
        info = {"iterations": iterations, "relative change": change, "converged": converged}
        return MapGeodesic(source, target, self.name, info, *ascent.best)


class _Ascent:
    """The two potentials on their way up, in the unit box.

    Attributes:
        best: ψ and φ at the largest dual value so far.
    """

    def __init__(self, source: Tensor, target: Tensor, cells: Grid):
        self._source, self._target, self._cells = source, target, cells
        self._inverse = _inverse_laplacian(cells)
        self._step = FIRST_STEP * cells.cell_volume / float(torch.maximum(source, target).max())
        self._psi = self._phi = torch.zeros_like(source)
        self._value = self._promised = 0.0
        self._values = deque([0.0], maxlen=SETTLED + 1)
        self._cell = sum(h**2 for h in cells.spacing)
        self._best_value, self.best = ROUNDING**2 * self._cell, (self._psi, self._phi)

    def climb(self) -> None:
        """One iteration: back and forth."""
        self._psi, self._phi = self._half(self._source, self._target, self._psi, self._phi)
        self._phi, self._psi = self._half(self._target, self._source, self._phi, self._psi)
        self._values.append(self._value)

    def relative_change(self) -> float:
        """Of W2 over the last iterations; infinite while they are too few.

        At least what a step that suits would gain now: the value stands still, too, while steps are
        so long that the map goes from wall to wall.
        """
        if len(self._values) <= SETTLED:
            return math.inf
        change = max(max(self._values) - min(self._values), FLAT * self._promised)
        return change / (2 * (abs(self._value) + LEAST * self._cell))

    def _half(
        self, first: Tensor, second: Tensor, psi: Tensor, phi: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A step along φ's gradient, second − T#first, and the c-transforms: ψ and φ."""
        moved = push_forward(first, displacement(psi, self._cells), self._cells, self._cells.shape)
        missing = (second - moved) / self._cells.cell_volume
        direction, slope = self._preconditioned(missing)
        psi = self._conjugate(phi + self._step * direction)
        phi = self._conjugate(psi)
        value = float((first * psi).sum() + (second * phi).sum())
        self._promised = self._step * slope
        self._adapt(value - self._value)
        self._value = value
        if value >= self._best_value * (1 - ROUNDING):  # the last of those that are the best
            self._best_value = max(value, self._best_value)
            self.best = (psi, phi) if first is self._source else (phi, psi)
        return psi, phi

    def _preconditioned(self, missing: Tensor) -> tuple[Tensor, float]:
        """(−Δ)⁻¹ of it with no flux through the faces, and the slope along that."""
        waves: Any = fft.dctn(missing.numpy(), norm="ortho")
        answer = waves * self._inverse
        slope = float((waves * answer).sum()) * self._cells.cell_volume
        return torch.from_numpy(fft.idctn(answer, norm="ortho", overwrite_x=True)), slope

    def _conjugate(self, potential: Tensor) -> Tensor:
        return transform(-potential, cell_centres(self._cells), weight=0.5)

    def _adapt(self, gain: float) -> None:
        """The rule of Armijo and Goldstein."""
        if gain > STEEP * self._promised:
            self._step *= LONGER
        elif gain < NONE * self._promised:  # or a loss; on a plateau rounding decides between them
            self._step *= HALF
        elif gain < FLAT * self._promised:
            self._step *= SHORTER


def _inverse_laplacian(cells: Grid) -> np.ndarray:
    """One over the eigenvalues of −Δ for the cosines of the cells, as an array; zero for one."""
    total = torch.zeros(cells.shape, dtype=torch.float64)
    for axis, (h, n) in enumerate(zip(cells.spacing, cells.shape, strict=True)):
        angle = math.pi / n * torch.arange(n, dtype=torch.float64)
        along = (2 - 2 * angle.cos()) / h**2
        total += along.reshape(-1, *(1,) * (cells.dimension - 1 - axis))
    total.view(-1)[0] = math.inf
    return (1 / total).numpy()
