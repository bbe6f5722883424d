"""Torch's global stream of random numbers, borrowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

_lock = RLock()  # there is one stream for all threads


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds PyTorch and leaves its global generator as it was; one thread after the other."""
    with _lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
