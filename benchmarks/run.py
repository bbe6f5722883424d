"""Run suites and solvers, one process after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.any_pair import suite as any_suite
from benchmarks.any_pair.run import run_any_pairs
from benchmarks.any_pair.suite import ANY, DIMENSION, AnySuite, select_any_contestants
from benchmarks.contestants import (
    Contestant,
    check_participation,
    filter_by_dimension,
    select_contestants,
)
from benchmarks.process import run_in_process
from benchmarks.records import Benchmark, Measurement, Skipped
from benchmarks.results import record_provenance
from benchmarks.suites import (
    SUITES,
    Suite,
    check_suites,
    get_suite,
)
from benchmarks.worker import FULL, QUICK, Job, Limits, measure_solver
from geonet.errors import GeonetError

Log = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The suites and contestants of a run.

    Attributes:
        quick: True for a check with few pairs.
        parts: the suites 1d and 2d with their contestants.
        any: the suite any with its contestants; None to omit it.
    """

    quick: bool
    parts: list[tuple[Suite, list[Contestant]]]
    any: tuple[AnySuite, list[Contestant]] | None = None

    @property
    def limits(self) -> Limits:
        """Return the limits of a full or a quick run."""
        return QUICK if self.quick else FULL


def make_plan(suites: Sequence[str] = (), solvers: Sequence[str] = (), quick: bool = False) -> Plan:
    """Select suites and solvers, all by default; raise InputError for unknown ones."""
    names, chosen = check_suites(suites), select_contestants(solvers, quick)
    others = select_any_contestants(solvers, quick) if ANY in names else []
    found = [get_suite(name, quick) for name in names if name in SUITES]
    if solvers:
        dimensions = [suite.dimension for suite in found] + [DIMENSION] * (ANY in names)
        check_participation(chosen, sorted(set(dimensions)))
    parts = [(suite, filter_by_dimension(chosen, suite.dimension)) for suite in found]
    whole = any_suite.SUITE.reduce() if quick else any_suite.SUITE
    any_part = (whole, others) if others else None
    return Plan(quick, [(suite, own) for suite, own in parts if own], any_part)


def run_benchmark(plan: Plan, log: Log = lambda line: None) -> Benchmark:
    """Run the plan; `log` receives a line after every solver."""
    provenance = record_provenance()
    rows: list[Measurement] = []
    skipped: list[Skipped] = []
    for suite, own in plan.parts:
        with TemporaryDirectory() as folder:
            files = _write_pairs(suite, plan.limits, Path(folder), log)
            for number, entrant in enumerate(own, 1):
                start = perf_counter()
                answer = _measure(Job(entrant, suite, files, plan.limits))
                rows += answer[0]
                skipped += answer[1]
                done = f"{suite.name} {number}/{len(own)} {entrant.label}: {len(answer[0])}"
                left = f", {len(answer[1])} left out" if answer[1] else ""
                log(f"{done} settings{left}, {perf_counter() - start:.0f} s")
    pairs = None if plan.any is None else run_any_pairs(*plan.any, log)
    return Benchmark(provenance.machine, plan.quick, rows, skipped, provenance, pairs)


def _write_pairs(suite: Suite, limits: Limits, folder: Path, log: Log) -> dict[int, Path]:
    """Write the pairs to files, keyed by the number of cells."""
    start = perf_counter()
    files = {cells: folder / f"{cells}.safetensors" for cells in suite.cells}
    for cells, file in files.items():
        suite.write_pairs(cells, limits.pairs, file)
    log(f"{suite.name}: exact paths of {limits.pairs} pairs, {perf_counter() - start:.0f} s")
    return files


def _measure(job: Job) -> tuple[list[Measurement], list[Skipped]]:
    try:
        return run_in_process(measure_solver, job)
    except GeonetError as error:  # the process failed; errors of solvers are among the skipped
        return [], [job.skip(call, str(error)) for call in job.calls()]
