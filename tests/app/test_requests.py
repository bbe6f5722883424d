"""Requests are checked completely; uploads and examples become drawings."""

import base64
import io
import json
import zipfile
from collections import Counter

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.app import requests as module
from geonet.app.gallery import SHAPES, build_gallery, draw_shape
from geonet.app.requests import (
    LIMITS,
    list_solvers,
    page_settings,
    parse_request,
    read_upload,
)
from geonet.errors import FileError, InputError, SolverError

from .conftest import draw_spot, encode

CHOICES = [(d, name) for d in (1, 2) for name in list_solvers(d)]


def parse(body):
    return parse_request(json.dumps(body).encode())


# ---- solver menu


@pytest.mark.parametrize(("dimension", "name"), CHOICES)
def test_every_solver_of_the_menu_works(cache, make_body, dimension, name):
    shape = (32,) * dimension
    epsilon = list_solvers(dimension)[name].menu.epsilon
    body = make_body(
        shape=list(shape),
        solver=name,
        epsilon=epsilon and epsilon[0],
        densities=[encode(draw_spot(*shape, at=at)) for at in ((0.3, 0.4), (0.6, 0.55))],
    )
    path = cache.solve(parse(body)).result
    assert np.isfinite(path.density(0.5).numpy()).all()


def test_solvers_with_a_reach_take_it(make_body, make_1d_body):
    for dimension, make in ((1, make_1d_body), (2, make_body)):
        entries = page_settings()["solvers"][dimension]
        for entry in entries:
            body = make(solver=entry["name"], reach=0.3, growth="wfr")
            if entry["reach"]:
                assert parse(body).options == {"time_limit": 5.0, "reach": 0.3, "growth": "wfr"}
            else:
                with pytest.raises(SolverError, match=r"has no reach; give null or choose auto"):
                    parse(body)
        assert {entry["reach"] for entry in entries} == {True, False}


def test_settings_of_the_page():
    settings = page_settings()
    assert settings["version"] == geonet.__version__
    assert len(base64.b64decode(settings["colours"])) == 3 * 256
    for dimension in (1, 2):
        cells = settings["cells"][dimension]
        assert settings["default_cells"][dimension] in cells
        assert max(cells) <= LIMITS.max_cells[dimension]
        assert settings["solvers"][dimension][0]["name"] == "auto"  # the default


# ---- JSON


def test_the_key_identifies_the_result(make_body, make_barycenter_body):
    key = parse(make_body()).key
    assert parse(make_body(client="other", number=99, frames=9)).key == key
    others = (
        make_body(densities=[encode(draw_spot(16, 16, at=(0.3, y))) for y in (0.4, 0.41)]),
        make_body(solver="auto"),
        make_body(densities=make_body()["densities"][::-1]),
        make_body(reach=0.2, growth="wfr"),
        make_body(reach=0.2, growth="hellinger"),
        make_body(reach=0.3, growth="hellinger"),
        make_barycenter_body(0.2, 0.3, 0.5),
        make_barycenter_body(0.2, 0.5, 0.3),
        make_barycenter_body(0.2, 0.5, 0.3, reach=0.2),
        make_body(solver="schrodinger"),
        make_body(solver="schrodinger", epsilon=0.002),
        make_body(solver="schrodinger", epsilon=0.003),
    )
    assert len({key, *(parse(body).key for body in others)}) == 1 + len(others)


