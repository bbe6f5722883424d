"""Densities from functions and point clouds, and particles from densities."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._format import choose_verb
from geonet._utils import check_generator
from geonet._validation import check_choice, check_count
from geonet.density import Array, Density, as_points, as_tensor, check_density, to_user_array
from geonet.errors import DensityError, InputError
from geonet.grid import Grid, check_grid

Outside = Literal["raise", "drop"]


def from_function(function: Callable[[Tensor], ArrayLike | Tensor], grid: Grid) -> Density:
    """Return the density with values function(x) at the cell centres.

    Args:
        function: takes points `(*shape, d)`, a float64 tensor, and returns values `(*shape)`, whose
            array type becomes the density's.
        grid: the cells at whose centres it is evaluated.
    """
    check_grid(grid)
    values = function(grid.points())
    if tuple(np.shape(values)) != grid.shape:
        raise DensityError(
            f"The function returned values of shape {tuple(np.shape(values))} for points of shape "
            f"{(*grid.shape, grid.dimension)}; return one value per point, {grid.shape}."
        )
    return Density(values, grid)


def from_samples(
    points: ArrayLike | Tensor,
    grid: Grid,
    weights: ArrayLike | Tensor | None = None,
    outside: Outside = "raise",
    kernel: Literal["cell", "linear"] = "cell",
) -> Density:
    """Return the histogram of a point cloud: each cell gets the weight of the points in it.

    It is differentiable in the weights and, with `kernel="linear"`, in the points.

    Args:
        points: (n, d); in 1D also (n,).
        grid: the cells. A point on the upper face of the box belongs to the last cell.
        weights: (n,), non-negative; every point counts the same if not given.
        outside: treatment of points outside the box: "raise" an error, or "drop" them. Along
            periodic axes no point is outside: positions are taken modulo the length.
        kernel: "cell" gives the weight of a point to its cell. "linear" shares it between the
            nearest cell centres (cloud-in-cell); beyond the outermost centres it stays in the
            outermost cell, unless the axis is periodic.
    """
    check_choice(outside, get_args(Outside), "outside")
    check_choice(kernel, ("cell", "linear"), "kernel")
    check_grid(grid)
    is_torch = isinstance(points, Tensor) or isinstance(weights, Tensor)
    positions = as_points(points, grid.dimension)
    if positions.ndim > 2:
        raise InputError(f"Samples have shape {tuple(positions.shape)}; give one cloud, (n, d).")
    positions = grid.wrap(positions.reshape(-1, grid.dimension))
    amounts = _check_weights(weights, len(positions))
    is_inside = ((positions >= grid.lower_tensor) & (positions <= grid.upper_tensor)).all(-1)
    _check_inside(int(is_inside.sum()), len(positions), grid, outside)
    positions, amounts = positions[is_inside], amounts[is_inside]
    if kernel == "cell":
        masses = count_in_cells(positions, amounts, grid)
    else:
        masses = deposit(positions, amounts, grid.spacing, grid) * grid.cell_volume
    density = Density(masses, grid)
    density.is_torch = is_torch
    return density


def sample_particles(density: Density, count: int, generator: torch.Generator) -> Array:
    """Return `count` particles sampled from a density, uniform in their cells, (count, d)."""
    check_density(density)
    check_count(count, 1, "count")
    check_generator(generator)
    if density.batch_shape:
        raise DensityError(f"This is {density!r}; give a single density, such as density[0].")
    grid = density.grid
    masses = density.tensor.to(torch.float64).clamp(min=0).reshape(-1) * grid.cell_volume
    cells = torch.multinomial(masses, count, replacement=True, generator=generator)
    centres = grid.points().reshape(-1, grid.dimension)[cells]
    offsets = torch.rand(centres.shape, dtype=torch.float64, generator=generator) - 0.5
    particles = centres + offsets * torch.tensor(grid.spacing, dtype=torch.float64)
    return to_user_array(particles, density.is_torch)


def count_in_cells(points: Tensor, weights: Tensor, grid: Grid) -> Tensor:
    """Return the weight (n,) of the points (n, d) in each cell, (*grid.shape), float64.

    The outermost cells count points outside the box; periodic axes wrap. Differentiable in the
    weights; points that require a gradient raise, since the count is piecewise constant in them.
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
        index = index * n + _to_cells(cells[:, i], n, grid.periodic[i])
    return torch.zeros(grid.size, dtype=torch.float64).index_add(0, index, weights).view(grid.shape)


def deposit(centres: Tensor, mass: Tensor, size: Tensor | tuple[float, ...], grid: Grid) -> Tensor:
    """Return the density (*grid.shape) of boxes with centres (P, d), masses (P,) and side lengths.

    The side lengths are (d,), or (P, d) if they differ between the boxes.

    Every cell takes the share of each box that overlaps it, so mass is exact; the part beyond a
    face stays in the outermost cell, or wraps around a periodic axis. Differentiable in the centres
    and the masses.
    """
    sizes, indices, shares = torch.as_tensor(size, dtype=torch.float64), [], []
    for i, (n, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        width = (sizes[..., i] / h).clamp(min=1e-9)  # in cells
        low = (centres[:, i] - grid.lower[i]) / h - width / 2
        offsets = torch.arange(math.ceil(float(width.max())) + 1, dtype=torch.float64)
        cell = low.floor()[:, None] + offsets
        high = low + width
        overlap = torch.minimum(high[:, None], cell + 1) - torch.maximum(low[:, None], cell)
        overlap = overlap.clamp(min=0)
        shares.append(overlap / overlap.sum(1, keepdim=True))
        indices.append(_to_cells(cell.long(), n, grid.periodic[i]))
    total = torch.zeros(grid.size, dtype=torch.float64)
    for offsets in product(*(range(share.shape[1]) for share in shares)):
        weight, index = mass, torch.zeros(len(mass), dtype=torch.long)
        for i, k in enumerate(offsets):
            weight = weight * shares[i][:, k]
            index = index * grid.shape[i] + indices[i][:, k]
        total.index_add_(0, index, weight)
    return total.reshape(grid.shape) / grid.cell_volume


def _to_cells(index: Tensor, n: int, is_periodic: bool) -> Tensor:
    """Return indices of cells inside the box for indices that may lie beyond its faces."""
    return index % n if is_periodic else index.clamp(0, n - 1)


def _check_weights(weights: ArrayLike | Tensor | None, count: int) -> Tensor:
    if weights is None:
        return torch.ones(count, dtype=torch.float64)
    amounts = as_tensor(weights).to(torch.float64)
    if tuple(amounts.shape) != (count,):
        raise DensityError(
            f"Weights of shape {tuple(amounts.shape)} do not fit {count} points; "
            "give one weight per point."
        )
    is_bad = ~(torch.isfinite(amounts) & (amounts >= 0))
    if bool(is_bad.any()):
        bad = int(is_bad.sum())
        raise DensityError(
            f"{bad} of {count} weights {choose_verb(bad, 'is', 'are')} negative, infinite or NaN; "
            "correct or remove such points."
        )
    return amounts


def _check_inside(inside: int, count: int, grid: Grid, outside: str) -> None:
    if outside == "raise" and inside < count:
        verb = choose_verb(count - inside, "lies", "lie")
        raise DensityError(
            f"{count - inside} of {count} points {verb} outside the box of {grid}; "
            "give a larger box, or outside='drop' to leave such points out."
        )
    if inside == 0:
        raise DensityError(
            f"No point of {count} lies in the box of {grid}; give a box that covers the points."
        )
