"""Dropped files become drawings, or one sentence."""

from __future__ import annotations

import base64
import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from geonet.app import requests as module
from geonet.app.requests import SUFFIXES, fitted, read_dropped
from geonet.errors import FileError

BINARY = {"content-type": "application/octet-stream"}


def npy(array, **how) -> bytes:
    content = io.BytesIO()
    np.save(content, array, **how)
    return content.getvalue()


def npz(**arrays) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def picture(values, kind="png") -> bytes:
    content = io.BytesIO()
    Image.fromarray(values).save(content, kind)
    return content.getvalue()


def values(answer, shape) -> np.ndarray:
    return np.frombuffer(base64.b64decode(answer["values"]), "<u2").reshape(shape)


def spot(rows, columns) -> np.ndarray:
    y, x = np.mgrid[0:rows, 0:columns]
    near = np.exp(-((x - columns / 3) ** 2 + (y - rows / 4) ** 2) / (rows + columns))
    return (255 * near).astype(np.uint8)


def test_as_it_is(client):
    path = "/read?name=spot.png&dimension=2&cells=32"
    answer = client.post(path, content=picture(spot(32, 32)), headers=BINARY)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["label"], found["changed"]) == ("spot.png", [])
    drawn = spot(32, 32).astype(float)
    assert np.allclose(values(found, (32, 32)), drawn * 65535 / drawn.max(), atol=0.51)


@pytest.mark.parametrize("suffix", [s for s in SUFFIXES if s not in (".npy", ".npz", ".csv")])
def test_every_kind_of_picture(suffix):
    kind = {".jpg": "jpeg", ".tif": "tiff"}.get(suffix, suffix[1:])
    answer = read_dropped(picture(spot(16, 16), kind), f"a{suffix.upper()}", 2, 16)
    found = values(answer, (16, 16))
    assert np.corrcoef(found.ravel(), spot(16, 16).ravel())[0, 1] > 0.98


def test_proportions_are_kept():
    """A picture that is wide has its mass in the rows of the middle."""
    answer = read_dropped(picture(np.full((300, 512), 200, np.uint8)), "wide.png", 2, 64)
    assert answer["changed"] == [
        "Resampled from 512×300 to 64×64.",
        "Its proportions are kept, with empty margins above and below.",
    ]
    found = values(answer, (64, 64))
    assert (found[13:51] == 65535).all() and found[:13].max() == found[51:].max() == 0


def test_a_tall_one():
    answer = read_dropped(npy(np.ones((64, 16))), "tall.npy", 2, 64)
    assert answer["changed"] == [
        "Resampled from 16×64 to 64×64.",
        "Its proportions are kept, with empty margins left and right.",
    ]
    assert values(answer, (64, 64)).any(axis=0).nonzero()[0].tolist() == list(range(24, 40))


def test_the_box_decides_on_proportions():
    answer = read_dropped(
        npz(values=np.ones((32, 32)), lower=np.zeros(2), upper=np.array([1, 2])), "a.npz", 2, 32
    )
    assert values(answer, (32, 32)).any(axis=1).sum() == 16


def test_mass_is_kept(density):
    array = np.random.default_rng(1).random((50, 30))
    found, _ = fitted(density(array), 64)
    assert found.shape == (64, 64) and found.mean() == pytest.approx(1)
    assert found[:32].sum() / found.sum() == pytest.approx(array[:25].sum() / array.sum())


@pytest.mark.parametrize("cells", [16, 64, 100])
def test_places_are_kept(cells):
    answer = read_dropped(picture(spot(100, 100)), "a.png", 2, cells)
    found = values(answer, (cells, cells)).astype(float)
    for axis, expected in ((0, 0.25), (1, 1 / 3)):
        line = found.sum(1 - axis)
        mean = (line * (np.arange(cells) + 0.5)).sum() / line.sum() / cells
        assert mean == pytest.approx(expected, abs=0.02)


def test_a_curve(client):
    answer = client.post(
        "/read?name=c.csv&dimension=1&cells=8", content=b"1,2,3,4", headers=BINARY
    ).json()
    assert answer["changed"] == ["Resampled from 4 cells to 8 cells."]
    assert values(answer, (8,)).tolist() == [16384, 16384, 32768, 32768, 49151, 49151, 65535, 65535]


def test_values_in_two_columns():
    """A table that may be points is values, since a page has nothing else."""
    answer = read_dropped(b"1,0\n0,1\n1,1\n", "t.csv", 2, 3)
    assert values(answer, (3, 3))[:, 0].tolist() == [65535, 0, 65535]


