"""`geonet geodesic --pairs CSV -o FOLDER`: results, failures, and resuming."""

from __future__ import annotations

import csv
import json
import time

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.cli.batch import SUMMARY, BatchJob, read_pair_list
from geonet.errors import FileError


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """Function that writes a list of pairs of six densities in files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    x = np.linspace(0, 1, 30)
    for k in range(6):
        np.save(tmp_path / f"data/{k}.npy", np.exp(-(((x - 0.2 - 0.1 * k) / 0.1) ** 2)))

    def write(*rows, header="source,target"):
        file = tmp_path / "data" / "pairs.csv"
        file.write_text("\n".join([header, *rows]) + "\n")
        return file

    return write


def summary(folder):
    with (folder / SUMMARY).open(newline="") as stream:
        return {line["file"]: line for line in csv.DictReader(stream)}


def names(folder):
    return sorted(file.name for file in folder.iterdir())


# ---- Results


def test_every_pair_gets_a_file_and_a_row(run, listed, tmp_path):
    file = listed("0.npy,1.npy", "2.npy,5.npy")
    code, out, err = run("geodesic", "--pairs", file, "-o", "out", "--times", 3)
    assert (code, err) == (0, "")
    assert out == "2 pairs solved: out/summary.csv\n"
    folder = tmp_path / "out"
    assert names(folder) == ["0-1.npz", "2-5.npz", "recipe.json", "summary.csv"]
    for name, line in summary(folder).items():
        path = geonet.load(folder / name)
        ends = [geonet.read(tmp_path / "data" / line[end]) for end in ("source", "target")]
        assert np.array_equal(path.source.tensor, ends[0].tensor)
        assert np.array_equal(path.target.tensor, ends[1].tensor)
        assert float(line["distance"]) == pytest.approx(float(path.distance))
        assert line["solver"] == "quantile" and float(line["mass_error"]) < 1e-9
        with np.load(folder / name) as saved:
            assert saved["times"].tolist() == [0, 0.5, 1]


def test_points_and_missing_cells(run, listed, tmp_path):
    data, generator = tmp_path / "data", np.random.default_rng(0)
    for name in "ab":
        np.savetxt(data / f"{name}.csv", generator.random((9, 2)), delimiter=",")
    np.save(data / "gaps.npy", [[1.0, 2, np.nan, 1], [1.0, 1, 1, 1], [1.0, 3, 1, 1]])
    file = listed("a.csv,b.csv", "gaps.npy,gaps.npy")
    solver, out = ("--solver", "linear"), ("-o", "out", "--json")
    result = json.loads(run("geodesic", "--pairs", file, *solver, *out).out)
    assert [failure["line"] for failure in result["failures"]] == [2, 3]
    assert "give --points or --grid" in result["failures"][0]["error"]
    assert "missing" in result["failures"][1]["error"]
    options = ("--grid", "--missing", "exclude", "--mass", "given")
    out = ("-o", "other", "--json")
    for solved, before in ((2, 0), (0, 2)):  # the second run finds the same options
        result = json.loads(run("geodesic", "--pairs", file, *solver, *options, *out).out)
        assert (result["solved"], result["before"]) == (solved, before)
    with np.load(tmp_path / "other" / "gaps-gaps.npz") as saved:
        assert saved["density"][0].max() == pytest.approx(3)
    code, _, err = run("geodesic", "--pairs", file, *solver, "--grid", "-o", "other")
    assert code == 2 and "holds results with other missing and mass" in err


def test_second_run_draws_missing_and_outdated_pictures(run, listed, tmp_path):
    file, folder = listed("0.npy,1.npy", "2.npy,5.npy"), tmp_path / "out"
    assert run("geodesic", "--pairs", file, "-o", "out").code == 0

    def draw(*look):
        """Run again and return the names of the written files."""
        before = {f.name: f.stat().st_mtime_ns for f in folder.glob("*-*.*")}
        assert run("geodesic", "--pairs", file, "-o", "out", *look).code == 0
        return {f.name for f in folder.glob("*-*.*") if f.stat().st_mtime_ns != before.get(f.name)}

    frames = ("--plot", "frames")
    assert draw(*frames) == {"0-1.png", "2-5.png"}
    assert draw(*frames) == set()
    (folder / "0-1.png").write_bytes(b"no picture")
    assert draw(*frames) == {"0-1.png"}
    (folder / "2-5.png").unlink()
    assert draw(*frames) == {"2-5.png"}
    assert draw(*frames, "--norm", "log") == {"0-1.png", "2-5.png"}
    np.save(tmp_path / "data" / "5.npy", np.ones(30))
    assert draw(*frames, "--norm", "log") == {"2-5.npz", "2-5.png"}
    expected = geonet.load(folder / "2-5.npz").plot(norm="log")
    expected.savefig(tmp_path / "expected.png")
    with Image.open(folder / "2-5.png") as drawn, Image.open(tmp_path / "expected.png") as other:
        assert np.array_equal(np.asarray(drawn), np.asarray(other))
    code, out, _ = run("geodesic", "--pairs", file, "-o", "out", "--plot", "slices")  # of 3D
    assert code == 1 and "slices" in out and len(summary(folder)) == 2


# ---- Failures


def test_broken_files_fail_alone(run, listed, tmp_path):
    (tmp_path / "data" / "bad.npy").write_bytes(b"no array")
    file = listed("0.npy,1.npy", "bad.npy,1.npy", "2.npy,none.npy", "3.npy,", "4.npy,5.npy")
    code, out, err = run("geodesic", "--pairs", file, "-o", "out")
    assert (code, err) == (1, "")
    first, second, *failures = out.splitlines()
    assert first == "2 pairs solved: out/summary.csv"
    assert second == "3 pairs failed:"
    assert failures[0].startswith("  line 3, bad.npy → 1.npy: Cannot read ")
    assert "bad.npy as an npy array" in failures[0]
    assert "line 4, 2.npy → none.npy: There is no file" in failures[1]
    assert "line 5, 3.npy → : Line 5 does not name two files" in failures[2]
    assert set(summary(tmp_path / "out")) == {"0-1.npz", "4-5.npz"}


# ---- Resuming


def test_second_run_solves_missing_pairs_only(run, listed, tmp_path, monkeypatch):
    file = listed("0.npy,1.npy", "2.npy,late.npy", "4.npy,5.npy")
    assert run("geodesic", "--pairs", file, "-o", "out").code == 1
    before = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in ("0-1.npz", "4-5.npz")}
    np.save(tmp_path / "data" / "late.npy", np.ones(30))
    code, out, _ = run("geodesic", "--pairs", file, "-o", "out")
    assert (code, out) == (0, "1 pair solved, 2 existed already: out/summary.csv\n")
    assert set(summary(tmp_path / "out")) == {"0-1.npz", "2-late.npz", "4-5.npz"}
    for name, moment in before.items():
        assert (tmp_path / "out" / name).stat().st_mtime_ns == moment


def test_interrupt_keeps_finished_pairs(run, listed, tmp_path, monkeypatch):
    file = listed("0.npy,1.npy", "2.npy,3.npy")
    solve = BatchJob._solve

    def interrupted(batch, pair):
        if pair.line == 3:
            raise KeyboardInterrupt
        return solve(batch, pair)

    monkeypatch.setattr(BatchJob, "_solve", interrupted)
    code, _, err = run("geodesic", "--pairs", file, "-o", "out")
    assert code == 130
    assert err == "error: Interrupted: 1 of 2 pairs are done; the same command resumes.\n"
    assert set(summary(tmp_path / "out")) == {"0-1.npz"}
    monkeypatch.setattr(BatchJob, "_solve", solve)
    assert "1 pair solved, 1 existed already" in run("geodesic", "--pairs", file, "-o", "out").out


@pytest.mark.parametrize("lost", ["path", "row", "other files", "newer file"])
def test_incomplete_and_outdated_pairs_are_solved_again(run, listed, tmp_path, lost):
    file = listed("0.npy,1.npy", "2.npy,3.npy")
    assert run("geodesic", "--pairs", file, "-o", "out").code == 0
    if lost == "path":
        (tmp_path / "out" / "0-1.npz").unlink()
    elif lost == "row":
        (tmp_path / "out" / SUMMARY).unlink()
    elif lost == "newer file":
        time.sleep(0.01)
        np.save(tmp_path / "data" / "0.npy", np.ones(30))
    else:
        file = listed("../data/0.npy,1.npy", "2.npy,3.npy")
    out = run("geodesic", "--pairs", file, "-o", "out").out
    assert out.startswith("2 pairs solved:" if lost == "row" else "1 pair solved, 1 existed")


@pytest.mark.parametrize("name", ["summary.csv", "0-1.npz"])
def test_foreign_files_are_not_overwritten(run_failing, listed, tmp_path, name):
    file = listed("0.npy,1.npy")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    line = run_failing("geodesic", "--pairs", file, "-o", "out")
    assert f"out/{name} exists and was not written by geonet" in line
    assert (tmp_path / "out" / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.json", "{", "Cannot read out/recipe.json as JSON"),
        ("summary.csv", "a,b\n", "out/summary.csv is not a summary of pairs"),
        ("summary.csv", "\xff", "out/summary.csv"),
    ],
)
def test_damaged_folder(run, run_failing, listed, tmp_path, name, content, message):
    file = listed("0.npy,1.npy")
    assert run("geodesic", "--pairs", file, "-o", "out").code == 0
    (tmp_path / "out" / name).write_bytes(content.encode("latin-1"))
    assert message in run_failing("geodesic", "--pairs", file, "-o", "out")


# ---- Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give a folder, -o FOLDER"),
        (("-o", "out", "--report"), "--report is for one pair"),
        (("-o", "out", "--cmap", "gray"), "--cmap applies to pictures"),
        (("-o", "out", "--plot", "frames", "--no-stamp"), "--no-stamp is for animations"),
        (("-o", "data/0.npy"), "the folder data/0.npy"),
    ],
)
def test_bad_usage(run_failing, listed, tmp_path, arguments, message):
    file = listed("0.npy,1.npy")
    assert message in run_failing("geodesic", "--pairs", file, *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("a,b", ["0.npy,1.npy"], "has the columns a, b; start a list"),
        ("source,target", [], "lists no pairs"),
        ("source,target", ['"0.npy,1.npy'], "Cannot read"),
    ],
)
def test_bad_lists(listed, header, rows, message):
    file = listed(*rows, header=header)
    with pytest.raises(FileError, match=message):
        read_pair_list(file)


def test_lists_written_by_spreadsheets(listed):
    """Columns in any order, and pairs with equal names."""
    file = listed()
    rows = "b.png,a.png,x\r\nc/b.png,a.png,x\r\n"
    file.write_bytes(f"\ufeffTarget , Source,note\r\n{rows}".encode())
    first, second = read_pair_list(file)
    assert (first.source, first.target, first.line) == ("a.png", "b.png", 2)
    assert (first.name, second.name) == ("a-b", "a-b-2")


@pytest.mark.filterwarnings("ignore::geonet.errors.ConvergenceWarning")
def test_unconverged_pairs_are_counted(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    atom, flat = np.zeros((24, 24)), np.ones((24, 24))
    atom[3, 3] = 1
    np.save("atom.npy", atom)
    np.save("flat.npy", flat)
    (tmp_path / "pairs.csv").write_text("source,target\natom.npy,flat.npy\nflat.npy,flat.npy\n")
    options = ("--solver", "midpoint", "--option", "max_iterations=1")
    for _ in range(2):  # solved, then from the summary
        code, out, _ = run("geodesic", "--pairs", "pairs.csv", "-o", "results", *options)
        assert code == 1 and "1 pair not converged" in out
    for code, ends in ((1, ("atom.npy", "flat.npy")), (0, ("flat.npy", "flat.npy"))):
        assert run("geodesic", *ends, "-o", "path.npz", *options).code == code
        assert (tmp_path / "path.npz").exists()
        (tmp_path / "path.npz").unlink()
