"""Interactive HTML pages of a path: a time slider, overlays and the report in one file."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geonet._files import atomic_write
from geonet._validation import as_path, check_count
from geonet.density import Density
from geonet.errors import FileError, UnavailableError
from geonet.grid import Grid
from geonet.paths import Geodesic
from geonet.plotting.panels import (
    PROJECTIONS,
    axis_names,
    picture_sides,
    project,
    to_image_rows,
    unroll_tracks,
)
from geonet.plotting.style import DEFAULT_STYLE, Style, check_drawable, format_title, to_numpy

Floats = NDArray[np.float32]
OVERLAYS = ("particles", "potential")


def explore_geodesic(
    path: Geodesic,
    file: str | Path,
    frames: int = 33,
    grid: Grid | None = None,
    style: Style = DEFAULT_STYLE,
) -> Path:
    """Write a path as one .html file that needs no other files and no network.

    Args:
        path: the path, one pair.
        file: output file, .html or .htm.
        frames: number of equally spaced times; the page interpolates between them.
        grid: grid of the densities, the path's own by default; above 128² cells it is coarsened.
        style: colours and units.
    """
    file = as_path(file)
    check_page(file)
    return write_page(render_html(path, frames, grid, style), file)


def check_page(file: Path) -> None:
    """Raise FileError if a page cannot have this name."""
    if file.suffix.lower() not in (".html", ".htm"):
        raise FileError(f"{file} is not an .html file; interactive pages have this format.")


def write_page(text: str, file: Path) -> Path:
    """Write a page and return its file."""
    with atomic_write(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


def render_html(
    path: Geodesic, frames: int = 33, grid: Grid | None = None, style: Style = DEFAULT_STYLE
) -> str:
    """Return the page with its script and data."""
    check_count(frames, 2, "frames")
    times, grid = check_drawable(path, np.linspace(0, 1, frames), grid, style)
    numbers, data = _page_data(path, times, limit_cells(grid), style)
    return render_page(format_title(path), "standalone.js", numbers, data)


def render_page(title: str, script: str, numbers: list[bytes], data: dict[str, Any]) -> str:
    """Return a page with its script and data; `numbers` are joined and deflated."""
    packed = to_base64(zlib.compress(b"".join(numbers), 9))
    return Template(_read_viewer_file("standalone.html")).substitute(
        title=html.escape(title),
        style=_read_viewer_file("viewer.css"),
        script=bundle_script(script),
        data=json.dumps(data | {"numbers": packed}).replace("<", "\\u003c"),
    )


def render_iframe(path: Geodesic) -> str:
    """Return the page in an iframe, which keeps its styles away from a surrounding notebook."""
    page = html.escape(render_html(path))
    style = "width: 100%; height: 760px; border: 0"
    return f'<iframe srcdoc="{page}" style="{style}" title="geonet path"></iframe>'


@cache
def bundle_script(entry: str) -> str:
    """Join a module of the viewer and all modules that it imports into one script.

    Modules come after the ones they import, without their `import` and `export` keywords. They
    share one scope, so the names of top-level functions and constants must differ.
    """
    sources: dict[str, str] = {}

    def add(name: str) -> None:
        source = _read_viewer_file(name)
        for imported in re.findall(r'^import [^;]* from "\./([\w.]+)";', source, re.MULTILINE):
            if imported not in sources:
                add(imported)
        source = re.sub(r"^import [^;]*;\n", "", source, flags=re.MULTILINE)
        sources[name] = re.sub(r"^export ", "", source, flags=re.MULTILINE)

    add(entry)
    return "\n".join(sources.values())


def _read_viewer_file(name: str) -> str:
    return (files("geonet.plotting") / "viewer" / name).read_text(encoding="utf-8")


def limit_cells(grid: Grid, max_cells: int = 2**14) -> Grid:
    """Coarsen a grid until a frame has at most `max_cells` cells, to keep files small.

    In 3D the frame is the largest projection.
    """
    shape = grid.shape
    while np.prod(sorted(shape)[-2:]) > max_cells and max(shape) > 2:
        shape = tuple(max(2, (n + 1) // 2) for n in shape)
    return grid if shape == grid.shape else grid.with_shape(shape)


def _page_data(
    path: Geodesic, times: list[float], grid: Grid, style: Style
) -> tuple[list[bytes], dict[str, Any]]:
    """Return the data that standalone.js reads.

    Returns:
        The frames as bytes, then particles and potential as float32; and all other data.
    """
    levels, data = encode_densities(style.evaluate(path, times, grid), grid, style)
    overlays, missing = _image_overlays(path)
    shapes = {name: overlays[name].shape if name in overlays else None for name in OVERLAYS}
    report = {**asdict(path.report.summary()), "rows": path.report.rows()}
    numbers = [levels, *(layer.tobytes() for layer in overlays.values())]
    return numbers, {**data, **shapes, "missing": missing, **report}


def encode_densities(values: Floats, grid: Grid, style: Style) -> tuple[bytes, dict[str, Any]]:
    """Return densities (T, *grid.shape) for the viewer, those in 3D as three projections.

    Returns:
        The levels of `encode_levels`, one projection after the other; and data on the first one, in
        3D with those on the others as "projections".
    """
    if grid.dimension == 1:
        return encode_levels(values, style)
    if grid.dimension == 2:
        levels, data = encode_levels(to_image_rows(values, grid), style)
        return levels, data | {"sides": picture_sides(grid)}
    # Arrays such as stacks have the order z, y, x: the projection along z comes first.
    order = PROJECTIONS[::-1] if grid.orientation == "image" else PROJECTIONS
    numbers, parts = [], []
    for axes in order:
        levels, data = encode_densities(*project(values, grid, axes), style)
        numbers.append(levels)
        parts.append(data | {"label": _describe_projection(grid, axes)})
    return b"".join(numbers), parts[0] | {"projections": parts[1:]}


def _describe_projection(grid: Grid, axes: tuple[int, int]) -> str:
    """Return the label of a projection: "Projection along z: x →, y ↑"."""
    names = axis_names(grid)
    first, second, hidden = (names[i] for i in (*axes, 3 - sum(axes)))
    if grid.orientation == "image":
        return f"Projection along {hidden}: {first} ↓, {second} →"
    return f"Projection along {hidden}: {first} →, {second} ↑"


def encode_levels(values: Floats, style: Style) -> tuple[bytes, dict[str, Any]]:
    """Return frames (T, *shape) as bytes of 256 levels, and their shape, scale and colours."""
    scale = style.scale(values)
    fractions = np.ma.getdata(scale.norm(values.ravel())).clip(0, 1)
    lowest, highest = map(float, scale.get_clim())
    data = {
        "shape": values.shape[1:],
        "count": len(values),
        "scale": {"name": style.norm, "lowest": lowest, "highest": highest},
        "colours": to_base64(style.colormap()(range(256), bytes=True)[:, :3].tobytes()),
    }
    return np.rint(255 * fractions).astype(np.uint8).tobytes(), data


def to_base64(data: bytes) -> str:
    """Return bytes as text."""
    return base64.b64encode(data).decode("ascii")


def _image_overlays(path: Geodesic) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return the overlays of a 2D path with rows from the top, and why others are missing."""
    if path.grid.dimension != 2:
        return {}, {}
    overlays, missing = compute_overlays(path)
    if path.grid.orientation == "plane":
        if "particles" in overlays:
            x, y = np.moveaxis(overlays["particles"], -1, 0)
            overlays["particles"] = np.stack([1 - y, x], -1)
        if "potential" in overlays:
            rows = to_image_rows(overlays["potential"], path.grid)
            overlays["potential"] = np.ascontiguousarray(rows)
    return overlays, missing


