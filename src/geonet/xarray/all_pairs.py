"""All pairs of a field: at once for an array in memory, block by block where Dask holds it.

Every pair is solved by itself, by one thread, wherever it is solved: so the same bits come from
memory, from Dask's threads and from the workers of a cluster of equal machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from geonet.advice import at_the_command_line, is_command_line
from geonet.progress import tell
from geonet.threads import one_thread
from geonet.xarray.kept_memory import memory_kept
from geonet.xarray.moments import Moments
from geonet.xarray.questions import Question


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
        tell(f"pair {done:,} of {len(jobs):,}")
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
