"""A server, a browser, and actions of a user."""

import base64
import io
import shutil
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from PIL import Image

from geonet.app.jobs import warm_up
from geonet.app.server import run_in_thread

try:
    from playwright.sync_api import sync_playwright
except ModuleNotFoundError:
    sync_playwright = None

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

OPTIONS = [  # no sandbox for root, no network traffic of its own
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
TIMEOUT = 60  # seconds, for busy machines
IDLE = "!document.querySelector('.middle.solving')"


@pytest.fixture(scope="session")
def address(browser):
    warm_up()
    with run_in_thread() as server:
        yield server.address


@pytest.fixture(scope="session")
def browser():
    if sync_playwright is None:
        pytest.skip("Playwright is missing; `make test-browser` installs it.")
    if CHROMIUM is None:
        pytest.skip("There is no chromium; `apt-get install chromium` installs it on Debian.")
    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield launched
        launched.close()


@pytest.fixture
def context(browser):
    made = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    made.set_default_timeout(1000 * TIMEOUT)
    yield made
    made.close()


@pytest.fixture
def open_page(context):
    """Opens an address and waits for the first path; messages in the console are failures."""
    errors: list[str] = []

    def visit(url):
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        page.goto(url)
        wait_until(page, "document.getElementById('result').textContent !== ''")
        wait_until(page, IDLE)
        return page

    yield visit
    expected = "the server responded with a status of 4"  # in tests of error messages
    assert [text for text in errors if expected not in text] == []


@pytest.fixture
def page(open_page, address):
    return open_page(address)


@pytest.fixture
def wait_for_path(page):
    """Waits until the changes within the context are solved and shown."""

    @contextmanager
    def wait():
        page.evaluate(
            "() => { window.shown = false; document.addEventListener("
            "'geonet:shown', () => { window.shown = true; }, { once: true }); }"
        )
        yield
        wait_until(page, "window.shown")
        wait_until(page, IDLE)

    return wait


@pytest.fixture
def stroke(page, wait_for_path):
    """Draws on a pad, through positions as fractions of its size: down, right."""

    def draw(end, positions):
        canvas = page.locator(f"#{end} > canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        points = [
            (box["x"] + right * box["width"], box["y"] + down * box["height"])
            for down, right in positions
        ]
        with wait_for_path():
            page.mouse.move(*points[0])
            page.mouse.down()
            for point in points[1:]:
                page.mouse.move(*point, steps=8)
            page.mouse.up()

    return draw


@pytest.fixture
def drop(page):
    """Drops a file onto a pad."""

    def upload(end, file: Path):
        data = page.evaluate_handle(
            """([bytes, name]) => {
              const data = new DataTransfer();
              data.items.add(new File([new Uint8Array(bytes)], name));
              return data;
            }""",
            [list(file.read_bytes()), file.name],
        )
        page.dispatch_event(f"#{end}", "drop", {"dataTransfer": data})

    return upload


def wait_until(page, expression):
    """Wait until an expression is true; the page's policy blocks Playwright's own function."""
    end = monotonic() + TIMEOUT
    while not page.evaluate(expression):
        assert monotonic() < end, expression
        page.wait_for_timeout(20)


def pixels(page, selector):
    """The pixels of a canvas, (height, width, 3)."""
    url = page.locator(selector).first.evaluate("canvas => canvas.toDataURL()")
    data = io.BytesIO(base64.b64decode(url.partition(",")[2]))
    return np.asarray(Image.open(data).convert("RGB")).astype(float)