def compute_overlays(path: Geodesic) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return the layers that the viewer draws over the densities.

    Returns:
        Arrays by name, and an error message for each one that the solver does not provide.
        "particles": positions at 9 equally spaced times as fractions of the box, (9, 240, d);
        along periodic axes they may lie outside [0, 1].
        "potential": u_t at 5 equally spaced times on a coarse grid, (5, *shape).
    """
    overlays: dict[str, Floats] = {}
    missing: dict[str, str] = {}
    for name, compute in (("particles", _trace_particles), ("potential", _sample_potential)):
        try:
            overlays[name] = compute(path).astype(np.float32)
        except UnavailableError as error:
            missing[name] = str(error)
    return overlays, missing


def _trace_particles(path: Geodesic) -> np.ndarray:
    """Return positions as fractions of the box, (9, 240, d).

    Along periodic axes they continue beyond the box; the viewer takes them modulo one.
    """
    points = path.trajectories(np.linspace(0, 1, 9), spread_particles(path.source, 240))
    tracks = unroll_tracks(to_numpy(points), path.grid)
    fractions = (tracks - np.array(path.grid.lower)) / np.array(path.grid.lengths)
    return np.where(path.grid.periodic, fractions, fractions.clip(0, 1))


def _sample_potential(path: Geodesic) -> np.ndarray:
    """Return the potential on 32 cells along the longest axis, enough for contour lines."""
    longest = max(path.grid.shape)
    coarse = path.grid.with_shape([max(2, 32 * n // longest) for n in path.grid.shape])
    return to_numpy(path.potential(np.linspace(0, 1, 5), coarse.points()))


def spread_particles(density: Density, count: int) -> Tensor:
    """Return points that represent equal shares of the mass, deterministic, (count, d).

    Each 1/count of the mass along a space-filling curve gets one point. Its position within the
    cell follows a Kronecker sequence, which avoids visible patterns.
    """
    grid = density.grid
    order = _morton_order(grid)
    cumulative = density.tensor.detach().flatten()[order].cumsum(0)
    quantiles = (torch.arange(count, dtype=torch.float64) + 0.5) / count * cumulative[-1]
    cells = order[torch.searchsorted(cumulative, quantiles).clamp(max=grid.size - 1)]
    # 1/g, 1/g², 1/g³ with g³ = g + 1, the plastic number
    steps = (0.7548776662466927, 0.5698402909980532, 0.4301597090019467)[: grid.dimension]
    index = torch.arange(count, dtype=torch.float64)[:, None]
    offsets = index * torch.tensor(steps, dtype=torch.float64) % 1 - 0.5
    centres = grid.points().reshape(-1, grid.dimension)[cells]
    return centres + offsets * torch.tensor(grid.spacing, dtype=torch.float64)


def _morton_order(grid: Grid) -> Tensor:
    """Return all cells in Morton order, which keeps neighbours together, (cells,)."""
    index = torch.stack(torch.meshgrid(*map(torch.arange, grid.shape), indexing="ij"))
    code = torch.zeros(grid.shape, dtype=torch.long)
    for bit in range(max(grid.shape).bit_length()):
        for axis, coordinate in enumerate(index):
            code += ((coordinate >> bit) & 1) << (bit * grid.dimension + axis)
    return code.flatten().argsort()
