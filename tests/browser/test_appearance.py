"""Layout and contrast of the page.

Screenshots go to the folder $SCREENSHOTS; `make screenshots` writes them to docs/images.
"""

import os
from pathlib import Path

import pytest

import geonet

VIEWS = {
    "app-light": ((1280, 1000), "light"),
    "app-dark": ((1280, 1000), "dark"),
    "app-narrow": ((390, 1400), "light"),
    "app-curves": ((1280, 900), "dark"),
    "app-barycenter": ((1280, 1000), "light"),
    "app-phone": ((390, 1900), "dark"),
}
BARYCENTERS = "app-barycenter", "app-phone"
CONTRAST = 4.5  # smallest contrast of text (WCAG 2.2, AA)
TEXTS = "h1, h2, h3, p, label, button, summary, output, th, td, .clock"


@pytest.fixture
def folder(tmp_path):
    return Path(os.environ.get("SCREENSHOTS", tmp_path))


@pytest.fixture(params=VIEWS)
def view(request, browser, address):
    """A page in one of the views, with its report, at t = 1/2."""
    (width, height), colours = VIEWS[request.param]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
    page.set_default_timeout(60_000)
    page.goto(address)
    if request.param == "app-curves":
        page.get_by_label("Curves (1D)").check()
    page.locator("#report .headline").wait_for()
    if request.param in BARYCENTERS:
        page.locator("[name=count]").select_option("4")
        page.get_by_role("slider", name="Weights").focus()
        for _ in range(6):
            page.keyboard.press("ArrowRight")
        page.evaluate("document.activeElement.blur()")
        page.get_by_text("Optimal within").wait_for()
    else:
        page.get_by_role("slider", name="Time").fill("0.5")
    page.locator("#busy").wait_for(state="hidden")
    yield request.param, page
    page.close()


def test_the_page_fits_and_has_contrast(view, folder):
    name, page = view
    page.screenshot(path=str(folder / f"{name}.png"))
    wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window
    for text, colour, background in page.evaluate(COLOURS, TEXTS):
        assert contrast(colour, background) >= CONTRAST, (text, colour, background)


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_standalone_pages(browser, tmp_path, dimension):
    grid = geonet.Grid((24,) * dimension, 0, 5)
    ends = [
        geonet.GaussianMixture.isotropic([[x] * dimension], 0.6).to_density(grid)
        for x in (1.5, 3.5)
    ]
    file = geonet.geodesic(*ends).explore(tmp_path / "path.html")
    page = browser.new_page(viewport={"width": 800, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    page.locator("#report .headline").wait_for()
    page.get_by_role("slider", name="Time").fill("0.5")
    page.screenshot(path=str(tmp_path / f"explore-{dimension}d.png"))
    assert errors == []
    page.close()


COLOURS = """selector => {
  const background = (element) => {
    for (let here = element; here; here = here.parentElement) {
      const colour = getComputedStyle(here).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll(selector)]
    .filter((element) => element.checkVisibility() && element.textContent.trim())
    .filter((element) => !element.disabled)
    .map((element) => {
      const style = getComputedStyle(element);
      return [element.textContent.trim().slice(0, 30), style.color, background(element)];
    });
}"""


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours as WCAG defines it."""
    low, high = sorted(map(luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
