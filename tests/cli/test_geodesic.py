"""`geonet geodesic A B`: printed results, written files, notices and errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.plotting.figures import PLOT_KINDS


def assert_same_image(first, second):
    """Compare the pixels of two image files."""
    with Image.open(first) as a, Image.open(second) as b:
        assert np.array_equal(a.convert("RGB"), b.convert("RGB"))


# ---- Printed results


def test_prints_distance_solver_and_summary(run, line_pair):
    code, out, err = run("geodesic", *line_pair)
    assert (code, err) == (0, "")
    rows = dict(line.split("   ", 1) for line in out.splitlines())
    rows = {label.strip(): text.strip() for label, text in rows.items()}
    path = geonet.geodesic(*(geonet.read(file) for file in line_pair))
    assert rows["W2 distance"] == f"{float(path.distance):.4g}"
    assert rows["solver"] == "quantile"
    assert rows["grid"] == "40 cells on [0, 1]"
    assert rows["trust"] == str(path.report.summary())
    assert "written" not in rows and "mass error" not in rows


def test_report_is_a_panel(run, line_pair, tmp_path):
    file = tmp_path / "path.npz"
    out = run("geodesic", *line_pair, "--report", "-o", file).out
    path = geonet.load(file)
    assert out.startswith("╭─ report") and max(map(len, out.splitlines())) <= 100
    text = " ".join(out.replace("│", " ").split())  # lines are wrapped at the panel's width
    assert str(path.report.summary()) in text and " written " in out
    for label, _ in path.report.rows():
        assert f" {label} " in out


def test_json(run, line_pair, tmp_path):
    file = tmp_path / "path.npz"
    code, out, err = run("geodesic", *line_pair, "--json", "-o", file)
    answer = json.loads(out)
    assert (code, err) == (0, "")
    path = geonet.load(file)
    assert answer["distance"] == pytest.approx(float(path.distance))
    assert answer["solver"] == "quantile"
    assert answer["grid"] == {"shape": [40], "lower": [0.0], "upper": [1.0]}
    assert answer["report"]["mass_error"] < 1e-9
    assert answer["output"] == str(file)


def test_solver_without_distance(run, line_pair):
    assert "not given by this solver" in run("geodesic", *line_pair, "--solver", "linear").out
    answer = json.loads(run("geodesic", *line_pair, "--solver", "linear", "--json").out)
    assert answer["distance"] is None


def test_file_names_with_brackets(run, line_pair, tmp_path):
    file = tmp_path / "[bold]path.npz"
    assert str(file) in run("geodesic", *line_pair, "-o", file).out


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


def test_png_and_gif(run, image_pair, tmp_path):
    for name in ("path.png", "path.GIF"):
        code, _, err = run(
            "geodesic",
            *image_pair,
            "--solver",
            "linear",
            "-o",
            tmp_path / name,
            "--times",
            4,
            *(("--no-stamp",) if name == "path.GIF" else ()),
        )
        assert (code, err) == (0, "")
    with Image.open(tmp_path / "path.png") as figure:
        assert figure.format == "PNG" and figure.width > 1000
    with Image.open(tmp_path / "path.GIF") as animation:
        assert animation.n_frames == 6
        first = np.asarray(animation.convert("L")).astype(float)
    row, column = np.unravel_index(first.argmax(), first.shape)
    assert (column / first.shape[1], row / first.shape[0]) == pytest.approx(
        (8.5 / 24, 15.5 / 24), abs=0.05
    )


@pytest.mark.parametrize("kind", ["frames", "velocity", "tracks"])
def test_kinds_of_figures(run, image_pair, tmp_path, kind):
    file = tmp_path / "path.png"
    solver = ("--solver", "transport-2d")
    code, _, err = run("geodesic", *image_pair, *solver, "-o", file, "--plot", kind)
    assert (code, err) == (0, "")
    first, second = (geonet.read(name) for name in image_pair)
    expected = geonet.geodesic(first, second, "transport-2d").plot(kind=kind)
    expected.savefig(tmp_path / "expected.png")
    assert_same_image(file, tmp_path / "expected.png")


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


@pytest.mark.parametrize("kind", PLOT_KINDS)
def test_kinds_that_show_times(run_failing, line_pair, tmp_path, kind):
    """The check before torch is imported knows the same kinds as plotting."""
    options = ("--plot", kind, "--times", "5", "-o", tmp_path / "x.png", "--solver", "nothing")
    assert ("shows all times" not in run_failing("geodesic", *line_pair, *options)) == (
        PLOT_KINDS[kind]
    )


def test_options_reach_the_solver(run, image_pair):
    options = ("--option", "floor=0.2", "--option", "tolerance = 1e-2")
    answer = json.loads(
        run("geodesic", *image_pair, "--solver", "monge-ampere", *options, "--json").out
    )
    assert answer["solver"] == "monge-ampere"
    assert answer["report"]["info"]["floor"] == 0.2


def test_invert(run, tmp_path):
    files = tmp_path / "a.png", tmp_path / "b.png"
    for file, column in zip(files, (1, 2), strict=True):
        page = np.full((4, 4), 255, np.uint8)
        page[1, column] = 0
        Image.fromarray(page).save(file)
    answer = json.loads(
        run("geodesic", *files, "--invert", "--solver", "linear-program", "--json").out
    )
    assert answer["distance"] == pytest.approx(0.25)


def test_given_masses_are_drawn(run, write, tmp_path):
    pair = write("a.npy", np.full((8, 8), 5.0)), write("b.npy", np.ones((8, 8)))
    path = geonet.geodesic(*(geonet.read(file) for file in pair), "linear")
    for mass in ("one", "given"):
        options = ("--solver", "linear", "--mass", mass, "--vmax", 3, "--times", 3)
        assert run("geodesic", *pair, *options, "-o", tmp_path / "drawn.png").code == 0
        path.plot((0, 0.5, 1), mass=mass, vmax=3).savefig(tmp_path / "expected.png")
        assert_same_image(tmp_path / "drawn.png", tmp_path / "expected.png")


# ---- Errors


def test_bad_files(run_failing, write, image_pair, tmp_path):
    whole = image_pair[0]
    cases = {
        "There is no file": tmp_path / "nowhere.png",
        "as an image": write("cut.png", whole.read_bytes()[:200]),
        "1 of 3": write("nan.npy", [1.0, np.nan, 1.0]),
        "is empty": write("empty.csv", ""),
    }
    for message, file in cases.items():
        for pair in ((file, whole), (whole, file)):
            line = run_failing("geodesic", *pair)
            assert message in line and file.name in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--solver", "monge-ampère"), "did you mean 'monge-ampere'?"),
        (("--option", "floor=0.1", "--solver", "quantile"), "no option 'floor'"),
        (("--option", "floor"), "--option 'floor' is not NAME=VALUE"),
        (("--solver", "monge-ampere", "--option", "floor=much"), "'much'"),
        (("--solver", "monge-ampere", "--option", "floor=2"), "floor is 2"),
        (("--times", "5"), "--times applies to the output"),
        (("--times", "0,2", "-o", "x.npz"), "--times has t = 2 outside [0, 1]"),
        (("--times", "nan", "-o", "x.npz"), "--times has t = nan outside [0, 1]"),
        (("--times", "1", "-o", "x.npz"), "--times is 1; give a count of 2 to 10000"),
        (("--times", "101", "-o", "x.png"), "--times is 101; give a count of 2 to 100, or a list"),
        (("--times", "some", "-o", "x.npz"), "--times is 'some'; give a count of at least 2"),
        (("--times", ",", "-o", "x.npz"), "--times is empty"),
        (("--times", "0,1", "-o", "x.gif"), "give --times as a count"),
        (("--plot", "velocity", "-o", "x.gif"), "give -o FILE.png"),
        (("--plot", "arrows", "-o", "x.png"), "--plot is 'arrows'; choose from frames, velocity"),
        (("--plot", "slices", "-o", "x.png"), "3D"),
        (("--cmap", "magm", "-o", "x.png"), "did you mean 'magma'?"),
        (("--vmin", "2", "--vmax", "1", "-o", "x.png"), "vmax is 1"),
        (("--cmap", "gray", "-o", "x.npz"), "--cmap applies to pictures, and none is drawn"),
        (("--vmax", "1"), "--vmax applies to pictures, and none is drawn"),
        (("--plot", "tracks", "--norm", "log", "-o", "x.png"), "leave --norm out"),
        (("--no-stamp", "-o", "x.png"), "--no-stamp is for animations; give -o FILE.gif"),
        (("--missing", "zero"), "--missing is 'zero'"),
        (("--invert",), "--invert is for images and"),
        (("--resolution", "100000000", "-o", "x.npz"), "give a smaller --resolution"),
        (("-o", "x.jpeg"), "Cannot write x.jpeg: give a name that ends in .png, .npz, .gif"),
        (("-o", "nowhere/x.png"), "folder nowhere does not exist; create it first"),
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


@pytest.mark.parametrize("name", ["path.npz", "path.png", "path.gif"])
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
