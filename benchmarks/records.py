"""Measurements of the benchmark, their file and their analysis."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.any_pair.records import AnyPairs
from benchmarks.results import Provenance
from geonet._files import atomic_write, wrap_read_errors

FILE = "benchmark.json"


@dataclass(frozen=True)
class Seconds:
    """Statistics of the time in seconds over the repeats."""

    median: float
    low_quartile: float
    high_quartile: float
    min: float


@dataclass(frozen=True)
class Measurement:
    """A solver in one kind of call.

    Attributes:
        suite: the name.
        dimension: of the densities.
        cells: along each axis.
        pairs: given in one call.
        times: number of times of each path.
        label: of the solver with its options.
        solver: the name alone.
        options: of the solver.
        kind: classical or learned.
        setup_seconds: import of its modules, making it, and by how much its first answer, which
            is on its smallest grid, takes longer than the next.
        seconds_per_pair: solve and densities.
        repeats: over which these are.
        l1_percent: the largest of `l1_quarters`.
        l1_quarters: mean L1 error in % at t = 0, ¼, ½, ¾, 1; of a single pair on these cells.
        w2_percent: mean error of the distance in %; None if the solver provides none.
        pairs_measured: over which the errors are means.
        memory_mb: by how much the first call raised the peak of resident memory; None if unknown.
        threads: of torch.
        dtype: in which it computes.
        training_seconds: of a learned one.
    """

    suite: str
    dimension: int
    cells: int
    pairs: int
    times: int
    label: str
    solver: str
    options: dict[str, Any]
    kind: str
    setup_seconds: float | None
    seconds_per_pair: Seconds
    repeats: int
    l1_percent: float
    l1_quarters: list[float]
    w2_percent: float | None
    pairs_measured: int
    memory_mb: float | None
    threads: int
    dtype: str
    training_seconds: float | None

    @property
    def seconds(self) -> float:
        """Return the median time per pair."""
        return self.seconds_per_pair.median


@dataclass(frozen=True)
class Skipped:
    """A setting that was not measured, with the reason."""

    suite: str
    dimension: int
    cells: int
    pairs: int
    times: int
    label: str
    solver: str
    reason: str


@dataclass(frozen=True)
class Benchmark:
    """The results of one run.

    Attributes:
        machine: processor, memory, system and versions.
        quick: True for a check with few pairs.
        settings: the suites 1d and 2d, row by row.
        skipped: settings that were not measured.
        provenance: commit, date and machine; None if it was not recorded.
        any: the suite of that name, with a provenance of its own; None if it was not measured.
    """

    machine: dict[str, Any]
    quick: bool
    settings: list[Measurement] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    provenance: Provenance | None = None
    any: AnyPairs | None = None

    def to_json(self) -> dict[str, Any]:
        """Return nested dictionaries."""
        return asdict(self)

    @staticmethod
    def from_json(table: dict[str, Any]) -> Benchmark:
        """Rebuild the result from `to_json`."""
        rows = [
            Measurement(**row | {"seconds_per_pair": Seconds(**row["seconds_per_pair"])})
            for row in table["settings"]
        ]
        skipped = [Skipped(**row) for row in table["skipped"]]
        provenance = Provenance.from_json(table.get("provenance"))
        pairs = AnyPairs.from_json(table.get("any"))
        return Benchmark(table["machine"], table["quick"], rows, skipped, provenance, pairs)

    def drop_suites(self, names: Iterable[str]) -> Benchmark:
        """Return the results without some suites."""
        dropped = set(names)
        return replace(
            self,
            settings=[row for row in self.settings if row.suite not in dropped],
            skipped=[row for row in self.skipped if row.suite not in dropped],
            any=None if "any" in dropped else self.any,
        )

    def merge(self, other: Benchmark) -> Benchmark:
        """Add the solvers and suites of `other` that are missing here.

        The merged result has the older provenance.
        """
        own = {(row.suite, row.label) for row in (*self.settings, *self.skipped)}
        rows = [row for row in other.settings if (row.suite, row.label) not in own]
        skipped = [row for row in other.skipped if (row.suite, row.label) not in own]
        nothing = not (self.settings or self.skipped)
        return replace(
            self,
            machine=other.machine if nothing else self.machine,
            settings=[*self.settings, *rows],
            skipped=[*self.skipped, *skipped],
            provenance=other.provenance if rows or skipped else self.provenance,
            any=other.any if self.any is None else self.any.merge(other.any),
        )

    def save(self, folder: Path) -> Path:
        """Write benchmark.json to a folder."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        with atomic_write(folder / FILE) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
        return folder / FILE


def read_benchmark(folder: Path) -> Benchmark:
    """Read the file that `Benchmark.save` wrote to a folder."""
    with wrap_read_errors(folder / FILE, "the result of a benchmark"):
        return Benchmark.from_json(json.loads((folder / FILE).read_text(encoding="utf-8")))


# ---- Analysis: Pareto front, speed at equal error, break-even of training.


LIMIT = 1.0  # per cent: error limit for naming the fastest classical solver


def select_setting(
    rows: Iterable[Measurement], suite: str, cells: int, pairs: int = 1, times: int = 5
) -> list[Measurement]:
    """Return the rows of one setting, the fastest first."""
    wanted = (suite, cells, pairs, times)
    found = [row for row in rows if (row.suite, row.cells, row.pairs, row.times) == wanted]
    return sorted(found, key=lambda row: row.seconds)


def find_pareto_front(rows: Iterable[Measurement]) -> list[Measurement]:
    """Return the rows that no other row beats in both error and time, the fastest first."""
    front: list[Measurement] = []
    for row in sorted(rows, key=lambda row: (row.seconds, row.l1_percent)):
        if not front or row.l1_percent < front[-1].l1_percent:
            front.append(row)
    return front


def find_equal_error(
    rows: Iterable[Measurement], learned: Measurement, limit: float | None = None
) -> Measurement | None:
    """Return the fastest classical row in the setting of `learned` with an error no larger.

    `limit`, in per cent, replaces the error of `learned`. A solver without a batched form takes
    the pairs one by one, so the time of a single pair counts.
    """
    rows, most = list(rows), learned.l1_percent if limit is None else limit
    singles = select_setting(rows, learned.suite, learned.cells, 1, learned.times)
    batches = select_setting(rows, learned.suite, learned.cells, learned.pairs, learned.times)
    by_label = {row.label: row for row in (*singles, *batches)}
    classical = [r for r in by_label.values() if r.kind == "classical" and r.solver != "auto"]
    fit = [r for r in classical if r.l1_percent <= most]  # `auto` is another's answer
    return min(fit, key=lambda row: row.seconds, default=None)


def compute_break_even(learned: Measurement, classical: Measurement) -> float | None:
    """Return the number of pairs after which training pays; None if it never does."""
    saved = classical.seconds - learned.seconds
    if learned.training_seconds is None or saved <= 0:
        return None
    return learned.training_seconds / saved
