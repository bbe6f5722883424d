"""Groups of frames: pairs of neighbours with their geodesic.

Every group is solved by itself in one thread, so NumPy, Dask's threads and the workers of a cluster
of equal machines give the same bits.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from geonet._format import choose_verb
from geonet._progress import report_progress
from geonet._threads import map_in_threads, one_thread
from geonet._utils import label_pair
from geonet._validation import as_number, check_choice, is_number
from geonet.api import geodesic
from geonet.api import solver as build_solver
from geonet.density import MASSES, Density, Mass, Missing
from geonet.errors import DensityError, InputError
from geonet.grid import unit_box
from geonet.paths import Geodesic
from geonet.solvers.base import Solver
from geonet.solvers.newton.solver import as_reach, check_reach, scale_reach
from geonet.solvers.newton.unbalanced import UnbalancedGeodesic
from geonet.xarray.coordinates import Space, TimeIndex, format_time

REPORT_FIELDS = np.dtype(
    [
        ("solver", "U32"),
        ("distance", float),
        ("distance_lower_bound", float),
        ("distance_upper_bound", float),
        ("error_estimate", float),
        ("source_mass", float),
        ("target_mass", float),
        ("transported_share", float),
        ("converged", bool),
        ("faded", bool),
    ]
)


SCORE_FIELDS = np.dtype(
    [
        ("cost", float),
        ("displacement", float),
        ("amplitude", float),
        ("transported_share", float),
        ("mean_displacement", float),
        ("missed_mass", float),
        ("false_mass", float),
        ("converged", bool),
    ]
)


def flagged_values(dtype: np.dtype, shape: tuple[int, ...]) -> np.dtype:
    """Return the type of one frame with its flags."""
    fields = [("values", dtype, shape), ("faded", bool), ("converged", bool)]
    return np.dtype(fields, align=True)


REPORT_NUMBERS = (
    "distance",
    "distance_lower_bound",
    "distance_upper_bound",
    "error_estimate",
    "transported_share",
)


@dataclass(frozen=True)
class FrameConfig:
    """Settings for all groups of frames.

    Attributes:
        space: the spatial grid.
        missing: cells without a value: "raise" an error, "exclude" them from all frames of the
            group and from the result, or a number to fill them with.
        mass: "given" for the units of the field, or "one".
    """

    space: Space
    missing: Missing = "raise"
    mass: Mass = "given"

    def __post_init__(self) -> None:
        check_choice(self.mass, MASSES, "mass")
        if isinstance(self.missing, str):
            check_choice(self.missing, ("raise", "exclude"), "missing")
        elif not 0 <= as_number(self.missing, "missing") < np.inf:
            raise InputError(f"missing is {self.missing:g}; give a number of at least zero.")


class FrameGroup:
    """Frames as densities on the grid of their space.

    Frames are checked when a quantity needs them.

    Args:
        frames: frames in their order, (n, *space).
        config: settings.
        describe: returns the label of a frame for error messages.
        durations: time between neighbouring frames.
        position: number of the first frame of the group; others complete its surroundings.
    """

    noun: ClassVar[str] = "frame"

    def __init__(
        self,
        frames: np.ndarray,
        config: Any,
        describe: Callable[[int], str],
        durations: np.ndarray,
        position: int = 0,
    ):
        self._frames, self._config, self._space = frames[position:], config, config.space
        self._describe = describe
        self.duration = float(durations[0]) if len(durations) else np.nan

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return self._space.grid.shape

    def check(self, fractions: np.ndarray) -> np.ndarray:
        """Raise DensityError if a frame cannot be used; return zeros, (T,)."""
        _ = self._filled_frames
        return np.zeros(len(fractions))

    @cached_property
    def _filled_frames(self) -> tuple[np.ndarray, np.ndarray]:
        return self._fill(self._frames)

    def _fill(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return frames without NaN, (n, *space), and the mask of the cells that are excluded."""
        frames = frames.astype(np.float64)
        holes = np.isnan(frames)
        for k in range(len(frames)):
            self._check_frame(frames[k], holes[k], k)
        missing = self._config.missing
        if is_number(missing):
            return np.where(holes, missing, frames), np.zeros_like(holes[0])
        gaps = np.logical_or.reduce(holes)
        return np.where(gaps, 0.0, frames), gaps

    def _check_frame(self, frame: np.ndarray, hole: np.ndarray, k: int) -> None:
        if self._config.missing == "raise" and hole.any():
            raise DensityError(
                f"{self._describe(k)} has {int(hole.sum())} of {hole.size} cells without a value; "
                "give missing='exclude' to leave them out, or missing=0 to fill them."
            )
        if infinite := int(np.isinf(frame).sum()):
            raise DensityError(
                f"{self._describe(k)} has {infinite} infinite "
                f"{choose_verb(infinite, 'value', 'values')}; mask infinite values: "
                ".where(np.isfinite(field))."
            )
        if negative := int((frame < 0).sum()):
            raise DensityError(
                f"{self._describe(k)} has {negative} negative "
                f"{choose_verb(negative, 'value', 'values')} (minimum {np.nanmin(frame):g}); if "
                "this is noise, set negative values to zero: .clip(min=0), on the command line "
                "--clip."
            )

    def _to_density(self, frame: np.ndarray) -> Density:
        """Return the mass in the cells as a density."""
        return Density(frame * self._space.areas, self._space.grid)

    def _integrate(self, values: np.ndarray) -> np.ndarray:
        """Integrate values (…, *space) over the cells, (…)."""
        cells = tuple(range(-self._space.grid.dimension, 0))
        return (values * self._space.areas).sum(axis=cells) * self._space.grid.cell_volume

    def _rescale(self, frame: np.ndarray) -> np.ndarray:
        """Return a frame with the configured mass; an empty frame stays empty."""
        if self._config.mass == "given" or not frame.any():
            return frame
        return frame / self._integrate(frame)


