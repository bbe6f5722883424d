"""All suites and solvers, one process after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.any_pair import suite as any_suite
from benchmarks.any_pair.run import any_pairs
from benchmarks.any_pair.suite import ANY, DIMENSION, AnySuite, any_entrants
from benchmarks.contestants import Entrant, check_all_take_part, entrants, taking_part
from benchmarks.process import in_new_process
from benchmarks.records import Benchmark, Curve, Measurement, Skipped
from benchmarks.results import record_provenance
from benchmarks.suites import (
    LADDERS,
    SCALING,
    SUITES,
    TIMES,
    Ladder,
    Suite,
    check_suites,
    curves,
    suite_of,
)
from benchmarks.worker import FULL, QUICK, Job, Limits, measured
from geonet.errors import GeonetError

Tell = Callable[[str], None]
MODULES = (__name__,)  # where its measurement begins, see `geonet.evaluation.sources`


@dataclass(frozen=True)
class Plan:
    """What a run measures.

    Attributes:
        quick: whether it is a check.
        parts: of the suites 1d and 2d, with their entrants.
        ladders: of the suite scaling.
        any: the suite of that name with its entrants; None to leave it out.
    """

    quick: bool
    parts: list[tuple[Suite, list[Entrant]]]
    ladders: list[Ladder]
    any: tuple[AnySuite, list[Entrant]] | None = None

    @property
    def limits(self) -> Limits:
        """In full or as a check."""
        return QUICK if self.quick else FULL


def planned(suites: Sequence[str] = (), solvers: Sequence[str] = (), quick: bool = False) -> Plan:
    """All suites and solvers, or those named; refused before anything is measured."""
    names, chosen = check_suites(suites), entrants(solvers, quick)
    others = any_entrants(solvers, quick) if ANY in names else []
    ladders = [
        ladder.quickly() if quick else ladder
        for ladder in LADDERS
        if SCALING in names and (not solvers or ladder.solver in solvers)
    ]
    found = [suite_of(name, quick) for name in names if name in SUITES]
    if solvers:
        placed = {ladder.solver for ladder in ladders}
        rest = [entrant for entrant in chosen if entrant.solver not in placed]
        dimensions = [suite.dimension for suite in found] + [DIMENSION] * (ANY in names)
        check_all_take_part(rest, sorted(set(dimensions)))
    parts = [(suite, taking_part(chosen, suite.dimension)) for suite in found]
    whole = any_suite.SUITE.quickly() if quick else any_suite.SUITE
    any_part = (whole, others) if others else None
    return Plan(quick, [(suite, own) for suite, own in parts if own], ladders, any_part)


def benchmark(plan: Plan, tell: Tell = lambda line: None) -> Benchmark:
    """Measure; `tell` is given a line when a solver is done."""
    stamped = record_provenance()
    rows: list[Measurement] = []
    skipped: list[Skipped] = []
    for suite, own in plan.parts:
        with TemporaryDirectory() as folder:
            files = _pairs_written(suite, plan.limits, Path(folder), tell)
            for number, entrant in enumerate(own, 1):
                began = perf_counter()
                answer = _measured(Job(entrant, suite, files, plan.limits))
                rows += answer[0]
                skipped += answer[1]
                done = f"{suite.name} {number}/{len(own)} {entrant.label}: {len(answer[0])}"
                left = f", {len(answer[1])} left out" if answer[1] else ""
                tell(f"{done} settings{left}, {perf_counter() - began:.0f} s")
    found: list[Curve] = []
    for ladder in plan.ladders:
        began = perf_counter()
        try:
            found += in_new_process(curves, ladder)
        except GeonetError as error:
            skipped.append(_ladder_skipped(ladder, str(error)))
        tell(f"{SCALING} {ladder.solver}, {perf_counter() - began:.0f} s")
    pairs = None if plan.any is None else any_pairs(*plan.any, tell)
    return Benchmark(stamped.machine, plan.quick, rows, skipped, found, stamped, pairs)


def _pairs_written(suite: Suite, limits: Limits, folder: Path, tell: Tell) -> dict[int, Path]:
    """The files of pairs by the number of cells."""
    began = perf_counter()
    files = {cells: folder / f"{cells}.safetensors" for cells in suite.cells}
    for cells, file in files.items():
        suite.write_pairs(cells, limits.pairs, file)
    tell(f"{suite.name}: exact paths of {limits.pairs} pairs, {perf_counter() - began:.0f} s")
    return files


def _measured(job: Job) -> tuple[list[Measurement], list[Skipped]]:
    try:
        return in_new_process(measured, job)
    except GeonetError as error:  # of the process itself: solvers' are among the skipped
        return [], [job.skipped(asked, str(error)) for asked in job.calls()]


def _ladder_skipped(ladder: Ladder, reason: str) -> Skipped:
    name, grid = ladder.solver, ladder.grid
    return Skipped(SCALING, grid.dimension, grid.shape[0], 1, TIMES, name, name, reason)
