"""Calls of cosine_paths.c: paths of the transport form in 2D. Without the library torch is used.

All arguments are checked here, because the C code checks none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from geonet.grid import Grid, unit_box
from geonet.numerics import kernels
from geonet.numerics.cosine import (
    cell_centres_1d,
    cube_centres,
    resampling_matrices,
    synthesis_matrices,
)

if TYPE_CHECKING:
    from geonet.solvers.neural.transport.potential import VelocityConfig
    from geonet.solvers.neural.transport.splines import Splines

# Constants of cosine_paths.c.
VERSION = 3
CELLS = 32  # per axis of the grid on which the velocity is solved for: COARSE
BLOCK = 64


def is_available() -> bool:
    """Return whether the library has the kernels of this file and is not turned off."""
    return kernels.compatible_library(_declare) is not None


def supports(grid: Grid) -> bool:
    """Return whether the kernels are available and evaluate densities on this grid."""
    # C counts cells in 32 bits.
    return grid.dimension == 2 and grid.size < 2**30 and is_available()


def evaluate_splines(
    splines: Splines, points: Tensor, velocity: Sequence[Tensor], s: float | Tensor
) -> Tensor:
    """Return the densities at x − s·v, (B, T, P), as `Splines.at`."""
    fields, points = [kernels.as_f32(v) for v in velocity], kernels.as_f32(points)
    batch, times, count = fields[0].shape
    steps = kernels.as_f32(torch.as_tensor(s).expand(times, 1)[:, 0])
    assert fields[1].shape == fields[0].shape and len(splines) == batch
    assert points.shape == (2, count)
    values = kernels.empty_f32(batch, times, count)
    pointers = kernels.addresses(*points, *fields, steps, values)
    _library().geonet_displaced_density(_to_c(splines), *pointers, count, times, batch * times)
    return values


def pull_to_midpoint(
    coefficients: Tensor, source: Splines, target: Splines, cells: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pull both ends to t = ½ on cells² cells of the unit square.

    Args:
        coefficients: potentials (B, modes, modes).
        source: μ0.
        target: μ1.
        cells: cells per axis.

    Returns:
        u, ∇u and D²u, (6, B, cells²); ρ0 and ρ1, (2, B, cells²); the smallest det(I ∓ ½D²u) and the
        largest |eigenvalue| of ½D²u, (2, B).
    """
    planes, points = _evaluate_potential(coefficients, cells, centred=True), cube_centres(2, cells)
    batch, count = len(planes), cells**2
    assert len(source) == len(target) == batch
    densities, extremes = kernels.empty_f32(2, batch, count), kernels.empty_f32(2, batch)
    pointers = kernels.addresses(*points, planes, *densities, *extremes)
    _library().geonet_midpoint_densities(_to_c(source), _to_c(target), *pointers, count, batch)
    extremes[1] /= 2
    # C skips NaN in its minima and maxima.
    extremes[:, ~torch.isfinite(coefficients).flatten(1).all(1)] = torch.nan
    return planes.transpose(0, 1), densities, extremes


def solve_velocity(coefficients: Tensor, times: Tensor, config: VelocityConfig) -> Tensor:
    """Return v at CELLS² cell centres at times (T,), (2, B, T, CELLS²), as `solve_velocity`."""
    nodes = config.nodes
    planes = _evaluate_potential(coefficients, nodes, centred=False)
    times = kernels.as_f32(times)
    batch, items = len(planes), len(planes) * len(times)
    table = kernels.empty_f32(batch, (nodes + 1) ** 2, 8)
    _library().geonet_nodes(*kernels.addresses(planes, table), nodes + 1, batch)
    velocity = kernels.empty_f32(2, batch, len(times), CELLS**2)
    pointers = kernels.addresses(table, times, velocity)
    steps, tolerance = config.max_iterations, config.tolerance
    _library().geonet_velocity(*pointers, nodes, steps, tolerance, len(times), items)
    return velocity


def _evaluate_potential(coefficients: Tensor, cells: int, centred: bool) -> Tensor:
    """Return u, ∇u and D²u at the centres or corners of cells² cells, (B, 6, points)."""
    coefficients = kernels.as_f32(coefficients)
    batch, modes = coefficients.shape[:2]
    assert coefficients.shape == (batch, modes, modes)
    rows, columns = _synthesis_pair(cells, modes, centred)
    n = rows.shape[1]
    half, planes = kernels.empty_f32(batch, 3, modes, n), kernels.empty_f32(batch, 6, n**2)
    pointers = kernels.addresses(coefficients, rows, columns, half, planes)
    _library().geonet_potential(*pointers, modes, n, batch)
    return planes


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _synthesis_pair(cells: int, modes: int, centred: bool) -> tuple[Tensor, Tensor]:
    """Return the cosines and their derivatives at points, (3, points, modes), and transposed."""
    rows = synthesis_matrices(cells, modes, centred)
    return rows, rows.mT.contiguous()


