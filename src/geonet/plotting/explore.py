"""A path as one file that a browser opens: time to drag, overlays, and the report."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from pathlib import Path
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
from geonet.plotting.panels import projection
from geonet.plotting.style import PLAIN, Look, check, title_of, upright
from geonet.report import in_plain_words

# ---- What lies over the densities of a path where it can be watched: particles and the potential.


PARTICLES = 240
MOMENTS = 9  # times at which the places of particles are known
QUARTERS = 5  # and the potential, which takes longer
LINES = 32  # points along the longest side that lines of equal potential are drawn between
STEPS = (0.7548776662466927, 0.5698402909980532, 0.4301597090019467)  # 1/g, 1/g², 1/g³; g³ = g + 1

Floats = NDArray[np.float32]


def particle_tracks(path: Geodesic, count: int = PARTICLES) -> Floats:
    """Where particles of the source are at `MOMENTS` even times, (T, count, d).

    In shares of the box, the first axis first.
    """
    times = torch.linspace(0, 1, MOMENTS, dtype=torch.float64)
    return _shares(path.trajectories(times, spread_over(path.source, count)), path.grid)


def potential_values(path: Geodesic) -> Floats:
    """u_t at `QUARTERS` even times, on a coarse grid over the box, (T, rows, columns)."""
    times = torch.linspace(0, 1, QUARTERS, dtype=torch.float64)
    longest = max(path.grid.shape)
    coarse = path.grid.with_shape(tuple(max(2, LINES * n // longest) for n in path.grid.shape))
    return path.potential(times, coarse.points()).detach().float().numpy()


def known(
    layer: Callable[[Geodesic], Floats], path: Geodesic, why: dict[str, str], name: str
) -> Floats | None:
    """A layer of the path; None, and the sentence in `why`, where its solver gives none."""
    try:
        return layer(path)
    except UnavailableError as error:
        why[name] = str(error)
        return None


def spread_over(density: Density, count: int) -> Tensor:
    """Points that share the mass of a density evenly, the same at every call, (count, d).

    Every 1/count of the mass along a curve through all cells gets a point. Its place inside of the
    cell is that of a Kronecker sequence, which leaves no pattern.
    """
    grid = density.grid
    order = _along_a_curve(grid)
    masses = density.tensor.detach().flatten()[order].cumsum(0)
    wanted = (torch.arange(count, dtype=torch.float64) + 0.5) / count * masses[-1]
    cells = order[torch.searchsorted(masses, wanted).clamp(max=grid.size - 1)]
    steps = torch.tensor(STEPS[: grid.dimension], dtype=torch.float64)
    inside = torch.arange(count, dtype=torch.float64)[:, None] * steps % 1 - 0.5
    centres = grid.points().reshape(-1, grid.dimension)[cells]
    return centres + inside * torch.tensor(grid.spacing, dtype=torch.float64)


def _along_a_curve(grid: Grid) -> Tensor:
    """All cells in Morton's order, (cells,): what is near on the curve is near in the box."""
    index = torch.stack(torch.meshgrid(*map(torch.arange, grid.shape), indexing="ij"))
    code = torch.zeros(grid.shape, dtype=torch.long)
    for bit in range(max(grid.shape).bit_length()):
        for axis, own in enumerate(index):
            code += ((own >> bit) & 1) << (bit * grid.dimension + axis)
    return code.flatten().argsort()


def _shares(points: Tensor, grid: Grid) -> Floats:
    """Points of the box as shares of its sides."""
    lower, upper = grid.corner("lower"), grid.corner("upper")
    return ((points.detach() - lower) / (upper - lower)).float().numpy()


