"""An application without a socket, and requests to it."""

import asyncio
import base64
import json
import struct
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from geonet import Density, Grid
from geonet.app.jobs import ResultCache, SolverThread
from geonet.app.routes import create_app

ADDRESS = "http://127.0.0.1:8765"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Several threads make these small problems slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def solver_thread() -> Iterator[SolverThread]:
    thread = SolverThread()
    yield thread
    thread.close()
    assert thread.join(timeout=60)


@pytest.fixture
def gate(solver_thread) -> Iterator[Event]:
    """Keeps the solver thread busy until the event is set."""
    is_open, has_started = Event(), Event()
    solver_thread.submit(lambda: (has_started.set(), is_open.wait(60)))
    assert has_started.wait(60)
    yield is_open
    is_open.set()


@pytest.fixture
def cache() -> ResultCache:
    return ResultCache()


@pytest.fixture
def app(solver_thread, cache):
    return create_app(solver_thread, cache)


class Client:
    """Sends requests to an application, each in its own event loop."""

    def __init__(self, app: Any):
        self._app = app

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def error(self, method: str, path: str, status: int = 400, **options: Any) -> str:
        """The message of a request that fails."""
        response = self.request(method, path, **options)
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        assert list(response.json()) == ["error"]
        return response.json()["error"]


@pytest.fixture
def client(app) -> Client:
    return Client(app)


def draw_spot(*shape: int, at: tuple[float, ...] = (0.3, 0.4)) -> np.ndarray:
    """A soft spot, as the page sends it: uint16."""
    points = Grid(shape).points().numpy()
    spot = np.exp(-((points - np.array(at[: len(shape)])) ** 2).sum(-1) / 0.02)
    return np.rint(65535 * spot).astype("<u2")


def encode(values: np.ndarray) -> str:
    return base64.b64encode(values.astype("<u2").tobytes()).decode()


def to_density(values: np.ndarray) -> Density:
    return Density(values / 65535, Grid(values.shape))


def unpack(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a response, and the bytes after it."""
    (length,) = struct.unpack("<I", content[:4])
    assert (4 + length) % 4 == 0
    return json.loads(content[4 : 4 + length]), content[4 + length :]


@pytest.fixture
def ends() -> tuple[np.ndarray, np.ndarray]:
    """Two drawings on 16 × 16 cells."""
    return draw_spot(16, 16), draw_spot(16, 16, at=(0.7, 0.6))


@pytest.fixture
def make_body(ends) -> Callable[..., dict[str, Any]]:
    """Makes the JSON body of a request, with changes."""

    def make(**changes: Any) -> dict[str, Any]:
        body = {
            "client": "page-1",
            "number": 1,
            "shape": [16, 16],
            "densities": [encode(end) for end in ends],
            "weights": None,
            "solver": "midpoint",
            "epsilon": None,
            "reach": None,
            "growth": None,
            "frames": 5,
        }
        return body | changes

    return make


@pytest.fixture
def make_1d_body(make_body) -> Callable[..., dict[str, Any]]:
    """Makes the JSON body of a request about curves."""

    def make(n: int = 64, solver: str = "auto", **changes: Any) -> dict[str, Any]:
        densities = [encode(draw_spot(n)), encode(draw_spot(n, at=(0.8,)))]
        return make_body(shape=[n], solver=solver, densities=densities, **changes)

    return make


@pytest.fixture
def corners(ends) -> list[np.ndarray]:
    """Four drawings on 16 × 16 cells."""
    return [*ends, draw_spot(16, 16, at=(0.3, 0.7)), draw_spot(16, 16, at=(0.6, 0.3))]


@pytest.fixture
def make_barycenter_body(make_body, corners) -> Callable[..., dict[str, Any]]:
    """Makes the JSON body of a request for a barycenter, with changes."""

    def make(*weights: float, **changes: Any) -> dict[str, Any]:
        densities = [encode(corner) for corner in corners[: len(weights)]]
        own = {"densities": densities, "weights": list(weights), "solver": None}
        return make_body(**own | changes)

    return make
