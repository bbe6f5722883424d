"""Wasserstein barycenters of any number of densities on one grid."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._files import atomic_write
from geonet._format import format_number, format_percent
from geonet._progress import progress_stage, report_progress
from geonet._threads import limit_threads
from geonet._utils import import_object, user_stacklevel
from geonet._validation import as_path, check_index, is_integer, short_repr
from geonet.barycenter_report import BarycenterReport, build_report, join_reports
from geonet.density import (
    Array,
    Density,
    as_points,
    clip_to_box,
    requires_grad,
    to_user_array,
)
from geonet.errors import ConvergenceWarning, FileError, InputError, UnavailableError
from geonet.grid import Grid, unit_box
from geonet.io import compute_digest
from geonet.numerics.c_transform import Lattice, transform
from geonet.numerics.splines import evaluate_at_points, repeat_cells
from geonet.paths import Geodesic
from geonet.solvers.barycenters import (
    BarycenterOptions,
    Solution,
    check_densities,
    solve_barycenters,
)
from geonet.solvers.newton.adjoint import differentiate_mean, differentiate_solution
from geonet.solvers.newton.bounds import bound_barycenter
from geonet.solvers.newton.compiled import Formulation
from geonet.solvers.newton.lattices import evaluate_at_vertices
from geonet.solvers.newton.path import PeriodicRoll
from geonet.weights import check_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def barycenter(
    densities: Sequence[Density] | Density,
    weights: ArrayLike | Tensor | None = None,
    *,
    reach: float | None = None,
    tolerance: float = 1.5e-3,
    max_iterations: int = 20,
    time_limit: float | None = None,
) -> Any:
    """Return the W2 barycenter of densities: the ρ with the smallest Σ w_i W2²(ρ, μ_i).

    It is computed for densities that are constant in each cell, by Newton's method for all
    potentials at once, without entropy: the barycenter is as sharp as the densities.

    Args:
        densities: μ_i, two or more on one grid in 1D to 3D: a list, or one batch.
        weights: w_i, not negative, with sum one; uniform by default. If the sum differs from one
            by up to 0.5 %, as for (0.333, 0.333, 0.333), they are divided by it. Weights (..., N)
            give many barycenters, each of which starts from the potentials of a neighbour. Weights
            below 1e-6 count as zero.
        reach: length over which mass moves, by Gaussian–Hellinger transport; mass without a partner
            within about this length stays with its weight, and masses count as given: ρ has their
            weighted mean. None for balanced transport, in which every density has mass one.
        tolerance: share of the mass that may remain unbalanced.
        max_iterations: largest number of Newton steps in one run on a level; the coarsest level has
            a run for each blur of the densities.
        time_limit: seconds for each barycenter after which the best potentials so far are the
            result, which the report then calls not converged. None for no limit.

    Returns:
        A `Barycenter`, or `Barycenters` of the shape (...) for weights (..., N).
    """
    batch = check_densities(densities)
    rows = check_weights(weights, len(batch))
    options = BarycenterOptions(reach, tolerance, max_iterations, time_limit)
    flat = rows.reshape(-1, len(batch))
    solved = solve_silently(batch, flat, options)
    _warn_unless_converged(solved)
    return solved[0] if rows.ndim == 1 else Barycenters(_to_objects(solved, rows.shape[:-1]))


@torch.no_grad()
def solve_silently(
    densities: Density, weights: Tensor, options: BarycenterOptions
) -> list[Barycenter]:
    """Return barycenters of a checked batch for weights (M, N), without a warning."""
    with limit_threads(densities.grid.size):
        solutions = solve_barycenters(densities, weights, options)
    pairs = zip(weights, solutions, strict=True)
    return [Barycenter(densities, own, solution, options) for own, solution in pairs]


def _warn_unless_converged(solved: list[Barycenter]) -> None:
    """Warn if any barycenter did not reach the tolerance."""
    missed = [one.solution.residual for one in solved if not one.converged]
    if not missed:
        return
    subject = f"{len(missed)} of {len(solved)} barycenters" if len(solved) > 1 else "The barycenter"
    share = f"{'up to ' if len(missed) > 1 else ''}{format_percent(max(missed))}"
    tolerance = format_number(100 * solved[0].options.tolerance)
    warnings.warn(
        f"{subject} did not reach the tolerance of {tolerance} % ({share} of the mass is not "
        "balanced); the report states how accurate the result is, and how to improve it.",
        ConvergenceWarning,
        stacklevel=user_stacklevel(),
    )


def _to_objects(solved: list[Barycenter], shape: Sequence[int]) -> np.ndarray:
    items = np.empty(len(solved), dtype=object)
    items[:] = solved
    return items.reshape(tuple(shape))


class Barycenter:
    """The W2 barycenter ρ of densities μ_i with weights w_i.

    Results have the array type of the densities: torch tensors if one of them is, else NumPy
    arrays, and floats for single numbers.

    Attributes:
        densities: μ_i, a batch.
        options: options of the solver.
        solution: potentials and density in the unit box.
    """

    kind = "barycenter"

    def __init__(
        self, densities: Density, weights: Tensor, solution: Solution, options: BarycenterOptions
    ):
        self.densities, self.options, self.solution = densities, options, solution
        self._weights, self._box = weights, unit_box(densities.grid)
        self._paths: dict[int, Geodesic] = {}

    @property
    def grid(self) -> Grid:
        """The grid of all densities."""
        return self.densities.grid

    @property
    def is_torch(self) -> bool:
        """True if results are torch tensors."""
        return self.densities.is_torch

    @property
    def weights(self) -> Array:
        """w_i, (N,)."""
        return to_user_array(self._weights, self.is_torch)

    @cached_property
    def density(self) -> Density:
        """ρ, a single density; its values have mass one but for errors of the solver."""
        if self._single is not None:
            return self.densities[self._single]
        density = self.solution.density
        if requires_grad(self.densities):
            density = self._differentiable_density()
        values = self._box.from_density(density).to(self.densities.tensor.dtype)
        mass = self._weights @ self.densities.mass_tensor
        return Density.from_unnormalized(values, self.grid, mass, self.is_torch)

    @property
    def mass(self) -> Array:
        """The weighted mean of the masses that were given; with a reach, the mass of ρ."""
        return self.density.mass

    @property
    def converged(self) -> bool:
        """True if the solver reached its tolerance."""
        return bool(self.solution.info["converged"])

    @property
    def objective(self) -> Array:
        """Σ w_i W2²(ρ, μ_i), within its bounds; differentiable with respect to the densities.

        With a reach it is the minimum over all σ and plans π_i from σ to any densities of
        Σ w_i (∫|x − y|²dπ_i + reach²·KL(second marginal of π_i | μ_i)).
        """
        value = self.estimate
        if self.options.reach is None:
            lower, upper = self._bounds
            value = min(max(value, lower), upper)
        result = torch.tensor(value, dtype=torch.float64)
        if requires_grad(self.densities) and self._single is None:
            result = self._attach_gradient(result)
        return to_user_array(result, self.is_torch)

    @property
    def estimate(self) -> float:
        """The objective by the solver, without the bounds that take longer to compute."""
        return self._box.from_potential(self.solution.value)

    @property
    def lower_bound(self) -> Array:
        """Lower bound of Σ w_i W2²(ρ, μ_i) for all densities ρ."""
        return self._to_user(self._bounds[0])

    @property
    def upper_bound(self) -> Array:
        """Upper bound of Σ w_i W2²(ρ, μ_i) for this density ρ."""
        return self._to_user(self._bounds[1])

    @property
    def gap(self) -> Array:
        """(upper bound − lower bound)/upper bound: ρ is optimal up to this share."""
        lower, upper = self._bounds
        return self._to_user((upper - lower) / upper if upper > 0 else 0.0)

    def potential(self, index: int, points: ArrayLike | Tensor) -> Array:
        """Return ψ_i at points (..., d) of the barycenter: (...).

        The map to density i is y + ∇ψ_i, and Σ w_i ψ_i = 0 over weights above zero.
        """
        i, points = self._check_index(index), self._as_points(points)
        flat = points.reshape(-1, self.grid.dimension)
        if self._weights[i] > 0:
            values = self._box.from_potential(self._evaluate(i, flat)[0])
        else:
            values = torch.as_tensor(self._path_to(i).potential(0.0, flat))
        return to_user_array(values.reshape(points.shape[:-1]), self.is_torch)

    def map(self, index: int, points: ArrayLike | Tensor) -> Array:
        """Return where the optimal map to density i takes points (..., d): (..., d)."""
        i, points = self._check_index(index), self._as_points(points)
        flat = points.reshape(-1, self.grid.dimension)
        if self._weights[i] > 0:
            moved = flat + self._box.from_length(self._evaluate(i, flat)[1])
            inside = moved.clamp(self.grid.lower_tensor, self.grid.upper_tensor)
            moved = torch.where(torch.tensor(self.grid.periodic), moved, inside)
        else:
            moved = torch.as_tensor(self._path_to(i).trajectories(1.0, flat))
        return to_user_array(self.grid.wrap(moved).reshape(points.shape), self.is_torch)

    @cached_property
    @torch.no_grad()
    def report(self) -> BarycenterReport:
        """Bounds, residual and course of the iteration."""
        return build_report(self)

    @torch.no_grad()
    def plot(self, **style: Any) -> Figure:
        """Return a figure of the densities with their weights, and of the barycenter.

        Args:
            **style: colours and units, see `geonet.plotting.Style`.
        """
        plot = import_object("geonet.plotting.barycenters:plot_barycenter")
        return plot(self, import_object("geonet.plotting.style:Style")(**style))

    @torch.no_grad()
    def animate(self, file: str | Path, frames: int = 21, **style: Any) -> Path:
        """Write a .gif, or with ffmpeg an .mp4, that runs from each density to the barycenter.

        Args:
            file: the file to write.
            frames: number of frames between a density and the barycenter.
            **style: colours and units, see `geonet.plotting.Style`.
        """
        animate = import_object("geonet.plotting.barycenters:animate_barycenter")
        style_object = import_object("geonet.plotting.style:Style")(**style)
        return animate(self, as_path(file), frames, style_object)

    @torch.no_grad()
    def explore(self, file: str | Path, table: int = 9, **style: Any) -> Path:
        """Write one interactive .html file in which the weights follow a point that is dragged.

        It computes a table of barycenters on at most 128² cells. Any browser opens the file
        offline. The point moves on a segment for two densities, in a triangle for three, a square
        for four and a polygon for more.

        Args:
            file: the file to write.
            table: number of barycenters along a side of the table.
            **style: colours and units, see `geonet.plotting.Style`.
        """
        explore = import_object("geonet.plotting.explore_weights:explore_barycenter")
        style_object = import_object("geonet.plotting.style:Style")(**style)
        return explore(self, as_path(file), table, style_object)

    def save(self, file: str | Path) -> Path:
        """Write an npz with the density and the weights for any reader, and all for `load`."""
        return _save(file, self.kind, [self], ())

    def __repr__(self) -> str:
        return f"Barycenter({len(self._weights)} densities, {self.grid})"

    @cached_property
    def _single(self) -> int | None:
        """Index of the only density of weight above zero; None if there are several."""
        kept = self._weights.nonzero().flatten()
        return int(kept[0]) if len(kept) == 1 else None

    @cached_property
    @torch.no_grad()
    def _bounds(self) -> tuple[float, float]:
        """Bounds of the objective, for all densities and for this one, in the user's units."""
        if self.options.reach is not None:
            raise UnavailableError(
                "Bounds of a barycenter exist without reach only; use objective, an estimate."
            )
        if self._single is not None:
            return 0.0, 0.0
        box, solution, densities = self._box, self.solution, self.densities.tensor.detach()
        roll = PeriodicRoll.centre(self.grid, densities.sum(0))
        report_progress("bounding the objective")
        with limit_threads(self.grid.size):
            lower, upper = bound_barycenter(
                roll.apply(solution.potentials),
                self._weights,
                box.to_density(roll.apply(densities)),
                roll.apply(solution.density),
                box.sides,
                self.grid.periodic,
                solution.value,
            )
        lower, upper = box.from_potential(lower), box.from_potential(upper)
        return min(lower, upper), upper  # they may be equal up to rounding

    def _differentiable_density(self) -> Tensor:
        """Return the values in the unit box, (*shape), as a function of the densities."""
        kept, box = self._weights.nonzero().flatten(), self._box
        own = self.solution.potentials[kept]
        shares, masses = self._weights[kept], self.densities.mass_tensor[kept]
        reach = None if self.options.reach is None else self.options.reach / box.length
        weights = tuple((shares / shares.sum()).tolist())
        formulation = Formulation(self.grid.periodic, reach, weights=weights)
        values = [
            repeat_cells(box.to_density(self.densities.tensor[i]), own.shape[1:])
            * (1.0 if reach is None else mass / (shares @ masses).detach())
            for i, mass in zip(kept.tolist(), masses, strict=True)
        ]
        potentials = differentiate_solution(own, values, box.sides, formulation)
        density = differentiate_mean(potentials, values, box.sides, formulation)
        for axis, n in enumerate(self.grid.shape):
            density = density.unflatten(axis, (n, -1)).mean(axis + 1)
        return density / (density.sum() * box.cells.cell_volume)

    def _attach_gradient(self, value: Tensor) -> Tensor:
        """Return the objective with the gradient 2w_i φ_i of the envelope theorem.

        φ_i(x) = min_y ½|x − y|² + ψ_i(y) are the potentials of the dual problem. With a reach the
        gradient is 2w_i λ(1 − exp(−φ_i/λ)).
        """
        box, volume = self._box, self.grid.cell_volume
        spacing = zip(box.sides, self.grid.shape, strict=True)
        centres = [Lattice(side / n / 2, side / n, n) for side, n in spacing]
        for i in self._weights.nonzero().flatten().tolist():
            periodic = self.grid.periodic
            psi, vertices = evaluate_at_vertices(self.solution.potentials[i], box.sides, periodic)
            phi = transform(psi, vertices, centres, 0.5, periodic=periodic)
            slope = box.from_potential(phi)
            values = self.densities.tensor[i].double()
            if self.options.reach is not None:
                penalty = 0.5 * self.options.reach**2
                slope = penalty * -torch.expm1((-slope / penalty).clamp(max=40))
                values = values * self.densities.mass_tensor[i]
            part = 2 * self._weights[i] * (values * slope).sum() * volume
            value = value + (part - part.detach())
        return value

    def _evaluate(self, i: int, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return ψ_i and its gradient at points (M, d) of the box, in the unit box."""
        coefficients = self.solution.potentials[i]
        shape = coefficients.shape
        step = [side / n for side, n in zip(self._box.sides, shape, strict=True)]
        unit = self._box.to_points(points)
        jet = evaluate_at_points(coefficients, step, unit, self.grid.periodic)
        return jet.value, jet.gradient

    @torch.no_grad()
    def _path_to(self, i: int) -> Geodesic:
        """Return the geodesic to a density of weight zero, which no solve has included."""
        if i not in self._paths:
            options = {"reach": self.options.reach, "time_limit": self.options.time_limit}
            solve = import_object("geonet.api:geodesic")
            self._paths[i] = solve(self.density, self.densities[i].detach(), **options)
        return self._paths[i]

    def _check_index(self, index: int) -> int:
        check_index(index, len(self._weights), slices=False)
        return int(index) % len(self._weights)

    def _as_points(self, points: ArrayLike | Tensor) -> Tensor:
        return clip_to_box(as_points(points, self.grid.dimension), self.grid)

    def _to_user(self, value: float) -> Array:
        return to_user_array(torch.tensor(value, dtype=torch.float64), self.is_torch)


class Barycenters(Sequence):
    """Barycenters of the same densities with many weights, in an array of any shape.

    `table[0]` is the first row and `table[0, 2]` a `Barycenter`, as in NumPy.

    Args:
        items: the barycenters, an array of objects.
    """

    kind = "barycenters"

    def __init__(self, items: np.ndarray):
        self._items = items

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weights without their last axis."""
        return self._items.shape

    @property
    def flat(self) -> list[Barycenter]:
        """All barycenters in a list, row by row."""
        return list(self._items.flat)

    @property
    def densities(self) -> Density:
        """The densities of all barycenters, a batch."""
        return self._first.densities

    @property
    def grid(self) -> Grid:
        """The grid of all densities."""
        return self._first.grid

    @property
    def is_torch(self) -> bool:
        """True if results are torch tensors."""
        return self._first.is_torch

    @property
    def weights(self) -> Array:
        """The weights, (*shape, N)."""
        return self._stack(lambda one: one._weights)

    @cached_property
    def density(self) -> Density:
        """The barycenters as a batch, (*shape, *grid.shape)."""
        each = [one.density for one in self._items.flat]
        values = torch.stack([one.tensor for one in each])
        mass = torch.stack([one.mass_tensor for one in each])
        values = values.reshape(*self.shape, *self.grid.shape)
        return Density.from_unnormalized(values, self.grid, mass.reshape(self.shape), self.is_torch)

    @property
    def mass(self) -> Array:
        """The mass of each barycenter, (*shape)."""
        return self.density.mass

    @property
    def objective(self) -> Array:
        """Σ w_i W2²(ρ, μ_i) of each barycenter, (*shape)."""
        return self._stack(lambda one: one.objective, "bounds")

    @property
    def lower_bound(self) -> Array:
        """A lower bound of the objective of each barycenter for any density, (*shape)."""
        return self._stack(lambda one: one.lower_bound, "bounds")

    @property
    def upper_bound(self) -> Array:
        """An upper bound of the objective of each barycenter, (*shape)."""
        return self._stack(lambda one: one.upper_bound, "bounds")

    @property
    def gap(self) -> Array:
        """The relative distance of the bounds of each barycenter, (*shape)."""
        return self._stack(lambda one: one.gap, "bounds")

    @cached_property
    def report(self) -> BarycenterReport:
        """The reports of all barycenters, with a list for each entry."""
        reports, count = [], self._items.size
        for k, one in enumerate(self._items.flat, 1):
            with progress_stage(f"barycenter {k} of {count}"):
                reports.append(one.report)
        return join_reports(reports)

    @torch.no_grad()
    def plot(self, **style: Any) -> Figure:
        """Return a figure of all barycenters: a row, a table, or the triangle of three densities.

        Args:
            **style: colours and units, see `geonet.plotting.Style`.
        """
        plot = import_object("geonet.plotting.barycenters:plot_barycenters")
        return plot(self, import_object("geonet.plotting.style:Style")(**style))

    @torch.no_grad()
    def animate(self, file: str | Path, **style: Any) -> Path:
        """Write a .gif, or with ffmpeg an .mp4, that runs through the table and back.

        Args:
            file: the file to write.
            **style: colours and units, see `geonet.plotting.Style`.
        """
        animate = import_object("geonet.plotting.barycenters:animate_barycenters")
        return animate(self, as_path(file), import_object("geonet.plotting.style:Style")(**style))

    @torch.no_grad()
    def explore(self, file: str | Path, table: int | None = None, **style: Any) -> Path:
        """Write one interactive .html file in which the weights follow a point that is dragged.

        See `Barycenter.explore`. A table of corners, as `geonet barycenter --table` computes it,
        is used as it is; other weights lead to a new one.

        Args:
            file: the file to write.
            table: number of barycenters along a side of the table.
            **style: colours and units, see `geonet.plotting.Style`.
        """
        explore = import_object("geonet.plotting.explore_weights:explore_barycenters")
        style_object = import_object("geonet.plotting.style:Style")(**style)
        return explore(self, as_path(file), table, style_object)

    def save(self, file: str | Path) -> Path:
        """Write an npz with the densities and the weights for any reader, and all for `load`."""
        return _save(file, self.kind, list(self._items.flat), self.shape)

    def __getitem__(self, index: Any) -> Any:
        """Return one barycenter, or `Barycenters` of a part of the array."""
        parts = index if isinstance(index, tuple) else (index,)
        if not all(is_integer(part) or isinstance(part, slice) for part in parts):
            raise InputError(f"The index is {short_repr(index)}; give integers or slices.")
        try:
            found = self._items[index]
        except IndexError as error:
            raise IndexError(f"The index {index} is outside the shape {self.shape}.") from error
        if isinstance(found, Barycenter):
            return found
        if found.size == 0:
            raise InputError(f"The index {index} selects no barycenter; give a longer slice.")
        return Barycenters(found)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"Barycenters({self.shape} of {len(self.densities)} densities, {self.grid})"

    @property
    def _first(self) -> Barycenter:
        return self._items.flat[0]

    def _stack(self, get: Callable[[Barycenter], Any], stage: str | None = None) -> Array:
        """Return a quantity of all barycenters, (*shape, ...), with a line of progress for each."""
        values = []
        for k, one in enumerate(self._items.flat):
            if stage is None:
                values.append(torch.as_tensor(get(one)))
                continue
            with progress_stage(f"{stage} {k + 1} of {self._items.size}"):
                values.append(torch.as_tensor(get(one), dtype=torch.float64))
        stacked = torch.stack(values)
        return to_user_array(stacked.reshape(*self.shape, *stacked.shape[1:]), self.is_torch)


# ---- Files


def _save(
    file: str | Path, kind: str, solved: Sequence[Barycenter], shape: tuple[int, ...]
) -> Path:
    """Write weights, densities and masses for any reader, and the state to load."""
    path = as_path(file)
    if path.suffix.lower() != ".npz":
        raise FileError(f"{path} does not end in .npz; a barycenter is saved as an npz file.")
    first, grid = solved[0], solved[0].grid
    header = {
        "format": 1,
        "kind": kind,
        "shape": shape,
        "orientation": grid.orientation,
        "options": asdict(first.options),
        "info": [one.solution.info for one in solved],
    }
    own, inputs = [one.density for one in solved], first.densities
    arrays = {
        "weights": torch.stack([one._weights for one in solved]).reshape(*shape, -1).numpy(),
        "density": np.stack([one.numpy() for one in own]).reshape(*shape, *grid.shape),
        "mass": torch.stack([one.mass_tensor for one in own]).reshape(shape).numpy(),
        "lower": np.array(grid.lower),
        "upper": np.array(grid.upper),
        "periodic": np.array(grid.periodic),
        "inputs": inputs.numpy(),
        "inputs/mass": inputs.mass_tensor.detach().numpy(),
        "geonet": np.array(json.dumps(header, default=np.generic.item)),  # NumPy's numbers
    }
    for k, one in enumerate(solved):
        solution = one.solution
        arrays[f"state/{k}/potentials"] = solution.potentials.numpy()
        arrays[f"state/{k}/density"] = solution.density.numpy()
        arrays[f"state/{k}/numbers"] = np.array([solution.value, solution.residual])
    arrays["sha256"] = np.array(compute_digest(arrays))
    with atomic_write(path) as temporary:
        np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]  # of NumPy 2 alone
    return path


def restore(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Barycenter | Barycenters:
    """Return the barycenters that `save` wrote."""
    inputs = arrays["inputs"]
    corners = arrays["lower"].tolist(), arrays["upper"].tolist()
    grid = Grid(inputs.shape[1:], *corners, header["orientation"], arrays["periodic"].tolist())
    mass = torch.tensor(arrays["inputs/mass"])
    densities = Density.from_unnormalized(torch.tensor(inputs), grid, mass, is_torch=False)
    weights = torch.tensor(arrays["weights"]).reshape(-1, len(inputs))
    options = BarycenterOptions(**header["options"])
    solved = []
    for k, (own, info) in enumerate(zip(weights, header["info"], strict=True)):
        potentials, density, numbers = (
            torch.tensor(arrays[f"state/{k}/{name}"])
            for name in ("potentials", "density", "numbers")
        )
        solution = Solution(potentials, density, *numbers.tolist(), info=info)
        solved.append(Barycenter(densities, own, solution, options))
    if header["kind"] == Barycenter.kind:
        return solved[0]
    return Barycenters(_to_objects(solved, header["shape"]))
