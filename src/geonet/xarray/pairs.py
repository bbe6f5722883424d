"""Two neighbouring frames: what is missing in them, and what is between them."""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch

from geonet._advice import at_the_command_line, either, is_command_line
from geonet._progress import report_progress
from geonet._threads import one_thread
from geonet._validation import as_number, check_choice, check_instance, is_number, short_repr
from geonet.api import geodesic
from geonet.density import MASSES, Density, Mass
from geonet.errors import DensityError, InputError
from geonet.paths import Geodesic
from geonet.solvers.base import Solver
from geonet.solvers.registry import make_solver
from geonet.xarray.coordinates import Moments, Space

Missing = Literal["refuse", "exclude"] | float
Where = Callable[[int], str]  # of the first frame, 0, or the last, 1: "rain at time 12:30"

REPORTED = np.dtype(
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
class Treatment:
    """How pairs of frames are treated.

    Attributes:
        space: where they live.
        solver: a name, a model's file or a solver.
        options: of the solver.
        missing: cells without a value: "refuse" them, "exclude" them from both frames and from all
            between, or a number to fill them with.
        mass: "given", where the total goes evenly from one frame's to the next, or "one".
    """

    space: Space
    solver: str | Path | Solver = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    missing: Missing = "refuse"
    mass: Mass = "given"

    def check(self) -> None:
        """Refuse settings that make no sense, before anything is computed."""
        check_choice(self.mass, MASSES, "mass")
        check_instance(self.options, dict, "options", "give a dictionary of the solver's options")
        if not isinstance(self.solver, Solver):  # that has its own options
            make_solver(self.solver, **self.options)
        if not is_number(self.missing):
            if not isinstance(self.missing, str) or self.missing not in ("refuse", "exclude"):
                raise InputError(
                    f"missing is {short_repr(self.missing)}; give 'refuse', 'exclude' or a number."
                )
        elif not 0 <= as_number(self.missing, "missing") < np.inf:
            raise InputError(
                f"missing is {self.missing:g}; give a number from zero up to fill cells with."
            )


class Pair:
    """Two frames in double precision, as densities on the grid of their space.

    Args:
        first: the earlier frame, (*space).
        last: the later one.
        how: the treatment.
        where: names a frame in messages.
    """

    def __init__(self, first: np.ndarray, last: np.ndarray, how: Treatment, where: Where):
        self.how, self.where = how, where
        frames = [frame.astype(np.float64) for frame in (first, last)]
        holes = [np.isnan(frame) for frame in frames]
        for k, (frame, hole) in enumerate(zip(frames, holes, strict=True)):
            self._check(frame, hole, k)
        filling = how.missing if is_number(how.missing) else 0.0
        gaps = holes if is_number(how.missing) else [holes[0] | holes[1]] * 2
        self.gaps = None if is_number(how.missing) or not gaps[0].any() else gaps[0]
        self.first, self.last = (
            np.where(gap, filling, frame) for frame, gap in zip(frames, gaps, strict=True)
        )

    def _check(self, frame: np.ndarray, hole: np.ndarray, k: int) -> None:
        if self.how.missing == "refuse" and hole.any():
            remedy = either(
                "give missing='exclude' to leave them out, or a number to fill them with",
                "give --missing exclude to leave them out, or a number to fill them with",
            )
            raise DensityError(
                f"{self.where(k)} has {int(hole.sum())} of {hole.size} cells without a value; "
                f"{remedy}."
            )
        if np.isinf(frame).any():
            raise DensityError(
                f"{self.where(k)} holds {int(np.isinf(frame).sum())} infinite values; mask them: "
                ".where(np.isfinite(field))."
            )
        low = np.nanmin(frame, initial=0.0)
        if low < 0:
            raise DensityError(
                f"{self.where(k)} holds {int((frame < 0).sum())} negative values, down to "
                f"{low:g}; a density has none: .clip(min=0) makes them zero, if they are noise."
            )

    @property
    def faded(self) -> bool:
        """Whether a frame is empty: then nothing can move."""
        return not (self.first.any() and self.last.any())

    @cached_property
    def path(self) -> Geodesic:
        """The geodesic of the masses in the cells."""
        space = self.how.space
        source, target = (
            Density(frame * space.areas, space.grid) for frame in (self.first, self.last)
        )
        return geodesic(source, target, self.how.solver, **self.how.options)

    def masses(self) -> tuple[float, float]:
        """∫ of both frames over the cells."""
        return float(self._integral(self.first)), float(self._integral(self.last))

    # ---- what is asked of a pair; T shares of the way

    def frames(self, shares: np.ndarray) -> np.ndarray:
        """(T, *space)."""
        if self.faded:
            along = self._of_space(shares)
            moved = (1 - along) * self._scaled(self.first) + along * self._scaled(self.last)
        else:
            moved = self.path.density(shares.tolist()).numpy() / self.how.space.areas
            # A network's frames may have another mass than one, by as much as its report says.
            moved *= self._of_space(self._totals(shares) / self._integral(moved))
        return self._with_gaps(moved)

    def _totals(self, shares: np.ndarray) -> np.ndarray:
        """What frames hold in all, (T,): evenly from the first one's to the last one's."""
        if self.how.mass == "one":
            return np.ones(len(shares))
        first, last = self.masses()
        return (1 - shares) * first + shares * last

    def _integral(self, values: np.ndarray) -> np.ndarray:
        """∫ over the cells of values (…, *space), (…)."""
        space = self.how.space
        cells = tuple(range(-space.grid.dimension, 0))
        return (values * space.areas).sum(axis=cells) * space.grid.cell_volume

    def _of_space(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers (T,) as (T, 1, …), beside frames."""
        return numbers.reshape(-1, *(1,) * self.first.ndim)

    def start(self) -> np.ndarray:
        """The earlier frame, (*space)."""
        return self._with_gaps(self._scaled(self.first))

    def _scaled(self, frame: np.ndarray) -> np.ndarray:
        """A frame of the mass that is asked for; an empty one stays empty."""
        if self.how.mass == "given" or not frame.any():
            return frame
        return frame / self._integral(frame)

    def velocities(self, shares: np.ndarray, duration: float) -> np.ndarray:
        """(T, d, *space), per unit of time; unknown where a pair fades."""
        space = self.how.space
        if self.faded:
            return np.full((len(shares), space.grid.dimension, *space.grid.shape), np.nan)
        found = self.path.velocity(shares.tolist(), space.grid.points()).numpy()
        parts = [found[..., k] * speed / duration for k, speed in enumerate(space.speeds)]
        return self._with_gaps(np.stack(parts, axis=1))

    def distance(self) -> float:
        """W2 in the units of the space."""
        return np.nan if self.faded else float(self.path.distance)

    def report(self) -> np.ndarray:
        """What can be said of the pair, of the type `REPORTED`."""
        line = np.zeros((), REPORTED)
        masses = self.masses()
        line["source_mass"], line["target_mass"], line["faded"] = *masses, self.faded
        names: Sequence[str] = REPORTED.names or ()
        known = {} if self.faded else self.path.report.to_dict()
        for name in names[1:5]:
            line[name] = np.nan if known.get(name) is None else known[name]
        line["solver"] = known.get("solver", "fade")
        line["converged"] = known.get("notes", {}).get("converged", True)
        return line

    def _with_gaps(self, values: np.ndarray) -> np.ndarray:
        return values if self.gaps is None else np.where(self.gaps, np.nan, values)


# ---- What can be asked of every pair of neighbouring frames.


NUMBER, TRUTH = np.dtype(float), np.dtype(bool)


@dataclass(frozen=True)
class Question(ABC):
    """Asked of a pair at some shares of its way.

    Attributes:
        how: pairs are treated.
        dtype: of the answers.
    """

    how: Treatment
    dtype: np.dtype = NUMBER

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the answer for one moment."""
        return ()

    @abstractmethod
    def answer(
        self, first: np.ndarray, last: np.ndarray, shares: np.ndarray, length: float, where: Where
    ) -> np.ndarray:
        """(T, *shape).

        Args:
            first: the earlier frame, (*space).
            last: the later frame.
            shares: of the way, (T,); NaN for a moment that is outside.
            length: of the way, in time.
            where: names the earlier frame, 0, or the later, 1.
        """


@dataclass(frozen=True)
class Frames(Question):
    """The field itself. Where a moment is a frame's time, that frame bit for bit."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.how.space.grid.shape

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        frames = np.full((len(shares), *self.shape), np.nan, self.dtype)
        between = shares > 0
        if between.any():
            frames[between] = Pair(first, last, self.how, where).frames(shares[between])
        given = self.how.mass == "given"
        if (shares == 0).any():
            frames[shares == 0] = first if given else Pair(first, first, self.how, where).start()
        return frames


@dataclass(frozen=True)
class Velocities(Question):
    """How fast it moves, along each axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        grid = self.how.space.grid
        return (grid.dimension, *grid.shape)

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        velocities = np.full((len(shares), *self.shape), np.nan, self.dtype)
        inside = ~np.isnan(shares)
        if inside.any():
            pair = Pair(first, last, self.how, where)
            velocities[inside] = pair.velocities(shares[inside], length)
        return velocities


@dataclass(frozen=True)
class Faded(Question):
    """Whether a moment lies between two frames of which one is empty."""

    dtype: np.dtype = TRUTH

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        between = shares > 0
        return between & (between.any() and Pair(first, last, self.how, where).faded)


@dataclass(frozen=True)
class Distances(Question):
    """W2 from each frame to the next."""

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        return np.full(len(shares), Pair(first, last, self.how, where).distance())


@dataclass(frozen=True)
class Reports(Question):
    """What can be said of each pair."""

    dtype: np.dtype = REPORTED

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        return np.full(len(shares), Pair(first, last, self.how, where).report())


# ---- Memory that a worker of Dask keeps from one pair to the next.
#
# Dask starts its workers with MALLOC_TRIM_THRESHOLD_=65536: then glibc gives every freed array back
# at once, and the next array of the same size is new pages, which the system has to clear. Solving a
# pair makes and frees hundreds of arrays, so workers spend much of their time on that.


SETTING = "MALLOC_TRIM_THRESHOLD_"
TRIM, MMAP = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
KEPT, LARGEST = 2**27, 2**25  # bytes: free memory that is kept, and the largest array for that
USUAL = 2**17  # bytes: glibc's own for the latter, where the former is set

_lock, _users = Lock(), 0


@contextmanager
def memory_kept() -> Iterator[None]:
    """Keep freed memory meanwhile, where Dask's setting is in force, and give it back after."""
    setting = os.environ.get(SETTING, "")
    library = ctypes.CDLL(None) if setting.isdigit() and os.name == "posix" else None
    if library is None or not hasattr(library, "mallopt"):
        yield
        return
    _count(library, 1)
    try:
        yield
    finally:
        _count(library, -1)


def _count(library: ctypes.CDLL, more: int) -> None:
    """The first that enters changes the settings of the process, the last puts them back."""
    global _users
    with _lock:
        first, _users = _users == 0, _users + more
        if first:
            library.mallopt(TRIM, KEPT)
            library.mallopt(MMAP, LARGEST)
        elif _users == 0:
            library.mallopt(TRIM, int(os.environ[SETTING]))
            library.mallopt(MMAP, USUAL)
            library.malloc_trim(ctypes.c_size_t(0))


# ---- All pairs of a field: at once for an array in memory, block by block where Dask holds it.
#
# Every pair is solved by itself, by one thread, wherever it is solved: so the same bits come from
# memory, from Dask's threads and from the workers of a cluster of equal machines.


@dataclass(frozen=True)
class Labels:
    """Names for messages.

    Attributes:
        field: the name of the field.
        time: the name of the dimension.
        times: of the frames, (n,).
        others: the name and the labels of every further dimension.
    """

    field: str
    time: str
    times: np.ndarray
    others: tuple[tuple[str, np.ndarray], ...] = ()

    def of(self, index: tuple[int, ...], frame: int) -> str:
        """One frame: rain at time 2026-07-01T12:30:00, member 3."""
        others = zip(self.others, index, strict=True)
        places = [(self.time, self.times[frame]), *((name, all[k]) for (name, all), k in others)]
        return f"{self.field} at {', '.join(f'{name} {label}' for name, label in places)}"

    def part(self, others: list[slice], frames: slice) -> Labels:
        """Those of a part of the field."""
        named = zip(self.others, others, strict=True)
        kept = tuple((name, labels[part]) for (name, labels), part in named)
        return replace(self, times=self.times[frames], others=kept)


def answered(
    values: Any, moments: Moments, question: Question, lengths: np.ndarray, labels: Labels
) -> Any:
    """The answers for all moments, (*others, T, *question.shape).

    Args:
        values: of the field, (*others, n, *space), a NumPy or a Dask array; of a Dask array nothing
            is computed yet.
        moments: between the n frames.
        question: what is asked.
        lengths: of the pairs in time, (n − 1,).
        labels: for messages.
    """
    if hasattr(values, "dask"):
        return _lazily(values, moments, question, lengths, labels)
    known = np.asarray(values)
    return _at_once(known, moments, question, lengths, labels, torch.get_num_threads())


def _at_once(
    values: np.ndarray,
    moments: Moments,
    question: Question,
    lengths: np.ndarray,
    labels: Labels,
    workers: int,
) -> np.ndarray:
    """Solve all pairs, several of them at a time where there are several workers."""
    space = question.how.space.grid.dimension
    others, frames = values.shape[: -1 - space], values.shape[-1 - space]
    answers = np.empty((*others, len(moments), *question.shape), question.dtype)

    def solve(job: tuple[tuple[int, ...], int]) -> None:
        index, frame = job
        here = moments.frame == frame
        ends = values[index][frame], values[index][min(frame + 1, frames - 1)]
        length = lengths[frame] if frame < len(lengths) else np.nan
        with one_thread():
            answers[index][here] = question.answer(
                *ends, moments.share[here], length, lambda k: labels.of(index, frame + k)
            )

    asked = np.unique(moments.frame).tolist()
    jobs = [(index, frame) for index in np.ndindex(*others) for frame in asked]
    for done, _ in enumerate(_each(solve, jobs, workers), 1):
        report_progress(f"pair {done:,} of {len(jobs):,}")
    return answers


def _each(work: Any, jobs: list[Any], workers: int) -> Iterator[None]:
    """Do all jobs; threads see the settings of the one that starts them."""
    if workers == 1 or len(jobs) == 1:
        yield from map(work, jobs)
        return
    contexts = [copy_context() for _ in jobs]
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(lambda context, job: context.run(work, job), contexts, jobs)


def _lazily(
    values: Any, moments: Moments, question: Question, lengths: np.ndarray, labels: Labels
) -> Any:
    """One task for each chunk of time: it takes its frames and the first of the next chunk."""
    import dask.array

    axis = values.ndim - 1 - question.how.space.grid.dimension
    values = values.rechunk({k: -1 for k in range(axis + 1, values.ndim)})
    order = np.argsort(moments.frame, kind="stable")
    ends = np.cumsum(values.chunks[axis])
    chunk = np.searchsorted(ends, moments.frame, side="right")
    parts = [
        _task(values, axis, moments, order[chunk[order] == k], question, lengths, labels)
        for k in np.unique(chunk)
    ]
    answers = dask.array.concatenate(parts, axis=axis)
    if (np.diff(order) == 1).all():
        return answers
    return dask.array.take(answers, np.argsort(order), axis=axis)


def _task(
    values: Any,
    axis: int,
    moments: Moments,
    which: np.ndarray,
    question: Question,
    lengths: np.ndarray,
    labels: Labels,
) -> Any:
    """The answers for the moments numbered `which`, from just the frames that they need."""
    import dask.array

    frames = values.shape[axis]
    first = int(moments.frame[which].min())
    needed = slice(first, min(int(moments.frame[which].max()) + 2, frames))
    block = values[(slice(None),) * axis + (needed,)].rechunk({axis: -1})
    space = range(axis + 1, values.ndim)
    shape = question.shape
    chunks = (*values.chunks[:axis], (len(which),), *((n,) for n in shape))
    kept = len(shape) >= len(space)  # else answers are numbers, one for each moment
    return dask.array.map_blocks(
        _solve_block,
        block,
        moments.chosen(which, first),
        question,
        lengths[needed.start : needed.stop - 1],
        labels.part([slice(None)] * axis, needed),
        is_command_line(),
        dtype=question.dtype,
        chunks=chunks,
        drop_axis=[] if kept else list(space),
        new_axis=[axis + 1] if len(shape) > len(space) else None,
        meta=np.empty((0,) * len(chunks), question.dtype),
    )


def _solve_block(
    block: np.ndarray,
    moments: Moments,
    question: Question,
    lengths: np.ndarray,
    labels: Labels,
    for_command_line: bool,
    block_info: Any = None,
) -> np.ndarray:
    """What Dask calls: one of its threads solves the pairs of a block one after the other."""
    places = block_info[0]["array-location"][: len(labels.others)]
    here = labels.part([slice(*place) for place in places], slice(None))
    with memory_kept(), at_the_command_line() if for_command_line else nullcontext():
        return _at_once(block, moments, question, lengths, here, workers=1)
