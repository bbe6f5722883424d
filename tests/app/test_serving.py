"""A real server on a real socket: alone on this machine, under a crowd, and until Ctrl-C."""

from __future__ import annotations

import errno
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

import geonet
from geonet.app import jobs as solving_module
from geonet.app import server as serving
from geonet.app.jobs import BUSY, KEPT_PATHS
from geonet.app.middleware import MIB
from geonet.app.routes import WRONG
from geonet.app.server import Server, in_thread, running, serve
from geonet.errors import InputError

SOON = 120  # seconds, on a machine with much else to do


def post(address, path, **how):
    return httpx.post(f"{address}{path}", timeout=SOON, trust_env=False, **how)


def get(address):
    return httpx.get(address, timeout=SOON, trust_env=False)


def test_it_answers_and_stops():
    with running() as address:
        assert get(address).status_code == 200
    with pytest.raises(httpx.ConnectError):
        get(address)


def test_nobody_else_can_reach_it():
    listening = serving._bound(0)
    try:
        assert listening.getsockname()[0] == "127.0.0.1"
    finally:
        listening.close()


def test_a_port_that_is_taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError) as caught:
            serve(port, browser=False)
    assert str(caught.value) == (
        f"Port {port} is taken by another program; give another, or none for a free one."
    )


@pytest.mark.parametrize(("taken", "tried"), [((), [8765]), ((8765,), [8765, 0])])
def test_the_usual_port_is_only_usual(monkeypatch, taken, tried):
    ports = []

    def bound(port):
        ports.append(port)
        if port in taken:
            raise OSError(errno.EADDRINUSE, "taken")
        return port

    monkeypatch.setattr(serving, "_socket", bound)
    assert serving._bound(None) == tried[-1] and ports == tried


def test_a_port_for_the_chosen_few(monkeypatch):
    def refuse(port):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(serving, "_socket", refuse)
    with pytest.raises(InputError) as caught:
        serving._bound(80)
    assert str(caught.value) == (
        "Port 80 cannot be used: Permission denied; give one from 1024 to 65535."
    )


@pytest.mark.parametrize("browser", [True, False])
def test_the_browser_opens_once_the_server_answers(monkeypatch, capsys, browser):
    opened = []

    def visit(address):
        try:
            opened.append(get(address).status_code)
        finally:
            servers[0].should_exit = True

    servers: list[Server] = []
    usual = Server.__init__

    def noted(self, *given):
        usual(self, *given)
        servers.append(self)

    warmed = []
    monkeypatch.setattr(Server, "__init__", noted)
    monkeypatch.setattr(Server, "warm_up", lambda _: warmed.append(True))
    monkeypatch.setattr(serving.webbrowser, "open", visit)
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve, 0, browser)
        if not browser:
            while not (servers and servers[0].started):
                time.sleep(0.01)
                assert not served.done()
            servers[0].should_exit = True
        assert served.result(SOON) is True
    assert opened == ([200] if browser else [])
    assert warmed == [True]
    address = re.escape(servers[0].address)
    assert re.fullmatch(
        rf"geonet app runs at {address} \(Ctrl-C stops it\)\n", capsys.readouterr().out
    )


def test_what_is_loaded_before_the_first_drawing(monkeypatch):
    solved = Event()
    monkeypatch.setattr(serving, "first_path", solved.set)
    with in_thread() as server:
        server.warm_up()
        assert solved.wait(SOON)


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_the_extra_is_named_where_it_is_missing(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from geonet.cli import main\n"
        "sys.exit(main(['app', '--no-browser']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: geonet app needs {missing}, which is not installed; "
        "install it: pip install 'geonet[app]'.\n"
    )


# ---- bodies as they come over a socket


