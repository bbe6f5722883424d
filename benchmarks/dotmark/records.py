"""Rows of the DOTmark study, their file and their tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

from benchmarks.dotmark.images import CLASSES
from benchmarks.dotmark.methods import GEONET, METHODS, REFERENCE
from benchmarks.results import Cell, Provenance, Table
from geonet._files import atomic_write, wrap_read_errors

FILE = "dotmark.json"
README_SIZES = (64, 256, 512)  # the last one only if it was measured


@dataclass(frozen=True)
class Row:
    """The answer of one method to one pair.

    Attributes:
        kind: class of the images.
        cells: along each axis.
        pair: its name.
        method: its label; "reference" for the solution on cells that are cut into 2 × 2.
        seconds: of the path with five frames, or of the distance if there is no path.
        distance: W2.
        converged: False if the method stopped early.
        reference: W2 of the reference; None on grids without one.
        frame_percent: largest L1 error at t = ¼, ½, ¾ against the reference; None without frames.
        estimate_percent: the same as the report estimates it; None if it does not.
        report_seconds: of `path.report`; None without a path.
        bounds: lower and upper bound on W2 of the report; None without a path.
    """

    kind: str
    cells: int
    pair: str
    method: str
    seconds: float
    distance: float
    converged: bool
    reference: float | None = None
    frame_percent: float | None = None
    estimate_percent: float | None = None
    report_seconds: float | None = None
    bounds: list[float] | None = None

    @property
    def w2_percent(self) -> float | None:
        """Return the error of W2 against the reference, with its sign."""
        return None if self.reference is None else 100 * (self.distance / self.reference - 1)

    @property
    def bounds_percent(self) -> float | None:
        """Return the width of the bounds relative to W2."""
        if self.bounds is None:
            return None
        return 100 * (self.bounds[1] - self.bounds[0]) / self.distance


@dataclass(frozen=True)
class Dotmark:
    """All rows of the study.

    Attributes:
        provenance: of the measurement.
        rows: the answers.
        notes: sentences on answers that are missing.
    """

    provenance: Provenance | None
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> Path:
        """Write dotmark.json to a folder."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False)
        with atomic_write(folder / FILE) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
        return folder / FILE

    def merge(self, other: Dotmark) -> Dotmark:
        """Add the classes and sizes of `other` that are missing here, with its provenance."""
        own = {(row.kind, row.cells) for row in self.rows}
        added = [row for row in other.rows if (row.kind, row.cells) not in own]
        provenance = other.provenance if added else self.provenance
        notes = list(dict.fromkeys([*other.notes, *self.notes])) if added else self.notes
        return replace(self, provenance=provenance, rows=[*added, *self.rows], notes=notes)

    def select(self, method: str, cells: int, kind: str | None = None) -> list[Row]:
        """Return the rows of a method on one grid, of one class or of all."""
        rows = (row for row in self.rows if (row.method, row.cells) == (method, cells))
        return [row for row in rows if kind in (None, row.kind)]

    def list_sizes(self) -> list[int]:
        """Return the measured sizes, ascending."""
        return sorted({row.cells for row in self.rows})

    def list_kinds(self) -> list[str]:
        """Return the measured classes in the order of DOTmark, others last."""
        kinds = list(dict.fromkeys(row.kind for row in self.rows))
        return sorted(kinds, key=lambda kind: [*CLASSES, *kinds].index(kind))

    def list_methods(self) -> list[str]:
        """Return the measured methods without the reference."""
        return [m for m in dict.fromkeys(row.method for row in self.rows) if m != REFERENCE]


def read_dotmark_result(folder: Path) -> Dotmark:
    """Read the file that `Dotmark.save` wrote to a folder."""
    with wrap_read_errors(folder / FILE, "the result of a benchmark"):
        table = json.loads((folder / FILE).read_text(encoding="utf-8"))
        rows = [Row(**row) for row in table["rows"]]
        return Dotmark(Provenance.from_json(table["provenance"]), rows, table["notes"])


# ---- tables


def make_readme_table(found: Dotmark) -> Table:
    """Return medians over the images of DOTmark, one line per method, without empty columns."""
    methods, columns = found.list_methods(), ["method"]
    lines: list[list[Cell]] = [[_describe_method(found, method)] for method in methods]
    for cells in README_SIZES:
        images = [[r for r in found.select(m, cells) if r.kind in CLASSES] for m in methods]
        for name, measure in (
            (f"{cells}²: ms", _median_ms),
            ("error of W2, %", _median_error),
            ("bounds, % wide", _median_width),
        ):
            values = [measure(rows) for rows in images]
            if any(value is not None for value in values):
                columns.append(name)
                for line, value in zip(lines, values, strict=True):
                    line.append(value)
    return Table("", columns, lines)


