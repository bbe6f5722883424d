"""Routes of the web page: static files, gallery, solving, overlays, downloads and uploads."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import struct
from collections.abc import Callable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from geonet._format import format_number
from geonet.app.gallery import build_gallery
from geonet.app.jobs import (
    RequestError,
    ResultCache,
    Solved,
    SolverThread,
    error_response,
)
from geonet.app.requests import (
    LIMITS,
    SolveRequest,
    check_cells,
    name_drawings,
    page_settings,
    parse_request,
    read_upload,
)
from geonet.barycenters import Barycenter
from geonet.errors import GeonetError, InputError, SolverError, UnavailableError
from geonet.paths import Geodesic
from geonet.plotting.explore import compute_overlays
from geonet.plotting.explore_weights import encode_fields, sample_displacements

BINARY = "application/octet-stream"
DOWNLOADS = {  # media type by kind
    "gif": "image/gif",
    "png": "image/png",
    "npz": BINARY,
    "html": "text/html; charset=utf-8",
}


def create_app(thread: SolverThread, cache: ResultCache) -> ASGIApp:
    """Return the application; it answers requests to this machine by its own page only."""
    # The registry of Windows may say text/plain, and browsers do not run scripts of that type.
    mimetypes.add_type("text/javascript", ".js")
    app = Starlette(
        routes=Routes(thread, cache).build(),
        exception_handlers={
            GeonetError: _handle_geonet_error,
            ClientDisconnect: _handle_disconnect,
            HTTPException: _handle_http_error,
            Exception: _handle_bug,  # Starlette raises it again, so uvicorn logs it
        },
    )
    app.router.redirect_slashes = False
    hosts = ["127.0.0.1", "localhost"]
    return SecurityHeadersMiddleware(
        TrustedHostMiddleware(SameOriginMiddleware(app), allowed_hosts=hosts, www_redirect=False)
    )


class Routes:
    """The handlers of all routes; computations run in the solver thread."""

    def __init__(self, thread: SolverThread, cache: ResultCache):
        self._thread, self._cache = thread, cache
        index = files("geonet").joinpath("app/static/index.html").read_text(encoding="utf-8")
        settings = json.dumps(page_settings()).replace("<", "\\u003c")  # cannot end its script
        self._index = index.replace("__SETTINGS__", settings)

    def build(self) -> list[BaseRoute]:
        """Return all routes; static files have the same relative paths as in the package."""
        return [
            Route("/", self.get_index),
            Mount("/app/static", StaticFiles(packages=[("geonet", "app/static")])),
            Mount("/plotting/viewer", StaticFiles(packages=[("geonet", "plotting/viewer")])),
            Route("/gallery/{dimension:int}/{cells:int}", self.get_gallery),
            Route("/upload/{dimension:int}/{cells:int}", self.upload, methods=["POST"]),
            Route("/solve", self.solve, methods=["POST"]),
            Route("/report", self.get_report, methods=["POST"]),
            Route("/overlays", self.get_overlays, methods=["POST"]),
            Route("/download/{kind}", self.download, methods=["POST"]),
        ]

    async def get_index(self, _: Request) -> Response:
        """Return the page."""
        return Response(self._index, media_type="text/html")

    async def get_gallery(self, http: Request) -> Response:
        """Return example densities."""
        dimension, cells = _read_cells(http)
        return await self._run(http, lambda: JSONResponse(build_gallery(dimension, cells)))

    async def upload(self, http: Request) -> Response:
        """Return the drawing in an uploaded file."""
        dimension, cells = _read_cells(http)
        content, name = await _read_body(http, BINARY, 32), http.query_params.get("name", "")
        return await self._run(
            http, lambda: JSONResponse(read_upload(content, name, dimension, cells))
        )

    async def solve(self, http: Request) -> Response:
        """Return the frames of a path, or a barycenter."""
        request = await _read_request(http)
        self._cache.record(request)
        return await self._run(
            http, lambda: encode_result(self._cache.solve_latest(request), request)
        )

    async def get_report(self, http: Request) -> Response:
        """Return the report on a path or barycenter."""
        request = await _read_request(http)
        return await self._run(http, lambda: encode_report(self._cache.solve_latest(request)))

    async def get_overlays(self, http: Request) -> Response:
        """Return particles and potential of a path."""
        request = await _read_request(http)
        return await self._run(http, lambda: encode_overlays(self._cache.solve(request)))

    async def download(self, http: Request) -> Response:
        """Return a file of a result or of a drawing."""
        kind = http.path_params["kind"]
        counts = range(2, LIMITS.max_densities + 1)
        if kind not in {*DOWNLOADS, *(name for n in counts for name in name_drawings(n))}:
            raise HTTPException(404)
        request = await _read_request(http)
        if kind not in (*DOWNLOADS, *request.names):
            raise InputError(
                f"There is no drawing {kind} among the {len(request.names)} that were sent; "
                f"choose one of {', '.join(request.names)}."
            )
        return await self._run(http, lambda: encode_download(kind, request, self._cache))

    async def _run(self, http: Request, work: Callable[[], Response]) -> Response:
        """Run a computation in the solver thread, unless the page is closed while it waits."""
        answer = asyncio.wrap_future(self._thread.submit(work))
        disconnect = asyncio.ensure_future(_wait_for_disconnect(http))
        try:
            await asyncio.wait((answer, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
        if not answer.done():
            answer.cancel()
            raise ClientDisconnect
        return answer.result()


async def _wait_for_disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _read_cells(http: Request) -> tuple[int, int]:
    """Return the dimension and the number of cells along an axis from the path of a request."""
    dimension, cells = http.path_params["dimension"], http.path_params["cells"]
    check_cells(dimension, cells)
    return dimension, cells


async def _read_request(http: Request) -> SolveRequest:
    return parse_request(await _read_body(http, "application/json", max_mib=2))


async def _read_body(http: Request, media_type: str, max_mib: int) -> bytes:
    """Read the body of a request; stop as soon as it is too large."""
    kind = http.headers.get("content-type", "missing").partition(";")[0].strip().lower()
    if kind != media_type:  # forms of other sites cannot send the types used here
        raise RequestError(f"The content type is {kind}; send {media_type}.", 415)
    # Without "close" the server would wait for the rest of the body.
    too_large = RequestError(
        f"The request is larger than {max_mib} MiB; send less.", 413, {"Connection": "close"}
    )
    length = http.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_mib << 20:
        raise too_large
    body = bytearray()
    async for chunk in http.stream():
        body += chunk
        if len(body) > max_mib << 20:
            raise too_large
    return bytes(body)


def encode_result(solved: Solved, request: SolveRequest) -> Response:
    """Encode a header and densities as uint8 levels, (count, *shape); 255 is `highest`.

    They are the frames of a path, or a barycenter and its densities, which are followed by the
    displacements to them as int8 unless a weight is zero.
    """
    start, result = perf_counter(), solved.result
    header: dict[str, Any] = {}
    if isinstance(result, Geodesic):
        values = result.density(np.linspace(0, 1, request.frames)).numpy(request.mass)
        solver, extra = result.solver, b""
    else:
        values = np.stack([one.numpy(request.mass) for one in (result.density, *result.densities)])
        solver, extra, header["fields"] = "barycenter", *_encode_maps(result)
    highest = float(values.max())
    if not np.isfinite(values).all() or not highest > 0:
        raise SolverError(f"The solver {solver!r} failed on these drawings; choose another one.")
    header |= {
        "shape": result.grid.shape,
        "count": len(values),
        "highest": highest,
        "solver": solver,
        "value": _format_value(result),
    }
    levels = np.rint(values.clip(0) * (255 / highest)).astype(np.uint8)
    header["milliseconds"] = 1000 * (solved.seconds + perf_counter() - start)
    return pack(header, levels.tobytes(), extra)


def _encode_maps(one: Barycenter) -> tuple[bytes, dict[str, Any] | None]:
    """Return the maps of a barycenter; a density of weight zero needs a solve for its map."""
    if not all(one.weights):
        return b"", None
    return encode_fields(sample_displacements([one], one.grid))


def _format_value(result: Geodesic | Barycenter) -> str | None:
    """Return distance, cost or objective as a text; None for solvers without a distance."""
    if isinstance(result, Barycenter):
        label = "Σ w W₂² =" if result.options.reach is None else "Objective"
        return f"{label} {format_number(result.estimate)}"
    try:
        distance = float(result.distance)
    except UnavailableError:
        return None
    if result.is_balanced:
        return f"W₂ = {format_number(distance)}"
    return f"Cost {format_number(distance**2 / 2)}"


def encode_report(solved: Solved) -> Response:
    """Encode headline, sentences and rows of a report, and the value of the result, as JSON."""
    report, value = solved.result.report, _format_reported_value(solved.result)
    return JSONResponse(asdict(report.summary()) | {"rows": report.rows(), "value": value})


def _format_reported_value(result: Geodesic | Barycenter) -> str | None:
    """Return the value as a text; a distance that the report calls uncertain is an interval."""
    if isinstance(result, Geodesic) and result.is_balanced and result.report.is_distance_uncertain:
        return f"W₂ {dict(result.report.rows())['W2 distance']}"
    return _format_value(result)


def encode_overlays(solved: Solved) -> Response:
    """Encode particles and potential as float32; the header has their shapes, or null."""
    path = solved.result
    if not isinstance(path, Geodesic):
        raise InputError("A barycenter has no overlays; draw two densities for a path.")
    overlays, missing = compute_overlays(path)
    header = {
        "particles": overlays["particles"].shape if "particles" in overlays else None,
        "potential": overlays["potential"].shape if "potential" in overlays else None,
        "missing": {
            name: f"The solver {path.solver!r} provides no {name}; choose another solver."
            for name in missing
        },
    }
    return pack(header, *(array.astype("<f4").tobytes() for array in overlays.values()))


def pack(header: dict[str, Any], *parts: bytes) -> Response:
    """Join the length of the header (uint32), the header padded to 4 bytes, and numbers."""
    text = json.dumps(header, allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    return Response(b"".join((struct.pack("<I", len(text)), text, *parts)), media_type=BINARY)


def encode_download(kind: str, request: SolveRequest, cache: ResultCache) -> Response:
    """Return a file as an attachment; drawings need no solve."""
    noun = "path" if request.weights is None else "barycenter"
    name = f"geonet-{noun}.{kind}" if kind in DOWNLOADS else f"geonet-{kind}.npy"
    with TemporaryDirectory(prefix="geonet-") as folder:
        file = Path(folder) / name
        if kind in request.names:
            np.save(file, request.densities[request.names.index(kind)].numpy(mass="given"))
        else:
            _write_file(cache.solve(request).result, file, request)
        content = file.read_bytes()
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, headers=headers, media_type=DOWNLOADS.get(kind, BINARY))


def _write_file(result: Geodesic | Barycenter, file: Path, request: SolveRequest) -> None:
    mass = request.mass
    if file.suffix == ".gif":
        result.animate(file, request.frames, mass=mass)
    elif file.suffix == ".png":
        result.plot(mass=mass).savefig(file)
    elif isinstance(result, Barycenter):
        if file.suffix == ".npz":
            result.save(file)
        else:
            result.explore(file, LIMITS.table, mass=mass)
    elif file.suffix == ".npz":
        result.save(file, np.linspace(0, 1, request.frames), mass=mass)
    else:
        result.explore(file, mass=mass)


async def _handle_geonet_error(_: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        return error_response(str(error), error.status, error.headers)
    return error_response(str(error), 400)


async def _handle_disconnect(_request: Request, _error: Exception) -> Response:
    return error_response("The page was closed.", 503)


async def _handle_http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = http.url.path[:80]
    if error.status_code == 405:
        message = f"{path} does not support {http.method}; open the page at /."
    else:
        message = f"{path} does not exist; open the page at /."
    return error_response(message, error.status_code, error.headers)


async def _handle_bug(_request: Request, _error: Exception) -> Response:
    message = "geonet failed with an internal error; the terminal of geonet app shows the details."
    return error_response(message, 500)


# Protection against other web sites that are open in the same browser: they can send requests to
# this machine, but cannot choose the headers Host and Origin. TrustedHostMiddleware checks Host.


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
