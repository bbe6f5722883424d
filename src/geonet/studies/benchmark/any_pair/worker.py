"""One solver through the pairs of the suite, in a process of its own."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from geonet.errors import SolverError, UnavailableError
from geonet.geodesics.base import QUARTERS, Geodesic
from geonet.measures.density import Density
from geonet.measures.metrics import block_l1
from geonet.solvers.base import Solver
from geonet.studies.benchmark.any_pair.references import Known, References, between
from geonet.studies.benchmark.any_pair.result import Answer, Unanswered
from geonet.studies.benchmark.any_pair.suite import AnySuite, Pair, read_pairs
from geonet.studies.benchmark.entrants import Entrant, made
from geonet.studies.benchmark.process import told

SHORT = 1.0  # seconds: what takes longer is timed once

Ends = tuple[Density, Density]
Found = tuple[list[Answer], list[Unanswered]]


@dataclass(frozen=True)
class AnyJob:
    """What a process is told: who, what, where the pairs are and what they are compared with.

    Files and references are by the number of cells of the pairs.
    """

    entrant: Entrant
    suite: AnySuite
    files: dict[int, Path]
    references: dict[int, References]

    def unanswered(self, cells: int, pair: Pair, reason: str) -> Unanswered:
        """A pair left out."""
        return Unanswered(cells, *pair, self.entrant.label, self.entrant.solver, reason)

    def all_unanswered(self, reason: str) -> Found:
        """Every pair left out."""
        each = [(cells, pair) for cells in self.suite.finer for pair in self.suite.each()]
        return [], [self.unanswered(cells, pair, reason) for cells, pair in each]


def measured(job: AnyJob) -> Found:
    """The pairs that were measured, and those that were not."""
    warnings.simplefilter("ignore")  # of what stopped early; its error shows it
    try:
        solver = made(job.entrant)
    except Exception as error:  # it is not registered, or its package is not installed
        return job.all_unanswered(told(error))
    return Worker(job, solver).run()


class Worker:
    """Goes through the pairs; what it learns from one decides about the next."""

    def __init__(self, job: AnyJob, solver: Solver):
        self.job, self.solver = job, solver
        self.answers: list[Answer] = []
        self.unanswered: list[Unanswered] = []
        self.slow: dict[str, str] = {}  # why a kind is not tried on larger grids

    def run(self) -> Found:
        """All pairs, the smaller grids first."""
        for cells, file in self.job.files.items():
            pairs = read_pairs(file, cells)
            self._warm_up(next(iter(pairs.values())))
            for kind in self.job.suite.kinds:
                own = {pair: ends for pair, ends in pairs.items() if pair[0] == kind}
                self._kind(cells, kind, own)
        return self.answers, self.unanswered

    def _warm_up(self, ends: Ends) -> None:
        """A call that is not timed: it may compile, and read models; unless all is slow already."""
        if len(self.slow) < len(self.job.suite.kinds):
            try:
                self._solved(ends)
            except Exception:  # it fails again, where it is told
                return

    def _kind(self, cells: int, kind: str, pairs: dict[Pair, Ends]) -> None:
        """The pairs of a kind on a grid, as many as the budget allows."""
        spent, slow, budget = 0.0, self.slow.get(kind), self.job.suite.budget
        for number, (pair, ends) in enumerate(pairs.items()):
            over = f"the {budget:g} s for a kind are spent after {number} of {len(pairs)} pairs"
            reason = slow or (over if spent > budget else None)
            if reason is None:
                began, answer = perf_counter(), None
                try:
                    answer = self._answer(cells, pair, ends)
                    self.answers.append(answer)
                except Exception as error:  # one pair's failure must not cost the others' rows
                    reason = told(error)
                # The report is not what is timed, and does not count either.
                seconds = answer.seconds * answer.repeats if answer else perf_counter() - began
                spent += seconds
                if seconds > budget:
                    self.slow[kind] = f"a pair on {cells}² cells takes about {seconds:.0f} s"
            if reason is not None:
                self.unanswered.append(self.job.unanswered(cells, pair, reason))

    def _answer(self, cells: int, pair: Pair, ends: Ends) -> Answer:
        known = self.job.references[cells][pair]
        if not isinstance(known, Known):
            raise SolverError(f"There is no reference: {known}")
        path, frames, times = self._timed(ends)
        errors = (100 * block_l1(between(frames), known.density()).double()).tolist()
        if not all(map(math.isfinite, errors)):
            raise SolverError("The densities are not finite; give the solver other options.")
        entrant = self.job.entrant
        return Answer(
            cells,
            *pair,
            label=entrant.label,
            solver=entrant.solver,
            answered_by=path.solver,
            seconds=median(times),
            repeats=len(times),
            reference=known.reference.distance,
            w2_percent=_off(path, known.reference.distance),
            l1_percent=errors,
            **_reported(path),
        )

    def _timed(self, ends: Ends) -> tuple[Geodesic, Density, list[float]]:
        """Path, frames and the seconds of each repeat; what is not short is not repeated."""
        times: list[float] = []
        while True:
            began = perf_counter()
            path, frames = self._solved(ends)
            times.append(perf_counter() - began)
            if len(times) == self.job.suite.repeats or times[0] > SHORT:
                return path, frames, times

    def _solved(self, ends: Ends) -> tuple[Geodesic, Density]:
        path = self.solver(*ends)
        return path, path.density(QUARTERS)


def _off(path: Geodesic, reference: float) -> float | None:
    """By how many percent W2 differs; None if the path gives none."""
    try:
        off = 100 * (float(path.distance.detach()) / reference - 1)
    except UnavailableError:
        return None
    return off if math.isfinite(off) else None


def _reported(path: Geodesic) -> dict[str, Any]:
    """What the path says of itself."""
    report = path.report
    estimate = report.error_estimate
    return {
        "bounds": [report.distance_lower_bound, report.distance_upper_bound],
        "estimate_percent": None if estimate is None else 100 * estimate,  # pyright: ignore
    }
