"""Torch's global stream of random numbers, borrowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

import torch

from geonet.arguments import check_kind

_lock = RLock()  # there is one stream for all threads


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds PyTorch and leaves its global generator as it was; one thread after the other."""
    with _lock, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_generator(generator: torch.Generator | None) -> None:
    """Refuse what draws no random numbers, such as a seed."""
    if generator is not None:
        remedy = "give a torch.Generator, such as torch.Generator().manual_seed(0)"
        check_kind(generator, torch.Generator, "generator", remedy)
