"""Two files as two densities on one grid."""

from __future__ import annotations

from pathlib import Path

import torch

from geonet.errors import FileError, GridError, InputError
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.readers import IMAGE_SUFFIXES, from_image, is_cloud, read, read_points

CLOUD_CELLS = 64  # along the longest side, where no resolution is given
MAX_CELLS = 2**26
MARGIN = 0.05  # of the longest side, around point clouds


def read_pair(
    source: Path, target: Path, invert: bool, resolution: int | None
) -> tuple[Density, Density]:
    """Read both files; point clouds are counted on a grid that both fit.

    Two clouds share a box around both. A cloud and a density share the density's grid. Two
    densities on the same box are brought to the finer cells; different boxes are left to the
    solver, which refuses them.
    """
    clouds = [is_cloud(file) for file in (source, target)]
    if all(clouds):
        if invert:
            raise _no_image(source)
        grid = common_grid(source, target, resolution or CLOUD_CELLS)
        return read(source, grid), read(target, grid)
    if clouds[0]:
        second = _read_density(target, invert)
        return read(source, second.grid), second
    first = _read_density(source, invert)
    if clouds[1]:
        return first, read(target, first.grid)
    return _on_finer_cells(first, _read_density(target, invert))


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
    cells = (upper - lower + 2 * MARGIN * longest) / cell
    shape = (cells - 1e-9).ceil().clamp(min=2)  # rounding must not add a cell
    centre, half = (lower + upper) / 2, shape * cell / 2
    grid = Grid(shape.long().tolist(), (centre - half).tolist(), (centre + half).tolist())
    check_size(grid)
    return grid


def output_grid(grid: Grid, resolution: int) -> Grid:
    """`resolution` cells along the longest side of the same box, the others in proportion."""
    longest = max(grid.lengths)
    finer = grid.with_shape([max(2, round(resolution * n / longest)) for n in grid.lengths])
    check_size(finer)
    return finer


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


def _on_finer_cells(first: Density, second: Density) -> tuple[Density, Density]:
    if not first.grid.same_box(second.grid) or first.grid.shape == second.grid.shape:
        return first, second
    finer = [max(pair) for pair in zip(first.grid.shape, second.grid.shape, strict=True)]
    grid = first.grid.with_shape(finer)
    return first.resample(grid), second.resample(grid)
