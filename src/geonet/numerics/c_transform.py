"""c-transforms with the squared distance on lattices, and push-forward of cell masses.

    (transform f)(x) = min_y f(y) + w|x − y|²

over the points y of one lattice, at the points x of another. It separates into the axes; along an
axis the lower envelope of parabolas takes time linear in the number of points (c_transform.c). If
the kernel is not available, torch and NumPy do the same up to rounding, in quadratic time.

Along a periodic axis |x − y| is the distance on a circle whose length is that of the lattice,
count·spacing. The lattice of f is repeated so far that every x has half a period on both sides.

All arguments of the kernel are checked here, because the C code checks none.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from geonet._threads import threads_for
from geonet.errors import InputError
from geonet.grid import Grid
from geonet.numerics.kernels import load_extension

VERSION = 3  # interface of c_transform.c
POINTS_PER_THREAD = 2**15  # work that makes up for waking one more thread


@dataclass(frozen=True)
class Lattice:
    """The points first + k·spacing, k = 0, …, count − 1, along one axis."""

    first: float
    spacing: float
    count: int

    def __post_init__(self) -> None:
        is_finite = math.isfinite(self.first) and math.isfinite(self.spacing)
        if not (is_finite and self.spacing > 0 and self.count >= 1):
            raise InputError(f"{self} has no points; give a positive spacing and count.")

    def points(self) -> Tensor:
        """Return the points, (count,), float64."""
        return self.first + self.spacing * torch.arange(self.count, dtype=torch.float64)


def cell_centres(grid: Grid, beyond: int = 0) -> tuple[Lattice, ...]:
    """Return the cell centres along each axis, and `beyond` more of them on either side."""
    axes = zip(grid.lower, grid.spacing, grid.shape, strict=True)
    return tuple(Lattice(a + (0.5 - beyond) * h, h, n + 2 * beyond) for a, h, n in axes)


def cell_faces(grid: Grid, parts: int = 1) -> tuple[Lattice, ...]:
    """Return the faces of the cells along each axis, with each cell cut into `parts`."""
    axes = zip(grid.lower, grid.spacing, grid.shape, strict=True)
    return tuple(Lattice(a, h / parts, parts * n + 1) for a, h, n in axes)


def is_available() -> bool:
    """Return whether the kernel is compiled and GEONET_COMPILED does not disable it."""
    return os.environ.get("GEONET_COMPILED", "1") != "0" and _library() is not None


# ---- c-transforms


def transform(
    values: Tensor,
    at: Sequence[Lattice],
    to: Sequence[Lattice] | None = None,
    weight: float = 1.0,
    periodic: Sequence[bool] | None = None,
) -> Tensor:
    """Return min_y f(y) + weight·|x − y|² for each x.

    Args:
        values: f, (..., *counts of `at`), float64; +∞ excludes a point.
        at: lattice of f along each axis.
        to: lattice of the result along each axis; `at` by default.
        weight: positive number.
        periodic: which axes are circles of length count·spacing of `at`; none by default.

    Returns:
        Minima, (..., *counts of `to`), float64; +∞ only if all of f is.
    """
    to, wraps = _check_lattices(values, at, to, weight, periodic)
    for axis, here, there, is_circle in _enumerate_axes(values, at, to, wraps):
        if is_circle:
            values, here, _ = _repeat(values, axis, here, there)
        values = _transform_axis(values, axis, here, there, weight)[0]
    return values


def transform_with_minimisers(
    values: Tensor,
    at: Sequence[Lattice],
    to: Sequence[Lattice] | None = None,
    weight: float = 1.0,
    periodic: Sequence[bool] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `transform`, and the index of a minimiser y along each axis.

    Along a periodic axis the index k counts on beyond the ends of the lattice: y = first +
    k·spacing is the image that is nearest to x, and k modulo count its point.

    Returns:
        Minima, (..., *counts of `to`), float64, and indices (d, ..., *counts of `to`), int64; −1
        if all of f is +∞.
    """
    to, wraps = _check_lattices(values, at, to, weight, periodic)
    indices: list[Tensor] = []
    for axis, here, there, is_circle in _enumerate_axes(values, at, to, wraps):
        count, before_first = here.count, 0
        if is_circle:
            values, here, before_first = _repeat(values, axis, here, there)
        values, index = _transform_axis(values, axis, here, there, weight, with_indices=True)
        index = index - before_first
        inside = index % count if is_circle else index.clamp(min=0)
        indices = [before.gather(axis, inside) for before in indices]
        indices.append(index)
    return values, torch.stack(indices).masked_fill_(torch.isinf(values), -1)


