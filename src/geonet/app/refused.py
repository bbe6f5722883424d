"""What the server refuses: one sentence, and a status of HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from geonet.errors import GeonetError

BUSY = "Too many requests wait; try again in a moment."


class RefusedError(GeonetError):
    """A request that gets no answer.

    Attributes:
        status: of HTTP.
        headers: that go with it.
    """

    def __init__(self, message: str, status: int, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})

    def response(self) -> Response:
        """The refusal as JSON."""
        return refusal(str(self), self.status, self.headers)


def refusal(sentence: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """{"error": sentence} with a status. ASCII alone: a name may hold half of a character."""
    body = json.dumps({"error": sentence})
    return Response(body, status, headers, media_type="application/json")
