"""The examples of the gallery run and write their results."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import geonet

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
GALLERY = [file for file in SCRIPTS if file.read_text(encoding="utf-8").startswith("# %%")]
CELL = re.compile(r"^# %%(.*)$", re.MULTILINE)
MARKDOWN = " [markdown]"
LONGEST = 120  # lines
TEN_MINUTES = 600
NUMBER = r"([\d.]+)"


def run(name: str, folder: Path, steps: int | None = 30) -> str:
    """Run an example in a folder with warnings as errors; return its output."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "PYTHONIOENCODING": "utf-8",
    }
    for variable in ("EXAMPLE_STEPS", "RADAR_FILES"):
        environment.pop(variable, None)
    if steps is not None:
        environment["EXAMPLE_STEPS"] = str(steps)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / f"{name}.py")],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    with Image.open(folder / f"{name}.png") as picture:
        assert picture.width > 500
    return done.stdout


def find_numbers(pattern: str, text: str) -> list[float]:
    """Return the numbers of the first match."""
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in\n{text}"
    return [float(number) for number in found.groups()]


# ---- the format


@pytest.mark.parametrize("file", GALLERY, ids=lambda file: file.stem)
def test_examples_are_notebooks_in_percent_format(file):
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


@pytest.mark.parametrize("file", GALLERY, ids=lambda file: file.stem)
def test_text_and_code_alternate(file):
    kinds = CELL.findall(file.read_text(encoding="utf-8"))
    assert all(MARKDOWN in pair or pair == ("", "") for pair in pairwise(kinds))
    assert (MARKDOWN, MARKDOWN) not in pairwise(kinds)
    assert ("", "", "") not in zip(kinds, kinds[1:], kinds[2:], strict=False)


# ---- the page


def test_gallery_lists_every_example():
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert len(GALLERY) == 10
    for file in SCRIPTS:
        assert f"](../examples/{file.name})" in page
    for file in GALLERY:
        assert f"<!-- example: {file.stem} -->" in page
        assert f"](images/gallery-{file.stem}.png)" in page


def test_pictures_of_the_gallery_are_small():
    for file in GALLERY:
        picture = ROOT / "docs" / "images" / f"gallery-{file.stem}.png"
        assert picture.stat().st_size < 150_000, picture.name


def test_site_shows_every_line_of_code(monkeypatch):
    """The hook of mkdocs replaces comments by scripts, and links out of docs/ by their labels."""
    monkeypatch.syspath_prepend(str(ROOT))
    hooks = import_module("mkdocs_hooks")
    page = hooks.on_page_markdown((ROOT / "docs" / "gallery.md").read_text(encoding="utf-8"))
    assert "<!--" not in page and "](../" not in page
    assert page.count("```python\n") == sum(
        CELL.findall(file.read_text(encoding="utf-8")).count("") for file in GALLERY
    )
    for file in GALLERY:
        for line in file.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                assert f"    {line}\n" in page or not line, line


# ---- results


def test_images(tmp_path):
    printed = run("images", tmp_path)
    (apart, expected) = find_numbers(rf"t = ½: {NUMBER}%; expected: {NUMBER}%", printed)
    assert apart < 2 and expected < 2  # percent: two solvers that share nothing agree
    first, second = find_numbers(rf"W2: {NUMBER} and {NUMBER}", printed)
    assert abs(first - second) < 0.01 * second
    with Image.open(tmp_path / "morph.gif") as movie:
        assert movie.n_frames > 20
    assert "<!doctype html>" in (tmp_path / "morph.html").read_text(encoding="utf-8")
    path = geonet.load(tmp_path / "path.npz")
    assert path.grid.shape == (64, 64)
    assert float(path.distance) == pytest.approx(first, abs=1e-4)


