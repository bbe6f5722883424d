"""What was measured, as rows, and their file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from geonet.evaluation.stamp import Stamp
from geonet.files import reading, written_atomically
from geonet.studies.benchmark.any_pair.result import AnyPairs

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
        stamp: of these; None for results from before there were stamps.
        any: the suite of that name, with a stamp of its own; None if it was not measured.
    """

    machine: dict[str, Any]
    quick: bool
    settings: list[Measurement] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    scaling: list[Curve] = field(default_factory=list)
    stamp: Stamp | None = None
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
        stamp = Stamp.from_json(table.get("stamp"))
        pairs = AnyPairs.from_json(table.get("any"))
        return Benchmark(table["machine"], table["quick"], rows, skipped, curves, stamp, pairs)

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
            stamp=other.stamp if rows or skipped or scaling else self.stamp,
            any=other.any if self.any is None else self.any.with_the_rest_of(other.any),
        )

    def save(self, folder: Path) -> Path:
        """Write benchmark.json."""
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        with written_atomically(folder / FILE) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
        return folder / FILE


def read_benchmark(folder: Path) -> Benchmark:
    """What `Benchmark.save` wrote into a folder."""
    with reading(folder / FILE, "the result of geonet benchmark"):
        return Benchmark.from_json(json.loads((folder / FILE).read_text(encoding="utf-8")))