# ---- Pairs


@dataclass(frozen=True)
class PairConfig(FrameConfig):
    """Settings for all pairs of frames.

    Attributes:
        without_reach: the meaning of no reach, for error messages; "" if a reach is required.
        solver: a name, a model file or a solver.
        options: options of the named solver.
        reach: length over which mass moves, in the units of the space; None for balanced transport.
        growth: with a reach, "hellinger" or "wfr".
    """

    without_reach: ClassVar[str] = "leave it out for balanced transport"

    solver: str | Path | Solver = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    reach: float | None = None
    growth: str = "hellinger"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reach is not None:
            check_length(self.reach, self.space, self.without_reach)
        check_reach(self.reach, self.growth)
        if isinstance(self.solver, Solver):
            if self.reach is not None:
                raise InputError(
                    "reach is an option of a named solver, and solver is a Solver instance; give "
                    "it to geonet.solver(name, reach=...)."
                )
            # Pairs with an empty frame need no solver, but its reach.
            object.__setattr__(self, "reach", getattr(self.solver, "reach", None))
            object.__setattr__(self, "growth", getattr(self.solver, "growth", "hellinger"))
        else:
            if self.reach is not None:
                own = {"reach": self.reach, "growth": self.growth}
                object.__setattr__(self, "options", {**self.options, **own})
            build_solver(self.solver, **self.options)  # raises for unknown names and options


@dataclass(frozen=True)
class ScoreConfig(PairConfig):
    """Settings for pairs of a forecast and an observation."""

    without_reach: ClassVar[str] = ""


@dataclass(frozen=True)
class ReachLimits:
    """Limits of a reach.

    Attributes:
        min_cells: shortest one in cells; mass can hardly move with a shorter one, which usually
            has other units than the coordinates.
    """

    min_cells: float = 0.1


REACH = ReachLimits()


def check_length(reach: Any, space: Space, without: str) -> None:
    """Raise InputError unless a reach is a length that fits the cells.

    Args:
        reach: length in the units of the space.
        space: the spatial grid.
        without: what leaving it out means, such as "leave it out for balanced transport"; "" if a
            reach is required.
    """
    reach = as_reach(reach, without)
    other = f", or {without}" if without else ""
    units = f" {space.units}" if space.units else ""
    cells = reach / min(space.grid.spacing)
    if cells < REACH.min_cells:
        raise InputError(
            f"reach is {reach:g}{units}, {cells:.2g} of a cell, so that mass can hardly move; give "
            f"a length of about a cell or more in the units of the coordinates{other}."
        )
    scale_reach(reach, unit_box(space.grid).length, without)


