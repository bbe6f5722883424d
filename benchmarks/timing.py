"""Measure time and memory of a call, repeated within a time budget."""

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
HOPELESS = 3.0  # budgets: a first call may compile code, so it may take longer than one


@dataclass(frozen=True)
class Calls:
    """Seconds and megabytes of repeated calls.

    Attributes:
        first: seconds of the first call.
        warm: seconds of the following calls; the first one if it was far too long.
        memory_mb: increase of peak resident memory in the first call; None if unknown.
    """

    first: float
    warm: list[float]
    memory_mb: float | None


def repeat_within(
    budget: float,
    repeats: int,
    call: Callable[[int], Answer],
    observe: Callable[[int, Answer], None] = lambda k, answer: None,
) -> Calls:
    """Call once to warm up, then at most `repeats` times within `budget` seconds.

    There is at least one repeat unless the first call took `HOPELESS` budgets. `call` receives the
    number of the repeat, from 0 (also the first call); `observe`, which is not timed, receives the
    number and the answer.
    """
    reset = _reset_peak()
    first = _time_call(call, 0, observe)
    memory = None if reset is None else max(_read_memory("VmHWM") - reset, 0.0)
    if first > HOPELESS * budget:
        return Calls(first, [first], memory)
    warm: list[float] = []
    while len(warm) < repeats and (not warm or sum(warm) + max(warm) <= budget):
        warm.append(_time_call(call, len(warm), observe))
    return Calls(first, warm, memory)


def _time_call(
    call: Callable[[int], Answer], k: int, observe: Callable[[int, Answer], None]
) -> float:
    began = perf_counter()
    answer = call(k)
    seconds = perf_counter() - began
    observe(k, answer)
    return seconds


def _reset_peak() -> float | None:
    """Reset the peak of resident memory and return the current value in megabytes; None if not on
    Linux.
    """
    gc.collect()
    with suppress(OSError, AttributeError):  # return freed memory to the system
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _read_memory("VmRSS")
    except OSError:
        return None


def _read_memory(key: str) -> float:
    """Return a line of /proc/self/status in megabytes."""
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
