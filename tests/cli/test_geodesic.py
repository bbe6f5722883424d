"""`geonet geodesic A B`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

import geonet
from geonet.cli.geodesic import PLOTS
from geonet.cli.job import common_grid, gathered, read_pair
from geonet.io import parse_file, read_points
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


# ---- what it prints


def test_prints_distance_solver_and_verdict(run, line_pair):
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


def test_the_report_is_a_panel(run, line_pair, tmp_path):
    file = tmp_path / "path.npz"
    out = run("geodesic", *line_pair, "--report", "-o", file).out
    path = geonet.load(file)
    assert out.startswith("╭─ report") and max(map(len, out.splitlines())) <= 100
    text = " ".join(out.replace("│", " ").split())  # lines are broken at the panel's width
    assert str(path.report.summary()) in text and " written " in out
    for label, _ in path.report.rows():
        assert f" {label} " in out


def test_json_is_all_that_is_printed(run, line_pair, tmp_path):
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


# ---- what it writes


def test_npz_holds_the_frames(run, line_pair, tmp_path):
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
def test_kinds_of_pictures(run, image_pair, tmp_path, kind):
    file = tmp_path / "path.png"
    solver = ("--solver", "transport-2d")
    code, _, err = run("geodesic", *image_pair, *solver, "-o", file, "--plot", kind)
    assert (code, err) == (0, "")
    first, second = (geonet.read(name) for name in image_pair)
    expected = geonet.geodesic(first, second, "transport-2d").plot(kind=kind)
    expected.savefig(tmp_path / "expected.png")
    with Image.open(file) as found, Image.open(tmp_path / "expected.png") as wanted:
        assert np.array_equal(np.asarray(found), np.asarray(wanted))


def test_the_look_of_pictures(run, image_pair, tmp_path):
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
        with Image.open(file) as found, Image.open(tmp_path / f"expected{suffix}") as wanted:
            assert np.array_equal(found.convert("RGB"), wanted.convert("RGB"))


def test_kinds_are_those_of_the_plots():
    assert PLOT_KINDS == PLOTS


def test_times_by_default(run, line_pair, tmp_path):
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


def test_invert_takes_ink(run, tmp_path):
    files = tmp_path / "a.png", tmp_path / "b.png"
    for file, column in zip(files, (1, 2), strict=True):
        page = np.full((4, 4), 255, np.uint8)
        page[1, column] = 0
        Image.fromarray(page).save(file)
    answer = json.loads(
        run("geodesic", *files, "--invert", "--solver", "linear-program", "--json").out
    )
    assert answer["distance"] == pytest.approx(0.25)


# ---- how two files meet


def test_clouds_share_a_box_with_square_cells(clouds):
    grid = common_grid(*map(parse_file, clouds), 40)
    points = torch.cat([read_points(file)[0] for file in clouds])
    lower, upper = points.amin(0), points.amax(0)
    assert max(grid.shape) == grid.shape[0] == 40
    assert grid.spacing[0] == pytest.approx(grid.spacing[1])
    margin = 0.05 * float((upper - lower).max())
    assert (grid.lower_tensor <= lower - margin + 1e-9).all()
    assert (grid.upper_tensor >= upper + margin - 1e-9).all()
    assert grid.lengths[0] == pytest.approx(float((upper - lower)[0]) + 2 * margin)


def test_distance_of_clouds(run, clouds):
    arguments = ("geodesic", *clouds, "--solver", "linear-program", "--json")
    answer = json.loads(run(*arguments, "--resolution", 32).out)
    assert answer["distance"] == pytest.approx(3, rel=0.02)
    assert max(answer["grid"]["shape"]) == 32


def test_clouds_have_64_cells_by_default(clouds):
    first, second = read_pair(*clouds, invert=False, resolution=None)
    assert first.grid == second.grid
    assert max(first.grid.shape) == 64


@pytest.mark.parametrize("cloud_first", [True, False])
def test_cloud_and_density_share_the_grid_of_the_density(write, cloud_first):
    files = [write("a.csv", "x,y\n0.1,0.1\n"), write("b.npy", np.ones((5, 5)))]
    pair = read_pair(*(files if cloud_first else files[::-1]), invert=False, resolution=None)
    assert {density.grid for density in pair} == {geonet.Grid((5, 5))}


def test_the_coarser_density_is_brought_to_the_finer_cells(run, write):
    coarse, fine = write("a.npy", [1.0, 3.0]), write("b.npy", [1.0, 1.0, 2.0, 2.0])
    first, second = read_pair(coarse, fine, invert=False, resolution=None)
    assert first.tensor.tolist() == pytest.approx([0.5, 0.5, 1.5, 1.5])
    assert second.tensor.tolist() == pytest.approx([2 / 3, 2 / 3, 4 / 3, 4 / 3])
    assert run("geodesic", coarse, fine).code == 0


# ---- what the files hold


@pytest.fixture
def headless(write):
    """A cloud and the same 0.4 to the right, without header."""
    points = 1 + np.random.default_rng(0).normal(0, 0.2, (200, 2))
    clouds = (points, points + np.array([0.4, 0]))
    text = ("\n".join(f"{x},{y}" for x, y in cloud) for cloud in clouds)
    return [write(f"{name}.csv", rows) for name, rows in zip("ab", text, strict=True)]


def test_tables_that_may_be_points_are_refused_with_both_remedies(refused, headless):
    line = refused("geodesic", *headless)
    assert "a.csv holds 200 rows of 2 numbers without a header" in line
    assert "may be points or the values of cells; give --points or --grid." in line


def test_points_and_grid_say_what_tables_hold(run, headless):
    solver = ("--solver", "linear-program", "--resolution", 24, "--json")
    answer = json.loads(run("geodesic", *headless, "--points", *solver).out)
    assert answer["distance"] == pytest.approx(0.4, rel=0.05)
    assert answer["read"] == [{"kind": "points", "points": 200}] * 2
    answer = json.loads(run("geodesic", *headless, "--grid", "--solver", "linear", "--json").out)
    assert answer["grid"]["shape"] == [200, 2]
    assert answer["read"] == [{"kind": "values", "shape": [200, 2], "without_data": 0}] * 2


def test_what_was_read_comes_first(run, headless, write):
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


def test_points_concern_only_files_that_may_hold_them(run, refused, headless, write, image_pair):
    large = write("large.npz", {"values": np.ones((9, 9)), "lower": 0, "upper": 3})
    for pair in ((headless[0], large), (large, headless[0])):
        code, out, _ = run("geodesic", *pair, "--points", "--solver", "linear")
        assert code == 0 and "read as 200 points" in out and "read as 9×9 values" in out
    assert "--points fits neither" in refused("geodesic", *image_pair, "--points")
    cloud = write("cloud.csv", "x,y\n0,0\n1,1\n")
    assert "--grid fits neither" in refused("geodesic", cloud, cloud, "--grid")
    assert "--points and --grid exclude" in refused("geodesic", *headless, "--points", "--grid")


def test_one_column_is_a_histogram_unless_it_is_points(run, write):
    files = [write(f"{k}.csv", "\n".join(str(k + x) for x in range(1, 6))) for k in (0, 3)]
    assert "read as 5 values" in run("geodesic", *files).out
    answer = json.loads(run("geodesic", *files, "--points", "--json").out)
    assert answer["distance"] == pytest.approx(3, rel=0.02)


def test_cells_without_data(run, refused, write, tmp_path):
    values = np.ones((10, 10))
    values[:3] = np.nan
    gaps, whole = write("gaps.npy", values), write("whole.npy", np.ones((10, 10)))
    solver = ("--solver", "linear")
    line = refused("geodesic", whole, gaps, *solver)
    assert (
        "gaps.npy" in line and "30 of 100 values are NaN; fill them, or give --nodata nan" in line
    )
    out = run("geodesic", whole, gaps, *solver, "--nodata", "nan").out.splitlines()
    assert out[0].rstrip().endswith("read as 10×10 values")
    assert (
        out[1]
        .rstrip()
        .endswith("read as 10×10 values; 30 % of its cells have no data and count as empty")
    )
    np.save(gaps, np.nan_to_num(values, nan=-9999))
    file = tmp_path / "path.npz"
    options = ("--nodata", "-9999", "--json", "-o", file)
    answer = json.loads(run("geodesic", gaps, whole, *solver, *options).out)
    assert [read["without_data"] for read in answer["read"]] == [30, 0]
    assert float(geonet.load(file).source.tensor[:3].max()) == 0
    cloud = write("cloud.csv", "x,y\n0,0\n1,1\n")
    assert "--nodata is for cells, and" in refused("geodesic", cloud, cloud, "--nodata", 0)


def test_pixels_without_data(run, image_pair, tmp_path):
    with Image.open(image_pair[0]) as image:
        pixels = np.array(image)
    pixels[:, :6] = 255
    Image.fromarray(pixels).save(image_pair[0])
    file = tmp_path / "path.npz"
    options = ("--solver", "linear", "--nodata", 255, "-o", file)
    assert "25 % of its cells have no data" in run("geodesic", *image_pair, *options).out
    source = geonet.load(file).source
    assert torch.equal(source.tensor, geonet.from_image(image_pair[0], nodata=255).tensor)


def test_masses_of_the_files_are_kept(run, refused, write, tmp_path):
    """Also where pictures of different proportions are padded."""
    file = tmp_path / "path.npz"
    pair = write("a.npy", np.full((8, 4), 5.0)), write("b.npy", np.ones((4, 8)))
    solver = ("--solver", "linear")
    for options, expected in (((), [1, 1, 1]), (("--mass", "given"), [2.5, 1.5, 0.5])):
        assert run("geodesic", *pair, *solver, "-o", file, "--times", 3, *options).code == 0
        with np.load(file) as saved:
            assert saved["mass"].tolist() == pytest.approx(expected)
            assert (saved["density"].sum((1, 2)) / 64).tolist() == pytest.approx(expected)
    assert "--mass is 'two'; give one or given" in refused("geodesic", *pair, "--mass", "two")
    line = refused("geodesic", *pair, "--mass", "given")
    assert "--mass says what to write, and nothing is; add -o FILE" in line


def test_pictures_take_the_masses_of_the_files(run, refused, write, tmp_path):
    pair = write("a.npy", np.full((8, 8), 5.0)), write("b.npy", np.ones((8, 8)))
    path = geonet.geodesic(*(geonet.read(file) for file in pair), "linear")
    drawn = tmp_path / "drawn.png"
    for mass in ("one", "given"):
        options = ("--solver", "linear", "--mass", mass, "--vmax", 3, "--times", 3)
        for suffix in ("png", "gif"):
            file = tmp_path / f"{mass}.{suffix}"
            assert run("geodesic", *pair, *options, "-o", file).code == 0
        path.plot((0, 0.5, 1), mass=mass, vmax=3).savefig(drawn, format="png")
        path.animate(tmp_path / "drawn.gif", 3, mass=mass, vmax=3)
        for suffix in ("png", "gif"):
            with (
                Image.open(tmp_path / f"{mass}.{suffix}") as found,
                Image.open(tmp_path / f"drawn.{suffix}") as expected,
            ):
                assert np.array_equal(found.convert("RGB"), expected.convert("RGB"))
    low = ("--solver", "linear", "--vmin", 2, "-o", tmp_path / "low.png")
    assert run("geodesic", *pair, *low, "--mass", "given").code == 0
    assert "give a smaller --vmin" in refused("geodesic", *pair, *low)


# ---- what it refuses


def test_bad_files_have_their_own_line(refused, write, image_pair, tmp_path):
    whole = image_pair[0]
    np.savez(tmp_path / "whole.npz", values=np.random.default_rng(0).random((8, 8)))
    cases = {
        "There is no file": tmp_path / "nowhere.png",
        "is 1×1 pixels": tmp_path / "pixel.png",
        "as an image": write("cut.png", whole.read_bytes()[:200]),
        "as an npz archive": write("cut.npz", (tmp_path / "whole.npz").read_bytes()[:300]),
        "1 of 3 values are NaN": write("nan.npy", [1.0, np.nan, 1.0]),
        "a density has one to 3 axes": write("rank.npy", np.ones((2, 2, 2, 2))),
        "suffix '.doc'": write("text.doc", "x"),
        "holds pickled objects": write("pickle.npy", np.array([None, 1], dtype=object)),
        "is empty": write("empty.csv", ""),
    }
    Image.new("L", (1, 1), 255).save(tmp_path / "pixel.png")
    for message, file in cases.items():
        for pair in ((file, whole), (whole, file)):
            line = refused("geodesic", *pair)
            assert message in line and file.name in line


def test_saved_geodesic_is_no_density(refused, run, line_pair, tmp_path):
    run("geodesic", *line_pair, "-o", tmp_path / "path.npz")
    assert "is a saved geodesic" in refused("geodesic", tmp_path / "path.npz", line_pair[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--solver", "monge-ampère"), "no solver 'monge-ampère'; did you mean 'monge-ampere'?"),
        (("--solver", "barycentre"), "did you mean 'barycenter'?"),
        (("--option", "floor=0.1", "--solver", "quantile"), "has no option 'floor'; it takes none"),
        (("--option", "floor"), "--option 'floor' is not NAME=VALUE"),
        (
            ("--solver", "monge-ampere", "--option", "floor=much"),
            "The option floor of 'monge-ampere' is 'much'; it takes a number",
        ),
        (
            ("--solver", "monge-ampere", "--option", "max_iterations=2.5"),
            "it takes a whole number",
        ),
        (("--solver", "linear-program", "--option", "coarsen=1"), "it takes true or false"),
        (("--solver", "monge-ampere", "--option", "floor=2"), "floor is 2; give a share"),
        (("--times", "5"), "--times says what to write, and nothing is; add -o FILE"),
        (("--times", "0,2", "-o", "x.npz"), "--times has t = 2 outside [0, 1]"),
        (("--times", "-0.5", "-o", "x.npz"), "--times has t = -0.5 outside [0, 1]"),
        (("--times", "nan", "-o", "x.npz"), "--times has t = nan outside [0, 1]"),
        (("--times", "1", "-o", "x.npz"), "--times is 1; give a count of 2 to 10000"),
        (("--times", "101", "-o", "x.png"), "--times is 101; give a count of 2 to 100, or a list"),
        (("--times", "some", "-o", "x.npz"), "--times is 'some'; give a count of at least 2"),
        (("--times", ",", "-o", "x.npz"), "--times is empty"),
        (("--times", "0,1", "-o", "x.gif"), "give --times as a count"),
        (("--plot", "velocity", "-o", "x.gif"), "--plot says what a png shows; give -o FILE.png"),
        (("--plot", "arrows", "-o", "x.png"), "--plot is 'arrows'; choose from frames, velocity"),
        (("--plot", "tracks", "--times", "3", "-o", "x.png"), "shows all times; leave --times out"),
        (("--plot", "slices", "-o", "x.png"), "3D"),
        (("--cmap", "magm", "-o", "x.png"), "--cmap is 'magm'; did you mean 'magma'?"),
        (("--norm", "logs", "-o", "x.gif"), "--norm is 'logs'; did you mean 'log'?"),
        (("--cmap", "3", "-o", "x.png"), "--cmap is '3'; give a name such as 'magma'"),
        (
            ("--vmin", "2", "--vmax", "1", "-o", "x.png"),
            "--vmax is 1; give a number above --vmin 2",
        ),
        (("--vmax", "nan", "-o", "x.png"), "--vmax is nan; give a finite number"),
        (("--vmin", "0", "--norm", "log", "-o", "x.png"), "--vmin is 0; a logarithmic scale"),
        (("--vmin", "1e9", "-o", "x.png"), "give a smaller --vmin, or --vmax too"),
        (("--cmap", "gray", "-o", "x.npz"), "--cmap says what a picture looks like"),
        (("--vmax", "1"), "--vmax says what a picture looks like, and none is drawn"),
        (("--plot", "tracks", "--norm", "log", "-o", "x.png"), "leave --norm out"),
        (("--no-stamp", "-o", "x.png"), "--no-stamp is for animations; give -o FILE.gif"),
        (("--invert",), "--invert is for images and"),
        (("--resolution", "100000000", "-o", "x.npz"), "give a smaller --resolution"),
        (("-o", "x.jpeg"), "Cannot write x.jpeg: give a name that ends in .png, .npz, .gif"),
        (("-o", "nowhere/x.png"), "folder nowhere does not exist; create it first"),
    ],
)
def test_bad_options_have_their_own_line(
    refused, line_pair, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    assert message in refused("geodesic", *line_pair, *arguments)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npy", "b.npy"]


def test_solver_of_the_wrong_dimension(refused, image_pair):
    line = refused("geodesic", *image_pair, "--solver", "quantile")
    assert "The solver 'quantile' takes 1D densities, these are 2D" in line


def test_different_boxes_and_dimensions(refused, write, line_pair):
    boxes = [write(f"{n}.npz", {"values": np.ones(4), "lower": 0, "upper": n}) for n in (1, 2)]
    assert "lie on different boxes" in refused("geodesic", *boxes)
    plane = write("plane.npy", np.ones((4, 4)))
    line = refused("geodesic", line_pair[0], plane)
    assert "is 1D and" in line and "is 2D; give two files of one dimension." in line


def test_pictures_of_different_proportions_are_padded_to_squares(write):
    wide, tall = write("wide.npy", np.ones((8, 4))), write("tall.npy", np.ones((4, 8)))
    first, second = read_pair(wide, tall, invert=False, resolution=None)
    assert first.grid == second.grid == geonet.Grid((8, 8))
    assert float(first.tensor[:, :2].sum()) == float(second.tensor[:2].sum()) == 0
    assert np.allclose(first.mean(), 0.5) and np.allclose(second.mean(), 0.5)


def test_large_pictures_are_solved_on_fewer_cells(write):
    large = write("large.npy", np.random.default_rng(0).random((1200, 300)))
    with gathered() as changes:
        first, _ = read_pair(large, large, invert=False, resolution=None)
    assert first.grid.shape == (1024, 256)
    assert changes == [
        "Coarsened: 1200×300 cells are solved on 1024×256 (--resolution 1200 solves them all)."
    ]
    with gathered() as changes:
        first, _ = read_pair(large, large, invert=False, resolution=40)
    assert first.grid.shape == (40, 10)
    assert changes[0].startswith("Coarsened: 1200×300 cells are solved on 40×10 (")


def test_clouds_that_do_not_fit(refused, write, line_pair):
    plane, line = write("plane.csv", "x,y\n0,0\n"), write("line.csv", "x\n0.5\n7\n")
    assert "has points in 2D and" in refused("geodesic", plane, line)
    assert "coincide; there is nothing to move" in refused("geodesic", plane, plane)
    assert "1 of 2 points lie outside" in refused("geodesic", line, line_pair[0])
    assert "--invert is for images" in refused("geodesic", plane, plane, "--invert")


def test_zeros_need_a_floor(refused, write):
    spot = np.zeros((8, 8))
    spot[2, 3] = 1
    file = write("spot.npy", spot)
    line = refused("geodesic", file, file, "--solver", "monge-ampere")
    assert "zero" in line and "floor" in line


def test_output_is_checked_before_any_work(refused, monkeypatch, line_pair):
    monkeypatch.setattr("geonet.geodesic", lambda *a, **k: pytest.fail("solved"))
    monkeypatch.setattr("geonet.cli.job.opened", lambda *a, **k: pytest.fail("read"))
    assert "Cannot write x.pdf" in refused("geodesic", *line_pair, "-o", "x.pdf")


@pytest.mark.parametrize("name", ["path.npz", "path.png", "path.gif"])
def test_failed_writing_leaves_the_old_file(refused, line_pair, tmp_path, monkeypatch, name):
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
    line = refused("geodesic", *line_pair, "-o", file, "--times", 2)
    assert line == f"error: Cannot write {file}: No space left on device.\n"
    assert file.read_bytes() == b"old"
    assert list(folder.iterdir()) == [file]


def test_both_ends_can_be_blurred(run, write, tmp_path):
    values = np.random.default_rng(0).random((12, 12))
    file, out = write("noise.npy", values), tmp_path / "path.npz"
    run("geodesic", file, file, "--blur", 1.5, "--solver", "linear", "-o", out)
    expected = geonet.Density(values, geonet.Grid((12, 12))).gaussian_blur(1.5)
    assert torch.equal(geonet.load(out).source.tensor, expected.tensor)


def test_nodata_that_no_cell_has_is_said(run, write):
    file = write("whole.npy", np.ones((12, 12)))
    out = run("geodesic", file, file, "--solver", "linear", "--nodata", -9).out
    assert out.startswith("Unused: no cell has the value of --nodata, -9.\n")


def test_printed_lines_end_where_their_text_ends(run, write):
    file = write("whole.npy", np.ones((12, 12)))
    lines = run("geodesic", file, file, "--solver", "linear").out.splitlines()
    assert lines and all(line == line.rstrip() for line in lines)


def test_what_is_read_is_not_overwritten(refused, image_pair, monkeypatch):
    before = [file.read_bytes() for file in image_pair]
    monkeypatch.chdir(image_pair[0].parent)
    line = refused("geodesic", *image_pair, "-o", image_pair[0].name)
    assert "is one of the two files that are read; give another name." in line
    folder = image_pair[0].parent
    (folder / "link.png").symlink_to(image_pair[1])
    for other in (f"../{folder.name}/{image_pair[0].name}", "link.png"):
        assert "is one of the two files" in refused("geodesic", *image_pair, "-o", other)
    assert [file.read_bytes() for file in image_pair] == before


def test_of_a_picture_and_a_table_the_picture_is_inverted(run, image_pair, write, tmp_path):
    pixels = np.asarray(Image.open(image_pair[0]).convert("L"))
    table = write("ink.npy", 255 - pixels.astype(float))
    answer = json.loads(run("geodesic", image_pair[0], table, "--invert", "--json").out)
    assert answer["distance"] == pytest.approx(0, abs=1e-6)
