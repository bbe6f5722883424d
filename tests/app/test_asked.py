"""Questions are checked to the last key; every refusal says what to do."""

from __future__ import annotations

import json

import numpy as np
import pytest

from geonet.app.requests import asked_from, json_object, particles_in
from geonet.errors import InputError


def test_a_question(question, ends):
    asked = asked_from(question(number=7, frames=65))
    assert (asked.client, asked.number, asked.shape, asked.frames) == ("page-1", 7, (16, 16), 65)
    assert asked.solver.name == "midpoint" and asked.epsilon is None
    for end, values in zip((asked.source, asked.target), ends, strict=True):
        assert np.allclose(end.numpy(mass="given"), values, rtol=1e-12)


def test_a_question_about_curves(question, encoded, drawn):
    ends = {end: encoded(drawn(1024)) for end in ("source", "target")}
    asked = asked_from(question(shape=[1024], solver="schrodinger", epsilon=0.05, **ends))
    assert asked.source.grid.shape == (1024,) and asked.epsilon == 0.05


def test_the_key_is_that_of_the_path(question, encoded, drawn):
    key = asked_from(question()).key
    assert len(key) == 64
    assert asked_from(question(client="other", number=99, frames=9)).key == key
    other = (
        question(source=encoded(drawn(16, 16, at=(0.3, 0.41)))),
        question(solver="auto"),
        question(source=question()["target"], target=question()["source"]),
        question(solver="schrodinger"),
        question(solver="schrodinger", epsilon=0.002),
        question(solver="schrodinger", epsilon=0.003),
    )
    assert len({key, *(asked_from(each).key for each in other)}) == 1 + len(other)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"more": 1}, "The request has the unknown key 'more'; leave it out."),
        ({"client": ""}, "client is ''; give 1 to 64 letters, digits or hyphens."),
        ({"client": "a b"}, "client is 'a b'; give 1 to 64 letters, digits or hyphens."),
        ({"client": "é"}, "client is 'é'; give 1 to 64 letters, digits or hyphens."),
        ({"client": "a\n"}, r"client is 'a\n'; give 1 to 64 letters, digits or hyphens."),
        ({"client": 3}, "client is 3; give 1 to 64 letters, digits or hyphens."),
        ({"number": -1}, "number is -1; give a whole number from 0 to 9007199254740992."),
        ({"number": True}, "number is True; give a whole number from 0 to 9007199254740992."),
        ({"number": 1.0}, "number is 1.0; give a whole number from 0 to 9007199254740992."),
        ({"frames": 1}, "frames is 1; give a whole number from 2 to 65."),
        ({"frames": 66}, "frames is 66; give a whole number from 2 to 65."),
        ({"frames": True}, "frames is True; give a whole number from 2 to 65."),
        ({"frames": None}, "frames is None; give a whole number from 2 to 65."),
        ({"shape": 16}, "shape is 16; give [n] or [n, n]."),
        ({"shape": []}, "shape is []; give [n] or [n, n]."),
        ({"shape": [16, True]}, "shape is [16, True]; give [n] or [n, n]."),
        ({"shape": [16.0, 16.0]}, "shape is [16.0, 16.0]; give [n] or [n, n]."),
        ({"shape": [4, 4, 4]}, "shape is [4, 4, 4]; give [n] or [n, n]."),
        (
            {"shape": [1, 1]},
            "shape is [1, 1], too few cells to draw on; give at least 2 along each axis.",
        ),
        (
            {"shape": [-4, -4]},
            "shape is [-4, -4], too few cells to draw on; give at least 2 along each axis.",
        ),
        (
            {"shape": [257, 257]},
            "shape is [257, 257], too many cells for this page; give at most 256 along each axis.",
        ),
        (
            {"shape": [10**12]},
            "shape is [1000000000000], too many cells for this page; "
            "give at most 1024 along each axis.",
        ),
        (
            {"shape": [16, 8]},
            "shape is [16, 8], not a square; give as many rows as columns.",
        ),
        ({"source": "%%%"}, "The left drawing is not base64; reload the page."),
        ({"target": "é"}, "The right drawing is not base64; reload the page."),
        ({"target": 5}, "The right drawing is not base64; reload the page."),
        ({"source": None}, "The left drawing is not base64; reload the page."),
        (
            {"source": "AAAA"},
            "The left drawing has 3 bytes and its grid needs 512; give two bytes a cell.",
        ),
        (
            {"shape": [32, 32]},
            "The left drawing has 512 bytes and its grid needs 2048; give two bytes a cell.",
        ),
        (
            {"solver": "nothing"},
            "The page offers no solver 'nothing' in 2D; choose from auto, universal-2d, midpoint, "
            "transport-2d, geonet-2d, back-and-forth, schrodinger, linear.",
        ),
        (
            {"solver": None},
            "The page offers no solver None in 2D; choose from auto, universal-2d, midpoint, "
            "transport-2d, geonet-2d, back-and-forth, schrodinger, linear.",
        ),
        (
            {"solver": "quantile", "shape": [16]},
            "The page offers no solver 'quantile' in 1D; choose from auto, transport-1d, "
            "geonet-1d, schrodinger, linear.",
        ),
        (
            {"solver": "geonet-2d", "shape": [128, 128]},
            "The solver 'geonet-2d' is slow on so many cells; "
            "choose at most 64 along each axis, or another solver.",
        ),
        ({"epsilon": 0.01}, "The solver 'midpoint' takes no epsilon; give null."),
        (
            {"solver": "schrodinger", "epsilon": 0.0001},
            "epsilon is 0.0001; give a number from 0.0005 to 0.05.",
        ),
        (
            {"solver": "schrodinger", "epsilon": True},
            "epsilon is True; give a number from 0.0005 to 0.05.",
        ),
        (
            {"solver": "schrodinger", "epsilon": "0.01"},
            "epsilon is '0.01'; give a number from 0.0005 to 0.05.",
        ),
        (
            {"solver": "schrodinger", "epsilon": float("inf")},
            "epsilon is inf; give a number from 0.0005 to 0.05.",
        ),
    ],
)
def test_what_is_refused(question, refused, changes, sentence):
    with pytest.raises(InputError) as caught:
        asked_from(question(**changes))
    assert str(caught.value) == sentence
    if changes.get("epsilon") != float("inf"):  # which JSON cannot hold
        assert refused("POST", "/solve", json=question(**changes)) == sentence


