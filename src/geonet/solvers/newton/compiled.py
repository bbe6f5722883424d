"""multigrid.c and halfway.c, where pip could compile them: what `fields.elliptic` does in torch.

Everything that is handed over is checked here: C looks at nothing but addresses.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from geonet.numerics import kernels as loader
from geonet.numerics.splines import half_cell_means, level_shapes, refinement

VERSION = 3  # of halfway.c
MOST_LEVELS = 24  # of quadratic.h
BLOCK = 32  # of quadratic.h
TOTALS = 6  # of halfway.c
MOST_THREADS = 64
MOST = 2**31  # cells: C counts them in 32 bits where it looks up densities
WORTH = 8192  # cells for which waking one more thread pays
LINE, PIECE = 64, 2**20  # bytes of a line of the cache, and of rooms that are shared out

_pointer, _whole, _long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_real, _double = ctypes.c_float, ctypes.c_double


class _Grid(ctypes.Structure):
    _fields_ = (("shape", _whole * 3), ("cells", _long))


class _Level(ctypes.Structure):
    _fields_ = (
        ("grid", _Grid),
        *((name, _pointer) for name in ("weights", "diagonal", "padded", "summed")),
        *((name, _pointer) for name in ("x", "b", "r", "work", "mode")),
        ("largest", _double),
        ("first", _pointer * 3),
        ("taps", _pointer * 3),
        ("width", _whole * 3),
        ("half_first", _pointer * 3),
        ("half_taps", _pointer * 3),
        ("half_width", _whole * 3),
        ("ratio", _real * 3),
        ("room", _pointer),
    )


class _Hierarchy(ctypes.Structure):
    _fields_ = (
        ("d", _whole),
        ("levels", _whole),
        ("threads", _whole),
        ("fresh", _whole),
        ("level", _Level * MOST_LEVELS),
        ("factor", _pointer),
        ("rooms", _pointer * 2),
    )


class _Problem(ctypes.Structure):
    _fields_ = (
        ("grid", _Grid),
        ("step", _double * 3),
        ("ends", _pointer * 2),
        ("softness", _double),
    )


def available() -> bool:
    """Whether the compiled loops are there and not turned off."""
    return loader.fitting(_declared) is not None


class Levels:
    """Room for the problems on a grid and on all coarser ones of its box.

    Args:
        shape: of the finest grid.
        sides: of the box.
        threads: how many may work on it.
    """

    def __init__(self, shape: Sequence[int], sides: Sequence[float], threads: int):
        self.sides, self.threads = tuple(sides), min(threads, MOST_THREADS)
        self.shapes = level_shapes(shape, sides)
        self._kept: list[Tensor] = []
        self._free = (0, 0)  # bytes of the last room, from one address to another
        self._levels = [self._level(k) for k in range(len(self.shapes))]
        n = math.prod(self.shapes[-1])
        self._factor = self._room(n * n, size=8)
        self._rooms = [self._room(size) for size in self._transfer_sizes()]

    def at(self, k: int) -> Elliptic:
        """The problem on the k-th grid, the finest being the first."""
        hierarchy = _Hierarchy(len(self.sides), len(self.shapes) - k, self.threads, 1)
        for place, level in enumerate(self._levels[k:]):
            hierarchy.level[place] = level
        hierarchy.factor = self._factor
        hierarchy.rooms[0], hierarchy.rooms[1] = self._rooms
        return Elliptic(self, hierarchy, self.shapes[k])

    def _room(self, *shape: int, size: int = 4) -> int:
        """The address of zeros that live as long as this object, for numbers of `size` bytes.

        They come in large pieces: fifty small ones would take longer than a look.
        """
        wanted = -(-math.prod(shape) * size // LINE) * LINE
        begin, end = self._free
        if wanted > end - begin:
            room = torch.zeros(max(wanted, PIECE) + LINE, dtype=torch.uint8, device="cpu")
            self._kept.append(room)
            begin = -(-room.data_ptr() // LINE) * LINE
            end = begin + max(wanted, PIECE)
        self._free = begin + wanted, end
        return begin

    def _level(self, k: int) -> _Level:
        shape, d = self.shapes[k], len(self.sides)
        level, cells = _Level(grid=_grid(shape)), math.prod(shape)
        level.weights = self._room(2**d, d * (d + 1) // 2, *shape)
        for name in ("diagonal", "x", "b", "r", "work", "mode"):
            setattr(level, name, self._room(cells))
        for name in ("padded", "summed"):
            setattr(level, name, self._room(cells // shape[-1], shape[-1] + 2))
        level.room = self._room(4, cells)
        if k + 1 < len(self.shapes):
            self._lead_to(level, shape, self.shapes[k + 1])
        return level

    def _lead_to(self, level: _Level, shape: Sequence[int], coarser: Sequence[int]) -> None:
        """Note how to come from the next coarser level, and there."""
        for axis, (fine, coarse) in enumerate(zip(shape, coarser, strict=True), 3 - len(shape)):
            band, means = refinement(coarse, fine), half_cell_means(fine, coarse)
            self._kept += [band.first, band.taps, means.first, means.taps]
            level.first[axis], level.taps[axis] = band.first.data_ptr(), band.taps.data_ptr()
            level.width[axis], level.ratio[axis] = band.taps.shape[1], fine / coarse
            level.half_first[axis] = means.first.data_ptr()
            level.half_taps[axis] = means.taps.data_ptr()
            level.half_width[axis] = means.taps.shape[1]

    def _transfer_sizes(self) -> list[int]:
        """Numbers in a level's weights after one and after two axes were coarsened, at most.

        Not every level is coarsened along the same axes, so that each may need the most.
        """
        d, most = len(self.sides), [1, 1]
        for fine, coarse in pairwise(self.shapes):
            shape = list(fine)
            for count, axis in enumerate([a for a in range(d) if coarse[a] != fine[a]][:2]):
                shape[axis] = coarse[axis]
                most[count] = max(most[count], 2**d * d * (d + 1) // 2 * math.prod(shape))
        return most


class Elliptic:
    """The equation of the potential on one grid; see `fields.elliptic`."""

    def __init__(self, levels: Levels, hierarchy: _Hierarchy, shape: tuple[int, ...]):
        self.shape, self.levels, self._hierarchy = shape, levels, hierarchy
        self.step = tuple(side / n for side, n in zip(levels.sides, shape, strict=True))
        cells = math.prod(shape)
        self._problem = _problem(shape, self.step)
        self._threads = max(1, min(levels.threads, cells // WORTH))
        self._padded = torch.empty(cells // shape[-1], shape[-1] + 2, dtype=torch.float64)
        self._steps = (_double * 3)(*self.step)
        self._room = torch.empty(4, cells, dtype=torch.float32)

    def between(self, source: Tensor, target: Tensor, softness: float) -> None:
        """Set the ends, (*shape) each."""
        _set_ends(self._problem, source, target, softness, self)

    def look(self, coefficients: Tensor) -> tuple[Tensor, list[float]]:
        """The residual, (*shape), and the totals of a potential; its weights are kept."""
        c = coefficients.to(torch.float64).contiguous()
        assert c.shape == self.shape
        residual = torch.empty(self.shape, dtype=torch.float32)
        totals, level = (_double * TOTALS)(), self._hierarchy.level[0]
        _call().geonet_halfway_splines(
            self._problem,
            len(self.shape),
            self._threads,
            c.data_ptr(),
            residual.data_ptr(),
            level.weights,
            totals,
            self._padded.data_ptr(),
            level.summed,
        )
        return residual, list(totals)

    def step_for(self, residual: Tensor, floor: float, tolerance: float, most: int) -> Tensor:
        """Newton's step after `look`, which has to be called again before the next."""
        _call().geonet_prepare(self._hierarchy, self._steps, floor)
        return self.solved(residual, tolerance, most)

    def solved(self, right: Tensor, tolerance: float, most: int) -> Tensor:
        """x with K x = right, up to a tolerance, for the last K that was prepared."""
        b = right.to(torch.float32).contiguous()
        assert b.shape == self.shape
        x, left = torch.empty_like(b), _double()
        addresses = b.data_ptr(), x.data_ptr(), self._room.data_ptr()
        self.iterations = _call().geonet_solve(
            self._hierarchy, *addresses, tolerance, most, ctypes.byref(left)
        )
        return x.to(torch.float64)


