"""Standalone HTML pages: data, script and overlays."""

import base64
import json
import re
import zlib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import FileError, InputError
from geonet.plotting import Style
from geonet.plotting.explore import (
    bundle_script,
    compute_overlays,
    render_html,
    spread_particles,
)


def solve(d, shape=None, orientation="image"):
    grid = Grid(shape or (12,) * d, 0, 5, orientation)
    mixtures = (geonet.GaussianMixture.isotropic([[x] * d], 0.7) for x in (1.5, 3.0))
    ends = (mixture.to_density(grid) for mixture in mixtures)
    return geonet.geodesic(*ends, "linear" if d == 3 else "auto")


def parse(page):
    """The JSON data of a page, its levels (T, *shape) and the bytes after them."""
    text = re.search(r'<script type="application/json" id="path">(.*?)</script>', page, re.S)[1]
    data = json.loads(text)
    numbers = zlib.decompress(base64.b64decode(data["numbers"]))
    size = data["count"] * int(np.prod(data["shape"]))
    levels = np.frombuffer(numbers[:size], np.uint8).reshape(data["count"], *data["shape"])
    return data, levels, numbers[size:]


@pytest.mark.parametrize("d", [1, 2])
def test_levels_are_the_densities(d):
    path = solve(d)
    data, levels, _ = parse(render_html(path, 5))
    expected = path.density(np.linspace(0, 1, 5)).numpy()
    highest = data["scale"]["highest"]
    assert highest == pytest.approx(expected.max())
    assert np.allclose(levels / 255 * highest, expected, atol=0.5 / 255 * highest)


def test_rows_are_from_the_top():
    """A plane has its first axis to the right and the second upwards."""
    path = solve(2, (8, 12), orientation="plane")
    data, levels, rest = parse(render_html(path, frames=3))
    assert data["shape"] == [12, 8]
    frames = path.density([0.0, 0.5, 1.0]).numpy()
    expected = frames.swapaxes(1, 2)[:, ::-1]
    assert np.allclose(levels / 255 * frames.max(), expected, atol=0.5 / 255 * frames.max())
    times, count, _ = data["particles"]
    tracks = np.frombuffer(rest[: 8 * times * count], np.float32).reshape(times, count, 2)
    down, right = tracks[0].mean(0)
    assert 0.6 < down < 0.8 and 0.2 < right < 0.4  # the source is at the lower left


@pytest.mark.parametrize(
    ("upper", "orientation", "sides"),
    [([15, 9.6], "image", [15, 9.6]), ([15, 9.6], "plane", [9.6, 15]), ([1, 9], "image", [9, 9])],
)
def test_pictures_have_the_proportions_of_the_box(upper, orientation, sides):
    """Not of the cells; very long boxes are drawn as squares."""
    grid = Grid((30, 48), 0, upper, orientation)
    ends = [Density(torch.rand(30, 48, dtype=torch.float64), grid) for _ in range(2)]
    data, _, _ = parse(render_html(geonet.geodesic(*ends, "linear"), frames=2))
    assert data["sides"] == pytest.approx(sides)


@pytest.mark.parametrize(
    ("orientation", "label", "hidden"),
    [
        ("image", "Projection along axis 0: axis 1 ↓, axis 2 →", 0),
        ("plane", "Projection along z: x →, y ↑", 2),
    ],
)
def test_volumes_have_three_projections(orientation, label, hidden):
    """The one on x and y comes first: arrays have the order z, y, x."""
    path = solve(3, (4, 6, 8), orientation)
    data, levels, rest = parse(render_html(path, frames=2))
    frames = path.density([0.0, 1.0]).numpy().sum(1 + hidden)
    if orientation == "plane":
        frames = frames.swapaxes(1, 2)[:, ::-1]
    assert data["label"] == label
    assert np.allclose(levels / 255, frames / frames.max(), atol=0.51 / 255)
    others = data["projections"]
    assert len({part["label"] for part in [data, *others]}) == 3
    assert len(rest) == sum(2 * int(np.prod(part["shape"])) for part in others)


def test_overlays_follow_the_levels():
    path = solve(2)
    data, _, rest = parse(render_html(path, frames=3))
    assert len(rest) == sum(4 * int(np.prod(data[name])) for name in ("particles", "potential"))
    assert data["missing"] == {}
    blend = geonet.geodesic(path.source, path.target, "linear")
    data, _, rest = parse(render_html(blend, frames=3))
    assert data["particles"] is data["potential"] is None and rest == b""
    assert set(data["missing"]) == {"particles", "potential"}
    assert path._repr_html_().startswith("<iframe srcdoc=")  # in a notebook


