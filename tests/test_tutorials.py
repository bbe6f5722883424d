"""The tutorials run and write their results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import geonet

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))
CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)
MARKDOWN = " [markdown]"
LONGEST = 120  # lines
TEN_MINUTES = 600


def run(name: str, folder: Path, steps: int | None = 30) -> str:
    """Run a tutorial in a folder with warnings as errors; return its output."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "PYTHONIOENCODING": "utf-8",
    }
    environment.pop("TUTORIAL_STEPS", None)
    if steps is not None:
        environment["TUTORIAL_STEPS"] = str(steps)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tutorials" / f"{name}.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def find_numbers(pattern: str, text: str) -> list[float]:
    """Return the numbers of the first match."""
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in\n{text}"
    return [float(number) for number in found.groups()]


def read_width(file: Path) -> int:
    """Return the width of a picture in pixels."""
    with Image.open(file) as picture:
        return picture.width


# ---- the format


@pytest.mark.parametrize("file", TUTORIALS, ids=lambda file: file.stem)
def test_tutorials_are_notebooks_in_percent_format(file):
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST
    before, *parts = CELL.split(text)
    assert not before  # the first cell begins the file
    kinds, cells = parts[::2], parts[1::2]
    assert set(kinds) == {"", MARKDOWN}
    assert kinds[0] == MARKDOWN and cells[0].startswith("\n# # ")  # a title
    for kind, cell in zip(kinds, cells, strict=True):
        lines = [line for line in cell.splitlines() if line.strip()]
        assert lines, "an empty cell"
        if kind == MARKDOWN:
            assert all(re.match(r"#( |$)", line) for line in lines)
        else:
            compile("\n".join(lines), str(file), "exec")
            assert not all(line.startswith("#") for line in lines)


@pytest.mark.parametrize("file", TUTORIALS, ids=lambda file: file.stem)
def test_text_and_code_alternate(file):
    kinds = CELL.findall(file.read_text(encoding="utf-8"))
    assert all(MARKDOWN in pair or pair == ("", "") for pair in pairwise(kinds))
    assert (MARKDOWN, MARKDOWN) not in pairwise(kinds)
    assert ("", "", "") not in zip(kinds, kinds[1:], kinds[2:], strict=False)


def test_every_tutorial_is_listed():
    page = (ROOT / "docs" / "tutorials.md").read_text(encoding="utf-8")
    assert TUTORIALS
    for file in TUTORIALS:
        assert f"tutorials/{file.name}" in page


# ---- results


def test_images(tmp_path):
    printed = run("images", tmp_path)
    (apart, expected) = find_numbers(r"t = ½: ([\d.]+)%; expected: ([\d.]+)%", printed)
    assert apart < 2 and expected < 2  # percent: two solvers that share nothing agree
    first, second = find_numbers(r"W2: ([\d.]+) and ([\d.]+)", printed)
    assert abs(first - second) < 0.01 * second
    for name in ("frames.png", "tracks.png"):
        assert read_width(tmp_path / name) > 300
    with Image.open(tmp_path / "morph.gif") as movie:
        assert movie.n_frames > 20
    assert "<!doctype html>" in (tmp_path / "morph.html").read_text(encoding="utf-8")
    path = geonet.load(tmp_path / "path.npz")
    assert path.grid.shape == (64, 64)
    assert float(path.distance) == pytest.approx(first, abs=1e-4)


def test_barycenters(tmp_path):
    printed = run("barycenters", tmp_path)
    (gap,) = find_numbers(r"gap ([\d.]+)%", printed)
    assert gap < 5
    sharp, blurred = find_numbers(r"concentration: ([\d.]+) .*, ([\d.]+) \(mean", printed)
    assert sharp > 1.15 * blurred
    centres = re.findall(r"mapped to \[([\d. ]+)\], centre of mass \[([\d. ]+)\]", printed)
    for moved, own in centres:
        assert np.allclose(np.fromstring(moved, sep=" "), np.fromstring(own, sep=" "), atol=0.01)
    assert len(centres) == 4
    (apart,) = find_numbers(r"and the barycenter: ([\d.]+)%", printed)
    assert apart < 3
    for name in ("mean.png", "table.png", "table.gif"):
        assert read_width(tmp_path / name) > 200
    assert "<!doctype html>" in (tmp_path / "table.html").read_text(encoding="utf-8")
    assert geonet.load(tmp_path / "table.npz").shape == (5, 5)


def test_unbalanced(tmp_path):
    printed = run("unbalanced", tmp_path)
    number = r" +([\d.]+)"
    rows = {
        name: find_numbers(rf"{name}{4 * number}%", printed)
        for name in ("truth", "fade", "balanced", "hellinger", "wfr")
    }
    growing, decaying, appearing, _ = rows["truth"]
    assert rows["hellinger"][0] == pytest.approx(growing, rel=0.01)
    assert rows["balanced"][0] < 0.85 * growing and rows["balanced"][1] > 1.5 * decaying
    assert rows["wfr"][2] == pytest.approx(appearing / 2, rel=0.02)  # t² of its mass at the end
    assert max(rows["hellinger"][3], rows["wfr"][3]) < min(rows["fade"][3], rows["balanced"][3]) / 2
    moving = re.findall(r"velocity \[([\d. ]+)\] km, growth rate (\S+), exact (\S+)\n", printed)
    (expected,) = re.findall(r"expected velocity \[([\d. ]+)\]", printed)
    expected = np.fromstring(expected, sep=" ")
    for velocity, rate, exact in moving:
        assert np.allclose(np.fromstring(velocity, sep=" "), expected, rtol=0.02)
        assert float(rate) == pytest.approx(float(exact), rel=0.03)
    assert len(moving) == 2
    shares = [float(s) for s in re.findall(r"([\d.]+)% transported", printed)]
    assert len(shares) == 7 and shares == sorted(shares)
    (part,) = find_numbers(r"middle: ([\d.]+) of the whole", printed)
    assert part == pytest.approx(0.5, abs=0.005)
    assert read_width(tmp_path / "showers.png") > 300
    assert float(geonet.load(tmp_path / "showers.npz").density(1).mass) == pytest.approx(
        2.8, rel=1e-4
    )