INK, BLANK = encode(np.ones((16, 16))), encode(np.zeros((16, 16)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": 1}, "is not an object with the keys"),
        ({"client": "a b"}, "client is 'a b'"),
        ({"number": -1}, "number is -1"),
        ({"number": True}, "number is True"),
        ({"frames": 66}, "frames is 66; give an integer from 2 to 65"),
        ({"shape": 16}, r"give \[n\] or \[n, n\]"),
        ({"shape": [16, 8]}, r"give \[n\] or \[n, n\]"),
        ({"shape": [16.0, 16.0]}, "cells is 16.0; give 2 to 256 in 2D"),
        ({"shape": [257, 257]}, "cells is 257;"),
        ({"shape": [10**12]}, "give 2 to 1024 in 1D"),
        ({"densities": ["%%%", BLANK]}, "drawing of the source is not base64"),
        ({"densities": ["AAAA", BLANK]}, "of the source has 3 bytes and its grid needs 512"),
        ({"densities": [INK, BLANK]}, "drawing of the target is empty"),
        ({"densities": INK}, "densities is .*; send a list of 2 to 4"),
        ({"densities": [INK]}, "densities is 1; send a list of 2 to 4"),
        ({"densities": [INK] * 5}, "densities is 5; send a list of 2 to 4"),
        ({"weights": [0.5, 0.5]}, "a path, which has no weights; give null"),
        ({"solver": None}, "solver is None; choose one of"),
        ({"reach": 0.01, "growth": "wfr"}, "reach is 0.01; give a number from 0.05 to 1, or null"),
        ({"reach": -1, "growth": "wfr"}, "reach is -1"),
        ({"reach": True, "growth": "wfr"}, "reach is True"),
        ({"reach": 0.2}, "growth is None; give hellinger or wfr"),
        ({"reach": 0.2, "growth": ["wfr"]}, "growth is "),
        ({"growth": "wfr"}, "growth is 'wfr' without a reach"),
        ({"reach": 0.2, "growth": "wfr", "solver": "linear"}, "'linear' has no reach"),
        ({"solver": "nothing"}, "solver is 'nothing'; choose one of"),
        ({"solver": "\ud800"}, r"solver is '\\ud800'"),  # half of a surrogate pair
        ({"solver": "quantile", "shape": [16]}, "solver is 'quantile'"),
        ({"solver": "geonet-2d", "shape": [128, 128]}, "choose at most 64 cells"),
        ({"epsilon": 0.01}, "'midpoint' has no epsilon"),
        ({"solver": "schrodinger", "epsilon": 0.0001}, "epsilon is 0.0001; give a number from"),
        ({"solver": "schrodinger", "epsilon": float("inf")}, "finite numbers"),
    ],
)
def test_bad_requests_raise(make_body, changes, message):
    with pytest.raises(InputError, match=message):
        parse(make_body(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": None}, "weights is None; give 3 numbers"),
        ({"weights": [0.5, 0.5, "0"]}, "weights is .*; give 3 numbers"),
        ({"weights": [0.5, 0.5]}, "give 3 numbers"),
        ({"weights": [0.5, 0.6, -0.1]}, "A weight is negative"),
        ({"weights": [0.5, 0.4, 0.2]}, "Weights sum to 1.1, not to one"),
        ({"weights": [0.5, 0.5, float("nan")]}, "contains NaN"),
        ({"densities": [INK, INK, BLANK]}, "drawing of the density 3 is empty"),
        ({"solver": "auto"}, "solver is 'auto'; barycenters have none"),
        ({"epsilon": 0.01}, "epsilon is 0.01; barycenters have none"),
        ({"growth": "wfr", "reach": 0.2}, "growth is 'wfr'; barycenters have none"),
        ({"reach": 9.0}, "reach is 9.0; give a number from 0.05 to 1, or null"),
    ],
)
def test_bad_requests_for_a_barycenter_raise(make_barycenter_body, changes, message):
    with pytest.raises(InputError, match=message):
        parse(make_barycenter_body(0.2, 0.3, 0.5, **changes))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe\xfa", b"[" * 200_000, b'{"number": ' + b"9" * 5000 + b"}", b"null"],
)
def test_bodies_other_than_json_objects_raise(body):
    with pytest.raises(InputError, match="The request is not"):
        parse_request(body)


# ---- uploads


def to_npy(array, **options) -> bytes:
    content = io.BytesIO()
    np.save(content, array, **options)
    return content.getvalue()


def to_image(values, format="png") -> bytes:
    content = io.BytesIO()
    Image.fromarray(values).save(content, format)
    return content.getvalue()


def decode(upload, shape) -> np.ndarray:
    return np.frombuffer(base64.b64decode(upload["values"]), "<u2").reshape(shape)


def paint_spot(rows, columns) -> np.ndarray:
    y, x = np.mgrid[0:rows, 0:columns]
    spot = np.exp(-((x - columns / 3) ** 2 + (y - rows / 4) ** 2) / (rows + columns))
    return (255 * spot).astype(np.uint8)


@pytest.mark.parametrize("suffix", ["png", "JPG", "tif", "webp"])
def test_images_are_read(suffix):
    format = {"jpg": "jpeg", "tif": "tiff"}.get(suffix.lower(), suffix)
    upload = read_upload(to_image(paint_spot(16, 16), format), f"a.{suffix}", 2, 16)
    values = decode(upload, (16, 16))
    assert np.corrcoef(values.ravel(), paint_spot(16, 16).ravel())[0, 1] > 0.98
    assert upload["notes"] == []


