"""`geonet geodesic A B`: printed results, written files, notices and errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import geonet


def assert_same_image(first, second):
    """Compare the pixels of two image files."""
    with Image.open(first) as a, Image.open(second) as b:
        assert np.array_equal(a.convert("RGB"), b.convert("RGB"))


# ---- Printed results


def test_prints_distance_solver_and_summary(run, line_pair, tmp_path):
    code, out, err = run("geodesic", *line_pair)
    assert (code, err) == (0, "")
    rows = dict(line.split("   ", 1) for line in out.splitlines())
    rows = {label.strip(): text.strip() for label, text in rows.items()}
    path = geonet.geodesic(*(geonet.read(file) for file in line_pair))
    assert rows["W2 distance"] == f"{float(path.distance):.4g}"
    assert rows["solver"] == "quantile" and rows["trust"] == str(path.report.summary())
    assert "not given by this solver" in run("geodesic", *line_pair, "--solver", "linear").out
    file = tmp_path / "[bold]path.npz"
    answer = json.loads(run("geodesic", *line_pair, "--json", "-o", file).out)
    assert answer["distance"] == pytest.approx(float(path.distance))
    assert answer["grid"] == {"shape": [40], "lower": [0.0], "upper": [1.0]}
    assert answer["report"]["mass_error"] < 1e-9 and answer["output"] == str(file)


def test_report_is_a_panel(run, line_pair, tmp_path):
    file = tmp_path / "path.npz"
    out = run("geodesic", *line_pair, "--report", "-o", file).out
    path = geonet.load(file)
    assert out.startswith("╭─ report") and max(map(len, out.splitlines())) <= 100
    text = " ".join(out.replace("│", " ").split())  # lines are wrapped at the panel's width
    assert str(path.report.summary()) in text and " written " in out
    for label, _ in path.report.rows():
        assert f" {label} " in out


# ---- Written files


def test_npz_contains_the_frames(run, line_pair, tmp_path):
    file = tmp_path / "path.npz"
    code, out, _ = run(
        "geodesic", *line_pair, "-o", file, "--times", "0,0.25,1", "--resolution", 80
    )
    assert code == 0
    assert str(file) in out
    with np.load(file) as saved:
        assert saved["times"].tolist() == [0, 0.25, 1]
        assert saved["density"].shape == (3, 80)
    expected = geonet.load(file).density(0.25, geonet.Grid(80))
    with np.load(file) as saved:
        assert saved["density"][1] == pytest.approx(expected.numpy())


def test_style_of_figures(run, image_pair, tmp_path):
    look = {"cmap": "viridis", "norm": "log", "vmin": 0.01, "vmax": 50.0}
    options = [part for name, value in look.items() for part in (f"--{name}", value)]
    first, second = (geonet.read(name) for name in image_pair)
    path = geonet.geodesic(first, second, "linear")
    path.plot(**look).savefig(tmp_path / "expected.png")
    path.animate(tmp_path / "expected.gif", 3, **look)
    for suffix, times in ((".png", 5), (".gif", 3)):
        file = tmp_path / f"path{suffix}"
        arguments = ("--solver", "linear", "--times", times, "-o", file, *options)
        assert run("geodesic", *image_pair, *arguments).code == 0
        assert_same_image(file, tmp_path / f"expected{suffix}")


# ---- Errors


def test_bad_files(run_failing, write, image_pair):
    cut = write("cut.png", image_pair[0].read_bytes()[:200])
    for pair in ((cut, image_pair[1]), (image_pair[1], cut)):
        line = run_failing("geodesic", *pair)
        assert "as an image" in line and "cut.png" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--option", "floor"), "--option 'floor' is not NAME=VALUE"),
        (("--solver", "monge-ampere", "--option", "floor=much"), "'much'"),
        (("--times", "5"), "--times applies to the output"),
        (("--times", "0,2", "-o", "x.npz"), "--times has t = 2 outside [0, 1]"),
        (("--times", "1", "-o", "x.npz"), "--times is 1; give a count of 2 to 10000"),
        (("--times", "101", "-o", "x.png"), "--times is 101; give a count of 2 to 100, or a list"),
        (("--times", "some", "-o", "x.npz"), "--times is 'some'; give a count of at least 2"),
        (("--times", "0,1", "-o", "x.gif"), "give --times as a count"),
        (("--plot", "velocity", "-o", "x.gif"), "give -o FILE.png"),
        (("--plot", "arrows", "-o", "x.png"), "--plot is 'arrows'; choose from frames, velocity"),
        (("--vmin", "2", "--vmax", "1", "-o", "x.png"), "vmax is 1"),
        (("--cmap", "gray", "-o", "x.npz"), "--cmap applies to pictures, and none is drawn"),
        (("--plot", "tracks", "--norm", "log", "-o", "x.png"), "leave --norm out"),
        (("--no-stamp", "-o", "x.png"), "--no-stamp is for animations; give -o FILE.gif"),
        (("--missing", "zero"), "--missing is 'zero'"),
        (("--invert",), "--invert is for images and"),
        (("--resolution", "100000000", "-o", "x.npz"), "give a smaller --resolution"),
        (("-o", "nowhere/x.png"), "folder nowhere does not exist; create it first"),
        (("-o", 300 * "x" + ".png"), "give another name"),
        (("-o", "x.jpeg"), "Cannot write x.jpeg: give a name that ends in .png, .npz, .gif"),
    ],
)
def test_bad_options(run_failing, line_pair, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in run_failing("geodesic", *line_pair, *arguments)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npy", "b.npy"]


def test_output_is_checked_first(run_failing, monkeypatch, line_pair):
    monkeypatch.setattr("geonet.geodesic", lambda *a, **k: pytest.fail("solved"))
    monkeypatch.setattr("geonet.cli.job.parse_file", lambda *a, **k: pytest.fail("read"))
    assert "Cannot write x.pdf" in run_failing("geodesic", *line_pair, "-o", "x.pdf")


@pytest.mark.parametrize("name", ["path.npz", "path.gif"])
def test_failed_write_keeps_the_old_file(run_failing, line_pair, tmp_path, monkeypatch, name):
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / name
    file.write_bytes(b"old")

    def full(*arguments, **options):
        target = next(a for a in arguments if getattr(a, "suffix", "") == file.suffix)
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numpy.savez", full)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    monkeypatch.setattr("PIL.Image.Image.save", full)
    line = run_failing("geodesic", *line_pair, "-o", file, "--times", 2)
    assert line == f"error: Cannot write {file}: No space left on device.\n"
    assert file.read_bytes() == b"old"
    assert list(folder.iterdir()) == [file]


def test_inputs_are_not_overwritten(run_failing, image_pair, monkeypatch):
    before = [file.read_bytes() for file in image_pair]
    monkeypatch.chdir(image_pair[0].parent)
    line = run_failing("geodesic", *image_pair, "-o", image_pair[0].name)
    assert "is one of the two input files" in line
    folder = image_pair[0].parent
    (folder / "link.png").symlink_to(image_pair[1])
    for other in (f"../{folder.name}/{image_pair[0].name}", "link.png"):
        assert "is one of the two input files" in run_failing("geodesic", *image_pair, "-o", other)
    assert [file.read_bytes() for file in image_pair] == before
