"""Paths for the page: solved when their turn comes, kept for a while, dropped when outdated."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from queue import Full, Queue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Generic, TypeVar

import torch
from starlette.responses import Response

from geonet.api import geodesic
from geonet.app.requests import Asked
from geonet.errors import ConvergenceWarning, GeonetError
from geonet.grid import Grid
from geonet.mixture import GaussianMixture
from geonet.paths import Geodesic

# ---- What the server refuses: one sentence, and a status of HTTP.


BUSY = "Too many requests wait; try again in a moment."


class RefusedError(GeonetError):
    """A request that gets no answer.

    Attributes:
        status: of HTTP.
        headers: that go with it.
    """

    def __init__(self, message: str, status: int, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})

    def response(self) -> Response:
        """The refusal as JSON."""
        return refusal(str(self), self.status, self.headers)


def refusal(sentence: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """{"error": sentence} with a status. ASCII alone: a name may hold half of a character."""
    body = json.dumps({"error": sentence})
    return Response(body, status, headers, media_type="application/json")


KEPT_PATHS, KEPT_CLIENTS = 8, 256

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Solved:
    """A path, and what it took.

    Attributes:
        path: between the two drawings.
        seconds: to solve.
    """

    path: Geodesic
    seconds: float


class Solving:
    """The last paths by their keys, and the last number of every page."""

    def __init__(self) -> None:
        self.paths: Recent[Solved] = Recent(KEPT_PATHS)
        self.numbers: Recent[int] = Recent(KEPT_CLIENTS)

    def note(self, asked: Asked) -> None:
        """Remember that a page asked for a path: what it asked for before is outdated."""
        before = self.numbers.get(asked.client)
        self.numbers.put(asked.client, max(asked.number, before or 0))

    def check_latest(self, asked: Asked) -> None:
        """Refuse what is outdated."""
        latest = self.numbers.get(asked.client)
        if latest is not None and asked.number < latest:
            raise RefusedError("A newer drawing is being solved.", 409)

    def solved(self, asked: Asked) -> Solved:
        """The path that is asked for, solved unless it is one of the last."""
        known = self.paths.get(asked.key)
        if known is not None:
            return known
        options = dict(asked.solver.options)
        if asked.epsilon is not None:
            options["epsilon"] = asked.epsilon
        began = perf_counter()
        path = geodesic(asked.source, asked.target, asked.solver.name, **options)
        solved = Solved(path, perf_counter() - began)
        self.paths.put(asked.key, solved)
        return solved


def first_path() -> None:
    """Solve a pair that nobody asked for: it loads the network and the compiled loops."""
    grid = Grid((64, 64))
    source, target = (
        GaussianMixture.isotropic([[x, 0.3], [0.5, x]], 0.1).on(grid) for x in (0.3, 0.7)
    )
    _ = geodesic(source, target).report


class Recent(Generic[Value]):
    """The values that were used last, at most so many, by name; for several threads."""

    def __init__(self, most: int):
        self._most, self._lock = most, Lock()
        self._values: OrderedDict[str, Value] = OrderedDict()

    def get(self, name: str) -> Value | None:
        """The value, or None where it is not kept."""
        with self._lock:
            if name in self._values:
                self._values.move_to_end(name)
            return self._values.get(name)

    def put(self, name: str, value: Value) -> None:
        """Keep a value; the one that was not used for longest may go."""
        with self._lock:
            self._values[name] = value
            self._values.move_to_end(name)
            if len(self._values) > self._most:
                self._values.popitem(last=False)

    def __len__(self) -> int:
        return len(self._values)


# ---- The one thread that computes: torch and the compiled loops use all cores by themselves.


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
