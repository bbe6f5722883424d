"""`geonet geodesic A B C …`, pictures in colour, and options for single files."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageDraw

import geonet


def read_frames(file):
    with Image.open(file) as gif:
        frames = []
        for number in range(gif.n_frames):
            gif.seek(number)
            frames.append(np.asarray(gif.convert("RGB"), int))
    return frames


@pytest.fixture
def images(write, tmp_path):
    """Four grey images of 16×16 pixels."""
    y, x = np.mgrid[0:16, 0:16]
    files = [tmp_path / f"{name}.png" for name in "abcd"]
    for file, (row, column) in zip(files, ((4, 4), (11, 4), (11, 11), (4, 11)), strict=True):
        spot = 20 + 200 * np.exp(-((x - column) ** 2 + (y - row) ** 2) / 12)
        Image.fromarray(spot.astype(np.uint8)).save(file)
    return files


@pytest.fixture
def drawings(tmp_path):
    """Two drawings in colour on white paper, of different sizes."""
    files = tmp_path / "ink1.png", tmp_path / "ink2.png"
    for file, size, colour in zip(files, ((40, 30), (30, 40)), ("red", "navy"), strict=True):
        picture = Image.new("RGB", size, "white")
        ImageDraw.Draw(picture).ellipse((8, 8, 20, 20), fill=colour)
        picture.save(file)
    return files


# ---- Sequences


def test_report_of_every_path(run, images):
    out = run("geodesic", *images[:3]).out
    answer = json.loads(run("geodesic", *images[:3], "--json").out)
    assert answer["grid"]["shape"] == [16, 16] and len(answer["paths"]) == 2
    for (first, second), one in zip(pairwise(images[:3]), answer["paths"], strict=True):
        path = geonet.geodesic(geonet.read(first), geonet.read(second))
        assert one["distance"] == pytest.approx(float(path.distance))
        assert one["solver"] == path.solver and len(one["read"]) == 2
        assert f"{first} → {second}" in out and str(path.report.summary()) in out
    total = sum(one["distance"] for one in answer["paths"])
    assert f"W2, sum   {total:.4g}" in out
    assert run("geodesic", *images[:3], "--report").out.count("╭─ report") == 2


def test_reach_has_no_sum_of_distances(run, images):
    out = run("geodesic", *images[:3], "--reach", 0.3).out
    assert out.count("transported share") == 2 and "W2" not in out


def test_one_animation(run, images, tmp_path):
    file = tmp_path / "morph.gif"
    out = run("geodesic", *images, images[0], "-o", file, "--times", 13, "--no-stamp").out
    assert f"{file} (" in out and " kB)" in out
    frames = read_frames(file)
    assert len(frames) == 12  # it ends where it begins
    for k, (row, column) in enumerate(((4, 4), (11, 4), (11, 11), (4, 11))):
        brightness = frames[3 * k].sum(-1)
        found = np.argwhere(brightness >= 0.95 * brightness.max()).mean(0)
        assert found == pytest.approx([16 * row + 8, 16 * column + 8], abs=12)


def test_default_counts(run, images, tmp_path):
    for files, count in ((images[:2], 60), (images[:3], 60)):
        run("geodesic", *files, "--solver", "linear", "-o", tmp_path / "a.gif", "--size", 32)
        frames = read_frames(tmp_path / "a.gif")
        assert len(frames) == count and frames[0].shape == (32, 32, 3)


def test_other_outputs(run, images, tmp_path):
    file = tmp_path / "paths.npz"
    assert run("geodesic", *images[:3], "-o", file, "--times", 3).code == 0
    paths = geonet.load(file)
    assert len(paths) == 2 and paths.density([0, 1]).values.shape == (2, 2, 16, 16)
    with np.load(file) as saved:
        assert saved["density"].shape == (2, 3, 16, 16)
    assert np.array_equal(paths[0].target.values, paths[1].source.values)
    sheet = tmp_path / "sheet.png"
    assert run("geodesic", *images[:3], "-o", sheet, "--times", "0,0.5,1").code == 0
    with Image.open(sheet) as picture:
        assert picture.size == (3 * 256 + 8, 2 * 256 + 4)


def test_outputs_that_show_one_path(run_failing, images):
    failing = lambda *words: run_failing("geodesic", *images[:3], *words)  # noqa: E731
    assert "An html page shows one path" in failing("-o", "x.html")
    assert "--plot tracks shows one path" in failing("-o", "x.png", "--plot", "tracks")
    assert "give a count of 3 to 10000" in failing("-o", "x.gif", "--times", 2)
    assert "two or more files" in run_failing("geodesic", images[0])


def test_volumes(run, tmp_path):
    tifffile = pytest.importorskip("tifffile")
    z, y, x = np.mgrid[0:12, 0:8, 0:8]
    files = [tmp_path / f"{k}.tif" for k in range(2)]
    for k, file in enumerate(files):
        values = 100 + 3000 * np.exp(-((z - 4 - 3 * k) ** 2 + (y - 3) ** 2 + (x - 4) ** 2) / 8)
        about = {"axes": "ZYX", "spacing": 2.0, "unit": "um"}
        tifffile.imwrite(
            file, values.astype(np.uint16), imagej=True, resolution=(2, 2), metadata=about
        )
    out = run("geodesic", *files, "-o", tmp_path / "path.npz").out
    assert "read as 12×8×8 values of 2×0.5×0.5 µm" in out
    path = geonet.load(tmp_path / "path.npz")
    assert path.grid.lengths == (24, 4, 4)
    for name in ("path.gif", "path.html", "path.png"):
        assert run("geodesic", *files, "-o", tmp_path / name, "--times", 2).code == 0
        assert (tmp_path / name).stat().st_size > 0


def test_volumes_of_different_sizes(run, run_failing, tmp_path):
    tifffile = pytest.importorskip("tifffile")

    def save(name, shape, spacing, unit="um"):
        about = {"axes": "ZYX", "spacing": spacing, "unit": unit}
        values = np.random.default_rng(0).integers(1, 99, shape).astype(np.uint16)
        tifffile.imwrite(tmp_path / name, values, imagej=True, resolution=(1, 1), metadata=about)
        return tmp_path / name

    first, second = save("a.tif", (6, 8, 8), 1.0), save("b.tif", (4, 10, 8), 2.0)
    answer = json.loads(run("geodesic", first, second, "--json").out)
    assert answer["grid"]["shape"] == [8, 10, 8] and answer["grid"]["upper"] == [8, 10, 8]
    assert answer["changed"][0].startswith("Padded: 6×8×8 and 4×10×8 cells are centred in a box")
    other = save("c.tif", (6, 8, 8), 1.0, "nm")
    assert "voxel sizes in µm and nm; save them in one unit" in run_failing(
        "geodesic", first, other
    )
    values = np.ones((6, 8, 8), np.uint8)
    tifffile.imwrite(tmp_path / "d.tif", values, photometric="minisblack")
    line = run_failing("geodesic", first, tmp_path / "d.tif")
    assert "a.tif has voxel sizes and" in line and "d.tif has none" in line


# ---- Colours and ink


def test_colours_are_kept(run, drawings, tmp_path):
    file = tmp_path / "a.gif"
    assert run("geodesic", *drawings, "--invert", "-o", file, "--times", 3, "--no-stamp").code == 0
    frames = read_frames(file)
    for frame, drawing in ((frames[0], drawings[0]), (frames[2], drawings[1])):
        with Image.open(drawing) as picture:
            width, height = picture.size
            margins = (40 - width) // 2, (40 - height) // 2
            square = Image.new("RGB", (40, 40), "white")
            square.paste(picture, margins)
        side = frame.shape[0] // 40
        centres = frame[side // 2 :: side, side // 2 :: side]
        difference = abs(centres - np.asarray(square, int)).max(-1)
        assert np.median(difference) <= 3 and (difference < 40).mean() > 0.95
    plain = tmp_path / "b.gif"
    run("geodesic", *drawings, "--invert", "-o", plain, "--times", 3, "--cmap", "gray")
    assert all(np.ptp(frame, axis=-1).max() == 0 for frame in read_frames(plain)[:1])


def test_colours_that_are_not_kept(run, drawings, tmp_path):
    words = ("geodesic", *drawings, "--invert", "-o", tmp_path / "a.gif", "--times", 2)
    assert "Colours are not kept with this solver; the" in run(*words, "--solver", "linear").out
    assert "Colours are not kept with --reach; the" in run(*words, "--reach", 0.3).out
    assert "Colours" not in run("geodesic", *drawings, "--invert", "--solver", "linear").out


def test_pages_and_barycenters_have_no_colours(run, drawings, images, tmp_path):
    page = tmp_path / "a.html"
    words = ("geodesic", *drawings, "--invert", "-o", page, "--times", 2)
    assert "Colours are not kept in html pages; the" in run(*words).out
    assert "Colours" not in run(*words, "--cmap", "viridis").out
    words = ("barycenter", *drawings, "--invert", "-o")
    assert "Colours are not kept in barycenters; the" in run(*words, tmp_path / "a.png").out
    assert "Colours" not in run(*words, tmp_path / "a.npz").out
    assert "Colours" not in run("barycenter", *images[:2], "-o", tmp_path / "b.png").out


def test_large_animations(run_failing, images, tmp_path, monkeypatch):
    words = ("geodesic", *images[:2], "-o", tmp_path / "a.gif", "--times", 2)
    line = run_failing(*words, "--size", 100_000)
    assert "--size is 100000; give at most 4096 pixels" in line

    def exhaust(*_, **__):
        raise MemoryError

    monkeypatch.setattr("geonet.plotting.animation.draw_pictures", exhaust)
    assert "give a smaller --size" in run_failing(*words)


def test_hint_on_ink(run, drawings, images):
    files = " ".join(map(str, drawings))
    out = run("geodesic", *drawings).out
    hint = next(line for line in out.splitlines() if line.startswith("Hint: "))
    assert f"{drawings[0]} and {drawings[1]} look like dark ink" in hint
    assert hint.endswith("; --invert moves the ink."), files
    out = run("geodesic", drawings[0], images[0], "--blur", 1).out
    assert f"--invert-file {drawings[0]} moves the ink." in out
    assert "Hint" not in run("geodesic", *drawings, "--invert").out
    assert "Hint" not in run("geodesic", *images[:2]).out


def test_hint_on_ink_beside_a_bright_ground(run, drawings, tmp_path):
    """A drawing of much ink is not recognised alone, but its ground must not be mass."""
    picture = Image.new("L", (40, 40), 255)
    for bar in ((12, 0, 26, 39), (0, 12, 39, 26)):
        ImageDraw.Draw(picture).rectangle(bar, fill=0)
    picture.save(tmp_path / "plus.png")
    pair = drawings[0], tmp_path / "plus.png"
    assert "Hint" not in run("geodesic", pair[1], pair[1], "--solver", "linear").out
    hint = run("geodesic", *pair, "--solver", "linear").out.splitlines()[1]
    assert "plus.png has a bright ground" in hint
    assert hint.endswith("; --invert moves the ink of both.")
    words = ("geodesic", *pair, "--solver", "linear", "--invert-file", drawings[0])
    hint = run(*words).out.splitlines()[1]
    assert hint.startswith(f"Hint: the dark pixels of {drawings[0]} hold the mass, but")
    assert hint.endswith("; --invert moves the ink of both.")
    assert "Hint" not in run("geodesic", *pair, "--solver", "linear", "--invert").out


def test_invert_one_file(run, run_failing, drawings, images, tmp_path, line_pair):
    pair = drawings[0], images[0]
    answer = json.loads(run("geodesic", *pair, "--invert-file", drawings[0], "--json").out)
    assert answer["read"][0]["inverted"] and "inverted" not in answer["read"][1]
    assert not any("Hint" in line for line in answer["changed"])
    out = run("barycenter", *pair, "--invert-file", drawings[0]).out
    assert out.count(", inverted") == 1
    line = run_failing("geodesic", *pair, "--invert-file", images[1])
    assert "which is not among the files" in line
    line = run_failing("geodesic", *line_pair, "--invert-file", line_pair[0])
    assert "--invert-file is for images" in line


def test_invert_one_file_of_many_pairs(run, run_failing, drawings, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.csv").write_text("source,target\nink1.png,a.png\na.png,b.png\n")
    words = ("geodesic", "--pairs", "pairs.csv", "-o", "out", "--solver", "linear")
    assert "not among the files" in run_failing(*words, "--invert-file", "ink2.png")
    assert run(*words, "--invert-file", "ink1.png").code == 0
    path = geonet.load(tmp_path / "out" / "ink1-a.npz")
    assert path.source.values[0, 0] == 0 and path.target.values.min() > 0


# ---- Columns of tables


def test_columns(run, run_failing, write):
    rng = np.random.default_rng(0)
    rows = [
        f"place {k},{a:.3f},{b:.3f},{k % 3 + 1}" for k, (a, b) in enumerate(rng.random((60, 2)))
    ]
    table = write("a.csv", "\n".join(["name,lat,lon,weight", *rows]))
    plain = write("b.csv", "\n".join(["lat,lon", *(r.split(",", 1)[1][:11] for r in rows)]))
    out = run("geodesic", table, plain, "--columns", "lon, lat").out
    assert out.startswith("Counted: the points are counted in")
    assert "read as 60 points (lon, lat)" in out
    answer = json.loads(run("geodesic", plain, plain, "--json").out)
    assert answer["read"][0]["columns"] == ["lon", "lat"]
    assert "choose the coordinates with --columns, such as lon,lat" in run_failing(
        "geodesic", table, plain
    )
    assert "has no column 'x'" in run_failing("geodesic", table, plain, "--columns", "x,lat")
    assert "--columns is 'a,a'" in run_failing("geodesic", table, plain, "--columns", "a,a")


def test_columns_are_for_tables_with_a_header(run_failing, line_pair, write):
    line = run_failing("geodesic", *line_pair, "--columns", "lon,lat")
    assert "--columns is for tables with a header" in line
    plain = write("plain.csv", "1,2\n3,4\n5,6\n")
    line = run_failing("geodesic", plain, plain, "--columns", "lon,lat")
    assert "has no header" in line


# ---- Help


@pytest.mark.parametrize(
    ("command", "option"), [("app", "--no-browser"), ("geodesic", "--no-stamp")]
)
def test_switches_have_no_default_in_the_help(run, command, option):
    text = " ".join(run(command, "--help").out.split())
    assert option in text and "default: True" not in text and f"/{option}" not in text
