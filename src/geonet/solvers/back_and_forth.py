"""The back-and-forth method of Jacobs and Léger (2020) for any densities."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import fft
from torch import Tensor

from geonet._format import format_number, format_percent
from geonet._progress import report_progress
from geonet._utils import pair_label, user_stacklevel
from geonet.density import Density
from geonet.errors import ConvergenceWarning, SolverError
from geonet.grid import Grid, unit_box
from geonet.numerics.c_transform import cell_centres, cell_faces, push_cells, transform
from geonet.numerics.cosine import laplacian_eigenvalues
from geonet.numerics.splines import interpolate_centres
from geonet.paths import Geodesic
from geonet.solvers.base import MenuEntry, Solver, SolverInfo
from geonet.solvers.newton.bounds import bound_distance


@dataclass(frozen=True)
class BackAndForthConfig:
    """Tuning numbers of `BackAndForth`; steps follow the rule of Armijo and Goldstein."""

    first_step: float = 300.0  # times the largest density
    large_gain: float = 0.6  # fraction of the predicted gain above which steps become longer
    small_gain: float = 0.1  # fraction of the predicted gain below which steps become shorter
    no_gain: float = 1e-3  # fraction of the predicted gain below which steps are halved
    growth: float = 1.25  # factor of longer steps
    shrinkage: float = 0.8  # factor of shorter steps
    window: int = 3  # iterations over which the change of W2 is measured
    negligible: float = 1e-3  # W2² that counts as zero, in cells squared
    rounding: float = 1e-7  # relative rounding error of dual values
    max_gap: float = 0.1  # relative distance of the bounds of W2 above which it did not converge
    motionless: float = 1e-3  # W2 in cells up to which densities count as equal


@dataclass(frozen=True)
class BackAndForth(Solver):
    """Back-and-forth method (Jacobs and Léger, 2020): a quick W2 between any densities.

    It takes densities with holes, islands and jumps in 1D to 3D, on any box. Kantorovich's dual
    problem for c(x, y) = ½|x − y|² depends on one potential, either φ or ψ:

        J(φ) = ∫φ dμ1 + ∫φ^c dμ0,      I(ψ) = ∫ψ dμ0 + ∫ψ^c dμ1,      φ^c(x) = min_y c − φ(y)

    The gradient of J in H¹ is (−Δ)⁻¹(μ1 − T#μ0) with T(x) = x − ∇φ^c(x), and similarly for I.
    Ascent steps alternate between J and I, with c-transforms in between: one functional is flat
    where T expands, the other where T contracts. A step takes time proportional to the number of
    cells. Ten to twenty iterations are typical at any resolution.

    **Distance.** The dual value for densities that are constant in each cell. (For atoms at the
    cell centres W2² would be larger by about h²/6 per axis, h being the cell width.) One potential
    is transformed to points between the centres, and both are extended between their points such
    that they remain admissible: this is the lower bound in the report, which holds even without
    convergence. The distance adds the average cost of this extension, (h² − δ²φ)/12 per axis with
    second differences δ²φ. Like every dual value it is usually too small: W2² by a few tenths of
    h², and by the remaining error in regions with little mass, which a smaller tolerance need not
    remove. The tests allow 0.2 % of W2 in 1D and 2D and 1 % in 3D.

    **Densities.** Both ends are pushed towards each other along straight lines and blended with
    weights 1 − t and t, so mass and ends are exact. In between they contain lattice noise, because
    the maps are differences of potentials that are minima over cells; `report.mismatch` is the
    difference of the two parts at t = ½. The particles of `path.trajectories` follow the map that
    pushes the source.

    **Periodic axes.** The cost is the squared distance the shorter way round, (−Δ)⁻¹ is periodic,
    and mass wraps.

    Atoms that fill single cells are hard for this method: it stops well below W2, and the densities
    in between are noise. Use `linear-program` for these.

    If `max_iterations` is reached before the dual value settles, a `ConvergenceWarning` is issued.

    Attributes:
        tolerance: relative change of W2 over three iterations at which the method stops; the error
            may be larger.
        max_iterations: largest number of iterations, of two ascent steps each.
    """

    info = SolverInfo(
        name="back-and-forth",
        summary="1D to 3D, any densities, quick W2 with a lower bound; noisy densities in between",
        family="dual ascent",
        dimensions=(1, 2, 3),
        provides=("density", "distance", "trajectories"),
        periodic=True,
        tolerance="relative change of W2 over three iterations",
        more_iterations="a larger max_iterations",
        menu=MenuEntry("Back-and-forth method", dimensions=(2,)),
    )
    config: ClassVar[BackAndForthConfig] = BackAndForthConfig()

    tolerance: float = 1e-3
    max_iterations: int = 200

    def __post_init__(self) -> None:
        if not self.tolerance > 0 or self.max_iterations < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g} and max_iterations {self.max_iterations}; "
                "both must be positive."
            )

    def _solve_pair(self, source: Density, target: Density) -> MapGeodesic:
        cells = unit_box(source.grid).cells
        ascent = _Ascent(cell_masses(source), cell_masses(target), cells, self.config)
        iterations, change = 0, math.inf
        while change > self.tolerance and iterations < self.max_iterations:
            ascent.iterate()
            iterations, change = iterations + 1, ascent.relative_change()
            text = f", change of W2 {format_percent(change)}" if change < math.inf else ""
            report_progress(f"back-and-forth: iteration {iterations}{text}")
        info = {"iterations": iterations, "relative change": change, "converged": True}
        path = MapGeodesic(source, target, self.name, info, *ascent.best)
        label = f"{pair_label()}: " if pair_label() else ""
        if change > self.tolerance:
            info["converged"] = False
            warnings.warn(
                f"{label}back-and-forth stopped after {iterations} iterations while W2 still "
                f"changed by {format_number(change, 2)} (tolerance {self.tolerance:g}); use a "
                "larger max_iterations.",
                ConvergenceWarning,
                stacklevel=user_stacklevel(),
            )
        elif not path.is_certified(self.config):
            info |= {"converged": False, "stagnated": True}
            lower, upper = (format_number(float(bound), 3) for bound in path.certified_bounds)
            warnings.warn(
                f"{label}back-and-forth stagnated with bounds of W2 that are far apart, {lower} "
                f"and {upper}; choose solver='midpoint'.",
                ConvergenceWarning,
                stacklevel=user_stacklevel(),
            )
        return path


class _Ascent:
    """Dual ascent for both potentials, in the unit box.

    Attributes:
        best: ψ and φ with the largest dual value so far.
    """

    def __init__(self, source: Tensor, target: Tensor, cells: Grid, config: BackAndForthConfig):
        self._source, self._target, self._cells, self._config = source, target, cells, config
        eigenvalues = laplacian_eigenvalues(cells.shape, cells.spacing, cells.periodic)
        self._inverse = (1 / eigenvalues).numpy()
        peak = float(torch.maximum(source, target).max()) / cells.cell_volume
        self._step = config.first_step / peak
        self._psi = self._phi = torch.zeros_like(source)
        self._value = self._predicted = 0.0
        self._values = deque([0.0], maxlen=config.window + 1)
        self._squared_cell = len(cells.shape) * min(cells.spacing) ** 2
        self._best_value = config.rounding**2 * self._squared_cell
        self.best = self._psi, self._phi

    def iterate(self) -> None:
        """Take one step for φ and one for ψ."""
        self._psi, self._phi = self._half_step(self._source, self._target, self._psi, self._phi)
        self._phi, self._psi = self._half_step(self._target, self._source, self._phi, self._psi)
        self._values.append(self._value)

    def relative_change(self) -> float:
        """Return the relative change of W2 in the last iterations; ∞ if there were too few.

        It is at least the gain that a suitable step predicts, because the dual value also stagnates
        while steps are so long that the map jumps from wall to wall.
        """
        config = self._config
        if len(self._values) <= config.window:
            return math.inf
        change = max(max(self._values) - min(self._values), config.small_gain * self._predicted)
        return change / (2 * (abs(self._value) + config.negligible * self._squared_cell))

    def _half_step(
        self, first: Tensor, second: Tensor, psi: Tensor, phi: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Step along the gradient second − T#first of φ, and return the c-transforms ψ and φ."""
        moved = push_forward(first, displacement_at(psi, self._cells), self._cells)
        direction, slope = self._precondition((second - moved) / self._cells.cell_volume)
        psi = self._c_transform(phi + self._step * direction)
        phi = self._c_transform(psi)
        value = float((first * psi).sum() + (second * phi).sum())
        self._predicted = self._step * slope
        self._adapt_step(value - self._value)
        self._value = value
        if value >= self._best_value * (1 - self._config.rounding):  # the last of equal ones
            self._best_value = max(value, self._best_value)
            self.best = (psi, phi) if first is self._source else (phi, psi)
        return psi, phi

    def _precondition(self, difference: Tensor) -> tuple[Tensor, float]:
        """Return (−Δ)⁻¹ of a field, without flux through walls, and the slope along it."""
        periodic = self._cells.periodic
        circles = [axis for axis, wraps in enumerate(periodic) if wraps]
        walls = [axis for axis, wraps in enumerate(periodic) if not wraps]
        modes: Any = difference.numpy()
        if walls:
            modes = fft.dctn(modes, axes=walls, norm="ortho")
        if circles:
            modes = fft.fftn(modes, axes=circles, norm="ortho")
        solution = modes * self._inverse
        slope = float((modes.conj() * solution).sum().real) * self._cells.cell_volume
        if circles:
            inverse: Any = fft.ifftn(solution, axes=circles, norm="ortho")
            solution = np.ascontiguousarray(inverse.real)
        if walls:
            solution = fft.idctn(solution, axes=walls, norm="ortho", overwrite_x=True)
        return torch.from_numpy(solution), slope

    def _c_transform(self, potential: Tensor) -> Tensor:
        centres, periodic = cell_centres(self._cells), self._cells.periodic
        return transform(-potential, centres, weight=0.5, periodic=periodic)

    def _adapt_step(self, gain: float) -> None:
        config = self._config
        if gain > config.large_gain * self._predicted:
            self._step *= config.growth
        elif gain < config.no_gain * self._predicted:  # or a loss; on a plateau rounding decides
            self._step *= 0.5
        elif gain < config.small_gain * self._predicted:
            self._step *= config.shrinkage


class MapGeodesic(Geodesic):
    """Path (1−t)·(T_t)#μ_0 + t·(T⁻¹_{1−t})#μ_1 of the maps that two potentials define.

    T(x) = x − ∇ψ(x), T_t(x) = x + t(T(x) − x), and similarly for T⁻¹. Mass and ends are exact. With
    exact potentials the two parts agree; on a lattice both are noisy, and `report.mismatch` is
    their difference at t = ½. Potentials are in the unit box (see `UnitBox`).
    """

    kind = "map"
    has_bounds = True

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
        """Return the estimate from both potentials, within the bounds."""
        estimate = self._unit.from_length(self._squared_distances[1].clamp(min=0).sqrt())
        return estimate.clamp(*self.certified_bounds)

    @property
    def certified_bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds of W2 from the potentials and from the moments of both ends."""
        (lower, upper), moments = self._bounds, self._moment_bounds
        upper = torch.minimum(upper, moments[1].double())
        return torch.minimum(torch.maximum(lower, moments[0].double()), upper), upper

    def is_certified(self, config: BackAndForthConfig) -> bool:
        """Return whether the bounds of W2 are close, or both ends count as equal."""
        lower, upper = (float(bound) for bound in self.certified_bounds)
        still = config.motionless * min(self.grid.spacing)
        return upper <= still or upper - lower <= config.max_gap * upper

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        frames = [torch.lerp(*self._push_both(t, grid), t) for t in times.tolist()]
        return torch.stack(frames)

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Return x + t(T(x) − x), with the map that pushes the source."""
        start = self._unit.to_points(points)
        step = _interpolate_corners(self._displacements[0], start, self._unit.cells)
        end = start + step
        sides = torch.tensor(self._unit.sides, dtype=torch.float64)
        is_circle = torch.tensor(self.grid.periodic)
        end = torch.where(is_circle, end, end.clamp(torch.zeros_like(sides), sides))
        return self._unit.from_points(torch.lerp(start, end, times[:, None, None]))

    def _diagnostics(self) -> dict[str, Tensor]:
        forward, backward = self._push_both(0.5, self.grid)
        distance, (lower, upper) = self._distance(), self.certified_bounds
        return {
            "distance_lower_bound": lower,
            "distance_upper_bound": upper,
            "distance_uncertainty": torch.maximum(upper - distance, distance - lower),
            "mismatch": (forward - backward).abs().sum() * self.grid.cell_volume,
        }

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds of W2, from the potential at t = ½ and from those at the ends."""
        lower, estimate = (value.clamp(min=0).sqrt() for value in self._squared_distances)
        periodic = self.grid.periodic
        midpoint = transform(-self._psi, cell_centres(self._unit.cells), periodic=periodic)
        source, target = (self._unit.to_density(end.tensor) for end in (self.source, self.target))
        coefficients, sides = interpolate_centres(midpoint, periodic), self._unit.sides
        bounds = bound_distance(
            coefficients, source, target, sides, float(estimate), periodic=periodic
        )
        below, above = self._unit.from_length(torch.tensor(bounds, dtype=torch.float64))
        return torch.minimum(torch.maximum(below, self._unit.from_length(lower)), above), above

    def _push_both(self, t: float, grid: Grid) -> tuple[Tensor, Tensor]:
        """Push the source forward and the target back to time t, (*grid.shape) each."""
        forward, backward = self._displacements
        cells = self._unit.cells
        first = push_forward(cell_masses(self.source), t * forward, cells, grid.shape)
        second = push_forward(cell_masses(self.target), (1 - t) * backward, cells, grid.shape)
        return first / grid.cell_volume, second / grid.cell_volume

    @cached_property
    def _displacements(self) -> tuple[Tensor, Tensor]:
        cells = self._unit.cells
        return displacement_at(self._psi, cells), displacement_at(self._phi, cells)

    @cached_property
    def _squared_distances(self) -> tuple[Tensor, Tensor]:
        """Lower bound and estimate of W2² in the unit box, each the larger of both directions."""
        first, second = cell_masses(self.source), cell_masses(self.target)
        cells = self._unit.cells
        lower, estimate = dual_estimates(first, second, self._phi, cells)
        reverse_lower, reverse_estimate = dual_estimates(second, first, self._psi, cells)
        return torch.maximum(lower, reverse_lower), torch.maximum(estimate, reverse_estimate)

    def _state(self) -> dict[str, np.ndarray]:
        return {"psi": self._psi.numpy(), "phi": self._phi.numpy()}

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> MapGeodesic:
        potentials = (torch.from_numpy(state[key]) for key in ("psi", "phi"))
        return cls(source, target, solver, info, *potentials)


def cell_masses(density: Density) -> Tensor:
    """Return the mass of each cell in float64; they sum to one up to rounding."""
    values = density.tensor.detach().to(torch.float64)
    return values / values.sum()


def displacement_at(potential: Tensor, cells: Grid) -> Tensor:
    """Return −∇ψ at the corners of the cells, (d, *(shape + 1)), for ψ at their centres.

    Differences of neighbours are averaged over those that meet at a corner and extrapolated
    linearly at walls.
    """
    slopes = []
    for axis, h in enumerate(cells.spacing):
        if cells.periodic[axis]:
            slope = _wrap_ends(potential, axis).diff(dim=axis) / -h
        else:
            slope = _extrapolate(potential.diff(dim=axis) / -h, axis)
        for other in range(potential.ndim):
            if other != axis:
                extend = _wrap_ends if cells.periodic[other] else _extrapolate
                wide = extend(slope, other)
                n = wide.shape[other] - 1
                slope = (wide.narrow(other, 0, n) + wide.narrow(other, 1, n)) / 2
        slopes.append(slope)
    return torch.stack(slopes)


def _wrap_ends(values: Tensor, axis: int) -> Tensor:
    """Add the last value in front of an axis, and the first one at its end."""
    last = values.shape[axis] - 1
    return torch.cat([values.narrow(axis, last, 1), values, values.narrow(axis, 0, 1)], axis)


def _extrapolate(values: Tensor, axis: int) -> Tensor:
    """Add one value at either end of an axis, linearly if there are at least two."""
    last = values.shape[axis] - 1
    first, final = values.narrow(axis, 0, 1), values.narrow(axis, last, 1)
    if last > 0:
        first = 2 * first - values.narrow(axis, 1, 1)
        final = 2 * final - values.narrow(axis, last - 1, 1)
    return torch.cat([first, values, final], axis)


def push_forward(
    mass: Tensor, displacement: Tensor, cells: Grid, shape: tuple[int, ...] | None = None
) -> Tensor:
    """Move the corners of the cells and return the masses on a grid of the same box.

    Args:
        mass: mass of each cell, (*cells.shape).
        displacement: of the corners, (d, *(cells.shape + 1)).
        cells: the grid.
        shape: shape of the result; by default the shape of `cells`.
    """
    shape = cells.shape if shape is None else shape
    edges = torch.meshgrid(*cells.edges(), indexing="ij")
    axes = zip(edges, displacement, cells.lower, shape, cells.lengths, strict=True)
    corners = [(edge + step - low) * (n / length) - 0.5 for edge, step, low, n, length in axes]
    return push_cells(mass, torch.stack(corners), shape, cells.periodic)


def _interpolate_corners(field: Tensor, points: Tensor, cells: Grid) -> Tensor:
    """Interpolate a field (d, *(shape + 1)) at corners multilinearly at points (N, d): (N, d)."""
    spacing = torch.tensor(cells.spacing, dtype=torch.float64)
    last = torch.tensor(cells.shape) - 1
    position = (points - cells.lower_tensor) / spacing
    low = torch.minimum(position.long().clamp(min=0), last)
    fraction = (position - low).clamp(0, 1)
    result = torch.zeros_like(points)
    for corner in product((0, 1), repeat=cells.dimension):
        up = torch.tensor(corner)
        weight = torch.where(up == 1, fraction, 1 - fraction).prod(-1)
        result += weight[:, None] * field[(slice(None), *(low + up).unbind(-1))].T
    return result


def dual_estimates(
    first: Tensor, second: Tensor, phi: Tensor, cells: Grid, parts: int = 2
) -> tuple[Tensor, Tensor]:
    """Return a lower bound and an estimate of W2² from a potential φ at the second's cell centres.

    Both are for densities that are constant in each cell, with masses `first` and `second`, and not
    for atoms at the centres, whose W2² is larger by about h²/6 per axis.

    **Lower bound.** ψ is the c-transform of φ at the corners of the first's cells and `parts` − 1
    points between them; φ becomes the c-transform of ψ at the centres of the second's cells and one
    cell beyond. If φ + ψ ≤ c holds on two lattices, it also holds between their points if
    ½|x|² − ψ and ½|y|² − φ are multilinear there, since a linear function below such values at the
    corners of a cell is below them inside too. Compared with multilinear φ and ψ, this costs Σh²/12
    for φ and Σ(h/parts)²/12 for ψ. Only cells with mass count. Along periodic axes all of this
    holds on the line, with periodic φ and ψ.

    **Estimate.** Between its points φ need not be that low: a smooth φ through these values has a
    mean over a cell that is higher by (h² − δ²φ)/24 per axis, with the second difference δ²φ ≤ h².
    For equal ends the estimate is zero up to rounding.
    """
    fine, wide, periodic = cell_faces(cells, parts), cell_centres(cells, beyond=1), cells.periodic
    phi = torch.where(second > 0, -phi, torch.inf)
    psi = transform(phi, cell_centres(cells), fine, 0.5, periodic)
    used = torch.where(_mark_corners(first > 0, parts, periodic), -psi, torch.inf)
    for axis in (axis for axis, wraps in enumerate(periodic) if wraps):
        used = used.narrow(axis, 0, used.shape[axis] - 1)  # the last face is the first one
    once = [replace(one, count=n) for one, n in zip(fine, used.shape, strict=True)]
    phi = transform(used, once, wide, 0.5, periodic)
    squares = sum(h**2 for h in cells.spacing)
    mean, curvature = phi, torch.zeros_like(second)
    for axis in range(second.ndim):
        psi = _average_parts(psi, axis, parts)
        mean = mean + _second_difference(mean, axis) / 8
        curvature += _crop(_second_difference(phi, axis))
    half = (first * psi).sum() + (second * _crop(mean)).sum()
    half = half - squares * (1 + parts**-2) / 12
    return 2 * half, 2 * half + (squares - (second * curvature).sum()) / 12


def _mark_corners(has_mass: Tensor, parts: int, periodic: Sequence[bool]) -> Tensor:
    """Return a mask of the points `cell_faces(cells, parts)` that belong to a cell with mass."""
    for axis, wraps in enumerate(periodic):
        fine = has_mass.repeat_interleave(parts, axis)
        first, last = fine.narrow(axis, 0, 1), fine.narrow(axis, fine.shape[axis] - 1, 1)
        none = torch.zeros_like(first)
        above, below = (first, last) if wraps else (none, none)
        has_mass = torch.cat([fine, above], axis) | torch.cat([below, fine], axis)
    return has_mass


def _average_parts(values: Tensor, axis: int, parts: int) -> Tensor:
    """Return means over cells of a function that is linear between its points, along an axis."""
    n = values.shape[axis] - 1
    middle = (values.narrow(axis, 0, n) + values.narrow(axis, 1, n)) / 2
    return middle.unflatten(axis, (n // parts, parts)).mean(axis + 1)


def _second_difference(values: Tensor, axis: int) -> Tensor:
    """Return f(k − 1) − 2f(k) + f(k + 1) along an axis; zero at both ends."""
    none = torch.zeros_like(values.narrow(axis, 0, 1))
    return torch.cat([none, values.diff(n=2, dim=axis), none], axis)


def _crop(values: Tensor) -> Tensor:
    """Remove the first and the last entry along every axis."""
    return values[(slice(1, -1),) * values.ndim]
