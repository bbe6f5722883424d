"""How the mass of a 2D path moves: its velocity, and the tracks of particles."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

from geonet.arguments import check_count, check_word
from geonet.geodesics.base import QUARTERS, Geodesic, Times
from geonet.measures.density import MASSES, Mass
from geonet.measures.grid import Grid
from geonet.measures.particles import sampled
from geonet.plotting.checks import check, check_dimension
from geonet.plotting.look import (
    DPI,
    INK,
    PLAIN,
    ROUNDING,
    TIME_MAP,
    Frames,
    Look,
    colour_bar,
    entitle,
    moment,
    quieten,
    title_of,
)
from geonet.plotting.panels import BETWEEN_TICKS, draw_strip
from geonet.plotting.upright import (
    aspect,
    equally_long,
    extent,
    name_axes,
    name_box,
    placed,
    tallness,
    upright,
)

THIN = 0.05  # of a frame's peak: no arrow is drawn where there is less mass
ARROW = 1.2  # length of the longest arrow, in distances between arrows
SIDE = 4.4  # inches: the longer side of the box with tracks
TINT = 0.45  # opacity of the ends' peaks behind the tracks
KNOTS = 41  # times along a track: entropic and learned tracks are not straight


def plot_velocity(
    path: Geodesic,
    times: Times = QUARTERS,
    grid: Grid | None = None,
    look: Look = PLAIN,
    arrows: int = 12,
) -> Figure:
    """The density of a 2D path at `times`, with arrows of its velocity where there is mass.

    Arrows are in proportion to the speed, by the same measure in all frames.

    Args:
        path: the path; its solver must give a velocity.
        times: of the frames.
        grid: of the densities, the path's own by default.
        look: the colours of the densities.
        arrows: how many fit along the longer side of the box.
    """
    moments, grid = check(path, times, grid, look)
    check_dimension(grid, 2, "velocities are")
    check_count(arrows, 2, "arrows")
    places = _coarse(grid, arrows)
    points = [_where_mass_is(path, t, places) for t in moments]
    velocities = [
        path.velocity(t, where).detach().numpy() for t, where in zip(moments, points, strict=True)
    ]
    every, unit = np.concatenate(velocities), equally_long(grid)
    drawn = np.linalg.norm(every / unit, axis=-1)
    fastest = float(np.linalg.norm(every[drawn.argmax()]))
    frames = look.frames(path, moments, grid)
    labels = [moment(t) for t in moments]
    figure, axes = draw_strip(frames, labels, grid, look.scale(frames), look.name_of(path))
    scale = ARROW * float((places.spacing / unit).max()) / max(float(drawn.max()), ROUNDING)
    for axis, where, velocity in zip(axes, points, velocities, strict=True):
        _draw_arrows(axis, placed(where, grid), placed(velocity * scale, grid))
    entitle(figure, f"{title_of(path)}   longest arrow |v| = {fastest:.3g}")
    return figure


def plot_tracks(
    path: Geodesic,
    grid: Grid | None = None,
    particles: int = 100,
    seed: int = 0,
    mass: Mass = "one",
) -> Figure:
    """The tracks of particles of a 2D path, drawn over its source and target.

    Args:
        path: the path; its solver must give trajectories.
        grid: of the densities behind, the path's own by default.
        particles: how many, drawn from the density at t = 0.
        seed: of the draw.
        mass: of the densities behind: with "given", the end of less mass is paler.
    """
    _, grid = check(path, QUARTERS, grid)
    check_dimension(grid, 2, "tracks are")
    check_count(particles, 1, "particles")
    check_count(seed, 0, "seed")
    check_word(mass, MASSES, "mass")
    source, target = path.density(0.0, grid), path.density(1.0, grid)
    points = sampled(source, particles, torch.Generator().manual_seed(seed))
    tracks = path.trajectories(np.linspace(0, 1, KNOTS), points).detach().numpy()  # (K, N, 2)
    width = SIDE / max(1, tallness(grid))
    size = (max(width, 2) + 0.9, width * tallness(grid) + 0.6)
    figure = Figure(figsize=size, dpi=DPI, layout="compressed")
    axis = figure.subplots()
    ends = source.numpy(mass), target.numpy(mass)
    highest = max(float(end.max()) for end in ends)
    for end, t in zip(ends, (0.0, 1.0), strict=True):
        peak = highest if mass == "given" else float(end.max())
        _draw_tinted(axis, end / peak, grid, TIME_MAP(t))
    colours = _draw_tracks(axis, placed(tracks, grid))
    axis.set(xlim=extent(grid)[:2], ylim=extent(grid)[2:])
    name_box(axis, grid)
    if grid.drawn == "plane":
        name_axes(axis, ("x", "y"), grid, BETWEEN_TICKS)
    quieten(axis)
    colour_bar(figure, colours, axis, "t")
    entitle(figure, title_of(path))
    return figure


def _coarse(grid: Grid, arrows: int) -> Grid:
    """The box in cells that are nearly square on the picture, an arrow each."""
    counts = arrows * np.array(grid.lengths) / equally_long(grid)
    return grid.with_shape([max(2, round(count)) for count in counts.tolist()])


def _where_mass_is(path: Geodesic, t: float, places: Grid) -> NDArray[np.float64]:
    """The centres of the cells in which there is some mass at t, (n, 2)."""
    values = path.density(t, places).numpy()
    return places.points().numpy()[values > THIN * values.max()]


def _draw_arrows(axis: Axes, points: NDArray[np.floating], arrows: NDArray[np.floating]) -> None:
    """Arrows (n, 2), centred at points (n, 2): white, with dark edges for bright places."""
    axis.quiver(
        *points.T,
        *arrows.T,
        angles="xy",
        scale_units="xy",
        scale=1,
        pivot="mid",
        color="white",
        edgecolor=INK,
        linewidth=0.3,
        width=0.012,
        headwidth=3.6,
        headlength=4,
        headaxislength=3.6,
    )


def _draw_tinted(
    axis: Axes, values: Frames, grid: Grid, colour: tuple[float, float, float, float]
) -> None:
    """Values (n, m) of at most one in one colour, the less opaque the smaller they are."""
    rows = upright(values, grid)
    picture = np.empty((*rows.shape, 4))
    picture[..., :3] = to_rgba(colour)[:3]
    picture[..., 3] = TINT * rows.clip(min=0)
    axis.imshow(picture, origin="upper", extent=extent(grid), interpolation="bilinear")
    axis.set_aspect(aspect(grid))


def _draw_tracks(axis: Axes, tracks: NDArray[np.floating]) -> ScalarMappable:
    """Tracks (K, N, 2) in the colours of time, with a dot at either end; gives the colours back."""
    pieces = np.stack([tracks[:-1], tracks[1:]], axis=2)  # (K − 1, N, 2 ends, 2)
    middle = (np.arange(len(pieces)) + 0.5) / len(pieces)
    lines = LineCollection(
        list(pieces.reshape(-1, 2, 2)),
        array=np.repeat(middle, tracks.shape[1]),
        cmap=TIME_MAP,
        norm=Normalize(0, 1),
        linewidth=0.9,
        capstyle="round",
    )
    axis.add_collection(lines)
    for points, t in ((tracks[0], 0.0), (tracks[-1], 1.0)):
        axis.scatter(*points.T, s=14, color=TIME_MAP(t), edgecolor="white", lw=0.5, zorder=3)
    return lines
