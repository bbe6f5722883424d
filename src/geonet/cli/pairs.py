"""Two files as two densities on one grid."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from geonet.cli.changes import cells, changed
from geonet.cli.output import counted
from geonet.errors import FileError, GridError, InputError
from geonet.measures.contents import Contents, Kind, opened
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.images import IMAGE_SUFFIXES
from geonet.wording import number

FLAGS: dict[Kind, str] = {"points": "--points", "values": "--grid"}
CLOUD_CELLS = {1: 64, 2: 64, 3: 24}  # along the longest side, where no resolution is given
# Cells along the longest side of what is solved, where no resolution is given.
LARGEST = {1: 2**20, 2: 1024, 3: 128}
MAX_CELLS = 2**26
MARGIN = 0.05  # of the longest side, around point clouds


def read_pair(
    source: Path,
    target: Path,
    invert: bool,
    resolution: int | None,
    kind: Kind | None = None,
    nodata: float | None = None,
) -> tuple[Density, Density]:
    """Read both files onto one grid: see `open_pair` and `densities_of`."""
    return densities_of(*open_pair(source, target, invert, kind, nodata), resolution)


def open_pair(
    source: Path, target: Path, invert: bool, kind: Kind | None, nodata: float | None
) -> tuple[Contents, Contents]:
    """Both files, each with what it holds.

    `kind` is for files that do not say what they hold, `nodata` for values and `invert` for images;
    each of them must concern one of the files.
    """
    first, second = (opened(file, invert, nodata) for file in (source, target))
    if kind is not None:
        if kind not in (*first.kinds, *second.kinds):
            raise InputError(
                f"{FLAGS[kind]} fits neither {source} nor {target}, which hold {first.kinds[0]}; "
                "leave it out."
            )
        first, second = (c.told(kind) if kind in c.kinds else c for c in (first, second))
    for contents in (first, second):
        _check_contents(contents)
    values = [contents.file for contents in (first, second) if contents.kind == "values"]
    pictures = [file for file in values if file.suffix.lower() in IMAGE_SUFFIXES]
    if invert and not pictures:
        raise InputError(f"--invert is for images and {source} is none; leave it out.")
    if nodata is not None and not values:
        raise InputError(f"--nodata is for cells, and {source} holds points; leave it out.")
    return first, second


def _check_contents(contents: Contents) -> None:
    """Refuse what only an option can settle."""
    if contents.kind is None:
        raise FileError(f"{contents.doubt()}; give --points or --grid.")
    if contents.kind == "values":
        bad = int(np.ma.filled(np.isnan(contents.numbers), False).sum())
        if bad:
            raise FileError(
                f"{contents.file} does not hold a density: {bad} of {contents.numbers.size} values "
                "are NaN; fill them, or give --nodata nan to count them as empty."
            )


def what_was_read(contents: Contents) -> dict[str, Any]:
    """Plain data: how many points, or how many cells along each axis and how many without data."""
    if contents.kind == "points":
        return {"kind": "points", "points": len(contents.numbers)}
    shape, missing = contents.values().shape, int(np.ma.count_masked(contents.numbers))
    return {"kind": "values", "shape": list(shape), "without_data": missing}


def as_text(read: dict[str, Any]) -> str:
    """What was read, for people."""
    if read["kind"] == "points":
        return f"read as {counted(read['points'], 'point')}"
    text = f"read as {'×'.join(map(str, read['shape']))} values"
    if read["without_data"]:
        share = 100 * read["without_data"] / math.prod(read["shape"])
        text += f"; {share:.2g} % of its cells have no data and count as empty"
    return text


def densities_of(
    source: Contents, target: Contents, resolution: int | None
) -> tuple[Density, Density]:
    """Both files on one grid, with at most `resolution` cells along its longest side.

    Point clouds are counted: two of them on a box around both, one on the other file's grid. Two
    densities come to the finer cells of the two; pictures of different proportions are padded to
    squares. Boxes that differ otherwise are left to the solver, which refuses them.
    """
    clouds = [contents.kind == "points" for contents in (source, target)]
    if all(clouds):
        grid = common_grid(source, target, resolution)
        changed(
            f"Counted: W2 is that of the points counted in {cells(grid)} cells, which are "
            f"{number(max(grid.spacing), 2)} wide (see --resolution)."
        )
        return source.density(grid), target.density(grid)
    if clouds[0]:
        second = _no_finer(target.density(), resolution)
        return _counted(source, second), second
    first = source.density()
    if clouds[1]:
        first = _no_finer(first, resolution)
        return first, _counted(target, first)
    second = target.density()
    if first.grid.dimension != second.grid.dimension:
        raise FileError(
            f"{source.file} is {first.grid.dimension}D and {target.file} is "
            f"{second.grid.dimension}D; give two files of one dimension."
        )
    first, second = _on_one_grid(first, second)
    return _no_finer(first, resolution), _no_finer(second, resolution)


def _counted(cloud: Contents, other: Density) -> Density:
    """A cloud on the other file's grid: beside a picture, x to the right and y upwards.

    Beside a file with a box of its own, the coordinates are in the order of that box's axes.
    """
    grid = other.grid
    if grid.dimension != 2 or not _is_picture(other):
        return cloud.density(grid)
    plane = Grid(grid.shape[::-1], 0.0, grid.upper[::-1], drawn="plane")
    counted = cloud.density(plane)
    return Density._of(counted.values.T.flip(0).contiguous(), grid, counted.mass, None)


def common_grid(source: Contents, target: Contents, resolution: int | None) -> Grid:
    """Square cells on a box around both clouds, `resolution` of them along its longest side."""
    first, second = (contents.points()[0] for contents in (source, target))
    if first.shape[-1] != second.shape[-1]:
        raise FileError(
            f"{source.file} has points in {first.shape[-1]}D and {target.file} in "
            f"{second.shape[-1]}D; "
            "give two clouds with the same coordinates."
        )
    both = torch.cat([first, second])
    lower, upper = both.amin(0), both.amax(0)
    longest = float((upper - lower).max())
    if longest == 0:
        raise InputError(
            f"All points of {source.file} and {target.file} coincide; there is nothing to move."
        )
    along = resolution or CLOUD_CELLS.get(first.shape[-1], min(CLOUD_CELLS.values()))
    cell = longest * (1 + 2 * MARGIN) / along
    counts = (upper - lower + 2 * MARGIN * longest) / cell
    shape = (counts - 1e-9).ceil().clamp(min=2)  # rounding must not add a cell
    centre, half = (lower + upper) / 2, shape * cell / 2
    corners = (centre - half).tolist(), (centre + half).tolist()
    grid = Grid(shape.long().tolist(), *corners, drawn="plane")
    check_size(grid)
    return grid


def output_grid(grid: Grid, resolution: int) -> Grid:
    """`resolution` cells along the longest side of the same box, the others in proportion."""
    resized = grid.with_shape([max(2, round(resolution * n / grid.longest)) for n in grid.lengths])
    check_size(resized)
    return resized


def check_size(grid: Grid) -> None:
    """Refuse a grid that would fill the memory."""
    if grid.size > MAX_CELLS:
        raise GridError(f"{grid} are {grid.size:,} in all; give a smaller --resolution.")


def _on_one_grid(first: Density, second: Density) -> tuple[Density, Density]:
    """Both on the same box and on the finer of the two grids, where that is possible."""
    if not first.grid.same_box(second.grid) and _is_picture(first) and _is_picture(second):
        ends = cells(first.grid), cells(second.grid)
        first, second = _padded(first), _padded(second)
        changed(f"Padded: {ends[0]} and {ends[1]} cells are set in the middle of empty squares.")
    if not first.grid.same_box(second.grid) or first.grid.shape == second.grid.shape:
        return first, second
    finer = [max(pair) for pair in zip(first.grid.shape, second.grid.shape, strict=True)]
    grid = first.grid.with_shape(finer)
    ends = cells(first.grid), cells(second.grid)
    changed(f"Resampled: {ends[0]} and {ends[1]} cells are both brought to {cells(grid)}.")
    return first.resample(grid), second.resample(grid)


def _is_picture(density: Density) -> bool:
    """Equal cells in a box at zero whose longest side is one, for a file without a box."""
    grid = density.grid
    return grid == Grid(grid.shape, 0.0, [n / max(grid.shape) for n in grid.shape])


def _padded(density: Density) -> Density:
    """In the middle of a cube, with empty cells around."""
    shape = density.grid.shape
    margins = [(max(shape) - n) // 2 for n in shape]
    values = torch.zeros((max(shape),) * len(shape), dtype=density.values.dtype)
    inside = tuple(slice(m, m + n) for m, n in zip(margins, shape, strict=True))
    values[inside] = density.values
    grid = Grid(values.shape, 0.0, 1.0, density.grid.drawn)
    return Density._of(values, grid, density.mass, None)


def _no_finer(density: Density, resolution: int | None) -> Density:
    """Resampled if it has more cells along its longest side, which it says."""
    most = resolution or LARGEST.get(density.grid.dimension, max(density.grid.shape))
    if max(density.grid.shape) <= most:
        return density
    coarser = output_grid(density.grid, most)
    changed(
        f"Coarsened: {cells(density.grid)} cells are solved on {cells(coarser)} "
        f"(--resolution {max(density.grid.shape)} solves them all)."
    )
    return density.resample(coarser)
