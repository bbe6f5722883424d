"""The numbers of the page are those of the library."""

from __future__ import annotations

import numpy as np
import pytest

import geonet
from geonet._format import format_number
from geonet.app import routes as answers
from geonet.app.jobs import Solved
from geonet.app.requests import asked_from
from geonet.plotting.explore import particle_tracks, potential_values


@pytest.fixture
def path(ends, density):
    return geonet.geodesic(*map(density, ends), "midpoint", time_limit=5.0)


def floats(content, shape) -> tuple[np.ndarray, bytes]:
    size = 4 * int(np.prod(shape))
    return np.frombuffer(content[:size], "<f4").reshape(shape), content[size:]


# ---- /solve


def test_frames(client, question, parted, path):
    answer = client.post("/solve", json=question(frames=9))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    header, rest = parted(answer.content)
    times = np.linspace(0, 1, 9)
    frames = path.density(times).numpy()
    levels = np.frombuffer(rest, np.uint8).reshape(9, 16, 16)
    assert header["times"] == times.tolist() and header["shape"] == [16, 16]
    assert header["top"] == pytest.approx(frames.max()) and levels.max() == 255
    assert np.allclose(levels / 255 * header["top"], frames, atol=0.51 / 255 * frames.max())
    assert header["distance"] == float(path.distance)
    assert header["distance_text"] == format_number(float(path.distance))
    assert header["solver"] == "midpoint" and header["milliseconds"] > 0
    assert header["key"] == asked_from(question()).key
    assert set(header) == {
        *("key", "shape", "times", "top", "solver", "milliseconds", "distance", "distance_text"),
    }


@pytest.mark.parametrize("solver", ["auto", "transport-1d", "linear"])
def test_curves(client, question, parted, drawn, encoded, density, solver):
    ends = drawn(64), drawn(64, at=(0.8,))
    given = dict(zip(("source", "target"), map(encoded, ends), strict=True))
    answer = client.post("/solve", json=question(shape=[64], solver=solver, frames=2, **given))
    header, rest = parted(answer.content)
    frames = geonet.geodesic(*map(density, ends), solver).density([0.0, 1.0]).numpy()
    levels = np.frombuffer(rest, np.uint8).reshape(2, 64)
    assert np.allclose(levels / 255 * header["top"], frames, atol=0.51 / 255 * frames.max())


def test_a_solver_without_a_distance(client, question, parted):
    header, _ = parted(client.post("/solve", json=question(solver="linear")).content)
    assert header["distance"] is header["distance_text"] is None


def test_auto_says_who_answered(client, question, parted):
    header, _ = parted(client.post("/solve", json=question(solver="auto")).content)
    assert header["solver"] == "midpoint"


def test_what_falls_below_zero_is_dark(question, path, monkeypatch):
    values = np.array([[[-1.0, 2.0], [0.5, 4.0]]] * 2)
    levels = levels_of(question, path, monkeypatch, values)
    assert levels[-4:] == bytes([0, 128, 32, 255])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_no_answer_is_said_to_be_none(question, path, monkeypatch, bad):
    values = np.array([[[1.0, 2.0], [0.5, bad]]] * 2)
    with pytest.raises(geonet.errors.SolverError) as caught:
        levels_of(question, path, monkeypatch, values)
    assert str(caught.value) == "The solver 'midpoint' has no answer here; choose another one."


def levels_of(question, path, monkeypatch, values) -> bytes:
    frames = geonet.Density.as_computed(geonet.density.as_tensor(values), path.grid)
    monkeypatch.setattr(type(path), "density", lambda *_: frames)
    return answers.frames_answer(asked_from(question(frames=2)), Solved(path, 0.0))


def test_a_header_ends_at_a_word(parted):
    for length in range(8):
        content = answers.packed({"a": "x" * length}, np.arange(3, dtype=np.uint8))
        assert parted(content) == ({"a": "x" * length}, bytes([0, 1, 2]))


# ---- /report


def test_the_report(client, question, path):
    found = client.post("/report", json=question()).json()
    report = path.report
    assert found["distance"] == report.distance
    assert (found["lower"], found["upper"]) == (
        report.distance_lower_bound,
        report.distance_upper_bound,
    )
    assert found["error_estimate"] == report.error_estimate
    assert found["rows"] == [list(row) for row in report.rows()]
    assert found["headline"].endswith(", certified") and 0 <= found["tears"] < 0.005
    assert found["sentences"][0].startswith("On average, mass moves 0.4")
    assert set(found) == {
        *("key", "solver", "headline", "sentences", "rows", "distance", "lower", "upper"),
        *("error_estimate", "tears", "milliseconds"),
    }


def test_a_report_on_nothing_that_moves(client, question):
    found = client.post("/report", json=question(solver="linear")).json()
    assert found["distance"] is found["tears"] is found["error_estimate"] is None
    assert found["lower"] > 0


# ---- /overlays


def test_overlays(client, question, parted, path):
    answer = client.post("/overlays", json=question() | {"particles": 50})
    header, rest = parted(answer.content)
    assert header["times"] == np.linspace(0, 1, 9).tolist()
    assert header["potential_times"] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert header["particles"] == [9, 50, 2] and header["why"] == {}
    particles, rest = floats(rest, header["particles"])
    potential, rest = floats(rest, header["potential"])
    assert rest == b""
    assert np.allclose(particles, particle_tracks(path, 50), atol=1e-6)
    assert np.allclose(potential, potential_values(path), atol=1e-6)


def test_overlays_of_curves(client, question, parted, drawn, encoded):
    given = {"source": encoded(drawn(64)), "target": encoded(drawn(64, at=(0.8,)))}
    asked = question(shape=[64], solver="auto", particles=7, **given)
    header, rest = parted(client.post("/overlays", json=asked).content)
    assert header["particles"] == [9, 7, 1] and len(header["potential"]) == 2
    assert len(rest) == 4 * (9 * 7 + int(np.prod(header["potential"])))


@pytest.mark.parametrize(
    ("solver", "lacks"), [("linear", ["particles", "potential"]), ("back-and-forth", ["potential"])]
)
def test_what_a_solver_does_not_give(client, question, parted, solver, lacks):
    answer = client.post("/overlays", json=question(solver=solver, particles=5))
    header, rest = parted(answer.content)
    assert header["why"] == {
        name: f"The solver {solver!r} gives no {name}; choose another solver." for name in lacks
    }
    assert [name for name in ("particles", "potential") if header[name] is None] == lacks
    assert len(rest) == (0 if solver == "linear" else 4 * 9 * 5 * 2)


def test_overlays_need_a_number_of_particles(refused, question):
    sentence = "particles is None; give a whole number from 1 to 1000."
    assert refused("POST", "/overlays", json=question()) == sentence
    sentence = "The request has the unknown key 'particles'; leave it out."
    assert refused("POST", "/solve", json=question(particles=5)) == sentence
