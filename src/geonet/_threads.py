"""Number of threads of a computation, and how they wait for each other.

OpenMP threads synchronise after every loop. By default the first ones to arrive spin for
milliseconds, which slows the last ones down if the machine is busy.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Condition, Event, Lock, Thread, current_thread
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

CELLS_PER_THREAD = 2**16  # below, one more thread does not pay: 256² cells are faster with one
MIN_PARALLEL_CELLS = 2**17  # below, one thread does it all


def threads_for(cells: int) -> int:
    """Return one for small problems, else as many threads as torch may use."""
    return max(1, min(torch.get_num_threads(), cells // CELLS_PER_THREAD))


def map_in_threads(function: Callable[[int], Result], count: int, cells: int) -> Iterator[Result]:
    """Yield function(0), …, function(count − 1) in this order, several computed at a time.

    For C kernels, which release the GIL. If one call works on many cells it uses all threads, and
    the calls follow one another.
    """
    workers = 1 if threads_for(cells) > 1 else min(count, torch.get_num_threads())
    if workers <= 1:
        yield from map(function, range(count))
        return

    def call(k: int) -> Result:
        with one_thread():
            return function(k)

    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(call, range(count))


@contextmanager
def limit_threads(cells: int) -> Iterator[None]:
    """Use one thread for a computation on few cells, else threads that sleep while they wait.

    For torch and the C kernels, this affects calls of the current thread only. NumPy and SciPy have
    one setting for the whole process, which is one thread meanwhile.
    """
    with _blas, one_thread() if cells < MIN_PARALLEL_CELLS else passive_wait():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, MKL and the C kernels use one thread if the current thread calls them.

    `torch.set_num_threads` would also change the number for all threads that start meanwhile.
    """
    before, library = torch.get_num_threads(), _openmp()
    if before == 1 or library is None:
        yield
        return
    set_mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)  # None in builds without MKL
    library.omp_set_num_threads(1)
    mkl_before = set_mkl(1) if set_mkl else 0
    try:
        yield
    finally:
        library.omp_set_num_threads(before)
        if set_mkl:
            set_mkl(mkl_before)


@contextmanager
def passive_wait() -> Iterator[None]:
    """Let waiting OpenMP threads of the process sleep instead of spin.

    The number of threads, and so every bit of their results, stays the same. The user's own
    OMP_WAIT_POLICY or GOMP_SPINCOUNT has priority.
    """
    threads, library = torch.get_num_threads(), _openmp()
    is_set = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
    if threads == 1 or is_set or library is None or not _is_gnu():
        yield
        return
    _idle_team.enter(library, threads)
    try:
        yield
    finally:
        _idle_team.leave()


class _IdleTeam:
    """Idle threads that make GNU's OpenMP count more threads than processors.

    It then hardly spins (`gomp_throttled_spin_count_var`). There is no other way once it is loaded:
    it reads OMP_WAIT_POLICY when torch is imported, perhaps before geonet.
    """

    keep_alive = 1.0  # seconds without users after which the team ends

    def __init__(self) -> None:
        self._changed = Condition()
        self._users = self._entries = self._size = 0
        self._keeper: Thread | None = None

    def enter(self, library: Any, threads: int) -> None:
        """Add a user with that number of threads, and start the team if there is none."""
        size = max(2, library.omp_get_num_procs() - threads + 2)
        with self._changed:
            if self._keeper is None or size > self._size:
                ready = Event()
                keeper = Thread(target=self._keep, args=(library, size, ready), daemon=True)
                keeper.start()
                ready.wait()
                self._keeper, self._size = keeper, size
            self._users += 1
            self._entries += 1

    def leave(self) -> None:
        """Remove a user; the team ends `keep_alive` seconds after the last one left."""
        with self._changed:
            self._users -= 1

    def _keep(self, library: Any, size: int, ready: Event) -> None:
        """Start a team, which exists until its thread ends."""
        no_op = ctypes.cast(library.free, ctypes.c_void_p)  # free(NULL) does nothing
        library.GOMP_parallel(no_op, None, ctypes.c_uint(size), ctypes.c_uint(0))
        ready.set()
        last_entries = -1
        with self._changed:
            while self._keeper is current_thread() and (
                self._users or last_entries != self._entries
            ):
                last_entries = self._entries
                self._changed.wait(self.keep_alive)
            if self._keeper is current_thread():  # else a larger team took over
                self._keeper = None


_idle_team = _IdleTeam()
if hasattr(os, "register_at_fork"):  # a child process has only the thread that forked
    os.register_at_fork(after_in_child=lambda: _idle_team.__init__())


class _SingleThreadedBlas:
    """One thread for the OpenBLAS of NumPy and of SciPy, whose threads spin as well.

    The first to enter sets it, the last to leave restores the previous number.
    """

    def __init__(self) -> None:
        self._lock, self._users = Lock(), 0
        self._before: list[tuple[Callable[[int], Any], int]] = []

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = [(set_number, get()) for set_number, get in _blas_functions()]
                for set_number, _ in self._before:
                    set_number(1)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for set_number, number in self._before:
                    set_number(number)


_blas = _SingleThreadedBlas()


def _blas_functions() -> list[tuple[Callable[[int], Any], Callable[[], int]]]:
    """Return the setter and getter of the number of threads of every loaded OpenBLAS."""
    modules = (
        "numpy._core._multiarray_umath",
        "numpy.core._multiarray_umath",  # of NumPy 1
        "scipy.linalg._fblas",
    )
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules]
    libraries = (_openblas(file) for file in files if file and not file.endswith(".py"))
    return [functions for functions in libraries if functions is not None]


@lru_cache(maxsize=8)
def _openblas(file: str) -> tuple[Callable[[int], Any], Callable[[], int]] | None:
    """Return setter and getter of the OpenBLAS that a module is linked with, or None."""
    library = ctypes.CDLL(file)
    for name in ("scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):
        for ending in ("64_", ""):
            names = [name.format(verb) + ending for verb in ("set", "get")]
            if all(hasattr(library, each) for each in names):
                return getattr(library, names[0]), getattr(library, names[1])
    return None


@lru_cache(maxsize=1)
def _openmp() -> ctypes.CDLL | None:
    """Return the library that torch is linked with, or None if it has no OpenMP."""
    library = ctypes.CDLL(torch._C.__file__)
    return library if hasattr(library, "omp_set_num_threads") else None


@lru_cache(maxsize=1)
def _is_gnu() -> bool:
    """Return whether OpenMP is GNU's; Intel's and LLVM's have its functions too."""
    library = _openmp()
    return hasattr(library, "GOMP_parallel") and not hasattr(library, "kmp_set_blocktime")
