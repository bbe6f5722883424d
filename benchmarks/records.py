"""What was measured, as rows, and their file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.any_pair.records import AnyPairs
from benchmarks.results import Provenance
from geonet._files import atomic_write, wrap_read_errors

FILE = "benchmark.json"


@dataclass(frozen=True)
class Seconds:
    """Over the repeats."""

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
        times: asked for.
        label: of the solver with its options.
        solver: the name alone.
        options: of the solver.
        kind: classical, learned or per-pair.
        setup_seconds: import of its modules, making it, and by how much its first answer, which
            is on its smallest grid, takes longer than the next.
        seconds_per_pair: solve and densities.
        repeats: over which these are.
        l1_percent: the largest of `l1_quarters`.
        l1_quarters: mean L1 error in % at t = 0, ¼, ½, ¾, 1; of a single pair on these cells.
        w2_percent: mean error of the distance in %; None where the solver gives none.
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
        """The median per pair."""
        return self.seconds_per_pair.median


@dataclass(frozen=True)
class Skipped:
    """A kind of call that was not measured, and why."""

    suite: str
    dimension: int
    cells: int
    pairs: int
    times: int
    label: str
    solver: str
    reason: str


@dataclass(frozen=True)
class Curve:
    """Seconds of a whole call against one of its sizes.

    Attributes:
        solver: the name.
        axis: what grows: output points, times or pairs.
        values: its sizes.
        seconds: at each.
        slope: of the upper half, log against log.
    """

    solver: str
    axis: str
    values: list[int]
    seconds: list[float]
    slope: float


@dataclass(frozen=True)
class Benchmark:
    """All that one run measured.

    Attributes:
        machine: what it ran on.
        quick: whether it is a check.
        settings: the suites 1d and 2d, row by row.
        skipped: what these left out, and `scaling`.
        scaling: its curves.
        provenance: of these; None for results from before there were stamps.
        any: the suite of that name, with a provenance of its own; None if it was not measured.
    """

    machine: dict[str, Any]
    quick: bool
    settings: list[Measurement] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    scaling: list[Curve] = field(default_factory=list)
    provenance: Provenance | None = None
    any: AnyPairs | None = None

    def to_json(self) -> dict[str, Any]:
        """Nested tables."""
        return asdict(self)

    @staticmethod
    def from_json(table: dict[str, Any]) -> Benchmark:
        """What `to_json` gave."""
        rows = [
            Measurement(**row | {"seconds_per_pair": Seconds(**row["seconds_per_pair"])})
            for row in table["settings"]
        ]
        skipped = [Skipped(**row) for row in table["skipped"]]
        curves = [Curve(**curve) for curve in table["scaling"]]
        provenance = Provenance.from_json(table.get("provenance"))
        pairs = AnyPairs.from_json(table.get("any"))
        return Benchmark(table["machine"], table["quick"], rows, skipped, curves, provenance, pairs)

    def with_the_rest_of(self, other: Benchmark) -> Benchmark:
        """All of this, and what `other` has of solvers and suites that are not in this.

        With anything of the other, the whole is as old as that.
        """
        own = {(row.suite, row.label) for row in (*self.settings, *self.skipped)}
        curves = {curve.solver for curve in self.scaling}
        rows = [row for row in other.settings if (row.suite, row.label) not in own]
        skipped = [row for row in other.skipped if (row.suite, row.label) not in own]
        scaling = [curve for curve in other.scaling if curve.solver not in curves]
        nothing = not (self.settings or self.skipped or self.scaling)
        return replace(
            self,
            machine=other.machine if nothing else self.machine,
            settings=[*self.settings, *rows],
            skipped=[*self.skipped, *skipped],
            scaling=[*self.scaling, *scaling],
            provenance=other.provenance if rows or skipped or scaling else self.provenance,
            any=other.any if self.any is None else self.any.with_the_rest_of(other.any),
        )

    def save(self, folder: Path) -> Path:
        """Write benchmark.json."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        with atomic_write(folder / FILE) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
        return folder / FILE


def read_benchmark(folder: Path) -> Benchmark:
    """What `Benchmark.save` wrote into a folder."""
    with wrap_read_errors(folder / FILE, "the result of geonet benchmark"):
        return Benchmark.from_json(json.loads((folder / FILE).read_text(encoding="utf-8")))


# ---- What the rows say: the best trade-offs, speed at equal error, when training pays, slopes.


LIMIT = 1.0  # percent, the error at which the fastest classical solver is named


def select_setting(
    rows: Iterable[Measurement], suite: str, cells: int, pairs: int = 1, times: int = 5
) -> list[Measurement]:
    """The rows of one setting, the fastest first."""
    wanted = (suite, cells, pairs, times)
    found = [row for row in rows if (row.suite, row.cells, row.pairs, row.times) == wanted]
    return sorted(found, key=lambda row: row.seconds)


def find_pareto_front(rows: Iterable[Measurement]) -> list[Measurement]:
    """Those that no other beats in both error and time, the fastest first."""
    front: list[Measurement] = []
    for row in sorted(rows, key=lambda row: (row.seconds, row.l1_percent)):
        if not front or row.l1_percent < front[-1].l1_percent:
            front.append(row)
    return front


def find_equal_error(
    rows: Iterable[Measurement], learned: Measurement, limit: float | None = None
) -> Measurement | None:
    """The fastest classical row in the learned one's setting with an error no larger than its.

    Or than `limit`, in %. A solver that was not measured in a batch
    of that size takes its pairs one by one, so there its single pair counts.
    """
    rows, most = list(rows), learned.l1_percent if limit is None else limit
    singles = select_setting(rows, learned.suite, learned.cells, 1, learned.times)
    batches = select_setting(rows, learned.suite, learned.cells, learned.pairs, learned.times)
    by_label = {row.label: row for row in (*singles, *batches)}
    classical = [r for r in by_label.values() if r.kind == "classical" and r.solver != "auto"]
    fit = [r for r in classical if r.l1_percent <= most]  # `auto` is another's answer
    return min(fit, key=lambda row: row.seconds, default=None)


def compute_break_even(learned: Measurement, classical: Measurement) -> float | None:
    """Pairs after which training and solving took less than solving classically; None if never."""
    saved = classical.seconds - learned.seconds
    if learned.training_seconds is None or saved <= 0:
        return None
    return learned.training_seconds / saved


def fit_slope(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Of log seconds over log values, fitted to the upper half."""
    count = max(2, math.ceil(len(values) / 2))
    return float(np.polyfit(np.log(values[-count:]), np.log(seconds[-count:]), 1)[0])