def exchanged(address: str, request: bytes) -> bytes:
    """All that comes back for these bytes until the server hangs up."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), SOON) as connection:
        connection.sendall(request)
        found = b""
        while part := connection.recv(2**16):
            found += part
    return found


def head(address: str, *lines: str) -> bytes:
    first = ("POST /solve HTTP/1.1", f"Host: {urlsplit(address).netloc}")
    return "\r\n".join((*first, "Content-Type: application/json", *lines, "", "")).encode()


def test_a_body_that_is_said_to_be_large_is_not_waited_for():
    with running() as address:
        found = exchanged(address, head(address, f"Content-Length: {2 * MIB + 1}"))
    assert found.startswith(b"HTTP/1.1 413 ")
    assert found.endswith(b'{"error": "The request is larger than 2 MiB; draw on fewer cells."}')


def test_a_body_in_chunks_is_cut_off():
    """It never ends; the answer comes all the same."""
    size = 2 * MIB + 1
    body = b"%x\r\n%s\r\n" % (size, b" " * size)
    with running() as address:
        found = exchanged(address, head(address, "Transfer-Encoding: chunked") + body)
    assert found.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in found.lower()


@pytest.mark.parametrize(
    "path", ["/page/../asked.py", "/page/%2e%2e/asked.py", "/../../etc/passwd", "/page//etc/passwd"]
)
def test_paths_as_they_are_sent(path):
    with running() as address:
        host = urlsplit(address).netloc
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        found = exchanged(address, request.encode())
    assert found.startswith(b"HTTP/1.1 404 ") and b"import" not in found


def test_what_went_wrong_is_said_at_home_alone(monkeypatch, capsys, question):
    def fail(*_, **__):
        raise ZeroDivisionError("a secret")

    with running() as address, monkeypatch.context() as patch:
        patch.setattr(solving_module, "geodesic", fail)
        answer = post(address, "/solve", json=question())
    assert (answer.status_code, answer.json()) == (500, {"error": WRONG})
    said = capsys.readouterr().err
    assert "Traceback" in said and "ZeroDivisionError: a secret" in said


# ---- a crowd


def test_two_hundred_at_once(question, drawn, encoded, density, parted):
    """Everybody is answered rightly or refused in words, and little is kept."""
    target = drawn(16, 16, at=(0.7, 0.6))
    drawings = [drawn(16, 16, at=(0.2 + 0.03 * k, 0.4)) for k in range(20)]
    expected = [
        geonet.geodesic(density(source), density(target), "midpoint").density(0.5).numpy()
        for source in drawings
    ]

    def ask(k):
        given = question(client=f"page-{k}", source=encoded(drawings[k % 20]), frames=3)
        return post(server.address, "/solve", json=given)

    with in_thread() as server:
        with ThreadPoolExecutor(200) as pool:
            answers = list(pool.map(ask, range(200)))
        assert len(server.solving.paths) <= KEPT_PATHS
        assert post(server.address, "/solve", json=question()).status_code == 200
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) <= {200, 503} and statuses[200] > 0
    for k, answer in enumerate(answers):
        if answer.status_code == 503:
            assert answer.json() == {"error": BUSY}
            continue
        header, rest = parted(answer.content)
        levels = np.frombuffer(rest, np.uint8).reshape(3, 16, 16)[1]
        top = header["top"]
        assert np.allclose(levels / 255 * top, expected[k % 20], atol=0.51 / 255 * top)


# ---- Ctrl-C

PROGRAM = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs of a shell ignore it
    "from geonet.app import solving\n"
    "from geonet.cli import main\n"
    "if sys.argv.pop() == 'busy':\n"
    "    solving.geodesic = lambda *a, **o: (print('solving', flush=True), time.sleep(600))\n"
    "sys.argv = ['geonet', 'app', '--no-browser']\n"
    "sys.exit(main())\n"
)


@pytest.fixture
def started():
    """Starts the program, and gives its process and address."""
    processes = []

    def start(how):
        command = [sys.executable, "-c", PROGRAM, how]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        line = process.stdout.readline()
        found = re.fullmatch(r"geonet app runs at (http://127\.0\.0\.1:\d+) .*\n", line)
        assert found, line
        return process, found[1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_ctrl_c(started):
    process, address = started("idle")
    assert get(address).status_code == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SOON)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_ctrl_c_while_a_path_is_solved(started, question):
    process, address = started("busy")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, address, "/solve", json=question())
        assert process.stdout.readline() == "solving\n"
        process.send_signal(signal.SIGINT)
        answer = waiting.result(SOON)
    out, err = process.communicate(timeout=SOON)
    assert (process.returncode, out, err) == (0, "", "")
    assert answer.status_code == 503
    assert answer.json() == {"error": "geonet app was stopped; start it again."}
