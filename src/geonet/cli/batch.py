"""Solves many pairs into a folder, one by one: failures are listed, finished pairs are kept."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from geonet._advice import at_the_command_line
from geonet._files import atomic_write, ensure_dir, wrap_read_errors
from geonet._threads import one_thread
from geonet.api import load
from geonet.cli.job import SHOWN, Recipe, Rendering, Solved
from geonet.cli.output import Bar, InterruptedWorkError, Show, counted, waited_for
from geonet.errors import FileError, GeonetError

if TYPE_CHECKING:
    from distributed import Client


# ---- A csv with the columns `source,target`: the list of pairs of `geonet geodesic --pairs`.


COLUMNS_PAIR_LIST = ("source", "target")


@dataclass(frozen=True)
class ListedPair:
    """One pair of the list.

    Attributes:
        line: in the list, from 1, where its header is.
        source: a file, as the list has it.
        target: likewise.
        name: of the answer, without suffix; no other row has it.
    """

    line: int
    source: str
    target: str
    name: str


def read_pair_list(file: Path) -> list[ListedPair]:
    """The rows of a list; the files themselves are not read."""
    with (
        wrap_read_errors(file, "a list of pairs"),
        file.open(encoding="utf-8-sig", newline="") as stream,
    ):
        reader = csv.DictReader(stream, skipinitialspace=True, strict=True)
        names = [" ".join(name.lower().split()) for name in reader.fieldnames or []]
        reader.fieldnames = names
        if not set(COLUMNS_PAIR_LIST) <= set(names):
            raise FileError(
                f"{file} has the columns {', '.join(names) or '(none)'}; "
                "begin a list of pairs with the line source,target."
            )
        found = [(reader.line_num, _cell(row, "source"), _cell(row, "target")) for row in reader]
    if not found:
        raise FileError(f"{file} lists no pairs; add lines such as a.png,b.png.")
    return _named(found)


def _cell(row: dict[str, str | None], name: str) -> str:
    return (row[name] or "").strip()


def _named(found: list[tuple[int, str, str]]) -> list[ListedPair]:
    """Names from those of the files; the second of a name gets -2, so adding rows renames none."""
    rows, taken = [], Counter[str]()
    for line, source, target in found:
        name = f"{Path(source).stem}-{Path(target).stem}"
        taken[name] += 1
        while taken[name] > 1:
            name = f"{name}-{taken[name]}"
            taken[name] += 1
        rows.append(ListedPair(line, source, target, name))
    return rows


T = TypeVar("T")
Do = Callable[[Callable[[], Solved]], Solved]  # solves now, or in a thread that can be waited for

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
    client: Client | None = None,
) -> Tally:
    """Solve what the folder lacks: NAME.npz for each pair, and a line in its summary.csv.

    Args:
        pairs: the list.
        base: the folder from which its relative names count.
        folder: where to write; one that holds answers to another recipe is refused.
        recipe: how.
        bar: shows how far it is.
        pictures: how to draw NAME.png for each pair, if at all.
        client: of a Dask cluster that solves; its workers must see the same files.
    """
    lines = _opened(folder, {"files in": str(base.resolve()), **recipe.to_json()}, pairs)
    missing = [pair for pair in pairs if not _is_done(pair, base, folder, lines)]
    before, solved, failures = len(pairs) - len(missing), 0, []
    for pair in missing:  # what may be there belongs to other files
        lines.pop(f"{pair.name}.npz", None)
    todo = Todo(base, folder, recipe, pictures)
    try:
        for pair in pairs:
            if f"{pair.name}.npz" in lines:
                failures += todo.drawn(pair)
                bar.tick()
        for pair, outcome in _outcomes(missing, todo, bar.show, client):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            else:
                lines[f"{pair.name}.npz"] = outcome
                failures += todo.drawn(pair)
                solved += 1
                if solved % SAVED_EVERY == 0:
                    _write_summary(folder, lines)
            bar.tick()
    except KeyboardInterrupt:
        done = f"{before + solved:,} of {counted(len(pairs), 'pair')} are done"
        raise InterruptedWorkError(f"Interrupted: {done}; the same command goes on.") from None
    finally:
        order = {f"{pair.name}.npz": k for k, pair in enumerate(pairs)}  # not as a cluster ends
        _write_summary(folder, dict(sorted(lines.items(), key=lambda one: order.get(one[0], -1))))
    found = [lines.get(f"{pair.name}.npz", {}) for pair in pairs]
    changed = sum(bool(line.get("changed")) for line in found)
    missed = sum(str(line.get("converged")) == "False" for line in found)  # text, where it is read
    return Tally(solved, before, changed, missed, failures)


@dataclass(frozen=True)
class Todo:
    """What is done with every pair, here or by a worker of a cluster.

    Attributes:
        base: the folder from which relative names count.
        folder: where to write.
        recipe: how to solve.
        pictures: how to draw, if at all.
    """

    base: Path
    folder: Path
    recipe: Recipe
    pictures: Rendering | None

    def solved(self, pair: ListedPair, do: Do) -> Line | Failure:
        """Solve and write a pair; gives its line of the summary."""
        return _attempted(lambda: self._solve(pair, do), pair)

    def drawn(self, pair: ListedPair) -> list[Failure]:
        """Draw the answer of a pair, if pictures are asked for; gives what went wrong."""
        if self.pictures is None:
            return []
        how = self.pictures
        outcome = _attempted(lambda: _draw_pair(pair, self.folder, self.recipe, how), pair)
        return [outcome] if isinstance(outcome, Failure) else []

    def _solve(self, pair: ListedPair, do: Do) -> Line:
        if not pair.source or not pair.target:
            raise FileError(f"Line {pair.line} names no two files; write source,target.")
        ends = self.base / pair.source, self.base / pair.target
        solved = do(lambda: self.recipe.solve(*ends).judged())
        report = solved.report.to_dict()
        file = self.folder / f"{pair.name}.npz"
        solved.write(file, Rendering(self.recipe.times, mass=self.recipe.mass))
        names = {"file": file.name, "source": pair.source, "target": pair.target}
        measured = {key: report[key] for key in MEASURED}
        measured |= {"converged": solved.report.notes.get("converged")}
        return names | measured | {"changed": " ".join(solved.changes)}


def _attempted(work: Callable[[], T], pair: ListedPair) -> T | Failure:
    try:
        return work()
    except (GeonetError, MemoryError, RuntimeError) as error:  # torch's, out of memory
        said = " ".join(str(error).split())
        return Failure(pair, said or "There is not enough memory.")


def _outcomes(
    pairs: list[ListedPair], todo: Todo, show: Show, client: Client | None
) -> Iterator[tuple[ListedPair, Line | Failure]]:
    """Each pair with its line or why there is none: in order, or as a cluster gets done."""
    if client is None:
        yield from (
            (pair, todo.solved(pair, lambda work: waited_for(work, show))) for pair in pairs
        )
        return
    from distributed import as_completed

    model = Path(todo.recipe.solver)
    solver = str(model.resolve()) if model.is_file() else todo.recipe.solver
    there = Todo(
        todo.base.resolve(),
        todo.folder.resolve(),
        replace(todo.recipe, solver=solver),
        todo.pictures,
    )
    tasks = client.map(partial(_solved_by_worker, there), pairs, pure=False)
    asked = dict(zip([task.key for task in tasks], pairs, strict=True))
    yield from ((asked[task.key], task.result()) for task in as_completed(tasks))


def _solved_by_worker(todo: Todo, pair: ListedPair) -> Line | Failure:
    """A task of a cluster: one thread, and messages for people at a command line."""
    with at_the_command_line(), one_thread():
        return todo.solved(pair, lambda work: work())


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
    ensure_dir(folder)
    file, asked = folder / RECIPE, json.loads(json.dumps(asked))
    if not file.exists():
        for name in (SUMMARY, *(f"{pair.name}.npz" for pair in pairs)):
            if (folder / name).exists():
                raise FileError(f"{folder / name} is there and not from here; give another folder.")
        with atomic_write(file) as temporary:
            temporary.write_text(json.dumps(asked, indent=2) + "\n", encoding="utf-8")
        return {}
    with wrap_read_errors(file, "JSON"):
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
    with wrap_read_errors(file, "a summary"), file.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise FileError(f"{file} is no summary of pairs; remove it, or give another folder.")
        return {line["file"]: dict(line) for line in reader}


def _write_summary(folder: Path, lines: dict[str, Line]) -> None:
    with (
        atomic_write(folder / SUMMARY) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(lines.values())
