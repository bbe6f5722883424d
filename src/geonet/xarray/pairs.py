"""Geodesics between neighbouring frames of a field: one pair, and all pairs of a series.

Every pair is solved by itself in one thread, so NumPy, Dask's threads and the workers of a cluster
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
from typing import Any

import numpy as np

from geonet._progress import report_progress
from geonet._threads import map_in_threads, one_thread
from geonet._validation import as_number, check_choice, is_number
from geonet.api import geodesic
from geonet.api import solver as build_solver
from geonet.density import MASSES, Density, Mass, Missing
from geonet.errors import DensityError, InputError
from geonet.paths import Geodesic
from geonet.solvers.base import Solver
from geonet.xarray.coordinates import Space, TimeIndex

REPORT_FIELDS = np.dtype(
    [
        ("solver", "U32"),
        ("distance", float),
        ("distance_lower_bound", float),
        ("distance_upper_bound", float),
        ("error_estimate", float),
        ("source_mass", float),
        ("target_mass", float),
        ("converged", bool),
        ("faded", bool),
    ]
)


@dataclass(frozen=True)
class PairConfig:
    """Settings for all pairs of frames.

    Attributes:
        space: the spatial grid.
        solver: a name, a model file or a solver.
        options: options of the named solver.
        missing: cells without a value: "raise" an error, "exclude" them from both frames and from
            the path, or a number to fill them with.
        mass: "given" for totals that vary linearly between the frames, or "one".
    """

    space: Space
    solver: str | Path | Solver = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    missing: Missing = "raise"
    mass: Mass = "given"

    def __post_init__(self) -> None:
        check_choice(self.mass, MASSES, "mass")
        if not isinstance(self.solver, Solver):
            build_solver(self.solver, **self.options)  # raises for unknown names and options
        if isinstance(self.missing, str):
            check_choice(self.missing, ("raise", "exclude"), "missing")
        elif not 0 <= as_number(self.missing, "missing") < np.inf:
            raise InputError(f"missing is {self.missing:g}; give a number of at least zero.")


class Pair:
    """Two frames as densities on the grid of their space, and the geodesic between them.

    Frames are checked when a quantity needs the path; a frame of the field itself is returned
    unchecked. The methods take T fractions of the interval, NaN for a time outside.

    Args:
        first: the earlier frame, (*space).
        last: the later frame, (*space).
        config: settings.
        duration: time between the frames.
        describe: returns the label of frame 0 or 1 for error messages.
    """

    def __init__(
        self,
        first: np.ndarray,
        last: np.ndarray,
        config: PairConfig,
        duration: float,
        describe: Callable[[int], str],
    ):
        self._frames, self._config, self._space = (first, last), config, config.space
        self._duration, self._describe = duration, describe

    def interpolate(self, fractions: np.ndarray) -> np.ndarray:
        """Return the field, (T, *space); at fraction 0 the first frame bit for bit."""
        first = self._frames[0]
        dtype = np.result_type(*self._frames, np.float64)
        result = np.full((len(fractions), *first.shape), np.nan, dtype)
        between, at_start = fractions > 0, fractions == 0
        if between.any():
            result[between] = self._move(fractions[between])
        if at_start.any() and self._config.mass == "given":
            result[at_start] = first
        elif at_start.any():
            (filled, _), gaps = self._fill(first, first)
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
                component = values[..., k] * speed / self._duration
                result[inside, k] = np.where(self._filled_frames[1], np.nan, component)
        return result

    def flag_faded(self, fractions: np.ndarray) -> np.ndarray:
        """Return whether each time lies inside a pair with an empty frame, (T,)."""
        between = fractions > 0
        return between & (between.any() and self.is_faded)

    def distance(self, fractions: np.ndarray) -> np.ndarray:
        """Return W2 in the units of the space, (T,); NaN if a frame is empty."""
        return np.full(len(fractions), np.nan if self.is_faded else float(self._path.distance))

    def report(self, fractions: np.ndarray) -> np.ndarray:
        """Return the report on the path, (T,), of the type `REPORT_FIELDS`."""
        row = np.zeros(len(fractions), REPORT_FIELDS)
        row["source_mass"], row["target_mass"] = self._masses()
        row["faded"] = self.is_faded
        report = {} if self.is_faded else self._path.report.to_dict()
        for name in ("distance", "distance_lower_bound", "distance_upper_bound", "error_estimate"):
            row[name] = np.nan if report.get(name) is None else report[name]
        row["solver"] = report.get("solver", "fade")
        row["converged"] = self.is_faded or self._path.info.get("converged", True)
        return row

    @property
    def is_faded(self) -> bool:
        """True if a frame is empty: no mass can move, and one frame fades into the other."""
        (first, last), _ = self._filled_frames
        return not (first.any() and last.any())

    @cached_property
    def _filled_frames(self) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        return self._fill(*self._frames)

    def _fill(
        self, first: np.ndarray, last: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Return both frames without NaN, and the mask of the cells that are excluded."""
        frames = first.astype(np.float64), last.astype(np.float64)
        holes = np.isnan(frames[0]), np.isnan(frames[1])
        for k in (0, 1):
            self._check_frame(frames[k], holes[k], k)
        missing = self._config.missing
        if is_number(missing):
            first, last = (np.where(holes[k], missing, frames[k]) for k in (0, 1))
            return (first, last), np.zeros_like(holes[0])
        gaps = holes[0] | holes[1]
        return (np.where(gaps, 0.0, frames[0]), np.where(gaps, 0.0, frames[1])), gaps

    def _check_frame(self, frame: np.ndarray, hole: np.ndarray, k: int) -> None:
        if self._config.missing == "raise" and hole.any():
            raise DensityError(
                f"{self._describe(k)} has {int(hole.sum())} of {hole.size} cells without a value; "
                "set missing to 'exclude' to leave them out, or to a number to fill them with."
            )
        if np.isinf(frame).any():
            raise DensityError(
                f"{self._describe(k)} holds {int(np.isinf(frame).sum())} infinite values; mask "
                "them: .where(np.isfinite(field))."
            )
        low = np.nanmin(frame, initial=0.0)
        if low < 0:
            raise DensityError(
                f"{self._describe(k)} holds {int((frame < 0).sum())} negative values, down to "
                f"{low:g}; set them to zero if they are noise: .clip(min=0)."
            )

    @cached_property
    def _path(self) -> Geodesic:
        """Geodesic of the mass in the cells."""
        source, target = (
            Density(frame * self._space.areas, self._space.grid) for frame in self._filled_frames[0]
        )
        return geodesic(source, target, self._config.solver, **self._config.options)

    def _move(self, fractions: np.ndarray) -> np.ndarray:
        """Return the frames inside the interval, (T, *space)."""
        (first, last), gaps = self._filled_frames
        column = (-1, *(1,) * first.ndim)
        if self.is_faded:
            t = fractions.reshape(column)
            frames = (1 - t) * self._rescale(first) + t * self._rescale(last)
        else:
            frames = np.asarray(self._path.density(fractions.tolist())) / self._space.areas
            source, target = self._masses()
            totals = (1 - fractions) * source + fractions * target
            totals = totals if self._config.mass == "given" else np.ones(len(fractions))
            # A network's frames may have another mass than one, which its report states.
            frames = frames * (totals / self._integrate(frames)).reshape(column)
        return np.where(gaps, np.nan, frames) if gaps.any() else frames

    def _masses(self) -> tuple[float, float]:
        """Return the integral of both frames."""
        first, last = self._filled_frames[0]
        return float(self._integrate(first)), float(self._integrate(last))

    def _integrate(self, values: np.ndarray) -> np.ndarray:
        """Integrate values (…, *space) over the cells, (…)."""
        cells = tuple(range(-self._space.grid.dimension, 0))
        return (values * self._space.areas).sum(axis=cells) * self._space.grid.cell_volume

    def _rescale(self, frame: np.ndarray) -> np.ndarray:
        """Return a frame with the configured mass; an empty frame stays empty."""
        if self._config.mass == "given" or not frame.any():
            return frame
        return frame / self._integrate(frame)


