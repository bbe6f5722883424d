"""How many threads a piece of work takes, and how they wait for each other.

Threads of OpenMP meet after every loop. By default those that come first spin for milliseconds. On
a machine that has other work, they spin in the time that the last one needs.
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

WORTH = 8192  # cells for which one more thread pays, in compiled loops
SMALL = 2**15  # cells below which one thread does it all; torch shares out no shorter loops
LINGER = 1.0  # seconds without work after which threads may spin again
CHOSEN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # with these the user decides how threads wait

WITH_BLAS = (  # modules, where they were imported
    "numpy._core._multiarray_umath",
    "numpy.core._multiarray_umath",  # of NumPy 1
    "scipy.linalg._fblas",
)


def threads_for(cells: int) -> int:
    """One for small problems; else as many as torch may use."""
    return max(1, min(torch.get_num_threads(), cells // WORTH))


def map_in_threads(work: Callable[[int], Result], count: int, cells: int) -> Iterator[Result]:
    """What `work` gives for 0, 1, …, count − 1, in this order, several of them at a time.

    It is for work in compiled loops, which let other threads run. Where the cells of one piece are
    many it has all threads to itself, and pieces follow one another.
    """
    workers = 1 if threads_for(cells) > 1 else min(count, torch.get_num_threads())
    if workers <= 1:
        yield from map(work, range(count))
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(work, range(count))


@contextmanager
def limit_threads(cells: int) -> Iterator[None]:
    """Work on so many cells: one thread where they are few, else threads that wait asleep.

    Of torch and the compiled loops, only calls by this thread are limited, and only in here. NumPy
    and SciPy know one number for the whole process: meanwhile it is one, whatever there is to do.
    """
    with _blas, one_thread() if cells < SMALL else passive_wait():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, MKL and the compiled loops use one thread when this thread calls them.

    `torch.set_num_threads` would also be the number of all threads that start meanwhile, for good.
    """
    before, library = torch.get_num_threads(), _openmp()
    if before == 1 or library is None:
        yield
        return
    set_mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)  # there in builds with MKL
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
    """Threads of OpenMP that wait go to sleep almost at once, in the whole process.

    The number of threads stays as it is, and with it every bit of what they compute.
    """
    threads, library = torch.get_num_threads(), _openmp()
    decided = any(name in os.environ for name in CHOSEN)
    if threads == 1 or decided or library is None or not _is_gnu():
        yield
        return
    _crowd.enter(library, threads)
    try:
        yield
    finally:
        _crowd.leave()


class _Crowd:
    """Idle threads that make GNU's OpenMP count more threads than processors.

    Then it hardly spins (its `gomp_throttled_spin_count_var`). Nothing else changes its mind once
    it is loaded: it reads OMP_WAIT_POLICY when torch is imported, perhaps before geonet.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._users = self._entries = self._size = 0
        self._keeper: Thread | None = None

    def enter(self, library: Any, threads: int) -> None:
        """Be there, for work of so many threads, until as many have left as entered."""
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
        """The last one that leaves lets the idle threads go, some time later."""
        with self._changed:
            self._users -= 1

    def _keep(self, library: Any, size: int, ready: Event) -> None:
        """Start a team, which stays until the thread ends that started it."""
        nothing = ctypes.cast(library.free, ctypes.c_void_p)  # a null pointer is freed by nothing
        library.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))
        ready.set()
        seen = -1
        with self._changed:
            while self._keeper is current_thread() and (self._users or seen != self._entries):
                seen = self._entries
                self._changed.wait(LINGER)
            if self._keeper is current_thread():  # and not a larger team's
                self._keeper = None


_crowd = _Crowd()
if hasattr(os, "register_at_fork"):  # a child has no threads but the one that forked
    os.register_at_fork(after_in_child=lambda: _crowd.__init__())


class _Blas:
    """One thread for the OpenBLAS of NumPy and of SciPy, whose threads spin as well.

    The first that enters sets it, the last that leaves puts back what was there before.
    """

    def __init__(self) -> None:
        self._lock, self._users = Lock(), 0
        self._before: list[tuple[Callable[[int], Any], int]] = []

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._before = [(set_to, get()) for set_to, get in _blas_threads()]
                for set_to, _ in self._before:
                    set_to(1)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for set_to, number in self._before:
                    set_to(number)


_blas = _Blas()


def _blas_threads() -> list[tuple[Callable[[int], Any], Callable[[], int]]]:
    """How to set and get the number of threads of every OpenBLAS that is loaded."""
    files = [getattr(sys.modules.get(name), "__file__", None) for name in WITH_BLAS]
    found = (_openblas(file) for file in files if file and not file.endswith(".py"))
    return [functions for functions in found if functions is not None]


@lru_cache(maxsize=8)
def _openblas(file: str) -> tuple[Callable[[int], Any], Callable[[], int]] | None:
    """Of the OpenBLAS that a module is linked with; None if that is another library."""
    library = ctypes.CDLL(file)
    for name in ("scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):
        for ending in ("64_", ""):
            names = [name.format(verb) + ending for verb in ("set", "get")]
            if all(hasattr(library, each) for each in names):
                return getattr(library, names[0]), getattr(library, names[1])
    return None


@lru_cache(maxsize=1)
def _openmp() -> ctypes.CDLL | None:
    """What torch is linked with, where that has OpenMP."""
    library = ctypes.CDLL(torch._C.__file__)
    return library if hasattr(library, "omp_set_num_threads") else None


@lru_cache(maxsize=1)
def _is_gnu() -> bool:
    """Whether it is GNU's; those of Intel and LLVM speak its language too."""
    library = _openmp()
    return hasattr(library, "GOMP_parallel") and not hasattr(library, "kmp_set_blocktime")
