"""All routes: static files, results that equal the library's, errors and security."""

import asyncio
import io
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet._format import format_number
from geonet.app import jobs
from geonet.app.jobs import Solved
from geonet.app.requests import page_settings, parse_request
from geonet.app.routes import DOWNLOADS, SecurityHeadersMiddleware, encode_result
from geonet.errors import ConvergenceError, SolverError, UnavailableError
from geonet.plotting.explore import compute_overlays

from .conftest import draw_spot, encode, to_density, unpack

TIMEOUT = 60  # seconds, for busy machines
BINARY = {"content-type": "application/octet-stream"}
JSON = {"content-type": "application/json"}
FILES = {
    f"/{folder}/{file.name}": file
    for folder in ("app/static", "plotting/viewer")
    for file in files("geonet").joinpath(folder).iterdir()
}


@pytest.fixture
def path(ends):
    return geonet.geodesic(*map(to_density, ends), "midpoint", time_limit=5.0)


# ---- static files


def test_the_page_contains_the_settings(client):
    response = client.get("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    source = FILES["/app/static/index.html"].read_text(encoding="utf-8")
    before, after = source.split("__SETTINGS__")
    assert response.text.startswith(before) and response.text.endswith(after)
    settings = response.text[len(before) : -len(after)]
    assert json.loads(settings) == json.loads(json.dumps(page_settings())) and "<" not in settings


def test_static_files_are_served(client):
    types = {
        "js": "text/javascript",
        "css": "text/css",
        "svg": "image/svg+xml",
        "html": "text/html",
    }
    for path, file in FILES.items():
        response = client.get(path)
        assert response.status_code == 200 and response.content == file.read_bytes()
        assert response.headers["content-type"].partition(";")[0] == types[path.rpartition(".")[2]]
    for path in re.findall(r'(?:src|href)="(/[^"]*)"', client.get("/").text):
        assert path in FILES


@pytest.mark.parametrize(
    "path",
    [
        "/app/static/../requests.py",
        "/app/static/%2e%2e/requests.py",
        "/app/static/..%2frequests.py",
        "/app/static//etc/passwd",
        "/app/static/main.js%00",
        "/app/static/",
        "/app/static/none.js",
        "/app/requests.py",
        "/gallery/2",
        "/gallery/2/sixty",
        "/solve/",
        "/download/mp4",
    ],
)
def test_other_paths_do_not_exist(app, client, path, make_body):
    method = "POST" if path == "/download/mp4" else "GET"
    assert "does not exist" in client.error(method, path, 404, json=make_body())
    assert send_raw(app, path, method)[0] == 404


def send_raw(app, path: str, method: str = "GET", messages=()) -> tuple[int, bytes]:
    """Send a request with a path that HTTP clients would normalise."""
    sent, received = [], list(messages)

    async def send(message):
        sent.append(message)

    async def receive():
        return received.pop(0)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8765"), (b"content-type", b"application/json")],
        "scheme": "http",
        "root_path": "",
        "server": ("127.0.0.1", 8765),
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/solve"), ("GET", "/upload/2/16"), ("POST", "/"), ("POST", "/app/static/main.js")],
)
def test_other_methods_are_not_supported(client, method, path):
    assert f"does not support {method}" in client.error(method, path, 405, json={})


# ---- results


def test_frames(client, make_body, path):
    response = client.post("/solve", json=make_body(frames=9))
    assert response.headers["content-type"] == "application/octet-stream"
    header, rest = unpack(response.content)
    frames = path.density(np.linspace(0, 1, 9)).numpy()
    levels = np.frombuffer(rest, np.uint8).reshape(9, 16, 16)
    assert header.pop("milliseconds") > 0
    assert header == {
        "shape": [16, 16],
        "count": 9,
        "highest": pytest.approx(frames.max()),
        "solver": "midpoint",
        "value": f"W₂ = {format_number(float(path.distance))}",
    }
    assert np.allclose(levels / 255 * frames.max(), frames, atol=0.51 / 255 * frames.max())


@pytest.mark.parametrize("growth", ["hellinger", "wfr"])
def test_frames_with_a_reach_have_the_masses_of_the_drawings(client, make_body, ends, growth):
    densities = [encode(ends[0]), encode(0.25 * ends[1])]
    body = make_body(densities=densities, reach=0.3, growth=growth)
    header, rest = unpack(client.post("/solve", json=body).content)
    own = [to_density(end) for end in (ends[0], (0.25 * ends[1]).astype("<u2"))]
    path = geonet.geodesic(*own, "midpoint", reach=0.3, growth=growth, time_limit=5.0)
    levels = np.frombuffer(rest, np.uint8).reshape(5, 16, 16)
    first, last = (header["highest"] * levels[k].mean() / 255 for k in (0, -1))
    assert first == pytest.approx(float(own[0].mass), rel=0.02)  # levels are rounded
    assert last == pytest.approx(float(own[1].mass), rel=0.05)
    assert header["value"] == f"Cost {format_number(float(path.cost))}"
    rows = dict(client.post("/report", json=body).json()["rows"])
    assert {"cost at least", "cost at most", "transported share"} <= set(rows)