# ---- All pairs of a series


@dataclass(frozen=True)
class PairQuery:
    """Quantity to evaluate for every pair.

    Attributes:
        evaluate: a method of `Pair` that takes fractions (T,) and returns (T, *shape).
        config: settings of the pairs.
        shape: shape of the quantity at one time.
        dtype: type of the result.
    """

    evaluate: Callable[[Pair, np.ndarray], np.ndarray]
    config: PairConfig
    shape: tuple[int, ...] = ()
    dtype: np.dtype = field(default=np.dtype(float))


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
        return f"{self.field} at {', '.join(f'{name} {labels[k]}' for (name, labels), k in places)}"

    def select(self, *parts: slice) -> FrameLabels:
        """Return the labels of a part of the field; missing parts are whole."""
        whole = [slice(None)] * (len(self.dims) - len(parts))
        dims = zip(self.dims, (*parts, *whole), strict=True)
        return replace(self, dims=tuple((name, labels[part]) for (name, labels), part in dims))


def map_pairs(
    values: Any, index: TimeIndex, query: PairQuery, durations: np.ndarray, labels: FrameLabels
) -> Any:
    """Evaluate a query for all times, (*others, T, *query.shape).

    A Dask array gets one task for each chunk of time, with the chunk's frames and the first frame
    of the next chunk.

    Args:
        values: the field, (*others, n, *space), a NumPy or a Dask array.
        index: positions of the T times between the n frames.
        query: the quantity to evaluate.
        durations: time between neighbouring frames, (n − 1,).
        labels: names for error messages.
    """
    if not hasattr(values, "dask"):
        return _evaluate_block(np.asarray(values), index, query, durations, labels)
    import dask.array

    axis = values.ndim - 1 - query.config.space.grid.dimension
    values = values.rechunk({k: -1 for k in range(axis + 1, values.ndim)})
    order = np.argsort(index.frame, kind="stable")
    chunk = np.searchsorted(np.cumsum(values.chunks[axis]), index.frame, side="right")
    space = range(axis + 1, values.ndim)
    tasks = []
    for number in np.unique(chunk):
        which = order[chunk[order] == number]
        first, last = int(index.frame[which].min()), int(index.frame[which].max())
        frames = slice(first, min(last + 2, values.shape[axis]))
        chunks = (*values.chunks[:axis], (len(which),), *((n,) for n in query.shape))
        has_space = len(query.shape) >= len(space)
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
                drop_axis=[] if has_space else list(space),
                new_axis=[axis + 1] if len(query.shape) > len(space) else None,
                meta=np.empty((0,) * len(chunks), query.dtype),
            )
        )
    result = dask.array.concatenate(tasks, axis=axis)
    is_sorted = (np.diff(order) == 1).all()
    return result if is_sorted else dask.array.take(result, np.argsort(order), axis=axis)


