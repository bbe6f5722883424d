"""A real server on a socket: this machine only, many requests, and Ctrl-C."""

import errno
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
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


def test_the_default_port_is_replaced_if_it_cannot_be_used(monkeypatch):
    def bind(port):
        if port in (80, 8765):
            raise PermissionError(errno.EACCES, "Permission denied")
        return port

    monkeypatch.setattr(server, "_bind_socket", bind)
    assert server._bind(None) == 0
    with pytest.raises(InputError, match="Port 80 cannot be used: Permission denied"):
        server._bind(80)


@pytest.mark.parametrize("browser", [True, False])
def test_the_browser_opens_after_the_start(monkeypatch, capsys, browser):
    opened, servers, create = [], [], Server.__init__

    def record(self, *arguments):
        create(self, *arguments)
        servers.append(self)

    def stop():
        if not browser:
            time.sleep(0.1)
            servers[0].should_exit = True

    def visit(address):
        opened.append(get(address).status_code)
        servers[0].should_exit = True

    monkeypatch.setattr(Server, "__init__", record)
    monkeypatch.setattr(server, "warm_up", stop)
    monkeypatch.setattr(server.webbrowser, "open", visit)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(serve, 0, browser).result(TIMEOUT) is True
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
    assert f"needs {missing}" in done.stderr and "pip install 'geonet-ot[app]'" in done.stderr


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


def test_a_hundred_requests_at_once(make_body):
    """Each gets the correct path or an error, and few paths are kept."""
    target = to_density(draw_spot(16, 16, at=(0.7, 0.6)))
    drawings = [draw_spot(16, 16, at=(0.2 + 0.06 * k, 0.4)) for k in range(10)]
    paths = [geonet.geodesic(to_density(source), target, "midpoint") for source in drawings]

    def ask(k):
        densities = [encode(drawings[k % 10]), make_body()["densities"][1]]
        body = make_body(client=f"page-{k}", densities=densities, frames=3)
        return post(running.address, "/solve", json=body)

    with run_in_thread() as running:
        with ThreadPoolExecutor(100) as pool:
            responses = list(pool.map(ask, range(100)))
        assert len(running.cache.results) <= 8
        assert post(running.address, "/solve", json=make_body()).status_code == 200
    statuses = [response.status_code for response in responses]
    assert set(statuses) <= {200, 503} and 200 in statuses
    for k in np.flatnonzero(np.array(statuses) == 200):
        header, rest = unpack(responses[k].content)
        levels = np.frombuffer(rest, np.uint8).reshape(3, 16, 16)[1] / 255 * header["highest"]
        expected = paths[k % 10].density(0.5).numpy()
        assert np.allclose(levels, expected, atol=0.51 / 255 * header["highest"])


# ---- Ctrl-C

PROGRAM = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # jobs of a shell ignore it
    "from geonet.app import jobs\n"
    "from geonet.cli import main\n"
    "jobs.geodesic = lambda *a, **o: (print('solving', flush=True), time.sleep(600))\n"
    "sys.argv = ['geonet', 'app', '--no-browser']\n"
    "sys.exit(main())\n"
)


@pytest.mark.slow
def test_ctrl_c_stops_a_busy_server(make_body):
    command = [sys.executable, "-c", PROGRAM]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True)
    try:
        line = process.stdout.readline()
        match = re.fullmatch(r"geonet app runs at (http://127\.0\.0\.1:\d+) .*\n", line)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(post, match[1], "/solve", json=make_body())
            assert process.stdout.readline() == "solving\n"
            process.send_signal(signal.SIGINT)
            response = waiting.result(TIMEOUT)
        out, err = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err) == (0, "", "")
    assert response.status_code == 503 and "was stopped" in response.json()["error"]
