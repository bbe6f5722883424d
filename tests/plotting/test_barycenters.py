"""Figures, animations and pages of barycenters."""

import base64
import json
import re
import shutil
import subprocess
import zlib
from importlib.resources import files

import numpy as np
import pytest

import geonet
from geonet.errors import FileError, InputError
from geonet.plotting import plot_barycenter, plot_barycenters
from geonet.weights import make_table


def bumps(d, count, orientation="image"):
    grid = geonet.Grid((24,) if d == 1 else (16,) * d, 0, 2, orientation)
    centres = [[0.7] * d, [1.3] * d, [0.7, *[1.3] * (d - 1)], [1.3, *[0.7] * (d - 1)]]
    mixtures = [geonet.GaussianMixture.isotropic([c], 0.2) for c in centres[:count]]
    return [mixture.to_density(grid) for mixture in mixtures]


@pytest.fixture(scope="module")
def plane():
    return geonet.barycenter(bumps(2, 3), [0.5, 0.3, 0.2])


@pytest.fixture(scope="module")
def square():
    return geonet.barycenter(bumps(2, 4), make_table(4, 3))


def shown(axes):
    """Return the axes with images."""
    return [axis for axis in axes if axis.images]


def test_densities_stand_above_the_barycenter(plane):
    figure = plane.plot(cmap="viridis")
    axes = shown(figure.axes)
    assert [axis.get_title() for axis in axes] == ["w = 0.5", "w = 0.3", "w = 0.2", "barycenter"]
    assert np.allclose(axes[-1].images[0].get_array(), plane.density.numpy())
    figure.canvas.draw()
    assert min(axis.get_position().y0 for axis in axes[:3]) > axes[3].get_position().y1
    assert axes[0].images[0].get_clim() == axes[3].images[0].get_clim()


def test_lines_and_boxes():
    line = geonet.barycenter(bumps(1, 2))
    (axis,) = line.plot().axes
    assert np.allclose(axis.lines[-1].get_ydata(), line.density.numpy())
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["w = 0.5", "w = 0.5", "barycenter"]
    box = geonet.barycenter(bumps(3, 2))
    assert len(shown(box.plot().axes)) == 9  # three projections of three densities


def test_table_has_the_corners_of_the_densities(square):
    axes = shown(square.plot().axes)
    assert len(axes) == 9
    pictures = [axis.images[0].get_array() for axis in axes]
    for place, k in ((0, 0), (2, 1), (6, 2), (8, 3)):
        assert np.array_equal(pictures[place], square.densities[k].numpy())
    assert len(shown(square[0].plot().axes)) == 3


def test_triangle():
    table = geonet.barycenter(bumps(2, 3), make_table(3, 3))
    axes = shown(table.plot().axes)
    assert len(axes) == 6
    tops = sorted({round(axis.get_position().y1, 3) for axis in axes})
    assert len(tops) == 3
    first = axes[0].get_position()
    assert first.x0 + first.width / 2 == pytest.approx(0.5) and first.y1 == pytest.approx(1)


def test_rows_of_lines_and_boxes():
    for d in (1, 3):
        table = geonet.barycenter(bumps(d, 2), make_table(2, 4))
        assert len(table.plot().axes) == 4


def test_bad_figures_raise(plane, square):
    with pytest.raises(InputError, match="one is 3; give the result of geonet.barycenter"):
        plot_barycenter(3)
    with pytest.raises(InputError, match="many is Barycenter"):
        plot_barycenters(plane)
    with pytest.raises(InputError, match="did you mean 'magma'"):
        plane.plot(cmap="magna")
    cube = geonet.barycenter(bumps(1, 2), np.full((1, 1, 2, 2), 0.5))
    with pytest.raises(InputError, match=r"barycenters\[0\]\.plot\(\)"):
        cube.plot()


# ---- Animations


def test_animations(plane, square, tmp_path, read_gif):
    frames = read_gif(plane.animate(tmp_path / "one.gif", frames=4))
    assert len(frames) >= 4
    frames = read_gif(square.animate(tmp_path / "many.gif"))
    assert len(frames) == 16  # nine and back
    with pytest.raises(FileError, match="animations have these two formats"):
        plane.animate(tmp_path / "one.png")
    single = geonet.barycenter(bumps(1, 2), [[0.5, 0.5]])
    with pytest.raises(InputError, match="There is one barycenter"):
        single.animate(tmp_path / "a.gif")


# ---- Pages


def parse(file):
    """Return the data of a page, its levels (M, *shape) and displacements (M, N, d, ...)."""
    text = file.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="path">(.*?)</script>', text, re.S)[1])
    numbers = zlib.decompress(base64.b64decode(data["numbers"]))
    shape = data["count"], *data["shape"]
    size = int(np.prod(shape))
    levels = np.frombuffer(numbers[:size], np.uint8).reshape(shape)
    if "fields" not in data:
        return data, levels, None
    fields = np.frombuffer(numbers[size:], np.int8).reshape(-1, *data["fields"]["shape"])
    return data, levels, fields / 127 * data["fields"]["largest"]