@pytest.mark.parametrize("norm", ["linear", "sqrt", "log"])
def test_levels_follow_the_style(norm):
    path, style = solve(1), Style("viridis", norm)
    data, levels, _ = parse(render_html(path, frames=3, style=style))
    frames = path.density([0.0, 0.5, 1.0]).numpy()
    fractions = np.ma.getdata(style.scale(frames).norm(frames.ravel())).clip(0, 1)
    assert np.array_equal(levels.ravel(), np.rint(255 * fractions))
    assert data["scale"]["name"] == norm
    colours = np.frombuffer(base64.b64decode(data["colours"]), np.uint8).reshape(256, 3)
    assert np.array_equal(colours, style.colormap()(range(256), bytes=True)[:, :3])


def test_the_file_needs_no_other_files(tmp_path):
    text = solve(2).explore(tmp_path / "path.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=|@import|url\(|fetch\(", text)
    assert len(text) < 400_000


def test_the_script_contains_every_module_once():
    """Names must differ, because all modules share one scope."""
    scripts = [bundle_script("standalone.js"), bundle_script("barycenter.js")]
    for file in files("geonet.plotting").joinpath("viewer").iterdir():
        if file.name.endswith(".js"):
            counts = [s.count(file.read_text(encoding="utf-8").splitlines()[0]) for s in scripts]
            assert max(counts) == 1, file.name
    for script in scripts:
        assert not re.search(r"^(import|export) ", script, re.M)
        names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", script, re.M)
        assert len(names) == len(set(names))
        assert script.index("class Scale") < script.index("class Frames")
    assert scripts[0].index("class Frames") < scripts[0].index("start();")


def test_the_page_of_the_documentation_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "images" / "morph.html"
    text = page.read_text(encoding="utf-8")
    assert bundle_script("standalone.js") in text, "run make screenshots"


def test_text_of_a_page_is_escaped():
    path = solve(1)
    path.solver = "<script>alert(1)</script>"
    assert "<script>alert" not in render_html(path, frames=2)


@pytest.mark.parametrize(
    ("file", "options", "error", "message"),
    [
        ("path.gif", {}, FileError, "path.gif is not an .html file"),
        ("path.html", {"frames": 1}, InputError, "frames is 1"),
        ("path.html", {"cmap": "magna"}, InputError, "did you mean 'magma'"),
        ("path.html", {"grid": Grid(12, 0, 1)}, InputError, "12 cells on \\[0, 1\\]"),
    ],
)
def test_bad_pages_raise(file, options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        solve(1).explore(tmp_path / file, **options)
    assert list(tmp_path.iterdir()) == []


# ---- overlays


def test_particles_represent_equal_masses():
    values = torch.zeros(8, 8)
    values[1, 2], values[6, 5] = 1.0, 3.0
    cells = (spread_particles(Density(values, Grid((8, 8))), 400) * 8).floor().long().tolist()
    assert (cells.count([1, 2]), cells.count([6, 5])) == (100, 300)


def test_overlays_of_a_translation():
    """A box of cells that moves by 8 of 24 cells to the right."""
    grid, ends = Grid((16, 24), (0, 0), (2, 3)), []
    for start in (2, 10):
        values = torch.zeros(16, 24)
        values[4:12, start : start + 8] = 1.0
        ends.append(Density(values, grid))
    overlays, missing = compute_overlays(geonet.geodesic(*ends, "midpoint"))
    tracks, potential = overlays["particles"], overlays["potential"]
    assert tracks.shape == (9, 240, 2) and tracks.dtype == np.float32
    assert np.allclose(tracks[-1] - tracks[0], [0, 8 / 24], atol=0.01)
    assert np.allclose(tracks[4], (tracks[0] + tracks[-1]) / 2, atol=1e-6)
    assert potential.shape == (5, 21, 32) and np.isfinite(potential).all()
    assert missing == {}


def test_particles_on_periodic_axes_do_not_jump():
    grid = Grid((16, 16), 0, 2, periodic=(True, False))
    mixtures = (geonet.GaussianMixture.isotropic([[x, 1.0]], 0.2) for x in (1.7, 0.3))
    path = geonet.geodesic(*(m.to_density(grid) for m in mixtures), "schrodinger")
    particles = compute_overlays(path)[0]["particles"]
    assert np.abs(np.diff(particles, axis=0)).max() < 0.2
    assert particles[..., 0].max() > 1  # beyond the seam; the viewer takes it modulo one
    assert particles[..., 1].min() >= 0 and particles[..., 1].max() <= 1
