"""Solves many pairs into a folder, one by one: failures are listed, finished pairs are kept."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from geonet.api import load
from geonet.cli.output import Bar, Show, counted
from geonet.cli.pair_list import ListedPair
from geonet.cli.recipe import SHOWN, Recipe, Rendering, Solved
from geonet.cli.waiting import InterruptedWorkError, waited_for
from geonet.errors import FileError, GeonetError
from geonet.files import made_folder, reading, written_atomically

RECIPE, SUMMARY = "recipe.json", "summary.csv"
MEASURED = (  # of the report, in this order
    "solver",
    "distance",
    "distance_lower_bound",
    "distance_upper_bound",
    "error_estimate",
    "in_distribution",
    "mass_error",
    "source_error",
    "target_error",
)
COLUMNS: tuple[str, ...] = ("file", "source", "target", *MEASURED, "converged", "changed")
SAVED_EVERY = 50  # pairs between two versions of the summary

Line = dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """A pair without an answer, and why."""

    pair: ListedPair
    message: str


@dataclass(frozen=True)
class Tally:
    """How many pairs were solved now, how many before, and which could not be.

    `changed` counts all that were coarsened or changed on the way, `missed` those whose solver did
    not reach its tolerance.
    """

    solved: int
    before: int
    changed: int
    missed: int
    failures: list[Failure]


def solve_many(
    pairs: list[ListedPair],
    base: Path,
    folder: Path,
    recipe: Recipe,
    bar: Bar,
    pictures: Rendering | None = None,
) -> Tally:
    """Solve what the folder lacks: NAME.npz for each pair, and a line in its summary.csv.

    Args:
        pairs: the list.
        base: the folder from which its relative names count.
        folder: where to write; one that holds answers to another recipe is refused.
        recipe: how.
        bar: shows how far it is.
        pictures: how to draw NAME.png for each pair, if at all.
    """
    lines = _opened(folder, {"files in": str(base.resolve()), **recipe.to_json()}, pairs)
    solved, before, failures = 0, 0, []
    try:
        for pair in pairs:
            try:
                if _is_done(pair, base, folder, lines):
                    before += 1
                else:
                    # What may be there belongs to other files.
                    lines.pop(f"{pair.name}.npz", None)
                    lines[f"{pair.name}.npz"] = _solve_pair(pair, base, folder, recipe, bar.show)
                    solved += 1
                    if solved % SAVED_EVERY == 0:
                        _write_summary(folder, lines)
                if pictures is not None:
                    _draw_pair(pair, folder, recipe, pictures)
            except (GeonetError, MemoryError, RuntimeError) as error:  # torch's, out of memory
                said = " ".join(str(error).split())
                failures.append(Failure(pair, said or "There is not enough memory."))
            bar.tick()
    except KeyboardInterrupt:
        done = f"{before + solved:,} of {counted(len(pairs), 'pair')} are done"
        raise InterruptedWorkError(f"Interrupted: {done}; the same command goes on.") from None
    finally:
        _write_summary(folder, lines)
    found = [lines.get(f"{pair.name}.npz", {}) for pair in pairs]
    changed = sum(bool(line.get("changed")) for line in found)
    missed = sum(str(line.get("converged")) == "False" for line in found)  # text, where it is read
    return Tally(solved, before, changed, missed, failures)


def _solve_pair(pair: ListedPair, base: Path, folder: Path, recipe: Recipe, show: Show) -> Line:
    """Solve and write a pair; gives its line of the summary."""
    if not pair.source or not pair.target:
        raise FileError(f"Line {pair.line} names no two files; write source,target.")
    ends = base / pair.source, base / pair.target
    solved = waited_for(lambda: recipe.solve(*ends).judged(), show)
    report = solved.report.to_dict()
    file = folder / f"{pair.name}.npz"
    solved.write(file, Rendering(recipe.times, mass=recipe.mass))
    names = {"file": file.name, "source": pair.source, "target": pair.target}
    measured = {key: report[key] for key in MEASURED}
    measured |= {"converged": solved.report.notes.get("converged")}
    return names | measured | {"changed": " ".join(solved.changes)}


def _draw_pair(pair: ListedPair, folder: Path, recipe: Recipe, how: Rendering) -> None:
    """Draw the answer of a pair, unless there is a picture of it that shows the same."""
    answer, picture = (folder / f"{pair.name}{suffix}" for suffix in (".npz", ".png"))
    if _is_drawn(answer, picture, how):
        return
    path = load(answer)
    Solved(path, recipe.grid_for(path), 0.0).write(picture, how)


def _is_drawn(answer: Path, picture: Path, how: Rendering) -> bool:
    try:
        if picture.stat().st_mtime_ns < answer.stat().st_mtime_ns:
            return False
        with Image.open(picture, formats=("PNG",)) as image:
            return image.info.get(SHOWN) == how.shown
    except (OSError, ValueError, SyntaxError):  # it is not there, or no picture
        return False


def _is_done(pair: ListedPair, base: Path, folder: Path, lines: dict[str, Line]) -> bool:
    """Whether there is an answer for these two files that is newer than both."""
    line, answer = lines.get(f"{pair.name}.npz", {}), folder / f"{pair.name}.npz"
    if (line.get("source"), line.get("target")) != (pair.source, pair.target):
        return False
    try:
        moment = answer.stat().st_mtime_ns
        ends = (base / pair.source, base / pair.target)
        return all(end.stat().st_mtime_ns <= moment for end in ends)
    except (OSError, ValueError):  # one of them is not there
        return False


def _opened(folder: Path, asked: dict[str, Any], pairs: list[ListedPair]) -> dict[str, Line]:
    """The summary of a folder by file; refuses that of another recipe, or begins a new one."""
    made_folder(folder)
    file, asked = folder / RECIPE, json.loads(json.dumps(asked))
    if not file.exists():
        for name in (SUMMARY, *(f"{pair.name}.npz" for pair in pairs)):
            if (folder / name).exists():
                raise FileError(f"{folder / name} is there and not from here; give another folder.")
        with written_atomically(file) as temporary:
            temporary.write_text(json.dumps(asked, indent=2) + "\n", encoding="utf-8")
        return {}
    with reading(file, "JSON"):
        before = json.loads(file.read_text(encoding="utf-8"))
    if before != asked:
        known = before if isinstance(before, dict) else {}
        differing = [key for key in asked if asked[key] != known.get(key)]
        raise FileError(
            f"{folder} holds answers with other {' and '.join(differing) or 'settings'}; "
            "give another folder, or the same settings to go on."
        )
    return _read_summary(folder / SUMMARY)


def _read_summary(file: Path) -> dict[str, Line]:
    if not file.exists():
        return {}
    with reading(file, "a summary"), file.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise FileError(f"{file} is no summary of pairs; remove it, or give another folder.")
        return {line["file"]: dict(line) for line in reader}


def _write_summary(folder: Path, lines: dict[str, Line]) -> None:
    with (
        written_atomically(folder / SUMMARY) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(lines.values())