class Pair(FrameGroup):
    """Two frames and the geodesic between them.

    A frame of the field itself is returned unchecked. The methods take T fractions of the interval,
    NaN for a time outside. After the last frame of a series there is no second one.
    """

    noun = "pair"

    def interpolate(self, fractions: np.ndarray) -> np.ndarray:
        """Return the field, (T, *space); at fraction 0 the first frame bit for bit."""
        first = self._frames[0]
        dtype = np.result_type(first, np.float64)
        result = np.full((len(fractions), *first.shape), np.nan, dtype)
        between, at_start = fractions > 0, fractions == 0
        if between.any():
            result[between] = self._move(fractions[between])
        if at_start.any() and self._config.mass == "given":
            result[at_start] = first
        elif at_start.any():
            (filled,), gaps = self._fill(self._frames[:1])
            result[at_start] = np.where(gaps, np.nan, self._rescale(filled))
        return result

    def velocity(self, fractions: np.ndarray) -> np.ndarray:
        """Return the velocity per unit of time, (T, d, *space); NaN if a frame is empty."""
        grid = self._space.grid
        result = np.full((len(fractions), grid.dimension, *grid.shape), np.nan)
        inside = ~np.isnan(fractions)
        if inside.any() and not self.is_faded:
            values = np.asarray(self._path.velocity(fractions[inside].tolist(), grid.points()))
            for k, speed in enumerate(self._space.speeds):
                component = values[..., k] * speed / self.duration
                result[inside, k] = np.where(self._filled_frames[1], np.nan, component)
        return result

    def interpolate_with_flags(self, fractions: np.ndarray) -> np.ndarray:
        """Return the field and both flags, (T,), of the type `flagged_values`.

        `faded` is true inside a pair with an empty frame, `converged` is false inside a pair whose
        solver did not reach its tolerance.
        """
        values = self.interpolate(fractions)
        between = fractions > 0
        result = np.zeros(len(fractions), flagged_values(values.dtype, values.shape[1:]))
        result["values"] = values
        result["faded"] = between & (between.any() and self.is_faded)
        result["converged"] = ~between | (not between.any() or self.has_converged)
        return result

    def distance(self, fractions: np.ndarray) -> np.ndarray:
        """Return W2 in the units of the space, (T,), NaN if a frame is empty; or √(2·cost)."""
        value = self._faded_distance() if self.is_faded else float(self._path.distance)
        return np.full(len(fractions), value)

    def _faded_distance(self) -> float:
        """Return √(2·cost) if one frame is empty: all mass grows or fades; NaN without a reach."""
        reach = self._config.reach
        return np.nan if reach is None else reach * float(np.sqrt(sum(self._masses())))

    def score(self, fractions: np.ndarray) -> np.ndarray:
        """Return the parts of the cost with a reach, (T,), of the type `SCORE_FIELDS`.

        The first frame is the forecast, the second one the observation.
        """
        row = np.zeros(len(fractions), SCORE_FIELDS)
        row["converged"] = self.has_converged
        if self.is_faded:
            false, missed = self._masses()
            row["cost"] = row["amplitude"] = 0.5 * self._faded_distance() ** 2
            row["missed_mass"], row["false_mass"] = missed, false
            row["transported_share"] = 0.0 if missed or false else np.nan
            row["mean_displacement"] = np.nan
            return row
        assert isinstance(self._path, UnbalancedGeodesic)
        parts = self._path.split_cost()
        row["cost"] = parts.displacement + parts.amplitude
        row["displacement"], row["amplitude"] = parts.displacement, parts.amplitude
        row["transported_share"] = self._path.transported_share
        row["mean_displacement"] = parts.mean_displacement
        row["missed_mass"], row["false_mass"] = parts.grown, parts.faded
        return row

    def report(self, fractions: np.ndarray) -> np.ndarray:
        """Return the report on the path, (T,), of the type `REPORT_FIELDS`."""
        row = np.zeros(len(fractions), REPORT_FIELDS)
        row["source_mass"], row["target_mass"] = self._masses()
        row["faded"] = self.is_faded
        report = self._report_entries()
        for name in REPORT_NUMBERS:
            row[name] = np.nan if report.get(name) is None else report[name]
        row["solver"] = report["solver"]
        is_known = report.get("info", {}).get("converged") is not False
        row["converged"] = self.has_converged and is_known
        return row

    def _report_entries(self) -> dict[str, Any]:
        """Return the entries of a report; without a reach all mass is transported."""
        if not self.is_faded:
            entries = self._path.report.to_dict()
            return entries if self._config.reach else {**entries, "transported_share": 1.0}
        distance = self._faded_distance()
        bounds = dict.fromkeys(("distance_lower_bound", "distance_upper_bound"), distance)
        return {"solver": "fade", "distance": distance, "transported_share": 0.0, **bounds}

    @property
    def is_faded(self) -> bool:
        """True if a frame is empty: no mass can move, and one frame fades into the other."""
        (first, last), _ = self._filled_frames
        return not (first.any() and last.any())

    @property
    def has_converged(self) -> bool:
        """False if the solver did not reach its tolerance."""
        return self.is_faded or bool(self._path.info.get("converged", True))

    @cached_property
    def _path(self) -> Geodesic:
        """Geodesic of the mass in the cells."""
        source, target = (self._to_density(frame) for frame in self._filled_frames[0])
        with label_pair(f"{self._describe(0)} to {self._describe(1)}"):
            return geodesic(source, target, self._config.solver, **self._config.options)

    def _move(self, fractions: np.ndarray) -> np.ndarray:
        """Return the frames inside the interval, (T, *space)."""
        gaps = self._filled_frames[1]
        frames = self._fade(fractions) if self.is_faded else self._follow_path(fractions)
        return np.where(gaps, np.nan, frames) if gaps.any() else frames

    def _fade(self, fractions: np.ndarray) -> np.ndarray:
        """Blend two frames of which one is empty.

        All mass grows in place, as along the path to a frame that tends to zero: linearly in time,
        or quadratically for Wasserstein–Fisher–Rao.
        """
        first, last = (self._rescale(frame) for frame in self._filled_frames[0])
        t = fractions.reshape(-1, *(1,) * first.ndim)
        power = 2 if self._config.growth == "wfr" else 1
        return (1 - t) ** power * first + t**power * last

    def _follow_path(self, fractions: np.ndarray) -> np.ndarray:
        """Return the frames of the geodesic with the configured totals."""
        density = self._path.density(fractions.tolist())
        frames = np.asarray(density) / self._space.areas
        source, target = self._masses()
        totals = (1 - fractions) * source + fractions * target
        if self._config.reach is not None:
            totals = np.asarray(density.mass)
        totals = totals if self._config.mass == "given" else np.ones(len(fractions))
        # A network's frames may have another mass than one, which its report states.
        return frames * (totals / self._integrate(frames)).reshape(-1, *(1,) * (frames.ndim - 1))

    def _masses(self) -> tuple[float, float]:
        """Return the integral of both frames."""
        first, last = self._filled_frames[0]
        return float(self._integrate(first)), float(self._integrate(last))


