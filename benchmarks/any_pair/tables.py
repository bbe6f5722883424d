"""Tables of the suite `any`, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from benchmarks.any_pair.records import CLOSE_FRAMES, CLOSE_W2, Answer, AnyPairs, Unanswered
from benchmarks.results import Cell, Table

NOTHING = "–"  # no large error


def make_any_tables(found: AnyPairs | None) -> list[Table]:
    """Return all tables that have rows."""
    if found is None:
        return []
    made = [make_overview(found), make_trust_table(found), make_kinds_table(found)]
    made.append(make_unanswered_table(found.unanswered))
    return [table for table in made if table.rows]


def make_overview(found: AnyPairs) -> Table:
    """Return medians over all pairs by number of cells, one line per solver."""
    columns = ["solver"]
    for cells in found.finer:
        columns += [f"{cells}²: W2, %", "frames, %", "ms"]
    lines: list[list[Cell]] = []
    for label in _list_labels(found.answers):
        line: list[Cell] = [label]
        for cells in found.finer:
            own = _select(found.answers, label, cells)
            line += [
                _median_distance(own),
                _median(row.frame_percent for row in own),
                _median_ms(own),
            ]
        lines.append(
            [*line, " · ".join(_count_answered(found, label, cells) for cells in found.finer)]
        )
    title = "Any pair: medians over the pairs that were answered"
    return Table(title, [*columns, "answered"], lines)


def make_kinds_table(found: AnyPairs, label: str = "auto") -> Table:
    """Return medians of one solver, one line per kind."""
    columns = ["kind"]
    for cells in found.finer:
        columns += [f"{cells}²: W2, %", "frames, %", "ms", "bounds, % wide"]
    lines: list[list[Cell]] = []
    for kind in dict.fromkeys(row.kind for row in found.answers if row.label == label):
        line: list[Cell] = [kind]
        for cells in found.finer:
            own = [row for row in _select(found.answers, label, cells) if row.kind == kind]
            line += [_median_distance(own), _median(row.frame_percent for row in own)]
            line += [_median_ms(own), _median(row.bounds_percent for row in own)]
        lines.append(line)
    return Table(f"`{label}` kind by kind, medians", columns, lines)


def make_trust_table(found: AnyPairs) -> Table:
    """Return shares of right answers, bounds and flagged errors, one line per solver and grid.

    A miss is a frame with an error above 1 %; it is flagged if the report estimated at least half
    of the error.
    """
    columns = (
        *("solver", "cells", f"W2 within {CLOSE_W2:g} %", f"frames within {CLOSE_FRAMES:g} %"),
        *("worst W2, %", "worst frame, %", "bounds on W2, % wide", "W2 inside"),
        *("outside by at most, %", "misses flagged"),
    )
    lines: list[list[Cell]] = []
    for label in _list_labels(found.answers):
        for cells in found.finer:
            own = _select(found.answers, label, cells)
            if own:
                close, width, inside, flagged = _count_shares(own)
                off = [abs(row.w2_percent) for row in own if row.w2_percent is not None]
                worst = [max(off, default=None), max(row.frame_percent for row in own)]
                outside = max(row.outside_percent for row in own)
                lines.append([label, f"{cells}²", *close, *worst, width, inside, outside, flagged])
    return Table("What can be relied on", columns, lines)


def make_unanswered_table(rows: Sequence[Unanswered]) -> Table:
    """Return the pairs that were not measured, by solver, grid and reason."""
    grouped: dict[tuple[str, int, str], list[Unanswered]] = {}
    for row in rows:  # reasons with other numbers are one
        words = "".join("#" if letter.isdigit() else letter for letter in row.reason)
        grouped.setdefault((row.label, row.cells, words), []).append(row)
    lines: list[list[Cell]] = []
    for (label, cells, _), own in grouped.items():
        kinds = [row.kind for row in own]
        counts = ", ".join(f"{kind} {kinds.count(kind)}" for kind in dict.fromkeys(kinds))
        lines.append([label, f"{cells}²", counts, own[0].reason])
    return Table("Pairs that were not measured", ("solver", "cells", "pairs", "why"), lines)


def write_remark(found: AnyPairs, label: str = "auto") -> str:
    """Return a sentence per grid on the accuracy of a solver; empty if it was not measured."""
    sentences = []
    for cells in found.finer:
        own = _select(found.answers, label, cells)
        if own:
            close, _, inside, flagged = _count_shares(own)
            flags = "" if flagged == NOTHING else f"; {flagged} misses were flagged"
            sentences.append(
                f"On {cells}² cells, W2 of `{label}` is within {CLOSE_W2:g} % for {close[0]} pairs "
                f"and all of its frames within {CLOSE_FRAMES:g} % for {close[1]}; "
                f"W2 lies inside its bounds for {inside}{flags}."
            )
    return " ".join(sentences)


# ---- cells of a line


def _count_shares(own: Sequence[Answer]) -> tuple[list[Cell], Cell, Cell, Cell]:
    """Return counts of right answers, width of the bounds, W2 inside them, flagged misses."""
    close = [
        _count(row.has_close_distance for row in own),
        _count(row.has_close_frames for row in own),
    ]
    if all(row.w2_percent is None for row in own):
        close[0] = None
    missed = [row for row in own if not row.has_close_frames]
    width = median(row.bounds_percent for row in own)
    inside = _count(row.outside_percent == 0 for row in own)
    return close, width, inside, _count(row.is_flagged for row in missed) if missed else NOTHING


def _count(flags: Iterable[bool]) -> Cell:
    listed = list(flags)
    return f"{sum(listed)} of {len(listed)}"


def _median_distance(own: Sequence[Answer]) -> Cell:
    return _median(abs(row.w2_percent) for row in own if row.w2_percent is not None)


def _median_ms(own: Sequence[Answer]) -> Cell:
    return _median(1e3 * row.seconds for row in own)


def _median(values: Iterable[float]) -> float | None:
    listed = list(values)
    return median(listed) if listed else None


def _count_answered(found: AnyPairs, label: str, cells: int) -> str:
    answers = len(_select(found.answers, label, cells))
    missing = sum((row.label, row.cells) == (label, cells) for row in found.unanswered)
    return f"{answers} of {answers + missing}"


def _list_labels(rows: Sequence[Answer]) -> list[str]:
    return list(dict.fromkeys(row.label for row in rows))


def _select(rows: Sequence[Answer], label: str, cells: int) -> list[Answer]:
    return [row for row in rows if (row.label, row.cells) == (label, cells)]
