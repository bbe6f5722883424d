"""The addresses of `geonet app`, and what answers each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from geonet.app.answers import frames_answer, overlays_answer, report_answer
from geonet.app.asked import asked_from, json_object, particles_in
from geonet.app.dropped import read_dropped
from geonet.app.gallery import gallery
from geonet.app.guard import Guard
from geonet.app.headers import SafeHeaders
from geonet.app.offers import LEAST_CELLS, MOST_CELLS, settings
from geonet.app.page_files import INDEX, page_files
from geonet.app.refused import RefusedError, refusal
from geonet.app.solving import Solving
from geonet.app.taken_away import EXPORTS
from geonet.app.worker import Worker
from geonet.arguments import shown
from geonet.errors import GeonetError, InputError

Result = TypeVar("Result")

BINARY = "application/octet-stream"
DIGITS = 4  # of a number in an address, at most
WRONG = (
    "Something went wrong inside geonet; try another drawing or solver. The window in which "
    "geonet app was started says more."
)


def application(port: int, worker: Worker, solving: Solving) -> ASGIApp:
    """The server's application, for its page at this port alone."""
    pages = Pages(worker, solving)
    app = Starlette(
        routes=pages.routes(),
        exception_handlers={
            GeonetError: _refused,
            HTTPException: _unknown,
            Exception: _failed,  # which Starlette raises again, so that it is logged
        },
    )
    app.router.redirect_slashes = False
    return SafeHeaders(Guard(app, port))


class Pages:
    """Answers requests: the worker computes, one after the other."""

    def __init__(self, worker: Worker, solving: Solving):
        self._worker, self._solving = worker, solving
        self._files = page_files(settings())

    def routes(self) -> list[Route]:
        """The addresses."""
        return [
            Route("/", self.index),
            Route("/page/{name}", self.file),
            Route("/gallery/{dimension}/{cells}", self.gallery),
            Route("/solve", self.solve, methods=["POST"]),
            Route("/report", self.report, methods=["POST"]),
            Route("/overlays", self.overlays, methods=["POST"]),
            Route("/export/{kind}", self.export, methods=["POST"]),
            Route("/read", self.read, methods=["POST"]),
        ]

    async def index(self, _: Request) -> Response:
        """The page itself."""
        page = self._files[INDEX]
        return Response(page.content, media_type=page.media_type)

    async def file(self, request: Request) -> Response:
        """A file of the page, by its exact name."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return Response(file.content, media_type=file.media_type)

    async def gallery(self, request: Request) -> Response:
        """Densities to start from."""
        dimension, cells = _cells(request.path_params)
        return _json({"densities": await self._done(request, lambda: gallery(dimension, cells))})

    async def solve(self, request: Request) -> Response:
        """The frames of a path."""
        asked = asked_from(json_object(await request.body()))
        self._solving.note(asked)

        def work() -> bytes:
            self._solving.check_latest(asked)
            return frames_answer(asked, self._solving.solved(asked))

        return Response(await self._done(request, work), media_type=BINARY)

    async def report(self, request: Request) -> Response:
        """What is known of a path."""
        asked = asked_from(json_object(await request.body()))

        def work() -> dict[str, object]:
            self._solving.check_latest(asked)
            return report_answer(asked, self._solving.solved(asked))

        return _json(await self._done(request, work))

    async def overlays(self, request: Request) -> Response:
        """Particles and potential of a path."""
        given = json_object(await request.body())
        count = particles_in(given)
        asked = asked_from(given)

        def work() -> bytes:
            return overlays_answer(asked, self._solving.solved(asked), count)

        return Response(await self._done(request, work), media_type=BINARY)

    async def export(self, request: Request) -> Response:
        """A file to take away."""
        export = EXPORTS.get(request.path_params["kind"])
        if export is None:
            raise HTTPException(404)
        asked = asked_from(json_object(await request.body()))

        def work() -> bytes:
            return export.content(asked, lambda: self._solving.solved(asked).path)

        content = await self._done(request, work)
        headers = {"Content-Disposition": f'attachment; filename="{export.name}"'}
        return Response(content, headers=headers, media_type=export.media_type)

    async def read(self, request: Request) -> Response:
        """A file that was dropped on the page."""
        dimension, cells = _cells(request.query_params)
        name, content = request.query_params.get("name", ""), await request.body()
        return _json(
            await self._done(request, lambda: read_dropped(content, name, dimension, cells))
        )

    async def _done(self, request: Request, work: Callable[[], Result]) -> Result:
        """What the worker gives; nothing is computed for a page that went away before its turn."""
        answer = asyncio.wrap_future(self._worker.asked_for(work))
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not answer.done():
            answer.cancel()
            raise RefusedError("The page went away.", 503)
        return answer.result()


async def _gone(request: Request) -> None:
    """Wait until nobody listens any longer."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _cells(given: Mapping[str, str]) -> tuple[int, int]:
    """The dimension, and the number of cells along an axis."""
    dimension, cells = (_whole(given, name) for name in ("dimension", "cells"))
    most = MOST_CELLS.get(dimension)
    if most is None:
        raise InputError(f"dimension is {dimension}; give 1 or 2.")
    if not LEAST_CELLS <= cells <= most:
        raise InputError(f"cells is {cells}; give {LEAST_CELLS} to {most} in {dimension}D.")
    return dimension, cells


def _whole(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS):
        raise InputError(f"{name} is {shown(text)}; give a whole number.")
    return int(text)


def _json(data: object) -> Response:
    return Response(json.dumps(data, allow_nan=False), media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, RefusedError):
        return error.response()
    return refusal(str(error), 400)


async def _unknown(request: Request, error: Exception) -> Response:
    """An address or a method that is not in the table."""
    assert isinstance(error, HTTPException)
    where = shown(request.url.path)
    if error.status_code == 405:
        sentence = f"{where} does not answer {request.method}; use the page at '/'."
    else:
        sentence = f"There is nothing at {where}; open the page at '/'."
    return refusal(sentence, error.status_code, error.headers)


async def _failed(_request: Request, _error: Exception) -> Response:
    return refusal(WRONG, 500)