# ---- All groups of a field


@dataclass(frozen=True)
class FrameQuery:
    """Quantity to evaluate for every group of frames.

    Attributes:
        evaluate: a method of `group` that takes fractions (T,) and returns (T, *shape).
        config: settings of the groups.
        shape: shape of the quantity at one time.
        dtype: type of the result.
        group: the kind of group.
        size: number of frames of a group from its first one.
        before: number of frames before it that the group reads, too.
        components: number of further values of each cell, along the axis before space.
    """

    evaluate: Callable[[Any, np.ndarray], np.ndarray]
    config: FrameConfig
    shape: tuple[int, ...] = ()
    dtype: np.dtype = field(default=np.dtype(float))
    group: type[FrameGroup] = Pair
    size: int = 2
    before: int = 0
    components: int = 0


@dataclass(frozen=True)
class FrameLabels:
    """Names of frames for error messages.

    Attributes:
        field: name of the field.
        dims: name and labels of time and of every further dimension.
        names: labels of the frames instead of these.
    """

    field: str
    dims: tuple[tuple[str, np.ndarray], ...]
    names: tuple[str, ...] = ()

    def describe(self, frame: int, index: tuple[int, ...]) -> str:
        """Return a text such as "rain at time 2026-07-01T12:30:00, member 3"."""
        if self.names:
            return self.names[frame]
        places = zip(self.dims, (frame, *index), strict=True)
        texts = [f"{name} {format_time(labels[k])}" for (name, labels), k in places]
        return f"{self.field} at {', '.join(texts)}"

    def select(self, *parts: slice) -> FrameLabels:
        """Return the labels of a part of the field; missing parts are whole."""
        whole = [slice(None)] * (len(self.dims) - len(parts))
        dims = zip(self.dims, (*parts, *whole), strict=True)
        return replace(self, dims=tuple((name, labels[part]) for (name, labels), part in dims))