def test_periodic(tmp_path):
    printed = run("periodic", tmp_path)
    circle, line = find_numbers(r"W2 = ([\d.]+)° on the circle, ([\d.]+)° on a line", printed)
    assert circle == pytest.approx(70, abs=1) and line > 3 * circle
    (turned,) = re.findall(r"from 340°: 340°, (.*)°\n", printed)
    assert np.allclose([float(part) for part in turned.split("°, ")], (358, 15, 33, 50), atol=2)
    (mean,) = find_numbers(r"blows from ([\d.]+)°", printed)
    assert mean == pytest.approx(5, abs=1)
    across, around = find_numbers(r"W2 = ([\d.]+)° across .*, ([\d.]+)° with walls", printed)
    assert across == pytest.approx((40**2 + 10**2 + 2 * 2**2) ** 0.5, rel=0.002)
    assert around > 300
    periodic, walls = find_numbers(r"periodic: ([\d.]+)%(?s:.*)walls: ([\d.]+)%", printed)
    assert periodic < 3 and walls > 150
    assert read_width(tmp_path / "date-line.png") > 300


def test_histograms_in_time(tmp_path):
    printed = run("histograms_in_time", tmp_path)
    moved, faded = find_numbers(r"snapshots: (\d+)% moved, (\d+)% faded", printed)
    assert moved < faded / 2
    away = [float(far) for far in re.findall(r"h +([\d.]+) degrees from midnight", printed)]
    assert len(away) == 7
    assert away[0] == 0 and max(away) == max(away[3:5]) > 10  # the warmest hours lie between
    assert read_width(tmp_path / "day.png") > 300


def test_point_clouds(tmp_path):
    printed = run("point_clouds", tmp_path)
    reached, own = find_numbers(r"ends: ([\d.]+), at the moons: ([\d.]+)", printed)
    assert 0.7 * own < reached < 1.4 * own
    grid, points = find_numbers(r"W2: ([\d.]+) on the grid, ([\d.]+) between", printed)
    assert abs(grid - points) < 0.15 * points
    for name in ("clouds.png", "tracks.png"):
        assert read_width(tmp_path / name) > 300
    assert np.loadtxt(tmp_path / "groups.csv", delimiter=",", skiprows=1).shape == (4000, 2)


def read_errors_at_half(folder: Path) -> tuple[float, float]:
    """Return the mean L1 in per cent of the model and of the linear mixture."""
    report = json.loads((folder / "runs" / "digits" / "report.json").read_text(encoding="utf-8"))
    model, linear = (report[name]["mean"][2] for name in ("model", "linear"))
    return model, linear


def test_short_training(tmp_path):
    printed = run("train_on_your_own", tmp_path)
    model, linear = read_errors_at_half(tmp_path)
    assert model < linear / 2
    validated, mixed = find_numbers(
        r"L1 at t = ½: ([\d.]+) % \(linear mixture ([\d.]+) %\)", printed
    )
    assert validated < mixed / 2
    own, faded = find_numbers(
        r"model ([\d.]+)% off at t = ½\nlinear mixture ([\d.]+)% off", printed
    )
    assert own < faded
    assert read_width(tmp_path / "digits.png") > 300
    with np.load(tmp_path / "digits.npz") as arrays:
        assert arrays["values"].shape == (1000, 28, 28)
    assert (tmp_path / "runs" / "digits" / "model.safetensors").is_file()


@pytest.mark.slow
def test_full_training(tmp_path):
    began = os.times()
    run("train_on_your_own", tmp_path, steps=None)
    ended = os.times()  # of the processor: other work on the machine does not count
    assert ended.children_user - began.children_user < TEN_MINUTES
    model, linear = read_errors_at_half(tmp_path)
    assert model < linear / 4


def test_radar(tmp_path):
    printed = run("radar", tmp_path)
    rows = {
        line.split()[0]: [float(figure) for figure in re.findall(r"([\d.]+) %", line)]
        for line in printed.splitlines()
        if line.count(" %") == 5
    }
    assert rows["truth"][0] == 0 and rows["truth"][1:] == [100] * 4
    assert rows["motion"][0] < rows["fade"][0] / 3
    assert rows["motion"][0] < rows["geodesic"][0]
    assert rows["motion"][1] > rows["fade"][1]  # more hits at high rates
    assert abs(rows["motion"][4] - 100) < abs(rows["fade"][4] - 100)  # it is sharper
    assert abs(rows["motion"][2] - 100) < 1
    assert ("pysteps" in rows) == (find_spec("pysteps") is not None)
    last, nowcast = find_numbers(r"and the nowcast: ([\d.]+) % ([\d.]+) %", printed)
    assert nowcast < last / 2
    north, east = find_numbers(
        r"'velocity_y': '([\d.]+) km s-1', 'velocity_x': '([\d.]+) km s", printed
    )
    assert north == pytest.approx(0.30 / 60, rel=0.5) and east == pytest.approx(0.90 / 60, rel=0.1)
    assert read_width(tmp_path / "radar.png") > 300