def _evaluate_task(
    block: np.ndarray,
    index: TimeIndex,
    query: PairQuery,
    durations: np.ndarray,
    labels: FrameLabels,
    block_info: Any = None,
) -> np.ndarray:
    """Evaluate the pairs of one block of a Dask array, one after the other."""
    places = block_info[0]["array-location"][: len(labels.dims) - 1]
    labels = labels.select(slice(None), *(slice(*place) for place in places))
    with keep_freed_memory():
        return _evaluate_block(block, index, query, durations, labels, parallel=False)


def _evaluate_block(
    values: np.ndarray,
    index: TimeIndex,
    query: PairQuery,
    durations: np.ndarray,
    labels: FrameLabels,
    parallel: bool = True,
) -> np.ndarray:
    """Evaluate all pairs of a NumPy array, several at a time if `parallel`."""
    space = query.config.space.grid.dimension
    others, frames = values.shape[: -1 - space], values.shape[-1 - space]
    result = np.empty((*others, len(index), *query.shape), query.dtype)
    jobs = [(m, k) for m in np.ndindex(*others) for k in np.unique(index.frame).tolist()]

    def evaluate(job: int) -> None:
        member, frame = jobs[job]
        here = index.frame == frame
        pair = Pair(
            values[member][frame],
            values[member][min(frame + 1, frames - 1)],
            query.config,
            float(durations[frame]) if frame < len(durations) else np.nan,
            lambda k: labels.describe(frame + k, member),
        )
        with one_thread():
            result[member][here] = query.evaluate(pair, index.fraction[here])

    if parallel:
        contexts = [copy_context() for _ in jobs]  # progress callbacks reach the threads
        done = map_in_threads(lambda k: contexts[k].run(evaluate, k), len(jobs), cells=0)
    else:
        done = map(evaluate, range(len(jobs)))
    for count, _ in enumerate(done, 1):
        report_progress(f"pair {count:,} of {len(jobs):,}")
    return result


class _Malloc:
    """Allocator settings of the process while pairs are solved.

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
