"""Barycenters and a reach in a real browser: weights, keys, touch, links, code and downloads."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet._format import format_number

from .conftest import correlate, pixels, read_drawings, save_download, solve, wait_until

PICTURE = "#weights figure canvas"


@pytest.fixture
def choose(page, wait_for_path):
    """Changes a setting above the drawings and waits for the answer."""

    def change(name, value):
        control = page.locator(f"[name={name}]")
        with wait_for_path():
            (control.fill if name in ("reach", "epsilon") else control.select_option)(str(value))

    return change


def read_weights(page):
    text = page.locator("#weights .readout").inner_text()
    return [float(number) for number in re.findall(r": ([\d.]+)", text)]


def point_at(page, right, down):
    """A place of the polygon in pixels of the window."""
    page.locator("#weights .area").scroll_into_view_if_needed()
    box = page.locator("#weights .area").bounding_box()
    return box["x"] + right * box["width"], box["y"] + down * box["height"]


@pytest.mark.parametrize("count", [3, 4])
def test_the_barycenter_of_all_drawings_is_shown(page, choose, stroke, count):
    choose("count", count)
    assert page.locator(".pad:visible").count() == page.locator("#weights .corner").count() == count
    assert not page.get_by_role("slider", name="Time").is_visible()
    assert not page.locator("[name=solver]").is_visible()
    stroke(count, [(0.1, 0.1), (0.2, 0.6)])
    one = solve(page)
    assert len(one.densities) == count
    expected = f"Σ w W₂² = {format_number(one.estimate)}"
    assert page.locator("#result").inner_text().startswith(expected)
    assert correlate(pixels(page, PICTURE), one.density.numpy()) > 0.95
    gap = f"Optimal within {one.report.summary().headline.split()[-2]} %"
    wait_until(page, f"document.getElementById('report').textContent.includes('{gap}')")
    choose("count", 2)
    assert page.locator("#result").inner_text().startswith("W₂ = ")


def test_the_point_is_dragged_and_the_picture_follows_at_once(
    page, choose, wait_for_path, brake, correlation=0.97
):
    choose("count", 4)
    before = pixels(page, PICTURE)
    brakes = brake()
    page.mouse.move(*point_at(page, 0.5, 0.5))
    page.mouse.down()
    page.mouse.move(*point_at(page, 0.75, 0.25), steps=4)
    followed = pixels(page, PICTURE)  # carried in the browser; the server is held back
    assert np.abs(followed - before).max() > 50
    page.mouse.up()
    assert np.allclose(read_weights(page), [0.1875, 0.5625, 0.0625, 0.1875], atol=0.02)
    with wait_for_path():
        brakes.release()
    expected = solve(page).density.numpy()
    assert correlate(pixels(page, PICTURE), expected) > 0.95
    assert correlate(followed, expected) > correlation * correlate(pixels(page, PICTURE), expected)
    assert correlate(before, expected) < correlate(followed, expected)


def test_keys_and_corners_move_the_point(page, choose, wait_for_path):
    choose("count", 3)
    handle = page.get_by_role("slider", name="Weights")
    with wait_for_path():
        page.get_by_role("button", name="Density 2", exact=True).click()
    assert read_weights(page) == [0, 1, 0]
    picture = pixels(page, PICTURE)
    page.get_by_text("One density has all the weight").wait_for()
    with wait_for_path():  # the click has moved the focus to the point
        page.keyboard.press("ArrowUp")
    assert read_weights(page)[0] > 0
    assert correlate(picture, read_drawings(page)[0][1].numpy()) > 0.95
    page.locator("h1").click()
    with wait_for_path():  # without focus, too
        page.keyboard.press("0")
    assert read_weights(page) == [0.33, 0.33, 0.33]
    assert "0.33" in handle.get_attribute("aria-valuetext")
    page.locator("#density-1 > canvas").focus()
    page.keyboard.press("ArrowLeft")  # moves the cursor of the drawing instead
    assert read_weights(page) == [0.33, 0.33, 0.33]


def test_curves(page, choose, wait_for_path):
    choose("count", 4)
    with wait_for_path():
        page.get_by_label("Curves (1D)").check()
    one = solve(page)
    assert one.grid.dimension == 1 and len(one.densities) == 4
    assert f"= {format_number(one.estimate)}," in page.locator("#result").inner_text()


# ---- reach


def test_the_reach_of_a_path(page, choose):
    choose("reach", 20)
    path = solve(page)
    assert not path.is_balanced and path.growth == "hellinger"
    result = page.locator("#result").inner_text()
    assert result.startswith(f"Cost {format_number(float(path.cost))}, ")
    page.get_by_text("of the mass is transported").wait_for()
    page.get_by_text("Full report").click()
    assert page.get_by_role("row", name="transported share").is_visible()
    choose("growth", "wfr")
    assert solve(page).growth == "wfr"
    page.get_by_role("slider", name="Time").fill("0.5")
    picture = pixels(page, "#view canvas")
    assert correlate(picture, solve(page).density(0.5).numpy()) > 0.9
    choose("reach", 41)
    assert page.locator("#result").inner_text().startswith("W₂ = ")
    assert not page.locator("[name=growth]").is_visible()
    choose("reach", 20)
    choose("solver", "linear")  # has no reach, but keeps the slider for the next solver
    assert not page.locator("[name=reach]").is_visible()
    assert solve(page).is_balanced


def test_the_reach_of_a_barycenter(page, choose):
    choose("count", 3)
    choose("reach", 20)
    one = solve(page)
    assert one.options.reach == read_reach(page) == 0.22
    assert (
        page.locator("#result").inner_text().startswith(f"Objective {format_number(one.estimate)}")
    )


def read_reach(page):
    return float(page.locator("[name=reach] + output").inner_text())


# ---- links, code and files


def test_the_permalink_has_weights_and_reach(page, choose, wait_for_path, open_page):
    choose("count", 4)
    choose("reach", 30)
    page.get_by_role("slider", name="Weights").focus()
    with wait_for_path():
        page.keyboard.press("Shift+ArrowRight")
    densities, parts = read_drawings(page)
    other = open_page(page.url)
    assert read_weights(other) == read_weights(page) != [0.25] * 4
    assert read_reach(other) == read_reach(page)
    again, other_parts = read_drawings(other)
    assert parts == other_parts
    for one, two in zip(densities, again, strict=True):
        assert np.array_equal(one.numpy(), two.numpy())


def test_python_code(page, choose, context, wait_for_path):
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose("count", 3)
    choose("reach", 25)
    page.get_by_role("slider", name="Weights").focus()
    with wait_for_path():
        page.keyboard.press("ArrowDown")
    page.get_by_role("button", name="Copy Python code").click()
    page.get_by_text("Python code copied.").wait_for()
    code = page.evaluate("navigator.clipboard.readText()")
    names: dict = {}
    exec(code.replace('barycenter.explore("barycenter.html")', ""), names)
    assert format_number(names["barycenter"].estimate) in page.locator("#result").inner_text()


def test_downloads(page, choose, browser, tmp_path):
    choose("count", 3)
    choose("cells", 32)
    one = geonet.load(save_download(page, "Barycenter (.npz)", tmp_path))
    assert np.allclose(one.density.numpy(), solve(page).density.numpy())
    with Image.open(save_download(page, "Animation (.gif)", tmp_path)) as image:
        assert image.n_frames > 20
    with Image.open(save_download(page, "Figure (.png)", tmp_path)) as image:
        assert min(image.size) > 100
    values = np.load(save_download(page, "Density 3 (.npy)", tmp_path))
    assert np.allclose(values, one.densities[2].numpy(mass="given"))
    file = save_download(page, "Web page (.html)", tmp_path)
    other = browser.new_page()
    errors: list[str] = []
    other.on("pageerror", lambda error: errors.append(str(error)))
    other.goto(file.as_uri())
    other.locator(".readout").get_by_text("0.33").wait_for()
    other.keyboard.press("1")
    other.locator(".readout").get_by_text("1: 1.00").wait_for()
    assert errors == []
    other.close()


# ---- phones


def test_a_phone_draws_and_drags(browser, address):
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(address)
    for dimension in ("Curves (1D)", "Images (2D)"):
        page.get_by_label(dimension).check()
        for count in ("2", "3", "4"):
            page.locator("[name=count]").select_option(count)
            page.locator("#report .headline").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
    small = page.evaluate(
        "[...document.querySelectorAll('button:not(.corner), select')]"
        ".filter((one) => one.checkVisibility() && one.getBoundingClientRect().height < 28).length"
    )
    assert small == 0
    page.locator("#density-3 > canvas").scroll_into_view_if_needed()
    box = page.locator("#density-3 > canvas").bounding_box()
    page.touchscreen.tap(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    assert read_drawings(page)[0][2].numpy()[32, 32] > 0  # the ring has a hole there
    client = context.new_cdp_session(page)
    places = [point_at(page, *place) for place in ((0.5, 0.5), (0.6, 0.6), (0.75, 0.75))]
    top = page.evaluate("scrollY")
    for k, (x, y) in enumerate(places):
        kind, touches = ("touchMove" if k else "touchStart"), [{"x": x, "y": y}]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})
    client.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    assert np.allclose(read_weights(page), [0.0625, 0.1875, 0.1875, 0.5625], atol=0.03)
    assert page.evaluate("scrollY") == top  # dragging the point does not scroll the page
    weights = json.loads(f"[{read_drawings(page)[1]['w']}]")
    assert np.allclose(weights, read_weights(page), atol=0.006)
    context.close()
