"""How long a call takes, and how much memory: repeated as often as a budget of seconds allows."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch

Answer = TypeVar("Answer")
HOPELESS = 3.0  # budgets: less may be what only a first call does, such as compiling


@dataclass(frozen=True)
class Calls:
    """Seconds of calls, and megabytes.

    Attributes:
        first: the call that found nothing prepared.
        warm: the calls after it, in their order; the first itself where that was far too long.
        memory_mb: by how much the peak of resident memory rose in the first; None if not known.
    """

    first: float
    warm: list[float]
    memory_mb: float | None


def repeat_within(
    budget: float,
    repeats: int,
    call: Callable[[int], Answer],
    seen: Callable[[int, Answer], None] = lambda k, answer: None,
) -> Calls:
    """Call once to warm up, then `repeats` times, or as often as fits into `budget` seconds.

    That is once at least, unless the first call took `HOPELESS` budgets. `call` is given the number
    of the repeat, from 0 (as is the first call), and `seen`, which is not timed, the number and the
    answer.
    """
    reset = _reset_peak()
    first = _time_call(call, 0, seen)
    memory = None if reset is None else max(_read_memory("VmHWM") - reset, 0.0)
    if first > HOPELESS * budget:
        return Calls(first, [first], memory)
    warm: list[float] = []
    while len(warm) < repeats and (not warm or sum(warm) + max(warm) <= budget):
        warm.append(_time_call(call, len(warm), seen))
    return Calls(first, warm, memory)


def _time_call(call: Callable[[int], Answer], k: int, seen: Callable[[int, Answer], None]) -> float:
    began = perf_counter()
    answer = call(k)
    seconds = perf_counter() - began
    seen(k, answer)
    return seconds


def _reset_peak() -> float | None:
    """Make the peak of resident memory what is resident now, in megabytes; None if not on Linux."""
    gc.collect()
    with suppress(OSError, AttributeError):  # freed memory counts as free where this is known
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _read_memory("VmRSS")
    except OSError:
        return None


def _read_memory(key: str) -> float:
    """A line of /proc/self/status, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def measure_median(call: Callable[[], object], repeats: int = 1) -> float:
    """Return the median time of a call in seconds; call it once before to warm up."""
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return median(times)


def make_generator(seed: int) -> torch.Generator:
    """Return a random generator with this seed."""
    return torch.Generator().manual_seed(seed)
