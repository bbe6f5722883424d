"""Densities from functions and from point clouds."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._advice import either
from geonet._utils import check_generator
from geonet._validation import check_choice, check_count, short_repr
from geonet.density import Density, as_points, as_tensor, check_density
from geonet.errors import DensityError, GridError, InputError
from geonet.grid import Grid, check_grid

# ---- From densities to particles, by sampling and by rounding; and back, by counting.


def sample_particles(density: Density, count: int, generator: torch.Generator) -> Tensor:
    """`count` particles drawn from a density, uniform in their cells, (count, d), float64."""
    masses, grid = _masses(density, count), density.grid
    check_generator(generator)
    cells = torch.multinomial(masses, count, replacement=True, generator=generator)
    centres = grid.points().reshape(-1, grid.dimension)[cells]
    inside = torch.rand(centres.shape, dtype=torch.float64, generator=generator) - 0.5
    return centres + inside * torch.tensor(grid.spacing, dtype=torch.float64)


def quantize(density: Density, count: int) -> Tensor:
    """About `count` particles at the cells' centres, each as often as its rounded share, (n, d).

    This is the paper's simplest way; it does not compensate for rounding.
    """
    times = (count * _masses(density, count)).round().long()
    return density.grid.points().reshape(-1, density.grid.dimension).repeat_interleave(times, 0)


def histogram(particles: ArrayLike | Tensor, grid: Grid) -> Density:
    """Shares of particles (..., n, d) in the cells; those outside the box count at its faces."""
    check_grid(grid)
    is_torch = isinstance(particles, Tensor)
    particles = as_tensor(particles).to(torch.float64)
    if particles.ndim < 2 or particles.shape[-1] != grid.dimension:
        raise GridError(
            f"Particles have shape {tuple(particles.shape)} and the grid is {grid.dimension}D; "
            f"give an array (..., n, {grid.dimension})."
        )
    if not particles.numel():
        raise DensityError("There are no particles; give at least one.")
    if not bool(torch.isfinite(particles).all()):
        raise DensityError("Some particles are nowhere (NaN or infinite); leave them out.")
    clouds = particles.reshape(-1, *particles.shape[-2:])
    each = torch.ones(particles.shape[-2], dtype=torch.float64)
    counts = torch.stack([count_in_cells(cloud, each, grid) for cloud in clouds])
    density = Density(counts.reshape(*particles.shape[:-2], *grid.shape), grid)
    density.is_torch = is_torch
    return density


def count_in_cells(points: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    """The weight (n,) of the points (n, d) in each cell, (*grid.shape), float64.

    Points outside the box count at its faces. Differentiable in the weights; a point that moves
    changes nothing until it leaves its cell, so points that take part in autograd are refused.
    """
    if points.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "Counts have no gradient in the points; "
            "use geonet.from_samples with kernel='linear', or points.detach()."
        )
    spacing = torch.tensor(grid.spacing, dtype=torch.float64)
    cells = ((points - grid.lower_tensor) / spacing).floor().long()
    index = torch.zeros(len(points), dtype=torch.long)
    for i, n in enumerate(grid.shape):
        index = index * n + cells[:, i].clamp(0, n - 1)
    return torch.zeros(grid.size, dtype=torch.float64).index_add(0, index, weights).view(grid.shape)


def deposit(centres: Tensor, mass: Tensor, size: tuple[float, ...], grid: Grid) -> Tensor:
    """Density (*grid.shape) of boxes with the given centres (P, d), masses (P,) and side lengths.

    Every cell takes the share of each box that overlaps it, so mass is exact; what lies beyond a
    face stays in the outermost cell. Differentiable in the centres and the masses.
    """
    firsts, shares = [], []
    for i, (n, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        low = (centres[:, i] - size[i] / 2 - grid.lower[i]) / h  # in cells
        first = low.floor()
        reach = torch.arange(math.ceil(size[i] / h) + 1, dtype=torch.float64)
        cell = first[:, None] + reach
        high = low + size[i] / h
        overlap = torch.minimum(high[:, None], cell + 1) - torch.maximum(low[:, None], cell)
        shares.append(overlap.clamp(min=0) * (h / size[i]))
        firsts.append(cell.long().clamp(0, n - 1))
    total = torch.zeros(grid.size, dtype=torch.float64)
    for offsets in product(*(range(share.shape[1]) for share in shares)):
        weight, index = mass, torch.zeros(len(mass), dtype=torch.long)
        for i, k in enumerate(offsets):
            weight = weight * shares[i][:, k]
            index = index * grid.shape[i] + firsts[i][:, k]
        total.index_add_(0, index, weight)
    return total.reshape(grid.shape) / grid.cell_volume


def _masses(density: Density, count: int) -> Tensor:
    """Of the cells of a single density, for so many particles."""
    check_density(density)
    check_count(count, 1, "count")
    if density.batch_shape:
        raise DensityError(f"This is {density!r}; give a single density, such as density[0].")
    return density.tensor.to(torch.float64).clamp(min=0).reshape(-1) * density.grid.cell_volume


Outside = Literal["raise", "drop"]


def from_function(function: Callable[[Tensor], ArrayLike | Tensor], grid: Grid) -> Density:
    """The density with values function(x) at the cell centres.

    Args:
        function: takes points `(*shape, d)`, a float64 tensor, and gives values `(*shape)`,
            NumPy or torch.
        grid: where to evaluate it.
    """
    check_grid(grid)
    if not callable(function):
        raise InputError(
            f"function is {short_repr(function)}; give a function of points, "
            "or geonet.Density(values, grid) for values."
        )
    values = function(grid.points())
    if tuple(np.shape(values)) != grid.shape:
        raise DensityError(
            f"The function gave values of shape {tuple(np.shape(values))} for points of shape "
            f"{(*grid.shape, grid.dimension)}; it must give one value per point, {grid.shape}."
        )
    return Density(values, grid)


def from_samples(
    points: ArrayLike | Tensor,
    grid: Grid,
    weights: ArrayLike | Tensor | None = None,
    outside: Outside = "raise",
    kernel: Literal["cell", "linear"] = "cell",
) -> Density:
    """The histogram of a point cloud: each cell gets the weight of the points in it.

    It is differentiable in the weights and, with `kernel="linear"`, in the points.

    Args:
        points: (n, d); in 1D also (n,).
        grid: the cells. A point on the upper face of the box belongs to the last cell.
        weights: (n,), non-negative; every point counts the same if not given.
        outside: treatment of points outside the box: "raise" an error, or "drop" them.
        kernel: "cell" gives the weight of a point to its cell. "linear" shares it between the
            nearest cell centres (cloud-in-cell); beyond the outermost centres it stays in the
            outermost cell.
    """
    check_choice(outside, ("raise", "drop"), "outside")
    check_choice(kernel, ("cell", "linear"), "kernel")
    check_grid(grid)
    where = as_points(points, grid.dimension)
    if where.ndim > 2:
        raise InputError(f"Samples have shape {tuple(where.shape)}; give one cloud, (n, d).")
    where = where.reshape(-1, grid.dimension)
    amounts = _check_weights(weights, len(where))
    lower, upper = grid.lower_tensor, grid.upper_tensor
    inside = ((where >= lower) & (where <= upper)).all(-1)
    _check_inside(int(inside.sum()), len(where), grid, outside)
    where, amounts = where[inside], amounts[inside]
    if kernel == "cell":
        density = Density(count_in_cells(where, amounts, grid), grid)
    else:
        density = Density(deposit(where, amounts, grid.spacing, grid) * grid.cell_volume, grid)
    density.is_torch = isinstance(points, Tensor) or isinstance(weights, Tensor)
    return density


def _check_weights(weights: ArrayLike | Tensor | None, count: int) -> Tensor:
    if weights is None:
        return torch.ones(count, dtype=torch.float64)
    amounts = as_tensor(weights).to(torch.float64)
    if tuple(amounts.shape) != (count,):
        raise DensityError(
            f"Weights of shape {tuple(amounts.shape)} do not fit {count} points; "
            "give one weight per point."
        )
    bad = ~(torch.isfinite(amounts) & (amounts >= 0))
    if bool(bad.any()):
        raise DensityError(
            f"{int(bad.sum())} of {count} weights are negative, infinite or NaN; remove them first."
        )
    return amounts


def _check_inside(inside: int, count: int, grid: Grid, outside: str) -> None:
    if outside == "raise" and inside < count:
        raise DensityError(
            f"{count - inside} of {count} points lie outside the box of {grid}; "
            "give a larger box, or "
            + either("outside='drop' to leave them out.", "files without these points.")
        )
    if inside == 0:
        raise DensityError(
            f"None of {count} points lies in the box of {grid}; give a box that covers them."
        )
