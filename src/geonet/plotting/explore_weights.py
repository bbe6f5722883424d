"""Interactive HTML pages of barycenters: a polygon of weights with a point to drag, in one file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from geonet._format import format_percent
from geonet._progress import report_progress
from geonet._validation import check_instance
from geonet.barycenters import Barycenter, Barycenters, solve_silently
from geonet.grid import Grid
from geonet.plotting.explore import (
    check_page,
    encode_densities,
    limit_cells,
    render_page,
    write_page,
)
from geonet.plotting.panels import to_image_rows
from geonet.plotting.style import DEFAULT_STYLE, Style, check_style, to_numpy
from geonet.weights import (
    Lattice,
    check_weights,
    corner_positions,
    find_table,
    make_lattice,
    polygon_order,
    position_of,
)

Item = TypeVar("Item")

FIELD_CELLS = {1: 128, 2: 32}  # cells of displacements along the longest side


def explore_barycenter(
    one: Barycenter, file: Path, table: int = 9, style: Style = DEFAULT_STYLE
) -> Path:
    """Write a page of all barycenters of the same densities; it starts at the weights of `one`.

    Args:
        one: a barycenter.
        file: output file, .html or .htm.
        table: number of barycenters along a side of the table that is computed.
        style: colours and units.
    """
    check_instance(one, Barycenter, "one", "give the result of geonet.barycenter")
    check_style(style)
    check_page(file)
    lattice = make_lattice(len(one.densities), table)
    many = _solve_lattice(one, lattice)
    start = position_of(np.asarray(one.weights))
    return write_page(_render(many, lattice, start, style), file)


def explore_barycenters(
    many: Barycenters, file: Path, table: int | None = None, style: Style = DEFAULT_STYLE
) -> Path:
    """Write a page of all barycenters of the same densities; it starts at the centre.

    Args:
        many: barycenters; a complete table on at most 128² cells is not solved again.
        file: output file, .html or .htm.
        table: number of barycenters along a side of the table; by default the size of `many` if
            it is a table, else 9.
        style: colours and units.
    """
    check_instance(many, Barycenters, "many", "give the result of geonet.barycenter")
    check_style(style)
    check_page(file)
    size = find_table(np.asarray(many.weights))
    lattice = make_lattice(len(many.densities), table or size or 9)
    solved = many.flat
    if (table or size) != size or size is None or limit_cells(many.grid) != many.grid:
        solved = _solve_lattice(solved[0], lattice)
    centre = corner_positions(len(many.densities)).mean(0)
    return write_page(_render(solved, lattice, centre, style), file)


def _solve_lattice(one: Barycenter, lattice: Lattice) -> list[Barycenter]:
    """Return the barycenters of all points of a lattice on at most 128² cells."""
    densities = one.densities.detach().resample(limit_cells(one.grid))
    weights = check_weights(lattice.weights, len(densities))
    return solve_silently(densities, weights, one.options)


def _render(
    solved: list[Barycenter], lattice: Lattice, start: NDArray[np.floating], style: Style
) -> str:
    """Return the page with its script and data."""
    first = solved[0]
    values = np.stack([one.density.numpy(style.mass) for one in solved])
    levels, data = encode_densities(values, first.grid, style)
    numbers, count = [levels], len(first.densities)
    if first.grid.dimension < 3:
        encoded, data["fields"] = encode_fields(sample_displacements(solved, first.grid))
        numbers.append(encoded)
    measured = _choose_measured(lattice) if first.options.reach is None else []
    gaps = [float(solved[k].gap) for k in _count(measured, "bounds")]
    corners = corner_positions(count)
    data["table"] = {
        "positions": lattice.positions.round(9).tolist(),
        "simplices": lattice.simplices.tolist(),
        "corners": corners.tolist(),
        "order": polygon_order(count),
        "ends": lattice.weights.argmax(0).tolist(),
        "start": start.tolist(),
        "centre": corners.mean(0).tolist(),
        "objective": [one.estimate for one in solved],
        "measured": measured,
        "gaps": gaps,
    }
    data |= {"headline": _write_headline(gaps), "sentences": [], "rows": _list_rows(solved)}
    return render_page(f"Barycenters of {count} densities", "barycenter.js", numbers, data)


def _choose_measured(lattice: Lattice, count: int = 9) -> list[int]:
    """Return points for which bounds are computed, which takes longer than to solve.

    They are far from each other: the centre, then always the farthest point that has at least two
    densities.
    """
    inner = np.flatnonzero((lattice.weights > 0).sum(1) > 1)
    positions = lattice.positions[inner]
    nearest = np.linalg.norm(positions - positions.mean(0), axis=1)
    chosen = [int(nearest.argmin())]
    while len(chosen) < min(count, len(inner)):
        distances = np.linalg.norm(positions[:, None] - positions[chosen], axis=2).min(1)
        chosen.append(int(distances.argmax()))
    return inner[chosen].tolist()


def _write_headline(gaps: list[float]) -> str:
    if not gaps:
        return "With a reach there are no bounds"
    return f"Optimal within {format_percent(max(gaps))} at {len(gaps)} points of the table"


def _list_rows(solved: list[Barycenter]) -> list[tuple[str, str]]:
    converged = sum(one.converged for one in solved)
    worst = max(one.solution.residual for one in solved)
    return [
        ("barycenters in the table", str(len(solved))),
        ("grid", str(solved[0].grid)),
        ("converged", f"{converged} of {len(solved)}"),
        ("largest residual", format_percent(worst)),
    ]


def _count(items: Sequence[Item], stage: str) -> Iterator[Item]:
    """Yield items, and report how many there are before each of them."""
    for k, item in enumerate(items):
        report_progress(f"{stage} {k + 1} of {len(items)}")
        yield item


def encode_fields(fields: NDArray[np.float64]) -> tuple[bytes, dict[str, Any]]:
    """Return fields (M, ...) as signed bytes, and the shape and scale that the viewer needs."""
    largest = max(float(np.abs(fields).max()), 1e-9)
    levels = np.rint(127 / largest * fields).astype(np.int8)
    return levels.tobytes(), {"shape": fields.shape[1:], "largest": largest}


def sample_displacements(solved: list[Barycenter], grid: Grid) -> NDArray[np.float64]:
    """Return displacements to all densities as fractions of the sides, on a coarse lattice.

    Returns:
        (barycenters, densities, d, *coarse shape), with rows from the top and down before right.
    """
    longest = FIELD_CELLS[grid.dimension]
    shape = [max(2, min(n, round(longest * n / max(grid.shape)))) for n in grid.shape]
    coarse = grid.with_shape(shape)
    points, sides = coarse.points(), torch.tensor(grid.lengths, dtype=torch.float64)
    fields = []
    for one in _count(solved, "maps"):
        moved = [torch.from_numpy(to_numpy(one.map(i, points))) for i in range(len(one.densities))]
        fields.append(grid.shorten(torch.stack(moved) - points) / sides)
    values = torch.stack(fields).movedim(-1, 2).numpy()  # (M, N, d, *coarse shape)
    if grid.dimension == 2 and grid.orientation == "plane":
        right, up = values[:, :, 0], values[:, :, 1]
        values = np.stack([to_image_rows(-up, coarse), to_image_rows(right, coarse)], 2)
    return np.ascontiguousarray(values)