def _enumerate_axes(
    values: Tensor, at: Sequence[Lattice], to: Sequence[Lattice], periodic: Sequence[bool]
) -> Iterator[tuple[int, Lattice, Lattice, bool]]:
    """Yield each axis of the values with its two lattices and its boundary."""
    yield from zip(range(values.ndim - len(at), values.ndim), at, to, periodic, strict=True)


def _repeat(values: Tensor, axis: int, at: Lattice, to: Lattice) -> tuple[Tensor, Lattice, int]:
    """Repeat values of a circle until half a period surrounds every point of `to`.

    Returns:
        The values, their lattice, and the number of points that were added in front.
    """
    half = at.count * at.spacing / 2
    last = at.first + (at.count - 1) * at.spacing
    beyond = to.first + (to.count - 1) * to.spacing + half - last
    before = max(0, math.ceil((at.first - to.first + half) / at.spacing))
    after = max(0, math.ceil(beyond / at.spacing))
    index = torch.arange(-before, at.count + after) % at.count
    lattice = Lattice(at.first - before * at.spacing, at.spacing, len(index))
    return values.index_select(axis, index), lattice, before


def _check_lattices(
    values: Tensor,
    at: Sequence[Lattice],
    to: Sequence[Lattice] | None,
    weight: float,
    periodic: Sequence[bool] | None,
) -> tuple[Sequence[Lattice], Sequence[bool]]:
    """Return the lattices of the result and the boundaries; raise InputError if they do not fit."""
    to = at if to is None else to
    counts = tuple(lattice.count for lattice in at)
    if not at or len(at) != len(to) or tuple(values.shape[values.ndim - len(at) :]) != counts:
        raise InputError(
            f"Values of shape {tuple(values.shape)} do not match {len(at)} lattices of {counts} "
            f"points and {len(to)} lattices of the result; give one lattice of each per axis."
        )
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(f"weight is {weight:g}; give a positive number.")
    if not bool((values > -torch.inf).all()):
        raise InputError("Values are NaN or −∞ and have no minimum; remove them first.")
    periodic = (False,) * len(at) if periodic is None else periodic
    if len(periodic) != len(at):
        raise InputError(
            f"periodic has {len(periodic)} entries for {len(at)} lattices; give one per axis."
        )
    return to, periodic


class _Axis(NamedTuple):
    """Positions first + k·step of the results and weight, in units of the spacing of the values."""

    points: int
    first: float
    step: float
    weight: float


def _transform_axis(
    values: Tensor, axis: int, at: Lattice, to: Lattice, weight: float, with_indices: bool = False
) -> tuple[Tensor, Tensor]:
    """Transform along one axis; return values and indices, which are empty unless requested."""
    # In units of the spacing, from the first point on, so that large coordinates lose no digits.
    first, step = (to.first - at.first) / at.spacing, to.spacing / at.spacing
    target = _Axis(to.count, first, step, weight * at.spacing**2)
    function = _transform_axis_c if is_available() else _transform_axis_torch
    return function(values.detach().to("cpu", torch.float64), axis, target, with_indices)