@pytest.mark.slow
def test_shapes(tmp_path):
    printed = run("shapes", tmp_path)
    (gap,) = find_numbers(rf"bounds within {NUMBER}% of the largest", printed)
    assert gap < 1
    (share,) = find_numbers(rf"the plane shows {NUMBER}%", printed)
    assert share > 90
    with (tmp_path / "distances.csv").open(encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    matrix = np.array([row[1:] for row in rows], dtype=float)
    assert len(header) == 21 and matrix.shape == (20, 20)
    assert np.array_equal(matrix, matrix.T) and not matrix.diagonal().any()


@pytest.mark.slow
def test_volumes(tmp_path):
    printed = run("volumes", tmp_path)
    masses = re.findall(r"\[([\d. ]+)\]\s*$", printed)[0].split()
    assert np.allclose(np.array(masses, dtype=float), np.ones(5), atol=1e-3)
    lower, upper = find_numbers(rf"W2 is between {NUMBER} and {NUMBER}\.", printed)
    assert lower < upper < 1.05 * lower


def test_barycenters(tmp_path):
    printed = run("barycenters", tmp_path)
    (gap,) = find_numbers(rf"gap {NUMBER}%", printed)
    assert gap < 2
    sharp, blurred = find_numbers(rf"concentration: {NUMBER} .*, {NUMBER} \(mean", printed)
    assert sharp > 1.1 * blurred
    moved, own = re.findall(r"mapped to \[([\d. ]+)\], centre of mass \[([\d. ]+)\]", printed)[0]
    assert np.allclose(np.fromstring(moved, sep=" "), np.fromstring(own, sep=" "), atol=0.01)
    (middle,) = find_numbers(rf"in the middle: Optimal within {NUMBER} %", printed)
    assert middle < 2
    assert "<!doctype html>" in (tmp_path / "table.html").read_text(encoding="utf-8")


def test_unbalanced(tmp_path):
    printed = run("unbalanced", tmp_path)
    rows = {
        name: find_numbers(rf"{name}{4 * f' +{NUMBER}'}%", printed)
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
    shares = [float(share) for share in re.findall(rf"{NUMBER}% transported", printed)]
    assert len(shares) == 4 and shares == sorted(shares)


def test_periodic(tmp_path):
    printed = run("periodic", tmp_path)
    circle, line = find_numbers(rf"W2 = {NUMBER}° on the circle, {NUMBER}° on a line", printed)
    assert circle == pytest.approx(70, abs=1) and line > 3 * circle
    (turned,) = re.findall(r"from 340°: 340°, (.*)°\n", printed)
    assert np.allclose([float(part) for part in turned.split("°, ")], (358, 15, 33, 50), atol=2)
    (mean,) = find_numbers(rf"blows from {NUMBER}°", printed)
    assert mean == pytest.approx(5, abs=1)
    across, around = find_numbers(rf"W2 = {NUMBER}° across .*, {NUMBER}° with walls", printed)
    assert across == pytest.approx((40**2 + 10**2 + 2 * 2**2) ** 0.5, rel=0.002)
    assert around > 300
    periodic, walls = find_numbers(rf"periodic: {NUMBER}%(?s:.*)walls: {NUMBER}%", printed)
    assert periodic < 3 and walls > 150


def test_gradients(tmp_path):
    printed = run("gradients", tmp_path)
    (moved,) = find_numbers(rf"transport: the components are within {NUMBER}", printed)
    (stuck,) = find_numbers(rf"difference: the components are within {NUMBER}", printed)
    assert moved < 0.05 and stuck > 2
    losses = [float(loss) for loss in re.findall(r" transport, step +\d+: (\S+)", printed)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-3


def read_errors_at_half(folder: Path) -> tuple[float, float]:
    """Return the mean L1 in per cent of the model and of the linear blend."""
    report = json.loads((folder / "runs" / "digits" / "report.json").read_text(encoding="utf-8"))
    model, linear = (report[name]["mean"][2] for name in ("model", "linear"))
    return model, linear


def test_short_training(tmp_path):
    printed = run("training", tmp_path)
    model, linear = read_errors_at_half(tmp_path)
    assert model < linear / 2
    validated, blended = find_numbers(
        rf"L1 at t = ½: {NUMBER} % \(linear blend {NUMBER} %\)", printed
    )
    assert validated < blended / 2
    own, faded = find_numbers(rf"model {NUMBER}% off at t = ½\nlinear blend {NUMBER}% off", printed)
    assert own < faded
    with np.load(tmp_path / "digits.npz") as arrays:
        assert arrays["values"].shape == (1000, 28, 28)
    assert (tmp_path / "runs" / "digits" / "model.safetensors").is_file()


@pytest.mark.slow
def test_full_training(tmp_path):
    began = os.times()
    run("training", tmp_path, steps=None)
    ended = os.times()  # of the processor: other work on the machine does not count
    assert ended.children_user - began.children_user < TEN_MINUTES
    model, linear = read_errors_at_half(tmp_path)
    assert model < linear / 4


def test_radar(tmp_path):
    printed = run("radar", tmp_path)
    rows = {
        line.split()[0]: [float(figure) for figure in re.findall(rf"{NUMBER} %", line)]
        for line in printed.splitlines()
        if line.count(" %") == 4
    }
    assert rows["truth"] == [0, 100, 100, 100]
    assert rows["motion"][0] < rows["fade"][0] / 3
    assert rows["motion"][0] < rows["geodesic"][0]
    assert rows["motion"][1] > rows["fade"][1]  # more hits at high rates
    assert abs(rows["motion"][2] - 100) < 1
    assert abs(rows["motion"][3] - 100) < abs(rows["fade"][3] - 100)  # it is sharper
    last, nowcast = find_numbers(rf"and the nowcast: {NUMBER} % {NUMBER} %", printed)
    assert nowcast < last / 2
    north, east = find_numbers(
        rf"'velocity_y': '{NUMBER} km s-1', 'velocity_x': '{NUMBER} km s", printed
    )
    assert north == pytest.approx(0.30 / 60, rel=0.5) and east == pytest.approx(0.90 / 60, rel=0.1)


def test_page(tmp_path):
    printed = run("page", tmp_path)
    assert "Heart" in printed and "Star" in printed
    (gap,) = find_numbers(rf"Optimal within {NUMBER} %", printed)
    assert gap < 2
