"""Cost of the command line: the first command, and a thousand pairs.

    python -m benchmarks.studies.command_line

prints the time of `geonet geodesic a.png b.png -o morph.gif --report` over that of importing torch,
for two images of 128×128, and of 1,000 pairs, ten of them broken, at 128×128 and 11 times: how many
were answered, what a second run did, and the peak memory beside that of 25 pairs. Both run on an
otherwise idle machine; the answers, some 2 GB, go to a temporary folder.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.pages import publish
from benchmarks.results import record_provenance

SIDE, PAIRS, BROKEN, FEW = 128, 1000, 10, 25
REPEATS = 5
GEONET = str(Path(sys.executable).with_name("geonet"))


def draw_shapes(folder: Path) -> list[str]:
    """Return two images: a disc and a rectangle elsewhere."""
    for name, shape, box in (
        ("a", "ellipse", (15, 40, 60, 105)),
        ("b", "rectangle", (60, 20, 115, 70)),
    ):
        image = Image.new("L", (SIDE, SIDE))
        getattr(ImageDraw.Draw(image), shape)(box, fill=255)
        image.save(folder / f"{name}.png")
    return ["a.png", "b.png"]


def seconds(command: list[str], folder: Path) -> float:
    """Return wall time of a command that must succeed."""
    began = perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return perf_counter() - began


def first_command(folder: Path) -> None:
    """Time both commands in turn, so that both see the same load."""
    files = draw_shapes(folder)
    morph = [GEONET, "geodesic", *files, "-o", "morph.gif", "--report"]
    nothing = [sys.executable, "-c", "import torch"]
    seconds(morph, folder)  # both once: the disk's cache is warm
    seconds(nothing, folder)
    taken = [(seconds(morph, folder), seconds(nothing, folder)) for _ in range(REPEATS)]
    ours, theirs = (median(column) for column in zip(*taken, strict=True))
    print(
        f"geodesic a.png b.png -o morph.gif --report: {ours:.2f} s, import torch: {theirs:.2f} s,"
    )
    print(f"ratio {median(a / b for a, b in taken):.1f} (median of {REPEATS})")


def write_pairs(folder: Path) -> None:
    """Write a hundred images of three soft spots, and lists of pairs, some broken."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    for k in range(100):
        centres = rng.uniform(0.25, 0.75, (3, 2))
        spots = sum(np.exp(-((x - a) ** 2 + (y - b) ** 2) / 0.02) for a, b in centres)
        Image.fromarray((30 + 70 * spots).clip(0, 255).astype(np.uint8)).save(folder / f"{k}.png")
    for k in range(BROKEN):
        (folder / f"broken{k}.png").write_bytes(rng.integers(0, 256, 500, dtype=np.uint8).tobytes())
    rows = [f"{k % 100}.png,{(7 * k + k // 100 + 1) % 100}.png" for k in range(PAIRS - BROKEN)]
    (folder / "few.csv").write_text("\n".join(["source,target", *rows[:FEW]]) + "\n")
    for k in range(BROKEN):
        rows.insert(97 * k, f"{k}.png,broken{k}.png")
    (folder / "many.csv").write_text("\n".join(["source,target", *rows]) + "\n")


def many(folder: Path, name: str) -> tuple[dict, int, float, float]:
    """Run a list of pairs; return summary, exit code, seconds and peak memory."""
    command = [GEONET, "geodesic", "--pairs", f"{name}.csv", "-o", name, "--json"]
    began = perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    taken = perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return json.loads(done.stdout), done.returncode, taken, peak


def thousand_pairs(folder: Path) -> None:
    """Run a short list, then a long one; peak memory is the maximum so far."""
    write_pairs(folder)
    _, _, _, few = many(folder, "few")
    for run in ("first", "second"):
        answer, code, taken, peak = many(folder, "many")
        print(
            f"{PAIRS} pairs, {run} run: {answer['solved']} solved, {answer['before']} there "
            f"already, {len(answer['failures'])} failures, exit code {code}, {taken:.0f} s"
        )
    print(f"peak memory: {few:.0f} MB for {FEW} pairs, {peak:.0f} MB for {PAIRS}")


def main() -> None:
    """Time the first command and a thousand pairs; print the results."""
    with tempfile.TemporaryDirectory() as temporary:
        provenance = record_provenance()
        first_command(Path(temporary))
        thousand_pairs(Path(temporary))
        publish("command-line", provenance, {})  # printed only


if __name__ == "__main__":
    main()
