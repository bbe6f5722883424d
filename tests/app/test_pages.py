"""Every address answers, and every other one says that there is nothing."""

from __future__ import annotations

import asyncio
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from threading import Event

import numpy as np
import pytest

import geonet
from geonet.app import jobs as solving_module
from geonet.app import routes as pages
from geonet.app.jobs import BUSY, STOPPED, WAITING
from geonet.app.middleware import SAFE
from geonet.app.requests import settings
from geonet.errors import ConvergenceError, ConvergenceWarning, UnavailableError

SOON = 60  # seconds, on a machine with much else to do
FILES = {
    file.name: file
    for folder in ("app/page", "plotting/viewer")
    for file in files("geonet").joinpath(folder).iterdir()
}


# ---- the page and its files


def test_the_page(client):
    answer = client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    source = FILES["index.html"].read_text(encoding="utf-8")
    assert source.count("__SETTINGS__") == 1
    before, after = source.split("__SETTINGS__")
    assert answer.text.startswith(before) and answer.text.endswith(after)
    found = answer.text[len(before) : -len(after)]
    assert json.loads(found) == settings() and "<" not in found


@pytest.mark.parametrize("name", [name for name in FILES if name != "index.html"])
def test_its_files(client, name):
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    answer = client.get(f"/page/{name}")
    assert answer.status_code == 200 and answer.content == FILES[name].read_bytes()
    assert answer.headers["content-type"].partition(";")[0] == kinds[name.rpartition(".")[2]]
    assert answer.headers["cache-control"] == "no-cache"


def test_no_file_hides_another():
    folders = [files("geonet").joinpath(folder) for folder in ("app/page", "plotting/viewer")]
    names = [file.name for folder in folders for file in folder.iterdir()]
    assert len(names) == len(set(names))


def test_what_the_page_asks_for_is_there(client):
    for name in re.findall(r'(?:src|href)="(/[^"]*)"', client.get("/").text):
        assert client.get(name).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/page/../asked.py",
            "/page/%2e%2e/asked.py",
            "/page/..%2fasked.py",
            "/page/..%5casked.py",
        ),
        *("/page//etc/passwd", "/page/%2fetc%2fpasswd", "/page/", "/page", "/page/none.js"),
        *("/page/main.js/", "/page/main.js%00", "/page/MAIN.JS", "/asked.py", "/etc/passwd"),
        *("/page/__init__.py", "/gallery/2", "/gallery/2/64/x", "/solve/", "/read/a"),
    ],
)
def test_there_is_nothing_else(app, refused, path):
    assert refused("GET", path, 404).startswith("There is nothing at '/")
    status, body = raw(app, path)
    assert status == 404 and list(json.loads(body)) == ["error"]


def raw(app, path: str, method: str = "GET", messages=()) -> tuple[int, bytes]:
    """What comes back for a path as it stands, which clients would tidy up."""
    sent, left = [], list(messages)

    async def send(message):
        sent.append(message)

    async def receive():
        return left.pop(0)

    headers = [(b"host", b"127.0.0.1:8765"), (b"content-type", b"application/json")]
    scope = {
        **{"type": "http", "method": method, "path": path, "query_string": b""},
        **{"headers": headers, "scheme": "http", "root_path": ""},
        "server": ("127.0.0.1", 8765),
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("path", ["/solve", "/report", "/overlays", "/export/gif", "/read"])
def test_what_is_posted_cannot_be_got(client, refused, path):
    sentence = f"'{path}' does not answer GET; use the page at '/'."
    assert refused("GET", path, 405) == sentence
    assert client.get(path).headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/gallery/2/64"])
def test_what_is_got_cannot_be_posted(refused, question, path):
    sentence = f"'{path}' does not answer POST; use the page at '/'."
    assert refused("POST", path, 405, json=question()) == sentence


# ---- what every response says


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {}),
        ("HEAD", "/", {}),
        ("GET", "/page/main.js", {}),
        ("GET", "/nowhere", {}),
        ("PUT", "/", {}),
        ("GET", "/", {"host": "evil.example"}),
        ("POST", "/solve", {"content-type": "application/json"}),
        ("POST", "/solve", {"content-type": "text/plain"}),
    ],
)
def test_every_response_is_safe(client, method, path, headers):
    found = client.request(method, path, headers=headers).headers
    assert {name: found[name] for name in SAFE} == SAFE
    policy = found["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "*" not in policy


def test_failures_are_safe(client, question, monkeypatch):
    monkeypatch.setattr(solving_module, "geodesic", raising(ZeroDivisionError()))
    found = client.post("/solve", json=question())
    assert found.status_code == 500
    assert {name: found.headers[name] for name in SAFE} == SAFE


def test_the_page_has_no_script_or_style_in_it(client):
    text = client.get("/").text
    assert re.findall(r"<script(?![^>]*(src=|application/json))", text) == []
    assert "<style" not in text and not re.search(r"\s(style|on\w+)=", text)


# ---- what goes wrong


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [UnavailableError("There is none."), ConvergenceError("It stopped.", 1.0)]
)
def test_errors_of_the_library_are_sentences(refused, question, monkeypatch, error):
    monkeypatch.setattr(solving_module, "geodesic", raising(error))
    assert refused("POST", "/solve", json=question()) == str(error)


