"""The densities of a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from numpy.typing import NDArray

from geonet._validation import (
    check_choice,
    check_count,
    check_instance,
    is_integer,
    is_number,
    short_repr,
)
from geonet.density import MASSES, Density, Mass, check_density
from geonet.errors import GridError, InputError
from geonet.grid import Grid
from geonet.metrics import l1
from geonet.paths import QUARTERS, Geodesic, Times, check_path, check_times
from geonet.plotting.panels import (
    BETWEEN_TICKS,
    Asked,
    draw,
    draw_frames,
    draw_history,
    draw_projections,
    draw_strip,
    label_frames,
    plane_of,
)
from geonet.plotting.style import (
    DENSITY_MAP,
    DPI,
    INK,
    PLAIN,
    ROUNDING,
    TIME_MAP,
    Frames,
    Look,
    aspect,
    axis_names,
    check,
    check_dimension,
    check_look,
    colour_bar,
    entitle,
    equally_long,
    error_scale,
    extent,
    fit_height,
    moment,
    name_axes,
    name_box,
    placed,
    quieten,
    tallness,
    title_of,
    upright,
)
from geonet.samples import sampled


def plot_geodesic(
    path: Geodesic, times: Times = QUARTERS, grid: Grid | None = None, look: Look = PLAIN
) -> Figure:
    """The path at `times`: in 1D curves and space × time, in 2D frames, in 3D projections."""
    moments, grid = check(path, times, grid, look)
    labels = [moment(t) for t in moments]
    figure = draw(
        _densities(path, grid, look), moments, labels, grid, look.scale, look.name_of(path)
    )
    entitle(figure, title_of(path))
    return figure


def plot_history(path: Geodesic, grid: Grid | None = None, look: Look = PLAIN) -> Figure:
    """A 1D path in space × time."""
    _, grid = check(path, QUARTERS, grid, look)
    check_dimension(grid, 1, "space × time is")
    figure = Figure(figsize=(5.2, 3.6), dpi=DPI, layout="constrained")
    values, what = _densities(path, grid, look), look.name_of(path)
    draw_history(figure, figure.subplots(), values, grid, look.scale, what)
    entitle(figure, title_of(path))
    return figure


def plot_together(paths: Mapping[str, Geodesic], times: Times = QUARTERS) -> Figure:
    """Paths in 1D or 2D under each other, a row each with its name, at the same times."""
    check_instance(paths, Mapping, "paths", "give a dict of paths by their names")
    if not paths:
        raise InputError("There are no paths; give at least one, by its name.")
    moments = check_times(times)[0].tolist()
    heights = [_row_height(path) for path in paths.values()]
    size = (1.7 * len(moments) + 0.4, sum(1.7 * height + 0.1 for height in heights) + 0.2)
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    axes = figure.subplots(len(paths), len(moments), squeeze=False, height_ratios=heights)
    for row, (name, path) in zip(axes, paths.items(), strict=True):
        frames = path.density(moments).numpy()
        if path.grid.dimension == 1:
            _draw_curves(row, frames, path.grid)
        else:
            draw_frames(row, frames, path.grid, PLAIN.scale(frames))
        row[0].set_ylabel(name)
    label_frames(axes[0], [moment(t) for t in moments])
    return figure


def _densities(path: Geodesic, grid: Grid, look: Look) -> Asked:
    return lambda times: look.frames(path, times, grid)


def _row_height(path: Geodesic) -> float:
    """Height over width of one frame."""
    _, grid = check(path, 0.0, None)
    if grid.dimension > 2:
        raise InputError(
            f"A path is {grid.dimension}D; rows are made in one or two dimensions, "
            "use path.plot() for this one."
        )
    return 0.7 if grid.dimension == 1 else tallness(grid)


def _draw_curves(axes: Sequence[Axes], frames: Frames, grid: Grid) -> None:
    """Frames (T, n) as filled curves with a common height."""
    x = grid.axes()[0].numpy()
    for axis, frame in zip(axes, frames, strict=True):
        axis.fill_between(x, frame, color=DENSITY_MAP(0.45), alpha=0.25, linewidth=0)
        axis.plot(x, frame, color=DENSITY_MAP(0.45), linewidth=1.4)
        axis.set(xlim=(grid.lower[0], grid.upper[0]), xticks=(), yticks=())
        axis.set_ylim(0, 1.05 * float(frames.max()))
        quieten(axis)


# ---- One density.


SIZE = (4.8, 3.2)  # inches, of a curve
SIDE = 3.2  # inches: the longer side of a 2D box


def plot_density(density: Density, look: Look = PLAIN) -> Figure:
    """A curve in 1D, an image with its colours in 2D, projections in 3D."""
    check_density(density)
    check_look(look)
    grid = density.grid
    if density.leading:
        raise InputError(
            f"These are {' × '.join(map(str, density.leading))} densities; "
            f"draw one of them, as in density{'[0]' * len(density.leading)}.plot()."
        )
    if grid.dimension > 3:
        raise InputError(
            f"The density is {grid.dimension}D; pictures are made in one to three dimensions."
        )
    values = density.numpy(look.mass)[None]
    if grid.dimension == 2:
        side = SIDE / max(1, tallness(grid))
        return draw_strip(values, [""], grid, look.scale(values), "density", side)[0]
    if grid.dimension == 3:
        return draw_projections(values, [""], grid, look.scale, "density")
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axis, x, colour = figure.subplots(), grid.axes()[0].numpy(), look.colours()(0.45)
    axis.plot(x, values[0], color=colour, linewidth=1.6)
    axis.set(xlabel="x", ylabel="density", xlim=(grid.lower[0], grid.upper[0]))
    fit_height(axis, look.scale(values), values)
    quieten(axis)
    return figure


# ---- How far a path is from another one.


def plot_error(
    path: Geodesic, reference: Geodesic, times: Times = QUARTERS, grid: Grid | None = None
) -> Figure:
    """Path − reference at `times`, with the L1 error of each: laid out as in `plot_geodesic`.

    Args:
        path: the path that is judged.
        reference: what it should be, in the same box.
        times: of the curves or frames.
        grid: on which both are compared, the path's own by default.
    """
    moments, grid = check(path, times, grid)
    truth = _reference_on(reference, moments, grid)
    errors = l1(path.density(moments, grid), truth).tolist()
    between = ", " if grid.dimension == 1 else "\n"
    labels = [
        f"{moment(t)}{between}L1 = {100 * error:.2f} %"
        for t, error in zip(moments, errors, strict=True)
    ]

    def difference(asked: Sequence[float]) -> Frames:
        return path.density(asked, grid).numpy() - reference.density(asked, grid).numpy()

    unit = float(truth.numpy().max())
    figure = draw(difference, moments, labels, grid, lambda f: error_scale(f, unit), "error")
    entitle(figure, f"{path.solver} − {reference.solver}")
    return figure


def _reference_on(reference: Geodesic, moments: list[float], grid: Grid) -> Density:
    check_path(reference, "reference")
    try:
        check(reference, moments, grid)
    except GridError as error:
        raise GridError(
            f"The reference does not live on {grid}; give one in the same box."
        ) from error
    return reference.density(moments, grid)


# ---- Slices through a 3D path.


def plot_slices(
    path: Geodesic,
    times: Times = QUARTERS,
    grid: Grid | None = None,
    look: Look = PLAIN,
    axis: int = 2,
    at: float = 0.5,
) -> Figure:
    """A layer of cells of a 3D path at `times`.

    Args:
        path: the path.
        times: of the frames.
        grid: whose layer is shown, the path's own by default.
        look: the colours.
        axis: across which the box is cut: 0, 1 or 2.
        at: where, as a share of the side: 0 is the lower face, 1 the upper.
    """
    moments, grid = check(path, times, grid, look)
    check_dimension(grid, 3, "slices are")
    if not is_integer(axis) or axis not in (0, 1, 2):
        raise InputError(f"axis is {short_repr(axis)}; cut across axis 0, 1 or 2.")
    if not is_number(at) or not 0 <= at <= 1:
        raise InputError(f"at is {short_repr(at)}; give a share of the side, from 0 to 1.")
    layer = min(int(at * grid.shape[axis]), grid.shape[axis] - 1)
    first, second = (i for i in range(3) if i != axis)
    frames = np.moveaxis(look.frames(path, moments, grid), 1 + axis, 0)[layer]
    labels = [moment(t) for t in moments]
    plane = plane_of(grid, (first, second))
    figure, axes = draw_strip(frames, labels, plane, look.scale(frames), look.name_of(path))
    names = axis_names(grid)
    name_axes(axes[0], (names[first], names[second]), plane, BETWEEN_TICKS)
    centre = float(grid.axes()[axis][layer])
    entitle(figure, f"{title_of(path)}   at {names[axis]} = {centre:.4g}")
    return figure


# ---- How the mass of a 2D path moves: its velocity, and the tracks of particles.


THIN = 0.05  # of a frame's peak: no arrow is drawn where there is less mass
ARROW = 1.2  # length of the longest arrow, in distances between arrows
SIDE_FIELDS = 4.4  # inches: the longer side of the box with tracks
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
    check_choice(mass, MASSES, "mass")
    source, target = path.density(0.0, grid), path.density(1.0, grid)
    points = sampled(source, particles, torch.Generator().manual_seed(seed))
    tracks = path.trajectories(np.linspace(0, 1, KNOTS), points).detach().numpy()  # (K, N, 2)
    width = SIDE_FIELDS / max(1, tallness(grid))
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


# ---- The kinds of pictures by name, for `Geodesic.plot`.


AT_TIMES = {"frames": plot_geodesic, "velocity": plot_velocity, "slices": plot_slices}
OF_ALL_TIMES = ("history", "tracks")


def plot_kind(
    path: Geodesic,
    kind: str,
    times: Times | None = None,
    grid: Grid | None = None,
    look: Look = PLAIN,
) -> Figure:
    """The picture of that kind: frames, velocity, slices, history or tracks."""
    kinds = (*AT_TIMES, *OF_ALL_TIMES)
    if isinstance(times, str) and times in kinds:
        raise InputError(f"The first argument is the times; name a kind by kind={times!r}.")
    if not isinstance(kind, str) or kind not in kinds:
        known = ", ".join(kinds)
        raise InputError(f"There is no kind {short_repr(kind)} of picture; choose one of {known}.")
    if kind in AT_TIMES:
        return AT_TIMES[kind](path, QUARTERS if times is None else times, grid, look)
    if times is not None:
        raise InputError(f"A picture of kind {kind!r} shows all times; leave `times` out.")
    if kind == "history":
        return plot_history(path, grid, look)
    if replace(look, mass=PLAIN.mass) != PLAIN:
        raise InputError("Tracks have the colours of time; leave cmap, norm, vmin and vmax out.")
    return plot_tracks(path, grid, mass=look.mass)
