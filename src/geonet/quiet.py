"""Remarks of libraries that users are not to see, kept from them in any number of threads."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

LIBRARIES = r"(PIL|ot)(\.|$)"

_lock = Lock()
_inside = 0
_outside = warnings.catch_warnings()


@contextmanager
def quiet() -> Iterator[None]:
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
