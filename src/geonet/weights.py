"""Weights of barycenters: their checks, tables between corners, and the order of solving them.

Corners of a picture belong to the densities: the ends of a segment for two, a triangle for three, a
square for four (the first two above the other two), a regular polygon for more. A point of the
polygon has the weights of Wachspress: linear in a triangle, bilinear in a square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geonet._validation import check_count, short_repr
from geonet.density import as_tensor
from geonet.errors import InputError

Floats = NDArray[np.float64]
ROUNDING = 1e-6  # smaller weights count as zero
MAX_ROUNDING = 5e-3 + 1e-9  # by which weights such as 0.33, 0.33, 0.34 may miss the sum one


def check_weights(weights: Any, count: int) -> Tensor:
    """Return weights (..., count) as a float64 tensor with sum one; None is uniform.

    Raises:
        InputError: for weights that are negative, not finite, of another length, or whose sum
            differs from one by more than 0.5 %; smaller differences are rounding.
    """
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64)
    if isinstance(weights, str | bytes | dict):
        raise InputError(f"weights is {short_repr(weights)}; give a list of {count} numbers.")
    tensor = as_tensor(weights).detach().to(torch.float64)
    if tensor.ndim == 0 or tensor.shape[-1] != count or tensor.numel() == 0:
        raise InputError(
            f"There are {count} densities and weights of shape {tuple(tensor.shape)}; "
            f"give {count} numbers, or (..., {count}) for many barycenters."
        )
    if not bool(torch.isfinite(tensor).all()):
        raise InputError("Weights contain NaN or infinity; give finite numbers.")
    if bool((tensor < 0).any()):
        raise InputError(
            f"A weight is negative ({float(tensor.min()):g}); give numbers of at least 0."
        )
    sums = tensor.sum(-1)
    if bool(((sums - 1).abs() > MAX_ROUNDING).any()):
        wrong = sums.flatten()[(sums - 1).abs().argmax()]
        remedy = "divide them by their sum" if wrong > 0 else "give at least one positive weight"
        raise InputError(f"Weights sum to {float(wrong):.7g}, not to one; {remedy}.")
    kept = torch.where(tensor < ROUNDING, 0.0, tensor)
    return kept / kept.sum(-1, keepdim=True)


# ---- Pictures


def corner_positions(count: int) -> Floats:
    """Return the corners of `count` densities in the unit square, x to the right and y downwards.

    Returns:
        Positions in the order of the densities, (count, 2).
    """
    if count == 2:
        return np.array([[0.0, 0.5], [1.0, 0.5]])
    if count == 4:
        return np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    angles = 2 * np.pi * np.arange(count) / count
    circle = np.stack([np.sin(angles), -np.cos(angles)], -1)
    low, high = circle.min(0), circle.max(0)
    size = float((high - low).max())
    return 0.5 + (circle - (low + high) / 2) / size


def polygon_order(count: int) -> list[int]:
    """Return the densities in the order of their corners around the polygon, clockwise."""
    return [0, 1, 3, 2] if count == 4 else list(range(count))


def weights_at(positions: Floats, count: int) -> Floats:
    """Return the weights (..., count) of positions (..., 2) in the polygon.

    They are Wachspress's coordinates in their polynomial form: corner i has the area of its own
    triangle times the areas between the position and all sides that do not touch the corner.
    """
    positions = np.asarray(positions, dtype=np.float64)
    if count == 2:
        return np.stack([1 - positions[..., 0], positions[..., 0]], -1).clip(0, 1)
    order = polygon_order(count)
    corners = corner_positions(count)[order]
    after = np.roll(corners, -1, 0)
    areas = _cross(corners - positions[..., None, :], after - positions[..., None, :]).clip(min=0)
    areas = areas / areas.max(-1, keepdims=True)  # products of many areas would underflow
    own = _cross(corners - np.roll(corners, 1, 0), after - corners)
    parts = np.stack(
        [own[i] * np.delete(areas, [i, (i - 1) % count], -1).prod(-1) for i in range(count)],
        -1,
    )
    weights = np.empty_like(parts)
    weights[..., order] = parts / parts.sum(-1, keepdims=True)
    return weights


def position_of(weights: Floats) -> Floats:
    """Return the positions (..., 2) of weights (..., N): the mean of the corners."""
    return np.asarray(weights) @ corner_positions(np.shape(weights)[-1])


def _cross(first: Floats, second: Floats) -> Floats:
    return first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]


# ---- Tables


def make_table(count: int, size: int) -> Floats:
    """Return the weights of a table between two to four corners.

    Args:
        count: number of densities.
        size: number of entries along a side.

    Returns:
        (size, 2) for two densities, (size·(size + 1)/2, 3) for a triangle, row by row from the
        first corner down, and (size, size, 4) for a square.
    """
    check_count(size, 2, "table")
    if not 2 <= count <= 4:
        raise InputError(
            f"A table has two to four corners and there are {count} densities; "
            "give weights instead."
        )
    s = np.linspace(0, 1, size)
    if count == 2:
        return np.stack([1 - s, s], -1)
    if count == 4:
        down, right = np.meshgrid(s, s, indexing="ij")
        return weights_at(np.stack([right, down], -1), 4)
    rows = [(size - 1 - row, row - k, k) for row in range(size) for k in range(row + 1)]
    # The second corner is at the lower right and the third at the lower left.
    return np.array([(a, c, b) for a, b, c in rows], dtype=np.float64) / (size - 1)


def find_table(weights: Floats) -> int | None:
    """Return the size of the table that `weights` (..., N) are, or None for other weights."""
    *shape, count = weights.shape
    if not 2 <= count <= 4 or not shape:
        return None
    size = shape[0] if count != 3 else round((np.sqrt(1 + 8 * shape[0]) - 1) / 2)
    if size < 2:
        return None
    table = make_table(count, size)
    if table.shape != weights.shape or not np.allclose(table, weights, atol=ROUNDING):
        return None
    return size


@dataclass(frozen=True)
class Lattice:
    """Points of a polygon that are joined to segments or triangles.

    Attributes:
        positions: (M, 2) in the unit square.
        weights: (M, N).
        simplices: indices of points, (T, 2) for two densities, else (T, 3).
    """

    positions: Floats
    weights: Floats
    simplices: NDArray[np.int64]


def make_lattice(count: int, size: int) -> Lattice:
    """Return a lattice of the polygon of `count` densities, with `size` points along a side.

    For two to four densities its points are the entries of `make_table`. A polygon of more corners
    consists of triangles around its centre, each with `size // 2 + 1` points along a side.
    """
    check_count(size, 2, "table")
    if count <= 4:
        weights = make_table(count, size).reshape(-1, count)
        simplices = {2: _join_row, 3: _join_triangle, 4: _join_square}[count](size)
        return Lattice(position_of(weights), weights, np.array(simplices))
    corners, rows = corner_positions(count), size // 2 + 1
    index: dict[tuple[float, ...], int] = {}
    simplices = []
    for k in range(count):
        triangle = np.stack([corners.mean(0), corners[k], corners[(k + 1) % count]])
        points = make_table(3, rows) @ triangle
        keys = [tuple(point) for point in points.round(9).tolist()]
        own = [index.setdefault(key, len(index)) for key in keys]
        simplices += [[own[i] for i in simplex] for simplex in _join_triangle(rows)]
    positions = np.array(list(index))
    weights = check_weights(weights_at(positions, count), count).numpy()  # zeros despite rounding
    return Lattice(positions, weights, np.array(simplices))


def _join_row(size: int) -> list[list[int]]:
    return [[k, k + 1] for k in range(size - 1)]


def _join_triangle(size: int) -> list[list[int]]:
    """Return the triangles between consecutive rows of 1, 2, 3, … points."""
    triangles = []
    for row in range(size - 1):
        first, below = row * (row + 1) // 2, (row + 1) * (row + 2) // 2
        for k in range(row + 1):
            triangles.append([first + k, below + k, below + k + 1])
            if k < row:
                triangles.append([first + k, first + k + 1, below + k + 1])
    return triangles


def _join_square(size: int) -> list[list[int]]:
    """Return two triangles for each square between the points."""
    triangles = []
    for row in range(size - 1):
        for column in range(size - 1):
            a = row * size + column
            triangles += [[a, a + 1, a + size], [a + 1, a + size, a + size + 1]]
    return triangles


# ---- Order


def plan_order(weights: Tensor) -> list[tuple[int, int | None]]:
    """Return an order of weights (M, N) in which each has a neighbour before it.

    The potentials of a barycenter are a guess for another one if they include those of all its
    densities, so a neighbour has weights above zero for all of them. The order begins with most
    densities, near the mean of all weights, and continues with the weights nearest to any that come
    before. Weights of a single density need no solve and are left out.

    Returns:
        Pairs of an index, and of the index of its nearest neighbour; None for a start from zero.
    """
    values = weights.numpy()
    supports = values > 0
    waiting = [k for k in range(len(values)) if supports[k].sum() > 1]
    if not waiting:
        return []
    distances = np.square(values[:, None] - values[None]).sum(-1)
    contains = (supports[:, None] >= supports[None]).all(-1)  # [a, b]: a has all densities of b
    distances = np.where(contains, distances, np.inf)
    middle = np.square(values - values[waiting].mean(0)).sum(-1)
    nearest = np.full(len(values), np.inf)
    neighbour = np.full(len(values), -1)
    order: list[tuple[int, int | None]] = []
    while waiting:
        k = min(waiting, key=lambda k: nearest[k])
        if not np.isfinite(nearest[k]):
            k = min(waiting, key=lambda k: (-supports[k].sum(), middle[k]))
        order.append((k, int(neighbour[k]) if neighbour[k] >= 0 else None))
        waiting.remove(k)
        is_nearer = distances[k] < nearest
        nearest[is_nearer], neighbour[is_nearer] = distances[k][is_nearer], k
    return order
