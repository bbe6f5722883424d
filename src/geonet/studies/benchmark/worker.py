"""One solver through the settings of a suite, in a process of its own.

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

from geonet.errors import GeonetError, SolverError, UnavailableError
from geonet.evaluation.suites import Pairs
from geonet.evaluation.timing import Calls, calls_within
from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.measures.metrics import l1
from geonet.solvers.base import Solver
from geonet.solvers.registry import make_solver, register, solver_names
from geonet.studies.benchmark.entrants import Entrant
from geonet.studies.benchmark.process import told
from geonet.studies.benchmark.result import Row, Seconds, Skipped
from geonet.studies.benchmark.suites import PairsFile, Setting, Suite

Answer = tuple[Geodesic, Density]
NETWORKS = "float32"  # in which all of them compute, whatever they answer in


@dataclass(frozen=True)
class Limits:
    """How much is measured.

    Attributes:
        budget: seconds for the repeats of one setting.
        repeats: of one setting, if they fit.
        pairs: with a truth.
    """

    budget: float
    repeats: int
    pairs: int


FULL, QUICK = Limits(10.0, 16, 16), Limits(4.0, 5, 4)


@dataclass(frozen=True)
class Job:
    """What a process is told: who, what, and where the pairs are, by the number of cells."""

    entrant: Entrant
    suite: Suite
    files: dict[int, Path]
    limits: Limits

    def settings(self) -> list[Setting]:
        """What is measured of this solver; of one that is trained for every pair, the least."""
        if self.entrant.kind == "per-pair":
            return [Setting(self.suite.reference)]
        return self.suite.settings()

    def skipped(self, setting: Setting, reason: str) -> Skipped:
        """A setting left out."""
        return Skipped(**self.named(setting), reason=reason)

    def named(self, setting: Setting) -> dict[str, Any]:
        """What a row says about setting and solver."""
        return {
            "suite": self.suite.name,
            "dimension": self.suite.dimension,
            **vars(setting),
            "label": self.entrant.label,
            "solver": self.entrant.solver,
        }


def measured(job: Job) -> tuple[list[Row], list[Skipped]]:
    """The settings that were measured, and those that were not."""
    warnings.simplefilter("ignore")  # of what stopped early; its error shows it
    return Worker(job).run()


class Errors:
    """Errors at the quarters and of the distance, pair by pair."""

    def __init__(self, pairs: Pairs):
        self.pairs = pairs
        self.l1: dict[int, Tensor] = {}
        self.w2: dict[int, float] = {}

    def see(self, k: int, answer: Answer) -> None:
        """The answer for a pair, unless it was seen before."""
        k %= len(self.pairs.source)
        if k in self.l1:
            return
        path, frames = answer
        self.l1[k] = 100 * l1(frames, self.pairs.truth[k])
        if not bool(torch.isfinite(self.l1[k]).all()):
            raise SolverError("The densities are not finite; give the solver other options.")
        try:
            off = float(path.distance.detach() / self.pairs.distance[k] - 1)
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
    """Goes through the settings; what it learns from one decides about the next."""

    def __init__(self, job: Job):
        self.job = job
        self.making = 0.0  # seconds of importing and making the solver
        self.setup: float | None = None
        self.errors: dict[int, dict[str, Any]] = {}  # by the number of cells
        self.single: dict[int, float] = {}  # seconds of one pair, likewise
        self.refused: dict[int, str] = {}  # why there are none, likewise
        self.slow: str | None = None  # why all that follow are left out
        self.began = 0.0  # the latest call

    def run(self) -> tuple[list[Row], list[Skipped]]:
        """All settings in their order."""
        rows: list[Row] = []
        skipped: list[Skipped] = []
        for setting in self.job.settings():
            reason = self.slow or self.refused.get(setting.cells) or self._beyond(setting)
            if reason is None:
                self.began = perf_counter()
                try:
                    rows.append(self._row(setting))
                    continue
                except Exception as error:  # one solver's failure must not cost the others' rows
                    reason = told(error)
                    if setting.is_base:
                        self.refused[setting.cells] = reason
                        self._judge(setting, perf_counter() - self.began)
            skipped.append(self.job.skipped(setting, reason))
        return rows, skipped

    def _row(self, setting: Setting) -> Row:
        calls, dtype = self._measure(setting)
        values = np.quantile(calls.warm, (0.5, 0.25, 0.75, 0.0)) / setting.pairs
        if self.setup is None:  # the first answer of all
            extra = calls.first - float(np.median(calls.warm))
            self.setup = self.making + max(extra, 0.0)
        if setting.is_base:
            self.single[setting.cells] = float(values[0])
            self._judge(setting, max(calls.warm))
        entrant = self.job.entrant
        return Row(
            **self.job.named(setting),
            options=entrant.options,
            kind=entrant.kind,
            setup_seconds=self.setup,
            seconds_per_pair=Seconds(*values.tolist()),
            repeats=len(calls.warm),
            **self.errors[setting.cells],
            memory_mb=calls.memory_mb,
            threads=torch.get_num_threads(),
            dtype=dtype if entrant.kind == "classical" else NETWORKS,
            training_seconds=self._training_seconds,
        )

    def _measure(self, setting: Setting) -> tuple[Calls, str]:
        """The calls of a setting and the type of their answers; errors are kept on the way."""
        suite, limits = self.job.suite, self.job.limits
        file = PairsFile(self.job.files[setting.cells], suite.box.with_shape(setting.cells))
        pairs, moments = file.pairs(), setting.moments()
        given = [(pairs.source[k], pairs.target[k]) for k in range(len(pairs.source))]
        if setting.pairs > 1:
            given = [file.batch(setting.pairs)]
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
            dtypes.append(answer[1].values.dtype)
            if setting.is_base:
                errors.see(k, answer)

        _ = self._solver  # made before the clock of the first call
        calls = calls_within(limits.budget, limits.repeats, call, see)
        if setting.is_base:
            self.errors[setting.cells] = errors.summary()
        return calls, str(dtypes[0]).removeprefix("torch.")

    @cached_property
    def _solver(self) -> Solver:
        entrant, began = self.job.entrant, perf_counter()
        if entrant.location is not None and entrant.solver not in solver_names():
            register(entrant.solver, entrant.location)
        solver = make_solver(entrant.solver, **entrant.options)
        self.making = perf_counter() - began
        return solver

    @cached_property
    def _training_seconds(self) -> float | None:
        """From the header of the model's file; making the data is part of it."""
        file = getattr(self._solver, "file", None)
        if self.job.entrant.kind != "learned" or file is None:
            return None
        from geonet.operators.model_file import read_tensors  # part of its set-up before

        return read_tensors(Path(file), "a geonet model")[1].get("seconds")

    def _judge(self, setting: Setting, seconds: float) -> None:
        """Whether larger grids are worth a try."""
        if seconds > self.job.limits.budget:
            self.slow = f"one path on {setting.cells} cells a side takes about {seconds:.0f} s"

    def _beyond(self, setting: Setting) -> str | None:
        """Why a batch is not tried; a solver with a batched form always is."""
        one_by_one = type(self._solver)._solve is Solver._solve if self.single else True
        seconds = setting.pairs * self.single.get(setting.cells, 0.0)
        if setting.pairs > 1 and one_by_one and seconds > self.job.limits.budget:
            return f"{setting.pairs} pairs, one by one, take about {seconds:.0f} s"
        return None
