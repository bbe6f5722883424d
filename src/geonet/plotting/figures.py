"""Figures of densities, paths and errors."""

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
    Field,
    aspect_ratio,
    axis_names,
    draw_frames,
    draw_history,
    draw_panels,
    draw_projections,
    draw_strip,
    image_extent,
    label_box,
    label_frames,
    plane_grid,
    reference_lengths,
    to_image_rows,
    to_plot_xy,
    unit_aspect,
    unroll_tracks,
)
from geonet.plotting.style import (
    DEFAULT_STYLE,
    DENSITY_MAP,
    INK,
    TIME_MAP,
    Frames,
    Style,
    add_colour_bar,
    check_dimension,
    check_drawable,
    check_style,
    despine,
    format_time,
    format_title,
    make_figure,
    set_height_limits,
    set_title,
    to_numpy,
)
from geonet.samples import sample_particles

# Kinds of `Geodesic.plot`, and whether they take times.
PLOT_KINDS = {"frames": True, "velocity": True, "slices": True, "history": False, "tracks": False}


def plot_kind(
    path: Geodesic,
    kind: str,
    times: Times | None = None,
    grid: Grid | None = None,
    style: Style = DEFAULT_STYLE,
) -> Figure:
    """Draw a path as one of `PLOT_KINDS`; see `Geodesic.plot`."""
    if isinstance(times, str) and times in PLOT_KINDS:
        raise InputError(f"times is {times!r}; pass a kind of figure as kind={times!r}.")
    if not isinstance(kind, str) or kind not in PLOT_KINDS:
        raise InputError(f"kind is {short_repr(kind)}; choose one of {', '.join(PLOT_KINDS)}.")
    if PLOT_KINDS[kind]:
        plots = {"frames": plot_geodesic, "velocity": plot_velocity, "slices": plot_slices}
        return plots[kind](path, QUARTERS if times is None else times, grid, style)
    if times is not None:
        raise InputError(f"kind={kind!r} shows all times; leave out times.")
    if kind == "history":
        return plot_history(path, grid, style)
    if replace(style, mass="one") != DEFAULT_STYLE:
        raise InputError("kind='tracks' uses colours for time; leave out cmap, norm, vmin, vmax.")
    return plot_tracks(path, grid, mass=style.mass)


def plot_geodesic(
    path: Geodesic,
    times: Times = QUARTERS,
    grid: Grid | None = None,
    style: Style = DEFAULT_STYLE,
) -> Figure:
    """Draw a path at `times`: in 1D curves and space × time, in 2D frames, in 3D projections.

    Args:
        path: the path, one pair.
        times: times of the curves or frames.
        grid: grid of the densities, the path's own by default.
        style: colours and units.
    """
    moments, grid = check_drawable(path, times, grid, style)
    field = _density_field(path, grid, style)
    figure = draw_panels(field, moments, [format_time(t) for t in moments])
    set_title(figure, format_title(path))
    return figure


def _density_field(path: Geodesic, grid: Grid, style: Style) -> Field:
    return Field(
        lambda times: style.evaluate(path, times, grid), grid, style.scale, style.label(path)
    )


def plot_history(path: Geodesic, grid: Grid | None = None, style: Style = DEFAULT_STYLE) -> Figure:
    """Draw a 1D path over space × time."""
    _, grid = check_drawable(path, QUARTERS, grid, style)
    check_dimension(grid, 1, "history")
    figure = make_figure(5.2, 3.6)
    draw_history(_density_field(path, grid, style), figure, figure.subplots())
    set_title(figure, format_title(path))
    return figure


def plot_together(paths: Mapping[str, Geodesic], times: Times = QUARTERS) -> Figure:
    """Draw 1D or 2D paths at the same times, one row for each, labelled by its key."""
    check_instance(paths, Mapping, "paths", "give a dict of paths by their names")
    if not paths:
        raise InputError("There are no paths; give at least one, by its name.")
    moments = check_times(times)[0].tolist()
    heights = [_row_height(path) for path in paths.values()]
    figure = make_figure(1.7 * len(moments) + 0.4, 1.7 * sum(heights) + 0.1 * len(heights) + 0.2)
    axes = figure.subplots(len(paths), len(moments), squeeze=False, height_ratios=heights)
    for row, (name, path) in zip(axes, paths.items(), strict=True):
        frames = path.density(moments).numpy()
        if path.grid.dimension == 1:
            _draw_filled_curves(row, frames, path.grid)
        else:
            draw_frames(row, frames, path.grid, DEFAULT_STYLE.scale(frames))
        row[0].set_ylabel(name)
    label_frames(axes[0], [format_time(t) for t in moments])
    return figure


