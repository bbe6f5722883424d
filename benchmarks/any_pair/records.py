"""Records of the suite `any`: one row for every solver and pair."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from benchmarks.results import Provenance

CLOSE_W2, CLOSE_FRAMES = 0.2, 1.0  # per cent: errors up to which an answer counts as right
FLAGGED = 0.5  # an estimate of at least this share of the error flags it


@dataclass(frozen=True)
class Answer:
    """The answer of one solver to one pair.

    Attributes:
        cells: along each axis.
        kind: of the pair.
        pair: its number in the kind.
        label: of the solver with its options.
        solver: the name alone.
        answered_by: the solver that `auto` chose, otherwise the same as `solver`.
        seconds: solving and five frames, the median of the repeats.
        repeats: number of timed calls.
        reference: W2 of the reference.
        w2_percent: signed error of the distance; None if the solver provides none.
        l1_percent: L1 on 16² blocks at t = ¼, ½, ¾.
        bounds: lower and upper bound on W2 of the report.
        estimate_percent: L1 error that the report estimates; None without an estimate.
    """

    cells: int
    kind: str
    pair: int
    label: str
    solver: str
    answered_by: str
    seconds: float
    repeats: int
    reference: float
    w2_percent: float | None
    l1_percent: list[float]
    bounds: list[float]
    estimate_percent: float | None

    @property
    def frame_percent(self) -> float:
        """Return the largest of `l1_percent`."""
        return max(self.l1_percent)

    @property
    def has_close_distance(self) -> bool:
        """Return True if W2 is right; False if there is none."""
        return self.w2_percent is not None and abs(self.w2_percent) <= CLOSE_W2

    @property
    def has_close_frames(self) -> bool:
        """Return True if all three frames are right."""
        return self.frame_percent <= CLOSE_FRAMES

    @property
    def is_flagged(self) -> bool:
        """Return True if the report estimated at least half of the error of the frames."""
        estimate = self.estimate_percent
        return estimate is not None and estimate >= FLAGGED * self.frame_percent

    @property
    def bounds_percent(self) -> float:
        """Return the width of the bounds on W2 relative to the reference."""
        return 100 * (self.bounds[1] - self.bounds[0]) / self.reference

    @property
    def outside_percent(self) -> float:
        """Return the relative distance of the reference from the bounds; 0 inside."""
        least, most = self.bounds
        outside = max(least - self.reference, self.reference - most, 0.0)
        return 100 * outside / self.reference


@dataclass(frozen=True)
class Reference:
    """The solution on a finer grid with which the answers are compared.

    Attributes:
        cells: along each axis of the pair.
        finer: along each axis of the grid on which it was solved.
        kind: of the pair.
        pair: its number.
        distance: W2.
        seconds: solving and five frames, once.
    """

    cells: int
    finer: int
    kind: str
    pair: int
    distance: float
    seconds: float


@dataclass(frozen=True)
class Unanswered:
    """A pair that was not measured, with the reason."""

    cells: int
    kind: str
    pair: int
    label: str
    solver: str
    reason: str


@dataclass(frozen=True)
class AnyPairs:
    """All rows of the suite.

    Attributes:
        machine: processor, memory, system and versions.
        finer: cells of the reference by the cells of the pair.
        answers: rows of all solvers.
        references: rows of all pairs.
        unanswered: pairs that were not measured.
        provenance: of the measurement.
    """

    machine: dict[str, Any]
    finer: dict[int, int]
    answers: list[Answer] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    unanswered: list[Unanswered] = field(default_factory=list)
    provenance: Provenance | None = None

    @staticmethod
    def from_json(table: dict[str, Any] | None) -> AnyPairs | None:
        """Rebuild the rows from `to_json`; None for results without the suite."""
        if table is None:
            return None
        return AnyPairs(
            table["machine"],
            {int(cells): int(fine) for cells, fine in table["finer"].items()},
            [Answer(**row) for row in table["answers"]],
            [Reference(**row) for row in table["references"]],
            [Unanswered(**row) for row in table["unanswered"]],
            Provenance.from_json(table.get("provenance")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return nested dictionaries."""
        return asdict(self)

    def merge(self, other: AnyPairs | None) -> AnyPairs:
        """Add the solvers of `other` that are missing here; keep the older provenance."""
        if other is None:
            return self
        own = {row.label for row in (*self.answers, *self.unanswered)}
        answers = [row for row in other.answers if row.label not in own]
        unanswered = [row for row in other.unanswered if row.label not in own]
        return replace(
            self,
            answers=[*self.answers, *answers],
            unanswered=[*self.unanswered, *unanswered],
            provenance=other.provenance if answers or unanswered else self.provenance,
        )
