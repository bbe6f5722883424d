"""The suite `any`: references first, then one solver after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from geonet.errors import GeonetError
from geonet.evaluation.stamp import stamp
from geonet.studies.benchmark.any_pair.references import (
    Known,
    ReferenceJob,
    References,
    solved_references,
)
from geonet.studies.benchmark.any_pair.result import AnyPairs
from geonet.studies.benchmark.any_pair.suite import ANY, AnySuite
from geonet.studies.benchmark.any_pair.worker import AnyJob, Found, measured
from geonet.studies.benchmark.entrants import Entrant
from geonet.studies.benchmark.process import in_new_process

Tell = Callable[[str], None]
MODULES = (__name__,)  # where its measurement begins, see `geonet.evaluation.sources`


def any_pairs(suite: AnySuite, own: Sequence[Entrant], tell: Tell = lambda line: None) -> AnyPairs:
    """Measure; `tell` is given a line when a grid of references or a solver is done."""
    stamped = stamp(MODULES)  # before: sources may change in the meantime
    fine = _references(suite, tell)
    answers, unanswered = [], []
    with TemporaryDirectory() as folder:
        files = suite.write_pairs(Path(folder))
        for number, entrant in enumerate(own, 1):
            began = perf_counter()
            found = _measured(AnyJob(entrant, suite, files, fine))
            answers += found[0]
            unanswered += found[1]
            left = f", {len(found[1])} left out" if found[1] else ""
            done = f"{ANY} {number}/{len(own)} {entrant.label}: {len(found[0])} pairs{left}"
            tell(f"{done}, {perf_counter() - began:.0f} s")
    known = [one for found in fine.values() for one in found.values() if isinstance(one, Known)]
    references = [one.reference for one in known]
    return AnyPairs(stamped.machine, suite.finer, answers, references, unanswered, stamped)


def _references(suite: AnySuite, tell: Tell) -> dict[int, References]:
    """The references by the cells of their pairs."""
    found: dict[int, References] = {}
    for cells, finer in suite.finer.items():
        began = perf_counter()
        known: References = {}
        try:
            known = in_new_process(solved_references, ReferenceJob(suite, cells))
        except GeonetError as error:  # of the process itself
            known.update(dict.fromkeys(suite.each(), str(error)))
        found[cells] = known
        count = sum(isinstance(one, Known) for one in known.values())
        done = f"{ANY}: {count} of {len(known)} references of {cells}² cells on {finer}²"
        tell(f"{done}, {perf_counter() - began:.0f} s")
    return found


def _measured(job: AnyJob) -> Found:
    try:
        return in_new_process(measured, job)
    except GeonetError as error:  # of the process itself: solvers' are among the unanswered
        return job.all_unanswered(str(error))
