"""Long work in a thread of its own, while the main thread shows how it goes and minds Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from threading import Event, Thread
from typing import Generic, TypeVar

from geonet.progress import listening

POLL = 0.1  # seconds between two looks at the work

T = TypeVar("T")


class InterruptedWorkError(Exception):
    """Ctrl-C, with a sentence on what is done so far; typer would drop that of its own kind."""


def waited_for(work: Callable[[], T], show: Callable[[str], None]) -> T:
    """What `work` gives; meanwhile `show` is called with what it last told of itself.

    Python delivers Ctrl-C between two instructions of the main thread, and a compiled loop is one
    instruction. Here the main thread only waits, so it answers at once. It then leaves the work
    behind, since nobody can stop a thread: `left_behind` tells.
    """
    task = _Task(work)
    _tasks.add(task)
    task.start()
    while not task.done.wait(POLL):
        show(task.line)
    _tasks.discard(task)
    return task.outcome()


def left_behind() -> bool:
    """Whether work goes on that nobody waits for."""
    return any(not task.done.is_set() for task in _tasks)


class _Task(Thread, Generic[T]):
    """Work with the settings of the thread that starts it.

    Attributes:
        line: what the work told last.
        done: whether it ended.
    """

    def __init__(self, work: Callable[[], T]):
        super().__init__(daemon=True)
        self._work, self._context = work, copy_context()
        self._found: T
        self._error: BaseException | None = None
        self.line, self.done = "", Event()

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._context.run(self._listened)
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> T:
        """What the work gave; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._found

    def _listened(self) -> None:
        with listening(self._hear):
            self._found = self._work()

    def _hear(self, line: str) -> None:
        self.line = line


_tasks: set[_Task] = set()
