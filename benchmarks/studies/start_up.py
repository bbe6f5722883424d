"""Time and memory of the first command, beside the import of torch.

Prints the table and writes it into docs/benchmark.md. Run it by `make benchmark NAME=start-up` on
an otherwise idle machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from PIL import Image, ImageDraw

from benchmarks.pages import Cells, format_table, publish
from benchmarks.results import record_provenance

SIDE, REPEATS = 128, 5
GEONET = str(Path(sys.executable).with_name("geonet"))
FIRST = """
import time, numpy as np, geonet
x = np.linspace(-2, 2, 128)
grid = geonet.Grid((128, 128), -2, 2)
ends = [
    geonet.Density(np.exp(-(x[:, None] - c) ** 2 - (x - d) ** 2), grid)
    for c, d in ((-0.5, 0.2), (0.6, -0.4))
]
for _ in range(2):
    began = time.perf_counter()
    geonet.geodesic(*ends).density([0, 0.5, 1])
    print(time.perf_counter() - began)
"""


def draw_shapes(folder: Path) -> list[str]:
    """Draw a disc, and a rectangle elsewhere; return the names of the files."""
    for name, shape, box in (
        ("a", "ellipse", (15, 40, 60, 105)),
        ("b", "rectangle", (60, 20, 115, 70)),
    ):
        image = Image.new("L", (SIDE, SIDE))
        getattr(ImageDraw.Draw(image), shape)(box, fill=255)
        image.save(folder / f"{name}.png")
    return ["a.png", "b.png"]


def time_command(command: list[str], folder: Path) -> float:
    """Return the wall time of a command that must succeed."""
    began = perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return perf_counter() - began


def time_first_calls() -> tuple[float, float]:
    """Return the seconds of the first and the second geodesic in a new process."""
    command = [sys.executable, "-c", FIRST]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(lines[0]), float(lines[1])


def measure_commands(folder: Path) -> list[Cells]:
    """Time all commands in turn, so that all see the same load; return medians."""
    files = draw_shapes(folder)
    commands = {
        "`python -c 'import torch'`": [sys.executable, "-c", "import torch"],
        "`python -c 'import geonet'`": [sys.executable, "-c", "import geonet"],
        "`geonet --version`": [GEONET, "--version"],
        "`geonet geodesic a.png b.png -o morph.gif --report`": [
            *(GEONET, "geodesic", *files, "-o", "morph.gif", "--report")
        ],
    }
    for command in commands.values():  # the disk's cache is warm then
        time_command(command, folder)
    taken = [[time_command(each, folder) for each in commands.values()] for _ in range(REPEATS)]
    seconds = [median(column) for column in zip(*taken, strict=True)]
    return [(name, f"{each:.2f}") for name, each in zip(commands, seconds, strict=True)]


def main() -> None:
    """Measure, print and write the table."""
    provenance = record_provenance()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure_commands(Path(folder))
    first, second = map(median, zip(*(time_first_calls() for _ in range(REPEATS)), strict=True))
    rows.append((f"first geodesic in a process, {SIDE}²", f"{first:.3f}"))
    rows.append((f"second geodesic, {SIDE}²", f"{second:.3f}"))
    text = format_table(("", "s"), rows)
    publish("start-up", provenance, {"docs/benchmark.md": {"start-up": text}})
    print(text)


if __name__ == "__main__":
    main()