def map_groups(
    values: Any, index: TimeIndex, query: FrameQuery, durations: np.ndarray, labels: FrameLabels
) -> Any:
    """Evaluate a query for all times, (*others, T, *query.shape).

    A group starts at the frame of its times. A Dask array gets one task for each chunk of time,
    with the chunk's frames and the frames that complete its last group.

    Args:
        values: the field, (*others, n, *space), a NumPy or a Dask array; with further components
            (*others, n, 1 + components, *space).
        index: positions of the T times between the n frames.
        query: the quantity to evaluate.
        durations: time between neighbouring frames, (n − 1,).
        labels: names for error messages.
    """
    if not hasattr(values, "dask"):
        return _evaluate_block(np.asarray(values), index, query, durations, labels)
    import dask.array

    axis = values.ndim - 1 - query.config.space.grid.dimension - bool(query.components)
    values = values.rechunk({k: -1 for k in range(axis + 1, values.ndim)})
    order = np.argsort(index.frame, kind="stable")
    chunk = np.searchsorted(np.cumsum(values.chunks[axis]), index.frame, side="right")
    space = range(axis + 1, values.ndim)
    tasks = []
    for number in np.unique(chunk):
        which = order[chunk[order] == number]
        first, last = int(index.frame[which].min()), int(index.frame[which].max())
        first = max(first - query.before, 0)
        frames = slice(first, min(last + query.size, values.shape[axis]))
        chunks = (*values.chunks[:axis], (len(which),), *((n,) for n in query.shape))
        tasks.append(
            dask.array.map_blocks(
                _evaluate_task,
                values[(slice(None),) * axis + (frames,)].rechunk({axis: -1}),
                index.select(which, first),
                query,
                durations[frames.start : frames.stop - 1],
                labels.select(frames),
                dtype=query.dtype,
                chunks=chunks,
                drop_axis=list(space),
                new_axis=[axis + 1 + k for k in range(len(query.shape))],
                meta=np.empty((0,) * len(chunks), query.dtype),
            )
        )
    result = dask.array.concatenate(tasks, axis=axis)
    is_sorted = (np.diff(order) == 1).all()
    return result if is_sorted else dask.array.take(result, np.argsort(order), axis=axis)


def _evaluate_task(
    block: np.ndarray,
    index: TimeIndex,
    query: FrameQuery,
    durations: np.ndarray,
    labels: FrameLabels,
    block_info: Any = None,
) -> np.ndarray:
    """Evaluate the groups of one block of a Dask array, one after the other."""
    places = block_info[0]["array-location"][: len(labels.dims) - 1]
    labels = labels.select(slice(None), *(slice(*place) for place in places))
    with keep_freed_memory():
        return _evaluate_block(block, index, query, durations, labels, parallel=False)


def _evaluate_block(
    values: np.ndarray,
    index: TimeIndex,
    query: FrameQuery,
    durations: np.ndarray,
    labels: FrameLabels,
    parallel: bool = True,
) -> np.ndarray:
    """Evaluate all groups of a NumPy array, several at a time if `parallel`."""
    others = values.shape[: -1 - query.config.space.grid.dimension - bool(query.components)]
    result = np.empty((*others, len(index), *query.shape), query.dtype)
    jobs = [(m, k) for m in np.ndindex(*others) for k in np.unique(index.frame).tolist()]

    def evaluate(job: int) -> None:
        member, frame = jobs[job]
        here = index.frame == frame
        start = max(0, frame - query.before)
        group = query.group(
            values[member][start : frame + query.size],
            query.config,
            lambda k: labels.describe(frame + k, member),
            durations[start : frame + query.size - 1],
            frame - start,
        )
        with one_thread():
            result[member][here] = query.evaluate(group, index.fraction[here])

    if parallel:
        contexts = [copy_context() for _ in jobs]  # progress callbacks reach the threads
        done = map_in_threads(lambda k: contexts[k].run(evaluate, k), len(jobs), cells=0)
    else:
        done = map(evaluate, range(len(jobs)))
    for count, _ in enumerate(done, 1):
        report_progress(f"{query.group.noun} {count:,} of {len(jobs):,}")
    return result


class _Malloc:
    """Allocator settings of the process while groups are solved.

    Dask starts its workers with MALLOC_TRIM_THRESHOLD_=65536: glibc then returns every freed array
    to the system at once, and the next array of the same size is new pages that must be cleared.
    Solving a pair allocates and frees hundreds of arrays.
    """

    variable = "MALLOC_TRIM_THRESHOLD_"
    trim_threshold, mmap_threshold = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
    kept_bytes, largest_array = 2**27, 2**25
    default_mmap_bytes = 2**17  # glibc's default if the trim threshold is set
    lock, users = Lock(), 0


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory meanwhile if Dask's setting is in force, and return it afterwards."""
    setting = os.environ.get(_Malloc.variable, "")
    library = ctypes.CDLL(None) if setting.isdigit() and os.name == "posix" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    with _Malloc.lock:
        _Malloc.users += 1
        if _Malloc.users == 1:
            library.mallopt(_Malloc.trim_threshold, _Malloc.kept_bytes)
            library.mallopt(_Malloc.mmap_threshold, _Malloc.largest_array)
    try:
        yield
    finally:
        with _Malloc.lock:
            _Malloc.users -= 1
            if _Malloc.users == 0:
                library.mallopt(_Malloc.trim_threshold, int(setting))
                library.mallopt(_Malloc.mmap_threshold, _Malloc.default_mmap_bytes)
                library.malloc_trim(ctypes.c_size_t(0))
