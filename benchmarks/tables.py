"""Tables of a benchmark, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.any_pair.tables import make_any_tables
from benchmarks.records import (
    Benchmark,
    Measurement,
    Skipped,
    find_pareto_front,
    select_setting,
)
from benchmarks.results import Cell, Table, format_digits
from benchmarks.suites import SUITES, TIMES

ON_FRONT = "●"


def make_tables(found: Benchmark) -> list[Table]:
    """Return all tables that have rows."""
    suites = [name for name in SUITES if any(row.suite == name for row in found.settings)]
    made = [make_ranking(found.settings, name) for name in suites]
    made.append(make_skipped_table(found.skipped))
    return [*make_any_tables(found.any), *(table for table in made if table.rows)]


def make_ranking(rows: Sequence[Measurement], suite: str) -> Table:
    """Return error and time of one pair at the reference size, the fastest first.

    Further columns contain the time per pair in a batch and on the largest grid.
    """
    cells, largest = SUITES[suite].reference, SUITES[suite].cells[-1]
    batch = max(SUITES[suite].batches)
    own = select_setting(rows, suite, cells)
    front = find_pareto_front(
        row for row in own if row.solver != "auto"
    )  # delegates to another solver
    columns = ("solver", "front", "L1, %", "W2, %", "pairs", "ms per pair", "quartiles")
    columns += (f"in a batch of {batch}", describe_setting(suite, largest))
    columns += ("set-up, s", "memory, MB")
    lines: list[list[Cell]] = [
        [
            *(row.label, ON_FRONT if row in front else "", row.l1_percent, row.w2_percent),
            *(row.pairs_measured, 1e3 * row.seconds, _format_quartiles(row)),
            _find_ms(select_setting(rows, suite, cells, batch), row),
            _find_ms(select_setting(rows, suite, largest), row),
            *(row.setup_seconds, row.memory_mb),
        ]
        for row in own
    ]
    setting = describe_setting(suite, cells)
    title = f"{setting}, one pair, {TIMES} times; {ON_FRONT}: no other is better in both"
    return Table(title, columns, lines)


def _find_ms(rows: Sequence[Measurement], wanted: Measurement) -> float | None:
    """Return the milliseconds of the same solver in another setting; None if not measured."""
    return next((1e3 * row.seconds for row in rows if row.label == wanted.label), None)


def _format_quartiles(row: Measurement) -> str:
    seconds = row.seconds_per_pair
    return "–".join(format_digits(1e3 * s) for s in (seconds.low_quartile, seconds.high_quartile))


def make_skipped_table(skipped: Sequence[Skipped]) -> Table:
    """Return the skipped settings, one line per reason."""
    grouped: dict[tuple[str, str, str], list[Skipped]] = {}
    for one in skipped:
        grouped.setdefault((one.suite, one.label, one.reason), []).append(one)
    lines: list[list[Cell]] = [
        [label, suite, "; ".join(_describe_skipped(one) for one in own), reason]
        for (suite, label, reason), own in grouped.items()
    ]
    return Table("Not measured", ("solver", "suite", "settings", "reason"), lines)


def _describe_skipped(one: Skipped) -> str:
    extra = (
        f" ({_describe_load(one.pairs, one.times)})" if (one.pairs, one.times) != (1, TIMES) else ""
    )
    return f"{one.cells}{extra}"


def describe_setting(suite: str, cells: int | None = None) -> str:
    """Return dimension and grid in words."""
    dimension = SUITES[suite].dimension
    if cells is None:
        return f"{dimension}D"
    return f"{dimension}D, {cells}{'²' if dimension == 2 else ''} cells"


def _describe_load(pairs: int, times: int) -> str:
    moments = f"{times} times" if times > 1 else "1 time"
    return moments if pairs == 1 else f"{moments}, batch of {pairs}"
