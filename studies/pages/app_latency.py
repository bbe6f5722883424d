"""How soon the page of `geonet app` shows a new path after a stroke, and what the page weighs.

    python studies/pages/app_latency.py [STROKES]

Draws on both pads in a headless chromium on this machine, one stroke after the other. A stroke's
time runs from the event of its pointer to the first picture of the screen that has the new path.
Prints the table and writes it into docs/app.md. Run it by `make app-latency` on an otherwise idle
machine; it needs Debian's chromium.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
from statistics import median, quantiles

from pages import table
from playwright.sync_api import Page, sync_playwright
from published import begun, publish

from geonet.app.serving import running

QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
SEED = 20
LISTEN = """() => {
  window.waits = [];
  let began = null;
  for (const canvas of document.querySelectorAll(".pad > canvas")) {
    canvas.addEventListener("pointerdown", (event) => { began = event.timeStamp; }, true);
  }
  document.addEventListener("geonet:shown", () => requestAnimationFrame(() => {
    const channel = new MessageChannel();  // runs after the picture of this frame is made
    channel.port1.onmessage = () => window.waits.push(performance.now() - began);
    channel.port2.postMessage(0);
  }));
}"""


def waits(page: Page, strokes: int) -> list[float]:
    """Milliseconds from each stroke to its path, one stroke after the other."""
    chance = random.Random(SEED)
    page.evaluate(LISTEN)
    for k in range(strokes):
        box = page.locator(f"#{('source', 'target')[k % 2]} > canvas").bounding_box()
        assert box is not None
        place = [chance.uniform(0.1, 0.9) for _ in range(2)]
        page.mouse.move(box["x"] + place[0] * box["width"], box["y"] + place[1] * box["height"])
        page.mouse.down()
        page.mouse.up()
        while page.evaluate("window.waits.length") <= k:
            page.wait_for_timeout(5)
        if k % 25 == 24:  # a full pad would no longer change
            for end in ("source", "target"):
                page.locator(f"#{end} .gallery button").nth(chance.randrange(12)).click()
            page.wait_for_timeout(500)
            page.evaluate("count => { window.waits.length = count; }", k + 1)
    return page.evaluate("window.waits")


def weight(page: Page, address: str) -> float:
    """kB of everything that the page loads before anything is drawn, uncompressed."""
    sizes: dict[str, int] = {}
    page.on("response", lambda answer: sizes.update({answer.url: len(answer.body())}))
    page.goto(address)
    page.locator("#quick:not(:empty)").wait_for()
    page.wait_for_load_state("networkidle")
    own = [size for url, size in sizes.items() if re.search(r"/(page/[^/]*)?$", url)]
    return sum(own) / 1000


def main(strokes: int) -> None:
    """Measure, print and publish."""
    stamped = begun("app-latency")
    with running() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(QUIET)
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        kilobytes = weight(page, address)
        found = waits(page, strokes)
        browser.close()
    late = quantiles(found, n=20)[-1]
    row = (f"{len(found)}", f"{median(found):.0f}", f"{late:.0f}", f"{kilobytes:.0f}")
    text = table(("strokes", "median, ms", "95th percentile, ms", "the page, kB"), [row])
    print(text)
    publish("app-latency", stamped, {"docs/app.md": {"latency": text}})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
