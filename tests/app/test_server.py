"""A real server on a socket: this machine only, many requests, and Ctrl-C."""

from __future__ import annotations

import errno
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

import geonet
from geonet.app import jobs, server
from geonet.app.server import Server, run_in_thread, serve
from geonet.errors import InputError

from .conftest import draw_spot, encode, to_density, unpack

TIMEOUT = 120  # seconds, for busy machines


def post(address, path, **options):
    return httpx.post(f"{address}{path}", timeout=TIMEOUT, trust_env=False, **options)


def get(address):
    return httpx.get(address, timeout=TIMEOUT, trust_env=False)


def test_it_answers_on_the_loopback_interface_and_stops():
    with run_in_thread() as running:
        assert running.address.startswith("http://127.0.0.1:")
        assert get(running.address).status_code == 200
    with pytest.raises(httpx.ConnectError):
        get(running.address)
    assert running.has_ended


def test_a_port_in_use_raises():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=f"Port {port} is in use"):
            serve(port, browser=False)


@pytest.mark.parametrize(("used", "expected"), [((), [8765]), ((8765,), [8765, 0])])
def test_the_default_port_is_replaced_if_it_is_in_use(monkeypatch, used, expected):
    ports = []

    def bind(port):
        ports.append(port)
        if port in used:
            raise OSError(errno.EADDRINUSE, "in use")
        return port

    monkeypatch.setattr(server, "_bind_socket", bind)
    assert server._bind(None) == expected[-1] and ports == expected


def test_a_privileged_port_raises(monkeypatch):
    def deny(port):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(server, "_bind_socket", deny)
    with pytest.raises(InputError, match="Port 80 cannot be used: Permission denied"):
        server._bind(80)


@pytest.mark.parametrize("browser", [True, False])
def test_the_browser_opens_after_the_start(monkeypatch, capsys, browser):
    opened, servers, has_warmed_up = [], [], Event()
    create = Server.__init__

    def record(self, *arguments):
        create(self, *arguments)
        servers.append(self)

    def visit(address):
        try:
            opened.append(get(address).status_code)
        finally:
            servers[0].should_exit = True

    monkeypatch.setattr(Server, "__init__", record)
    monkeypatch.setattr(server, "warm_up", has_warmed_up.set)
    monkeypatch.setattr(server.webbrowser, "open", visit)
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve, 0, browser)
        assert has_warmed_up.wait(TIMEOUT)
        if not browser:
            time.sleep(0.1)
            servers[0].should_exit = True
        assert served.result(TIMEOUT) is True
    assert opened == ([200] if browser else [])
    assert servers[0].address in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_extra_raises(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from geonet.cli import main\n"
        "sys.exit(main(['app', '--no-browser']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"needs {missing}" in done.stderr and "pip install 'geonet[app]'" in done.stderr


# ---- raw HTTP


def exchange(address: str, request: bytes) -> bytes:
    """Send bytes and receive until the server closes the connection."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), TIMEOUT) as connection:
        connection.sendall(request)
        received = b""
        while part := connection.recv(2**16):
            received += part
    return received


def test_large_bodies_are_rejected_before_they_end():
    size = 2 * 2**20 + 1
    with run_in_thread() as running:
        host = urlsplit(running.address).netloc
        head = f"POST /solve HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        declared = exchange(running.address, f"{head}Content-Length: {size}\r\n\r\n".encode())
        chunk = b"%x\r\n%s\r\n" % (size, b" " * size)
        chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk
        chunked = exchange(running.address, chunked)
    for response in (declared, chunked):
        assert response.startswith(b"HTTP/1.1 413 ") and b"larger than 2 MiB" in response
        assert b"connection: close" in response.lower()


@pytest.mark.parametrize("path", ["/app/static/../requests.py", "/../../etc/passwd"])
def test_paths_are_not_normalised(path):
    with run_in_thread() as running:
        host = urlsplit(running.address).netloc
        request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        response = exchange(running.address, request.encode())
    assert response.startswith(b"HTTP/1.1 404 ") and b"import" not in response


def test_two_host_headers_are_rejected():
    with run_in_thread() as running:
        host = urlsplit(running.address).netloc
        request = f"GET / HTTP/1.1\r\nHost: {host}\r\nHost: evil.example\r\n\r\n"
        assert exchange(running.address, request.encode()).startswith(b"HTTP/1.1 400 ")


def test_internal_errors_are_logged_in_the_terminal(monkeypatch, capsys, make_body):
    def fail(*_, **__):
        raise ZeroDivisionError("a secret")

    with run_in_thread() as running, monkeypatch.context() as patch:
        patch.setattr(jobs, "geodesic", fail)
        response = post(running.address, "/solve", json=make_body())
    assert response.status_code == 500 and "secret" not in response.text
    assert "ZeroDivisionError: a secret" in capsys.readouterr().err


def test_two_hundred_requests_at_once(make_body):
    """Each gets the correct path or an error, and few paths are kept."""
    target = to_density(draw_spot(16, 16, at=(0.7, 0.6)))
    drawings = [draw_spot(16, 16, at=(0.2 + 0.03 * k, 0.4)) for k in range(20)]
    expected = [
        geonet.geodesic(to_density(source), target, "midpoint").density(0.5).numpy()
        for source in drawings
    ]

    def ask(k):
        body = make_body(client=f"page-{k}", source=encode(drawings[k % 20]), frames=3)
        return post(running.address, "/solve", json=body)

    with run_in_thread() as running:
        with ThreadPoolExecutor(200) as pool:
            responses = list(pool.map(ask, range(200)))
        assert len(running.cache.paths) <= 8
        assert post(running.address, "/solve", json=make_body()).status_code == 200
    statuses = [response.status_code for response in responses]
    assert set(statuses) <= {200, 503} and 200 in statuses
    for k, response in enumerate(responses):
        if response.status_code == 200:
            header, rest = unpack(response.content)
            levels = np.frombuffer(rest, np.uint8).reshape(3, 16, 16)[1]
            highest = header["highest"]
            assert np.allclose(levels / 255 * highest, expected[k % 20], atol=0.51 / 255 * highest)


# ---- Ctrl-C

PROGRAM = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs of a shell ignore it
    "from geonet.app import jobs\n"
    "from geonet.cli import main\n"
    "if sys.argv.pop() == 'busy':\n"
    "    jobs.geodesic = lambda *a, **o: (print('solving', flush=True), time.sleep(600))\n"
    "sys.argv = ['geonet', 'app', '--no-browser']\n"
    "sys.exit(main())\n"
)


@pytest.fixture
def start():
    """Starts the program; returns its process and address."""
    processes = []

    def run(mode):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        line = process.stdout.readline()
        match = re.fullmatch(r"geonet app runs at (http://127\.0\.0\.1:\d+) .*\n", line)
        assert match, line
        return process, match[1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_ctrl_c_stops_the_server(start):
    process, address = start("idle")
    assert get(address).status_code == 200
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.slow
def test_ctrl_c_stops_a_busy_server(start, make_body):
    process, address = start("busy")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, address, "/solve", json=make_body())
        assert process.stdout.readline() == "solving\n"
        process.send_signal(signal.SIGINT)
        response = waiting.result(TIMEOUT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out, err) == (0, "", "")
    assert response.status_code == 503 and "was stopped" in response.json()["error"]
