"""Interface to the kernels of bounds.c."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from geonet._threads import threads_for
from geonet.numerics.kernels import compatible_library
from geonet.solvers.newton.compiled import MAX_THREADS, GridStructure

VERSION = 8

_int32, _int64, _double, _pointer = (
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_double,
    ctypes.c_void_p,
)


class PlanStructure(ctypes.Structure):
    """Plan of bounds.c."""

    _fields_ = (
        ("d", _int32),
        ("threads", _int32),
        ("potential", GridStructure),
        ("lattice", GridStructure),
        ("step", _double * 3),
        ("factors", _double * 2),
        ("reach", _double),
        ("masses", _pointer * 2),
        ("start", _pointer),
        ("displacement", _pointer),
        ("mass", _pointer),
    )


class RadialStructure(ctypes.Structure):
    """Radial of bounds.c: missing axes come first, with one point."""

    _fields_ = (
        ("from_points", _int32 * 3),
        ("to_points", _int32 * 3),
        ("block", _int32 * 3),
        ("threads", _int32),
        ("cost", _pointer),
        ("least", _pointer),
    )


def is_available() -> bool:
    """Return whether the kernels are compiled, compatible and not disabled."""
    return compatible_library(declare) is not None


def count_threads(points: int, points_per_thread: int = 2**15) -> int:
    """Return the number of threads for points, with enough work to wake each of them."""
    return max(1, min(threads_for(points), points // points_per_thread, MAX_THREADS))


def address(values: Tensor | None, shape: Sequence[int]) -> int | None:
    """Return the address of double-precision values of that shape; None for None."""
    if values is None:
        return None
    assert values.shape == tuple(shape) and values.dtype == torch.float64
    assert values.is_contiguous()
    return values.data_ptr()


@lru_cache(maxsize=8)
def declare(library: ctypes.CDLL) -> bool:
    """Declare the functions of a library; return whether it was built for these structures."""
    numbers = [VERSION, ctypes.sizeof(PlanStructure), ctypes.sizeof(RadialStructure)]
    try:
        if list((_int32 * 3).in_dll(library, "geonet_bounds_abi")) != numbers:
            return False
    except ValueError:
        return False
    plan = ctypes.POINTER(PlanStructure)
    library.geonet_plan_points.argtypes = [plan, _pointer, _pointer]
    library.geonet_plan_marginal.argtypes = [plan, _int32, *[_pointer] * 2]
    library.geonet_plan_flow.argtypes = [plan, *[_pointer] * 5]
    library.geonet_plan_blocks.argtypes = [plan, *[_pointer] * 4]
    library.geonet_plan_product.argtypes = [plan, _pointer, _pointer]
    library.geonet_plan_cost.argtypes = [plan, *[_pointer] * 3, _double, _double]
    library.geonet_plan_blocks_size.argtypes = [plan]
    for name in ("points", "marginal", "flow", "blocks"):
        getattr(library, f"geonet_plan_{name}").restype = None
    library.geonet_plan_product.restype = library.geonet_plan_cost.restype = _double
    library.geonet_plan_blocks_size.restype = _int64
    library.geonet_spline_axis.argtypes = [
        _pointer, _pointer, _int64, _int64, _int32, _int32, _double, _double, _int32,
    ]  # fmt: skip
    library.geonet_spline_axis.restype = None
    library.geonet_radial_transform.argtypes = [ctypes.POINTER(RadialStructure), *[_pointer] * 4]
    library.geonet_radial_transform.restype = None
    return True
