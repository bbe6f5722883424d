"""Tables of a study in one JSON file, with commit, date and machine.

A study is a dictionary of measurements that return tables. `run_study` prints and stores them one
by one in NAME.json; `benchmarks.page` copies them to docs/NAME.md, between the markers
<!-- NAME-SECTION --> and <!-- /NAME-SECTION -->.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import typer

from benchmarks.process import format_error
from benchmarks.results import Provenance, Table, record_provenance
from geonet._files import atomic_write, ensure_dir, wrap_read_errors
from geonet.errors import ConvergenceWarning, InputError

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Study:
    """The tables of a study, all measured at one commit.

    Attributes:
        provenance: commit, date and machine.
        quick: True for a check with few and small problems.
        tables: by section.
    """

    provenance: Provenance | None
    quick: bool
    tables: dict[str, Table]

    def save(self, file: Path) -> None:
        """Write a JSON file; raise ValueError if a number is not finite."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False, allow_nan=False)
        with atomic_write(file) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")


def run_study(
    name: str,
    sections: Mapping[str, Callable[[], Table]],
    only: str,
    quick: bool,
    folder: Path,
) -> None:
    """Measure sections, print their tables and store them after each.

    Other sections are kept if they were measured at the same commit.

    Args:
        name: name of the study and of its file.
        sections: measurements by the name of their section.
        only: names of sections, separated by commas; all if empty.
        quick: True for a check with few and small problems.
        folder: place of the file.
    """
    chosen = [section for section in only.split(",") if section] or list(sections)
    if unknown := [section for section in chosen if section not in sections]:
        raise InputError(f"There is no section {unknown[0]!r}; choose from {', '.join(sections)}.")
    file = ensure_dir(folder) / f"{name}.json"
    stored = _start_study(file, quick)
    failures = []
    for section in chosen:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # convergence is a column
                table = sections[section]()
            found = replace(stored, tables=stored.tables | {section: table})
            found.save(file)
        except Exception as error:  # the other sections are measured nevertheless
            failures.append(f"{section}: {format_error(error)}")
            continue
        stored = found
        typer.echo(f"{table.to_markdown()}\n")
    if failures:
        raise InputError("\n".join(["Sections that failed:", *failures]))


def _start_study(file: Path, quick: bool) -> Study:
    """Return the stored study of this commit, or an empty one."""
    provenance = record_provenance()
    if file.exists():
        before = read_study(file)
        if before.provenance and (before.provenance.commit, before.quick) == (
            provenance.commit,
            quick,
        ):
            return replace(before, provenance=provenance)
    return Study(provenance, quick, {})


def read_study(file: Path) -> Study:
    """Read the file that `Study.save` wrote."""
    with wrap_read_errors(file, "the result of a study"):
        found = json.loads(file.read_text(encoding="utf-8"))
        tables = {name: Table(**table) for name, table in found["tables"].items()}
        return Study(Provenance.from_json(found["provenance"]), found["quick"], tables)


def observe_convergence(call: Callable[[], Answer]) -> tuple[Answer, bool]:
    """Return the answer of a call, and False if it gave a `ConvergenceWarning`."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = call()
    return answer, not any(issubclass(each.category, ConvergenceWarning) for each in caught)


def format_count(flags: Sequence[bool]) -> str:
    """Return the number of true flags, such as "3 of 4"."""
    return f"{sum(flags)} of {len(flags)}"


def percent_error(value: float, truth: float) -> float:
    """Return the relative error in per cent, with its sign."""
    return 100 * (float(value) / float(truth) - 1)