FRAMES = 33
SHOWN = (0, 1)  # the axes of a 3D path onto which its mass is projected
CELLS = 2**14  # of a frame, at most: what is finer is averaged, so that files stay small
HEIGHT = 760  # pixels of the frame in a notebook
MODULES = (  # each after those that it imports
    *("bytes", "scale", "frames", "picture", "curve", "overlays", "player", "view", "facts"),
    "explore",
)
IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main class="explore">
<h1>{title}</h1>
<div id="view"></div>
<div id="facts" class="facts"></div>
</main>
<script type="application/json" id="scene">{scene}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def explore_geodesic(
    path: Geodesic,
    file: str | Path,
    frames: int = FRAMES,
    grid: Grid | None = None,
    look: Look = PLAIN,
) -> Path:
    """Write the path as an .html file that needs nothing else, neither files nor a network."""
    file = as_path(file)
    if file.suffix.lower() not in (".html", ".htm"):
        raise FileError(f"{file} does not end in .html; a page to explore is written as one.")
    text = explore_html(path, frames, grid, look)
    with atomic_write(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return file


def explore_html(
    path: Geodesic, frames: int = FRAMES, grid: Grid | None = None, look: Look = PLAIN
) -> str:
    """The whole page, with its script and its numbers."""
    check_count(frames, 2, "frames")
    moments, grid = check(path, np.linspace(0, 1, frames), grid, look)
    numbers, scene = _scene(path, moments, _affordable(grid), look)
    scene["numbers"] = _base64(zlib.compress(numbers, 9))
    return PAGE.format(
        title=html.escape(title_of(path)),
        style=_text("viewer.css"),
        script=script(),
        scene=json.dumps(scene).replace("<", "\\u003c"),
    )


def framed_html(path: Geodesic) -> str:
    """The page inside of another, such as a notebook: a frame keeps its styles to itself."""
    page, style = html.escape(explore_html(path)), f"width: 100%; height: {HEIGHT}px; border: 0"
    return f'<iframe srcdoc="{page}" style="{style}" title="A geonet path"></iframe>'


@cache
def script() -> str:
    """All modules of the viewer as one: without imports, and nothing to export to."""
    parts = (EXPORT.sub("", IMPORT.sub("", _text(f"{name}.js"))) for name in MODULES)
    return "\n".join(parts)


def _scene(
    path: Geodesic, moments: list[float], grid: Grid, look: Look
) -> tuple[bytes, dict[str, Any]]:
    """What explore.js reads: bytes of levels, particles and potential, and what they are."""
    values = look.frames(path, moments, grid)
    if grid.dimension == 3:
        values, grid = projection(values, grid, SHOWN)
    if grid.dimension == 2:
        values = upright(values, grid)
    scale = look.scale(values)
    shares = np.ma.getdata(scale.norm(values.ravel())).clip(0, 1)
    lowest, highest = map(float, scale.get_clim())
    layers, why = _layers(path)
    parts = [np.rint(255 * shares).astype(np.uint8)]
    parts += [layer for layer in layers.values() if layer is not None]
    return b"".join(part.tobytes() for part in parts), {
        "shape": values.shape[1:],
        "count": len(values),
        "scale": {"name": look.norm, "lowest": lowest, "highest": highest},
        "colours": _base64(look.colours()(range(256), bytes=True)[:, :3].tobytes()),
        "why": why,
        **{name: None if layer is None else layer.shape for name, layer in layers.items()},
        **in_plain_words(path, path.report),
    }


def _layers(path: Geodesic) -> tuple[dict[str, Floats | None], dict[str, str]]:
    """Particles and potential as they are drawn in 2D: down and to the right."""
    why: dict[str, str] = {}
    if path.grid.dimension != 2:
        return {"particles": None, "potential": None}, why
    particles = known(particle_tracks, path, why, "particles")
    potential = known(potential_values, path, why, "potential")
    if path.grid.drawn == "plane":
        if particles is not None:
            particles = np.stack([1 - particles[..., 1], particles[..., 0]], -1)
        if potential is not None:
            potential = np.ascontiguousarray(upright(potential, path.grid))
    return {"particles": particles, "potential": potential}, why


def _affordable(grid: Grid) -> Grid:
    """The grid, or a coarser one with as many cells as a page should hold."""
    shape = grid.shape
    while np.prod(shape[:2]) > CELLS and max(shape) > 2:
        shape = tuple(max(2, (n + 1) // 2) for n in shape)
    return grid if shape == grid.shape else grid.with_shape(shape)


def _text(name: str) -> str:
    return (files("geonet.plotting") / "viewer" / name).read_text(encoding="utf-8")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