@pytest.mark.parametrize(
    ("content", "name", "dimension", "sentence"),
    [
        (
            npy(np.array([[1.0, -1.0], [1.0, 1.0]])),
            "minus.npy",
            2,
            "minus.npy does not hold a density: 1 of 4 values are negative; clip them at zero if "
            "they are noise, or give nodata, the value of cells without data.",
        ),
        (
            npy(np.array([[1.0, np.nan], [1.0, 1.0]])),
            "nan.npy",
            2,
            "nan.npy does not hold a density: 1 of 4 values are NaN; fill them, or give "
            'nodata=float("nan") to count them as empty.',
        ),
        (
            npy(np.zeros((4, 4))),
            "empty.npy",
            2,
            "empty.npy does not hold a density: The density is zero everywhere, so there is no "
            "mass to transport; give at least one positive value.",
        ),
        (npy(np.ones(8)), "c.npy", 2, "c.npy holds a curve; drop a picture here."),
        (picture(spot(8, 8)), "p.png", 1, "p.png holds a picture; drop a curve here."),
        (npy(np.ones((4, 4, 4))), "v.npy", 2, "v.npy holds a volume; drop a picture here."),
        (
            b"x,y\n0.1,0.2\n",
            "cloud.csv",
            2,
            "cloud.csv holds points; count them on a grid, and drop a table of values.",
        ),
        (
            npy(np.array([{}], dtype=object), allow_pickle=True),
            "p.npy",
            2,
            "p.npy holds pickled objects, which are never loaded because they can run code; "
            "save it as an array of numbers with numpy.save.",
        ),
        (b"", "nothing.npy", 2, "nothing.npy is empty; write it again."),
        (
            b"no picture",
            "text.png",
            2,
            "Cannot read text.png as an image: no known format; check that it is whole and "
            "readable.",
        ),
        (
            picture(np.ones((1, 1), np.uint8)),
            "one.png",
            2,
            "one.png is 1×1 pixels; a density needs at least 2 pixels along each side.",
        ),
    ],
)
def test_what_is_refused(client, content, name, dimension, sentence):
    answer = client.post(
        f"/read?name={name}&dimension={dimension}&cells=16", content=content, headers=BINARY
    )
    assert (answer.status_code, answer.json()) == (400, {"error": sentence})


@pytest.mark.parametrize("name", ["a.exe", "a", "", "a.npy.sh", "a.eps", "a.pgm", ".npy"])
def test_other_suffixes(name):
    with pytest.raises(FileError, match="cannot be read here; drop one of .png, .jpg, "):
        read_dropped(b"x", name, 2, 16)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("../../etc/a.npy", "a.npy"),
        ("/etc/a.npy", "a.npy"),
        (r"C:\things\a.npy", "a.npy"),
        ("a\n\x00b.npy", "a??b.npy"),
        ("<b>.npy", "<b>.npy"),
        ("x" * 500 + ".npy", "…" + "x" * 76 + ".npy"),
    ],
)
def test_a_name_is_a_label_and_no_path(name, label, tmp_path, monkeypatch):
    """Nothing is written but in a folder of its own, which is gone afterwards."""
    monkeypatch.setattr(module.TemporaryDirectory, "__init__", in_folder(tmp_path))
    assert read_dropped(npy(np.ones((4, 4))), name, 2, 16)["label"] == label
    assert list(tmp_path.iterdir()) == []


def in_folder(folder):
    """The constructor of temporary folders, inside another one."""
    usual = module.TemporaryDirectory.__init__

    def made(self, prefix):
        usual(self, prefix=prefix, dir=folder)

    return made


# ---- small files that become large


def test_a_huge_picture():
    content = io.BytesIO()
    Image.new("1", (5000, 5000)).save(content, "png")
    with pytest.raises(FileError, match="^big.png has 5000×5000 pixels; drop a smaller one.$"):
        read_dropped(content.getvalue(), "big.png", 2, 16)


def test_a_bomb():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("values.npy", b"\0" * (2**27 + 2**20))
    with pytest.raises(FileError, match="^b.npz holds 129 MiB when unpacked; drop a smaller one.$"):
        read_dropped(content.getvalue(), "b.npz", 2, 16)


def test_many_values():
    content = npy(np.ones(2**24 + 1, np.uint8))
    with pytest.raises(FileError, match="^m.npy holds 16777217 values; drop one of fewer.$"):
        read_dropped(content, "m.npy", 1, 16)


def test_a_long_text():
    content = b"1," * 2**22 + b"1"
    with pytest.raises(FileError, match="^t.csv is larger than 8 MiB; save its values as .npy.$"):
        read_dropped(content, "t.csv", 1, 16)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("name=a.npy&cells=16", "dimension is ''; give a whole number."),
        ("name=a.npy&dimension=2", "cells is ''; give a whole number."),
        ("name=a.npy&dimension=3&cells=16", "dimension is 3; give 1 or 2."),
        ("name=a.npy&dimension=2&cells=100000", "cells is '100000'; give a whole number."),
        ("name=a.npy&dimension=2&cells=1000", "cells is 1000; give 2 to 256 in 2D."),
    ],
)
def test_a_wrong_query(refused, query, sentence):
    found = refused("POST", f"/read?{query}", content=npy(np.ones((4, 4))), headers=BINARY)
    assert found == sentence
