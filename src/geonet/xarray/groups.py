"""Groups of frames, such as the members of an ensemble, and their evaluation for a whole field.

Every group is solved by itself in one thread, so NumPy, Dask's threads and the workers of a cluster
of equal machines give the same bits.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import xarray as xr

from geonet._format import choose_verb, format_number, format_percent
from geonet._progress import report_progress
from geonet._threads import map_in_threads, one_thread
from geonet._utils import user_stacklevel
from geonet._validation import as_number, check_choice, is_number
from geonet.barycenters import Barycenter, solve_silently
from geonet.density import MASSES, Density, Mass, Missing
from geonet.errors import ConvergenceWarning, DensityError, InputError
from geonet.solvers.barycenters import BarycenterOptions, check_densities
from geonet.weights import check_weights
from geonet.xarray.coordinates import Space, TimeIndex, format_time


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


# ---- Ensembles


@dataclass(frozen=True)
class EnsembleConfig(FrameConfig):
    """Settings of the mean of an ensemble.

    Attributes:
        weights: weights of the members, (n,), with sum one.
        options: options of the barycenter; a reach is in the units of the space.
    """

    weights: tuple[float, ...] = ()
    options: BarycenterOptions = field(default_factory=BarycenterOptions)


class Ensemble(FrameGroup):
    """The members of an ensemble at one time, and their Wasserstein mean."""

    noun = "mean"

    def mean(self, fractions: np.ndarray) -> np.ndarray:
        """Return the mean of all members once for each fraction, (T, *space)."""
        members, gaps = self._filled_frames
        weights = np.array(self._config.weights)
        is_wet = np.array([member.any() for member in members])
        self._check_dry(is_wet, weights)
        total = float(weights @ self._integrate(members))
        wet = np.flatnonzero(is_wet & (weights > 0))
        frame = self._average(members[wet], weights[wet]) if len(wet) else members[0] * 0.0
        if len(wet):
            frame = frame * (
                (total if self._config.mass == "given" else 1.0) / self._integrate(frame)
            )
        frame = np.where(gaps, np.nan, frame) if gaps.any() else frame
        return np.broadcast_to(frame, (len(fractions), *frame.shape))

    def _average(self, members: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the barycenter of members with mass, up to a factor."""
        if len(members) == 1:
            return members[0]
        densities = check_densities([self._to_density(member) for member in members])
        shares = check_weights(weights / weights.sum(), len(members))
        (found,) = solve_silently(densities, shares[None], self._config.options)
        if not found.converged:
            self._warn(found)
        return np.asarray(found.density) / self._space.areas

    def _warn(self, found: Barycenter) -> None:
        """Warn that the mean did not reach the tolerance."""
        remedy = "average the field to coarser cells, or give a larger max_iterations"
        if "stopped after" in found.solution.info:
            remedy = "give a longer time_limit"
        share = format_percent(min(1.0, found.solution.residual))
        warnings.warn(
            f"The mean of {self._describe(0)} to {self._describe(len(self._frames) - 1)} did not "
            f"reach the tolerance of {format_number(100 * found.options.tolerance)} % ({share} of "
            f"the mass is not balanced); the result may be inaccurate; {remedy}.",
            ConvergenceWarning,
            stacklevel=user_stacklevel(),
        )

    def _check_dry(self, is_wet: np.ndarray, weights: np.ndarray) -> None:
        """Raise DensityError if a member without mass has no part in a balanced mean.

        Nothing can move to or from it. If all members are empty, so is their mean.
        """
        dry = np.flatnonzero(~is_wet & (weights > 0))
        if self._config.options.reach is None and 0 < len(dry) < np.count_nonzero(weights):
            raise DensityError(
                f"{self._describe(int(dry[0]))} is zero everywhere, and no mass can move to it; "
                "give a reach=..., with which it counts as zero mass, or the weight zero."
            )


def member_weights(field: xr.DataArray, dim: Hashable, weights: Any) -> tuple[float, ...]:
    """Return the checked weights of all members along a dimension."""
    count = field.sizes[dim]
    if count == 0:
        raise InputError(f"The field has no members along {dim!r}; give one or more.")
    if isinstance(weights, xr.DataArray):
        if weights.dims != (dim,):
            raise InputError(
                f"The weights lie along {', '.join(map(str, weights.dims)) or 'no dimension'}; "
                f"give an array along {dim!r}."
            )
        if dim in weights.coords and dim in field.coords:
            weights = _match_labels(weights, field, dim)
        weights = weights.values
    if weights is not None and np.shape(weights) != (count,):
        raise InputError(
            f"The field has {count} members along {dim!r} and the weights have the shape "
            f"{np.shape(weights)}; give {count} numbers."
        )
    return tuple(check_weights(weights, count).tolist())


def _match_labels(weights: xr.DataArray, field: xr.DataArray, dim: Hashable) -> xr.DataArray:
    """Return the weights in the order of the members."""
    own, labels = weights.get_index(dim), field.get_index(dim)
    if own.equals(labels):
        return weights
    if not (own.is_unique and labels.is_unique and set(own) == set(labels)):
        raise InputError(
            f"The weights and the field have different labels along {dim!r}; give one weight for "
            "each member, or weights without labels: weights.values."
        )
    return weights.sel({dim: labels})


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
    group: type[FrameGroup] = field(kw_only=True)
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
