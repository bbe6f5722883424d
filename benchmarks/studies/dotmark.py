"""DOTmark: geonet, back-and-forth, network simplex and Sinkhorn on the images of the standard set.

    make benchmark NAME=dotmark DATA=folder RADAR=folder
    python -m benchmarks study dotmark --data folder --sizes 32,64 --classes Shapes,GRFsmooth

Prints the tables and writes benchmarks/results/dotmark.json after every pair. `python -m
benchmarks.page` copies them to docs/dotmark.md and README. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.dotmark.images import Pair, read_dotmark, read_showers
from benchmarks.dotmark.methods import (
    METHODS,
    REFERENCE,
    Answer,
    Method,
    evaluate_frames,
    solve_reference,
)
from benchmarks.dotmark.records import (
    Dotmark,
    Row,
    make_class_table,
    make_overview,
    read_dotmark_result,
)
from benchmarks.pages import RESULTS
from benchmarks.process import format_error
from benchmarks.results import record_provenance
from geonet._files import ensure_dir
from geonet.cli.output import print_table
from geonet.errors import ConvergenceError, InputError
from geonet.metrics import l1


def main(
    data: Annotated[Path, typer.Option(help="Folder of DOTmark: CLASS.npz or CLASS/*.csv.")],
    radar: Annotated[Path | None, typer.Option(help="Folder of radar images, *.pgm.gz.")] = None,
    sizes: Annotated[str, typer.Option(help="Cells along each axis.")] = "64,256,512",
    images: Annotated[str, typer.Option(help="Numbers of the images.")] = "1-4",
    pairs: Annotated[
        Literal["successive", "all"], typer.Option(help="1-2 and 3-4, or all pairs of images.")
    ] = "successive",
    classes: Annotated[str, typer.Option(help="Names of classes; default: all.")] = "",
    update: Annotated[
        bool, typer.Option("--update", help="Keep the results of other classes and sizes.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Measure all methods on pairs of DOTmark images; print and store the results."""
    numbers = parse_numbers(images)
    chosen = list(combinations(numbers, 2))
    if pairs == "successive":
        chosen = list(zip(numbers[::2], numbers[1::2], strict=False))
    kinds, cells = [kind for kind in classes.split(",") if kind], parse_numbers(sizes)
    read = read_dotmark(data, kinds, cells, chosen)
    read += [] if radar is None else read_showers(radar, cells)
    folder = ensure_dir(out)
    found = measure(read, METHODS, folder, read_dotmark_result(folder) if update else None)
    for table in (make_overview(found), *(make_class_table(found, n) for n in found.list_sizes())):
        typer.echo(f"\n{table.title}")
        print_table(table.format_rows(), list(table.columns))
    typer.echo("\n".join(["", *found.notes]))


def parse_numbers(text: str) -> list[int]:
    """Return the numbers of a text such as "1-4" or "32,64"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            numbers += range(int(first), int(last if dash else first) + 1)
        except ValueError as error:
            raise InputError(f"{text!r} is no list of numbers; write 1-4 or 32,64.") from error
    return numbers


def measure(
    pairs: Sequence[Pair], methods: Sequence[Method], folder: Path, before: Dotmark | None = None
) -> Dotmark:
    """Measure all methods on all pairs, and store the rows after every pair.

    Args:
        pairs: in the order of measurement.
        methods: geonet and its competitors.
        folder: of dotmark.json.
        before: results of other classes and sizes to keep, if any.
    """
    missing = [method for method in methods if not method.is_installed]
    notes = [
        f"{method.label} needs {method.package}, which is not installed." for method in missing
    ]
    found = Dotmark(record_provenance(), notes=notes)
    warm: set[tuple[str, int]] = set()  # methods by size that were called once, without timing
    for pair in sorted(pairs, key=lambda pair: pair.cells):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # convergence is recorded
            reference = solve_reference(pair)
            if reference is not None:
                found.rows.append(make_row(pair, REFERENCE, reference, None))
            for method in methods:
                solved = len(found.select(method.label, pair.cells, pair.kind))
                if method not in missing and method.can_solve(pair, solved):
                    measure_method(method, pair, reference, found, warm)
        _merge(found, before).save(folder)
    return _merge(found, before)


def _merge(found: Dotmark, before: Dotmark | None) -> Dotmark:
    return found if before is None else found.merge(before)


def measure_method(
    method: Method,
    pair: Pair,
    reference: Answer | None,
    found: Dotmark,
    warm: set[tuple[str, int]],
) -> None:
    """Add the row of a method, or a note if it fails."""
    place = f"{pair.kind} {pair.name}, {pair.cells}²"
    try:
        if (method.label, pair.cells) not in warm:
            method.solve(pair)
            warm.add((method.label, pair.cells))
        row = make_row(pair, method.label, method.solve(pair), reference)
    except Exception as error:  # it must not end the run
        found.notes.append(f"{method.label}, {place}: {format_error(error)}")
        return
    found.rows.append(row)
    stopped = "" if row.converged else ", not converged"
    text = f"{place}: {row.method}, {1e3 * row.seconds:.4g} ms, W2 {row.distance:.5f}{stopped}"
    typer.echo(text, err=True)


def make_row(pair: Pair, label: str, answer: Answer, reference: Answer | None) -> Row:
    """Return the row of an answer, with its report, and its frames against the reference."""
    if not math.isfinite(answer.distance):
        raise ConvergenceError("W2 is not finite.", math.nan)
    row = Row(
        *(pair.kind, pair.cells, pair.name, label),
        *(answer.seconds, answer.distance, answer.converged),
        None if reference is None else reference.distance,
    )
    if answer.path is None or label == REFERENCE:
        return row
    report, estimate = answer.path.report, answer.path.report.error_estimate
    bounds = [report.distance_lower_bound, report.distance_upper_bound]
    row = replace(
        row,
        report_seconds=answer.report_seconds,
        bounds=bounds,
        estimate_percent=None if estimate is None else 100 * estimate,
    )
    if reference is None or reference.path is None:
        return row
    frames = (evaluate_frames(path, pair) for path in (answer.path, reference.path))
    return replace(row, frame_percent=100 * float(l1(*frames).max()))


if __name__ == "__main__":
    typer.run(main)
