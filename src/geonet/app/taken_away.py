"""Files that people take away from the page."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from geonet.app.asked import Asked
from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.plotting.explore import explore_html

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
