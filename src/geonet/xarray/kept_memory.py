"""Memory that a worker of Dask keeps from one pair to the next.

Dask starts its workers with MALLOC_TRIM_THRESHOLD_=65536: then glibc gives every freed array back
at once, and the next array of the same size is new pages, which the system has to clear. Solving a
pair makes and frees hundreds of arrays, so workers spend much of their time on that.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

SETTING = "MALLOC_TRIM_THRESHOLD_"
TRIM, MMAP = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEPT, LARGEST = 2**27, 2**25  # bytes: free memory that is kept, and the largest array for that
USUAL = 2**17  # bytes: glibc's own for the latter, where the former is set

_lock, _users = Lock(), 0


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep freed memory meanwhile, where Dask's setting is in force, and give it back after."""
    setting = os.environ.get(SETTING, "")
    library = ctypes.CDLL(None) if setting.isdigit() and os.name == "posix" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    _count(library, 1)
    try:
        yield
    finally:
        _count(library, -1)


def _count(library: ctypes.CDLL, more: int) -> None:
    """The first that enters changes the settings of the process, the last puts them back."""
    global _users
    with _lock:
        first, _users = _users == 0, _users + more
        if first:
            library.mallopt(TRIM, KEPT)
            library.mallopt(MMAP, LARGEST)
        elif _users == 0:
            library.mallopt(TRIM, int(os.environ[SETTING]))
            library.mallopt(MMAP, USUAL)
            library.malloc_trim(ctypes.c_size_t(0))
