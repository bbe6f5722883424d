"""Load the compiled kernels: one library for each kind of processor.

Every file that calls the kernels declares what its functions take and checks everything that it
hands over: C looks at nothing but addresses.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from geonet.errors import InputError

BUILDS = ("default", "avx2", "avx512")  # each runs wherever a later one does


def available() -> bool:
    """Whether there are compiled loops, and they are not turned off by GEONET_COMPILED=0."""
    return build() is not None


def build() -> str | None:
    """Which of the builds is used; None where torch does it.

    The one for this processor, unless GEONET_COMPILED names another, or is 0 for none.
    """
    asked = os.environ.get("GEONET_COMPILED", "1")
    if asked in ("", "1"):
        return _own_build()
    if asked in BUILDS and _library(asked) is None:
        raise InputError(
            f"GEONET_COMPILED is {asked}, but that build was not compiled or does not run on this "
            f"machine; what there is: {', '.join((*loadable(), '0'))}."
        )
    if asked not in (*BUILDS, "0"):
        raise InputError(f"GEONET_COMPILED is {asked!r}; give 0, 1, {', '.join(BUILDS)}.")
    return None if asked == "0" else asked


def loadable() -> list[str]:
    """The builds that this machine can run, the widest last."""
    return [name for name in BUILDS if _library(name) is not None]


def library() -> ctypes.CDLL | None:
    """The build that is used; None where torch does it."""
    name = build()
    return None if name is None else _library(name)


def fitting(declared: Callable[[ctypes.CDLL], bool]) -> ctypes.CDLL | None:
    """The build that is used, if it fits the file that declares what its functions take."""
    found = library()
    return found if found is not None and declared(found) else None


def called(declared: Callable[[ctypes.CDLL], bool]) -> ctypes.CDLL:
    """The same where it is known to be there."""
    found = fitting(declared)
    assert found is not None, "ask available() first"
    return found


def library_name() -> str | None:
    """The file that is used, without its folder."""
    found = library()
    return None if found is None else Path(found._name).name


def _room(*shape: int) -> Tensor:
    """Where C writes; single precision whatever torch's default is."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def _addresses(*tensors: Tensor) -> list[int]:
    """Of what C reads and writes in single precision."""
    for tensor in tensors:
        fits = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
        assert fits and tensor.is_contiguous()
    return [tensor.data_ptr() for tensor in tensors]


def _single(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).contiguous()


@lru_cache(maxsize=1)
def _own_build() -> str | None:
    """The build for this processor, or else the one for any of its kind."""
    return next((name for name in (_capability(), "default") if _library(name) is not None), None)


def _capability() -> str:
    """The build that is for what torch's own loops are."""
    name = torch.backends.cpu.get_cpu_capability().lower()
    return name if name in BUILDS else "default"


@lru_cache(maxsize=len(BUILDS) + 1)
def _library(name: str) -> ctypes.CDLL | None:
    """A build, if it was compiled from these sources and this processor can run it."""
    if name not in BUILDS[: BUILDS.index(_capability()) + 1]:
        return None
    found = find_spec(f"geonet.numerics.kernels._kernels_{name}")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:  # it was made for another machine, or torch brings no OpenMP
        return None
    return library
