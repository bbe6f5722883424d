"""What the rows say: the best trade-offs, speed at equal error, when training pays, slopes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from geonet.studies.benchmark.result import Measurement

LIMIT = 1.0  # percent, the error at which the fastest classical solver is named


def in_setting(
    rows: Iterable[Measurement], suite: str, cells: int, pairs: int = 1, times: int = 5
) -> list[Measurement]:
    """The rows of one setting, the fastest first."""
    wanted = (suite, cells, pairs, times)
    found = [row for row in rows if (row.suite, row.cells, row.pairs, row.times) == wanted]
    return sorted(found, key=lambda row: row.seconds)


def pareto(rows: Iterable[Measurement]) -> list[Measurement]:
    """Those that no other beats in both error and time, the fastest first."""
    front: list[Measurement] = []
    for row in sorted(rows, key=lambda row: (row.seconds, row.l1_percent)):
        if not front or row.l1_percent < front[-1].l1_percent:
            front.append(row)
    return front


def equal_error(
    rows: Iterable[Measurement], learned: Measurement, limit: float | None = None
) -> Measurement | None:
    """The fastest classical row in the learned one's setting with an error no larger than its.

    Or than `limit`, in %. A solver that was not measured in a batch
    of that size takes its pairs one by one, so there its single pair counts.
    """
    rows, most = list(rows), learned.l1_percent if limit is None else limit
    singles = in_setting(rows, learned.suite, learned.cells, 1, learned.times)
    batches = in_setting(rows, learned.suite, learned.cells, learned.pairs, learned.times)
    by_label = {row.label: row for row in (*singles, *batches)}
    classical = [r for r in by_label.values() if r.kind == "classical" and r.solver != "auto"]
    fit = [r for r in classical if r.l1_percent <= most]  # `auto` is another's answer
    return min(fit, key=lambda row: row.seconds, default=None)


def break_even(learned: Measurement, classical: Measurement) -> float | None:
    """Pairs after which training and solving took less than solving classically; None if never."""
    saved = classical.seconds - learned.seconds
    if learned.training_seconds is None or saved <= 0:
        return None
    return learned.training_seconds / saved


def slope(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Of log seconds over log values, fitted to the upper half."""
    count = max(2, math.ceil(len(values) / 2))
    return float(np.polyfit(np.log(values[-count:]), np.log(seconds[-count:]), 1)[0])