@pytest.mark.parametrize(("end", "side"), [("source", "left"), ("target", "right")])
def test_an_empty_drawing(question, refused, encoded, end, side):
    empty = {end: encoded(np.zeros((16, 16)))}
    sentence = f"The {side} drawing is empty; draw something first."
    assert refused("POST", "/solve", json=question(**empty)) == sentence


def test_a_missing_key(question, refused):
    for key in question():
        given = question()
        del given[key]
        sentence = f"The request has no key {key!r}; reload the page."
        assert refused("POST", "/solve", json=given) == sentence


JSON = {"content-type": "application/json"}
NOT_JSON = "The request is not JSON; reload the page."


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", NOT_JSON),
        (b"{", NOT_JSON),
        (b"{'client': 1}", NOT_JSON),
        (b"\xff\xfe\xfa", NOT_JSON),
        (b"[" * 200_000, NOT_JSON),
        (b'{"number": ' + b"9" * 5000 + b"}", NOT_JSON),
        (b"[1, 2]", "The request is [1, 2]; give a JSON object."),
        (b"null", "The request is None; give a JSON object."),
        (b'"text"', "The request is 'text'; give a JSON object."),
        (
            b'{"epsilon": NaN}',
            "The request holds NaN, which is no number; give finite numbers.",
        ),
        (
            b'{"epsilon": -Infinity}',
            "The request holds -Infinity, which is no number; give finite numbers.",
        ),
    ],
)
def test_what_is_not_a_json_object(refused, body, sentence):
    assert refused("POST", "/solve", content=body, headers=JSON) == sentence
    with pytest.raises(InputError):
        json_object(body)


def test_a_number_beyond_all_numbers(question, refused):
    """1e999 is JSON, and infinite in Python."""
    text = json.dumps(question(solver="schrodinger", epsilon=0.01)).replace("0.01", "1e999")
    sentence = "epsilon is inf; give a number from 0.0005 to 0.05."
    assert refused("POST", "/solve", content=text.encode(), headers=JSON) == sentence


def test_half_of_a_character(question, refused):
    """JSON can hold half of a pair of UTF-16, which UTF-8 cannot."""
    text = json.dumps(question(solver="\ud800")).encode()
    assert r"no solver '\ud800' in 2D" in refused("POST", "/solve", content=text, headers=JSON)


@pytest.mark.parametrize("count", [0, 1001, True, 2.5, None, "200"])
def test_particles(count):
    with pytest.raises(InputError, match="^particles is .*; give a whole number from 1 to 1000.$"):
        particles_in({"particles": count})


def test_particles_are_taken_out():
    given = {"particles": 200, "client": "a"}
    assert particles_in(given) == 200 and given == {"client": "a"}