@pytest.mark.parametrize("weights", [(0.2, 0.3, 0.5), (0.1, 0.2, 0.3, 0.4), (0.5, 0.0, 0.5)])
def test_barycenters(client, make_barycenter_body, corners, weights):
    body = make_barycenter_body(*weights)
    header, rest = unpack(client.post("/solve", json=body).content)
    densities = [to_density(corner) for corner in corners[: len(weights)]]
    one = geonet.barycenter(densities, weights, time_limit=5.0)
    frames = np.stack([density.numpy() for density in (one.density, *densities)])
    levels = np.frombuffer(rest, np.uint8, frames.size).reshape(frames.shape)
    assert header["value"] == f"Σ w W₂² = {format_number(one.estimate)}"
    assert np.allclose(levels / 255 * frames.max(), frames, atol=0.51 / 255 * frames.max())
    if min(weights) == 0:
        assert header["fields"] is None and len(rest) == frames.size
    else:  # displacements at the centres of cells, down and to the right
        shape, largest = header["fields"]["shape"], header["fields"]["largest"]
        fields = np.frombuffer(rest, np.int8, offset=frames.size).reshape(shape) * largest / 127
        points = one.grid.points()
        moved = np.stack([np.moveaxis(one.map(k, points) - points.numpy(), -1, 0) for k in (0, 2)])
        assert np.allclose(fields[[0, 2]], moved, atol=largest / 127)
    report = client.post("/report", json=body).json()
    assert report["rows"] == [list(row) for row in one.report.rows()]
    message = client.error("POST", "/overlays", json=body)
    assert "A barycenter has no overlays" in message


def test_barycenters_with_a_reach_and_of_curves(client, make_barycenter_body, corners):
    body = make_barycenter_body(0.2, 0.3, 0.5, reach=0.2)
    header, _ = unpack(client.post("/solve", json=body).content)
    one = geonet.barycenter(list(map(to_density, corners[:3])), body["weights"], reach=0.2)
    assert header["value"] == f"Objective {format_number(one.estimate)}"
    curves = [encode(draw_spot(64, at=(x,))) for x in (0.2, 0.5, 0.8)]
    body = make_barycenter_body(0.2, 0.3, 0.5, shape=[64], densities=curves)
    header, rest = unpack(client.post("/solve", json=body).content)
    assert header["shape"] == [64] and header["fields"]["shape"] == [3, 1, 64]
    assert len(rest) == 4 * 64 + 3 * 64


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_negative_values_are_clipped_and_others_raise(path, make_body, monkeypatch, bad):
    values = np.array([[[bad, 2.0], [0.5, 4.0]]] * 2)
    frames = geonet.Density.from_unnormalized(geonet.density.as_tensor(values), path.grid)
    monkeypatch.setattr(type(path), "density", lambda *_: frames)
    request = parse_request(json.dumps(make_body(frames=2)).encode())
    if bad == -1.0:
        assert encode_result(Solved(path, 0.0), request).body[-4:] == bytes([0, 128, 32, 255])
    else:
        with pytest.raises(SolverError, match="'midpoint' failed"):
            encode_result(Solved(path, 0.0), request)


def test_the_report(client, make_body, path):
    report = client.post("/report", json=make_body()).json()
    assert report["rows"] == [list(row) for row in path.report.rows()]
    assert report["headline"] and all(isinstance(text, str) for text in report["sentences"])


def test_an_uncertain_distance_becomes_an_interval(client, make_body, ends):
    pair = [to_density(end) for end in ends]
    for solver, is_uncertain in (("geonet-2d", True), ("midpoint", False)):
        body = make_body(solver=solver)
        header, _ = unpack(client.post("/solve", json=body).content)
        answer = client.post("/report", json=body).json()
        assert geonet.geodesic(*pair, solver).report.is_distance_uncertain == is_uncertain
        distance = dict(answer["rows"])["W2 distance"]
        assert answer["value"] == (f"W₂ {distance}" if is_uncertain else header["value"])
        assert distance.startswith("between ") == is_uncertain


def test_overlays(client, make_body, make_1d_body, path):
    header, rest = unpack(client.post("/overlays", json=make_body()).content)
    overlays, _ = compute_overlays(path)
    assert header == {
        "particles": list(overlays["particles"].shape),
        "potential": list(overlays["potential"].shape),
        "missing": {},
    }
    expected = np.concatenate([overlays[name].ravel() for name in ("particles", "potential")])
    assert np.allclose(np.frombuffer(rest, "<f4"), expected, atol=1e-6)
    header, _ = unpack(client.post("/overlays", json=make_1d_body()).content)
    assert header["particles"][2] == 1 and len(header["potential"]) == 2


