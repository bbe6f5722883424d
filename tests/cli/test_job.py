"""Reading two files onto one grid, and the notices about it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

import geonet
from geonet.cli import reading as module
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
    files = job.open_files([source, target])
    return job.read_densities(files, [] if notices is None else notices)


# ---- Two files on one grid


def test_clouds_share_a_box_with_square_cells(clouds):
    grid = Job("auto", {}, [], resolution=40).cloud_grid([*map(parse_file, clouds)])
    points = np.concatenate([parse_file(file).points()[0] for file in clouds])
    lower, upper = points.min(0), points.max(0)
    assert max(grid.shape) == grid.shape[0] == 40
    assert grid.spacing[0] == pytest.approx(grid.spacing[1])
    margin = 0.05 * float((upper - lower).max())
    assert (np.asarray(grid.lower) <= lower - margin + 1e-9).all()
    assert (np.asarray(grid.upper) >= upper + margin - 1e-9).all()
    assert {max(density.grid.shape) for density in read_densities(*clouds)} == {64}  # by default


@pytest.mark.parametrize("cloud_first", [True, False])
def test_cloud_is_counted_on_the_grid_of_a_density(write, cloud_first):
    files = [write("a.csv", "x,y\n0.1,0.1\n"), write("b.npy", np.ones((5, 5)))]
    pair = read_densities(*(files if cloud_first else files[::-1]))
    assert {density.grid for density in pair} == {geonet.Grid((5, 5))}


def test_images_of_different_proportions_are_padded(write):
    wide, tall = write("wide.npy", np.ones((8, 4))), write("tall.npy", np.ones((4, 8)))
    first, second = read_densities(wide, tall)
    assert first.grid == second.grid == geonet.Grid((8, 8))
    assert float(first.tensor[:, :2].sum()) == float(second.tensor[:2].sum()) == 0
    assert np.allclose(first.mean(), 0.5) and np.allclose(second.mean(), 0.5)


def test_clouds_that_do_not_match(run_failing, write, line_pair):
    plane, line = write("plane.csv", "x,y\n0,0\n"), write("line.csv", "x\n0.5\n7\n")
    assert "has points in 2D and" in run_failing("geodesic", plane, line)
    assert "coincide; there is nothing to move" in run_failing("geodesic", plane, plane)
    assert "--invert is for images" in run_failing("geodesic", plane, plane, "--invert")


def test_unused_nodata_is_reported(run, write):
    file = write("whole.npy", np.ones((12, 12)))
    out = run("geodesic", file, file, "--solver", "linear", "--nodata", -9).out
    assert out.startswith("Unused: no cell has the value of --nodata, -9.")


def test_different_boxes_and_dimensions(run_failing, write, line_pair):
    boxes = [write(f"{n}.npz", {"values": np.ones(4), "lower": 0, "upper": n}) for n in (1, 2)]
    assert "lie on different grids" in run_failing("geodesic", *boxes)
    plane = write("plane.npy", np.ones((4, 4)))
    line = run_failing("geodesic", line_pair[0], plane)
    assert "is 1D and" in line and "is 2D; give files of one dimension." in line


# ---- Contents of files


@pytest.fixture
def headless(write):
    """Files of a cloud and of its translation by 0.4, without header."""
    points = 1 + np.random.default_rng(0).normal(0, 0.2, (200, 2))
    clouds = (points, points + np.array([0.4, 0]))
    text = ("\n".join(f"{x},{y}" for x, y in cloud) for cloud in clouds)
    return [write(f"{name}.csv", rows) for name, rows in zip("ab", text, strict=True)]


def test_points_and_grid_options(run, run_failing, headless):
    assert "give --points or --grid." in run_failing("geodesic", *headless)
    solver = ("--solver", "linear-program", "--resolution", 24, "--json")
    answer = json.loads(run("geodesic", *headless, "--points", *solver).out)
    assert answer["distance"] == pytest.approx(0.4, rel=0.05)
    assert answer["read"] == [{"kind": "points", "points": 200}] * 2
    answer = json.loads(run("geodesic", *headless, "--grid", "--solver", "linear", "--json").out)
    assert answer["grid"]["shape"] == [200, 2]
    assert answer["read"] == [{"kind": "values", "shape": [200, 2], "missing": 0}] * 2


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
    assert "--nodata marks cells, and" in run_failing("geodesic", cloud, cloud, "--nodata", 0)


def test_points_outside(run, run_failing, write):
    line, cells = write("line.csv", "x\n0.5\n7\n"), write("cells.npy", np.ones(10))
    assert "1 of 2 points lies outside" in run_failing("geodesic", line, cells)
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


def test_periodic_images_are_not_padded():
    shapes, notices = ((4, 6), (6, 4)), []
    for periodic in (False, True):
        ends = [
            geonet.Density(
                np.ones(shape),
                geonet.Grid(shape, 0, [n / 6 for n in shape], periodic=periodic),
            )
            for shape in shapes
        ]
        first, second = module._resample_to_finest(ends, notices)
        assert first.grid.same_box(second.grid) is not periodic
        assert first.grid.is_periodic is periodic
    assert len(notices) == 1 and notices[0].startswith("Padded")
