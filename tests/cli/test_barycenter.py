"""The command `geonet barycenter`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from threading import current_thread, main_thread

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.plotting.style import Style


@pytest.fixture
def images(tmp_path):
    """Files of four 24×24 images, with a spot in every corner."""
    y, x = np.mgrid[0:24, 0:24]
    files = []
    for name, column, row in zip("abcd", (8, 15, 8, 15), (8, 8, 15, 15), strict=True):
        spot = 20 + 200 * np.exp(-((x - column) ** 2 + (y - row) ** 2) / 30)
        files.append(tmp_path / f"{name}.png")
        Image.fromarray(spot.astype(np.uint8)).save(files[-1])
    return files


def test_one_barycenter(run, images, tmp_path):
    file = tmp_path / "mean.npz"
    code, out, err = run("barycenter", *images[:3], "--weights", "0.5,0.3,0.2", "-o", file)
    assert (code, err) == (0, "")
    assert "a.png" in out and "read as 24×24 values" in out
    assert "0.5, 0.3, 0.2" in out and "Optimal within" in out and str(file) in out
    result = geonet.load(file)
    assert np.allclose(result.weights, [0.5, 0.3, 0.2])
    expected = geonet.barycenter([geonet.read(image) for image in images[:3]], [0.5, 0.3, 0.2])
    assert np.allclose(result.density.values, expected.density.values)
    report = run("report", file).out
    assert "Optimal within" in report and "newton steps" in report


def test_json(run, images):
    answer = json.loads(run("barycenter", *images[:2], "--json").out)
    assert answer["weights"] == [0.5, 0.5] and answer["converged"] is True
    assert answer["lower_bound"] <= answer["objective"] and 0 <= answer["gap"] < 0.2
    assert answer["read"] == [{"kind": "values", "shape": [24, 24], "missing": 0}] * 2
    assert answer["objective"] <= answer["upper_bound"] == answer["report"]["upper_bound"]
    assert answer["grid"]["shape"] == [24, 24] and answer["output"] is None
    assert answer["grid"]["periodic"] == [False, False]
    answer = json.loads(run("barycenter", *images[:2], "--periodic", 1, "--json").out)
    assert answer["grid"]["periodic"] == [False, True]
    assert answer["report"]["residual"] <= 2e-3


@pytest.mark.filterwarnings("ignore::geonet.errors.ConvergenceWarning")
def test_exit_code_without_convergence(run, images, tmp_path):
    file = tmp_path / "mean.npz"
    assert run("barycenter", *images[:2], "--option", "max_iterations=1", "-o", file)[0] == 1
    assert not geonet.load(file).converged


@pytest.mark.parametrize(("count", "shape"), [(2, (3,)), (3, (6,)), (4, (3, 3))])
def test_tables(run, images, tmp_path, count, shape):
    file = tmp_path / "table.npz"
    code, out, _ = run("barycenter", *images[:count], "--table", 3, "-o", file)
    assert code == 0 and f"{np.prod(shape)} barycenters" in out
    table = geonet.load(file)
    assert table.shape == shape
    assert np.array_equal(table.flat[0].density.values, geonet.read(images[0]).values)


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg", "gif", "html"])
def test_formats(run, images, tmp_path, suffix):
    file = tmp_path / f"out.{suffix}"
    options = ("--table", 3, "--cmap", "viridis")
    assert run("barycenter", *images, *options, "-o", file).code == 0
    start = file.read_bytes()[:200]
    marks = {"png": b"PNG", "pdf": b"%PDF", "svg": b"<?xml", "gif": b"GIF8", "html": b"<!doctype"}
    assert marks[suffix] in start
    assert sorted(tmp_path.iterdir()) == sorted([*images, file])  # nothing else is left


@pytest.mark.filterwarnings("default::geonet.errors.ConvergenceWarning")
def test_report_and_solver_options(run, images):
    out = run("barycenter", *images[:2], "--option", "tolerance=0.01", "--report").out
    assert "report" in out and "multigrid steps" in out
    code, _, err = run(
        *("barycenter", *images, "--option", "tolerance=1e-9", "--option", "max_iterations=1")
    )
    assert code == 1 and err.startswith("warning: The barycenter did not reach the tolerance")


def test_reach(run, images):
    answer = json.loads(run("barycenter", *images[:2], "--reach", 0.1, "--json").out)
    assert answer["gap"] is None and answer["objective"] > 0


@pytest.fixture
def styles(monkeypatch):
    """Styles of the figures that are drawn."""
    found, draw = [], geonet.Barycenter.plot

    def plot(self, **style):
        found.append(style)
        return draw(self, **style)

    monkeypatch.setattr(geonet.Barycenter, "plot", plot)
    return found


@pytest.mark.parametrize(
    ("words", "style"),
    [
        ((), {"mass": "one"}),
        (("--reach", 0.1), {"mass": "given"}),
        (("--reach", 0.1, "--mass", "one"), {"mass": "one"}),
        (("--mass", "given", "--vmin", 1, "--vmax", 9), {"mass": "given", "vmin": 1, "vmax": 9}),
    ],
)
def test_units_of_pictures(run, images, tmp_path, styles, words, style):
    assert run("barycenter", *images[:2], *words, "-o", tmp_path / "mean.png").code == 0
    assert styles == [style] and Style(**style)


def test_ctrl_c_removes_the_unfinished_file(run, images, tmp_path, monkeypatch):
    def interrupt(file, **_):
        Path(file).write_bytes(b"unfinished")
        assert current_thread() is main_thread()  # only this thread receives Ctrl-C
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupt)
    code, _, err = run("barycenter", *images[:2], "-o", tmp_path / "mean.npz")
    assert (code, err) == (130, "error: Interrupted; no partial output was left.\n")
    assert sorted(tmp_path.iterdir()) == sorted(images[:4])


def test_files_of_several_kinds(run, write, images):
    """Files on other cells are resampled, and a cloud is counted on the others' grid."""
    fine = write("fine.npy", np.ones((32, 32)))
    cloud = write("cloud.csv", "x,y\n0.5,0.5\n0.4,0.6\n")
    answer = json.loads(run("barycenter", images[0], fine, cloud, "--blur", 2, "--json").out)
    assert answer["grid"]["shape"] == [32, 32]
    assert answer["changed"] == [
        "Resampled: 24×24 and 32×32 cells are both brought to 32×32.",
        "Counted: the points are counted in 32×32 cells, as the other files have, 0.031 wide.",
    ]
    assert [one["kind"] for one in answer["read"]] == ["values", "values", "points"]
    out = run("barycenter", *images[:3], "--resolution", 12).out
    assert out.startswith("Coarsened: 24×24 cells are solved on 12×12")