def make_overview(found: Dotmark) -> Table:
    """Return medians over all pairs by number of cells, one line per method."""
    sizes, columns = found.list_sizes(), ["method"]
    for cells in sizes:
        columns += [f"{cells}²: ms", "W2, %", "frame, %"]
    lines: list[list[Cell]] = []
    for method in found.list_methods():
        line: list[Cell] = [_describe_method(found, method)]
        for cells in sizes:
            own = found.select(method, cells)
            line += [_median_ms(own), _median_error(own), _median(r.frame_percent for r in own)]
        lines.append(line)
    return Table("Medians over all pairs", columns, lines)


def make_class_table(found: Dotmark, cells: int) -> Table:
    """Return medians over the pairs of each class on one grid, one line per class and method."""
    columns = (
        *("class", "method", "ms", "over geonet", "report, ms", "W2", "bounds, % wide"),
        *("W2, %", "frame, %", "estimated", "converged"),
    )
    lines: list[list[Cell]] = []
    for kind in found.list_kinds():
        ours = found.select(GEONET, cells, kind)
        for method in found.list_methods():
            if own := found.select(method, cells, kind):
                lines.append([kind, method, *_summarise(own, ours)])
    return Table(f"{cells}² cells", columns, lines)


def _summarise(own: Sequence[Row], ours: Sequence[Row]) -> list[Cell]:
    """Return the cells of a class and method; `ours` are the rows of geonet."""
    reports = _median(row.report_seconds for row in own)
    tried = min(len(ours), _count_pairs(own[0].method) or len(ours))
    ours = [row for row in ours if row.pair in {other.pair for other in own}]
    return [
        *(_median_ms(own), _divide_times(own, ours), reports and 1e3 * reports),
        _format_distance(_median(row.distance for row in own)),
        *(_median_width(own), _median_error(own), _median(row.frame_percent for row in own)),
        _median(row.estimate_percent for row in own),
        f"{sum(row.converged for row in own)} of {max(len(own), tried)}",
    ]


def _count_pairs(label: str) -> int | None:
    """Return the number of pairs of each class that a method solves; None for all."""
    return next((method.pairs for method in METHODS if method.label == label), None)


def _describe_method(found: Dotmark, label: str) -> str:
    """Return the label of a method, with the number of its pairs if there are fewer."""
    if _count_pairs(label) is None:
        return label
    cells = min(found.list_sizes())
    return f"{label}, {len(found.select(label, cells))} pairs"


def _format_distance(value: float | None) -> str | None:
    return None if value is None else f"{value:.5f}"


def _divide_times(own: Sequence[Row], ours: Sequence[Row]) -> float | None:
    seconds = [_median(row.seconds for row in rows) for rows in (own, ours)]
    return seconds[0] / seconds[1] if seconds[0] and seconds[1] else None


def _median_ms(own: Sequence[Row]) -> float | None:
    return _median(1e3 * row.seconds for row in own)


def _median_width(own: Sequence[Row]) -> float | None:
    return _median(row.bounds_percent for row in own)


def _median_error(own: Sequence[Row]) -> float | None:
    return _median(None if row.w2_percent is None else abs(row.w2_percent) for row in own)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def find_missing(found: Dotmark) -> str | None:
    """Return a class and size that README needs and that was not measured; None if complete."""
    for kind in CLASSES:
        for cells in README_SIZES[:2]:
            if not found.select(GEONET, cells, kind):
                return f"{kind} on {cells}² cells"
    return None


def format_sections(found: Dotmark) -> dict[str, str]:
    """Return the sections of docs/dotmark.md by marker."""
    references = [row for row in found.rows if row.method == REFERENCE]
    reached = sum(row.converged for row in references)
    remark = f"{reached} of {len(references)} references reached their tolerance."
    ratios = [
        row.estimate_percent / row.frame_percent
        for row in found.rows
        if row.method == GEONET and row.frame_percent and row.estimate_percent
    ]
    close = sum(1 <= ratio <= 3 for ratio in ratios)
    remark += (
        f" The estimate of geonet is one to three times the error for {close} of {len(ratios)} "
        "pairs."
    )
    notes = "".join(f"\n- {note}" for note in found.notes)
    tables = [make_class_table(found, cells).to_markdown() for cells in found.list_sizes()]
    return {
        "dotmark": make_overview(found).to_markdown(),
        "dotmark-classes": "\n\n".join(tables),
        "dotmark-notes": f"{remark}\n{notes}".rstrip(),
    }
