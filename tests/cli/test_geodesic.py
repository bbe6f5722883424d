"""`geonet geodesic A B`: printed results, written files, notices and errors."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import geonet
from geonet.cli import job as module
from geonet.cli.job import Job
from geonet.io import parse_file
from geonet.plotting.figures import PLOT_KINDS


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        file = tmp_path / name
        if isinstance(content, str | bytes):
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        elif isinstance(content, dict):
            np.savez(file, **content)
        else:
            np.save(file, content)
        return file

    return write


@pytest.fixture
def clouds(write):
    points = np.random.default_rng(0).normal(0, 1, (200, 2))
    files = []
    for name, cloud in (("a.csv", points), ("b.csv", points + np.array([3, 0]))):
        rows = "\n".join(f"{x},{y}" for x, y in cloud)
        files.append(write(name, f"x,y\n{rows}\n"))
    return files


def read_densities(source, target, notices=None, **options):
    """Return the densities that a job reads from two files."""
    job = Job("auto", {}, [], **options)
    return job.read_densities(*job.open_pair(source, target), [] if notices is None else notices)


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
    with Image.open(file) as drawn, Image.open(tmp_path / "expected.png") as expected_image:
        assert np.array_equal(np.asarray(drawn), np.asarray(expected_image))


def test_style_of_figures(run, image_pair, tmp_path):
    look = {"cmap": "viridis", "norm": "log", "vmin": 0.01, "vmax": 50.0}
    options = [part for name, value in look.items() for part in (f"--{name}", value)]
    first, second = (geonet.read(name) for name in image_pair)
    path = geonet.geodesic(first, second, "linear")
    path.plot(**look).savefig(tmp_path / "expected.png")
    path.animate(tmp_path / "expected.gif", 3, **look)
    for suffix, times in ((".png", 5), (".gif", 3)):
        file = tmp_path / f"path{suffix}"
        how = ("--solver", "linear", "--times", times, "-o", file, *options)
        assert run("geodesic", *image_pair, *how).code == 0
        with (
            Image.open(file) as drawn,
            Image.open(tmp_path / f"expected{suffix}") as expected_image,
        ):
            assert np.array_equal(drawn.convert("RGB"), expected_image.convert("RGB"))


@pytest.mark.parametrize("kind", PLOT_KINDS)
def test_kinds_that_show_times(run_failing, line_pair, tmp_path, kind):
    """The check before torch is imported knows the same kinds as plotting."""
    options = ("--plot", kind, "--times", "5", "-o", tmp_path / "x.png", "--solver", "nothing")
    assert ("shows all times" not in run_failing("geodesic", *line_pair, *options)) == (
        PLOT_KINDS[kind]
    )


def test_default_times(run, line_pair, tmp_path):
    run("geodesic", *line_pair, "-o", tmp_path / "path.npz")
    with np.load(tmp_path / "path.npz") as saved:
        assert saved["times"] == pytest.approx(np.linspace(0, 1, 11))


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


# ---- Two files on one grid


def test_clouds_share_a_box_with_square_cells(clouds):
    grid = Job("auto", {}, [], resolution=40).cloud_grid(*map(parse_file, clouds))
    points = np.concatenate([parse_file(file).points()[0] for file in clouds])
    lower, upper = points.min(0), points.max(0)
    assert max(grid.shape) == grid.shape[0] == 40
    assert grid.spacing[0] == pytest.approx(grid.spacing[1])
    margin = 0.05 * float((upper - lower).max())
    assert (np.asarray(grid.lower) <= lower - margin + 1e-9).all()
    assert (np.asarray(grid.upper) >= upper + margin - 1e-9).all()
    assert grid.lengths[0] == pytest.approx(float((upper - lower)[0]) + 2 * margin)


def test_distance_of_clouds(run, clouds):
    arguments = ("geodesic", *clouds, "--solver", "linear-program", "--json")
    answer = json.loads(run(*arguments, "--resolution", 32).out)
    assert answer["distance"] == pytest.approx(3, rel=0.02)
    assert max(answer["grid"]["shape"]) == 32


def test_clouds_have_64_cells_by_default(clouds):
    first, second = read_densities(*clouds)
    assert first.grid == second.grid
    assert max(first.grid.shape) == 64


@pytest.mark.parametrize("cloud_first", [True, False])
def test_cloud_is_counted_on_the_grid_of_a_density(write, cloud_first):
    files = [write("a.csv", "x,y\n0.1,0.1\n"), write("b.npy", np.ones((5, 5)))]
    pair = read_densities(*(files if cloud_first else files[::-1]))
    assert {density.grid for density in pair} == {geonet.Grid((5, 5))}


def test_coarser_density_is_resampled(run, write):
    coarse, fine = write("a.npy", [1.0, 3.0]), write("b.npy", [1.0, 1.0, 2.0, 2.0])
    first, second = read_densities(coarse, fine)
    assert first.tensor.tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5])
    assert second.tensor.tolist() == pytest.approx([2 / 3, 2 / 3, 4 / 3, 4 / 3])
    assert run("geodesic", coarse, fine).code == 0


# ---- Contents of files


@pytest.fixture
def headless(write):
    """Files of a cloud and of its translation by 0.4, without header."""
    points = 1 + np.random.default_rng(0).normal(0, 0.2, (200, 2))
    clouds = (points, points + np.array([0.4, 0]))
    text = ("\n".join(f"{x},{y}" for x, y in cloud) for cloud in clouds)
    return [write(f"{name}.csv", rows) for name, rows in zip("ab", text, strict=True)]


def test_tables_that_may_be_points_are_refused_with_both_remedies(run_failing, headless):
    line = run_failing("geodesic", *headless)
    assert "a.csv holds 200 rows of 2 numbers without a header" in line
    assert "may be points or the values of cells; give --points or --grid." in line


def test_points_and_grid_options(run, headless):
    solver = ("--solver", "linear-program", "--resolution", 24, "--json")
    answer = json.loads(run("geodesic", *headless, "--points", *solver).out)
    assert answer["distance"] == pytest.approx(0.4, rel=0.05)
    assert answer["read"] == [{"kind": "points", "points": 200}] * 2
    answer = json.loads(run("geodesic", *headless, "--grid", "--solver", "linear", "--json").out)
    assert answer["grid"]["shape"] == [200, 2]
    assert answer["read"] == [{"kind": "values", "shape": [200, 2], "missing": 0}] * 2


def test_contents_are_printed_first(run, headless, write):
    out = run("geodesic", *headless, "--points", "--solver", "linear").out.splitlines()
    assert out[0].startswith("Counted: ")
    assert [" ".join(line.split()) for line in out[1:3]] == [
        "source read as 200 points",
        "target read as 200 points",
    ]
    square = write("square.npy", np.ones((12, 12)))
    report = ("--report", "--solver", "linear")
    out = run("geodesic", square, square, *report).out
    assert out.count("read as 12×12 values") == 2


def test_points_option_applies_to_ambiguous_files_only(
    run, run_failing, headless, write, image_pair
):
    large = write("large.npz", {"values": np.ones((9, 9)), "lower": 0, "upper": 3})
    for pair in ((headless[0], large), (large, headless[0])):
        code, out, _ = run("geodesic", *pair, "--points", "--solver", "linear")
        assert code == 0 and "read as 200 points" in out and "read as 9×9 values" in out
    assert "--points fits neither" in run_failing("geodesic", *image_pair, "--points")
    cloud = write("cloud.csv", "x,y\n0,0\n1,1\n")
    assert "--grid fits neither" in run_failing("geodesic", cloud, cloud, "--grid")
    assert "--points and --grid exclude" in run_failing("geodesic", *headless, "--points", "--grid")


def test_one_column_is_a_histogram_by_default(run, write):
    files = [write(f"{k}.csv", "\n".join(str(k + x) for x in range(1, 6))) for k in (0, 3)]
    assert "read as 5 values" in run("geodesic", *files).out
    answer = json.loads(run("geodesic", *files, "--points", "--json").out)
    assert answer["distance"] == pytest.approx(3, rel=0.02)


def test_missing_cells(run, run_failing, write, tmp_path):
    values = np.ones((10, 10))
    values[:3] = np.nan
    gaps, whole = write("gaps.npy", values), write("whole.npy", np.ones((10, 10)))
    solver = ("--solver", "linear")
    line = run_failing("geodesic", whole, gaps, *solver)
    assert "gaps.npy" in line and "30 of 100" in line and "missing" in line
    out = run("geodesic", whole, gaps, *solver, "--missing", "exclude").out.splitlines()
    assert out[0].rstrip().endswith("read as 10×10 values")
    assert out[1].rstrip().endswith("read as 10×10 values; 30 % of its cells are missing")
    np.save(gaps, np.nan_to_num(values, nan=-9999))
    file = tmp_path / "path.npz"
    for missing, value in (("exclude", 0.0), ("1", 1.0)):
        options = ("--missing", missing, "--nodata", "-9999", "--json", "-o", file)
        answer = json.loads(run("geodesic", gaps, whole, *solver, *options).out)
        assert [read["missing"] for read in answer["read"]] == [30, 0]
        source = geonet.load(file).source.numpy(mass="given")
        assert source[:3].max() == pytest.approx(value)
    cloud = write("cloud.csv", "x,y\n0,0\n1,1\n")
    assert "--nodata is for cells, and" in run_failing("geodesic", cloud, cloud, "--nodata", 0)


def test_missing_pixels(run, image_pair, tmp_path):
    with Image.open(image_pair[0]) as image:
        pixels = np.array(image)
    pixels[:, :6] = 255
    Image.fromarray(pixels).save(image_pair[0])
    file = tmp_path / "path.npz"
    options = ("--solver", "linear", "--missing", "exclude", "--nodata", 255, "-o", file)
    assert "25 % of its cells are missing" in run("geodesic", *image_pair, *options).out
    source = geonet.load(file).source
    expected = geonet.from_image(image_pair[0], missing="exclude", nodata=255)
    assert torch.equal(source.tensor, expected.tensor)


def test_points_outside(run, run_failing, write):
    line, cells = write("line.csv", "x\n0.5\n7\n"), write("cells.npy", np.ones(10))
    assert "1 of 2 points lie outside" in run_failing("geodesic", line, cells)
    assert run("geodesic", line, cells, "--outside", "drop").code == 0
    assert "--outside is 'nan'" in run_failing("geodesic", line, cells, "--outside", "nan")


def test_given_masses_are_written(run, run_failing, write, tmp_path):
    """Check also images that are padded to squares."""
    file = tmp_path / "path.npz"
    pair = write("a.npy", np.full((8, 4), 5.0)), write("b.npy", np.ones((4, 8)))
    solver = ("--solver", "linear")
    for options, expected in (((), [1, 1, 1]), (("--mass", "given"), [2.5, 1.5, 0.5])):
        assert run("geodesic", *pair, *solver, "-o", file, "--times", 3, *options).code == 0
        with np.load(file) as saved:
            assert saved["mass"].tolist() == pytest.approx(expected)
            assert (saved["density"].sum((1, 2)) / 64).tolist() == pytest.approx(expected)
    assert "--mass is 'two'; give one or given" in run_failing("geodesic", *pair, "--mass", "two")
    line = run_failing("geodesic", *pair, "--mass", "given")
    assert "--mass applies to the output, and there is none" in line


def test_given_masses_are_drawn(run, run_failing, write, tmp_path):
    pair = write("a.npy", np.full((8, 8), 5.0)), write("b.npy", np.ones((8, 8)))
    path = geonet.geodesic(*(geonet.read(file) for file in pair), "linear")
    figure = tmp_path / "drawn.png"
    for mass in ("one", "given"):
        options = ("--solver", "linear", "--mass", mass, "--vmax", 3, "--times", 3)
        for suffix in ("png", "gif"):
            file = tmp_path / f"{mass}.{suffix}"
            assert run("geodesic", *pair, *options, "-o", file).code == 0
        path.plot((0, 0.5, 1), mass=mass, vmax=3).savefig(figure, format="png")
        path.animate(tmp_path / "drawn.gif", 3, mass=mass, vmax=3)
        for suffix in ("png", "gif"):
            with (
                Image.open(tmp_path / f"{mass}.{suffix}") as drawn,
                Image.open(tmp_path / f"drawn.{suffix}") as expected,
            ):
                assert np.array_equal(drawn.convert("RGB"), expected.convert("RGB"))
    low = ("--solver", "linear", "--vmin", 2, "-o", tmp_path / "low.png")
    assert run("geodesic", *pair, *low, "--mass", "given").code == 0
    assert "vmin" in run_failing("geodesic", *pair, *low)


# ---- Errors


def test_bad_files(run_failing, write, image_pair, tmp_path):
    whole = image_pair[0]
    np.savez(tmp_path / "whole.npz", values=np.random.default_rng(0).random((8, 8)))
    cases = {
        "There is no file": tmp_path / "nowhere.png",
        "is 1×1 pixels": tmp_path / "pixel.png",
        "as an image": write("cut.png", whole.read_bytes()[:200]),
        "as an npz archive": write("cut.npz", (tmp_path / "whole.npz").read_bytes()[:300]),
        "1 of 3": write("nan.npy", [1.0, np.nan, 1.0]),
        "a density has one to 3 axes": write("rank.npy", np.ones((2, 2, 2, 2))),
        "suffix '.doc'": write("text.doc", "x"),
        "holds pickled objects": write("pickle.npy", np.array([None, 1], dtype=object)),
        "is empty": write("empty.csv", ""),
    }
    Image.new("L", (1, 1), 255).save(tmp_path / "pixel.png")
    for message, file in cases.items():
        for pair in ((file, whole), (whole, file)):
            line = run_failing("geodesic", *pair)
            assert message in line and file.name in line


def test_saved_geodesic_is_not_a_density(run_failing, run, line_pair, tmp_path):
    run("geodesic", *line_pair, "-o", tmp_path / "path.npz")
    assert "is a saved geodesic" in run_failing("geodesic", tmp_path / "path.npz", line_pair[0])


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


def test_solver_of_the_wrong_dimension(run_failing, image_pair):
    line = run_failing("geodesic", *image_pair, "--solver", "quantile")
    assert "The solver 'quantile' takes 1D densities, these are 2D" in line


def test_different_boxes_and_dimensions(run_failing, write, line_pair):
    boxes = [write(f"{n}.npz", {"values": np.ones(4), "lower": 0, "upper": n}) for n in (1, 2)]
    assert "lie on different grids" in run_failing("geodesic", *boxes)
    plane = write("plane.npy", np.ones((4, 4)))
    line = run_failing("geodesic", line_pair[0], plane)
    assert "is 1D and" in line and "is 2D; give two files of one dimension." in line


def test_images_of_different_proportions_are_padded(write):
    wide, tall = write("wide.npy", np.ones((8, 4))), write("tall.npy", np.ones((4, 8)))
    first, second = read_densities(wide, tall)
    assert first.grid == second.grid == geonet.Grid((8, 8))
    assert float(first.tensor[:, :2].sum()) == float(second.tensor[:2].sum()) == 0
    assert np.allclose(first.mean(), 0.5) and np.allclose(second.mean(), 0.5)


def test_large_images_are_coarsened(write):
    large = write("large.npy", np.random.default_rng(0).random((1200, 300)))
    notices: list[str] = []
    first, _ = read_densities(large, large, notices)
    assert first.grid.shape == (1024, 256)
    assert notices == [
        "Coarsened: 1200×300 cells are solved on 1024×256 (--resolution 1200 keeps all)."
    ]
    notices = []
    first, _ = read_densities(large, large, notices, resolution=40)
    assert first.grid.shape == (40, 10)
    assert notices[0].startswith("Coarsened: 1200×300 cells are solved on 40×10 (")


def test_clouds_that_do_not_match(run_failing, write, line_pair):
    plane, line = write("plane.csv", "x,y\n0,0\n"), write("line.csv", "x\n0.5\n7\n")
    assert "has points in 2D and" in run_failing("geodesic", plane, line)
    assert "coincide; there is nothing to move" in run_failing("geodesic", plane, plane)
    assert "--invert is for images" in run_failing("geodesic", plane, plane, "--invert")


def test_zeros_need_a_floor(run_failing, write):
    spot = np.zeros((8, 8))
    spot[2, 3] = 1
    file = write("spot.npy", spot)
    line = run_failing("geodesic", file, file, "--solver", "monge-ampere")
    assert "zero" in line and "floor" in line


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


def test_blur(run, write, tmp_path):
    values = np.random.default_rng(0).random((12, 12))
    file, out = write("noise.npy", values), tmp_path / "path.npz"
    run("geodesic", file, file, "--blur", 1.5, "--solver", "linear", "-o", out)
    expected = geonet.Density(values, geonet.Grid((12, 12))).gaussian_blur(1.5)
    assert torch.equal(geonet.load(out).source.tensor, expected.tensor)


def test_unused_nodata_is_reported(run, write):
    file = write("whole.npy", np.ones((12, 12)))
    out = run("geodesic", file, file, "--solver", "linear", "--nodata", -9).out
    assert out.startswith("Unused: no cell has the value of --nodata, -9.\n")


def test_lines_have_no_trailing_spaces(run, write):
    file = write("whole.npy", np.ones((12, 12)))
    lines = run("geodesic", file, file, "--solver", "linear").out.splitlines()
    assert lines and all(line == line.rstrip() for line in lines)


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


def test_invert_applies_to_the_image_only(run, image_pair, write, tmp_path):
    pixels = np.asarray(Image.open(image_pair[0]).convert("L"))
    table = write("ink.npy", 255 - pixels.astype(float))
    answer = json.loads(run("geodesic", image_pair[0], table, "--invert", "--json").out)
    assert answer["distance"] == pytest.approx(0, abs=1e-6)


# ---- Notices: changes to the problem are the first lines of the output


def blobs(shape, count=2):
    """Return smooth positive densities."""
    y, x = np.mgrid[0 : shape[0], 0 : shape[1]] / max(shape)
    return [1 + np.exp(-((x - 0.2 - 0.1 * k) ** 2 + (y - 0.2) ** 2) / 0.02) for k in range(count)]


def atoms(seed):
    """Return mass in a few separate cells."""
    values = np.zeros((16, 16))
    values[::4, seed::5] = 1
    return values


@pytest.fixture
def few_cells(monkeypatch):
    """Limit of 16 cells along the longest side in 2D."""
    monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, side=(64, 16, 16)))


COARSENED = "Coarsened: 24×12 cells are solved on 16×8 (--resolution 24 keeps all)."
NOTICES = {  # two arrays, options, start of the first line
    "coarsened": (blobs((24, 12)), (), COARSENED),
    "padded": ([blobs((12, 6))[0], blobs((6, 12))[1]], (), "Padded: 12×6 and 6×12 cells"),
    "resampled": (
        [blobs((6, 6))[0], blobs((12, 12))[1]],
        (),
        "Resampled: 6×6 and 12×12 cells are both brought to 12×12.",
    ),
    "linear program": (
        blobs((12, 12)),
        ("--solver", "linear-program", "--option", "max_cells=36", "--option", "coarsen=true"),
        "Coarsened: solved on 6×6 cells, not on 12×12",
    ),
    "floor": (
        blobs((12, 12)),
        ("--solver", "monge-ampere", "--option", "floor=0.02"),
        "Changed: 2 % of the mass",
    ),
    "noise": (blobs((12, 12)), ("--solver", "schrodinger"), "Changed: epsilon is 0.003472"),
    "atoms": ([atoms(0), atoms(1)], (), "Chosen: linear-program"),
}


@pytest.mark.parametrize("case", NOTICES)
def test_notices(run, write, few_cells, case):
    ends, arguments, sentence = NOTICES[case]
    files = [write(f"{k}.npy", end) for k, end in enumerate(ends)]
    for more in ((), ("--report",)):
        code, out, err = run("geodesic", *files, *arguments, *more)
        assert (code, err) == (0, "") and out.startswith(sentence)
    answer = json.loads(run("geodesic", *files, *arguments, "--json").out)
    assert len(answer["changed"]) == 1 and answer["changed"][0].startswith(sentence)


def test_no_notice_without_a_change(run, write, few_cells):
    """Check files above the default limit at their own resolution."""
    files = [write(f"{k}.npy", end) for k, end in enumerate(blobs((24, 12)))]
    assert run("geodesic", *files, "--resolution", 24).out.startswith("source ")
    answer = json.loads(run("geodesic", *files, "--resolution", 24, "--json").out)
    assert answer["changed"] == [] and answer["grid"]["shape"] == [24, 12]


def test_notices_of_many_pairs(run, write, tmp_path, monkeypatch, few_cells):
    monkeypatch.chdir(tmp_path)
    for k, end in enumerate([*blobs((24, 12)), *blobs((8, 8))]):
        write(f"{k}.npy", end)
    (tmp_path / "pairs.csv").write_text("source,target\n0.npy,1.npy\n2.npy,3.npy\n")
    for _ in range(2):  # solved, then from the summary
        code, out, _ = run("geodesic", "--pairs", "pairs.csv", "-o", "out")
        assert code == 0 and out.splitlines()[1].startswith("1 pair coarsened or changed")
    with (tmp_path / "out" / "summary.csv").open(newline="") as stream:
        assert [row["changed"] for row in csv.DictReader(stream)] == [COARSENED, ""]
