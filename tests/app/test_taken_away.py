"""What is taken away is what the library writes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.app.routes import EXPORTS

NAMES = {
    **{kind: f"geonet-morph.{kind}" for kind in ("gif", "png", "npz", "html")},
    **{end: f"geonet-{end}.npy" for end in ("source", "target")},
}


@pytest.fixture
def exported(client, question):
    def call(kind, **changes) -> bytes:
        answer = client.post(f"/export/{kind}", json=question(**changes))
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-disposition"] == f'attachment; filename="{NAMES[kind]}"'
        return answer.content

    return call


def test_every_kind_has_its_name():
    assert {kind: export.name for kind, export in EXPORTS.items()} == NAMES


def test_an_animation(exported):
    with Image.open(io.BytesIO(exported("gif", frames=6))) as image:
        assert image.format == "GIF" and image.n_frames == 10  # there and back


def test_a_picture(exported):
    with Image.open(io.BytesIO(exported("png"))) as image:
        assert image.format == "PNG" and min(image.size) > 100


def test_a_path(exported, tmp_path, ends, density):
    file = tmp_path / "a.npz"
    file.write_bytes(exported("npz", frames=7))
    path = geonet.load(file)
    direct = geonet.geodesic(*map(density, ends), "midpoint", time_limit=5.0)
    assert float(path.distance) == float(direct.distance)
    with np.load(file) as arrays:
        assert np.allclose(arrays["times"], np.linspace(0, 1, 7))


def test_a_page(exported):
    text = exported("html").decode()
    assert text.startswith("<!doctype html>") and "<script" in text


def test_the_ends(exported, ends):
    for kind, end in zip(("source", "target"), ends, strict=True):
        found = np.load(io.BytesIO(exported(kind)))
        assert found.dtype == np.float64 and np.array_equal(found, end)


def test_curves(exported, drawn, encoded):
    ends = {end: encoded(drawn(32)) for end in ("source", "target")}
    for kind in NAMES:
        assert exported(kind, shape=[32], solver="auto", **ends)


def test_ends_are_not_solved(exported, solving):
    exported("source")
    assert len(solving.paths) == 0


def test_another_kind(refused, question):
    sentence = "There is nothing at '/export/mp4'; open the page at '/'."
    assert refused("POST", "/export/mp4", 404, json=question()) == sentence


def test_an_older_number_is_exported(client, exported, question):
    """The button exports what is on the screen, whatever is drawn meanwhile."""
    assert client.post("/solve", json=question(number=9)).status_code == 200
    assert exported("source", number=3)
