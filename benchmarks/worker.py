"""Measure one solver on the calls of a suite, in its own process.

This module imports only modules that every solver needs: further imports belong to the set-up
time of a solver.
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
NETWORKS = "float32"  # all networks compute in single precision


@dataclass(frozen=True)
class Limits:
    """Limits of a measurement.

    Attributes:
        budget: seconds for the repeats of one call.
        repeats: number of repeats of one call, if they fit.
        pairs: number of pairs with a reference.
    """

    budget: float
    repeats: int
    pairs: int


FULL, QUICK = Limits(4.0, 9, 8), Limits(2.0, 3, 2)


@dataclass(frozen=True)
class Job:
    """The work of one process: a contestant, a suite, and the files of pairs by number of cells."""

    entrant: Contestant
    suite: Suite
    files: dict[int, Path]
    limits: Limits

    def calls(self) -> list[Call]:
        """Return the calls to measure."""
        return self.suite.calls()

    def skip(self, call_spec: Call, reason: str) -> Skipped:
        """Return the row of a call that is not measured."""
        return Skipped(**self.describe(call_spec), reason=reason)

    def describe(self, call_spec: Call) -> dict[str, Any]:
        """Return the columns that describe call and solver."""
        return {
            "suite": self.suite.name,
            "dimension": self.suite.dimension,
            **vars(call_spec),
            "label": self.entrant.label,
            "solver": self.entrant.solver,
        }


def measure_solver(job: Job) -> tuple[list[Measurement], list[Skipped]]:
    """Return the measured calls and the skipped ones."""
    warnings.simplefilter("ignore")  # early stops show in the error
    return Worker(job).run()


class Errors:
    """Errors at the quarters and of the distance, pair by pair."""

    def __init__(self, pairs: ReferencePairs):
        self.pairs = pairs
        self.l1: dict[int, Tensor] = {}
        self.w2: dict[int, float] = {}

    def record(self, k: int, answer: Answer) -> None:
        """Record the errors of the answer for a pair, once."""
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
        """Return the columns with the errors."""
        quarters = torch.stack(list(self.l1.values())).double().mean(0).tolist()
        return {
            "l1_percent": max(quarters),
            "l1_quarters": quarters,
            "w2_percent": sum(self.w2.values()) / len(self.w2) if self.w2 else None,
            "pairs_measured": len(self.l1),
        }


class Worker:
    """Measure the calls in order; the time of one decides whether larger ones are tried."""

    def __init__(self, job: Job):
        self.job = job
        self.making = 0.0  # seconds for importing and building the solver
        self.setup: float | None = None
        self.errors: dict[int, dict[str, Any]] = {}  # by the number of cells
        self.single: dict[int, float] = {}  # seconds of one pair, likewise
        self.failed: dict[int, str] = {}  # reasons, likewise
        self.slow: str | None = None  # reason for skipping all further calls
        self.start = 0.0  # the latest call

    def run(self) -> tuple[list[Measurement], list[Skipped]]:
        """Measure all calls in order."""
        rows: list[Measurement] = []
        skipped: list[Skipped] = []
        for call_spec in self.job.calls():
            reason = self.slow or self.failed.get(call_spec.cells) or self._beyond(call_spec)
            if reason is None:
                self.start = perf_counter()
                try:
                    rows.append(self._row(call_spec))
                    continue
                except Exception as error:  # a failure must not end the run
                    reason = format_error(error)
                    if call_spec.is_base:
                        self.failed[call_spec.cells] = reason
                        self._judge(call_spec, perf_counter() - self.start)
            skipped.append(self.job.skip(call_spec, reason))
        return rows, skipped

    def _row(self, call_spec: Call) -> Measurement:
        calls, dtype = self._measure(call_spec)
        values = np.quantile(calls.warm, (0.5, 0.25, 0.75, 0.0)) / call_spec.pairs
        if self.setup is None:  # the first answer of all
            extra = calls.first - float(np.median(calls.warm))
            self.setup = self.making + max(extra, 0.0)
        if call_spec.is_base:
            self.single[call_spec.cells] = float(values[0])
            self._judge(call_spec, max(calls.warm))
        entrant = self.job.entrant
        return Measurement(
            **self.job.describe(call_spec),
            options=entrant.options,
            kind=entrant.kind,
            setup_seconds=self.setup,
            seconds_per_pair=Seconds(*values.tolist()),
            repeats=len(calls.warm),
            **self.errors[call_spec.cells],
            memory_mb=calls.memory_mb,
            threads=torch.get_num_threads(),
            dtype=dtype if entrant.kind == "classical" else NETWORKS,
            training_seconds=self._training_seconds,
        )

    def _measure(self, call_spec: Call) -> tuple[Calls, str]:
        """Time the repeats of a call, record errors, and return the times and the data type."""
        suite, limits = self.job.suite, self.job.limits
        file = PairsFile(self.job.files[call_spec.cells], suite.box.with_shape(call_spec.cells))
        pairs, moments = file.pairs(), call_spec.make_times()
        given = [(pairs.source[k], pairs.target[k]) for k in range(len(pairs.source))]
        if call_spec.pairs > 1:
            given = [file.batch(call_spec.pairs)]
        errors, dtypes = Errors(pairs), []

        def call(k: int) -> Answer:
            self.start, one = perf_counter(), k % len(given)
            try:
                path = self._solver(*given[one])
                return path, path.density(moments)
            except GeonetError as error:
                if one:  # the first pair succeeded, so the error is about this pair
                    error.args = (f"Pair {one} of {len(given)}: {error}",)
                raise

        def see(k: int, answer: Answer) -> None:
            dtypes.append(answer[1].tensor.dtype)
            if call_spec.is_base:
                errors.record(k, answer)

        _ = self._solver  # built before the first call is timed
        calls = repeat_within(limits.budget, limits.repeats, call, see)
        if call_spec.is_base:
            self.errors[call_spec.cells] = errors.summary()
        return calls, str(dtypes[0]).removeprefix("torch.")

    @cached_property
    def _solver(self) -> Solver:
        start = perf_counter()
        solver = build_solver(self.job.entrant)
        self.making = perf_counter() - start
        return solver

    @cached_property
    def _training_seconds(self) -> float | None:
        """Read the training time from the header of the model file; it includes making the data."""
        file = getattr(self._solver, "file", None)
        if self.job.entrant.kind != "learned" or file is None:
            return None
        from geonet.solvers.neural.model import read_tensors  # part of its set-up before

        return read_tensors(Path(file), "a geonet model")[1].get("seconds")

    def _judge(self, call_spec: Call, seconds: float) -> None:
        """Skip larger grids if this one took too long."""
        if seconds > self.job.limits.budget:
            self.slow = f"one path on {call_spec.cells} cells a side takes about {seconds:.0f} s"

    def _beyond(self, call_spec: Call) -> str | None:
        """Return the reason for skipping a batch, or None; batched solvers always run."""
        one_by_one = type(self._solver)._solve is Solver._solve if self.single else True
        seconds = call_spec.pairs * self.single.get(call_spec.cells, 0.0)
        if call_spec.pairs > 1 and one_by_one and seconds > self.job.limits.budget:
            return f"{call_spec.pairs} pairs, one by one, take about {seconds:.0f} s"
        return None
