"""The one thread that computes: torch and the compiled loops use all cores by themselves."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Full, Queue
from threading import Lock, Thread
from typing import Any, TypeVar

import torch

from geonet.app.refused import BUSY, RefusedError
from geonet.errors import ConvergenceWarning

Result = TypeVar("Result")
Turn = tuple[Callable[[], Any], Future[Any]]

WAITING = 16  # pieces of work behind the one that is being done
STOPPED = "geonet app was stopped; start it again."


class Worker:
    """Does one piece of work after the other, in the order in which they come."""

    def __init__(self) -> None:
        self._waiting: Queue[Turn | None] = Queue(WAITING)
        self._lock, self._open = Lock(), True
        self._unanswered: set[Future[Any]] = set()
        # A daemon, since nobody can stop a thread that computes; see `ended`.
        self._thread = Thread(target=self._run, name="geonet-worker", daemon=True)
        self._thread.start()

    def asked_for(self, work: Callable[[], Result]) -> Future[Result]:
        """What `work` gives or raises when its turn comes; refused at once if too many wait.

        Work whose future was cancelled meanwhile is passed over.
        """
        answer: Future[Result] = Future()
        with self._lock:
            if not self._open:
                raise RefusedError(STOPPED, 503)
            try:
                self._waiting.put_nowait((work, answer))
            except Full:
                raise RefusedError(BUSY, 503) from None
            self._unanswered.add(answer)
        answer.add_done_callback(self._forget)
        return answer

    def close(self) -> None:
        """Refuse all that waits, and what is being done; take nothing more."""
        with self._lock:
            self._open, refused = False, list(self._unanswered)
        for answer in refused:
            with suppress(InvalidStateError):  # given, or given up, in this moment
                answer.set_exception(RefusedError(STOPPED, 503))
        with suppress(Full):  # then there is something else to wake it up
            self._waiting.put_nowait(None)

    def ended(self, patience: float) -> bool:
        """Whether the thread of a closed worker ends within so many seconds.

        If not, the process should end by `os._exit`: Python would free what it computes with.
        """
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (turn := self._waiting.get()) is not None and self._open:
            _take(*turn)
            del turn  # while this thread waits, it keeps neither question nor answer

    def _forget(self, answer: Future[Any]) -> None:
        with self._lock:
            self._unanswered.discard(answer)


def _take(work: Callable[[], Any], answer: Future[Any]) -> None:
    """Do a piece of work, if anybody still waits for it."""
    if answer.done():
        return
    with suppress(InvalidStateError):  # nobody waits any longer
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the report says it as well
                result = work()
        except Exception as error:  # it goes to whoever asked, and the thread goes on
            answer.set_exception(error)
        else:
            answer.set_result(result)
