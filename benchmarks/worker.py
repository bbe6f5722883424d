"""One solver through the calls of a suite, in a process of its own.

So what it imports, keeps and allocates is its own too. This module imports no more than every
solver needs: what a solver needs besides belongs to its set-up.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.contestants import Contestant, build_solver
from benchmarks.process import format_error
from benchmarks.records import Measurement, Seconds, Skipped
from benchmarks.suites import Call, PairsFile, Suite
from benchmarks.timing import Calls, repeat_within
from geonet.density import Density
from geonet.errors import GeonetError, SolverError, UnavailableError
from geonet.evaluation import ReferencePairs
from geonet.metrics import l1_tensor
from geonet.paths import Geodesic
from geonet.solvers.base import Solver

Answer = tuple[Geodesic, Density]
NETWORKS = "float32"  # in which all of them compute, whatever they answer in


@dataclass(frozen=True)
class Limits:
    """How much is measured.

    Attributes:
        budget: seconds for the repeats of one call.
        repeats: of one call, if they fit.
        pairs: with a truth.
    """

    budget: float
    repeats: int
    pairs: int


FULL, QUICK = Limits(10.0, 16, 16), Limits(4.0, 5, 4)


@dataclass(frozen=True)
class Job:
    """What a process is told: who, what, and where the pairs are, by the number of cells."""

    entrant: Contestant
    suite: Suite
    files: dict[int, Path]
    limits: Limits

    def calls(self) -> list[Call]:
        """What is measured of this solver; of one that is trained for every pair, the least."""
        if self.entrant.kind == "per-pair":
            return [Call(self.suite.reference)]
        return self.suite.calls()

    def skipped(self, asked: Call, reason: str) -> Skipped:
        """A call left out."""
        return Skipped(**self.named(asked), reason=reason)

    def named(self, asked: Call) -> dict[str, Any]:
        """What a row says about call and solver."""
        return {
            "suite": self.suite.name,
            "dimension": self.suite.dimension,
            **vars(asked),
            "label": self.entrant.label,
            "solver": self.entrant.solver,
        }


def measure_solver(job: Job) -> tuple[list[Measurement], list[Skipped]]:
    """The calls that were measured, and those that were not."""
    warnings.simplefilter("ignore")  # of what stopped early; its error shows it
    return Worker(job).run()


class Errors:
    """Errors at the quarters and of the distance, pair by pair."""

    def __init__(self, pairs: ReferencePairs):
        self.pairs = pairs
        self.l1: dict[int, Tensor] = {}
        self.w2: dict[int, float] = {}

    def see(self, k: int, answer: Answer) -> None:
        """The answer for a pair, unless it was seen before."""
        k %= len(self.pairs.source)
        if k in self.l1:
            return
        path, frames = answer
        self.l1[k] = 100 * l1_tensor(frames, self.pairs.truth[k])
        if not bool(torch.isfinite(self.l1[k]).all()):
            raise SolverError("The densities are not finite; give the solver other options.")
        try:
            off = float(path._distance() / self.pairs.distance[k] - 1)
        except UnavailableError:
            return
        if math.isfinite(off):
            self.w2[k] = 100 * abs(off)

    def summary(self) -> dict[str, Any]:
        """What a row says about them."""
        quarters = torch.stack(list(self.l1.values())).double().mean(0).tolist()
        return {
            "l1_percent": max(quarters),
            "l1_quarters": quarters,
            "w2_percent": sum(self.w2.values()) / len(self.w2) if self.w2 else None,
            "pairs_measured": len(self.l1),
        }


class Worker:
    """Goes through the calls; what it learns from one decides about the next."""

    def __init__(self, job: Job):
        self.job = job
        self.making = 0.0  # seconds of importing and making the solver
        self.setup: float | None = None
        self.errors: dict[int, dict[str, Any]] = {}  # by the number of cells
        self.single: dict[int, float] = {}  # seconds of one pair, likewise
        self.refused: dict[int, str] = {}  # why there are none, likewise
        self.slow: str | None = None  # why all that follow are left out
        self.began = 0.0  # the latest call

    def run(self) -> tuple[list[Measurement], list[Skipped]]:
        """All calls in their order."""
        rows: list[Measurement] = []
        skipped: list[Skipped] = []
        for asked in self.job.calls():
            reason = self.slow or self.refused.get(asked.cells) or self._beyond(asked)
            if reason is None:
                self.began = perf_counter()
                try:
                    rows.append(self._row(asked))
                    continue
                except Exception as error:  # one solver's failure must not cost the others' rows
                    reason = format_error(error)
                    if asked.is_base:
                        self.refused[asked.cells] = reason
                        self._judge(asked, perf_counter() - self.began)
            skipped.append(self.job.skipped(asked, reason))
        return rows, skipped

    def _row(self, asked: Call) -> Measurement:
        calls, dtype = self._measure(asked)
        values = np.quantile(calls.warm, (0.5, 0.25, 0.75, 0.0)) / asked.pairs
        if self.setup is None:  # the first answer of all
            extra = calls.first - float(np.median(calls.warm))
            self.setup = self.making + max(extra, 0.0)
        if asked.is_base:
            self.single[asked.cells] = float(values[0])
            self._judge(asked, max(calls.warm))
        entrant = self.job.entrant
        return Measurement(
            **self.job.named(asked),
            options=entrant.options,
            kind=entrant.kind,
            setup_seconds=self.setup,
            seconds_per_pair=Seconds(*values.tolist()),
            repeats=len(calls.warm),
            **self.errors[asked.cells],
            memory_mb=calls.memory_mb,
            threads=torch.get_num_threads(),
            dtype=dtype if entrant.kind == "classical" else NETWORKS,
            training_seconds=self._training_seconds,
        )

    def _measure(self, asked: Call) -> tuple[Calls, str]:
        """The repeats of a call and the type of their answers; errors are kept on the way."""
        suite, limits = self.job.suite, self.job.limits
        file = PairsFile(self.job.files[asked.cells], suite.box.with_shape(asked.cells))
        pairs, moments = file.pairs(), asked.moments()
        given = [(pairs.source[k], pairs.target[k]) for k in range(len(pairs.source))]
        if asked.pairs > 1:
            given = [file.batch(asked.pairs)]
        errors, dtypes = Errors(pairs), []

        def call(k: int) -> Answer:
            self.began, one = perf_counter(), k % len(given)
            try:
                path = self._solver(*given[one])
                return path, path.density(moments)
            except GeonetError as error:
                if one:  # what the first was not refused for is about this pair
                    error.args = (f"Pair {one} of {len(given)}: {error}",)
                raise

        def see(k: int, answer: Answer) -> None:
            dtypes.append(answer[1].tensor.dtype)
            if asked.is_base:
                errors.see(k, answer)

        _ = self._solver  # made before the clock of the first call
        calls = repeat_within(limits.budget, limits.repeats, call, see)
        if asked.is_base:
            self.errors[asked.cells] = errors.summary()
        return calls, str(dtypes[0]).removeprefix("torch.")

    @cached_property
    def _solver(self) -> Solver:
        began = perf_counter()
        solver = build_solver(self.job.entrant)
        self.making = perf_counter() - began
        return solver

    @cached_property
    def _training_seconds(self) -> float | None:
        """From the header of the model's file; making the data is part of it."""
        file = getattr(self._solver, "file", None)
        if self.job.entrant.kind != "learned" or file is None:
            return None
        from geonet.solvers.neural.model import read_tensors  # part of its set-up before

        return read_tensors(Path(file), "a geonet model")[1].get("seconds")

    def _judge(self, asked: Call, seconds: float) -> None:
        """Whether larger grids are worth a try."""
        if seconds > self.job.limits.budget:
            self.slow = f"one path on {asked.cells} cells a side takes about {seconds:.0f} s"

    def _beyond(self, asked: Call) -> str | None:
        """Why a batch is not tried; a solver with a batched form always is."""
        one_by_one = type(self._solver)._solve is Solver._solve if self.single else True
        seconds = asked.pairs * self.single.get(asked.cells, 0.0)
        if asked.pairs > 1 and one_by_one and seconds > self.job.limits.budget:
            return f"{asked.pairs} pairs, one by one, take about {seconds:.0f} s"
        return None
