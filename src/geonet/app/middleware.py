"""Who may ask, and how much: the server answers its own page, and nobody else.

Any site that is open in the browser can send requests to this machine. It cannot choose the headers
`Host` and `Origin`, nor send JSON without asking first, and nobody answers that question here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from geonet.app.jobs import BUSY, RefusedError

METHODS = ("GET", "HEAD", "POST")
USUAL_PORT = 80  # which browsers leave out
OWN = ("same-origin", "none")  # what a browser says of requests by the page, or by hand
MIB = 2**20


@dataclass(frozen=True)
class Limit:
    """What the body of a request may be.

    Attributes:
        kind: its media type.
        most: bytes.
        at_once: how many such bodies are held at the same time.
        remedy: for bodies that are larger.
    """

    kind: str
    most: int
    at_once: int
    remedy: str


DRAWINGS = Limit("application/json", 2 * MIB, 24, "draw on fewer cells")
FILES = Limit("application/octet-stream", 32 * MIB, 2, "drop a smaller file")
LIMITS = {"/read": FILES}  # by path; all others take drawings


class Guard:
    """Lets through what the page itself may ask, with its whole body read."""

    def __init__(self, app: ASGIApp, port: int):
        self._app, self._address = app, f"http://127.0.0.1:{port}"
        names = ("127.0.0.1", "localhost")
        bare = names if port == USUAL_PORT else ()
        self._hosts = {*(f"{name}:{port}" for name in names), *bare}
        self._held: Counter[Limit] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse in words."""
        try:
            self._check(scope["method"], Headers(scope=scope))
            if scope["method"] != "POST":
                await self._app(scope, receive, send)
                return
            limit = LIMITS.get(scope["path"], DRAWINGS)
            _check_body(Headers(scope=scope), limit)
            with self._place(limit):
                body = await _whole(receive, limit)
                await self._app(scope, _again(body, receive), send)
        except RefusedError as error:
            if scope["method"] == "POST":  # whose body may not have been read to its end
                error.headers["Connection"] = "close"
            await error.response()(scope, receive, send)

    def _check(self, method: str, headers: Headers) -> None:
        """Refuse what another site asks, or asks for under another name (DNS rebinding)."""
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            raise RefusedError(f"This server is {self._address}; open that address.", 403)
        own = {f"http://{host}" for host in self._hosts}
        foreign = any(origin not in own for origin in headers.getlist("origin"))
        if foreign or (method == "POST" and headers.get("sec-fetch-site", "none") not in OWN):
            raise RefusedError(
                f"Another site asked, and only the page itself may; open {self._address}.", 403
            )
        if method not in METHODS:
            raise RefusedError(
                f"The method {method} is not answered; use GET, HEAD or POST.",
                *(405, {"Allow": ", ".join(METHODS)}),
            )

    @contextmanager
    def _place(self, limit: Limit) -> Iterator[None]:
        """Room for a body; refuses at once where there is none."""
        if self._held[limit] >= limit.at_once:
            raise RefusedError(BUSY, 503)
        self._held[limit] += 1
        try:
            yield
        finally:
            self._held[limit] -= 1


def _check_body(headers: Headers, limit: Limit) -> None:
    """Refuse a body by what is said of it, before it is read."""
    kind = headers.get("content-type", "of no type").partition(";")[0].strip().lower()
    if kind != limit.kind:
        raise RefusedError(f"The body is {kind}; send {limit.kind}.", 415)
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit.most:
        raise _too_large(limit)


async def _whole(receive: Receive, limit: Limit) -> bytes:
    """The body; reading ends as soon as it is too large."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RefusedError("The request ended before its body did; send it again.", 400)
        body += message.get("body", b"")
        if len(body) > limit.most:
            raise _too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def _too_large(limit: Limit) -> RefusedError:
    return RefusedError(f"The request is larger than {limit.most // MIB} MiB; {limit.remedy}.", 413)


def _again(body: bytes, receive: Receive) -> Receive:
    """A body that was read, to be received once more; then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def received() -> Message:
        return messages.pop() if messages else await receive()

    return received


# ---- What every response says to the browser about its safety.


POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class SafeHeaders:
    """Adds the headers to every response, refusals included."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the application does, with the headers."""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SAFE)
            await send(message)

        await self._app(scope, receive, send_safely)
