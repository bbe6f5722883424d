"""Loader of the compiled kernels, with one build for each kind of processor.

Every module that calls the kernels declares the arguments of its functions, and checks them
before a call, because the C code checks none. The environment variable GEONET_COMPILED selects a
build by name; 0 disables the kernels, and torch is used instead.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from geonet._utils import user_stacklevel
from geonet.errors import InputError

BUILDS = ("default", "avx2", "avx512")  # a processor that runs one also runs those before it


def is_available() -> bool:
    """Return whether there are compiled kernels, and GEONET_COMPILED does not disable them."""
    return active_build() is not None


def active_build() -> str | None:
    """Return the name of the build in use; None if torch is used instead.

    It is the build for this processor, unless GEONET_COMPILED names another one.
    """
    choice = os.environ.get("GEONET_COMPILED", "1")
    if choice in ("", "1"):
        return _native_build()
    if choice in BUILDS and _load_build(choice) is None:
        raise InputError(
            f"GEONET_COMPILED is {choice}, but that build was not compiled or does not run on this "
            f"machine; available are {', '.join((*available_builds(), '0'))}."
        )
    if choice not in (*BUILDS, "0"):
        raise InputError(f"GEONET_COMPILED is {choice!r}; give 0, 1, {', '.join(BUILDS)}.")
    return None if choice == "0" else choice


def available_builds() -> list[str]:
    """Return the builds that run on this machine, the widest vectors last."""
    return [name for name in BUILDS if _load_build(name) is not None]


def compatible_library(declare: Callable[[ctypes.CDLL], bool]) -> ctypes.CDLL | None:
    """Return the library in use if `declare` accepts it, else None.

    Args:
        declare: sets the argument types of the functions that a module calls, and returns whether
            the library was built for the structures of that module.
    """
    name = active_build()
    found = None if name is None else _load_build(name)
    return found if found is not None and declare(found) else None


def library(declare: Callable[[ctypes.CDLL], bool]) -> ctypes.CDLL:
    """Return the library like `compatible_library`, but assume that it is available."""
    found = compatible_library(declare)
    assert found is not None, "check is_available() first"
    return found


def library_name() -> str | None:
    """Return the file name of the library in use."""
    name = active_build()
    found = None if name is None else _load_build(name)
    return None if found is None else Path(found._name).name


def load_extension(name: str) -> ctypes.CDLL | None:
    """Load an extension module of this package; None if it does not exist or does not load."""
    spec = find_spec(f"geonet.numerics.kernels.{name}")
    if spec is None or spec.origin is None:
        return None
    try:
        return ctypes.CDLL(spec.origin)
    except OSError:  # built for another machine, or torch was built without OpenMP
        return None


def empty_f32(*shape: int) -> Tensor:
    """Return memory for C to write to, single precision whatever torch's default is."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def as_f32(tensor: Tensor) -> Tensor:
    """Return a contiguous copy in single precision, unless it is one already."""
    return tensor.detach().to("cpu", torch.float32).contiguous()


def addresses(*tensors: Tensor) -> list[int]:
    """Return the addresses of tensors that C reads or writes in single precision."""
    for tensor in tensors:
        is_f32 = tensor.dtype == torch.float32 and tensor.device.type == "cpu"
        assert is_f32 and tensor.is_contiguous()
    return [tensor.data_ptr() for tensor in tensors]


@lru_cache(maxsize=1)
def _native_build() -> str | None:
    """Return the build for this processor, or else the default one; warn once if there is none."""
    names = (_capability(), "default")
    found = next((name for name in names if _load_build(name) is not None), None)
    if found is None:
        warnings.warn(
            "geonet was installed without its compiled kernels, so that torch does their work, "
            "many times slower; install a C compiler (GCC or Clang) and run pip install "
            "--force-reinstall --no-deps --no-binary geonet-ot geonet-ot, or set GEONET_COMPILED=0 "
            "to hide this warning.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )
    return found


def _capability() -> str:
    """Return the build with the instruction set of torch's own loops."""
    name = torch.backends.cpu.get_cpu_capability().lower()
    return name if name in BUILDS else "default"


@lru_cache(maxsize=len(BUILDS) + 1)
def _load_build(name: str) -> ctypes.CDLL | None:
    """Load a build if it was compiled and this processor can run it."""
    if BUILDS.index(name) > BUILDS.index(_capability()):
        return None
    return load_extension(f"_kernels_{name}")
