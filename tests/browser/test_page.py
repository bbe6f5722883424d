"""The page in a real browser: drawing, time, solvers, files, and what can be taken away."""

from __future__ import annotations

import base64
import json
import re
import zlib
from itertools import pairwise
from time import monotonic
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet._format import format_number

from .conftest import PATIENCE, pixels, until


def drawn(page):
    """What is on the page, from its own link: source, target, solver, options."""
    page.evaluate("history.replaceState(null, '', '#')")
    page.get_by_role("button", name="Copy link").click()
    until(page, "location.hash.length > 1")
    parts = parse_qs(urlsplit(page.url).fragment)
    shape = tuple(int(n) for n in parts["n"][0].split("x"))
    text = parts["d"][0]
    packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    both = np.frombuffer(zlib.decompress(packed), "<u2").reshape(2, *shape)
    options = {"epsilon": float(parts["e"][0])} if "e" in parts else {}
    grid = geonet.Grid(shape)
    ends = [geonet.Density(end.astype(float), grid) for end in both]
    return *ends, parts["s"][0], options


def solved(page):
    """The path that the library gives for what is on the page."""
    source, target, solver, options = drawn(page)
    return geonet.geodesic(source, target, solver, **options)


def distance_on(page):
    return re.search(r"W₂ = ([\d.e+-]+)", page.locator("#quick").inner_text())[1]


def test_it_starts_with_a_path(page):
    assert page.locator("#quick").inner_text().startswith("W₂ = ")
    assert pixels(page, "#view canvas").std() > 10


def test_the_numbers_on_the_page_are_those_of_the_library(page, stroke):
    stroke("source", [(0.2, 0.2), (0.3, 0.7)])
    stroke("target", [(0.8, 0.3)])
    path = solved(page)
    assert distance_on(page) == format_number(float(path.distance))
    page.locator("#facts .headline").wait_for()
    lower = format_number(float(path.report.distance_lower_bound))
    until(page, f"document.getElementById('facts').textContent.includes('{lower}')")


def test_a_stroke_changes_the_path(page, stroke):
    page.get_by_role("slider", name="Time").fill("0.5")
    before = distance_on(page), pixels(page, "#view canvas")
    stroke("target", [(0.05, 0.05), (0.1, 0.1)])
    assert distance_on(page) != before[0]
    assert np.abs(pixels(page, "#view canvas") - before[1]).max() > 10


def test_undo_erase_and_clear(page, stroke, settled):
    stroke("source", [(0.1, 0.9)])
    whole = drawn(page)[0].tensor.numpy()
    page.locator("#source").get_by_role("button", name="Eraser").click()
    stroke("source", [(0.1, 0.9)])
    erased = drawn(page)[0].tensor.numpy()
    assert erased[6, 57] == 0 < whole[6, 57]
    with settled():
        page.locator("#source").get_by_role("button", name="Undo").click()
    assert np.allclose(drawn(page)[0].tensor.numpy(), whole)
    page.locator("#source").get_by_role("button", name="Clear").click()
    page.get_by_text("Draw something on the left first.").wait_for()


def test_invert(page, settled):
    before = drawn(page)[0]
    with settled():
        page.locator("#source").get_by_role("button", name="Invert").click()
    after = drawn(page)[0]
    assert np.corrcoef(before.tensor.flatten(), after.tensor.flatten())[0, 1] < -0.999


def test_time_is_dragged_played_and_stepped(page):
    slider, clock = page.get_by_role("slider", name="Time"), page.locator(".clock")
    frames = []
    for t in ("0", "0.5", "1"):
        slider.fill(t)
        assert clock.inner_text() == f"t = {float(t):.2f}"
        frames.append(pixels(page, "#view canvas"))
    assert min(np.abs(a - b).max() for a, b in pairwise(frames)) > 50
    slider.fill("0")
    page.get_by_role("button", name="One step on").click()
    assert clock.inner_text() == "t = 0.03"
    page.get_by_role("button", name="Play").click()
    until(page, "Number(document.querySelector('[aria-label=Time]').value) > 0.2")
    page.get_by_role("button", name="Pause").click()
    page.locator("h1").click()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Pause").wait_for()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Play").wait_for()


