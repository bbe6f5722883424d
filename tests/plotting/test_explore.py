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
from geonet.plotting.explore import CELLS, FRAMES, MODULES, explore_html, script
from geonet.plotting.style import Look

VIEWER = files("geonet.plotting") / "viewer"


def lumps(d, shape=None, drawn="image"):
    grid = Grid(shape or (12,) * d, 0, 5, drawn)
    ends = (geonet.GaussianMixture.isotropic([centre], 0.7) for centre in ([1.5] * d, [3.0] * d))
    return geonet.geodesic(*(end.on(grid) for end in ends), "linear" if d == 3 else "auto")


def scene_of(page):
    """The JSON of a page, its levels (T, *shape) and the bytes after them."""
    text = re.search(r'<script type="application/json" id="scene">(.*?)</script>', page, re.S)[1]
    scene = json.loads(text)
    numbers = zlib.decompress(base64.b64decode(scene["numbers"]))
    size = scene["count"] * int(np.prod(scene["shape"]))
    levels = np.frombuffer(numbers[:size], np.uint8).reshape(scene["count"], *scene["shape"])
    return scene, levels, numbers[size:]


@pytest.mark.parametrize("d", [1, 2])
def test_levels_are_the_densities(d):
    path = lumps(d)
    scene, levels, _ = scene_of(explore_html(path, frames=5))
    frames = path.density(np.linspace(0, 1, 5)).numpy()
    assert scene["scale"]["highest"] == pytest.approx(frames.max())
    assert np.allclose(levels / 255 * frames.max(), frames, atol=0.5 / 255 * frames.max())


def test_rows_are_those_of_the_picture():
    """A plane has its first axis to the right and the second upwards."""
    path = lumps(2, (8, 12), drawn="plane")
    scene, levels, rest = scene_of(explore_html(path, frames=3))
    assert scene["shape"] == [12, 8]
    frames = path.density([0.0, 0.5, 1.0]).numpy()
    expected = frames.swapaxes(1, 2)[:, ::-1]
    assert np.allclose(levels / 255 * frames.max(), expected, atol=0.5 / 255 * frames.max())
    moments, count, _ = scene["particles"]
    tracks = np.frombuffer(rest[: 8 * moments * count], np.float32).reshape(moments, count, 2)
    down, right = tracks[0].mean(0)
    assert 0.6 < down < 0.8 and 0.2 < right < 0.4  # the source is below, on the left


def test_space_is_projected():
    path = lumps(3, (6, 8, 10))
    scene, levels, rest = scene_of(explore_html(path, frames=3))
    assert scene["shape"] == [6, 8] and rest == b""
    sums = path.density([0.0, 0.5, 1.0]).numpy().sum(-1)
    assert np.corrcoef(levels.ravel(), sums.ravel())[0, 1] > 0.999


def test_particles_and_potential_follow():
    scene, _, rest = scene_of(explore_html(lumps(2), frames=3))
    sizes = [4 * int(np.prod(scene[name])) for name in ("particles", "potential")]
    assert len(rest) == sum(sizes)
    assert scene["why"] == {}


def test_what_the_solver_does_not_give():
    path = lumps(2)
    faded = geonet.geodesic(path.source, path.target, "linear")
    scene, _, rest = scene_of(explore_html(faded, frames=3))
    assert scene["particles"] is scene["potential"] is None and rest == b""
    assert set(scene["why"]) == {"particles", "potential"}


def test_fine_grids_are_averaged():
    values = torch.rand(300, 200, generator=torch.Generator().manual_seed(0))
    density = Density(values, Grid((300, 200)))
    path = geonet.geodesic(density, density, "linear")
    scene, _, _ = scene_of(explore_html(path, frames=2))
    assert np.prod(scene["shape"]) <= CELLS
    assert scene["shape"] == [150, 100]


@pytest.mark.parametrize("norm", ["linear", "sqrt", "log"])
def test_norms(norm):
    """The levels are those of matplotlib; scale.js has the same formulas."""
    path, look = lumps(1), Look("viridis", norm)
    scene, levels, _ = scene_of(explore_html(path, frames=3, look=look))
    frames = path.density([0.0, 0.5, 1.0]).numpy()
    shares = np.ma.getdata(look.scale(frames).norm(frames.ravel())).clip(0, 1)
    assert np.array_equal(levels.ravel(), np.rint(255 * shares))
    assert scene["scale"]["name"] == norm
    colours = np.frombuffer(base64.b64decode(scene["colours"]), np.uint8).reshape(256, 3)
    assert np.array_equal(colours, look.colours()(range(256), bytes=True)[:, :3])


def test_the_file_needs_nothing_else(tmp_path):
    file = lumps(2).explore(tmp_path / "morph.html")
    text = file.read_text(encoding="utf-8")
    assert "import " not in script() and "export " not in script()
    assert not re.search(r"(src|href)=|@import|url\(|fetch\(", text)
    assert len(text) < 400_000
    assert "__" not in re.sub(r'id="scene">.*?</script>', "", text, flags=re.S)


def test_the_page_of_the_documentation_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "images" / "morph.html"
    assert script() in page.read_text(encoding="utf-8"), "run make screenshots"


def test_modules_come_after_what_they_import():
    """All of them, and no name is given twice: they end up in one script."""
    there = {
        file.name.removesuffix(".js") for file in VIEWER.iterdir() if file.name.endswith(".js")
    }
    assert there == set(MODULES)
    names = []
    for k, module in enumerate(MODULES):
        text = (VIEWER / f"{module}.js").read_text(encoding="utf-8")
        for wanted in re.findall(r'from "\./(\w+)\.js"', text):
            assert wanted in MODULES[:k], (module, wanted)
        names += re.findall(
            r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", text, re.M
        )
    assert len(names) == len(set(names))


def test_text_of_a_page_is_escaped():
    path = lumps(1)
    path.solver = "<script>alert(1)</script>"
    page = explore_html(path, frames=2)
    assert "<script>alert" not in page


def test_notebooks_show_a_path():
    shown = lumps(2)._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and "&lt;!doctype html&gt;" in shown


def test_notebooks_name_what_they_do_not_show():
    path = lumps(1)
    values = torch.stack([path.source.tensor, path.target.tensor])
    batch = geonet.geodesic(*(Density(v, path.grid) for v in (values, values.flip(0))))
    assert batch._repr_html_() is None
    slow = geonet.geodesic(path.source, path.target, "barycenter")
    assert slow._repr_html_() is None


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda path: path.explore("morph.gif"),
            FileError,
            "morph.gif does not end in .html; a page to explore is written as one.",
        ),
        (
            lambda path: path.explore("morph.html", frames=1),
            InputError,
            "frames is 1; give a whole number, at least 2.",
        ),
        (
            lambda path: path.explore("morph.html", cmap="magna"),
            InputError,
            "cmap is 'magna'; did you mean 'magma'?",
        ),
        (
            lambda path: path.explore("morph.html", grid=Grid(12, 0, 1)),
            InputError,
            "The path lives on 12 cells on [0, 5], the grid asked for is 12 cells on [0, 1]: ",
        ),
    ],
)
def test_refusals(call, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as refused:
        call(lumps(1))
    assert str(refused.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_many_frames_and_few(tmp_path):
    path = lumps(1)
    for frames in (2, FRAMES, 101):
        scene, levels, _ = scene_of(explore_html(path, frames))
        assert scene["count"] == len(levels) == frames
