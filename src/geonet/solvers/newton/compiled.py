"""Newton systems and frames by the C kernels newton_residual.c and multigrid.c.

The classes implement the interface of `system`. Everything that is passed to C is checked here:
the kernels trust the addresses that they get.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from geonet.numerics.kernels import compatible_library, library
from geonet.numerics.splines import (
    BandMatrix,
    averaging_matrix,
    level_shapes,
    prolongation_matrix,
    restriction_matrix,
)

MAX_LEVELS = 24  # length of the array of levels in quadratic.h
MAX_THREADS = 64  # length of the arrays by thread in quadratic.h
ROW_BUFFERS = 75  # rows of memory for each thread in multigrid.c, in 3D
ROW_MARGIN = 18  # numbers of such a row in addition to those of the last axis
SUM_BLOCK = 1024  # cells of a partial sum in multigrid.c
CELLS_PER_THREAD = 8192  # work that makes up for waking one more thread

_int32, _int64, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_float, _double = ctypes.c_float, ctypes.c_double
_Integrals = _double * 6


class GridStructure(ctypes.Structure):
    """Grid of quadratic.h: missing axes come first, with one cell."""

    _fields_ = (("shape", _int32 * 3), ("cells", _int64))


class _Band(ctypes.Structure):
    _fields_ = (("first", _pointer), ("taps", _pointer), ("width", _int32))


class _Level(ctypes.Structure):
    _fields_ = (
        ("grid", GridStructure),
        ("weights", _pointer),
        ("inverse_diagonal", _pointer),
        ("padded", _pointer),
        ("summed", _pointer),
        ("x", _pointer),
        ("b", _pointer),
        ("r", _pointer),
        ("work", _pointer),
        ("mode", _pointer),
        ("largest_eigenvalue", _double),
        ("prolong", _Band * 3),
        ("restriction", _Band * 3),
        ("average", _Band * 3),
        ("ratio", _float * 3),
        ("scratch", _pointer),
    )


class _Hierarchy(ctypes.Structure):
    _fields_ = (
        ("d", _int32),
        ("levels", _int32),
        ("threads", _int32),
        ("fresh", _int32),
        ("level", _Level * MAX_LEVELS),
        ("factor", _pointer),
        ("coarsening", _pointer * 2),
        ("row_buffers", _pointer),
        ("block_sums", _pointer),
    )


class _Problem(ctypes.Structure):
    _fields_ = (
        ("grid", GridStructure),
        ("step", _double * 3),
        ("densities", _pointer * 2),
        ("min_width", _double),
    )


def is_available() -> bool:
    """Return whether the kernels are compiled, compatible and not disabled."""
    return compatible_library(_declare) is not None


class CompiledHierarchy:
    """`Hierarchy` with memory for the systems on a grid and on all coarser grids of its box.

    Args:
        shape: cells of the finest grid.
        sides: side lengths of the box.
        threads: largest number of threads.
    """

    def __init__(self, shape: Sequence[int], sides: Sequence[float], threads: int):
        self.library = library(_declare)
        self.sides, self.threads = tuple(sides), min(threads, MAX_THREADS)
        self.shapes = level_shapes(shape, sides)
        self._owned: list[Tensor] = []
        self._free = (0, 0)  # first and last address of the unused part of the last block
        self._levels = [self._build_level(k) for k in range(len(self.shapes))]
        n = math.prod(self.shapes[-1])
        self._factor = self._allocate(n * n, itemsize=8)
        self._coarsening = [self._allocate(size) for size in self._coarsening_sizes()]
        rows = self.threads * ROW_BUFFERS if len(shape) == 3 else 0
        self._row_buffers = self._allocate(rows, shape[-1] + ROW_MARGIN)
        self._block_sums = self._allocate(2, math.prod(shape) // SUM_BLOCK + 1, itemsize=8)

    def __getitem__(self, level: int) -> CompiledNewtonSystem:
        hierarchy = _Hierarchy(len(self.sides), len(self.shapes) - level, self.threads, 1)
        for k, own in enumerate(self._levels[level:]):
            hierarchy.level[k] = own
        hierarchy.factor = self._factor
        hierarchy.coarsening[0], hierarchy.coarsening[1] = self._coarsening
        hierarchy.row_buffers, hierarchy.block_sums = self._row_buffers, self._block_sums
        return CompiledNewtonSystem(self, hierarchy, self.shapes[level])

    def _allocate(self, *shape: int, itemsize: int = 4) -> int:
        """Return the address of zeros that live as long as this object.

        Memory comes in large blocks: fifty small tensors take longer than one residual.
        """
        line, block = 64, 2**20  # bytes of a cache line and of a block
        needed = -(-math.prod(shape) * itemsize // line) * line
        begin, end = self._free
        if needed > end - begin:
            memory = torch.zeros(max(needed, block) + line, dtype=torch.uint8, device="cpu")
            self._owned.append(memory)
            begin = -(-memory.data_ptr() // line) * line
            end = begin + max(needed, block)
        self._free = begin + needed, end
        return begin

    def _build_level(self, k: int) -> _Level:
        shape, d = self.shapes[k], len(self.sides)
        level, cells = _Level(grid=make_grid_structure(shape)), math.prod(shape)
        level.weights = self._allocate(_weights_per_cell(d), cells)
        for name in ("inverse_diagonal", "x", "b", "r", "work", "mode"):
            setattr(level, name, self._allocate(cells))
        for name in ("padded", "summed"):
            setattr(level, name, self._allocate(cells // shape[-1], shape[-1] + 2))
        level.scratch = self._allocate(2, cells)
        if k + 1 < len(self.shapes):
            self._attach_transfer(level, shape, self.shapes[k + 1])
        return level

    def _attach_transfer(self, level: _Level, shape: Sequence[int], coarser: Sequence[int]) -> None:
        """Set the matrices between a level and the next coarser one."""
        parts = 1 if len(shape) == 3 else 2  # weights of a cell along an axis
        for axis, (fine, coarse) in enumerate(zip(shape, coarser, strict=True), 3 - len(shape)):
            level.prolong[axis] = self._band(prolongation_matrix(coarse, fine))
            level.restriction[axis] = self._band(restriction_matrix(fine, coarse))
            level.average[axis] = self._band(averaging_matrix(fine, coarse, parts))
            level.ratio[axis] = fine / coarse

    def _band(self, matrix: BandMatrix) -> _Band:
        self._owned += [matrix.first, matrix.taps]
        return _Band(matrix.first.data_ptr(), matrix.taps.data_ptr(), matrix.taps.shape[1])

    def _coarsening_sizes(self) -> list[int]:
        """Return buffer sizes for weights that are coarsened along one and along two axes.

        Levels are not all coarsened along the same axes, so each buffer has the largest size.
        """
        d, sizes = len(self.sides), [1, 1]
        for fine, coarse in pairwise(self.shapes):
            shape = list(fine)
            for count, axis in enumerate([a for a in range(d) if coarse[a] != fine[a]][:2]):
                shape[axis] = coarse[axis]
                sizes[count] = max(sizes[count], _weights_per_cell(d) * math.prod(shape))
        return sizes


class CompiledNewtonSystem:
    """`NewtonSystem` by the C kernels, in single precision."""

    def __init__(self, owner: CompiledHierarchy, hierarchy: _Hierarchy, shape: tuple[int, ...]):
        self.shape, self.owner, self._hierarchy = shape, owner, hierarchy
        self.step = tuple(side / n for side, n in zip(owner.sides, shape, strict=True))
        self.iterations, cells = 0, math.prod(shape)
        self._problem = _problem(shape, self.step)
        self._threads = max(1, min(owner.threads, cells // CELLS_PER_THREAD))
        self._padded = torch.empty(cells // shape[-1], shape[-1] + 2, dtype=torch.float64)
        self._steps = (_double * 3)(*self.step)
        self._scratch = torch.empty(4, cells, dtype=torch.float32)

    def set_densities(self, source: Tensor, target: Tensor, min_width: float) -> None:
        self._densities = _set_densities(self._problem, source, target, min_width)

    def scale_densities(self, source_factor: float, target_factor: float) -> None:
        source, target = self._densities
        self.set_densities(source_factor * source, target_factor * target, self._problem.min_width)

    def evaluate(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        c = coefficients.to(torch.float64).contiguous()
        assert c.shape == self.shape
        residual = torch.empty(self.shape, dtype=torch.float32)
        integrals, level = _Integrals(), self._hierarchy.level[0]
        self.owner.library.geonet_newton_residual(
            self._problem,
            len(self.shape),
            self._threads,
            c.data_ptr(),
            residual.data_ptr(),
            level.weights,
            integrals,
            self._padded.data_ptr(),
            level.summed,
        )
        return residual, list(integrals)

    def compute_step(
        self,
        residual: Tensor,
        damping: float,
        tolerance: float,
        max_iterations: int,
        local_damping: float = 0.0,
    ) -> Tensor:
        r = residual.to(torch.float32).contiguous()
        assert r.shape == self.shape
        self.owner.library.geonet_multigrid_prepare(
            self._hierarchy, self._steps, damping, local_damping, r.data_ptr()
        )
        return self.solve(r, tolerance, max_iterations)

    def solve(self, right: Tensor, tolerance: float, max_iterations: int) -> Tensor:
        b = right.to(torch.float32).contiguous()
        assert b.shape == self.shape
        x = torch.empty_like(b)
        self.iterations = self.owner.library.geonet_multigrid_solve(
            self._hierarchy,
            b.data_ptr(),
            x.data_ptr(),
            self._scratch.data_ptr(),
            tolerance,
            max_iterations,
        )
        return x.to(torch.float64)


def evaluate_pairs(
    coefficients: Tensor, source: Tensor, target: Tensor, sides: Sequence[float], threads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate the equation for many pairs on one grid.

    Returns:
        Residuals and trace A/d, (B, *shape) each, and integrals, (B, 6).
    """
    count, *shape = coefficients.shape
    d, cells = len(shape), math.prod(shape)
    c = coefficients.to(torch.float64).contiguous()
    first, second = (values.detach().to(torch.float32).contiguous() for values in (source, target))
    assert first.shape == second.shape == c.shape and cells < 2**31
    threads = max(1, min(threads, MAX_THREADS, count * cells // CELLS_PER_THREAD))
    buffers = threads if count >= threads else 1
    padded_cells = cells // shape[-1] * (shape[-1] + 2)
    weights = _weights_per_cell(d) * cells
    floats = torch.empty(buffers, weights + padded_cells, dtype=torch.float32, device="cpu")
    doubles = torch.empty(buffers, padded_cells, dtype=torch.float64, device="cpu")
    residual, mean_weight = torch.empty_like(first), torch.empty_like(first)
    integrals = torch.empty(count, len(_Integrals()), dtype=torch.float64, device="cpu")
    arrays = c, first, second, residual, mean_weight, integrals, floats, doubles
    library(_declare).geonet_newton_residual_batch(
        _problem(shape, [side / n for side, n in zip(sides, shape, strict=True)]),
        d,
        threads,
        count,
        *(array.data_ptr() for array in arrays),
    )
    return residual, mean_weight, integrals


def push_frames(
    coefficients: Tensor,
    densities: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
    threads: int,
) -> Tensor:
    """Return frames (T, *shape) at times (T,), up to a factor; see `path.push_frames`."""
    own, d, cells = coefficients.shape, coefficients.ndim, coefficients.numel()
    problem = _problem(own, [side / n for side, n in zip(sides, own, strict=True)])
    kept_alive = _set_densities(problem, *densities, 0.0)
    rows = own[0] if d > 1 else 1
    threads = max(1, min(threads, cells // CELLS_PER_THREAD, rows, MAX_THREADS))
    c = coefficients.to(torch.float64).contiguous()
    frames = torch.zeros(threads, len(times), *shape, dtype=torch.float32)
    padded = torch.empty(cells // own[-1], own[-1] + 2, dtype=torch.float64)
    moments = times.to(torch.float32).contiguous()
    library(_declare).geonet_push_frames(
        problem,
        d,
        threads,
        c.data_ptr(),
        moments.data_ptr(),
        len(times),
        make_grid_structure(shape),
        (_float * 3)(*(m / n for m, n in zip(shape, own, strict=True))),
        frames.data_ptr(),
        padded.data_ptr(),
    )
    del kept_alive
    return frames.sum(0, dtype=torch.float64)


def _weights_per_cell(d: int) -> int:
    """Return the numbers in the matrices A of a cell: one for each point, in 3D their mean."""
    return (1 if d == 3 else 2**d) * d * (d + 1) // 2


def make_grid_structure(shape: Sequence[int]) -> GridStructure:
    """Return the structure of a grid with one to three axes."""
    return GridStructure((_int32 * 3)(*(1,) * (3 - len(shape)), *shape), math.prod(shape))


def _problem(shape: Sequence[int], step: Sequence[float]) -> _Problem:
    return _Problem(make_grid_structure(shape), (_double * 3)(*step))


def _set_densities(
    problem: _Problem, source: Tensor, target: Tensor, min_width: float
) -> list[Tensor]:
    """Set the densities of a problem; return the tensors, which must outlive it."""
    densities = [values.detach().to(torch.float32).contiguous() for values in (source, target)]
    # C indexes cells with 32 bits.
    assert all(values.numel() == problem.grid.cells < 2**31 for values in densities)
    problem.densities[0], problem.densities[1] = (values.data_ptr() for values in densities)
    problem.min_width = min_width
    return densities


@lru_cache(maxsize=8)
def _declare(library: ctypes.CDLL) -> bool:
    """Declare the functions of a library; return whether it was built for these structures."""
    sizes = [ctypes.sizeof(_Level), ctypes.sizeof(_Hierarchy)]
    multigrid = [MAX_LEVELS, *sizes, ROW_BUFFERS, ROW_MARGIN, SUM_BLOCK]
    version, block = 6, 32
    residual = [version, block, ctypes.sizeof(GridStructure), ctypes.sizeof(_Problem)]
    try:
        for name, numbers in (
            ("geonet_multigrid_abi", multigrid),
            ("geonet_newton_residual_abi", residual),
        ):
            if list((_int32 * len(numbers)).in_dll(library, name)) != numbers:
                return False
    except ValueError:
        return False
    hierarchy, problem = ctypes.POINTER(_Hierarchy), ctypes.POINTER(_Problem)
    grid = ctypes.POINTER(GridStructure)
    library.geonet_multigrid_prepare.argtypes = [hierarchy, _pointer, _double, _double, _pointer]
    library.geonet_multigrid_prepare.restype = None
    library.geonet_multigrid_solve.argtypes = [hierarchy, *[_pointer] * 3, _double, _int32]
    library.geonet_multigrid_solve.restype = _int32
    library.geonet_newton_residual.argtypes = [problem, _int32, _int32, *[_pointer] * 6]
    library.geonet_newton_residual.restype = None
    library.geonet_newton_residual_batch.argtypes = [
        problem, _int32, _int32, _int64, *[_pointer] * 8,
    ]  # fmt: skip
    library.geonet_newton_residual_batch.restype = None
    library.geonet_push_frames.argtypes = [
        problem, _int32, _int32, _pointer, _pointer, _int32, grid, *[_pointer] * 3,
    ]  # fmt: skip
    library.geonet_push_frames.restype = None
    return True
