"""Progress messages of long computations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

from geonet._validation import as_number
from geonet.errors import InputError

Callback = Callable[[str], None]
_callback: ContextVar[Callback | None] = ContextVar("callback", default=None)


def report_progress(line: str) -> None:
    """Send a short line about the state of the computation to the callback, if there is one."""
    callback = _callback.get()
    if callback is not None:
        callback(line)


@contextmanager
def progress_callback(callback: Callback, every: float = 0.0) -> Iterator[None]:
    """Call a function with progress messages of solvers in the current thread.

    `with geonet.progress_callback(print, every=2): geonet.geodesic(source, target)` prints lines
    such as "midpoint: 256×256 cells, Newton step 7, residual 1.4 %".

    Args:
        callback: called with a line of text, in the thread that solves.
        every: minimal number of seconds between two lines; others are dropped.
    """
    if not callable(callback):
        raise InputError(f"callback is {callback!r}; give a function of a line, such as print.")
    pause = as_number(every, "every", "give a number of seconds")
    if not pause >= 0:
        raise InputError(f"every is {pause:g}; give a number of seconds, at least 0.")
    token = _callback.set(_throttle(callback, pause) if pause > 0 else callback)
    try:
        yield
    finally:
        _callback.reset(token)


@contextmanager
def progress_stage(name: str) -> Iterator[None]:
    """Report that a stage begins, and prefix the messages of its computations with its name."""
    outer = _callback.get()
    if outer is None:
        yield
        return
    outer(name)
    with progress_callback(lambda line: outer(f"{name}, {line}")):
        yield


def _throttle(callback: Callback, every: float) -> Callback:
    last = -float("inf")

    def call(line: str) -> None:
        nonlocal last
        if monotonic() - last >= every:
            last = monotonic()
            callback(line)

    return call