def looks(
    coefficients: Tensor, source: Tensor, target: Tensor, sides: Sequence[float], threads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Residuals and mean trace A/d, (B, *shape) each, and totals, (B, TOTALS), of many pairs."""
    count, *shape = coefficients.shape
    d, cells = len(shape), math.prod(shape)
    c = coefficients.to(torch.float64).contiguous()
    first, second = (end.detach().to(torch.float32).contiguous() for end in (source, target))
    assert first.shape == second.shape == c.shape and cells < MOST
    parts = max(1, min(threads, MOST_THREADS, count * cells // WORTH))
    rows = cells // shape[-1] * (shape[-1] + 2)
    rooms = parts if count >= parts else 1
    numbers = 2**d * d * (d + 1) // 2 * cells + rows
    floats = torch.empty(rooms, numbers, dtype=torch.float32, device="cpu")
    doubles = torch.empty(rooms, rows, dtype=torch.float64, device="cpu")
    residual, mean = torch.empty_like(first), torch.empty_like(first)
    totals = torch.empty(count, TOTALS, dtype=torch.float64, device="cpu")
    arrays = c, first, second, residual, mean, totals, floats, doubles
    _call().geonet_looks(
        _problem(shape, [side / n for side, n in zip(sides, shape, strict=True)]),
        d,
        parts,
        count,
        *(array.data_ptr() for array in arrays),
    )
    return residual, mean, totals


def carried(
    coefficients: Tensor,
    ends: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
    threads: int,
) -> Tensor:
    """Densities (T, *shape) at times (T,), up to a factor; see `fields.carried`."""
    own, d = coefficients.shape, coefficients.ndim
    problem = _problem(own, [side / n for side, n in zip(sides, own, strict=True)])
    holder = _Holder()
    _set_ends(problem, *ends, 0.0, holder)
    cells = coefficients.numel()
    threads = max(1, min(threads, cells // WORTH, own[0] if d > 1 else 1, MOST_THREADS))
    c = coefficients.to(torch.float64).contiguous()
    frames = torch.zeros(threads, len(times), *shape, dtype=torch.float32)
    padded = torch.empty(cells // own[-1], own[-1] + 2, dtype=torch.float64)
    moments = times.to(torch.float32).contiguous()
    _call().geonet_carry(
        problem,
        d,
        threads,
        c.data_ptr(),
        moments.data_ptr(),
        len(times),
        _grid(shape),
        (_real * 3)(*(m / n for m, n in zip(shape, own, strict=True))),
        frames.data_ptr(),
        padded.data_ptr(),
    )
    return frames.sum(0, dtype=torch.float64)


class _Holder:
    ends: tuple[Tensor, Tensor]


def _grid(shape: Sequence[int]) -> _Grid:
    return _Grid((_whole * 3)(*(1,) * (3 - len(shape)), *shape), math.prod(shape))


def _problem(shape: Sequence[int], step: Sequence[float]) -> _Problem:
    return _Problem(_grid(shape), (_double * 3)(*step))


def _set_ends(
    problem: _Problem, source: Tensor, target: Tensor, softness: float, holder: Elliptic | _Holder
) -> None:
    ends = tuple(end.detach().to(torch.float32).contiguous() for end in (source, target))
    assert all(end.numel() == problem.grid.cells < MOST for end in ends)
    holder.ends = ends  # pyright: ignore  # whose addresses C is given
    problem.ends[0], problem.ends[1] = (end.data_ptr() for end in ends)
    problem.softness = softness


def _call() -> ctypes.CDLL:
    return loader.called(_declared)


@lru_cache(maxsize=8)
def _declared(library: ctypes.CDLL) -> bool:
    """Whether a library fits these structures; what its functions take is declared."""
    ours = {
        "geonet_multigrid_made_for": [
            MOST_LEVELS,
            ctypes.sizeof(_Level),
            ctypes.sizeof(_Hierarchy),
        ],
        "geonet_halfway_made_for": [VERSION, BLOCK, ctypes.sizeof(_Grid), ctypes.sizeof(_Problem)],
    }
    try:
        for name, numbers in ours.items():
            if list((_whole * len(numbers)).in_dll(library, name)) != numbers:
                return False
    except ValueError:
        return False
    hierarchy, problem = ctypes.POINTER(_Hierarchy), ctypes.POINTER(_Problem)
    library.geonet_prepare.argtypes = [hierarchy, _pointer, _double]
    library.geonet_prepare.restype = None
    library.geonet_solve.argtypes = [hierarchy, *[_pointer] * 3, _double, _whole, _pointer]
    library.geonet_solve.restype = _whole
    library.geonet_halfway_splines.argtypes = [problem, _whole, _whole, *[_pointer] * 6]
    library.geonet_halfway_splines.restype = None
    library.geonet_looks.argtypes = [problem, _whole, _whole, _long, *[_pointer] * 8]
    library.geonet_looks.restype = None
    library.geonet_carry.argtypes = [
        problem,
        _whole,
        _whole,
        _pointer,
        _pointer,
        _whole,
        ctypes.POINTER(_Grid),
        *[_pointer] * 3,
    ]
    library.geonet_carry.restype = None
    return True
