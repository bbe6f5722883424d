"""The suite `any`: references first, then one solver after the other."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.any_pair.records import Answer, AnyPairs, Unanswered
from benchmarks.any_pair.suite import (
    ANY,
    AnySuite,
    KnownPath,
    Pair,
    ReferenceJob,
    References,
    take_interior,
    read_pairs,
    solve_references,
)
from benchmarks.contestants import Contestant, build_solver
from benchmarks.process import run_in_process, format_error
from benchmarks.results import record_provenance
from geonet.density import Density
from geonet.errors import GeonetError, SolverError, UnavailableError
from geonet.metrics import block_l1
from geonet.paths import QUARTERS, Geodesic
from geonet.solvers.base import Solver

# ---- One solver through the pairs of the suite, in a process of its own.


SHORT = 1.0  # seconds: what takes longer is timed once

Ends = tuple[Density, Density]
Found = tuple[list[Answer], list[Unanswered]]


@dataclass(frozen=True)
class AnyJob:
    """What a process is told: who, what, where the pairs are and what they are compared with.

    Files and references are by the number of cells of the pairs.
    """

    entrant: Contestant
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


def measure_solver(job: AnyJob) -> Found:
    """The pairs that were measured, and those that were not."""
    warnings.simplefilter("ignore")  # of what stopped early; its error shows it
    try:
        solver = build_solver(job.entrant)
    except Exception as error:  # it is not registered, or its package is not installed
        return job.all_unanswered(format_error(error))
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
                    reason = format_error(error)
                # The report is not what is timed, and does not count either.
                seconds = answer.seconds * answer.repeats if answer else perf_counter() - began
                spent += seconds
                if seconds > budget:
                    self.slow[kind] = f"a pair on {cells}² cells takes about {seconds:.0f} s"
            if reason is not None:
                self.unanswered.append(self.job.unanswered(cells, pair, reason))

    def _answer(self, cells: int, pair: Pair, ends: Ends) -> Answer:
        known = self.job.references[cells][pair]
        if not isinstance(known, KnownPath):
            raise SolverError(f"There is no reference: {known}")
        path, frames, times = self._timed(ends)
        errors = (100 * block_l1(take_interior(frames), known.density())).tolist()
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
            w2_percent=_compare_distance(path, known.reference.distance),
            l1_percent=errors,
            **_read_report(path),
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


def _compare_distance(path: Geodesic, reference: float) -> float | None:
    """By how many percent W2 differs; None if the path gives none."""
    try:
        off = 100 * (float(path.distance) / reference - 1)
    except UnavailableError:
        return None
    return off if math.isfinite(off) else None


def _read_report(path: Geodesic) -> dict[str, Any]:
    """What the path says of itself."""
    report = path.report
    estimate = report.error_estimate
    return {
        "bounds": [report.distance_lower_bound, report.distance_upper_bound],
        "estimate_percent": None if estimate is None else 100 * estimate,  # pyright: ignore
    }


Log = Callable[[str], None]
MODULES = (__name__,)  # where its measurement begins, see `geonet.evaluation.sources`


def run_any_pairs(suite: AnySuite, own: Sequence[Contestant], tell: Log = lambda line: None) -> AnyPairs:
    """Measure; `tell` is given a line when a grid of references or a solver is done."""
    stamped = record_provenance()
    fine = _solve_references(suite, tell)
    answers, unanswered = [], []
    with TemporaryDirectory() as folder:
        files = suite.write_pairs(Path(folder))
        for number, entrant in enumerate(own, 1):
            began = perf_counter()
            found = _measure(AnyJob(entrant, suite, files, fine))
            answers += found[0]
            unanswered += found[1]
            left = f", {len(found[1])} left out" if found[1] else ""
            done = f"{ANY} {number}/{len(own)} {entrant.label}: {len(found[0])} pairs{left}"
            tell(f"{done}, {perf_counter() - began:.0f} s")
    known = [one for found in fine.values() for one in found.values() if isinstance(one, KnownPath)]
    references = [one.reference for one in known]
    return AnyPairs(stamped.machine, suite.finer, answers, references, unanswered, stamped)


def _solve_references(suite: AnySuite, tell: Log) -> dict[int, References]:
    """The references by the cells of their pairs."""
    found: dict[int, References] = {}
    for cells, finer in suite.finer.items():
        began = perf_counter()
        known: References = {}
        try:
            known = run_in_process(solve_references, ReferenceJob(suite, cells))
        except GeonetError as error:  # of the process itself
            known.update(dict.fromkeys(suite.each(), str(error)))
        found[cells] = known
        count = sum(isinstance(one, KnownPath) for one in known.values())
        done = f"{ANY}: {count} of {len(known)} references of {cells}² cells on {finer}²"
        tell(f"{done}, {perf_counter() - began:.0f} s")
    return found


def _measure(job: AnyJob) -> Found:
    try:
        return run_in_process(measure_solver, job)
    except GeonetError as error:  # of the process itself: solvers' are among the unanswered
        return job.all_unanswered(str(error))
