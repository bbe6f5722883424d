"""Transforms by the squared distance, and mass pushed along a map: what transforms.c does fast.

    (transform f)(x) = min_y f(y) + w|x − y|²

over the points y of one lattice, at the points x of another. It splits over the axes, and along an
axis the lower envelope of parabolas takes a time that grows with the number of points alone. Where
transforms.c was not compiled, or is turned off by GEONET_COMPILED=0, torch and NumPy do the same;
the transform then takes every sum of which the minimum is taken, so that its time grows with the
number of points along an axis as well. Both agree to rounding.

Everything that is handed over is checked here: C looks at nothing but addresses.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from geonet.errors import InputError
from geonet.grid import Grid

VERSION = 1  # of transforms.c
AT_ONCE = 1 << 21  # sums of which torch takes a minimum
MORE = 0.53  # of transforms.c: the share of an output cell from which on there is another sample


@dataclass(frozen=True)
class Lattice:
    """The points first + k·spacing, k = 0, …, count − 1, along one axis."""

    first: float
    spacing: float
    count: int

    def __post_init__(self) -> None:
        known = math.isfinite(self.first) and math.isfinite(self.spacing)
        if not (known and self.spacing > 0 and self.count >= 1):
            raise InputError(f"{self} has no points; give a positive spacing and count.")

    def points(self) -> Tensor:
        """(count,), float64."""
        return self.first + self.spacing * torch.arange(self.count, dtype=torch.float64)


def centres(grid: Grid, beyond: int = 0) -> tuple[Lattice, ...]:
    """The cell centres of a grid along each axis, and `beyond` more of them on either side."""
    axes = zip(grid.lower, grid.spacing, grid.shape, strict=True)
    return tuple(Lattice(a + (0.5 - beyond) * h, h, n + 2 * beyond) for a, h, n in axes)


def nodes(grid: Grid, parts: int = 1) -> tuple[Lattice, ...]:
    """The faces of the cells along each axis, each cell being cut into `parts`."""
    axes = zip(grid.lower, grid.spacing, grid.shape, strict=True)
    return tuple(Lattice(a, h / parts, parts * n + 1) for a, h, n in axes)


def available() -> bool:
    """Whether the loops were compiled and are not turned off by GEONET_COMPILED=0."""
    return os.environ.get("GEONET_COMPILED", "1") != "0" and _library() is not None


# ---- transforms


def transform(
    values: Tensor,
    at: Sequence[Lattice],
    to: Sequence[Lattice] | None = None,
    weight: float = 1.0,
) -> Tensor:
    """min_y f(y) + weight·|x − y|² for each x.

    Args:
        values: f, (..., *counts of `at`), float64; +∞ takes no part.
        at: where f is known, a lattice for each axis.
        to: where the answer is wanted; `at` itself by default.
        weight: positive.

    Returns:
        (..., *counts of `to`), float64; +∞ only where all of f is.
    """
    to = _checked(values, at, to, weight)
    for axis, (here, there) in enumerate(zip(at, to, strict=True), start=values.ndim - len(at)):
        values = _along(values, axis, here, there, weight)[0]
    return values


def minimisers(
    values: Tensor,
    at: Sequence[Lattice],
    to: Sequence[Lattice] | None = None,
    weight: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`transform`, and which y is the minimiser: its index along each axis.

    Where several are, one of them is given.

    Returns:
        (..., *counts of `to`), float64, and (d, ..., *counts of `to`), int64; −1 where f is +∞.
    """
    to = _checked(values, at, to, weight)
    found: list[Tensor] = []
    for axis, (here, there) in enumerate(zip(at, to, strict=True), start=values.ndim - len(at)):
        values, where = _along(values, axis, here, there, weight, indices=True)
        found = [before.gather(axis, where.clamp(min=0)) for before in found]
        found.append(where)
    return values, torch.stack(found).masked_fill_(torch.isinf(values), -1)


