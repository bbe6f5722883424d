"""A server, a browser, and actions of a user."""

import base64
import io
import shutil
import zlib
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image

import geonet
from geonet.app.jobs import ResultCache, warm_up
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
IDLE = "!document.querySelector('.middle.outdated')"


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
    expected = "status of 4", "net::ERR_FAILED"  # in tests of error messages
    assert [text for text in errors if not any(part in text for part in expected)] == []


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
    """Draws on a pad by its number, through positions as fractions of its size: down, right."""

    def draw(number, positions):
        canvas = page.locator(f"#density-{number} > canvas")
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
    """Drops a file onto a pad by its number."""

    def upload(number, file: Path):
        data = page.evaluate_handle(
            """([bytes, name]) => {
              const data = new DataTransfer();
              data.items.add(new File([new Uint8Array(bytes)], name));
              return data;
            }""",
            [list(file.read_bytes()), file.name],
        )
        page.dispatch_event(f"#density-{number}", "drop", {"dataTransfer": data})

    return upload


class Brake:
    """Holds back every answer of a running server until it is released."""

    def __init__(self, monkeypatch):
        self._go, self.waiting = Event(), Event()
        solve = ResultCache.solve

        def wait(cache, request):
            self.waiting.set()
            assert self._go.wait(TIMEOUT)
            return solve(cache, request)

        monkeypatch.setattr(ResultCache, "solve", wait)

    def release(self):
        self._go.set()


@pytest.fixture
def brake(monkeypatch):
    """Makes a function that holds back all answers from then on."""
    made: list[Brake] = []

    def hold():
        made.append(Brake(monkeypatch))
        return made[-1]

    yield hold
    for one in made:
        one.release()


def read_drawings(page):
    """Densities, and the other parts of the permalink of the page."""
    page.evaluate("history.replaceState(null, '', '#')")
    page.get_by_role("button", name="Copy link").click()
    wait_until(page, "location.hash.length > 1")
    parts = {key: value for key, (value,) in parse_qs(urlsplit(page.url).fragment).items()}
    shape = tuple(int(n) for n in parts["n"].split("x"))
    text = parts.pop("d")
    packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    drawings = np.frombuffer(zlib.decompress(packed), "<u2").reshape(-1, *shape)
    return [geonet.Density(values / 65535, geonet.Grid(shape)) for values in drawings], parts


def solve(page):
    """The path or barycenter of the library for the drawings on the page."""
    densities, parts = read_drawings(page)
    kinds = {"e": ("epsilon", float), "r": ("reach", float), "g": ("growth", str)}
    options = {name: kind(parts[key]) for key, (name, kind) in kinds.items() if key in parts}
    if "w" in parts:
        weights = [float(weight) for weight in parts["w"].split(",")]
        return geonet.barycenter(densities, weights, **options)
    return geonet.geodesic(*densities, parts["s"], **options)


def save_download(page, name, folder):
    """The file of a download button, in a folder."""
    with page.expect_download() as download:
        page.get_by_role("button", name=name).click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


def correlate(picture, values):
    """The correlation of the brightness of a picture with values (n, m)."""
    image = Image.fromarray(picture.sum(-1).astype(np.float32))
    cells = np.asarray(image.resize(values.shape[::-1], Image.Resampling.BOX))
    return np.corrcoef(cells.ravel(), values.ravel())[0, 1]


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
