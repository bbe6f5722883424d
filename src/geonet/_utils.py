"""Objects by their location, "module:attribute", imported when they are first asked for."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock, RLock
from typing import Any

import torch

from geonet._validation import check_instance


def import_object(location: str) -> Any:
    """The object at "module:attribute"."""
    module, attribute = location.split(":")
    return getattr(import_module(module), attribute)


# ---- Warnings: remarks of libraries that users are not to see, and where ours come from.


LIBRARIES = r"(PIL|ot)(\.|$)"

_lock = Lock()
_inside = 0
_outside = warnings.catch_warnings()


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """No warnings of Pillow and POT in here, and none that something is deprecated.

    `catch_warnings` alone is not for threads: where two overlap, the one that leaves last puts back
    what it found, the filters of the other, and they stay. Here the first thread that enters sets
    them, and the last one that leaves puts back what was there before.
    """
    global _inside, _outside
    with _lock:
        if _inside == 0:
            _outside = warnings.catch_warnings()
            _outside.__enter__()
            warnings.filterwarnings("ignore", module=LIBRARIES)
            warnings.simplefilter("ignore", DeprecationWarning)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _outside.__exit__(None, None, None)


def user_stacklevel() -> int:
    """`stacklevel` with which a warning is at the first caller outside geonet."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("geonet."):
        level, frame = level + 1, frame.f_back
    return level


# ---- Torch's global stream of random numbers, borrowed.


_lock_randomness = RLock()  # there is one stream for all threads


@contextmanager
def fork_rng(seed: int) -> Iterator[None]:
    """Seeds PyTorch and leaves its global generator as it was; one thread after the other."""
    with _lock_randomness, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_generator(generator: torch.Generator | None) -> None:
    """Refuse what draws no random numbers, such as a seed."""
    if generator is not None:
        remedy = "give a torch.Generator, such as torch.Generator().manual_seed(0)"
        check_instance(generator, torch.Generator, "generator", remedy)


# ---- The version of geonet.


VERSION = "0.1.0"
