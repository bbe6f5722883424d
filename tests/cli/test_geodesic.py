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
    assert answer["grid"] == {
        "shape": [40],
        "lower": [0.0],
        "upper": [1.0],
        "periodic": [False],
    }
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


@pytest.mark.filterwarnings("always::geonet.errors.ConvergenceWarning")
def test_advice_names_options_of_the_command_line(run, image_pair, line_pair):
    options = ("--solver", "back-and-forth", "--option", "max_iterations=1")
    code, out, err = run("geodesic", *image_pair, *options)
    assert code == 1 and "use a larger --option max_iterations=…" in err
    assert "Give a larger --option max_iterations=…" in " ".join(out.split())
    for report in ((), ("--report",)):
        out = run("geodesic", *line_pair, "--solver", "linear", *report).out
        text = " ".join(out.replace("│", " ").split())
        assert "Choose --solver auto for the geodesic." in text and "command line" not in text


def test_ink_without_brightness_names_the_option(run_failing, tmp_path):
    """Black ink on a transparent ground."""
    files = tmp_path / "a.png", tmp_path / "b.png"
    for k, file in enumerate(files):
        pixels = np.zeros((32, 32, 4), np.uint8)
        pixels[8 + k : 16 + k, 8:16, 3] = 255
        Image.fromarray(pixels).save(file)
    assert "--invert makes dark pixels hold the mass" in run_failing("geodesic", *files)


# ---- Unequal masses and periodic axes


def read_rows(out):
    rows = (line.split("   ", 1) for line in out.splitlines())
    return {label.strip(): text.strip() for label, text in rows}


@pytest.mark.parametrize("growth", [None, "wfr"])
def test_reach(run, image_pair, tmp_path, growth):
    file, options = tmp_path / "path.npz", {"reach": 0.3}
    words = ["--reach", 0.3]
    if growth is not None:
        words, options = [*words, "--growth", growth], options | {"growth": growth}
    rows = read_rows(run("geodesic", *image_pair, *words, "-o", file).out)
    path = geonet.geodesic(*(geonet.read(name) for name in image_pair), **options)
    report = path.report
    assert rows["cost"] == f"{report.cost:.4g}" and "W2 distance" not in rows
    assert float(rows["cost at least"]) <= report.cost_lower_bound
    assert float(rows["cost at most"]) >= report.cost_upper_bound
    assert float(rows["transported share"]) == pytest.approx(report.transported_share, rel=1e-3)
    with np.load(file) as saved:  # frames have their own masses
        assert saved["density"].mean((1, 2)) == pytest.approx(saved["mass"], rel=1e-6)
    answer = json.loads(run("geodesic", *image_pair, *words, "--json").out)
    assert answer["cost"] == pytest.approx(report.cost)
    assert answer["report"]["cost_upper_bound"] == pytest.approx(report.cost_upper_bound)
    assert answer["report"]["transported_share"] == pytest.approx(report.transported_share)


def test_reach_is_for_solvers_that_have_one(run_failing, line_pair):
    failing = lambda *words: run_failing("geodesic", *line_pair, *words)  # noqa: E731
    line = failing("--reach", 0.2, "--solver", "quantile")
    assert "takes no reach; choose one of auto, midpoint" in line
    assert "give a finite length above 0" in failing("--reach", 0)
    assert "give a finite length above 0" in failing("--reach", "nan")
    assert "give 'hellinger' or 'wfr'" in failing("--reach", 1, "--growth", "fast")
    assert "give --reach LENGTH, too" in failing("--growth", "wfr")
    assert "are the same" in failing("--reach", 1, "--option", "reach=2")


def test_periodic(run, image_pair):
    def solve(*words):
        return json.loads(run("geodesic", *words, "--json").out)

    values = [geonet.read(file).numpy() for file in image_pair]
    for words, flags in {
        (*image_pair, "--periodic"): [True, True],
        ("--periodic", *image_pair): [True, True],
        (*image_pair, "--periodic", "1"): [False, True],
        ("--periodic", "0,1", *image_pair): [True, True],
    }.items():
        answer = solve(*words)
        assert answer["grid"]["periodic"] == flags
        grid = geonet.Grid((24, 24), periodic=flags)
        path = geonet.geodesic(*(geonet.Density(v, grid) for v in values))
        assert answer["distance"] == pytest.approx(float(path.distance), rel=1e-6)


def test_periodic_axes_that_do_not_exist(run_failing, image_pair, line_pair, write):
    failing = lambda *words: run_failing("geodesic", *words)  # noqa: E731
    assert "has the axes 0 and 1" in failing(*image_pair, "--periodic", "0,2")
    assert "has axis 0 only" in failing(*line_pair, "--periodic", "1")
    assert "--periodic is 'x'" in failing(*line_pair, "--periodic=x")
    assert "takes no periodic axes" in failing(*image_pair, "--periodic", "--solver", "bures")
    cloud = write("cloud.csv", "x,y\n0.1,0.2\n0.5,0.6\n")
    assert "holds points" in failing(cloud, cloud, "--periodic")
    wide, tall = write("wide.npy", np.ones((8, 4))), write("tall.npy", np.ones((4, 8)))
    assert "lie on different grids" in failing(wide, tall, "--periodic")


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
        (("--invert",), "--invert is for images, and"),
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
    monkeypatch.setattr("geonet.cli.reading.parse_file", lambda *a, **k: pytest.fail("read"))
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
    assert "is one of the input files" in line
    folder = image_pair[0].parent
    (folder / "link.png").symlink_to(image_pair[1])
    for other in (f"../{folder.name}/{image_pair[0].name}", "link.png"):
        assert "is one of the input files" in run_failing("geodesic", *image_pair, "-o", other)
    assert [file.read_bytes() for file in image_pair] == before