def test_downloads(client, make_body, make_1d_body, ends, path, tmp_path):
    def fetch(kind, body):
        response = client.post(f"/download/{kind}", json=body)
        name = f"path.{kind}" if kind in DOWNLOADS else f"{kind}.npy"
        assert response.headers["content-disposition"] == f'attachment; filename="geonet-{name}"'
        return response.content

    with Image.open(io.BytesIO(fetch("gif", make_body(frames=6)))) as image:
        assert image.format == "GIF" and image.n_frames == 10  # forwards and backwards
    with Image.open(io.BytesIO(fetch("png", make_body()))) as image:
        assert image.format == "PNG" and min(image.size) > 100
    assert fetch("html", make_body()).startswith(b"<!doctype html>")
    file = tmp_path / "path.npz"
    file.write_bytes(fetch("npz", make_body(frames=7)))
    assert float(geonet.load(file).distance) == float(path.distance)
    with np.load(file) as arrays:
        assert np.allclose(arrays["times"], np.linspace(0, 1, 7))
    for kind in (*DOWNLOADS, "source", "target"):
        assert fetch(kind, make_1d_body())
    # A button refers to the drawings on the screen, even if a later request is running.
    client.post("/solve", json=make_body(number=9))
    for kind, end in zip(("source", "target"), ends, strict=True):
        values = np.load(io.BytesIO(fetch(kind, make_body(number=3))))
        assert values.dtype == np.float64 and np.allclose(values, end / 65535, rtol=1e-12)
    message = client.error("POST", "/download/density-1", json=make_body())
    assert "choose one of source, target" in message


