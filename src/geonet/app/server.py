"""The server of `geonet app`, for this machine only, until Ctrl-C."""

from __future__ import annotations

import errno
import os
import socket
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Event, Thread

from geonet.errors import InputError

try:
    import uvicorn

    from geonet.app.jobs import ResultCache, SolverThread, warm_up
    from geonet.app.routes import create_app
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("starlette", "uvicorn"):
        raise
    raise InputError(
        f"geonet app needs {missing}, which is not installed; "
        "install it: pip install 'geonet-ot[app]'."
    ) from error


def serve(port: int | None = None, browser: bool = True) -> bool:
    """Serve the page until Ctrl-C.

    Args:
        port: port of the address; by default 8765, or a free one if 8765 is in use.
        browser: whether to open the page in the browser.

    Returns:
        Whether all computations have ended. If not, end the process by `os._exit`.
    """
    listener = _bind(port)

    def announce(address: str) -> None:
        print(f"geonet app runs at {address} (press Ctrl-C to stop)", flush=True)
        server.submit(warm_up)
        if browser:  # in a thread, because a browser in the terminal blocks until it is closed
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    server = Server(listener, announce)
    # uvicorn stops at Ctrl-C, then raises KeyboardInterrupt again.
    with closing(listener), suppress(KeyboardInterrupt):
        server.run()
    return server.has_ended


@contextmanager
def run_in_thread() -> Iterator[Server]:
    """Run a server at a free port in a thread, for tests and benchmarks."""
    ready = Event()
    server = Server(_bind(0), lambda _: ready.set())
    thread = Thread(target=server.run)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join()


class Server(uvicorn.Server):
    """A uvicorn server of the page.

    Attributes:
        address: address of the page.
        has_ended: whether all computations have ended, once the server has stopped.
        cache: results that the server keeps.
    """

    shutdown_timeout = 2  # seconds for running requests and computations

    def __init__(self, listener: socket.socket, announce: Callable[[str], None]):
        host, port = listener.getsockname()
        self.address, self.has_ended = f"http://{host}:{port}", False
        self.cache, self._thread = ResultCache(), SolverThread()
        self.submit = self._thread.submit
        self._listener, self._announce = listener, announce
        super().__init__(
            uvicorn.Config(
                create_app(self._thread, self.cache),
                http="h11",
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=100,
                timeout_graceful_shutdown=self.shutdown_timeout,
            )
        )

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit` is set."""
        super().run(sockets or [self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer requests and announce the address."""
        await super().startup(sockets)
        self._announce(self.address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Fail pending computations, which ends their requests, and stop."""
        self._thread.close()
        await super().shutdown(sockets)
        self.has_ended = self._thread.join(self.shutdown_timeout)


def _bind(port: int | None) -> socket.socket:
    """Bind a socket of the loopback interface; without a port to 8765, or to a free one."""
    try:
        return _bind_socket(8765 if port is None else port)
    except OSError as error:
        if port is None:
            return _bind_socket(0)
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"Port {port} is in use; choose another one, or none for a free one."
            ) from error
        raise InputError(
            f"Port {port} cannot be used: {error.strerror}; choose one from 1024 to 65535."
        ) from error


def _bind_socket(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # allow a restart at the same port at once
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))  # never another interface: there are no passwords
    except OSError:
        listener.close()
        raise
    return listener