@pytest.mark.parametrize("error", [ZeroDivisionError, MemoryError, RuntimeError])
def test_a_failure_is_not_told_and_not_the_end(client, refused, question, monkeypatch, error):
    with monkeypatch.context() as patch:
        patch.setattr(solving_module, "geodesic", raising(error("a secret")))
        for path in ("/solve", "/report", "/export/gif"):
            assert refused("POST", path, 500, json=question()) == pages.WRONG
    assert client.post("/solve", json=question()).status_code == 200


def test_a_warning_is_no_failure(client, question, encoded, density):
    """A pair on which Newton's method stops early, and warns."""
    ends = np.zeros((2, 16, 16))
    ends[0, 0, :2] = ends[1, 15, 14:] = 1
    with pytest.warns(ConvergenceWarning):
        geonet.geodesic(*map(density, ends), "midpoint")
    source, target = map(encoded, ends)
    answer = client.post("/solve", json=question(source=source, target=target))
    assert answer.status_code == 200


# ---- whose turn it is


@pytest.fixture
def gate(worker):
    """The worker is busy until the gate opens."""
    opened, begun = Event(), Event()
    worker.asked_for(lambda: (begun.set(), opened.wait(SOON)))
    assert begun.wait(SOON)
    yield opened
    opened.set()


def until(condition):
    """Wait for what another thread does."""
    for _ in range(100 * SOON):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happened")


def test_the_latest_wins(client, solving, question, gate):
    with ThreadPoolExecutor(4) as pool:
        older = pool.submit(client.post, "/solve", json=question(number=1))
        until(lambda: solving.numbers.get("page-1") == 1)
        report = pool.submit(client.post, "/report", json=question(number=1))
        newer = pool.submit(client.post, "/solve", json=question(number=2))
        until(lambda: solving.numbers.get("page-1") == 2)
        gate.set()
        for outdated in (older, report):
            answer = outdated.result(SOON)
            assert answer.status_code == 409
            assert answer.json() == {"error": "A newer drawing is being solved."}
        assert newer.result(SOON).status_code == 200
    assert client.post("/report", json=question(number=2)).status_code == 200
    assert client.post("/solve", json=question(number=1)).status_code == 409
    assert client.post("/solve", json=question(number=1, client="other")).status_code == 200


def test_no_more_than_a_few_wait(client, worker, refused, question, gate):
    waiting = [worker.asked_for(lambda: None) for _ in range(WAITING)]
    for path in ("/solve", "/report", "/export/png"):
        assert refused("POST", path, 503, json=question()) == BUSY
    assert refused("GET", "/gallery/2/16", 503) == BUSY
    assert client.get("/").status_code == 200
    gate.set()
    for answer in waiting:
        answer.result(SOON)
    assert client.post("/solve", json=question()).status_code == 200


def test_nothing_is_solved_for_a_page_that_went_away(app, worker, solving, question, gate):
    body = json.dumps(question()).encode()
    messages = [
        {"type": "http.request", "body": body, "more_body": False},
        {"type": "http.disconnect"},
    ]
    status, _ = raw(app, "/solve", "POST", messages)
    assert status == 503
    gate.set()
    worker.asked_for(lambda: None).result(SOON)  # its turn would have come before
    assert len(solving.paths) == 0


def test_who_waits_when_the_server_stops_is_told(client, worker, question, gate):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.post, "/solve", json=question())
        until(lambda: len(worker._unanswered) == 2)
        worker.close()
        answer = waiting.result(SOON)
    assert answer.status_code == 503 and answer.json() == {"error": STOPPED}
