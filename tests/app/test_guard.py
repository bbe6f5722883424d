"""Only the page itself is answered, and never more than fits."""

from __future__ import annotations

import asyncio

import pytest

from geonet.app.jobs import BUSY
from geonet.app.middleware import DRAWINGS, FILES, MIB, Guard

ADDRESS = "http://127.0.0.1:8765"
STRANGER = f"This server is {ADDRESS}; open that address."
FOREIGN = f"Another site asked, and only the page itself may; open {ADDRESS}."
JSON = {"content-type": "application/json"}
SOON = 60  # seconds, on a machine with much else to do


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765"])
def test_our_hosts(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "127.0.0.1:80", "localhost:8766", "evil.example:8765"),
        *("127.0.0.1.evil.example:8765", "[::1]:8765", "0.0.0.0:8765", "LOCALHOST:8765", ""),
        "127.0.0.1:8765, evil.example",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_hosts(refused, method, host):
    assert refused(method, "/", 403, headers={"host": host}) == STRANGER


def test_two_hosts(refused):
    headers = [("host", "127.0.0.1:8765"), ("host", "evil.example")]
    assert refused("GET", "/", 403, headers=headers) == STRANGER


def test_the_usual_port_may_be_left_out():
    for port, status in ((80, 200), (8765, 403)):
        assert asked(Guard(answer, port), headers=[(b"host", b"localhost")]) == status


@pytest.mark.parametrize("origin", [ADDRESS, "http://localhost:8765"])
def test_our_origins(client, question, origin):
    answer = client.post("/solve", json=question(), headers={"origin": origin})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        *("null", "", "http://evil.example", "https://127.0.0.1:8765", "http://127.0.0.1"),
        *("127.0.0.1:8765", "http://127.0.0.1:8765.evil.example", "file://"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_origins(refused, question, method, origin):
    assert refused(method, "/solve", 403, json=question(), headers={"origin": origin}) == FOREIGN


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_the_browser_says_of_the_sender(refused, client, question, site):
    headers = {"sec-fetch-site": site}
    assert refused("POST", "/solve", 403, json=question(), headers=headers) == FOREIGN
    assert client.get("/", headers=headers).status_code == 200  # a link to the page


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_the_page_itself_may_ask(client, question, site):
    answer = client.post("/solve", json=question(), headers={"sec-fetch-site": site})
    assert answer.status_code == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "X"])
def test_other_methods(client, refused, method):
    sentence = f"The method {method} is not answered; use GET, HEAD or POST."
    assert refused(method, "/solve", 405) == sentence
    assert client.request(method, "/solve").headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"]
)
def test_forms(refused, kind):
    """What a form of another site can send without asking."""
    headers = {"content-type": f"{kind}; boundary=x"}
    sentence = f"The body is {kind}; send application/json."
    assert refused("POST", "/solve", 415, content=b"{}", headers=headers) == sentence
    sentence = f"The body is {kind}; send application/octet-stream."
    assert refused("POST", "/read", 415, content=b"{}", headers=headers) == sentence


def test_a_body_of_no_type(refused):
    sentence = "The body is of no type; send application/json."
    assert refused("POST", "/solve", 415, content=b"{}") == sentence


def test_a_character_set_may_be_named(client, question):
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    answer = client.request("POST", "/solve", json=question(), headers=headers)
    assert answer.status_code == 200


# ---- large bodies

LARGE = "The request is larger than 2 MiB; draw on fewer cells."
LARGE_FILE = "The request is larger than 32 MiB; drop a smaller file."


async def chunks(size: int):
    """A body of unknown length, so without Content-Length."""
    for start in range(0, size, MIB):
        yield b" " * min(MIB, size - start)


def test_a_large_body(refused):
    content = b" " * (2 * MIB + 1)
    assert refused("POST", "/solve", 413, content=content, headers=JSON) == LARGE
    assert refused("POST", "/solve", 413, content=chunks(2 * MIB + 1), headers=JSON) == LARGE


def test_a_body_just_small_enough(refused):
    for content in (b" " * (2 * MIB), chunks(2 * MIB)):
        sentence = refused("POST", "/solve", content=content, headers=JSON)
        assert sentence == "The request is not JSON; reload the page."


def test_a_large_file(refused):
    headers = {"content-type": "application/octet-stream"}
    path = "/read?name=a.npy&dimension=2&cells=16"
    content = chunks(32 * MIB + 1)
    assert refused("POST", path, 413, content=content, headers=headers) == LARGE_FILE
    headers["content-length"] = str(32 * MIB + 1)
    assert refused("POST", path, 413, content=b"", headers=headers) == LARGE_FILE


def test_a_body_without_end_is_cut_off():
    """No more is read than tells that it is too large, whatever was said of its length."""
    taken = 0

    async def endless():
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b" " * MIB, "more_body": True}

    headers = [*HEADERS, (b"content-length", b"5")]
    assert asked(Guard(answer, 8765), "POST", headers, endless) == 413
    assert taken == 3


def test_a_body_that_breaks_off():
    async def gone():
        return {"type": "http.disconnect"}

    assert asked(Guard(answer, 8765), "POST", HEADERS, gone) == 400


@pytest.mark.parametrize(("path", "limit"), [("/solve", DRAWINGS), ("/read", FILES)])
def test_few_bodies_are_held_at_once(path, limit):
    async def crowd() -> list[int]:
        free = asyncio.Event()

        async def slow(scope, receive, send):
            await free.wait()
            await answer(scope, receive, send)

        guard = Guard(slow, 8765)
        headers = [(b"host", b"localhost:8765"), (b"content-type", limit.kind.encode())]
        held = [
            asyncio.ensure_future(status(guard, "POST", headers, body, path))
            for _ in range(limit.at_once)
        ]
        for _ in range(10):
            await asyncio.sleep(0)  # all of them come as far as they can
        one_more = status(guard, "POST", headers, body, path)
        assert await asyncio.wait_for(one_more, SOON) == 503
        free.set()
        assert await asyncio.gather(*held) == [200] * limit.at_once
        return [await status(guard, "POST", headers, body, path)]

    assert asyncio.run(crowd()) == [200]


def test_a_crowd_is_told_to_wait():
    assert BUSY == "Too many requests wait; try again in a moment."


# ---- the guard by itself

HEADERS = [(b"host", b"localhost:8765"), (b"content-type", b"application/json")]


async def body():
    return {"type": "http.request", "body": b"{}", "more_body": False}


async def answer(scope, receive, send):
    """An application that is content with everything."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def status(guard, method, headers, receive, path="/solve") -> int:
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    await guard(scope, receive, send)
    return sent[0]["status"]


def asked(guard, method="GET", headers=HEADERS, receive=body) -> int:
    return asyncio.run(status(guard, method, headers, receive))
