"""The loops of kernels.c, where pip could compile them; without them torch does it, slower.

Everything that is handed over is checked here: C looks at nothing but addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from geonet.grid import Grid, unit_box
from geonet.numerics import kernels as loader
from geonet.numerics.cosine import refinement, series_matrices, unit_cells, unit_centres
from geonet.solvers.neural.transport.splines import Splines

VERSION = 3  # of kernels.c
CELLS = 32  # along each axis, where the velocity is found: COARSE of kernels.c
BLOCK = 64  # of kernels.c
NODES = 64  # of the table of ∇u and D²u, along each axis
MOST = 2**30  # cells of a density: C counts them in 32 bits
FEW = 8  # frames, which threads share out in parts
NEAR = 0.002  # |y + s∇u(y) − x|, at most in a row, before the last of Newton's steps
STEPS = 12  # of it, at most


def available() -> bool:
    """Whether the library has the kernels of this file."""
    return loader.fitting(_declared) is not None


def takes(grid: Grid) -> bool:
    """Whether the compiled loops are there and read densities on this grid."""
    return grid.dimension == 2 and grid.size < MOST and available()


class _Splines(ctypes.Structure):
    """`Splines` as kernels.c takes them."""

    coefficients: Tensor  # whose address it is
    _fields_ = (
        ("address", ctypes.c_void_p),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("down", ctypes.c_float),
        ("across", ctypes.c_float),
    )


def _handed(splines: Splines) -> _Splines:
    """Checked, and with what keeps the numbers."""
    kept, grid = loader._single(splines.coefficients), splines.grid
    assert kept.shape[1:] == (grid.shape[0] + 4, grid.shape[1] + 4)
    handed = _Splines(kept.data_ptr(), *grid.shape, *unit_box(grid).sides)
    handed.coefficients = kept
    return handed


def look_up(
    splines: Splines, points: Tensor, velocity: Sequence[Tensor], s: float | Tensor
) -> Tensor:
    """`Splines.at` in 2D."""
    fields, points = [loader._single(v) for v in velocity], loader._single(points)
    batch, moments, count = fields[0].shape
    back = loader._single(torch.as_tensor(s).expand(moments, 1)[:, 0])
    assert fields[1].shape == fields[0].shape and len(splines) == batch
    assert points.shape == (2, count)
    found = loader._room(batch, moments, count)
    pointers = loader._addresses(*points, *fields, back, found)
    _call().geonet_look(_handed(splines), *pointers, count, moments, batch * moments)
    return found


def halfway(
    coefficients: Tensor, source: Splines, target: Splines, cells: int
) -> tuple[Tensor, Tensor, Tensor]:
    """What both ends bring to t = ½ at cells² cells of the unit square.

    For potentials (B, modes, modes): u, ∇u and D²u, (6, B, cells²); ρ0 and ρ1, (2, B, cells²); the
    least of det(I ∓ ½D²u) and the largest |eigenvalue| of ½D²u, (2, B).
    """
    planes, points = _potential(coefficients, cells, centred=True), unit_centres(2, cells)
    batch, count = len(planes), cells**2
    assert len(source) == len(target) == batch
    found, extremes = loader._room(2, batch, count), loader._room(2, batch)
    pointers = loader._addresses(*points, planes, *found, *extremes)
    _call().geonet_halfway(_handed(source), _handed(target), *pointers, count, batch)
    extremes[1] /= 2
    extremes[:, ~torch.isfinite(coefficients).flatten(1).all(1)] = torch.nan  # which C passes over
    return planes.transpose(0, 1), found, extremes


def velocity(coefficients: Tensor, times: Tensor) -> Tensor:
    """v at the centres of CELLS² cells of the unit square, (2, B, T, CELLS²), at times (T,).

    From potentials at t = ½, (B, modes, modes).
    """
    planes, times = _potential(coefficients, NODES, centred=False), loader._single(times)
    batch, items = len(planes), len(planes) * len(times)
    nodes = loader._room(batch, (NODES + 1) ** 2, 8)
    _call().geonet_nodes(*loader._addresses(planes, nodes), NODES + 1, batch)
    answer = loader._room(2, batch, len(times), CELLS**2)
    pointers = loader._addresses(nodes, times, answer)
    _call().geonet_velocity(*pointers, NODES, STEPS, NEAR, len(times), items)
    return answer


def _potential(coefficients: Tensor, cells: int, centred: bool) -> Tensor:
    """u, ∇u and D²u, (B, 6, places), at cells² cells of the unit square.

    At their centres or else at their corners.
    """
    coefficients = loader._single(coefficients)
    batch, modes = coefficients.shape[:2]
    assert coefficients.shape == (batch, modes, modes)
    down, across = _series(cells, modes, centred)
    n = down.shape[1]
    half, planes = loader._room(batch, 3, modes, n), loader._room(batch, 6, n**2)
    pointers = loader._addresses(coefficients, down, across, half, planes)
    _call().geonet_potential(*pointers, modes, n, batch)
    return planes


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _series(cells: int, modes: int, centred: bool) -> tuple[Tensor, Tensor]:
    """The cosines and their derivatives at places, (3, places, modes), and transposed."""
    down = series_matrices(cells, modes, centred)
    return down, down.mT.contiguous()


def put_frames(
    answer: Tensor,
    moments: Sequence[int],
    ends: tuple[Splines, Splines],
    velocity: Tensor,
    times: Tensor,
    grid: Grid,
) -> None:
    """Fill answer[:, moments], answer (B, times, cells), with (1 − t)ρ0 + tρ1 on a grid.

    Args:
        answer: double precision; its last axis without gaps.
        moments: which of its times, T of them.
        ends: source and target.
        velocity: on the cells of the cube, (2, B, T, CELLS²).
        times: (T,).
        grid: where the answer lives.
    """
    velocity, times = loader._single(velocity), loader._single(times)
    batch, items = velocity.shape[1], velocity.shape[1] * len(times)
    assert velocity.shape == (2, batch, len(times), CELLS**2) and len(moments) == len(times)
    assert answer.dtype == torch.float64 and answer.device.type == "cpu" and answer.stride(-1) == 1
    assert answer.shape[::2] == (batch, grid.size) and max(moments) < answer.shape[1]
    assert len(ends[0]) == len(ends[1]) == batch
    pair, moment, _ = answer.stride()
    begins = [pair * b + moment * m for b in range(batch) for m in moments]
    frames = (ctypes.c_int64 * items)(*begins)
    refining = _refinement(grid)
    pointers = loader._addresses(*refining.places, velocity, times)
    scale, parts = unit_box(grid).length ** -2, 1 if items > FEW else 4
    source, target = (_handed(end) for end in ends)
    _call().geonet_frames(
        source,
        target,
        refining,
        *pointers,
        answer.data_ptr(),
        frames,
        scale,
        parts,
        len(times),
        items,
    )


class Refinement(ctypes.Structure):
    """From cells of the cube to a grid, as kernels.c takes it.

    Attributes:
        matrices: the tensors that have the numbers.
        places: where the rows and the columns of the grid are in the unit square.
    """

    matrices: list[Tensor]
    places: list[Tensor]
    _fields_ = (
        ("addresses", ctypes.c_void_p * 7),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("padded", ctypes.c_int32),
    )


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _refinement(grid: Grid) -> Refinement:
    """v1, its slope and v2 down the rows; across the columns v1, its slope, v2 and its slope.

    C takes two rows at a time, so that there is one more.
    """
    (rows, columns), (high, wide) = grid.shape, unit_box(grid).sides
    down = (*refinement(CELLS, rows, high, odd=True), refinement(CELLS, rows, high, odd=False)[0])
    v1, v2 = (refinement(CELLS, columns, wide, odd=odd) for odd in (False, True))
    padded = -(-columns // BLOCK) * BLOCK
    matrices = [pad(matrix, (0, 0, 0, 1)).contiguous() for matrix in down]
    matrices += [pad(matrix.T, (0, padded - columns)).contiguous() for matrix in (*v1, *v2)]
    addresses = (ctypes.c_void_p * 7)(*(matrix.data_ptr() for matrix in matrices))
    answer = Refinement(addresses, rows, columns, padded)
    answer.matrices = matrices
    answer.places = [unit_cells(rows, high), unit_cells(columns, wide)]
    return answer


def _call() -> ctypes.CDLL:
    return loader.called(_declared)


def _fits(library: ctypes.CDLL) -> bool:
    """Whether a library is of this version: sources may be newer than what was compiled."""
    ours = [VERSION, CELLS, BLOCK, ctypes.sizeof(_Splines), ctypes.sizeof(Refinement)]
    try:
        return list((ctypes.c_int32 * len(ours)).in_dll(library, "geonet_made_for")) == ours
    except ValueError:  # it does not say
        return False


@lru_cache(maxsize=len(loader.BUILDS))
def _declared(library: ctypes.CDLL) -> bool:
    """Say what the functions take: pointers first, then numbers. False if they do not fit."""
    if not _fits(library):
        return False
    array, whole, long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    real, double = ctypes.c_float, ctypes.c_double
    splines, refinement = ctypes.POINTER(_Splines), ctypes.POINTER(Refinement)
    for name, arguments in {
        "potential": [*[array] * 5, whole, whole, long],
        "nodes": [array, array, whole, long],
        "velocity": [*[array] * 3, whole, whole, real, long, long],
        "look": [splines, *[array] * 6, long, long, long],
        "halfway": [splines, splines, *[array] * 7, long, long],
        "frames": [splines, splines, refinement, *[array] * 6, double, whole, long, long],
    }.items():
        function = getattr(library, f"geonet_{name}")
        function.argtypes, function.restype = arguments, None
    return True
