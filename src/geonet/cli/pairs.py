"""Two files as two densities on one grid."""

from __future__ import annotations

from pathlib import Path

import torch

from geonet.cli.changes import cells, changed
from geonet.errors import FileError, GridError, InputError
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.readers import IMAGE_SUFFIXES, from_image, is_cloud, read, read_points

CLOUD_CELLS = 64  # along the longest side, where no resolution is given
# Cells along the longest side of what is solved, where no resolution is given.
LARGEST = {1: 2**20, 2: 1024, 3: 128}
MAX_CELLS = 2**26
MARGIN = 0.05  # of the longest side, around point clouds


def read_pair(
    source: Path, target: Path, invert: bool, resolution: int | None
) -> tuple[Density, Density]:
    """Read both files onto one grid, with at most `resolution` cells along its longest side.

    Point clouds are counted: two of them on a box around both, one on the other file's grid. Two
    densities come to the finer cells of the two; pictures of different proportions are padded to
    squares. Boxes that differ otherwise are left to the solver, which refuses them.
    """
    clouds = [is_cloud(file) for file in (source, target)]
    if all(clouds):
        if invert:
            raise _no_image(source)
        grid = common_grid(source, target, resolution or CLOUD_CELLS)
        if resolution is None:
            changed(f"Counted: the points are counted in {cells(grid)} cells (see --resolution).")
        return read(source, grid), read(target, grid)
    if clouds[0]:
        second = _no_finer(_read_density(target, invert), resolution)
        return read(source, second.grid), second
    first = _read_density(source, invert)
    if clouds[1]:
        first = _no_finer(first, resolution)
        return first, read(target, first.grid)
    first, second = _on_one_grid(first, _read_density(target, invert))
    return _no_finer(first, resolution), _no_finer(second, resolution)


def common_grid(source: Path, target: Path, resolution: int) -> Grid:
    """Square cells on a box around both clouds, `resolution` of them along its longest side."""
    first, second = (read_points(file)[0] for file in (source, target))
    if first.shape[-1] != second.shape[-1]:
        raise FileError(
            f"{source} has points in {first.shape[-1]}D and {target} in {second.shape[-1]}D; "
            "give two clouds with the same coordinates."
        )
    both = torch.cat([first, second])
    lower, upper = both.amin(0), both.amax(0)
    longest = float((upper - lower).max())
    if longest == 0:
        raise InputError(f"All points of {source} and {target} coincide; there is nothing to move.")
    cell = longest * (1 + 2 * MARGIN) / resolution
    counts = (upper - lower + 2 * MARGIN * longest) / cell
    shape = (counts - 1e-9).ceil().clamp(min=2)  # rounding must not add a cell
    centre, half = (lower + upper) / 2, shape * cell / 2
    grid = Grid(shape.long().tolist(), (centre - half).tolist(), (centre + half).tolist())
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


def _read_density(file: Path, invert: bool) -> Density:
    if not invert:
        return read(file)
    if file.suffix.lower() not in IMAGE_SUFFIXES:
        raise _no_image(file)
    return from_image(file, invert=True)


def _no_image(file: Path) -> InputError:
    return InputError(f"--invert is for images and {file} is none; leave it out.")


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
    return Density(values, Grid(values.shape, 0.0, 1.0))


def _no_finer(density: Density, resolution: int | None) -> Density:
    """Resampled if it has more cells along its longest side; says so if nobody asked for it."""
    most = resolution or LARGEST.get(density.grid.dimension, max(density.grid.shape))
    if max(density.grid.shape) <= most:
        return density
    coarser = output_grid(density.grid, most)
    if resolution is None:
        changed(
            f"Coarsened: {cells(density.grid)} cells are solved on {cells(coarser)} "
            f"(--resolution {max(density.grid.shape)} solves them all)."
        )
    return density.resample(coarser)
