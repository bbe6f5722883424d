"""Rebuild all measured sections of the pages, and their pictures, from the stored results.

    python -m benchmarks.page

Nothing is measured. Every file in benchmarks/results and experiments/results belongs to one study,
comparison or experiment; `collect_sections` formats its tables with commit, date and machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.any_pair import tables as any_pair
from benchmarks.dotmark import records as dotmark
from benchmarks.measurement import read_study
from benchmarks.pages import ROOT, Sections, format_note, read_sections, write_sections
from benchmarks.pictures import save_figures
from benchmarks.records import (
    FILE,
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
from benchmarks.tables import make_ranking
from experiments import page as reproduction

RESULTS = ROOT / "benchmarks" / "results"
COMPARISON = "docs/benchmark.md"
PICTURES = {"any": "Error against time, any pair", "pareto": "Error against time"}
TABLED = (
    "barycenters",
    "unbalanced",
    "periodic",
    "fields",
)  # NAME.json has tables for docs/NAME.md


def main() -> None:
    """Write all pages and pictures."""
    images = ROOT / "docs" / "images"
    for picture in RESULTS.glob("*.png"):
        shutil.copyfile(picture, images / picture.name)
    save_figures(read_comparison(), images)
    reproduction.copy_pictures(images)
    write_sections(collect_sections())


def collect_sections(results: Path = RESULTS) -> Sections:
    """Return all measured sections by page and marker; reject results of quick runs."""
    collected: Sections = {}
    for file in sorted(results.glob("*.json")):
        for page, sections in _format_file(file).items():
            collected.setdefault(page, {}).update(sections)
    collected[reproduction.PAGE] = reproduction.format_sections()
    return collected


def _format_file(file: Path) -> Sections:
    """Return the sections of one file of results."""
    if file.name == FILE:
        return {COMPARISON: format_comparison(read_comparison(file.parent))}
    if file.name == dotmark.FILE:
        return format_dotmark(file.parent)
    return format_tables(file) if file.stem in TABLED else read_sections(file)


# ---- the comparison of all solvers


def read_comparison(results: Path = RESULTS) -> Benchmark:
    """Read the results of a full run; reject quick or incomplete ones."""
    found = read_benchmark(results)
    if found.quick:
        raise SystemExit(f"{results / FILE} is of a quick run; run make benchmark.")
    suites = {row.suite for row in found.settings}
    if found.any is None or suites != set(SUITES):
        raise SystemExit(f"{results / FILE} lacks suites; run make benchmark.")
    return found


def format_comparison(found: Benchmark) -> dict[str, str]:
    """Return the sections of docs/benchmark.md by marker."""
    rows, pairs = found.settings, found.any
    note = format_note(found.provenance, "make benchmark")
    sections = {
        "front": _join(_format_picture("pareto"), note),
        "2d": _join(write_remark(rows, "2d"), make_ranking(rows, "2d").to_markdown(), note),
        "1d": _join(write_remark(rows, "1d"), make_ranking(rows, "1d").to_markdown(), note),
        "machine": ", ".join(
            f"{name.replace('_', ' ')} {value or 'none'}" for name, value in found.machine.items()
        ),
    }
    if pairs is None:
        return sections
    note = format_note(pairs.provenance, "make benchmark")
    trust = any_pair.make_trust_table(pairs).to_markdown()
    return sections | {
        "any": _join(any_pair.make_overview(pairs).to_markdown(), _format_picture("any"), note),
        "any-trust": _join(any_pair.write_remark(pairs), trust, note),
        "any-kinds": _join(any_pair.make_kinds_table(pairs).to_markdown(), note),
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


# ---- studies


def format_dotmark(results: Path = RESULTS) -> Sections:
    """Return the sections of docs/dotmark.md and README; reject incomplete results."""
    found = dotmark.read_dotmark_result(results)
    if (missing := dotmark.find_missing(found)) is not None:
        raise SystemExit(f"{results / dotmark.FILE} lacks {missing}; measure all classes.")
    note = format_note(found.provenance, "make benchmark NAME=dotmark DATA=folder")
    sections = {name: _join(text, note) for name, text in dotmark.format_sections(found).items()}
    readme = {"dotmark": _join(dotmark.make_readme_table(found).to_markdown(), note)}
    return {"docs/dotmark.md": sections, "README.md": readme}


def format_tables(file: Path) -> Sections:
    """Return the sections of docs/NAME.md from the tables of NAME.json; reject a quick run.

    The picture NAME-SECTION.png stands below the table of its section.
    """
    name, study = file.stem, read_study(file)
    if study.quick:
        raise SystemExit(f"{file} is of a quick run; run make benchmark NAME={name}.")
    note, sections = format_note(study.provenance, f"make benchmark NAME={name}"), {}
    for section, table in study.tables.items():
        parts, picture = [table.to_markdown(), note], f"{name}-{section}.png"
        if (ROOT / "docs" / "images" / picture).exists():
            parts.append(f"![{table.title}](images/{picture})")
        sections[f"{name}-{section}"] = _join(*parts)
    return {f"docs/{name}.md": sections}


if __name__ == "__main__":
    main()
