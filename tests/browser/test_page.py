"""The page in a real browser: drawing, time, solvers, files and downloads."""

import re
from itertools import pairwise
from time import monotonic

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet._format import format_number

from .conftest import (
    TIMEOUT,
    correlate,
    pixels,
    read_drawings,
    save_download,
    solve,
    wait_until,
)


def read_distance(page):
    return re.search(r"W₂ = ([\d.e+-]+)", page.locator("#result").inner_text())[1]


def test_a_stroke_changes_the_path(page, stroke):
    page.get_by_role("slider", name="Time").fill("0.5")
    before = read_distance(page), pixels(page, "#view canvas")
    stroke(1, [(0.2, 0.2), (0.3, 0.7)])
    stroke(2, [(0.05, 0.05), (0.1, 0.1)])
    path = solve(page)
    assert read_distance(page) == format_number(float(path.distance)) != before[0]
    assert np.abs(pixels(page, "#view canvas") - before[1]).max() > 10
    lower = format_number(float(path.report.distance_lower_bound))
    wait_until(page, f"document.getElementById('report').textContent.includes('{lower}')")


def test_undo_erase_clear_and_invert(page, stroke, wait_for_path):
    pad = page.locator("#density-1")
    stroke(1, [(0.1, 0.9)])
    before = read_drawings(page)[0][0].numpy()
    pad.get_by_role("button", name="Eraser").click()
    stroke(1, [(0.1, 0.9)])
    assert read_drawings(page)[0][0].numpy()[6, 57] == 0 < before[6, 57]
    with wait_for_path():
        pad.get_by_role("button", name="Undo").click()
    assert np.allclose(read_drawings(page)[0][0].numpy(), before)
    with wait_for_path():
        pad.get_by_role("button", name="Invert").click()
    assert np.corrcoef(before.ravel(), read_drawings(page)[0][0].numpy().ravel())[0, 1] < -0.999
    pad.get_by_role("button", name="Clear").click()
    page.get_by_text("Source is empty").wait_for()


def test_the_keyboard_draws(page, wait_for_path):
    page.locator("#density-1 canvas").first.focus()
    page.keyboard.press("Shift+ArrowUp")
    with wait_for_path():
        page.keyboard.press("Space")
    assert read_drawings(page)[0][0].numpy()[25, 32] > 0


def test_the_time_can_be_dragged_played_and_stepped(page):
    slider, clock = page.get_by_role("slider", name="Time"), page.locator(".clock")
    frames = []
    for t in ("0", "0.5", "1"):
        slider.fill(t)
        assert clock.inner_text() == f"t = {float(t):.2f}"
        frames.append(pixels(page, "#view canvas"))
    assert min(np.abs(a - b).max() for a, b in pairwise(frames)) > 50
    assert correlate(frames[1], solve(page).density(0.5).numpy()) > 0.9
    slider.fill("0")
    page.get_by_role("button", name="Step forward").click()
    assert clock.inner_text() == "t = 0.03"
    page.get_by_role("button", name="Play").click()
    wait_until(page, "Number(document.querySelector('[aria-label=Time]').value) > 0.2")
    page.get_by_role("button", name="Pause").click()
    page.locator("h1").click()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Play").wait_for()


@pytest.mark.parametrize("name", ["Particles", "Velocity", "Potential"])
def test_overlays_are_drawn(page, stroke, name):
    page.get_by_role("slider", name="Time").fill("0.5")
    before = pixels(page, "#view canvas")
    with page.expect_response("**/overlays"):
        page.get_by_label(name).check()
    end = monotonic() + TIMEOUT
    while np.abs(pixels(page, "#view canvas") - before).max() <= 50:
        assert monotonic() < end, "no overlay was drawn"
        page.wait_for_timeout(20)
    with page.expect_response("**/overlays"):  # for the next path as well
        stroke(1, [(0.9, 0.9)])


def test_curves(page, stroke, wait_for_path):
    with wait_for_path():
        page.get_by_label("Curves (1D)").check()
    stroke(1, [(0.9, 0.1), (0.2, 0.3), (0.9, 0.5)])
    path = solve(page)
    assert path.grid.dimension == 1
    assert read_distance(page) == format_number(float(path.distance))
    assert not page.get_by_label("Particles").is_visible()
    with wait_for_path():
        page.get_by_label("Solver").select_option("schrodinger")


def test_files_can_be_dropped(page, wait_for_path, tmp_path, drop):
    values = np.zeros((64, 64))
    values[10:20, 30:50] = 2.5
    np.save(tmp_path / "box.npy", values)
    with wait_for_path():
        drop(2, tmp_path / "box.npy")
    page.get_by_text("Opened box.npy.").wait_for()
    expected = geonet.Density(values, geonet.Grid((64, 64)))
    assert np.allclose(read_drawings(page)[0][1].numpy(), expected.numpy())
    np.save(tmp_path / "bad.npy", np.full((8, 8), np.nan))
    drop(2, tmp_path / "bad.npy")
    wait_until(page, "/NaN/.test(document.getElementById('message').textContent)")


# ---- downloads


def test_downloads(page, tmp_path):
    with Image.open(save_download(page, "Animation (.gif)", tmp_path)) as image:
        assert image.n_frames > 20
    with Image.open(save_download(page, "Figure (.png)", tmp_path)) as image:
        assert image.width > image.height
    path = geonet.load(save_download(page, "Path (.npz)", tmp_path))
    assert float(path.distance) == pytest.approx(float(solve(page).distance), rel=1e-9)
    (source, target), _ = read_drawings(page)
    for name, end in (("Source (.npy)", source), ("Target (.npy)", target)):
        values = np.load(save_download(page, name, tmp_path))
        assert np.allclose(values, end.numpy(mass="given"))


def test_python_code(page, context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("slider", name="Time").fill("0.25")
    page.get_by_role("button", name="Copy Python code").click()
    page.get_by_text("Python code copied.").wait_for()
    code = page.evaluate("navigator.clipboard.readText()")
    names: dict = {}
    exec(code.replace('path.explore("path.html")', ""), names)
    assert format_number(float(names["path"].distance)) == read_distance(page)
    assert np.allclose(names["frame"].numpy(), solve(page).density(0.25).numpy())


def test_the_permalink(page, stroke, open_page, address):
    stroke(1, [(0.3, 0.3)])
    page.get_by_role("slider", name="Time").fill("0.75")
    (source, _), _ = read_drawings(page)
    other = open_page(page.url)
    assert other.locator(".clock").inner_text() == "t = 0.75"
    assert read_distance(other) == read_distance(page)
    assert np.allclose(read_drawings(other)[0][0].numpy(), source.numpy())
    broken = open_page(f"{address}/#v=1&n=64x64&s=auto&d=AAAA")
    assert broken.locator("#result").inner_text().startswith("W₂ = ")
