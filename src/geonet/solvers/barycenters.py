"""Barycenters in the unit box: checks of the problem, order and warm starts of many solves."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from geonet._format import format_seconds
from geonet._progress import progress_stage
from geonet._threads import map_in_threads, threads_for
from geonet._validation import short_repr
from geonet.density import Density
from geonet.errors import DensityError, GridError, InputError
from geonet.grid import Grid, unit_box
from geonet.numerics.splines import level_shapes
from geonet.solvers.newton.barycenter import BarycenterNewton, BarycenterResult
from geonet.solvers.newton.compiled import MAX_COARSEST
from geonet.solvers.newton.path import PeriodicRoll
from geonet.solvers.newton.solver import as_reach, check_limits, scale_reach
from geonet.weights import plan_order


@dataclass(frozen=True)
class BarycenterOptions:
    """Options of `barycenter`; see there."""

    reach: float | None = None
    tolerance: float = 1.5e-3
    max_iterations: int = 20
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.reach is not None:
            as_reach(self.reach)
        check_limits(self.tolerance, self.time_limit, self.max_iterations)


@dataclass(frozen=True, eq=False)
class Solution:
    """The numbers of a solved barycenter, in the unit box of the grid.

    Attributes:
        potentials: spline coefficients of ψ_i with maps y + ∇ψ_i, (N, *cells), float64; zero for
            densities of weight zero.
        density: values of mass one but for errors, (*grid.shape).
        value: estimate of the objective.
        residual: share of the mass that is not balanced.
        info: course of the iteration, for the report.
    """

    potentials: Tensor
    density: Tensor
    value: float = 0.0
    residual: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)


def solve_barycenters(
    densities: Density, weights: Tensor, options: BarycenterOptions
) -> list[Solution]:
    """Return the barycenters of checked densities for weights (M, N).

    Gradients are not recorded. Each solve starts from the potentials of the nearest weights that
    come before it; on small grids several are solved at a time. Densities of weight zero are left
    out; a single density is its own barycenter.
    """
    densities = densities.detach()
    _check_number(int((weights > 0).sum(-1).max()), densities.grid)
    unique = torch.unique(weights, dim=0)
    keys = [tuple(row) for row in unique.tolist()]
    order = plan_order(unique)
    solved: dict[int, Solution] = {}
    for generation in _list_generations(order):

        def solve(place: int, generation: list[tuple[int, int | None]] = generation) -> Solution:
            k, neighbour = generation[place]
            start = None if neighbour is None else solved[neighbour].potentials
            return _solve_from(start, densities, unique[k], options)

        found = map_in_threads(solve, len(generation), densities.grid.size)
        for k, _ in generation:
            stage = progress_stage(f"barycenter {len(solved) + 1} of {len(order)}")
            with stage if len(order) > 1 else nullcontext():
                solved[k] = next(found)
    solutions = {keys[k]: solution for k, solution in solved.items()}
    for key, row in zip(keys, unique, strict=True):
        if key not in solutions:
            solutions[key] = _copy_density(densities, int(row.argmax()))
    return [solutions[tuple(row)] for row in weights.tolist()]


def _check_number(count: int, grid: Grid) -> None:
    """Raise InputError if the Newton system of `count` densities is too large to be factored."""
    cells = math.prod(level_shapes(grid.shape, unit_box(grid).sides)[-1])
    limit = MAX_COARSEST // cells + 1
    if count > limit:
        raise InputError(
            f"{count} densities have weights above zero, and on {grid} at most {limit} can be "
            "averaged at once; average groups of them, and then the results."
        )


def _list_generations(
    order: list[tuple[int, int | None]],
) -> list[list[tuple[int, int | None]]]:
    """Split an order into parts in which no weights start from others of the same part."""
    depth: dict[int | None, int] = {None: -1}
    generations: list[list[tuple[int, int | None]]] = []
    for k, neighbour in order:
        depth[k] = depth[neighbour] + 1
        if depth[k] == len(generations):
            generations.append([])
        generations[depth[k]].append((k, neighbour))
    return generations


def _solve_from(
    start: Tensor | None, densities: Density, weights: Tensor, options: BarycenterOptions
) -> Solution:
    """Solve from a guess, and if that does not converge from zero; return the better solution."""
    limit, begin = options.time_limit, monotonic()
    solution = _solve(start, densities, weights, options, limit)
    if start is None or solution.info["converged"] or "stopped after" in solution.info:
        return solution
    rest = None if limit is None else max(0.0, limit - (monotonic() - begin))
    again = _solve(None, densities, weights, options, rest)
    return min(again, solution, key=lambda one: one.residual)


def _solve(
    start: Tensor | None,
    densities: Density,
    weights: Tensor,
    options: BarycenterOptions,
    time_limit: float | None,
) -> Solution:
    """Solve for the densities of weights above zero, within `time_limit` instead of the option."""
    box, kept = unit_box(densities.grid), weights.nonzero().flatten()
    roll = PeriodicRoll.centre(densities.grid, densities.tensor.sum(0))
    values, own = box.to_density(roll.apply(densities.tensor[kept])), weights[kept]
    mass = float(own @ densities.mass_tensor[kept])
    if options.reach is not None:  # costs are proportional to the masses: their mean becomes one
        shares = densities.mass_tensor[kept] / mass
        values = values * shares.reshape(-1, *(1,) * densities.grid.dimension)
    newton = BarycenterNewton(
        tolerance=options.tolerance,
        max_iterations=options.max_iterations,
        threads=threads_for(densities.grid.size),
        time_limit=time_limit,
    )
    result = newton.solve(
        values,
        own,
        box.sides,
        periodic=densities.grid.periodic,
        reach=None if options.reach is None else scale_reach(options.reach, box.length),
        start=None if start is None else roll.apply(_project(start[kept], own)),
    )
    density, value = roll.undo(result.density), 2 * result.dual
    if options.reach is not None:
        density, value = density / (density.sum() * box.cells.cell_volume), value * mass
    potentials = result.potentials.new_zeros(len(weights), *result.potentials.shape[1:])
    potentials[kept] = roll.undo(result.potentials)
    if options.reach is None:  # the constants are free
        potentials -= potentials.mean(list(range(1, potentials.ndim)), keepdim=True)
    info = _describe(result, options)
    return Solution(potentials, density, value, result.residual, info)


def _project(potentials: Tensor, weights: Tensor) -> Tensor:
    """Return potentials with Σ w_i ψ_i = 0, a guess for other weights than their own.

    Seen from the new barycenter y + Σ w_j ∇ψ_j, all maps are shorter by the same displacement.
    """
    return potentials - torch.tensordot(weights, potentials, dims=1)


def _describe(result: BarycenterResult, options: BarycenterOptions) -> dict[str, Any]:
    info: dict[str, Any] = {
        "converged": result.converged,
        "cells": list(result.potentials.shape[1:]),
        "newton steps": [steps for _, steps, _ in result.steps],
        "multigrid steps": [iterations for _, _, iterations in result.steps],
    }
    if result.timed_out:
        info["stopped after"] = f"time_limit, {format_seconds(options.time_limit or 0)}"
    return info


def _copy_density(densities: Density, i: int) -> Solution:
    """Return the barycenter of a single density: the density itself."""
    box = unit_box(densities.grid)
    density = box.to_density(densities.tensor[i])
    potentials = torch.zeros(densities.tensor.shape, dtype=torch.float64)
    return Solution(potentials, density, info={"converged": True})


# ---- Checks


def check_densities(densities: Any) -> Density:
    """Return two or more densities on one grid as a batch."""
    if isinstance(densities, str | Path):
        raise _name_file(densities)
    batch = _check_batch(densities) if isinstance(densities, Density) else _stack(densities)
    if batch.grid.dimension > 3:
        raise GridError(
            f"The densities are {batch.grid.dimension}D; barycenters exist in 1D, 2D and 3D."
        )
    return batch


def _check_batch(density: Density) -> Density:
    axes = len(density.batch_shape)
    if axes > 1:
        raise DensityError(
            f"The densities have the batch shape {density.batch_shape}; give one batch axis."
        )
    if axes == 0 or len(density) == 1:
        raise InputError("There is one density; a barycenter needs two or more.")
    return density


def _stack(densities: Any) -> Density:
    try:
        each = list(densities)
    except TypeError:
        each = [densities]
    for k, one in enumerate(each):
        if isinstance(one, str | Path):
            raise _name_file(one)
        if not isinstance(one, Density):
            raise DensityError(
                f"Density {k} is {short_repr(one)}; give geonet.Density(values, grid)."
            )
        if one.batch_shape:
            raise DensityError(
                f"Density {k} is a batch of shape {one.batch_shape}; give a list of single "
                "densities, or one batch without a list."
            )
    if len(each) < 2:
        count = "is one density" if each else "are no densities"
        raise InputError(f"There {count}; a barycenter needs two or more.")
    first = each[0].grid
    for k, one in enumerate(each):
        if one.grid != first and (one.grid.shape != first.shape or not one.grid.same_box(first)):
            remedy = "all need the same lower and upper corners"
            if one.grid.dimension != first.dimension:
                remedy = "give densities of one dimension"
            elif one.grid.periodic != first.periodic:
                remedy = "all need the same periodic axes"
            elif one.grid.same_box(first):
                remedy = "use density.resample(grid) for one of them"
            raise GridError(
                f"Densities 0 and {k} lie on different grids: {first} and {one.grid}; {remedy}."
            )
    dtype = reduce(torch.promote_types, (one.tensor.dtype for one in each))
    values = torch.stack([one.tensor.to(dtype) for one in each])
    mass = torch.stack([one.mass_tensor for one in each])
    return Density.from_unnormalized(values, first, mass, any(one.is_torch for one in each))


def _name_file(file: Any) -> InputError:
    name = repr(str(file))
    return InputError(f"{name} is a file name, not a Density; give geonet.read({name}).")
