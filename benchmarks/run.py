"""All suites and solvers, one process after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.any_pair import suite as any_suite
from benchmarks.any_pair.run import run_any_pairs
from benchmarks.any_pair.suite import ANY, DIMENSION, AnySuite, select_any_contestants
from benchmarks.contestants import Contestant, check_participation, select_contestants, filter_by_dimension
from benchmarks.process import run_in_process
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
    measure_curves,
    get_suite,
)
from benchmarks.worker import FULL, QUICK, Job, Limits, measure_solver
from geonet.errors import GeonetError

Log = Callable[[str], None]
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
    parts: list[tuple[Suite, list[Contestant]]]
    ladders: list[Ladder]
    any: tuple[AnySuite, list[Contestant]] | None = None

    @property
    def limits(self) -> Limits:
        """In full or as a check."""
        return QUICK if self.quick else FULL


def make_plan(suites: Sequence[str] = (), solvers: Sequence[str] = (), quick: bool = False) -> Plan:
    """All suites and solvers, or those named; refused before anything is measured."""
    names, chosen = check_suites(suites), select_contestants(solvers, quick)
    others = select_any_contestants(solvers, quick) if ANY in names else []
    ladders = [
        ladder.quickly() if quick else ladder
        for ladder in LADDERS
        if SCALING in names and (not solvers or ladder.solver in solvers)
    ]
    found = [get_suite(name, quick) for name in names if name in SUITES]
    if solvers:
        placed = {ladder.solver for ladder in ladders}
        rest = [entrant for entrant in chosen if entrant.solver not in placed]
        dimensions = [suite.dimension for suite in found] + [DIMENSION] * (ANY in names)
        check_participation(rest, sorted(set(dimensions)))
    parts = [(suite, filter_by_dimension(chosen, suite.dimension)) for suite in found]
    whole = any_suite.SUITE.quickly() if quick else any_suite.SUITE
    any_part = (whole, others) if others else None
    return Plan(quick, [(suite, own) for suite, own in parts if own], ladders, any_part)


def run_benchmark(plan: Plan, tell: Log = lambda line: None) -> Benchmark:
    """Measure; `tell` is given a line when a solver is done."""
    stamped = record_provenance()
    rows: list[Measurement] = []
    skipped: list[Skipped] = []
    for suite, own in plan.parts:
        with TemporaryDirectory() as folder:
            files = _write_pairs(suite, plan.limits, Path(folder), tell)
            for number, entrant in enumerate(own, 1):
                began = perf_counter()
                answer = _measure(Job(entrant, suite, files, plan.limits))
                rows += answer[0]
                skipped += answer[1]
                done = f"{suite.name} {number}/{len(own)} {entrant.label}: {len(answer[0])}"
                left = f", {len(answer[1])} left out" if answer[1] else ""
                tell(f"{done} settings{left}, {perf_counter() - began:.0f} s")
    found: list[Curve] = []
    for ladder in plan.ladders:
        began = perf_counter()
        try:
            found += run_in_process(measure_curves, ladder)
        except GeonetError as error:
            skipped.append(_skip_ladder(ladder, str(error)))
        tell(f"{SCALING} {ladder.solver}, {perf_counter() - began:.0f} s")
    pairs = None if plan.any is None else run_any_pairs(*plan.any, tell)
    return Benchmark(stamped.machine, plan.quick, rows, skipped, found, stamped, pairs)


def _write_pairs(suite: Suite, limits: Limits, folder: Path, tell: Log) -> dict[int, Path]:
    """The files of pairs by the number of cells."""
    began = perf_counter()
    files = {cells: folder / f"{cells}.safetensors" for cells in suite.cells}
    for cells, file in files.items():
        suite.write_pairs(cells, limits.pairs, file)
    tell(f"{suite.name}: exact paths of {limits.pairs} pairs, {perf_counter() - began:.0f} s")
    return files


def _measure(job: Job) -> tuple[list[Measurement], list[Skipped]]:
    try:
        return run_in_process(measure_solver, job)
    except GeonetError as error:  # of the process itself: solvers' are among the skipped
        return [], [job.skipped(asked, str(error)) for asked in job.calls()]


def _skip_ladder(ladder: Ladder, reason: str) -> Skipped:
    name, grid = ladder.solver, ladder.grid
    return Skipped(SCALING, grid.dimension, grid.shape[0], 1, TIMES, name, name, reason)