def _checked(
    values: Tensor, at: Sequence[Lattice], to: Sequence[Lattice] | None, weight: float
) -> Sequence[Lattice]:
    """The lattices to which is transformed."""
    to = at if to is None else to
    counts = tuple(lattice.count for lattice in at)
    if not at or len(at) != len(to) or tuple(values.shape[values.ndim - len(at) :]) != counts:
        raise InputError(
            f"Values of shape {tuple(values.shape)} do not lie on {len(at)} lattices of {counts} "
            f"points, or the answer's {len(to)} lattices are not as many; give one of each an axis."
        )
    if not (math.isfinite(weight) and weight > 0):
        raise InputError(f"weight is {weight:g}; give a positive number.")
    if not bool((values > -torch.inf).all()):
        raise InputError("Values are NaN or −∞, of which there is no minimum; remove them first.")
    return to


def _along(
    values: Tensor, axis: int, at: Lattice, to: Lattice, weight: float, indices: bool = False
) -> tuple[Tensor, Tensor]:
    """Along one axis: values and indices; these are empty unless asked for."""
    # In units of the spacing, from the first point on: large coordinates lose no digits.
    first, step = (to.first - at.first) / at.spacing, to.spacing / at.spacing
    scaled = weight * at.spacing**2
    function = _compiled if available() else _plain
    rows = values.detach().to("cpu", torch.float64)
    return function(rows, axis, to.count, first, step, scaled, indices)


def _compiled(
    values: Tensor, axis: int, count: int, first: float, step: float, weight: float, indices: bool
) -> tuple[Tensor, Tensor]:
    values, shape = values.contiguous(), list(values.shape)
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    cells, shape[axis] = shape[axis], count
    answer = torch.empty(shape, dtype=torch.float64)
    where = torch.empty(shape if indices else [0], dtype=torch.int64)
    addresses = values.data_ptr(), answer.data_ptr(), where.data_ptr() if indices else None
    sizes = outer, inner, cells, count
    if _call().geonet_transform(*addresses, *sizes, first, step, weight):
        raise MemoryError(f"There is no memory for a transform of {cells} to {count} points.")
    return answer, where


