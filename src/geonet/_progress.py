"""What long work says about itself, to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic

from geonet._validation import as_number, short_repr
from geonet.errors import InputError

Listener = Callable[[str], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report_progress(line: str) -> None:
    """Say where the work is, in a few words."""
    listener = _listener.get()
    if listener is not None:
        listener(line)


@contextmanager
def progress_callback(listener: Listener, every: float = 0.0) -> Iterator[None]:
    """Hear where solvers are while they work, in this thread.

    `with geonet.listening(print, every=2): geonet.geodesic(source, target)` prints lines such as
    "midpoint: 256×256 cells, Newton step 7, residual 1.4 %".

    Args:
        listener: called with a line of text, in the thread that solves.
        every: seconds between two lines; those in between are dropped.
    """
    if not callable(listener):
        raise InputError(
            f"listener is {short_repr(listener)}; give a function of a line, as print is."
        )
    pause = as_number(every, "every", "give a number of seconds")
    if not pause >= 0:
        raise InputError(f"every is {pause:g}; give a number of seconds, at least 0.")
    token = _listener.set(_seldom(listener, pause) if pause > 0 else listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def part(name: str) -> Iterator[None]:
    """Tell that a part of the work begins; what it tells meanwhile follows its name."""
    outer = _listener.get()
    if outer is None:
        yield
        return
    outer(name)
    with progress_callback(lambda line: outer(f"{name}, {line}")):
        yield


def _seldom(listener: Listener, every: float) -> Listener:
    last = -float("inf")

    def hear(line: str) -> None:
        nonlocal last
        if monotonic() - last >= every:
            last = monotonic()
            listener(line)

    return hear
