"""Example densities: valid drawings, deterministic, the same on all grids."""

from __future__ import annotations

import base64
from collections import Counter

import numpy as np
import pytest

from geonet.app.gallery import SHAPES, build_gallery, draw_shape


def decode(entry, shape):
    return np.frombuffer(base64.b64decode(entry["values"]), "<u2").reshape(shape)


@pytest.mark.parametrize(("dimension", "cells"), [(1, 2), (1, 256), (1, 1024), (2, 2), (2, 33)])
def test_entries_are_drawings(dimension, cells):
    entries = build_gallery(dimension, cells)
    for entry in entries:
        assert set(entry) == {"name", "label", "group", "values"}
        assert decode(entry, (cells,) * dimension).max() == 65535
    assert len({entry["name"] for entry in entries}) == len(entries)


def test_all_groups_are_present_and_all_drawings_differ():
    groups = Counter(entry["group"] for entry in build_gallery(2, 32))
    assert groups == {"Mixtures": 6, "Shapes": 9, "Digits": 6, "Textures": 4}
    drawings = [entry["values"] for entry in build_gallery(2, 32)]
    assert len(set(drawings)) == len(drawings)


def test_the_first_drawings_of_the_page_exist():
    assert {"moons", "heart"} <= {entry["name"] for entry in build_gallery(2, 32)}
    assert {"two-lumps", "triangle"} <= {entry["name"] for entry in build_gallery(1, 32)}


@pytest.mark.parametrize("dimension", [1, 2])
def test_the_gallery_is_deterministic(dimension):
    first = build_gallery(dimension, 48)
    build_gallery.cache_clear()
    assert build_gallery(dimension, 48) == first


@pytest.mark.parametrize("dimension", [1, 2])
def test_coarse_drawings_are_averages_of_fine_ones(dimension):
    galleries = build_gallery(dimension, 32), build_gallery(dimension, 64)
    for coarse, fine in zip(*galleries, strict=True):
        first = decode(coarse, (32,) * dimension).astype(float)
        second = decode(fine, (32, 2) * dimension).astype(float)
        second = second.mean(axis=tuple(range(1, 2 * dimension, 2)))
        assert abs(first / first.sum() - second / second.sum()).sum() < 0.1, coarse["name"]


def test_areas_of_shapes():
    area = {name: draw_shape(distance, 64).mean() for name, (_, distance) in SHAPES.items()}
    assert area["disc"] == pytest.approx(np.pi * 0.25**2, rel=0.02)
    assert area["ring"] == pytest.approx(np.pi * (0.36**2 - 0.24**2), rel=0.02)
    assert area["square"] == pytest.approx(0.25, rel=0.02)
    assert area["star"] == pytest.approx(5 * 0.42 * 0.17 * np.sin(np.pi / 5), rel=0.02)


def test_row_0_is_at_the_top():
    letter = draw_shape(SHAPES["letter-t"][1], 32)
    assert letter[:16].sum() > letter[16:].sum()
    assert np.allclose(letter, letter[:, ::-1])


def test_the_route(client):
    assert client.get("/gallery/1/64").json() == build_gallery(1, 64)
    assert "give 1 or 2" in client.error("GET", "/gallery/3/64")
    assert "give 2 to 256 in 2D" in client.error("GET", "/gallery/2/257")
