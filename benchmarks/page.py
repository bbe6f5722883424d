"""Copy benchmarks/results to the pages in docs/ and to README, between markers."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.any_pair import tables as any_pair
from benchmarks.dotmark import records as dotmark
from benchmarks.measurement import read_tables
from benchmarks.pages import ROOT, format_note, replace_section
from benchmarks.records import (
    LIMIT,
    Benchmark,
    Measurement,
    compute_break_even,
    find_equal_error,
    read_benchmark,
    select_setting,
)
from benchmarks.results import format_digits
from benchmarks.suites import SUITES
from benchmarks.tables import (
    make_equal_error_table,
    make_loads_table,
    make_ranking,
    make_scaling_table,
    make_sizes_table,
    make_skipped_table,
)

RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "benchmark.md"
PICTURES = {
    "any": "Error against time, any pair",
    "pareto": "Error against time",
    "resolution": "Time against resolution",
    "runtime": "The paper's figure of runtimes",
    "break-even": "When training pays",
    "scaling": "Cost against size",
}
STUDIES = ("barycenters", "unbalanced", "periodic", "fields")  # each has NAME.json and docs/NAME.md
ANY_PLACES = ("any", "any-trust", "any-kinds", "any-out")


def read_results(results: Path = RESULTS) -> Benchmark:
    """Read the results of a full run; reject quick or incomplete ones."""
    found = read_benchmark(results)
    if found.quick:
        raise SystemExit("benchmarks/results/benchmark.json is of a quick run; run make benchmark.")
    missing = [
        name
        for name in SUITES
        if not any(
            r.label == f"transport-{name}"
            for r in select_setting(found.settings, name, reference_cells(name))
        )
    ]
    if missing or not found.scaling:
        raise SystemExit("benchmarks/results/benchmark.json lacks suites; run make benchmark.")
    return found


def format_sections(found: Benchmark) -> dict[str, str]:
    """Return the sections of the page by marker."""
    rows = found.settings
    return format_any_sections(found) | {
        "machine": ", ".join(
            f"{name.replace('_', ' ')} {value or 'none'}" for name, value in found.machine.items()
        ),
        "front": _format_picture("pareto"),
        "2d": _join(write_remark(rows, "2d"), make_ranking(rows, "2d").to_markdown()),
        "1d": _join(write_remark(rows, "1d"), make_ranking(rows, "1d").to_markdown()),
        "sizes": _join(
            _format_picture("resolution"),
            *(make_sizes_table(rows, s).to_markdown() for s in ("2d", "1d")),
        ),
        "loads": _join(*(make_loads_table(rows, suite).to_markdown() for suite in ("2d", "1d"))),
        "equal-error": _join(
            make_equal_error_table(rows).to_markdown(), _format_picture("break-even")
        ),
        "paper": _format_picture("runtime"),
        "scaling": _join(make_scaling_table(found).to_markdown(), _format_picture("scaling")),
        "left-out": make_skipped_table(found.skipped).to_markdown(),
    }


def format_any_sections(found: Benchmark) -> dict[str, str]:
    """Return the sections of the suite `any`; empty texts if it was not measured."""
    pairs = found.any
    if pairs is None:
        return dict.fromkeys(ANY_PLACES, "")
    return {
        "any": _join(any_pair.make_overview(pairs).to_markdown(), _format_picture("any")),
        "any-trust": _join(
            any_pair.write_remark(pairs), any_pair.make_trust_table(pairs).to_markdown()
        ),
        "any-kinds": _join(
            *(any_pair.make_kinds_table(pairs, n).to_markdown() for n in pairs.finer)
        ),
        "any-out": any_pair.make_unanswered_table(pairs.unanswered).to_markdown(),
    }


def write_remark(rows: Sequence[Measurement], suite: str) -> str:
    """Return sentences on the fastest solvers below the error limit and on training."""
    dimension, cells = SUITES[suite].dimension, reference_cells(suite)
    own = [row for row in select_setting(rows, suite, cells) if row.solver != "auto"]
    good = [row for row in own if row.l1_percent <= LIMIT]
    if not good:
        return f"In {dimension}D no solver has an error below {LIMIT:g} %."
    text = (
        f"The fastest {dimension}D solver with an error below {LIMIT:g} % is {_describe(good[0])}."
    )
    rival = next((row for row in good if row.kind != good[0].kind), None)
    if rival is not None:
        ratio = format_digits(rival.seconds / good[0].seconds)
        text += (
            f" The fastest {rival.kind} one is {_describe(rival)}; it takes {ratio} times as long."
        )
    learned = next((row for row in own if row.label == f"transport-{dimension}d"), None)
    return text if learned is None else f"{text} {_write_break_even(rows, learned)}"


def _write_break_even(rows: Sequence[Measurement], learned: Measurement) -> str:
    equal = find_equal_error(rows, learned)
    if equal is None:
        return f"No classical solver is as accurate as `{learned.label}`."
    ratio = format_digits(equal.seconds / learned.seconds)
    pairs = compute_break_even(learned, equal)
    text = f"The fastest classical solver that is as accurate as `{learned.label}` is"
    text += f" `{equal.label}`; it takes {ratio} times as long."
    never = f" Training `{learned.label}` never pays."
    pays = f" Training `{learned.label}` pays after {pairs or 0:,.0f} pairs."
    return text + (never if pairs is None else pays)


def reference_cells(suite: str) -> int:
    """Return the number of cells of the tables of a suite."""
    return SUITES[suite].reference


def _describe(row: Measurement) -> str:
    return (
        f"`{row.label}` ({format_digits(1e3 * row.seconds)} ms, {format_digits(row.l1_percent)} %)"
    )


def _format_picture(name: str) -> str:
    return f"![{PICTURES[name]}](images/benchmark-{name}.png)"


def _join(*parts: str) -> str:
    return "\n\n".join(parts)


def write_dotmark(results: Path = RESULTS, root: Path = ROOT) -> None:
    """Update docs/dotmark.md and README from dotmark.json; reject incomplete results."""
    found = dotmark.read_dotmark_result(results)
    if (missing := dotmark.find_missing(found)) is not None:
        raise SystemExit(f"{results / dotmark.FILE} lacks {missing}; measure all classes.")
    note = format_note(found.provenance, "make benchmark NAME=dotmark DATA=folder")
    for name, text in dotmark.format_sections(found).items():
        replace_section(root / "docs" / "dotmark.md", name, f"{text}\n\n{note}")
    table = dotmark.make_readme_table(found).to_markdown()
    replace_section(root / "README.md", "dotmark", f"{table}\n\n{note}")


def write_study(name: str, results: Path = RESULTS, root: Path = ROOT) -> None:
    """Update docs/NAME.md and its pictures from NAME.json; reject tables of a quick run.

    A picture NAME-section.png stands below the table of its section.
    """
    file, images = results / f"{name}.json", root / "docs" / "images"
    for picture in results.glob(f"{name}-*.png"):
        shutil.copyfile(picture, images / picture.name)
    for section, stored in read_tables(file).items():
        if stored.quick:
            raise SystemExit(f"{section} in {file} is of a quick run; run make benchmark.")
        note = format_note(stored.provenance, f"make benchmark NAME={name}")
        parts = [stored.table.to_markdown(), note]
        picture = f"{name}-{section}.png"
        if (images / picture).exists():
            parts.append(f"![{stored.table.title}](images/{picture})")
        replace_section(root / "docs" / f"{name}.md", f"{name}-{section}", _join(*parts))


def main() -> None:
    """Update the pages with their pictures."""
    for name in STUDIES:
        if (RESULTS / f"{name}.json").exists():
            write_study(name)
    if (RESULTS / dotmark.FILE).exists():
        write_dotmark()
    result = read_results()
    note = format_note(result.provenance, "make benchmark")
    pairs = result.any
    any_note = note if pairs is None else format_note(pairs.provenance, "make benchmark")
    for name, text in format_sections(result).items():
        notes = {"machine": ""}.get(name, any_note if name in ANY_PLACES else note)
        replace_section(PAGE, name, f"{text}\n\n{notes}".rstrip())
    for name in PICTURES if pairs is not None else [n for n in PICTURES if n != "any"]:
        file = f"benchmark-{name}.png"
        if (RESULTS / file).exists():  # a run writes pictures, but only its numbers are stored
            shutil.copyfile(RESULTS / file, IMAGES / file)


if __name__ == "__main__":
    main()