def _row_height(path: Geodesic) -> float:
    """Return height over width of one frame."""
    _, grid = check_drawable(path, 0.0, None)
    if grid.dimension > 2:
        raise InputError(
            f"A path is {grid.dimension}D; rows are for 1D and 2D paths, "
            "use path.plot() for this one."
        )
    return 0.7 if grid.dimension == 1 else aspect_ratio(grid)


def _draw_filled_curves(axes: Sequence[Axes], frames: Frames, grid: Grid) -> None:
    """Draw frames (T, n) as filled curves with a common height."""
    x, colour = grid.axes()[0].numpy(), DENSITY_MAP(0.45)
    for axis, frame in zip(axes, frames, strict=True):
        axis.fill_between(x, frame, color=colour, alpha=0.25, linewidth=0)
        axis.plot(x, frame, color=colour, linewidth=1.4)
        axis.set(xlim=(grid.lower[0], grid.upper[0]), xticks=(), yticks=())
        axis.set_ylim(0, 1.05 * float(frames.max()))
        despine(axis)


def plot_density(density: Density, style: Style = DEFAULT_STYLE) -> Figure:
    """Draw one density: in 1D a curve, in 2D an image with a colour bar, in 3D projections."""
    check_density(density)
    check_style(style)
    grid = density.grid
    if density.batch_shape:
        raise InputError(
            f"These are {' × '.join(map(str, density.batch_shape))} densities; "
            f"draw one of them, as in density{'[0]' * len(density.batch_shape)}.plot()."
        )
    if grid.dimension > 3:
        raise InputError(f"The density is {grid.dimension}D; figures exist for 1D, 2D and 3D.")
    values = density.numpy(style.mass)[None]
    if grid.dimension == 2:
        width = 3.2 / max(1, aspect_ratio(grid))
        return draw_strip(values, [""], grid, style.scale(values), "density", width)[0]
    if grid.dimension == 3:
        return draw_projections(values, [""], grid, style.scale, "density")
    figure = make_figure(4.8, 3.2)
    axis = figure.subplots()
    axis.plot(grid.axes()[0].numpy(), values[0], color=style.colormap()(0.45), linewidth=1.6)
    axis.set(xlabel="x", ylabel="density", xlim=(grid.lower[0], grid.upper[0]))
    set_height_limits(axis, style.scale(values), values)
    despine(axis)
    return figure


def plot_error(
    path: Geodesic, reference: Geodesic, times: Times = QUARTERS, grid: Grid | None = None
) -> Figure:
    """Draw path − reference at `times` as `plot_geodesic` does, with the L1 error of each frame.

    Args:
        path: the path to judge.
        reference: the correct path, in the same box.
        times: times of the curves or frames.
        grid: grid on which both are compared, the path's own by default.
    """
    moments, grid = check_drawable(path, times, grid)
    truth = _evaluate_reference(reference, moments, grid)
    errors = l1(path.density(moments, grid), truth).tolist()
    separator = ", " if grid.dimension == 1 else "\n"
    labels = [
        f"{format_time(t)}{separator}L1 = {100 * error:.2f} %"
        for t, error in zip(moments, errors, strict=True)
    ]
    rounding = 1e-9 * float(truth.numpy().max())  # smaller errors are not magnified

    def difference(times: Sequence[float]) -> Frames:
        return path.density(times, grid).numpy() - reference.density(times, grid).numpy()

    def scale(frames: Frames) -> ScalarMappable:
        limit = max(float(np.abs(frames).max()), rounding)
        return ScalarMappable(Normalize(-limit, limit), "PuOr")  # white is no error

    figure = draw_panels(Field(difference, grid, scale, "error"), moments, labels)
    set_title(figure, f"{path.solver} − {reference.solver}")
    return figure


def _evaluate_reference(reference: Geodesic, times: list[float], grid: Grid) -> Density:
    check_path(reference, "reference")
    try:
        check_drawable(reference, times, grid)
    except GridError as error:
        raise GridError(
            f"The reference is not defined on {grid}; give one in the same box."
        ) from error
    return reference.density(times, grid)