def test_the_middle_frame_is_that_of_the_library(page):
    """Levels to colours and back: the brightest place is where the library has it."""
    path = solved(page)
    page.get_by_role("slider", name="Time").fill("0.5")
    shown = pixels(page, "#view canvas").sum(-1)
    expected = path.density(0.5).tensor.numpy()
    cells = np.asarray(
        Image.fromarray(shown.astype(np.float32)).resize(expected.shape[::-1], Image.Resampling.BOX)
    )
    assert np.corrcoef(cells.ravel(), expected.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("name", ["Particles", "Velocity", "Potential"])
def test_overlays_are_drawn(page, name):
    page.get_by_role("slider", name="Time").fill("0.5")
    before = pixels(page, "#view canvas")
    with page.expect_response("**/overlays"):
        page.get_by_label(name).check()
    end = monotonic() + PATIENCE
    while np.abs(pixels(page, "#view canvas") - before).max() <= 50:
        assert monotonic() < end, "nothing was drawn over the path"
        page.wait_for_timeout(20)


def test_the_fade_stands_beside_it(page):
    page.get_by_label("Compare with a fade").check()
    page.get_by_role("slider", name="Time").fill("0.5")
    other = page.locator("figure", has_text="Fading instead").locator("canvas")
    assert other.is_visible()
    source, target, *_ = drawn(page)
    mixture = (source.tensor + target.tensor).numpy()
    shown = pixels(page, "figure:has(figcaption) canvas").sum(-1)
    cells = np.asarray(
        Image.fromarray(shown.astype(np.float32)).resize(mixture.shape[::-1], Image.Resampling.BOX)
    )
    assert np.corrcoef(cells.ravel(), mixture.ravel())[0, 1] > 0.8


def test_another_solver_and_its_noise(page, settled):
    with settled():
        page.get_by_label("Solver").select_option("schrodinger")
    assert "solved by schrodinger" in page.locator("#quick").inner_text()
    assert page.get_by_label("Noise ε").is_visible()
    with settled():
        page.get_by_label("Noise ε").evaluate(
            "input => { input.value = input.max; "
            "for (const kind of ['input', 'change'])"
            " input.dispatchEvent(new Event(kind, { bubbles: true })); }"
        )
    path = solved(page)
    assert distance_on(page) == format_number(float(path.distance))


def test_curves(page, stroke, settled):
    with settled():
        page.get_by_label("Curves").check()
    stroke("source", [(0.9, 0.1), (0.2, 0.3), (0.9, 0.5)])
    path = solved(page)
    assert path.grid.dimension == 1
    assert distance_on(page) == format_number(float(path.distance))
    assert not page.get_by_label("Particles").is_visible()


def test_other_cells(page, settled):
    with settled():
        page.get_by_label("Cells").select_option("32")
    assert drawn(page)[0].grid.shape == (32, 32)
    with settled():
        page.get_by_label("Cells").select_option("128")
    assert drawn(page)[0].grid.shape == (128, 128)


def test_the_gallery(page, settled):
    with settled():
        page.locator("#source .gallery").get_by_role("button").first.click()
    first = drawn(page)[0].tensor
    with settled():
        page.locator("#source .gallery").get_by_role("button").last.click()
    assert not np.allclose(first, drawn(page)[0].tensor)


def test_a_file_is_dropped(page, settled, tmp_path, drop):
    values = np.zeros((64, 64))
    values[10:20, 30:50] = 2.5
    np.save(tmp_path / "box.npy", values)
    with settled():
        drop("target", tmp_path / "box.npy")
    page.get_by_text("Read box.npy.").wait_for()
    assert np.allclose(drawn(page)[1].tensor, geonet.Density(values, geonet.Grid((64, 64))).tensor)


def test_a_bad_file_is_a_sentence(page, tmp_path, drop):
    np.save(tmp_path / "bad.npy", np.full((8, 8), np.nan))
    drop("target", tmp_path / "bad.npy")
    until(page, "/NaN/.test(document.getElementById('message').textContent)")
    message = page.locator("#message").inner_text()
    assert "Traceback" not in message and message.endswith(".")


def test_the_keyboard_draws(page, settled):
    page.locator("#source canvas").first.focus()
    page.keyboard.press("Shift+ArrowUp")
    with settled():
        page.keyboard.press("Space")
    assert drawn(page)[0].tensor.numpy()[25, 32] > 0


# ---- what can be taken away


def taken(page, name, folder):
    with page.expect_download() as download:
        page.get_by_role("button", name=name, exact=True).click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


def test_the_gif(page, tmp_path):
    with Image.open(taken(page, "GIF", tmp_path)) as image:
        assert image.n_frames > 20


def test_the_strip(page, tmp_path):
    with Image.open(taken(page, "PNG strip", tmp_path)) as image:
        assert image.width > image.height


def test_the_archive(page, tmp_path):
    path = geonet.load(taken(page, ".npz", tmp_path))
    again = solved(page)
    assert float(path.distance) == pytest.approx(float(again.distance), rel=1e-9)


def test_both_densities(page, tmp_path):
    source, target, *_ = drawn(page)
    for name, end in (("First density", source), ("Second density", target)):
        values = np.load(taken(page, name, tmp_path))
        assert np.allclose(geonet.Density(values, end.grid).tensor, end.tensor)


def test_the_code(page, context):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("slider", name="Time").fill("0.25")
    page.get_by_role("button", name="Copy as Python").click()
    page.get_by_text("The code is copied.").wait_for()
    code = page.evaluate("navigator.clipboard.readText()")
    found: dict = {}
    exec(code.replace('path.explore("morph.html")', ""), found)  # it prints the report
    assert format_number(float(found["path"].distance)) == distance_on(page)
    assert np.allclose(found["source"].tensor, drawn(page)[0].tensor)
    assert np.allclose(found["frame"].tensor, solved(page).density(0.25).tensor)


def test_the_link(page, stroke, opened):
    stroke("source", [(0.3, 0.3)])
    page.get_by_role("slider", name="Time").fill("0.75")
    ends = drawn(page)
    other = opened(page.url)
    assert other.locator(".clock").inner_text() == "t = 0.75"
    assert distance_on(other) == distance_on(page)
    assert np.allclose(drawn(other)[0].tensor, ends[0].tensor)


def test_a_broken_link(opened, address):
    other = opened(f"{address}/#v=1&n=64x64&s=auto&d=AAAA")
    assert other.locator("#quick").inner_text().startswith("W₂ = ")


def test_the_page_to_explore(page, tmp_path, context):
    file = taken(page, "HTML page", tmp_path)
    assert file.stat().st_size < 600_000
    other = context.new_page()
    other.goto(file.as_uri())
    other.locator("#facts .headline").wait_for()
    assert distance_on(page) in other.locator("body").inner_text()
    other.get_by_role("slider", name="Time").fill("0.5")
    before = pixels(other, "#view canvas")
    other.get_by_label("Velocity").check()
    assert np.abs(pixels(other, "#view canvas") - before).max() > 50
    scene = json.loads(other.locator("#scene").text_content())
    assert scene["shape"] == [64, 64]
