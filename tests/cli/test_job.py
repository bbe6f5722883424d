"""Reading two files onto one grid, and the notices about it."""

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


def test_invert_applies_to_the_image_only(run, image_pair, write, tmp_path):
    pixels = np.asarray(Image.open(image_pair[0]).convert("L"))
    table = write("ink.npy", 255 - pixels.astype(float))
    answer = json.loads(run("geodesic", image_pair[0], table, "--invert", "--json").out)
    assert answer["distance"] == pytest.approx(0, abs=1e-6)


def test_different_boxes_and_dimensions(run_failing, write, line_pair):
    boxes = [write(f"{n}.npz", {"values": np.ones(4), "lower": 0, "upper": n}) for n in (1, 2)]
    assert "lie on different grids" in run_failing("geodesic", *boxes)
    plane = write("plane.npy", np.ones((4, 4)))
    line = run_failing("geodesic", line_pair[0], plane)
    assert "is 1D and" in line and "is 2D; give two files of one dimension." in line


# ---- Contents of files


@pytest.fixture
def headless(write):
    """Files of a cloud and of its translation by 0.4, without header."""
    points = 1 + np.random.default_rng(0).normal(0, 0.2, (200, 2))
    clouds = (points, points + np.array([0.4, 0]))
    text = ("\n".join(f"{x},{y}" for x, y in cloud) for cloud in clouds)
    return [write(f"{name}.csv", rows) for name, rows in zip("ab", text, strict=True)]


def test_ambiguous_tables_raise_with_both_remedies(run_failing, headless):
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
