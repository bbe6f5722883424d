"""Run the suite `any`: the references first, then one solver after the other."""

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
    read_pairs,
    solve_references,
    take_interior,
)
from benchmarks.contestants import Contestant, build_solver
from benchmarks.process import format_error, run_in_process
from benchmarks.results import record_provenance
from geonet.density import Density
from geonet.errors import GeonetError, SolverError, UnavailableError
from geonet.metrics import block_l1
from geonet.paths import QUARTERS, Geodesic
from geonet.solvers.base import Solver

# ---- Every solver runs in its own process.


SHORT = 1.0  # seconds: longer calls are timed once

Ends = tuple[Density, Density]
Found = tuple[list[Answer], list[Unanswered]]


@dataclass(frozen=True)
class AnyJob:
    """The work of one process: a contestant, the pairs, and their references.

    Files and references are keyed by the number of cells of the pairs.
    """

    entrant: Contestant
    suite: AnySuite
    files: dict[int, Path]
    references: dict[int, References]

    def unanswered(self, cells: int, pair: Pair, reason: str) -> Unanswered:
        """Return the row of a pair that is not measured."""
        return Unanswered(cells, *pair, self.entrant.label, self.entrant.solver, reason)

    def all_unanswered(self, reason: str) -> Found:
        """Return the rows if no pair is measured."""
        each = [(cells, pair) for cells in self.suite.finer for pair in self.suite.list_pairs()]
        return [], [self.unanswered(cells, pair, reason) for cells, pair in each]


def measure_solver(job: AnyJob) -> Found:
    """Return the answers and the pairs that were not measured."""
    warnings.simplefilter("ignore")  # early stops show in the error
    try:
        solver = build_solver(job.entrant)
    except Exception as error:  # it is not registered, or its package is not installed
        return job.all_unanswered(format_error(error))
    return Worker(job, solver).run()


class Worker:
    """Measure the pairs one by one; a kind that is too slow is not tried on larger grids."""

    def __init__(self, job: AnyJob, solver: Solver):
        self.job, self.solver = job, solver
        self.answers: list[Answer] = []
        self.unanswered: list[Unanswered] = []
        self.slow: dict[str, str] = {}  # reason by kind, if larger grids are not tried

    def run(self) -> Found:
        """Measure all pairs, the smaller grids first."""
        for cells, file in self.job.files.items():
            pairs = read_pairs(file, cells)
            self._warm_up(next(iter(pairs.values())))
            for kind in self.job.suite.kinds:
                own = {pair: ends for pair, ends in pairs.items() if pair[0] == kind}
                self._kind(cells, kind, own)
        return self.answers, self.unanswered

    def _warm_up(self, ends: Ends) -> None:
        """Call once without timing: it may compile code and read models."""
        if len(self.slow) < len(self.job.suite.kinds):
            try:
                self._solve(ends)
            except Exception:  # it fails again when it is recorded
                return

    def _kind(self, cells: int, kind: str, pairs: dict[Pair, Ends]) -> None:
        """Measure the pairs of a kind on one grid within the time budget."""
        spent, slow, budget = 0.0, self.slow.get(kind), self.job.suite.budget
        for number, (pair, ends) in enumerate(pairs.items()):
            over = f"the {budget:g} s for a kind are spent after {number} of {len(pairs)} pairs"
            reason = slow or (over if spent > budget else None)
            if reason is None:
                began, answer = perf_counter(), None
                try:
                    answer = self._answer(cells, pair, ends)
                    self.answers.append(answer)
                except Exception as error:  # a failed pair must not end the run
                    reason = format_error(error)
                # The report is not timed and does not count.
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
        path, frames, times = self._time_solves(ends)
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

    def _time_solves(self, ends: Ends) -> tuple[Geodesic, Density, list[float]]:
        """Return path, frames and the seconds of each repeat; long calls are not repeated."""
        times: list[float] = []
        while True:
            began = perf_counter()
            path, frames = self._solve(ends)
            times.append(perf_counter() - began)
            if len(times) == self.job.suite.repeats or times[0] > SHORT:
                return path, frames, times

    def _solve(self, ends: Ends) -> tuple[Geodesic, Density]:
        path = self.solver(*ends)
        return path, path.density(QUARTERS)


def _compare_distance(path: Geodesic, reference: float) -> float | None:
    """Return the error of W2 in per cent; None if the path provides none."""
    try:
        off = 100 * (float(path.distance) / reference - 1)
    except UnavailableError:
        return None
    return off if math.isfinite(off) else None


def _read_report(path: Geodesic) -> dict[str, Any]:
    """Return the bounds and the error estimate of the report."""
    report = path.report
    estimate = report.error_estimate
    return {
        "bounds": [report.distance_lower_bound, report.distance_upper_bound],
        "estimate_percent": None if estimate is None else 100 * estimate,  # pyright: ignore
    }


Log = Callable[[str], None]


def run_any_pairs(
    suite: AnySuite, own: Sequence[Contestant], log: Log = lambda line: None
) -> AnyPairs:
    """Run the suite; `log` receives a line after every grid of references and every solver."""
    provenance = record_provenance()
    fine = _solve_references(suite, log)
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
            log(f"{done}, {perf_counter() - began:.0f} s")
    known = [one for found in fine.values() for one in found.values() if isinstance(one, KnownPath)]
    references = [one.reference for one in known]
    return AnyPairs(provenance.machine, suite.finer, answers, references, unanswered, provenance)


def _solve_references(suite: AnySuite, log: Log) -> dict[int, References]:
    """Solve the references, keyed by the cells of their pairs."""
    found: dict[int, References] = {}
    for cells, finer in suite.finer.items():
        began = perf_counter()
        known: References = {}
        try:
            known = run_in_process(solve_references, ReferenceJob(suite, cells))
        except GeonetError as error:  # the process failed
            known.update(dict.fromkeys(suite.list_pairs(), str(error)))
        found[cells] = known
        count = sum(isinstance(one, KnownPath) for one in known.values())
        done = f"{ANY}: {count} of {len(known)} references of {cells}² cells on {finer}²"
        log(f"{done}, {perf_counter() - began:.0f} s")
    return found


def _measure(job: AnyJob) -> Found:
    try:
        return run_in_process(measure_solver, job)
    except GeonetError as error:  # the process failed; errors of solvers are among the unanswered
        return job.all_unanswered(str(error))
