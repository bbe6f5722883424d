"""The solver thread and the cache of results."""

import json
from threading import Event

import pytest

from geonet.app import jobs as module
from geonet.app.jobs import LRUCache, RequestError, ResultCache, SolverThread
from geonet.app.requests import parse_request

from .conftest import draw_spot, encode

TIMEOUT = 60  # seconds, for busy machines


def parse(body):
    return parse_request(json.dumps(body).encode())


def test_the_least_recently_used_value_is_dropped():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def test_a_path_is_solved_once(cache, make_body, monkeypatch):
    calls, solve = [], module.geodesic
    monkeypatch.setattr(module, "geodesic", lambda *a, **o: calls.append(o) or solve(*a, **o))
    first = cache.solve(parse(make_body()))
    again = cache.solve(parse(make_body(number=2, frames=9, client="other")))
    assert again is first and calls == [{"time_limit": 5.0}]


def test_the_cache_is_bounded(make_body):
    cache = ResultCache(max_results=3, max_clients=4)
    for k in range(6):
        densities = [encode(draw_spot(16, 16, at=(x, 0.5))) for x in (0.02 * k, 0.9)]
        request = parse(make_body(densities=densities, solver="linear", client=f"page-{k}"))
        cache.record(request)
        cache.solve(request)
    assert (len(cache.results), len(cache.latest)) == (3, 4)


def test_an_error_belongs_to_its_future(solver_thread):
    assert isinstance(solver_thread.submit(lambda: 1 / 0).exception(TIMEOUT), ZeroDivisionError)
    assert solver_thread.submit(lambda: 5).result(TIMEOUT) == 5


def test_the_queue_is_bounded(solver_thread, gate):
    futures = [solver_thread.submit(lambda: 1) for _ in range(16)]
    with pytest.raises(RequestError, match="Too many requests") as caught:
        solver_thread.submit(lambda: 1)
    assert caught.value.status == 503
    gate.set()
    assert [future.result(TIMEOUT) for future in futures] == [1] * 16


def test_close_fails_all_pending_computations():
    thread, is_open, has_started = SolverThread(), Event(), Event()
    running = thread.submit(lambda: (has_started.set(), is_open.wait(TIMEOUT)))
    assert has_started.wait(TIMEOUT)
    waiting = [thread.submit(lambda: 1) for _ in range(16)]
    thread.close()
    for future in (running, *waiting):
        with pytest.raises(RequestError, match="was stopped"):
            future.result(TIMEOUT)
    with pytest.raises(RequestError, match="was stopped"):
        thread.submit(lambda: 1)
    assert not thread.join(timeout=0)
    is_open.set()
    assert thread.join(timeout=TIMEOUT)
