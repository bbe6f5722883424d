"""Densities from functions and from point clouds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet.advice import either
from geonet.arguments import check_word, shown
from geonet.errors import DensityError, InputError
from geonet.measures.density import Density, as_points, as_tensor
from geonet.measures.grid import Grid, check_grid
from geonet.measures.particles import counted, deposit

Outside = Literal["error", "drop"]


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
            f"function is {shown(function)}; give a function of points, "
            "or geonet.Density(values, grid) for values."
        )
    given = function(grid.points())
    values = given if isinstance(given, np.ma.MaskedArray) else as_tensor(given)
    if tuple(values.shape) != grid.shape:
        raise DensityError(
            f"The function gave values of shape {tuple(values.shape)} for points of shape "
            f"{(*grid.shape, grid.dimension)}; it must give one value per point, {grid.shape}."
        )
    return Density(values, grid)


def from_samples(
    points: ArrayLike | Tensor,
    grid: Grid,
    weights: ArrayLike | Tensor | None = None,
    outside: Outside = "error",
    kernel: Literal["cell", "linear"] = "cell",
) -> Density:
    """The histogram of a point cloud: each cell gets the weight of the points in it.

    It is differentiable in the weights and, with `kernel="linear"`, in the points.

    Args:
        points: (n, d); in 1D also (n,).
        grid: the cells. A point on the upper face of the box belongs to the last cell.
        weights: (n,), non-negative; every point counts the same if not given.
        outside: what to do with points outside the box: "error" or "drop".
        kernel: "cell" gives the weight of a point to its cell. "linear" shares it between the
            nearest cell centres (cloud-in-cell); beyond the outermost centres it stays in the
            outermost cell.
    """
    check_word(outside, ("error", "drop"), "outside")
    check_word(kernel, ("cell", "linear"), "kernel")
    check_grid(grid)
    where = as_points(points, grid.dimension)
    if where.ndim > 2:
        raise InputError(f"Samples have shape {tuple(where.shape)}; give one cloud, (n, d).")
    where = where.reshape(-1, grid.dimension)
    amounts = _check_weights(weights, len(where))
    lower, upper = grid.corner("lower"), grid.corner("upper")
    inside = ((where >= lower) & (where <= upper)).all(-1)
    _check_inside(int(inside.sum()), len(where), grid, outside)
    where, amounts = where[inside], amounts[inside]
    if kernel == "cell":
        return Density(counted(where, amounts, grid), grid)
    return Density(deposit(where, amounts, grid.spacing, grid) * grid.cell_volume, grid)


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
    if outside == "error" and inside < count:
        raise DensityError(
            f"{count - inside} of {count} points lie outside the box of {grid}; "
            "give a larger box, or "
            + either("outside='drop' to leave them out.", "files without these points.")
        )
    if inside == 0:
        raise DensityError(
            f"None of {count} points lies in the box of {grid}; give a box that covers them."
        )