def test_fractions_and_rounded_weights(run, images):
    for weights in ("1/3,1/3,1/3", "0.333,0.333,0.333"):
        answer = json.loads(run("barycenter", *images[:3], "--weights", weights, "--json").out)
        assert answer["weights"] == pytest.approx([1 / 3] * 3)


def test_table_states_the_largest_gap(run, images):
    out = run("barycenter", *images[:2], "--table", 3).out
    assert re.search(r"largest gap +[\d.]+ %\ntrust +Worst of 3 barycenters: ", out)


def test_clouds(run, write):
    points = np.random.default_rng(0).normal(0, 1, (3, 100, 2)) + np.array([[[0]], [[2]], [[4]]])
    files = []
    for k, cloud in enumerate(points):
        rows = "\n".join(f"{x},{y}" for x, y in cloud)
        files.append(write(f"{k}.csv", f"x,y\n{rows}\n"))
    options = ("--resolution", 24, "--blur", 1, "--json")
    answer = json.loads(run("barycenter", *files, *options).out)
    assert max(answer["grid"]["shape"]) == 24 and answer["changed"][0].startswith("Counted: ")
    mean = np.sqrt(answer["objective"])
    assert mean == pytest.approx(np.sqrt(2 * 8 / 3), rel=0.15)  # translates by 0, 2 and 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a.png",), "There is one file; a barycenter needs two or more."),
        (("a.png", "b.png", "--weights", "0.5,0.6"), "Weights sum to 1.1, not to one"),
        (("a.png", "b.png", "--weights", "1.5,-0.5"), "A weight is negative"),
        (("a.png", "b.png", "--weights", "1"), "--weights has 1 number for 2 files; give 2."),
        (("a.png", "b.png", "--weights", "half"), "--weights is 'half'; give a number for each"),
        (("a.png", "b.png", "--weights", "1/0,1"), "such as 0.5,0.3,0.2 or 1/2,1/4,1/4."),
        (("a.png", "b.png", "--weights", "0,0"), "give at least one positive weight"),
        (("a.png", "b.png", "--table", "x"), "is 'x'; give a whole number. See geonet barycenter"),
        (("a.png", "b.png", "--table=1"), "--table is '1'; give 2 or more."),
        (("a.png", "b.png", "--periodic", "0,x"), "--periodic is '0,x'; give axes such as 0 or"),
        (("a.png", "b.png", "--weights", "0.5,0.5", "--table", "3"), "leave out --weights or"),
        (
            ("a.png", "b.png", "--reach", "0"),
            "reach is 0.0; give a finite length above 0, or leave it out",
        ),
        (("a.png", "b.png", "--option", "floor=1"), "A barycenter has no option 'floor'"),
        (("a.png", "b.png", "--option", "tolerance=2"), "tolerance is 2"),
        (("a.png", "b.png", "--points", "--grid"), "exclude each other"),
        (("a.png", "b.png", "--outside", "maybe"), "--outside is 'maybe'"),
        (("a.png", "b.png", "--points"), "--points fits neither a.png nor b.png"),
        (("a.png", "b.png", "--cmap", "magma"), "none is drawn"),
        (("a.png", "b.png", "--mass", "given", "-o", "o.npz"), "--mass applies to pictures"),
        (("a.png", "b.png", "--mass", "two", "-o", "o.png"), "give 'one' or 'given'"),
        (("a.png", "b.png", "--cmap", "magna", "-o", "o.png"), "did you mean 'magma'"),
        (("a.png", "b.png", "-o", "o.txt"), "give a name that ends in .png, .pdf"),
        (("a.png", "b.png", "-o", "a.png"), "a.png is one of the input files"),
        (("a.png", "b.png", "-o", "no/o.png"), "The folder no does not exist"),
        (("a.png", "nothing.png"), "There is no file nothing.png"),
        (("a.png",) * 5 + ("--table", "3"), "two to four corners and there are 5 files"),
    ],
)
def test_bad_arguments(run_failing, images, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in run_failing("barycenter", *arguments)
    assert sorted(tmp_path.iterdir()) == sorted(images)


def test_boxes_that_do_not_match(run_failing, write, line_pair):
    boxes = [write(f"{n}.npz", {"values": np.ones(4), "lower": 0, "upper": n}) for n in (1, 2)]
    assert "lie on different grids" in run_failing("barycenter", *boxes)
    plane = write("plane.npy", np.ones((4, 4)))
    assert "give files of one dimension" in run_failing("barycenter", *line_pair, plane)
