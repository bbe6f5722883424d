"""What long work says about itself, to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def tell(line: str) -> None:
    """Say where the work is, in a few words."""
    listener = _listener.get()
    if listener is not None:
        listener(line)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Hear what is told in this thread meanwhile."""
    token = _listener.set(listener)
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
    with listening(lambda line: outer(f"{name}, {line}")):
        yield