def plot_slices(
    path: Geodesic,
    times: Times = QUARTERS,
    grid: Grid | None = None,
    style: Style = DEFAULT_STYLE,
    axis: int | None = None,
    at: float | None = None,
) -> Figure:
    """Draw one layer of cells of a 3D path at `times`.

    Args:
        path: the path.
        times: times of the frames.
        grid: grid of the layer, the path's own by default.
        style: colours and units.
        axis: axis normal to the layer, 0, 1 or 2. By default it is 0 for arrays, which shows x and
            y of a stack in the order z, y, x, and 2 for coordinates x, y, z.
        at: position along that axis, from 0 (lower face) to 1 (upper face); by default the layer in
            the middle of the mass of source and target.
    """
    moments, grid = check_drawable(path, times, grid, style)
    check_dimension(grid, 3, "slices")
    if axis is None:
        axis = 0 if grid.orientation == "image" else 2
    if not is_integer(axis) or axis not in (0, 1, 2):
        raise InputError(f"axis is {short_repr(axis)}; give 0, 1 or 2.")
    if at is None:
        layer = _find_middle_layer(path, grid, axis)
    elif is_number(at) and 0 <= at <= 1:
        layer = min(int(at * grid.shape[axis]), grid.shape[axis] - 1)
    else:
        raise InputError(f"at is {short_repr(at)}; give a number from 0 to 1.")
    first, second = (i for i in range(3) if i != axis)
    frames = np.moveaxis(style.evaluate(path, moments, grid), 1 + axis, 0)[layer]
    names = axis_names(grid)
    figure, _ = draw_strip(
        frames,
        [format_time(t) for t in moments],
        plane_grid(grid, (first, second)),
        style.scale(frames),
        style.label(path),
        names=(names[first], names[second]),
    )
    centre = float(grid.axes()[axis][layer])
    set_title(figure, f"{format_title(path)}   at {names[axis]} = {centre:.4g}")
    return figure


def _find_middle_layer(path: Geodesic, grid: Grid, axis: int) -> int:
    """Return the layer of cells with half of the mass of source and target on each side."""
    others = tuple(1 + i for i in range(3) if i != axis)
    shares = path.density([0.0, 1.0], grid).numpy().clip(min=0).sum(others).sum(0)
    return int(np.searchsorted(shares.cumsum(), shares.sum() / 2))


def plot_velocity(
    path: Geodesic,
    times: Times = QUARTERS,
    grid: Grid | None = None,
    style: Style = DEFAULT_STYLE,
    arrows: int = 12,
) -> Figure:
    """Draw the density of a 2D path at `times`, with arrows of its velocity on the mass.

    The length of an arrow is proportional to the speed, with one scale for all frames.

    Args:
        path: the path; its solver must provide a velocity.
        times: times of the frames.
        grid: grid of the densities, the path's own by default.
        style: colours and units of the densities.
        arrows: number of arrows along the longer side of the box.
    """
    moments, grid = check_drawable(path, times, grid, style)
    check_dimension(grid, 2, "velocity")
    check_count(arrows, 2, "arrows")
    coarse = _arrow_grid(grid, arrows)
    points = [_points_with_mass(path, t, coarse) for t in moments]
    velocities = [to_numpy(path.velocity(t, at)) for t, at in zip(moments, points, strict=True)]
    unit = reference_lengths(grid)
    all_velocities = np.concatenate(velocities)
    lengths = np.linalg.norm(all_velocities / unit, axis=-1)
    fastest = float(np.linalg.norm(all_velocities[lengths.argmax()]))
    frames = style.evaluate(path, moments, grid)
    labels = [format_time(t) for t in moments]
    figure, axes = draw_strip(frames, labels, grid, style.scale(frames), style.label(path))
    # The longest arrow measures 1.2 distances between arrows; a path at rest has none.
    scale = 1.2 * float((coarse.spacing / unit).max()) / max(float(lengths.max()), 1e-9)
    for axis, at, velocity in zip(axes, points, velocities, strict=True):
        _draw_arrows(axis, to_plot_xy(at, grid), to_plot_xy(velocity * scale, grid))
    set_title(figure, f"{format_title(path)}   longest arrow |v| = {fastest:.3g}")
    return figure


def _arrow_grid(grid: Grid, arrows: int) -> Grid:
    """Divide the box into cells that are nearly square on the picture, one for each arrow."""
    counts = arrows * np.array(grid.lengths) / reference_lengths(grid)
    return grid.with_shape([max(2, round(count)) for count in counts.tolist()])


