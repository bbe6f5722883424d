"""Densities to start from: many, all different, on any cells, the same every time."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from geonet.app.gallery import SHAPES, filled, gallery


def values(entry, shape):
    return np.frombuffer(base64.b64decode(entry["values"]), "<u2").reshape(shape)


@pytest.mark.parametrize(("dimension", "cells"), [(1, 2), (1, 256), (1, 1024), (2, 2), (2, 33)])
def test_entries_are_drawings(dimension, cells):
    entries = gallery(dimension, cells)
    for entry in entries:
        assert set(entry) == {"name", "label", "group", "values"}
        assert values(entry, (cells,) * dimension).max() == 65535
    assert len({entry["name"] for entry in entries}) == len(entries)


def test_groups():
    counts: dict[str, int] = {}
    for entry in gallery(2, 32):
        counts[entry["group"]] = counts.get(entry["group"], 0) + 1
    assert counts == {"Mixtures": 6, "Shapes": 9, "Digits": 6, "Textures": 4}
    assert len(gallery(1, 128)) == 8


def test_what_the_page_starts_with():
    assert {"disc", "heart"} <= {entry["name"] for entry in gallery(2, 32)}
    assert {"two-lumps", "one-lump"} <= {entry["name"] for entry in gallery(1, 32)}


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_same_every_time(dimension):
    first = gallery(dimension, 48)
    gallery.cache_clear()
    assert gallery(dimension, 48) == first


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_same_on_all_cells(dimension):
    """Coarse drawings are fine ones, averaged."""
    for coarse, fine in zip(gallery(dimension, 32), gallery(dimension, 64), strict=True):
        first = values(coarse, (32,) * dimension).astype(float)
        second = values(fine, (32, 2) * dimension).astype(float)
        second = second.mean(axis=tuple(range(1, 2 * dimension, 2)))
        first, second = first / first.sum(), second / second.sum()
        assert abs(first - second).sum() < 0.1, coarse["name"]


def test_all_differ():
    drawings = [entry["values"] for entry in gallery(2, 32)]
    assert len(set(drawings)) == len(drawings)


def test_areas_of_shapes():
    area = {name: filled(inside, 64).mean() for name, (_, inside) in SHAPES.items()}
    assert area["disc"] == pytest.approx(np.pi * 0.25**2, rel=0.01)
    assert area["ring"] == pytest.approx(np.pi * (0.36**2 - 0.24**2), rel=0.01)
    assert area["square"] == pytest.approx(0.25, rel=0.01)
    star = 5 * 0.42 * 0.17 * np.sin(np.pi / 5)  # ten triangles
    assert area["star"] == pytest.approx(star, rel=0.01)


def test_up_is_up():
    """The bar of a T is at the top, and row 0 too."""
    letter = filled(SHAPES["letter-t"][1], 32)
    assert letter[:16].sum() > letter[16:].sum()
    assert np.allclose(letter, letter[:, ::-1])


def test_the_route(client):
    answer = client.get("/gallery/1/64")
    assert answer.status_code == 200 and answer.json() == {"densities": gallery(1, 64)}


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/gallery/3/64", "dimension is 3; give 1 or 2."),
        ("/gallery/0/64", "dimension is 0; give 1 or 2."),
        ("/gallery/2/1", "cells is 1; give 2 to 256 in 2D."),
        ("/gallery/2/257", "cells is 257; give 2 to 256 in 2D."),
        ("/gallery/1/1025", "cells is 1025; give 2 to 1024 in 1D."),
        ("/gallery/2/sixty", "cells is 'sixty'; give a whole number."),
        ("/gallery/2/-64", "cells is '-64'; give a whole number."),
        ("/gallery/2/6.4", "cells is '6.4'; give a whole number."),
        ("/gallery/2/٦٤", "cells is '٦٤'; give a whole number."),
        (f"/gallery/2/{'9' * 5000}", f"cells is '{'9' * 59}…; give a whole number."),
    ],
)
def test_what_is_refused(refused, path, sentence):
    assert refused("GET", path) == sentence