def test_page_of_a_table(square, tmp_path):
    file = square.explore(tmp_path / "page.html")
    data, levels, fields = parse(file)
    assert data["count"] == 9 and fields.shape == (9, 4, 2, 16, 16)
    highest = data["scale"]["highest"]
    expected = square.density.numpy().reshape(9, 16, 16)
    assert np.allclose(levels / 255 * highest, expected, atol=0.5 / 255 * highest + 1e-12)
    table = data["table"]
    assert table["ends"] == [0, 2, 6, 8] and table["start"] == [0.5, 0.5]
    assert table["objective"][4] == pytest.approx(square[1, 1].estimate)
    assert len(table["gaps"]) == len(table["measured"]) == 5  # all but the corners
    points = square.grid.points()
    moved = (square[1, 1].map(2, points) - points.numpy()) / 2
    assert np.allclose(np.moveaxis(fields[4, 2], 0, -1), moved, atol=1 / 127)
    assert not re.search(r"(src|href)=|@import|url\(|fetch\(", file.read_text(encoding="utf-8"))


def test_page_of_one_barycenter(plane, tmp_path):
    data, _, _ = parse(plane.explore(tmp_path / "page.html", table=3, norm="sqrt"))
    corners = np.array(data["table"]["corners"])
    assert data["count"] == 6 and data["scale"]["name"] == "sqrt"
    assert np.allclose(data["table"]["start"], [0.5, 0.3, 0.2] @ corners)
    data, _, _ = parse(geonet.barycenter(bumps(2, 4) + bumps(2, 1)).explore(tmp_path / "b.html", 4))
    assert len(data["table"]["corners"]) == 5


def test_pages_of_other_dimensions(tmp_path):
    _, levels, fields = parse(geonet.barycenter(bumps(1, 2)).explore(tmp_path / "a.html", 3))
    assert levels.shape == (3, 24) and fields.shape == (3, 2, 1, 24)
    data, levels, fields = parse(geonet.barycenter(bumps(3, 2)).explore(tmp_path / "b.html", 3))
    assert levels.shape == (3, 16, 16) and fields is None
    assert [part["shape"] for part in data["projections"]] == [[16, 16]] * 2
    box = geonet.barycenter(bumps(2, 2, "plane"), make_table(2, 3))
    _, levels, fields = parse(box.explore(tmp_path / "c.html"))
    assert levels[0].argmax() // 16 >= 8  # y is upwards: the first density is at the lower left
    centre = fields[0, 1, :, 10, 5]
    assert np.allclose(centre, [-0.3, 0.3], atol=0.03)  # upwards and to the right


def test_bad_pages_raise(plane, square, tmp_path):
    with pytest.raises(FileError, match="is not an .html file"):
        plane.explore(tmp_path / "a.gif")
    with pytest.raises(FileError, match="is not an .html file"):
        square.explore(tmp_path / "a.gif")
    with pytest.raises(InputError, match="table is 1"):
        plane.explore(tmp_path / "a.html", table=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is missing.")
def test_script_carries_barycenters_to_other_weights(tmp_path):
    """A table entry that is carried to the weights of another one resembles it."""
    result = geonet.barycenter(bumps(2, 2), make_table(2, 3))
    data, levels, fields = parse(result.explore(tmp_path / "page.html"))
    viewer = files("geonet.plotting") / "viewer"
    for name in ("carry", "polygon"):
        text = (viewer / f"{name}.js").read_text(encoding="utf-8")
        (tmp_path / f"{name}.mjs").write_text(text, encoding="utf-8")
    field = {"shape": data["fields"]["shape"], "values": fields[1].ravel().tolist()}
    arguments = json.dumps([levels[1].ravel().tolist(), data["shape"], field])
    (tmp_path / "run.mjs").write_text(
        'import { carryValues } from "./carry.mjs";\n'
        'import { clipToPolygon, locate, weightsAt } from "./polygon.mjs";\n'
        f"const [values, shape, field] = {arguments};\n"
        f"const {{ positions, simplices, corners, order }} = {json.dumps(data['table'])};\n"
        "const weights = weightsAt([0.25, 0.5], corners, order);\n"
        "const carried = Array.from(carryValues(values, shape, field, weights));\n"
        "const around = locate([0.25, 0.5], positions, simplices);\n"
        "const clipped = clipToPolygon([2, 2], corners, order);\n"
        "const square = [[0, 0], [1, 0], [0, 1], [1, 1]];\n"
        "const bilinear = weightsAt([0.3, 0.6], square, [0, 1, 3, 2]);\n"
        "console.log(JSON.stringify({ weights, carried, around, clipped, bilinear }));\n"
    )
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["weights"] == [0.75, 0.25] and answer["clipped"] == [1, 0.5]
    assert answer["around"] == [[0, 0.5], [1, 0.5]]
    assert np.allclose(answer["bilinear"], [0.28, 0.12, 0.42, 0.18])
    truth = geonet.barycenter(bumps(2, 2), [0.75, 0.25]).density.numpy()
    carried = np.array(answer["carried"]).reshape(16, 16)
    carried, truth = carried / carried.sum(), truth / truth.sum()
    assert np.abs(carried - truth).sum() < 0.05
    copied = levels[1] / levels[1].sum()
    assert np.abs(copied - truth).sum() > 0.3
