"""Latency of the page of `geonet app` after a stroke, and its behaviour under load.

    python -m benchmarks study app-latency --strokes 100

Draws on both pads in a headless chromium on this machine, one stroke after the other. A stroke's
time runs from the event of its pointer to the first picture of the screen that has the new path.
Then 200 drawings are sent at once, each from a page of its own, to a server in another process.
Prints the tables and writes them into docs/app.md. Run it by `make benchmark NAME=app-latency` on
an otherwise idle machine; it needs Debian's chromium.
"""

from __future__ import annotations

import base64
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

import httpx
import numpy as np
from playwright.sync_api import Page, Response, sync_playwright

from benchmarks.pages import format_table, publish
from benchmarks.results import record_provenance
from geonet.app.server import run_in_thread

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
    """Return the milliseconds from each stroke to its path, one stroke after the other."""
    chance = random.Random(SEED)
    page.evaluate(LISTEN)
    for k in range(strokes):
        box = page.locator(f"#density-{1 + k % 2} > canvas").bounding_box()
        assert box is not None
        place = [chance.uniform(0.1, 0.9) for _ in range(2)]
        page.mouse.move(box["x"] + place[0] * box["width"], box["y"] + place[1] * box["height"])
        page.mouse.down()
        page.mouse.up()
        while page.evaluate("window.waits.length") <= k:
            page.wait_for_timeout(5)
        if k % 25 == 24:  # a full pad would no longer change
            for end in (1, 2):
                page.locator(f"#density-{end} .gallery button").nth(chance.randrange(12)).click()
            page.evaluate("scrollTo(0, 0)")  # where the pads are
            page.wait_for_timeout(500)
            page.evaluate("count => { window.waits.length = count; }", k + 1)
    return page.evaluate("window.waits")


def weight(page: Page, address: str) -> float:
    """Return kB of everything that the page loads before anything is drawn, uncompressed."""
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(address)
    page.locator("#result:not(:empty)").wait_for()
    page.wait_for_load_state("networkidle")
    own = [answer for answer in answers if re.search(r":\d+/((app|plotting)/.*)?$", answer.url)]
    return sum(len(answer.body()) for answer in own) / 1000


def crowd(count: int = 200) -> tuple[Counter[int], float]:
    """Send many requests at once; return counts by status and the growth of the server's memory in
    MB.
    """
    command = [sys.executable, "-m", "geonet", "app", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[4]
            assert ask(address, 0) == 200  # the network is loaded then
            before = peak(server.pid)
            with ThreadPoolExecutor(count) as pool:
                found = Counter(pool.map(lambda k: ask(address, k), range(count)))
            return found, peak(server.pid) - before
        finally:
            server.send_signal(signal.SIGINT)


def ask(address: str, k: int) -> int:
    """Return the status of a drawing's answer; each is another one."""
    values = np.zeros((2, 64, 64), "<u2")
    values[0, 5:25, 5 + k % 30 : 25 + k % 30] = values[1, 30:60, 30 - k % 20 : 50] = 65535
    densities = [base64.b64encode(end.tobytes()).decode() for end in values]
    question = {"client": f"page-{k}", "number": 1, "shape": [64, 64], "frames": 33}
    question |= {"densities": densities, "weights": None, "solver": "auto"}
    question |= {"epsilon": None, "reach": None, "growth": None}
    return httpx.post(f"{address}/solve", json=question, timeout=120).status_code


def peak(process: int) -> float:
    """Return the most memory that a process ever had, MB."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1000


def main(strokes: int = 100) -> None:
    """Measure, print and publish."""
    provenance = record_provenance()
    with run_in_thread() as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(QUIET)
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        kilobytes = weight(page, server.address)
        found = waits(page, strokes)
        browser.close()
    late = quantiles(found, n=20)[-1]
    row = (f"{len(found)}", f"{median(found):.0f}", f"{late:.0f}", f"{kilobytes:.0f}")
    text = format_table(("strokes", "median, ms", "95th percentile, ms", "the page, kB"), [row])
    print(text)
    statuses, grown = crowd()
    answers = (f"{sum(statuses.values())}", f"{statuses[200]}", f"{statuses[503]}", f"{grown:.0f}")
    names = ("requests at once", "answered", "rejected with a message", "memory grew by, MB")
    together = format_table(names, [answers])
    print(together)
    publish("app-latency", provenance, {"docs/app.md": {"latency": text, "crowd": together}})


if __name__ == "__main__":
    main()
