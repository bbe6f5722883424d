"""Who asks a training to stop: Ctrl-C, SIGTERM and the clock."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

REASONS = ("interrupted", "terminated", "time limit")
SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Stopped(BaseException):
    """Leaves work that was asked to stop; no solver takes it for an error that it may answer."""


class Stops:
    """Whether somebody asked to stop, and who.

    Args:
        time_limit: seconds from now on; None for no limit.
    """

    def __init__(self, time_limit: float | None = None):
        self._until = None if time_limit is None else perf_counter() + time_limit
        self._signalled: str | None = None

    @property
    def reason(self) -> str | None:
        """One of `REASONS`; None to go on."""
        late = self._until is not None and perf_counter() > self._until
        return self._signalled or ("time limit" if late else None)

    def check(self) -> None:
        """Raise `Stopped` if there is a reason to."""
        if self.reason is not None:
            raise Stopped

    @contextmanager
    def listening_to_signals(self) -> Iterator[Stops]:
        """Meanwhile Ctrl-C and SIGTERM are reasons, and cut no step; a second Ctrl-C interrupts."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # signals belong to the main thread
            return
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _: object) -> None:
        if self._signalled is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signalled = SIGNALS[signal.Signals(number)]
