"""Computation behind the page: one solver thread, cached results, and errors with HTTP status."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from queue import Full, Queue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from starlette.responses import Response

from geonet.api import geodesic
from geonet.app.requests import SolveRequest
from geonet.barycenters import Barycenter, barycenter
from geonet.errors import ConvergenceWarning, GeonetError
from geonet.grid import Grid
from geonet.mixture import GaussianMixture
from geonet.paths import Geodesic

Value = TypeVar("Value")
Result = TypeVar("Result")


class RequestError(GeonetError):
    """An error with an HTTP status other than 400.

    Attributes:
        status: HTTP status.
        headers: further HTTP headers of the response.
    """

    def __init__(self, message: str, status: int, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.headers = status, headers


def error_response(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """Return {"error": message}, escaped to ASCII because JSON can hold half a surrogate pair."""
    body = json.dumps({"error": message})
    return Response(body, status, headers, media_type="application/json")


class Solved(NamedTuple):
    """The path or barycenter of drawings, and the time it took to solve."""

    result: Geodesic | Barycenter
    seconds: float


class ResultCache:
    """The most recent results by key, and the number of the latest request of each page."""

    def __init__(self, max_results: int = 8, max_clients: int = 256) -> None:
        self.results: LRUCache[Solved] = LRUCache(max_results)
        self.latest: LRUCache[int] = LRUCache(max_clients)

    def record(self, request: SolveRequest) -> None:
        """Record a request, which makes earlier ones of the same page outdated."""
        self.latest.put(request.client, max(request.number, self.latest.get(request.client) or 0))

    def solve_latest(self, request: SolveRequest) -> Solved:
        """Like `solve`, but raise RequestError if the page has sent a later request."""
        latest = self.latest.get(request.client)
        if latest is not None and request.number < latest:
            raise RequestError("A newer drawing is being solved.", 409)
        return self.solve(request)

    def solve(self, request: SolveRequest) -> Solved:
        """Return the result of a request from the cache, or solve it."""
        cached = self.results.get(request.key)
        if cached is not None:
            return cached
        start = perf_counter()
        if request.solver is None:
            result = barycenter(request.densities, request.weights, **request.options)
        else:
            source, target = request.densities
            result = geodesic(source, target, request.solver, **request.options)
        solved = Solved(result, perf_counter() - start)
        self.results.put(request.key, solved)
        return solved


class LRUCache(Generic[Value]):
    """A thread-safe mapping that drops the least recently used value when it is full."""

    def __init__(self, capacity: int):
        self._capacity, self._lock = capacity, Lock()
        self._values: OrderedDict[str, Value] = OrderedDict()

    def get(self, key: str) -> Value | None:
        """Return a value, or None if it is not in the cache."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: str, value: Value) -> None:
        """Insert or replace a value."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._capacity:
                self._values.popitem(last=False)

    def __len__(self) -> int:
        return len(self._values)


def warm_up() -> None:
    """Solve a small pair, which loads the network and the compiled kernels."""
    grid = Grid((64, 64))
    source, target = (
        GaussianMixture.isotropic([[x, 0.3], [0.5, x]], 0.1).to_density(grid) for x in (0.3, 0.7)
    )
    _ = geodesic(source, target).report


class SolverThread:
    """The one thread that computes, in the order of submission.

    One is enough: torch and the compiled kernels use all cores.
    """

    def __init__(self, max_waiting: int = 16) -> None:
        self._queue: Queue[tuple[Callable[[], Any], Future[Any]] | None] = Queue(max_waiting)
        self._lock, self._is_open = Lock(), True
        self._pending: set[Future[Any]] = set()
        # A daemon, because a running computation cannot be stopped; see `join`.
        self._thread = Thread(target=self._run, name="geonet-solver", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue a computation; raise RequestError if the queue is full.

        A computation whose future is cancelled while it waits is skipped.
        """
        future: Future[Result] = Future()
        with self._lock:
            if not self._is_open:
                raise self._stopped_error()
            try:
                self._queue.put_nowait((work, future))
            except Full:
                message = "Too many requests are waiting; try again in a moment."
                raise RequestError(message, 503) from None
            self._pending.add(future)
        future.add_done_callback(self._discard)
        return future

    def close(self) -> None:
        """Fail all pending computations, including the running one, and accept no more."""
        with self._lock:
            self._is_open, pending = False, list(self._pending)
        for future in pending:
            with suppress(InvalidStateError):  # finished or cancelled in the meantime
                future.set_exception(self._stopped_error())
        with suppress(Full):  # a full queue wakes the thread as well
            self._queue.put_nowait(None)

    def join(self, timeout: float) -> bool:
        """Wait for a closed thread; return whether it has ended.

        If not, end the process by `os._exit`: a normal exit would free memory that is in use.
        """
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None and self._is_open:
            _run_job(*job)
            del job  # do not keep request and result while waiting

    def _discard(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.discard(future)

    @staticmethod
    def _stopped_error() -> RequestError:
        return RequestError("geonet app was stopped; start it again.", 503)


def _run_job(work: Callable[[], Any], future: Future[Any]) -> None:
    """Compute the result of a future, unless it was cancelled."""
    if future.done():
        return
    with suppress(InvalidStateError):  # cancelled or failed by `close` in the meantime
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the report says it as well
                result = work()
        except Exception as error:  # belongs to the request; the thread continues
            future.set_exception(error)
        else:
            future.set_result(result)
