"""The command `geonet distances`."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import geonet
from geonet.distances import PairwiseConfig
from geonet.io import parse_file


@pytest.fixture
def images(image_pair, write):
    values = np.zeros((24, 24))
    values[4:9, 10:20] = 1.0
    return [*image_pair, write("c.npy", values)]


def test_matrix(run, images, tmp_path):
    file = tmp_path / "matrix.csv"
    code, out, err = run("distances", *images, "-o", file)
    assert (code, err) == (0, "")
    assert "3 distances between 3 files, W2, known" in out and f"written: {file}" in out
    rows = list(csv.reader(file.read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["", *map(str, images)]
    read = [geonet.read(image) for image in images]
    expected = geonet.pairwise_distances(read).distances
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], dtype=float), expected)


def test_bounds(run, images, tmp_path):
    assert run("distances", *images, "-o", tmp_path / "m.npy", "--bounds").code == 0
    distances, lower, upper = (
        np.load(tmp_path / f"m{ending}.npy") for ending in ("", "-lower", "-upper")
    )
    assert (lower <= distances).all() and (distances <= upper).all()
    assert run("distances", *images, "-o", tmp_path / "m.npz").code == 0
    arrays = np.load(tmp_path / "m.npz")
    assert np.array_equal(arrays["lower_bounds"], lower)
    assert arrays["names"].tolist() == [str(image) for image in images]


@pytest.mark.parametrize("end", ["lower", "upper"])
def test_bounds_never_replace_an_input(run_failing, images, tmp_path, end):
    own = images[2].rename(tmp_path / f"m-{end}.npy")
    before = own.read_bytes()
    words = ("distances", images[0], own, "-o", tmp_path / "m.npy", "--bounds")
    assert f"{own} is one of the input files" in run_failing(*words)
    assert own.read_bytes() == before and not (tmp_path / "m.npy").exists()


def test_folders_and_patterns(run, run_failing, images, tmp_path):
    """A shell may pass a folder or a quoted pattern as it is."""
    (tmp_path / "readme.txt").write_text("no density")
    names = [str(image) for image in images]
    for words in ([tmp_path], [tmp_path / "*.png", images[2]], [*images, tmp_path]):
        assert json.loads(run("distances", *words, "--json").out)["files"] == names
    assert "No file matches" in run_failing("distances", tmp_path / "*.jpg")
    (tmp_path / "empty").mkdir()
    assert "holds no file whose name ends in" in run_failing("distances", tmp_path / "empty")


def test_options_of_points(run, run_failing, write):
    """The columns of tables, and points outside the box of the other files."""
    header = "lon,lat,height\n"
    tables = [write(f"{x}.csv", f"{header}{x},1,0\n{x + 1},2,90\n") for x in (0, 3)]
    assert "--columns" in run_failing("distances", *tables, "--columns", "lon,weight")
    code, out, _ = run("distances", *tables, "--columns", "lon,lat", "--resolution", 64, "--json")
    assert code == 0 and json.loads(out)["distances"][0][1] == pytest.approx(3, rel=0.05)
    box = write("box.npz", {"values": np.ones((8, 8)), "lower": [0, 0], "upper": [4, 4]})
    wide = write("wide.csv", "lon,lat\n1,1\n2,2\n9,9\n")
    assert "outside" in run_failing("distances", wide, box, "--columns", "lon,lat")
    assert run("distances", wide, box, "--columns", "lon,lat", "--outside", "drop").code == 0


def test_inverted_file(run, run_failing, images):
    options = ("--invert-file", images[0], "--json")
    found = json.loads(run("distances", *images[:2], *options).out)["distances"][0][1]
    ends = [parse_file(file, invert=file == images[0]).density() for file in images[:2]]
    expected = geonet.pairwise_distances(ends).distances[0, 1]
    assert found == expected
    assert "not among the files" in run_failing("distances", *images[1:], *options)


def test_reach_and_growth(run, run_failing, images):
    words = ("distances", *images[:2], "--reach", 0.3)
    assert "1 distance between 2 files, √(2·cost) with reach 0.3, known" in run(*words).out
    found = json.loads(run(*words, "--growth", "wfr", "--json").out)["distances"][0][1]
    read = [geonet.read(image) for image in images[:2]]
    assert found == pytest.approx(float(geonet.distance(*read, reach=0.3, growth="wfr")), rel=1e-6)
    assert "give --reach LENGTH, too" in run_failing("distances", *images, "--growth", "wfr")
    assert "are the same" in run_failing(*words, "--option", "reach=2")


def test_json_and_options(run, images):
    code, out, _ = run("distances", *images, "--json", "--reach", 0.3, "--resolution", 16)
    answer = json.loads(out)
    assert code == 0 and answer["files"] == [str(image) for image in images]
    assert np.shape(answer["distances"]) == (3, 3) and answer["output"] == []
    assert answer["lower_bounds"][0][1] <= answer["distances"][0][1]


@pytest.mark.filterwarnings("default::geonet.errors.ConvergenceWarning")
def test_pairs_that_do_not_converge(run, images, tmp_path, monkeypatch):
    monkeypatch.setitem(
        geonet.pairwise_distances.__kwdefaults__, "config", PairwiseConfig(max_gap=0.0)
    )
    options = ("--solver", "midpoint", "--option", "max_iterations=1", "--option", "refine=false")
    file = tmp_path / "m.csv"
    code, out, err = run("distances", *images, *options, "--option", "tolerance=1e-9", "-o", file)
    assert code == 1 and file.exists()
    assert err.startswith("warning: ") and "did not converge" in err
    assert f"not converged: {images[1]} and {images[0]}" in out


def test_wrong_input(run_failing, images, tmp_path):
    assert "two or more" in run_failing("distances", images[0])
    assert "ends in .csv" in run_failing("distances", *images, "-o", tmp_path / "m.txt")
    twice = run_failing("distances", images[0], images[0])
    assert f"{images[0]} is given more than once; distances need two or more" in twice
    assert "--bounds needs a file" in run_failing("distances", *images, "--bounds")
    assert "exclude each other" in run_failing("distances", *images, "--points", "--grid")
    assert "input files" in run_failing("distances", *images[:2], images[2], "-o", images[2])
    assert "no file" in run_failing("distances", images[0], tmp_path / "none.png")
    assert not (tmp_path / "m.txt").exists()