def _plain(
    values: Tensor, axis: int, count: int, first: float, step: float, weight: float, indices: bool
) -> tuple[Tensor, Tensor]:
    rows = values.movedim(axis, -1)
    places = first + step * torch.arange(count, dtype=torch.float64)
    cost = weight * (places[:, None] - torch.arange(rows.shape[-1], dtype=torch.float64)) ** 2
    parts = rows.reshape(-1, rows.shape[-1]).split(max(1, AT_ONCE // cost.numel()))
    found = [(part[:, None] + cost).min(-1) for part in parts]
    least, where = (torch.cat([one[k] for one in found]) for k in (0, 1))
    shape = (*rows.shape[:-1], count)
    answer = least.reshape(shape).movedim(-1, axis).contiguous()
    return answer, where.reshape(shape).movedim(-1, axis) if indices else where[:0]


# ---- mass that is pushed


def push(mass: Tensor, corners: Tensor, cells: Sequence[int]) -> Tensor:
    """The mass of cells after a map that is multilinear in each of them; none is lost.

    A cell is cut into as many samples along each axis as output cells it is stretched over. Each
    sample's mass is shared out among the 2^d centres around it, linearly; beyond the outermost
    centres it goes to these. A cell that goes to an output cell as a whole is one sample, so the
    identity changes nothing.

    Args:
        mass: (*shape), float64, in 1D to 3D.
        corners: where the corners of the cells go, (d, *(shape + 1)), float64, in units of output
            cells: the centre of the first is 0, that of the next 1.
        cells: shape of the output.

    Returns:
        (*cells), float64.
    """
    d = mass.ndim
    if not 1 <= d <= 3 or tuple(corners.shape) != (d, *(n + 1 for n in mass.shape)):
        raise InputError(
            f"Corners of shape {tuple(corners.shape)} do not belong to cells of shape "
            f"{tuple(mass.shape)}; give where each corner goes, in 1D to 3D."
        )
    if len(cells) != d or min(cells) < 1:
        raise InputError(f"The output's shape is {tuple(cells)}; give {d} positive numbers.")
    if not bool(torch.isfinite(corners).all()):
        raise InputError("Corners are NaN or infinite; give finite places.")
    # A corner beyond the box's faces would be sampled out there in vain.
    most = torch.tensor(cells, dtype=torch.float64).reshape(d, *(1,) * d) - 0.5
    places = corners.detach().to("cpu", torch.float64).clamp(-0.5 * torch.ones_like(most), most)
    masses = mass.detach().to("cpu", torch.float64)
    if not available():
        return torch.from_numpy(_plain_push(masses.numpy(), places.numpy(), tuple(cells)))
    masses, places = masses.contiguous(), places.contiguous()
    total = torch.zeros(tuple(cells), dtype=torch.float64)
    sizes = [(ctypes.c_int64 * d)(*shape) for shape in (mass.shape, cells)]
    pointers = masses.data_ptr(), places.data_ptr(), sizes[0], total.data_ptr(), sizes[1]
    _call().geonet_push(*pointers, d)
    return total


def _plain_push(mass: np.ndarray, corners: np.ndarray, cells: tuple[int, ...]) -> np.ndarray:
    d, filled = mass.ndim, mass != 0
    at = np.stack([_corner(corners, index)[:, filled] for index in np.ndindex((2,) * d)])
    # (corners, d, P): as the C loops have them, for each cell with mass
    index = np.arange(2**d).reshape((2,) * d)
    stretch = [
        np.abs(at[index.take(1, a).ravel()] - at[index.take(0, a).ravel()]).max((0, 1))
        for a in range(d)
    ]
    count = np.maximum(1, np.stack(stretch) + (1 - MORE)).astype(int)
    number = count.prod(0)
    cell = np.repeat(np.arange(len(number)), number)
    sample = np.arange(len(cell)) - np.repeat(number.cumsum() - number, number)
    along = np.empty((d, len(cell)))
    for a in reversed(range(d)):
        along[a] = (sample % count[a, cell] + 0.5) / count[a, cell]
        sample = sample // count[a, cell]
    place = np.zeros((d, len(cell)))
    for corner, weight in _weights(along):
        place += weight * at[index[corner], :, cell].T
    return _splat(place, (mass[filled] / number)[cell], cells)


def _corner(corners: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
    """One corner of every cell, (d, *shape)."""
    part = tuple(slice(1, None) if up else slice(None, -1) for up in index)
    return corners[(slice(None), *part)]


def _weights(along: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """The corners of a cell, and the linear weight (P,) of each at places (d, P) in [0, 1]."""
    corners = list(np.ndindex((2,) * len(along)))
    shares = np.stack([1 - along, along], 1)
    return [
        (corner, np.prod([shares[a, up] for a, up in enumerate(corner)], 0)) for corner in corners
    ]


def _splat(place: np.ndarray, mass: np.ndarray, cells: tuple[int, ...]) -> np.ndarray:
    """Mass (P,) at places (d, P), shared out among the centres around them."""
    most = np.array(cells)[:, None] - 1
    place = np.clip(place, 0, most)
    low = place.astype(int)
    total = np.zeros(math.prod(cells))
    for corner, weight in _weights(place - low):
        index = np.minimum(low + np.array(corner)[:, None], most)
        flat = np.ravel_multi_index(tuple(index), cells)
        total += np.bincount(flat, weight * mass, len(total))
    return total.reshape(cells)


# ---- the library


def _call() -> ctypes.CDLL:
    library = _library()
    assert library is not None, "ask available() first"
    return library


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """What was compiled, if it was from these sources."""
    found = find_spec("geonet.numerics.kernels._transforms")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
        version = ctypes.c_int32.in_dll(library, "geonet_transforms_version").value
    except (OSError, ValueError):  # it was made for another machine, or does not say
        return None
    return _declared(library) if version == VERSION else None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    array, long, double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    library.geonet_transform.argtypes = [*[array] * 3, *[long] * 4, *[double] * 3]
    library.geonet_transform.restype = ctypes.c_int32
    library.geonet_push.argtypes = [*[array] * 5, ctypes.c_int32]
    library.geonet_push.restype = None
    return library
