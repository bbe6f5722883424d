"""Problems of the Newton engine; their systems and frames by newton_residual.c and multigrid.c.

The classes implement the interface of `system`. Everything that is passed to C is checked here:
the kernels trust the addresses that they get.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from geonet.numerics.kernels import compatible_library, library
from geonet.numerics.splines import (
    BandMatrix,
    accumulate,
    averaging_matrix,
    is_periodic,
    level_shapes,
    prolongation_matrix,
    restriction_matrix,
)

MAX_LEVELS = 24  # length of the array of levels in quadratic.h
MAX_THREADS = 64  # length of the arrays by thread in quadratic.h
ROW_BUFFERS = 75  # rows of memory for each thread in multigrid.c, in 3D
ROW_MARGIN = 18  # numbers of such a row in addition to those of the last axis
SUM_BLOCK = 1024  # cells of a partial sum in multigrid.c
MAX_COARSEST = 4096  # unknowns of the coarsest level in multigrid.c
CELLS_PER_THREAD = 8192  # work that makes up for waking one more thread

_int32, _int64, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_float, _double = ctypes.c_float, ctypes.c_double
_Integrals = _double * 8


Growth = Literal["hellinger", "wfr"]


@dataclass(frozen=True)
class Formulation:
    """Boundary of the box, penalty on growth, and weights of a barycenter.

    A pair has one potential u with its densities at y ∓ ½∇u. A barycenter has one potential ψ_i
    for each density, which lies at y + ∇ψ_i, and Σ w_i ψ_i = 0.

    With a reach, masses need not be equal: λ·KL, λ = reach²/2, penalises the difference between
    the marginals of the plan and the densities. Densities are then weighted by exp(−φ/λ), with the
    potential φ at their end. The cost is |x − z|²/2 or, for Wasserstein–Fisher–Rao,
    −λ log cos²(|x − z|/reach).

    Attributes:
        periodic: whether each axis is periodic; axes that it does not list are not.
        reach: length in the unit cube; None for balanced transport.
        growth: cost of a pair with a reach, "hellinger" for the quadratic one, or "wfr".
        weights: weights of the densities of a barycenter, above zero; None for a pair.
    """

    periodic: tuple[bool, ...] = ()
    reach: float | None = None
    growth: Growth = "hellinger"
    weights: tuple[float, ...] | None = None

    @property
    def fields(self) -> int:
        """Number of potentials."""
        return 1 if self.weights is None else len(self.weights)

    @property
    def positions(self) -> tuple[float, ...]:
        """Factors s of the maps y + s∇u to the densities of one potential."""
        return (-0.5, 0.5) if self.weights is None else (1.0,)

    @property
    def penalty(self) -> float:
        """λ = reach²/2."""
        assert self.reach is not None
        return self.reach**2 / 2

    @property
    def is_shortened(self) -> bool:
        """True if displacements are shorter than the gradient, for Wasserstein–Fisher–Rao."""
        return self.reach is not None and self.growth == "wfr"


BALANCED_PAIR = Formulation()


class GridStructure(ctypes.Structure):
    """Grid of quadratic.h: missing axes come first, with one cell."""

    _fields_ = (("shape", _int32 * 3), ("periodic", _int32 * 3), ("cells", _int64))


class _Band(ctypes.Structure):
    _fields_ = (("first", _pointer), ("taps", _pointer), ("width", _int32))


class _Level(ctypes.Structure):
    _fields_ = (
        ("grid", GridStructure),
        ("weights", _pointer),
        ("mass", _pointer),
        ("inverse_diagonal", _pointer),
        ("constraint", _pointer),
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
        ("fields", _int32),
        ("field_weights", _pointer),
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
        ("sums", _pointer),
        ("positions", _double * 2),
        ("min_width", _double),
        ("weight", _double),
        ("reach", _double),
        ("growth", _int32),
        ("first_side", _int32),
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
        formulation: boundary, growth and weights.
    """

    def __init__(
        self,
        shape: Sequence[int],
        sides: Sequence[float],
        threads: int,
        formulation: Formulation = BALANCED_PAIR,
    ):
        self.library, self.formulation = library(_declare), formulation
        self.sides, self.threads = tuple(sides), min(threads, MAX_THREADS)
        self.shapes = level_shapes(shape, sides)
        self._owned: list[Tensor] = []
        self._free = (0, 0)  # first and last address of the unused part of the last block
        self._levels = [self._build_level(k) for k in range(len(self.shapes))]
        n, fields = math.prod(self.shapes[-1]), formulation.fields
        unknowns = n * max(1, fields - 1)
        assert unknowns <= MAX_COARSEST
        extra = fields * n * n if fields > 1 else 0
        self._factor = self._allocate(unknowns**2 + extra, itemsize=8)
        self._field_weights = (_double * fields)(*(formulation.weights or (1.0,)))
        self._coarsening = [self._allocate(size) for size in self._coarsening_sizes()]
        rows = self.threads * ROW_BUFFERS if len(shape) == 3 else 0
        self._row_buffers = self._allocate(rows, shape[-1] + ROW_MARGIN)
        blocks = fields * math.prod(shape) // SUM_BLOCK + 1
        self._block_sums = self._allocate(2, blocks, itemsize=8)

    def __getitem__(self, level: int) -> CompiledNewtonSystem:
        count, fields = len(self.shapes) - level, self.formulation.fields
        hierarchy = _Hierarchy(len(self.sides), count, self.threads, 1, fields)
        hierarchy.field_weights = ctypes.addressof(self._field_weights)
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
        fields, cells = self.formulation.fields, math.prod(shape)
        level = _Level(grid=make_grid_structure(shape, self.formulation.periodic))
        level.weights = self._allocate(fields, _weights_per_cell(d), cells)
        for name in ("inverse_diagonal", "x", "b", "r", "work", "mode"):
            setattr(level, name, self._allocate(fields, cells))
        level.constraint = self._allocate(cells) if fields > 1 else None
        level.mass = None if self.formulation.reach is None else self._allocate(fields, cells)
        for name in ("padded", "summed"):
            setattr(level, name, self._allocate(cells // shape[-1], shape[-1] + 2))
        level.scratch = self._allocate(2, cells)
        if k + 1 < len(self.shapes):
            self._attach_transfer(level, shape, self.shapes[k + 1])
        return level

    def _attach_transfer(self, level: _Level, shape: Sequence[int], coarser: Sequence[int]) -> None:
        """Set the matrices between a level and the next coarser one."""
        parts = 1 if len(shape) == 3 else 2  # weights of a cell along an axis
        for k, (fine, coarse) in enumerate(zip(shape, coarser, strict=True)):
            axis, wraps = 3 - len(shape) + k, is_periodic(self.formulation.periodic, k)
            level.prolong[axis] = self._band(prolongation_matrix(coarse, fine, wraps))
            level.restriction[axis] = self._band(restriction_matrix(fine, coarse, wraps))
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
        self.formulation = owner.formulation
        self.step = tuple(side / n for side, n in zip(owner.sides, shape, strict=True))
        self.iterations, cells = 0, math.prod(shape)
        weights, self._fields = self.formulation.weights or (1.0,), self.formulation.fields
        self._problems = (_Problem * self._fields)(
            *(_problem(shape, self.step, self.formulation, weight) for weight in weights)
        )
        self._threads = max(1, min(owner.threads, cells // CELLS_PER_THREAD))
        padded = self._fields, cells // shape[-1], shape[-1] + 2
        self._padded = torch.empty(*padded, dtype=torch.float64)
        self._steps = (_double * 3)(*self.step)
        self._scratch = torch.empty(4, self._fields, cells, dtype=torch.float32)

    @property
    def _vector_shape(self) -> tuple[int, ...]:
        """Shape of potentials and residuals."""
        return self.shape if self.formulation.weights is None else (self._fields, *self.shape)

    def set_densities(self, densities: Sequence[Tensor], min_width: float) -> None:
        own = [values.detach().to(torch.float32).contiguous() for values in densities]
        assert len(own) == (2 if self.formulation.weights is None else self._fields)
        self._densities = own
        for k, problem in enumerate(self._problems):
            _set_densities(problem, own if problem.first_side == 0 else own[k : k + 1], min_width)
        if self.formulation.weights is not None:
            self._sums = [accumulate(values).contiguous() for values in own]
            for problem, sums in zip(self._problems, self._sums, strict=True):
                problem.sums = sums.data_ptr()

    def scale_densities(self, factors: Sequence[float]) -> None:
        scaled = [f * values for f, values in zip(factors, self._densities, strict=True)]
        self.set_densities(scaled, self._problems[0].min_width)

    def evaluate(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        c = coefficients.to(torch.float64).contiguous()
        assert c.shape == self._vector_shape
        residual = torch.empty(self._vector_shape, dtype=torch.float32)
        numbers, level, cells = [], self._hierarchy.level[0], math.prod(self.shape)
        weights_size = 4 * _weights_per_cell(len(self.shape)) * cells
        for k, problem in enumerate(self._problems):
            integrals = _Integrals()
            self.owner.library.geonet_newton_residual(
                problem,
                len(self.shape),
                self._threads,
                c.data_ptr() + 8 * k * cells,
                residual.data_ptr() + 4 * k * cells,
                level.weights + k * weights_size,
                None if level.mass is None else level.mass + 4 * k * cells,
                integrals,
                self._padded.data_ptr(),
                level.summed,
            )
            numbers += integrals
        if self.formulation.weights is not None:
            residual = subtract_weighted_mean(residual, self.formulation.weights)
        return residual, numbers

    def compute_step(
        self,
        residual: Tensor,
        damping: float,
        tolerance: float,
        max_iterations: int,
        local_damping: float = 0.0,
    ) -> Tensor:
        r = residual.to(torch.float32).contiguous()
        assert r.shape == self._vector_shape
        self.owner.library.geonet_multigrid_prepare(
            self._hierarchy, self._steps, damping, local_damping, r.data_ptr()
        )
        return self.solve(r, tolerance, max_iterations)

    def solve(self, right: Tensor, tolerance: float, max_iterations: int) -> Tensor:
        b = right.to(torch.float32).contiguous()
        assert b.shape == self._vector_shape
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

    def mean_density(self, coefficients: Tensor) -> tuple[Tensor, float]:
        c = coefficients.to(torch.float64).contiguous()
        assert self.formulation.weights is not None and c.shape == self._vector_shape
        density = torch.empty(self.shape, dtype=torch.float32)
        mismatch = self.owner.library.geonet_barycenter_density(
            self._problems,
            len(self.shape),
            self._fields,
            self._threads,
            c.data_ptr(),
            density.data_ptr(),
            self._padded.data_ptr(),
        )
        return density.to(torch.float64), mismatch


def subtract_weighted_mean(residual: Tensor, weights: Sequence[float]) -> Tensor:
    """Return w_i(r_i − Σ w_k r_k), (N, *cells), from w_i r_i: the residual of a barycenter."""
    w = torch.tensor(weights, dtype=residual.dtype).reshape(-1, *(1,) * (residual.ndim - 1))
    return residual - w * residual.sum(0)


def evaluate_pairs(
    coefficients: Tensor, source: Tensor, target: Tensor, sides: Sequence[float], threads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate the equation for many pairs on one grid.

    Returns:
        Residuals and trace A/d, (B, *shape) each, and integrals, (B, 8).
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
        _problem(shape, [side / n for side, n in zip(sides, shape, strict=True)], BALANCED_PAIR),
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
    formulation: Formulation = BALANCED_PAIR,
) -> Tensor:
    """Return frames (T, *shape) at times (T,), up to a factor; see `path.push_frames`."""
    own, d, cells = coefficients.shape, coefficients.ndim, coefficients.numel()
    problem = _problem(own, [side / n for side, n in zip(sides, own, strict=True)], formulation)
    kept_alive = [values.detach().to(torch.float32).contiguous() for values in densities]
    _set_densities(problem, kept_alive, 0.0)
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
        make_grid_structure(shape, formulation.periodic),
        (_float * 3)(*(m / n for m, n in zip(shape, own, strict=True))),
        frames.data_ptr(),
        padded.data_ptr(),
    )
    del kept_alive
    return frames.sum(0, dtype=torch.float64)


def _weights_per_cell(d: int) -> int:
    """Return the numbers in the matrices A of a cell: one for each point, in 3D their mean."""
    return (1 if d == 3 else 2**d) * d * (d + 1) // 2


def make_grid_structure(shape: Sequence[int], periodic: Sequence[bool] = ()) -> GridStructure:
    """Return the structure of a grid with one to three axes."""
    missing = 3 - len(shape)
    wraps = (is_periodic(periodic, axis) for axis in range(len(shape)))
    cells, flags = (*(1,) * missing, *shape), (*(0,) * missing, *wraps)
    return GridStructure((_int32 * 3)(*cells), (_int32 * 3)(*flags), math.prod(shape))


def _problem(
    shape: Sequence[int], step: Sequence[float], formulation: Formulation, weight: float = 1.0
) -> _Problem:
    grid = make_grid_structure(shape, formulation.periodic)
    problem = _Problem(grid, (_double * 3)(*step), weight=weight)
    problem.first_side = 2 - len(formulation.positions)
    for side, position in enumerate(formulation.positions, problem.first_side):
        problem.positions[side] = position
    if formulation.reach is not None:
        problem.reach = formulation.reach
        problem.growth = 2 if formulation.growth == "wfr" else 1
    return problem


def _set_densities(problem: _Problem, densities: Sequence[Tensor], min_width: float) -> None:
    """Set the densities of a problem, which must outlive it."""
    assert len(densities) == 2 - problem.first_side
    for side, values in enumerate(densities, problem.first_side):
        # C indexes cells with 32 bits.
        assert values.numel() == problem.grid.cells < 2**31
        assert values.dtype == torch.float32 and values.is_contiguous()
        problem.densities[side] = values.data_ptr()
    problem.min_width = min_width


@lru_cache(maxsize=8)
def _declare(library: ctypes.CDLL) -> bool:
    """Declare the functions of a library; return whether it was built for these structures."""
    sizes = [ctypes.sizeof(_Level), ctypes.sizeof(_Hierarchy)]
    multigrid = [MAX_LEVELS, *sizes, ROW_BUFFERS, ROW_MARGIN, SUM_BLOCK, MAX_COARSEST]
    version, block = 10, 32
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
    library.geonet_newton_residual.argtypes = [problem, _int32, _int32, *[_pointer] * 7]
    library.geonet_newton_residual.restype = None
    library.geonet_newton_residual_batch.argtypes = [
        problem, _int32, _int32, _int64, *[_pointer] * 8,
    ]  # fmt: skip
    library.geonet_newton_residual_batch.restype = None
    library.geonet_push_frames.argtypes = [
        problem, _int32, _int32, _pointer, _pointer, _int32, grid, *[_pointer] * 3,
    ]  # fmt: skip
    library.geonet_push_frames.restype = None
    library.geonet_barycenter_density.argtypes = [problem, *[_int32] * 3, *[_pointer] * 3]
    library.geonet_barycenter_density.restype = _double
    return True
