"""The server of `geonet app`: on this machine alone, until Ctrl-C."""

from __future__ import annotations

import errno
import os
import socket
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Event, Thread

from geonet.app.jobs import Solving, Worker, first_path
from geonet.errors import InputError

try:
    import uvicorn

    from geonet.app.routes import application
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("starlette", "uvicorn"):
        raise
    raise InputError(
        f"geonet app needs {missing}, which is not installed; "
        "install it: pip install 'geonet[app]'."
    ) from error

HOST = "127.0.0.1"  # and no other: the server has no passwords
USUAL_PORT = 8765
PATIENCE = 2  # seconds for what goes on when the server stops


def serve(port: int | None = None, browser: bool = True) -> bool:
    """Serve the page until Ctrl-C.

    Args:
        port: of the address; None for the usual one, or a free one if that is taken.
        browser: whether to open the page in the browser.

    Returns:
        Whether all work has ended. If not, the process should end by `os._exit`.
    """
    listening = _bound(port)

    def announce(address: str) -> None:
        print(f"geonet app runs at {address} (Ctrl-C stops it)", flush=True)
        server.warm_up()
        if browser:  # in a thread of its own: a browser in the terminal returns when it is closed
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    server = Server(listening, announce)
    with (
        closing(listening),
        suppress(KeyboardInterrupt),
    ):  # uvicorn has stopped by then, and sends it on
        server.run()
    return server.ended


@contextmanager
def running() -> Iterator[str]:
    """The address of a server that runs in a thread, at a free port; for tests."""
    with in_thread() as server:
        yield server.address


@contextmanager
def in_thread() -> Iterator[Server]:
    """The server itself, which runs in a thread; for tests."""
    ready = Event()
    server = Server(_bound(0), lambda _: ready.set())
    thread = Thread(target=server.run)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join()


class Server(uvicorn.Server):
    """uvicorn with our application.

    Attributes:
        address: of the page.
        ended: whether all work has ended, once the server has stopped.
        solving: the paths that are kept.
    """

    def __init__(self, listening: socket.socket, announce: Callable[[str], None]):
        port = listening.getsockname()[1]
        self.address, self.ended = f"http://{HOST}:{port}", False
        self.solving, self._worker = Solving(), Worker()
        self._listening, self._announce = listening, announce
        super().__init__(
            uvicorn.Config(
                application(port, self._worker, self.solving),
                http="h11",
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=PATIENCE,
            )
        )

    def warm_up(self) -> None:
        """Load what the first drawing would have to wait for, seconds otherwise."""
        self._worker.asked_for(first_path)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `should_exit`."""
        super().run(sockets or [self._listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        self._announce(self.address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what waits, which ends every request, and stop."""
        self._worker.close()
        await super().shutdown(sockets)
        self.ended = self._worker.ended(PATIENCE)


def _bound(port: int | None) -> socket.socket:
    """A socket of this machine alone; without a port the usual one, or else a free one."""
    try:
        return _socket(USUAL_PORT if port is None else port)
    except OSError as error:
        if port is None:
            return _socket(0)
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"Port {port} is taken by another program; give another, or none for a free one."
            ) from error
        raise InputError(
            f"Port {port} cannot be used: {error.strerror}; give one from 1024 to 65535."
        ) from error


def _socket(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # a port is free as soon as its server has stopped
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((HOST, port))
    except OSError:
        made.close()
        raise
    return made
