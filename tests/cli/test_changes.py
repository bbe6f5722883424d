"""Whatever is coarsened or replaced is said in the first line of the answer."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from geonet.cli import job as pairs
from geonet.cli.job import changed, gathered


@pytest.fixture
def write(tmp_path):
    def save(name, values):
        np.save(tmp_path / name, values)
        return tmp_path / name

    return save


def blobs(shape, count=2):
    """Smooth positive densities."""
    y, x = np.mgrid[0 : shape[0], 0 : shape[1]] / max(shape)
    return [1 + np.exp(-((x - 0.2 - 0.1 * k) ** 2 + (y - 0.2) ** 2) / 0.02) for k in range(count)]


def atoms(seed):
    """Mass in a few cells that stand alone."""
    values = np.zeros((16, 16))
    values[::4, seed::5] = 1
    return values


def test_sentences_are_gathered_once_and_only_while_somebody_asks():
    changed("unheard")
    with gathered() as sentences:
        changed("a")
        changed("a")
        changed("b")
    assert sentences == ["a", "b"]


COARSENED = "Coarsened: 24×12 cells are solved on 16×8 (--resolution 24 solves them all)."
CASES = {  # two arrays, arguments, the first line
    "coarsened": (blobs((24, 12)), (), COARSENED),
    "padded": (
        [blobs((12, 6))[0], blobs((6, 12))[1]],
        (),
        "Padded: 12×6 and 6×12 cells are set in the middle of empty squares.",
    ),
    "resampled": (
        [blobs((6, 6))[0], blobs((12, 12))[1]],
        (),
        "Resampled: 6×6 and 12×12 cells are both brought to 12×12.",
    ),
    "linear program": (
        blobs((12, 12)),
        ("--solver", "linear-program", "--option", "max_cells=36", "--option", "coarsen=true"),
        "Coarsened: solved on 6×6 cells, not on 12×12 (--option max_cells=… takes more).",
    ),
    "floor": (
        blobs((12, 12)),
        ("--solver", "monge-ampere", "--option", "floor=0.02"),
        "Changed: 2 % of the mass of both ends is spread evenly (--option floor=0 for none).",
    ),
    "noise": (
        blobs((12, 12)),
        ("--solver", "schrodinger"),
        "Changed: epsilon is 0.003472, the least that these cells resolve, and not 0.001.",
    ),
    "atoms": (
        [atoms(0), atoms(1)],
        (),
        "Chosen: the mass stands in separate cells, so linear-program moves these one by one "
        "(--solver midpoint spreads them).",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_line_says_it(run, write, monkeypatch, case):
    monkeypatch.setattr(pairs, "LARGEST", {2: 16})
    ends, arguments, sentence = CASES[case]
    files = [write(f"{k}.npy", end) for k, end in enumerate(ends)]
    for more in ((), ("--report",)):
        code, out, err = run("geodesic", *files, *arguments, *more)
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == sentence
    answer = json.loads(run("geodesic", *files, *arguments, "--json").out)
    assert next(iter(answer)) == "changed" and answer["changed"] == [sentence]


def test_points_are_counted(run, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("x,y\n0,0\n1,0.5\n0.5,0.25\n")
    files = tmp_path / "a.csv", tmp_path / "b.csv"
    for resolution, options in ((64, ()), (16, ("--resolution", 16))):
        counted = f"Counted: W2 is that of the points counted in {resolution}×"
        assert run("geodesic", *files, *options).out.startswith(counted)


def test_nothing_changed_is_nothing_said(run, write, monkeypatch):
    """Not at the resolution of the files either, above the usual limit."""
    monkeypatch.setattr(pairs, "LARGEST", {2: 16})
    files = [write(f"{k}.npy", end) for k, end in enumerate(blobs((24, 12)))]
    assert run("geodesic", *files, "--resolution", 24).out.startswith("source ")
    answer = json.loads(run("geodesic", *files, "--resolution", 24, "--json").out)
    assert answer["changed"] == [] and answer["grid"]["shape"] == [24, 12]


def test_of_many_pairs(run, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pairs, "LARGEST", {2: 16})
    for k, end in enumerate([*blobs((24, 12)), *blobs((8, 8))]):
        write(f"{k}.npy", end)
    (tmp_path / "pairs.csv").write_text("source,target\n0.npy,1.npy\n2.npy,3.npy\n")
    for solved in ("2 pairs solved", "0 pairs solved, 2 were there already"):
        code, out, _ = run("geodesic", "--pairs", "pairs.csv", "-o", "out")
        assert code == 0
        assert out.splitlines() == [
            f"{solved}: out/summary.csv",
            "1 pair coarsened or changed; the column changed of the summary says how.",
        ]
    with (tmp_path / "out" / "summary.csv").open(newline="") as stream:
        assert [line["changed"] for line in csv.DictReader(stream)] == [COARSENED, ""]
    answer = json.loads(run("geodesic", "--pairs", "pairs.csv", "-o", "out", "--json").out)
    assert answer["changed"] == 1
