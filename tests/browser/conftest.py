"""A server, a browser, and what a person does with them."""

from __future__ import annotations

import base64
import io
import shutil
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from PIL import Image

from geonet.app.jobs import first_path
from geonet.app.server import running

try:
    from playwright.sync_api import sync_playwright
except ModuleNotFoundError:
    sync_playwright = None

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

QUIET = (  # no calls to anybody, and no sandbox for root
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-quic"),
)
PATIENCE = 60  # seconds: the machine may be busy
IDLE = "!document.querySelector('.middle.waiting')"


@pytest.fixture(scope="session")
def address(browser):
    first_path()  # in this process: the server runs in a thread of it
    with running() as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    if sync_playwright is None:
        pytest.skip("Playwright is missing; `make test-browser` installs it.")
    if CHROMIUM is None:
        pytest.skip("There is no chromium; `apt-get install chromium` installs it on Debian.")
    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield launched
        launched.close()


@pytest.fixture
def context(browser):
    made = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    made.set_default_timeout(1000 * PATIENCE)
    yield made
    made.close()


@pytest.fixture
def opened(context):
    """Opens an address, and waits for its first path; anything in the console is a failure."""
    complaints: list[str] = []

    def at(url):
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        page.goto(url)
        until(page, "document.getElementById('quick').textContent !== ''")
        until(page, IDLE)
        return page

    yield at
    refused = "the server responded with a status of 4"  # that is what some tests are about
    assert [text for text in complaints if refused not in text] == []


@pytest.fixture
def page(opened, address):
    return opened(address)


@pytest.fixture
def settled(page):
    """Waits until what was done inside is solved and on the screen."""

    @contextmanager
    def done():
        page.evaluate(
            "() => { window.shown = false; document.addEventListener("
            "'geonet:shown', () => { window.shown = true; }, { once: true }); }"
        )
        yield
        until(page, "window.shown")
        until(page, IDLE)

    return done


@pytest.fixture
def stroke(page, settled):
    """Draws on a pad, through places that are shares of it: down, right."""

    def along(end, places):
        canvas = page.locator(f"#{end} > canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        at = [
            (box["x"] + right * box["width"], box["y"] + down * box["height"])
            for down, right in places
        ]
        with settled():
            page.mouse.move(*at[0])
            page.mouse.down()
            for place in at[1:]:
                page.mouse.move(*place, steps=8)
            page.mouse.up()

    return along


@pytest.fixture
def drop(page):
    """Drops a file onto a pad."""

    def onto(end, file: Path):
        data = page.evaluate_handle(
            """([bytes, name]) => {
              const data = new DataTransfer();
              data.items.add(new File([new Uint8Array(bytes)], name));
              return data;
            }""",
            [list(file.read_bytes()), file.name],
        )
        page.dispatch_event(f"#{end}", "drop", {"dataTransfer": data})

    return onto


def until(page, expression):
    """Wait until an expression is true; the page's policy stops Playwright's waiting."""
    end = monotonic() + PATIENCE
    while not page.evaluate(expression):
        assert monotonic() < end, expression
        page.wait_for_timeout(20)


def pixels(page, selector):
    """What a canvas shows, (height, width, 3)."""
    url = page.locator(selector).first.evaluate("canvas => canvas.toDataURL()")
    data = io.BytesIO(base64.b64decode(url.partition(",")[2]))
    return np.asarray(Image.open(data).convert("RGB")).astype(float)