def test_wide_and_tall_files_get_margins():
    upload = read_upload(to_image(np.full((300, 512), 200, np.uint8)), "wide.png", 2, 64)
    assert upload["notes"] == [
        "Resampled from 512×300 to 64×64.",
        "Empty margins above and below keep its proportions.",
    ]
    values = decode(upload, (64, 64))
    assert (values[13:51] == 65535).all() and values[:13].max() == values[51:].max() == 0
    upload = read_upload(to_npy(np.ones((64, 16))), "tall.npy", 2, 64)
    assert "left and right" in upload["notes"][1]
    assert decode(upload, (64, 64)).any(axis=0).nonzero()[0].tolist() == list(range(24, 40))


def test_tables_are_values():
    upload = read_upload(b"1,2,3,4", "c.csv", 1, 8)
    assert upload["notes"] == ["Resampled from 4 cells to 8 cells."]
    expected = [16384, 16384, 32768, 32768, 49151, 49151, 65535, 65535]
    assert decode(upload, (8,)).tolist() == expected
    upload = read_upload(b"1,0\n0,1\n1,1\n", "t.csv", 2, 3)  # could also be points
    assert decode(upload, (3, 3))[:, 0].tolist() == [65535, 0, 65535]


@pytest.mark.parametrize(
    ("content", "name", "dimension", "message"),
    [
        (to_npy(np.array([[1.0, np.nan], [1.0, 1.0]])), "nan.npy", 2, "^nan.npy .* NaN"),
        (to_npy(np.ones(8)), "c.npy", 2, "contains a curve; open an image here"),
        (to_image(paint_spot(8, 8)), "p.png", 1, "contains an image; open a curve here"),
        (to_npy(np.ones((4, 4, 4))), "v.npy", 2, "contains a volume"),
        (b"x,y\n0.1,0.2\n", "cloud.csv", 2, "^cloud.csv contains points"),
        (to_npy(np.array([{}], dtype=object), allow_pickle=True), "p.npy", 2, "pickled"),
        (b"", "nothing.npy", 2, "^nothing.npy is empty"),
        (b"no picture", "text.png", 2, "text.png as an image"),
        (to_npy(np.ones(2**24 + 1, np.uint8)), "m.npy", 1, "contains 16777217 values"),
        (b"1," * 2**22 + b"1", "t.csv", 1, "^t.csv is larger than 8 MiB"),
        (b"x", "a.exe", 2, "^a.exe has an unknown format"),
        (b"x", "../a\n\x00b.sh", 2, r"^a\?\?b.sh has"),
        (b"x", "x" * 500 + ".eps", 2, "^…x{76}.eps has"),
    ],
)
def test_bad_uploads_raise(content, name, dimension, message):
    with pytest.raises(FileError, match=message):
        read_upload(content, name, dimension, 16)


def test_files_that_unpack_to_much_more_raise():
    content = io.BytesIO()
    Image.new("1", (5000, 5000)).save(content, "png")
    with pytest.raises(FileError, match="^big.png has 5000×5000 pixels"):
        read_upload(content.getvalue(), "big.png", 2, 16)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("values.npy", b"\0" * (2**27 + 2**20))
    with pytest.raises(FileError, match="^b.npz has 129 MiB when unpacked"):
        read_upload(content.getvalue(), "b.npz", 2, 16)


@pytest.mark.parametrize("name", ["../../a.npy", "/etc/a.npy", r"C:\things\a.npy", "<b>.npy"])
def test_the_name_of_an_upload_is_no_path(name, tmp_path, monkeypatch):
    """The only file is in a temporary folder, which is deleted."""
    create = module.TemporaryDirectory.__init__
    monkeypatch.setattr(
        module.TemporaryDirectory,
        "__init__",
        lambda self, prefix: create(self, prefix=prefix, dir=tmp_path),
    )
    assert read_upload(to_npy(np.ones((4, 4))), name, 2, 16)["notes"]
    assert list(tmp_path.iterdir()) == []


# ---- gallery


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


def test_areas_of_shapes():
    area = {name: draw_shape(distance, 64).mean() for name, (_, distance) in SHAPES.items()}
    assert area["disc"] == pytest.approx(np.pi * 0.25**2, rel=0.02)
    assert area["ring"] == pytest.approx(np.pi * (0.36**2 - 0.24**2), rel=0.02)
    assert area["square"] == pytest.approx(0.25, rel=0.02)
    assert area["star"] == pytest.approx(5 * 0.42 * 0.17 * np.sin(np.pi / 5), rel=0.02)


def test_the_route(client):
    assert client.get("/gallery/1/64").json() == build_gallery(1, 64)
    assert "give 1 or 2" in client.error("GET", "/gallery/3/64")
    assert "give 2 to 256 in 2D" in client.error("GET", "/gallery/2/257")