def write_frames(
    frames: Tensor,
    indices: Sequence[int],
    ends: tuple[Splines, Splines],
    velocity: Tensor,
    times: Tensor,
    grid: Grid,
) -> None:
    """Write (1 − t)ρ0 + tρ1 on a grid to frames[:, indices].

    Args:
        frames: (B, times, cells), double precision; its last axis has stride 1.
        indices: indices of the T times in `frames`.
        ends: source and target.
        velocity: velocity on the cells of the square, (2, B, T, CELLS²).
        times: t, (T,).
        grid: the grid of the frames.
    """
    velocity, times = kernels.as_f32(velocity), kernels.as_f32(times)
    batch, items = velocity.shape[1], velocity.shape[1] * len(times)
    assert velocity.shape == (2, batch, len(times), CELLS**2) and len(indices) == len(times)
    assert frames.dtype == torch.float64 and frames.device.type == "cpu" and frames.stride(-1) == 1
    assert frames.shape[::2] == (batch, grid.size) and max(indices) < frames.shape[1]
    assert len(ends[0]) == len(ends[1]) == batch
    pair_stride, time_stride, _ = frames.stride()
    starts = [pair_stride * b + time_stride * k for b in range(batch) for k in indices]
    resampling = _build_resampling(grid)
    _library().geonet_frames(
        _to_c(ends[0]),
        _to_c(ends[1]),
        resampling,
        *kernels.addresses(*resampling.positions, velocity, times),
        frames.data_ptr(),
        (ctypes.c_int64 * items)(*starts),
        unit_box(grid).length ** -2,
        1 if items > 8 else 4,  # parts into which threads divide one frame
        len(times),
        items,
    )


class _Splines(ctypes.Structure):
    """`Splines` in C."""

    coefficients: Tensor  # keeps the memory alive
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("down", ctypes.c_float),
        ("across", ctypes.c_float),
    )


def _to_c(splines: Splines) -> _Splines:
    coefficients, grid = kernels.as_f32(splines.coefficients), splines.grid
    assert coefficients.shape[1:] == (grid.shape[0] + 4, grid.shape[1] + 4)
    struct = _Splines(coefficients.data_ptr(), *grid.shape, *unit_box(grid).sides)
    struct.coefficients = coefficients
    return struct


class _Resampling(ctypes.Structure):
    """Matrices from the cells of the square to a grid, in C.

    Attributes:
        matrices: the tensors whose addresses are stored.
        positions: positions of the rows and of the columns of the grid in the unit square.
    """

    matrices: list[Tensor]
    positions: list[Tensor]
    _fields_ = (
        ("addresses", ctypes.c_void_p * 7),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("padded", ctypes.c_int32),
    )


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _build_resampling(grid: Grid) -> _Resampling:
    """Return the matrices of v1, ∂1 v1, v2 for rows and of v1, ∂2 v1, v2, ∂2 v2 for columns.

    There is one row more, because C processes two rows at a time.
    """
    (rows, columns), (height, width) = grid.shape, unit_box(grid).sides
    odd_rows = resampling_matrices(CELLS, rows, height, odd=True)
    even_rows = resampling_matrices(CELLS, rows, height, odd=False)
    v1, v2 = (resampling_matrices(CELLS, columns, width, odd=odd) for odd in (False, True))
    padded = -(-columns // BLOCK) * BLOCK
    matrices = [pad(matrix, (0, 0, 0, 1)).contiguous() for matrix in (*odd_rows, even_rows[0])]
    matrices += [pad(matrix.T, (0, padded - columns)).contiguous() for matrix in (*v1, *v2)]
    addresses = (ctypes.c_void_p * 7)(*(matrix.data_ptr() for matrix in matrices))
    resampling = _Resampling(addresses, rows, columns, padded)
    resampling.matrices = matrices
    resampling.positions = [
        (height * cell_centres_1d(rows)).float(),
        (width * cell_centres_1d(columns)).float(),
    ]
    return resampling


def _library() -> ctypes.CDLL:
    return kernels.library(_declare)


@lru_cache(maxsize=len(kernels.BUILDS))
def _declare(library: ctypes.CDLL) -> bool:
    """Declare the functions of a library; return whether it was built from this version."""
    constants = [VERSION, CELLS, BLOCK, ctypes.sizeof(_Splines), ctypes.sizeof(_Resampling)]
    try:
        stored = list((ctypes.c_int32 * len(constants)).in_dll(library, "geonet_cosine_paths_abi"))
    except ValueError:  # an older library
        return False
    if stored != constants:
        return False
    array, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    single, double = ctypes.c_float, ctypes.c_double
    splines, resampling = ctypes.POINTER(_Splines), ctypes.POINTER(_Resampling)
    for name, arguments in {
        "potential": [*[array] * 5, int32, int32, int64],
        "nodes": [array, array, int32, int64],
        "velocity": [*[array] * 3, int32, int32, single, int64, int64],
        "displaced_density": [splines, *[array] * 6, int64, int64, int64],
        "midpoint_densities": [splines, splines, *[array] * 7, int64, int64],
        "frames": [splines, splines, resampling, *[array] * 6, double, int32, int64, int64],
    }.items():
        function = getattr(library, f"geonet_{name}")
        function.argtypes, function.restype = arguments, None
    return True
