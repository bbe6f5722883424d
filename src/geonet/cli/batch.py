"""Many pairs into a folder: failures are listed, finished pairs are kept, and a rerun resumes."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from geonet._files import atomic_write, ensure_dir, wrap_read_errors
from geonet._threads import one_thread
from geonet.api import load
from geonet.cli.job import Job, Rendering, SolvedPair
from geonet.cli.output import (
    Bar,
    InterruptedWorkError,
    Show,
    format_count,
    name_options,
    run_interruptibly,
)
from geonet.errors import FileError, GeonetError

if TYPE_CHECKING:
    from distributed import Client

SUMMARY = "summary.csv"
COLUMNS: tuple[str, ...] = (
    "file",
    "source",
    "target",
    "solver",
    "distance",
    "distance_lower_bound",
    "distance_upper_bound",
    "cost",
    "cost_lower_bound",
    "cost_upper_bound",
    "transported_share",
    "error_estimate",
    "in_distribution",
    "mass_error",
    "source_error",
    "target_error",
    "converged",
    "changed",
)

Row = dict[str, Any]  # of the summary


@dataclass(frozen=True)
class ListedPair:
    """One pair of the list.

    Attributes:
        line: line in the list, counted from 1.
        source: a file, as written in the list.
        target: a file, as written in the list.
        name: unique name of the output, without suffix.
    """

    line: int
    source: str
    target: str
    name: str

    @property
    def file(self) -> str:
        """Name of the saved path."""
        return f"{self.name}.npz"


@dataclass(frozen=True)
class Failure:
    """A pair without a path, and the cause."""

    pair: ListedPair
    message: str


@dataclass(frozen=True)
class BatchSummary:
    """Outcome of a batch.

    Attributes:
        solved: pairs solved by this run.
        before: pairs that existed already.
        changed: pairs that were coarsened or changed.
        not_converged: pairs whose solver did not reach its tolerance.
        failures: pairs that could not be solved or drawn.
    """

    solved: int
    before: int
    changed: int
    not_converged: int
    failures: list[Failure]


def read_pair_list(file: Path) -> list[ListedPair]:
    """Read a csv with the columns source,target; the files themselves are not read."""
    with (
        wrap_read_errors(file, "a list of pairs"),
        file.open(encoding="utf-8-sig", newline="") as stream,
    ):
        reader = csv.DictReader(stream, skipinitialspace=True, strict=True)
        columns = [" ".join(name.lower().split()) for name in reader.fieldnames or []]
        reader.fieldnames = columns
        if not {"source", "target"} <= set(columns):
            raise FileError(
                f"{file} has the columns {', '.join(columns) or '(none)'}; "
                "start a list of pairs with the line source,target."
            )
        rows = [
            (reader.line_num, (row["source"] or "").strip(), (row["target"] or "").strip())
            for row in reader
        ]
    if not rows:
        raise FileError(f"{file} lists no pairs; add lines such as a.png,b.png.")
    pairs, taken = [], Counter[str]()
    for line, source, target in rows:
        name = f"{Path(source).stem}-{Path(target).stem}"
        taken[name] += 1
        while taken[name] > 1:  # the second of a name gets -2, so that new rows rename none
            name = f"{name}-{taken[name]}"
            taken[name] += 1
        pairs.append(ListedPair(line, source, target, name))
    return pairs


@dataclass(frozen=True)
class BatchJob:
    """Work for every pair, in this process or on a worker of a cluster.

    Attributes:
        base: folder of relative file names in the list.
        folder: output folder.
        job: options for solving.
        pictures: options for a picture of each pair; None for no pictures.
    """

    base: Path
    folder: Path
    job: Job
    pictures: Rendering | None = None

    def solve(self, pair: ListedPair, show: Show | None = None) -> Row | Failure:
        """Solve and write a pair in one thread; return its row of the summary or a failure.

        With `show`, the work runs interruptibly.
        """
        work = one_thread()(partial(self._solve, pair))
        if show is None:
            return _catch(work, pair)
        return _catch(lambda: run_interruptibly(work, show), pair)

    def draw(self, pair: ListedPair) -> list[Failure]:
        """Draw a pair if pictures are requested and there is none yet; return the failure."""
        if self.pictures is None:
            return []
        result = _catch(one_thread()(partial(self._draw, pair, self.pictures)), pair)
        return [result] if isinstance(result, Failure) else []

    def _solve(self, pair: ListedPair) -> Row:
        if not pair.source or not pair.target:
            raise FileError(f"Line {pair.line} does not name two files; write source,target.")
        solved = self.job.solve(self.base / pair.source, self.base / pair.target)
        report = solved.report
        solved.write(
            self.folder / pair.file, Rendering(self.job.times, style={"mass": self.job.mass})
        )
        row = report.to_dict() | {
            "file": pair.file,
            "source": pair.source,
            "target": pair.target,
            "converged": report.info.get("converged"),
            "changed": " ".join(solved.notices),
        }
        return {name: row[name] for name in COLUMNS}

    def _draw(self, pair: ListedPair, rendering: Rendering) -> None:
        saved, picture = (self.folder / f"{pair.name}{suffix}" for suffix in (".npz", ".png"))
        if not _is_drawn(saved, picture, rendering):
            path = load(saved)
            SolvedPair(path, self.job.output_grid(path.grid)).write(picture, rendering)

    def is_done(self, pair: ListedPair, rows: dict[str, Row]) -> bool:
        """Return whether there is a saved path of these two files that is newer than both."""
        row = rows.get(pair.file, {})
        if (row.get("source"), row.get("target")) != (pair.source, pair.target):
            return False
        try:
            saved = (self.folder / pair.file).stat().st_mtime_ns
            ends = (self.base / pair.source, self.base / pair.target)
            return all(end.stat().st_mtime_ns <= saved for end in ends)
        except (OSError, ValueError):  # one of them does not exist
            return False

    def to_json(self) -> dict[str, Any]:
        """Return plain data by which two batches are compared."""
        return {"files in": str(self.base.resolve()), **self.job.to_json()}


def _catch(work: Callable[[], Any], pair: ListedPair) -> Any:
    """Return the result of `work`, or a failure."""
    try:
        return work()
    except (GeonetError, MemoryError, RuntimeError) as error:  # RuntimeError: torch's memory
        cause = " ".join(name_options(str(error)).split())
        return Failure(pair, cause or "There is not enough memory.")


def _is_drawn(saved: Path, picture: Path, rendering: Rendering) -> bool:
    """Return whether there is a picture of the saved path with the same rendering."""
    try:
        if picture.stat().st_mtime_ns < saved.stat().st_mtime_ns:
            return False
        with Image.open(picture, formats=("PNG",)) as image:
            return image.info.get("geonet") == rendering.to_json()
    except (OSError, ValueError, SyntaxError):  # it does not exist, or is no picture
        return False


def solve_batch(
    pairs: list[ListedPair],
    batch: BatchJob,
    bar: Bar,
    client: Client | None = None,
    save_every: int = 50,
) -> BatchSummary:
    """Solve all missing pairs: NAME.npz for each, and a row of summary.csv.

    Args:
        pairs: the list.
        batch: the work; a folder with results of another batch is rejected.
        bar: shows the progress.
        client: a Dask cluster that solves; its workers must see the same files.
        save_every: pairs between two versions of the summary.
    """
    rows = _open_folder(batch, pairs)
    missing = [pair for pair in pairs if not batch.is_done(pair, rows)]
    before, solved, failures = len(pairs) - len(missing), 0, []
    for pair in missing:  # a stale result of other files
        rows.pop(pair.file, None)
    try:
        for pair in pairs:
            if pair.file in rows:
                failures += batch.draw(pair)
                bar.advance()
        for pair, result in _solve_each(missing, batch, bar.show, client):
            if isinstance(result, Failure):
                failures.append(result)
            else:
                rows[pair.file] = result
                failures += batch.draw(pair)
                solved += 1
                if solved % save_every == 0:
                    _write_summary(batch.folder, rows)
            bar.advance()
    except KeyboardInterrupt:
        done = f"{before + solved:,} of {format_count(len(pairs), 'pair')} are done"
        raise InterruptedWorkError(f"Interrupted: {done}; the same command resumes.") from None
    finally:
        order = {pair.file: k for k, pair in enumerate(pairs)}  # a cluster finishes in any order
        _write_summary(
            batch.folder, dict(sorted(rows.items(), key=lambda row: order.get(row[0], -1)))
        )
    final = [rows.get(pair.file, {}) for pair in pairs]
    changed = sum(bool(row.get("changed")) for row in final)
    not_converged = sum(str(row.get("converged")) == "False" for row in final)  # text from a csv
    return BatchSummary(solved, before, changed, not_converged, failures)


def _solve_each(
    pairs: list[ListedPair], batch: BatchJob, show: Show, client: Client | None
) -> Iterator[tuple[ListedPair, Row | Failure]]:
    """Yield each pair with its row or failure: in order, or in the order of a cluster."""
    if client is None:
        yield from ((pair, batch.solve(pair, show)) for pair in pairs)
        return
    from distributed import as_completed

    model = Path(batch.job.solver)
    solver = str(model.resolve()) if model.is_file() else batch.job.solver
    remote = replace(
        batch,
        base=batch.base.resolve(),
        folder=batch.folder.resolve(),
        job=replace(batch.job, solver=solver),
    )
    tasks = client.map(remote.solve, pairs, pure=False)
    pair_of = dict(zip([task.key for task in tasks], pairs, strict=True))
    yield from ((pair_of[task.key], task.result()) for task in as_completed(tasks))


def _open_folder(batch: BatchJob, pairs: list[ListedPair]) -> dict[str, Row]:
    """Return the rows of a folder by file; create it, or reject results of another batch."""
    folder = ensure_dir(batch.folder)
    file, wanted = folder / "recipe.json", json.loads(json.dumps(batch.to_json()))
    if not file.exists():
        for name in (SUMMARY, *(pair.file for pair in pairs)):
            if (folder / name).exists():
                raise FileError(
                    f"{folder / name} exists and was not written by geonet; give another folder."
                )
        with atomic_write(file) as temporary:
            temporary.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        return {}
    with wrap_read_errors(file, "JSON"):
        existing = json.loads(file.read_text(encoding="utf-8"))
    if existing != wanted:
        known = existing if isinstance(existing, dict) else {}
        differing = [key for key in wanted if wanted[key] != known.get(key)]
        raise FileError(
            f"{folder} holds results with other {' and '.join(differing) or 'settings'}; "
            "give another folder, or the same settings to resume."
        )
    return _read_summary(folder / SUMMARY)


def _read_summary(file: Path) -> dict[str, Row]:
    if not file.exists():
        return {}
    with wrap_read_errors(file, "a summary"), file.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise FileError(f"{file} is not a summary of pairs; remove it, or give another folder.")
        return {row["file"]: dict(row) for row in reader}


def _write_summary(folder: Path, rows: dict[str, Row]) -> None:
    with (
        atomic_write(folder / SUMMARY) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as stream,
    ):
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows.values())
