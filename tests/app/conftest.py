"""A server without a socket, and questions to ask it."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from geonet import Density, Grid
from geonet.app.jobs import Solving, Worker
from geonet.app.routes import application

PORT = 8765
ADDRESS = f"http://127.0.0.1:{PORT}"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch that wait for each other make these small problems slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()
    assert made.ended(patience=60)


@pytest.fixture
def solving() -> Solving:
    return Solving()


@pytest.fixture
def app(worker, solving):
    """The application as it is served at port 8765."""
    return application(PORT, worker, solving)


class Client:
    """Sends requests to an application, each from an event loop of its own."""

    def __init__(self, app: Any):
        self._app = app

    def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        return asyncio.run(self._request(method, path, how))

    def get(self, path: str, **how: Any) -> httpx.Response:
        return self.request("GET", path, **how)

    def post(self, path: str, **how: Any) -> httpx.Response:
        return self.request("POST", path, **how)

    async def _request(self, method: str, path: str, how: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            return await client.request(method, path, **how)


@pytest.fixture
def client(app) -> Client:
    return Client(app)


def drawn(*shape: int, at: tuple[float, ...] = (0.3, 0.4)) -> np.ndarray:
    """A soft spot, as the page sends it: uint16."""
    points = Grid(shape).points().numpy()
    centre = np.array(at[: len(shape)])
    spot = np.exp(-((points - centre) ** 2).sum(-1) / 0.02)
    return np.rint(65535 * spot).astype("<u2")


def encoded(values: np.ndarray) -> str:
    return base64.b64encode(values.astype("<u2").tobytes()).decode()


def density(values: np.ndarray) -> Density:
    return Density(values.astype(np.float64), Grid(values.shape))


def parted(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of an answer, and the bytes behind it."""
    (length,) = struct.unpack("<I", content[:4])
    assert (4 + length) % 4 == 0
    return json.loads(content[4 : 4 + length]), content[4 + length :]


@pytest.fixture(name="drawn")
def _drawn() -> Callable[..., np.ndarray]:
    return drawn


@pytest.fixture(name="encoded")
def _encoded() -> Callable[[np.ndarray], str]:
    return encoded


@pytest.fixture(name="density")
def _density() -> Callable[[np.ndarray], Density]:
    return density


@pytest.fixture(name="parted")
def _parted() -> Callable[[bytes], tuple[dict[str, Any], bytes]]:
    return parted


@pytest.fixture
def ends() -> tuple[np.ndarray, np.ndarray]:
    """Two drawings on 16 × 16 cells."""
    return drawn(16, 16), drawn(16, 16, at=(0.7, 0.6))


@pytest.fixture
def question(ends) -> Callable[..., dict[str, Any]]:
    """A question, with changes."""

    def made(**changes: Any) -> dict[str, Any]:
        source, target = (encoded(end) for end in ends)
        usual = {
            **{"client": "page-1", "number": 1, "shape": [16, 16]},
            **{"source": source, "target": target},
            **{"solver": "midpoint", "epsilon": None, "frames": 5},
        }
        return usual | changes

    return made


@pytest.fixture
def refused(client) -> Callable[..., str]:
    """The sentence with which a request is refused, and nothing else comes back."""

    def call(method: str, path: str, status: int = 400, **how: Any) -> str:
        answer = client.request(method, path, **how)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/json"
        found = answer.json()
        assert list(found) == ["error"]
        return found["error"]

    return call
