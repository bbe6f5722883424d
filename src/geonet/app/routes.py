"""The addresses of `geonet app`, and what answers each."""

from __future__ import annotations

import asyncio
import io
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from geonet._format import format_number
from geonet._validation import short_repr
from geonet.app.gallery import gallery
from geonet.app.jobs import RefusedError, Solved, Solving, Worker, refusal
from geonet.app.middleware import Guard, SafeHeaders
from geonet.app.requests import (
    LEAST_CELLS,
    MOST_CELLS,
    Asked,
    asked_from,
    json_object,
    particles_in,
    read_dropped,
    settings,
)
from geonet.density import Density
from geonet.errors import GeonetError, InputError, SolverError, UnavailableError
from geonet.paths import Geodesic
from geonet.plotting.explore import (
    MOMENTS,
    QUARTERS,
    Floats,
    explore_html,
    particle_tracks,
    potential_values,
)
from geonet.report import in_plain_words

# ---- The answers of the page's questions, as bytes and as plain data.


def frames_answer(asked: Asked, solved: Solved) -> bytes:
    """Header and frames, uint8 levels (frames, *shape), of which 255 is the highest density."""
    began = perf_counter()
    path, times = solved.path, np.linspace(0, 1, asked.frames)
    values = path.density(times).numpy()
    top = float(values.max())
    if not np.isfinite(values).all() or not top > 0:
        raise SolverError(f"The solver {path.solver!r} has no answer here; choose another one.")
    levels = np.rint(values.clip(0) * (255 / top)).astype(np.uint8)
    distance = _distance(path)
    header = {
        "key": asked.key,
        "shape": asked.shape,
        "times": times.tolist(),
        "top": top,
        "solver": path.solver,
        "milliseconds": 1000 * (solved.seconds + perf_counter() - began),
        "distance": distance,
        "distance_text": None if distance is None else format_number(distance),
    }
    return packed(header, levels)


def report_answer(asked: Asked, solved: Solved) -> dict[str, Any]:
    """What is known of a path, in numbers and in words."""
    began = perf_counter()
    report = solved.path.report
    return {
        "key": asked.key,
        "solver": report.solver,
        **in_plain_words(solved.path, report),  # headline, sentences, rows and tears
        "distance": _finite(report.distance),
        "lower": _finite(report.distance_lower_bound),
        "upper": _finite(report.distance_upper_bound),
        "error_estimate": _finite(report.error_estimate),
        "milliseconds": 1000 * (perf_counter() - began),
    }


def overlays_answer(asked: Asked, solved: Solved, count: int) -> bytes:
    """Header, particles (times, count, d) and the potential (times, cells…), float32.

    Args:
        asked: the question.
        solved: its path.
        count: of particles, started where the source's mass is.
    """
    path = solved.path
    layers: dict[str, Callable[[], Floats]] = {
        "particles": lambda: particle_tracks(path, count),
        "potential": lambda: potential_values(path),
    }
    arrays: dict[str, Floats] = {}
    why: dict[str, str] = {}
    for name, compute in layers.items():
        try:
            arrays[name] = compute()
        except UnavailableError:
            why[name] = f"The solver {path.solver!r} gives no {name}; choose another solver."
    shapes = {name: list(arrays[name].shape) if name in arrays else None for name in layers}
    header = {
        "key": asked.key,
        "times": np.linspace(0, 1, MOMENTS).tolist(),
        **shapes,
        "potential_times": np.linspace(0, 1, QUARTERS).tolist(),
        "why": why,
    }
    return packed(header, *(array.astype("<f4") for array in arrays.values()))


def packed(header: dict[str, Any], *arrays: np.ndarray) -> bytes:
    """The length of the header, the header padded to whole words, and the arrays behind it."""
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return b"".join((struct.pack("<I", len(text)), text, *(array.tobytes() for array in arrays)))


def _distance(path: Geodesic) -> float | None:
    try:
        return _finite(float(path.distance))
    except UnavailableError:
        return None


def _finite(value: Any) -> float | None:
    """A number that JSON can hold."""
    return value if isinstance(value, float) and math.isfinite(value) else None


# ---- Files that people take away from the page.


Solve = Callable[[], Geodesic]


@dataclass(frozen=True)
class Export:
    """A kind of file.

    Attributes:
        name: that the browser saves it under.
        media_type: of its content.
        content: its bytes, from the question and a function that gives the path.
    """

    name: str
    media_type: str
    content: Callable[[Asked, Solve], bytes]


def _gif(asked: Asked, solve: Solve) -> bytes:
    return _written(lambda file: solve().animate(file, frames=asked.frames), "morph.gif")


def _npz(asked: Asked, solve: Solve) -> bytes:
    times = np.linspace(0, 1, asked.frames)
    return _written(lambda file: solve().save(file, times), "morph.npz")


def _written(write: Callable[[Path], object], name: str) -> bytes:
    """What is written to a file."""
    with TemporaryDirectory(prefix="geonet-") as folder:
        file = Path(folder) / name
        write(file)
        return file.read_bytes()


def _png(_: Asked, solve: Solve) -> bytes:
    content = io.BytesIO()
    solve().plot().savefig(content, format="png")
    return content.getvalue()


def _html(_: Asked, solve: Solve) -> bytes:
    return explore_html(solve()).encode()


def _npy(density: Density) -> bytes:
    """The numbers of the page, which are whole, as float64."""
    content = io.BytesIO()
    np.save(content, density.numpy(mass="given").round())
    return content.getvalue()


ARRAY = "application/octet-stream"
EXPORTS = {
    "gif": Export("geonet-morph.gif", "image/gif", _gif),
    "png": Export("geonet-morph.png", "image/png", _png),
    "npz": Export("geonet-morph.npz", ARRAY, _npz),
    "html": Export("geonet-morph.html", "text/html; charset=utf-8", _html),
    "source": Export("geonet-source.npy", ARRAY, lambda asked, _: _npy(asked.source)),
    "target": Export("geonet-target.npy", ARRAY, lambda asked, _: _npy(asked.target)),
}


# ---- The files of the page, read when the server starts: no request ever names a path.


FOLDERS = ("app/static", "plotting/viewer")
INDEX, SETTINGS = "index.html", "__SETTINGS__"
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page.

    Attributes:
        content: its bytes.
        media_type: what they are.
    """

    content: bytes
    media_type: str


def page_files(settings: dict[str, Any]) -> dict[str, PageFile]:
    """All of them by name, with the settings in the first page."""
    found: dict[str, PageFile] = {}
    for folder in FOLDERS:
        for file in files("geonet").joinpath(folder).iterdir():
            media_type = MEDIA_TYPES.get(PurePosixPath(file.name).suffix)
            if media_type is not None:
                found[file.name] = PageFile(file.read_bytes(), media_type)
    index = found[INDEX].content.decode().replace(SETTINGS, _safe_json(settings))
    return found | {INDEX: PageFile(index.encode(), MEDIA_TYPES[".html"])}


def _safe_json(data: dict[str, Any]) -> str:
    """JSON that cannot end the script that it stands in."""
    return json.dumps(data).replace("<", "\\u003c")


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
        raise InputError(f"{name} is {short_repr(text)}; give a whole number.")
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
    where = short_repr(request.url.path)
    if error.status_code == 405:
        sentence = f"{where} does not answer {request.method}; use the page at '/'."
    else:
        sentence = f"There is nothing at {where}; open the page at '/'."
    return refusal(sentence, error.status_code, error.headers)


async def _failed(_request: Request, _error: Exception) -> Response:
    return refusal(WRONG, 500)
