"""What page writers share in measuring."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for every draw."""
    return torch.Generator().manual_seed(seed)


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """The median time of a call; warm up before."""
    times = []
    for _ in range(repeats):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return median(times)
