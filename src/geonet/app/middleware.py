"""Protection of the server against other web sites.

A site that is open in the same browser can send requests to this machine, but it cannot choose the
headers Host and Origin. Starlette's TrustedHostMiddleware checks the first (DNS rebinding).
"""

from __future__ import annotations

from typing import ClassVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from geonet.app.jobs import error_response


class SameOriginMiddleware:
    """Rejects requests that another site has sent."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request if its origin is this server or unknown."""
        headers = Headers(scope=scope)
        address = f"http://{headers.get('host')}"
        if any(origin != address for origin in headers.getlist("origin")):
            response = error_response(f"Another site sent this request; open {address}.", 403)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class SecurityHeadersMiddleware:
    """Adds security headers to every response, including errors."""

    headers: ClassVar = {
        "Content-Security-Policy": (
            "default-src 'self'; img-src 'self' blob: data:; style-src 'self'; "
            "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request as the application does, with the headers."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        await self._app(scope, receive, send_with_headers)
