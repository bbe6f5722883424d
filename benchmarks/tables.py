"""Tables of a benchmark, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.any_pair.tables import make_any_tables
from benchmarks.records import (
    LIMIT,
    Benchmark,
    Measurement,
    Skipped,
    compute_break_even,
    find_equal_error,
    find_pareto_front,
    select_setting,
)
from benchmarks.results import Cell, Table, format_digits
from benchmarks.suites import SUITES, TIMES

ON_FRONT = "●"


def make_tables(found: Benchmark) -> list[Table]:
    """Return all tables that have rows."""
    suites = [name for name in SUITES if any(row.suite == name for row in found.settings)]
    made = [
        make(found.settings, name)
        for name in suites
        for make in (make_ranking, make_sizes_table, make_loads_table)
    ]
    made += [
        make_equal_error_table(found.settings),
        make_scaling_table(found),
        make_skipped_table(found.skipped),
    ]
    return [*make_any_tables(found.any), *(table for table in made if table.rows)]


def make_ranking(rows: Sequence[Measurement], suite: str) -> Table:
    """Return error and time of one pair at the reference size, the fastest first."""
    cells = SUITES[suite].reference
    own = select_setting(rows, suite, cells)
    front = find_pareto_front(
        row for row in own if row.solver != "auto"
    )  # delegates to another solver
    columns = (
        "solver",
        "front",
        "L1, %",
        "W2, %",
        "ms per pair",
        "quartiles",
        "repeats",
        "pairs",
        "set-up, s",
        "memory, MB",
        "type",
    )
    lines: list[list[Cell]] = [
        [
            row.label,
            ON_FRONT if row in front else "",
            row.l1_percent,
            row.w2_percent,
            1e3 * row.seconds,
            "–".join(
                format_digits(1e3 * seconds)
                for seconds in (
                    row.seconds_per_pair.low_quartile,
                    row.seconds_per_pair.high_quartile,
                )
            ),
            row.repeats,
            row.pairs_measured,
            row.setup_seconds,
            row.memory_mb,
            row.dtype,
        ]
        for row in own
    ]
    setting = describe_setting(suite, cells)
    title = f"{setting}, one pair, {TIMES} times; {ON_FRONT}: no other is better in both"
    return Table(title, columns, lines)


def make_sizes_table(rows: Sequence[Measurement], suite: str) -> Table:
    """Return the milliseconds of one pair on every grid."""
    own = [row for row in rows if (row.suite, row.pairs, row.times) == (suite, 1, TIMES)]
    cells = sorted({row.cells for row in own})
    found = {(row.label, row.cells): 1e3 * row.seconds for row in own}
    labels = dict.fromkeys(row.label for row in own)
    lines: list[list[Cell]] = [
        [label, *(found.get((label, n)) for n in cells)]
        for label in sorted(labels, key=lambda label: _sort_key(found, label, cells))
    ]
    title = f"{describe_setting(suite)}, one pair, {TIMES} times, ms per pair"
    return Table(title, ("cells per side", *map(str, cells)), lines if len(cells) > 1 else [])


def make_loads_table(rows: Sequence[Measurement], suite: str) -> Table:
    """Return milliseconds per pair for other numbers of times and in a batch."""
    cells = SUITES[suite].reference
    own = [row for row in rows if (row.suite, row.cells) == (suite, cells)]
    kinds = sorted({(row.pairs, row.times) for row in own})
    found = {(row.label, (row.pairs, row.times)): 1e3 * row.seconds for row in own}
    labels = [row.label for row in select_setting(own, suite, cells)]
    lines: list[list[Cell]] = [
        [label, *(found.get((label, kind)) for kind in kinds)] for label in labels
    ]
    columns = ("solver", *(_describe_load(*kind) for kind in kinds))
    return Table(
        f"{describe_setting(suite, cells)}, ms per pair", columns, lines if len(kinds) > 1 else []
    )


def make_equal_error_table(rows: Sequence[Measurement]) -> Table:
    """Compare learned solvers with the fastest classical solver that is as accurate."""
    columns = (
        "learned",
        "L1, %",
        "ms per pair",
        "fastest classical solver at this error",
        "ms per pair",
        "times as long",
        "training, s",
        "pairs until training pays",
        f"fastest classical solver below {LIMIT:g} %",
        "times as long",
    )
    lines: list[list[Cell]] = []
    for row in rows:
        reference = row.cells == SUITES[row.suite].reference and row.times == TIMES
        if row.kind == "learned" and reference:
            lines.append(
                _compare(row, find_equal_error(rows, row), find_equal_error(rows, row, LIMIT))
            )
    return Table("Speed at equal error", columns, lines)


def _compare(row: Measurement, equal: Measurement | None, below: Measurement | None) -> list[Cell]:
    """Return one line of the comparison."""
    load = _describe_load(row.pairs, row.times)
    name = f"{row.label}, {describe_setting(row.suite, row.cells)}, {load}"
    line: list[Cell] = [name, row.l1_percent, 1e3 * row.seconds]
    if equal is None:
        line += ["none"] + [None] * 2
    else:
        line += [equal.label, 1e3 * equal.seconds, equal.seconds / row.seconds]
    line += [row.training_seconds, _format_break_even(row, equal)]
    return line + ([None] * 2 if below is None else [below.label, below.seconds / row.seconds])


def _format_break_even(row: Measurement, equal: Measurement | None) -> Cell:
    if row.training_seconds is None or equal is None:
        return None
    pairs = compute_break_even(row, equal)
    return "never" if pairs is None else round(pairs)


def make_scaling_table(found: Benchmark) -> Table:
    """Return the growth of the cost as slopes of log time against log size."""
    lines: list[list[Cell]] = [
        [
            curve.solver,
            curve.axis,
            f"{curve.values[0]}–{curve.values[-1]}",
            f"{format_digits(1e3 * curve.seconds[0])}–{format_digits(1e3 * curve.seconds[-1])}",
            f"{curve.slope:.2f}",
        ]
        for curve in found.scaling
    ]
    columns = ("solver", "quantity", "from–to", "ms per call", "slope of the upper half")
    return Table("Cost against size", columns, lines)


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


def _sort_key(found: dict[tuple[str, int], float], label: str, cells: list[int]) -> tuple:
    """Return the key that sorts solvers by number of grids, then by time on the last grid."""
    own = [found[label, n] for n in cells if (label, n) in found]
    return -len(own), own[-1]


def describe_setting(suite: str, cells: int | None = None) -> str:
    """Return dimension and grid in words."""
    dimension = SUITES[suite].dimension
    if cells is None:
        return f"{dimension}D"
    return f"{dimension}D, {cells}{'²' if dimension == 2 else ''} cells"


def _describe_load(pairs: int, times: int) -> str:
    moments = f"{times} times" if times > 1 else "1 time"
    return moments if pairs == 1 else f"{moments}, batch of {pairs}"