def _transform_axis_c(
    values: Tensor, axis: int, to: _Axis, with_indices: bool
) -> tuple[Tensor, Tensor]:
    values, shape = values.contiguous(), list(values.shape)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    cells, shape[axis] = shape[axis], to.points
    result = torch.empty(shape, dtype=torch.float64)
    indices = torch.empty(shape if with_indices else [0], dtype=torch.int64)
    index_address = indices.data_ptr() if with_indices else None
    threads = max(1, min(threads_for(values.numel()), values.numel() // POINTS_PER_THREAD))
    arrays = values.data_ptr(), result.data_ptr(), index_address
    transform_c = _available_library().geonet_c_transform
    if transform_c(*arrays, outer, inner, cells, *to, threads):
        raise MemoryError(f"Not enough memory for a c-transform of {cells} to {to.points} points.")
    return result, indices


def _transform_axis_torch(
    values: Tensor, axis: int, to: _Axis, with_indices: bool, chunk: int = 1 << 21
) -> tuple[Tensor, Tensor]:
    rows = values.movedim(axis, -1)
    positions = to.first + to.step * torch.arange(to.points, dtype=torch.float64)
    points = torch.arange(rows.shape[-1], dtype=torch.float64)
    cost = to.weight * (positions[:, None] - points) ** 2
    parts = rows.reshape(-1, rows.shape[-1]).split(max(1, chunk // cost.numel()))
    minima = [(part[:, None] + cost).min(-1) for part in parts]
    least, index = (torch.cat([one[k] for one in minima]) for k in (0, 1))
    shape = (*rows.shape[:-1], to.points)
    result = least.reshape(shape).movedim(-1, axis).contiguous()
    return result, index.reshape(shape).movedim(-1, axis) if with_indices else index[:0]


# ---- push-forward


def push_cells(
    mass: Tensor,
    corners: Tensor,
    cells: Sequence[int],
    periodic: Sequence[bool] | None = None,
) -> Tensor:
    """Return the mass of cells after a map that is multilinear in each of them; none is lost.

    A cell is cut into as many samples along each axis as output cells it is stretched over. The
    mass of each sample is distributed linearly to the 2^d centres around it; beyond the outermost
    centres it goes to these. The identity map changes nothing.

    Args:
        mass: (*shape), float64, in 1D to 3D.
        corners: images of the corners of the cells, (d, *(shape + 1)), float64, in units of output
            cells: the centre of the first is 0, the centre of the next 1.
        cells: shape of the output.
        periodic: axes around which images outside the output wrap; none by default.

    Returns:
        (*cells), float64.
    """
    d = mass.ndim
    if not 1 <= d <= 3 or tuple(corners.shape) != (d, *(n + 1 for n in mass.shape)):
        raise InputError(
            f"Corners of shape {tuple(corners.shape)} do not belong to cells of shape "
            f"{tuple(mass.shape)}; give the image of each corner, in 1D to 3D."
        )
    if len(cells) != d or min(cells) < 1:
        raise InputError(f"The output's shape is {tuple(cells)}; give {d} positive numbers.")
    if not bool(torch.isfinite(corners).all()):
        raise InputError("Corners are NaN or infinite; give finite positions.")
    if periodic is not None and any(periodic):
        return _push_periodic(mass, corners, cells, periodic)
    # Samples beyond the faces would only end in the outermost cells.
    upper = torch.tensor(cells, dtype=torch.float64).reshape(d, *(1,) * d) - 0.5
    images = corners.detach().to("cpu", torch.float64).clamp(-0.5 * torch.ones_like(upper), upper)
    masses = mass.detach().to("cpu", torch.float64)
    if not is_available():
        return torch.from_numpy(_push_numpy(masses.numpy(), images.numpy(), tuple(cells)))
    masses, images = masses.contiguous(), images.contiguous()
    total = torch.zeros(tuple(cells), dtype=torch.float64)
    sizes = [(ctypes.c_int64 * d)(*shape) for shape in (mass.shape, cells)]
    _available_library().geonet_push_cells(
        masses.data_ptr(), images.data_ptr(), sizes[0], total.data_ptr(), sizes[1], d
    )
    return total


def _push_periodic(
    mass: Tensor, corners: Tensor, cells: Sequence[int], periodic: Sequence[bool]
) -> Tensor:
    """Push onto cells that are repeated as far as the images reach, and add up their periods."""
    lowest, shape = [0] * len(cells), list(cells)
    for axis, (n, wraps) in enumerate(zip(cells, periodic, strict=True)):
        if wraps:
            lowest[axis] = math.floor(float(corners[axis].min()))
            shape[axis] = max(n, math.ceil(float(corners[axis].max())) + 1 - lowest[axis])
    first = torch.tensor(lowest, dtype=torch.float64).reshape(-1, *(1,) * mass.ndim)
    total = push_cells(mass, corners - first, shape)
    for axis, (n, wraps) in enumerate(zip(cells, periodic, strict=True)):
        if wraps:
            index = torch.arange(lowest[axis], lowest[axis] + shape[axis]) % n
            folded = total.new_zeros(*total.shape[:axis], n, *total.shape[axis + 1 :])
            total = folded.index_add_(axis, index, total)
    return total


def _push_numpy(
    mass: np.ndarray, corners: np.ndarray, cells: tuple[int, ...], next_sample: float = 0.53
) -> np.ndarray:
    """Push in NumPy; `next_sample` is NEXT_SAMPLE of c_transform.c."""
    d, filled = mass.ndim, mass != 0
    at = np.stack([_select_corner(corners, index)[:, filled] for index in np.ndindex((2,) * d)])
    # (corners, d, P): as in C, for each cell with mass
    index = np.arange(2**d).reshape((2,) * d)
    stretch = [
        np.abs(at[index.take(1, a).ravel()] - at[index.take(0, a).ravel()]).max((0, 1))
        for a in range(d)
    ]
    count = np.maximum(1, np.stack(stretch) + (1 - next_sample)).astype(int)
    number = count.prod(0)
    cell = np.repeat(np.arange(len(number)), number)
    sample = np.arange(len(cell)) - np.repeat(number.cumsum() - number, number)
    fraction = np.empty((d, len(cell)))
    for a in reversed(range(d)):
        fraction[a] = (sample % count[a, cell] + 0.5) / count[a, cell]
        sample = sample // count[a, cell]
    position = np.zeros((d, len(cell)))
    for corner, weight in _corner_weights(fraction):
        position += weight * at[index[corner], :, cell].T
    return _deposit(position, (mass[filled] / number)[cell], cells)


def _select_corner(corners: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
    """Return one corner of every cell, (d, *shape)."""
    part = tuple(slice(1, None) if up else slice(None, -1) for up in index)
    return corners[(slice(None), *part)]


def _corner_weights(fraction: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """Return the corners of a cell with their linear weights (P,) at fractions (d, P)."""
    corners = list(np.ndindex((2,) * len(fraction)))
    shares = np.stack([1 - fraction, fraction], 1)
    return [
        (corner, np.prod([shares[a, up] for a, up in enumerate(corner)], 0)) for corner in corners
    ]


def _deposit(position: np.ndarray, mass: np.ndarray, cells: tuple[int, ...]) -> np.ndarray:
    """Distribute mass (P,) at positions (d, P) to the centres around them."""
    upper = np.array(cells)[:, None] - 1
    position = np.clip(position, 0, upper)
    low = position.astype(int)
    total = np.zeros(math.prod(cells))
    for corner, weight in _corner_weights(position - low):
        index = np.minimum(low + np.array(corner)[:, None], upper)
        flat = np.ravel_multi_index(tuple(index), cells)
        total += np.bincount(flat, weight * mass, len(total))
    return total.reshape(cells)


# ---- the library


def _available_library() -> ctypes.CDLL:
    library = _library()
    assert library is not None, "check is_available() first"
    return library


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """Return the compiled library if its version matches."""
    library = load_extension("_c_transform")
    if library is None:
        return None
    try:
        version = ctypes.c_int32.in_dll(library, "geonet_c_transform_version").value
    except ValueError:
        return None
    if version != VERSION:
        return None
    pointer, int64, double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    library.geonet_c_transform.argtypes = [
        *[pointer] * 3, *[int64] * 4, *[double] * 3, ctypes.c_int32,
    ]  # fmt: skip
    library.geonet_c_transform.restype = ctypes.c_int32
    library.geonet_push_cells.argtypes = [*[pointer] * 5, ctypes.c_int32]
    library.geonet_push_cells.restype = None
    return library