def _points_with_mass(path: Geodesic, t: float, grid: Grid) -> NDArray[np.float64]:
    """Return the centres of cells with more than 5 % of the peak at time t, (n, 2)."""
    values = path.density(t, grid).numpy()
    return grid.points().numpy()[values > 0.05 * values.max()]


def _draw_arrows(axis: Axes, points: NDArray[np.floating], arrows: NDArray[np.floating]) -> None:
    """Draw arrows (n, 2) centred at points (n, 2), white with dark edges for bright cells."""
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


def plot_tracks(
    path: Geodesic,
    grid: Grid | None = None,
    particles: int = 100,
    seed: int = 0,
    mass: Mass = "one",
) -> Figure:
    """Draw trajectories of particles of a 2D path over its source and target.

    Args:
        path: the path; its solver must provide trajectories.
        grid: grid of the two densities, the path's own by default.
        particles: number of particles, sampled from the density at t = 0.
        seed: seed of the sample.
        mass: units of the two densities: with "given", the end of less mass is paler.
    """
    _, grid = check_drawable(path, QUARTERS, grid)
    check_dimension(grid, 2, "tracks")
    check_count(particles, 1, "particles")
    check_count(seed, 0, "seed")
    check_choice(mass, MASSES, "mass")
    source, target = path.density(0.0, grid), path.density(1.0, grid)
    points = sample_particles(source, particles, torch.Generator().manual_seed(seed))
    # Trajectories of entropic and neural paths are not straight: 41 knots.
    tracks = to_numpy(path.trajectories(np.linspace(0, 1, 41), points))  # (41, N, 2)
    width = 4.4 / max(1, aspect_ratio(grid))
    height = width * aspect_ratio(grid) + 0.6
    figure = make_figure(max(width, 2) + 0.9, height, layout="compressed")
    axis = figure.subplots()
    ends = source.numpy(mass), target.numpy(mass)
    highest = max(float(end.max()) for end in ends)
    for end, t in zip(ends, (0.0, 1.0), strict=True):
        peak = highest if mass == "given" else float(end.max())
        _draw_tinted(axis, end / peak, grid, TIME_MAP(t))
    lines = _draw_tracks(axis, tracks, grid)
    axis.set(xlim=image_extent(grid)[:2], ylim=image_extent(grid)[2:])
    label_box(axis, grid)
    despine(axis)
    add_colour_bar(figure, lines, axis, "t")
    set_title(figure, format_title(path))
    return figure


def _draw_tinted(
    axis: Axes, values: Frames, grid: Grid, colour: tuple[float, float, float, float]
) -> None:
    """Draw values (n, m) from 0 to 1 as the opacity of one colour, at most 0.45."""
    rows = to_image_rows(values, grid)
    picture = np.empty((*rows.shape, 4))
    picture[..., :3] = to_rgba(colour)[:3]
    picture[..., 3] = 0.45 * rows.clip(min=0)
    axis.imshow(picture, origin="upper", extent=image_extent(grid), interpolation="bilinear")
    axis.set_aspect(unit_aspect(grid))


def _draw_tracks(axis: Axes, tracks: NDArray[np.floating], grid: Grid) -> LineCollection:
    """Draw tracks (K, N, 2) in the colours of time, with a dot at each end.

    A segment that crosses the seam of a periodic axis is drawn at both faces; the box clips it.
    """
    line = unroll_tracks(tracks, grid)
    segments = np.stack([line[:-1], line[1:]], axis=2)  # (K − 1, N, 2 ends, 2)
    times = np.repeat((np.arange(len(segments)) + 0.5) / len(segments), tracks.shape[1])
    segments = segments.reshape(-1, 2, 2)
    ends = torch.from_numpy(segments)
    shifts = (grid.wrap(ends) - ends).numpy()  # from each end into the box, (segments, 2 ends, 2)
    crosses = (shifts[:, 0] != shifts[:, 1]).any(-1)
    pieces = [segments + shifts[:, :1], segments[crosses] + shifts[crosses, 1:]]
    lines = LineCollection(
        list(to_plot_xy(np.concatenate(pieces), grid)),
        array=np.concatenate([times, times[crosses]]),
        cmap=TIME_MAP,
        norm=Normalize(0, 1),
        linewidth=0.9,
        capstyle="round",
    )
    axis.add_collection(lines)
    for points, t in ((tracks[0], 0.0), (tracks[-1], 1.0)):
        axis.scatter(
            *to_plot_xy(points, grid).T,
            s=14,
            color=TIME_MAP(t),
            edgecolor="white",
            lw=0.5,
            zorder=3,
        )
    return lines