def test_downloads_with_a_reach_have_the_given_masses(client, make_body, ends, tmp_path):
    body = make_body(reach=0.3, growth="wfr", densities=[encode(ends[0]), encode(ends[1] // 2)])
    for kind in DOWNLOADS:
        content = client.post(f"/download/{kind}", json=body).content
        (tmp_path / f"path.{kind}").write_bytes(content)
    path = geonet.load(tmp_path / "path.npz")
    assert float(path.target.mass) == pytest.approx(float(to_density(ends[1] // 2).mass))
    with np.load(tmp_path / "path.npz") as arrays:
        assert arrays["density"][0].mean() == pytest.approx(float(path.source.mass))


@pytest.mark.parametrize("options", [{}, {"reach": 0.3}])
def test_downloads_of_a_barycenter(client, make_barycenter_body, corners, options, tmp_path):
    body = make_barycenter_body(0.1, 0.2, 0.3, 0.4, frames=3, **options)
    for kind in DOWNLOADS:
        response = client.post(f"/download/{kind}", json=body)
        name = f"geonet-barycenter.{kind}"
        assert response.headers["content-disposition"] == f'attachment; filename="{name}"'
        (tmp_path / name).write_bytes(response.content)
    one = geonet.load(tmp_path / "geonet-barycenter.npz")
    expected = geonet.barycenter(list(map(to_density, corners)), [0.1, 0.2, 0.3, 0.4], **options)
    assert np.allclose(one.density.numpy(), expected.density.numpy())
    page = (tmp_path / "geonet-barycenter.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "Barycenters of 4 densities" in page
    with Image.open(tmp_path / "geonet-barycenter.gif") as image:
        assert image.n_frames > 3
    values = np.load(io.BytesIO(client.post("/download/density-3", json=body).content))
    assert np.allclose(values, corners[2] / 65535)
    message = client.error("POST", "/download/source", json=body)
    assert "no drawing source among the 4" in message


def test_uploads(client):
    content = io.BytesIO()
    np.save(content, np.eye(16))
    path = "/upload/2/16?name=a.npy"
    response = client.post(path, content=content.getvalue(), headers=BINARY)
    assert response.status_code == 200 and set(response.json()) == {"values", "notes"}
    assert "a.npy" in client.error("POST", path, content=b"", headers=BINARY)
    assert "give 1 or 2" in client.error("POST", "/upload/3/16", content=b"", headers=BINARY)
    assert "256 in 2D" in client.error("POST", "/upload/2/999", content=b"", headers=BINARY)


# ---- errors


def make_failure(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize(
    "error", [UnavailableError("There is none."), ConvergenceError("It stopped.", 1.0)]
)
def test_errors_of_the_library_are_messages(client, make_body, monkeypatch, error):
    monkeypatch.setattr(jobs, "geodesic", make_failure(error))
    assert client.error("POST", "/solve", json=make_body()) == str(error)


@pytest.mark.parametrize("error", [ZeroDivisionError, MemoryError])
def test_internal_errors_are_hidden_and_not_fatal(client, make_body, monkeypatch, error):
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "geodesic", make_failure(error("a secret")))
        for path in ("/solve", "/report", "/download/gif"):
            message = client.error("POST", path, 500, json=make_body())
            assert "internal error" in message and "secret" not in message
    assert client.post("/solve", json=make_body()).status_code == 200


def test_a_warning_is_not_an_error(client, make_body):
    """A pair on which Newton's method stops early."""
    ends = np.zeros((2, 16, 16))
    ends[0, 0, :2] = ends[1, 15, 14:] = 1
    body = make_body(densities=[encode(end) for end in ends])
    assert client.post("/solve", json=body).status_code == 200


# ---- several requests


def wait_until(condition):
    for _ in range(100 * TIMEOUT):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("timeout")


def test_outdated_requests_are_dropped(client, cache, make_body, gate):
    with ThreadPoolExecutor(4) as pool:
        older = pool.submit(client.post, "/solve", json=make_body(number=1))
        wait_until(lambda: cache.latest.get("page-1") == 1)
        report = pool.submit(client.post, "/report", json=make_body(number=1))
        newer = pool.submit(client.post, "/solve", json=make_body(number=2))
        wait_until(lambda: cache.latest.get("page-1") == 2)
        gate.set()
        assert [f.result(TIMEOUT).status_code for f in (older, report, newer)] == [409, 409, 200]
    assert client.post("/report", json=make_body(number=2)).status_code == 200
    assert client.post("/solve", json=make_body(number=1)).status_code == 409
    assert client.post("/solve", json=make_body(number=1, client="other")).status_code == 200


def test_requests_of_a_closed_page_are_not_solved(app, solver_thread, cache, make_body, gate):
    messages = [
        {"type": "http.request", "body": json.dumps(make_body()).encode(), "more_body": False},
        {"type": "http.disconnect"},
    ]
    assert send_raw(app, "/solve", "POST", messages)[0] == 503
    gate.set()
    solver_thread.submit(lambda: None).result(TIMEOUT)  # runs after the request would have
    assert len(cache.results) == 0
    assert send_raw(app, "/solve", "POST", [{"type": "http.disconnect"}])[0] == 503


# ---- security


@pytest.mark.parametrize("host", ["evil.example:8765", "127.0.0.1.evil.example", "[::1]:8765", ""])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_hosts_are_rejected(client, method, host):
    assert client.request(method, "/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8765", 200),
        ("null", 403),
        ("", 403),
        ("http://evil.example", 403),
        ("https://127.0.0.1:8765", 403),
        ("http://localhost:3000", 403),
        ("http://127.0.0.1:8765.evil.example", 403),
    ],
)
def test_other_origins_are_rejected(client, make_body, origin, status):
    response = client.post("/solve", json=make_body(), headers={"origin": origin})
    assert response.status_code == status


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_forms_are_rejected(client, kind):
    """Other sites can send forms without a preflight request."""
    headers = {"content-type": f"{kind}; boundary=x"}
    for path in ("/solve", "/upload/2/16"):
        assert kind in client.error("POST", path, 415, content=b"{}", headers=headers)
    assert "missing" in client.error("POST", "/solve", 415, content=b"{}")


@pytest.mark.parametrize(
    ("path", "mib", "headers"), [("/solve", 2, JSON), ("/upload/2/16?name=a.npy", 32, BINARY)]
)
def test_large_bodies_are_rejected(client, path, mib, headers):
    async def send_chunks(size):
        for start in range(0, size, 2**20):
            yield b" " * min(2**20, size - start)

    size = mib * 2**20
    message = f"larger than {mib} MiB"
    assert message in client.error("POST", path, 413, content=b" " * (size + 1), headers=headers)
    chunks = send_chunks(size + 1)  # without Content-Length
    assert message in client.error("POST", path, 413, content=chunks, headers=headers)
    assert "larger" not in client.error("POST", path, content=send_chunks(size), headers=headers)


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {}),
        ("HEAD", "/", {}),
        ("GET", "/app/static/main.js", {}),
        ("GET", "/nowhere", {}),
        ("GET", "/", {"host": "evil.example"}),
        ("POST", "/solve", {"content-type": "text/plain"}),
    ],
)
def test_all_responses_have_security_headers(client, method, path, headers):
    response = client.request(method, path, headers=headers)
    expected = SecurityHeadersMiddleware.headers
    assert {name: response.headers[name] for name in expected} == expected
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "*" not in policy


def test_the_page_has_no_inline_scripts_or_styles(client):
    text = client.get("/").text
    assert re.findall(r"<script(?![^>]*(src=|application/json))", text) == []
    assert "<style" not in text and not re.search(r"\s(style|on\w+)=", text)
