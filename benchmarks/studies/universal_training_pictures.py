"""The densities of the family anything-2d: a row for each kind, and some pairs.

Writes docs/images/anything-2d.png, which docs/anything.md shows. Run it by `make benchmark
NAME=anything`.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from benchmarks.pages import ROOT
from geonet._files import atomic_write
from geonet.plotting.style import INK, Frames, Style, despine
from geonet.synthetic import KINDS, SQUARE
from geonet.training.synthetic_pairs import random_densities, random_pairs

PICTURE = ROOT / "docs" / "images" / "anything-2d.png"
COLUMNS, PAIR_ROWS = 10, 2
SEED, PAIR_SEED = 8, 84  # among these ten pairs are two of windows and two of rectangles
LOOK = Style(norm="sqrt")  # spots would be all that is seen of many, otherwise
DPI = 100
SIDE = 0.72  # inches, a little more than a dot per cell
COLOURS = 256  # of the png: enough for one colour map, at a third of the size


def rows() -> dict[str, Tensor]:
    """Return densities (COLUMNS, n, n) by what is written beside them; pairs stand beside each
    other.
    """
    generator = torch.Generator().manual_seed(SEED)
    found = {
        name: random_densities(generator, torch.full((COLUMNS,), number), SQUARE)
        for number, name in enumerate(KINDS)
    }
    generator.manual_seed(PAIR_SEED)
    pairs = random_pairs(generator, PAIR_ROWS * COLUMNS // 2, SQUARE)  # (2, pairs, n, n)
    for number, some in enumerate(pairs.transpose(0, 1).flatten(0, 1).split(COLUMNS)):
        found["pairs" + number * " "] = some
    return found


def draw_figure(found: dict[str, Tensor]) -> Figure:
    """Return a row for each entry; every density on a scale of its own."""
    size = (SIDE * COLUMNS + 0.7, SIDE * len(found) + 0.2)
    figure = Figure(figsize=size, dpi=DPI)
    axes = figure.subplots(len(found), COLUMNS, gridspec_kw={"wspace": 0.06, "hspace": 0.06})
    figure.subplots_adjust(left=0.65 / size[0], right=0.99, bottom=0.01, top=0.99)
    for line, (name, densities) in zip(axes, found.items(), strict=True):
        for axis, density in zip(line, densities.numpy(), strict=True):
            show(axis, density)
        line[0].set_ylabel(name.strip(), color=INK, fontsize="small")
    close_up(axes[-PAIR_ROWS:])
    return figure


def show(axis: Axes, density: Frames) -> None:
    """Return one density as an image, from zero to its highest value."""
    colours = LOOK.scale(density)
    image = axis.imshow(density, interpolation="nearest")
    image.set(norm=colours.norm, cmap=colours.cmap)
    axis.set(xticks=(), yticks=())
    despine(axis)


def close_up(axes: Iterable[Iterable[Axes]]) -> None:
    """Move the two of every pair together and away from the next."""
    for line in axes:
        for number, axis in enumerate(line):
            place = axis.get_position()
            step = 0.03 * place.width * (1 if number % 2 == 0 else -1)
            axis.set_position((place.x0 + step, place.y0, place.width, place.height))


def write(figure: Figure, file: Path) -> None:
    """Write a PNG with few colours."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    few = Image.open(buffer).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    with atomic_write(file) as temporary:
        few.save(temporary, format="png", optimize=True)


def main() -> None:
    """Draw, and write."""
    write(draw_figure(rows()), PICTURE)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
