"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer
from rich.box import ROUNDED
from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from geonet._format import format_seconds
from geonet._progress import progress_callback

if TYPE_CHECKING:
    from geonet.report import Report

UNBROKEN = 1000  # columns of a pipe or a file: one line per row, for grep
PANEL = 100  # columns of a panel, at most
PATIENCE, EVERY = 2.0, 10.0  # seconds: until work says how it goes, and between two such lines

Show = Callable[[str], None]


def print_json(answer: Any) -> None:
    """Print strict JSON: numbers that are not finite become null."""
    typer.echo(json.dumps(_strict(answer), indent=2, ensure_ascii=False, allow_nan=False))


def print_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> None:
    """Print rows in columns, under headings if there are any."""
    console = _console()
    if console.is_terminal:
        console.print(_table(rows, headings))
        return
    console.width = UNBROKEN
    with console.capture() as captured:
        console.print(_table(rows, headings))
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_report(report: Report, rows: Iterable[tuple[str, str]] = ()) -> None:
    """Print a report as a panel: the verdict, `rows`, then every entry."""
    console = _console()
    console.width = min(console.width, PANEL)
    content = Group(Text(report.verdict(), style="bold"), Text(), _table([*rows, *report.rows()]))
    console.print(Panel(content, title="report", title_align="left", box=ROUNDED, padding=(1, 2)))


def counted(number: int, what: str) -> str:
    """1 pair, 2 pairs."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@contextmanager
def working(on: str) -> Iterator[Show]:
    """Shows on standard error that work goes on, and the lines that are handed to it."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        say = _seldom()
        yield lambda line: say(f"{on}: {line}" if line else on)
        return
    began = monotonic()
    with console.status(f"{on} …") as status:
        yield lambda line: status.update(_status(on, line, monotonic() - began))


@dataclass(frozen=True)
class Bar:
    """Progress through many pieces of work.

    Attributes:
        tick: counts one more.
        show: shows a line about the piece at hand.
    """

    tick: Callable[[], None]
    show: Show


@contextmanager
def progress(of: str, total: int) -> Iterator[Bar]:
    """A bar on a terminal's standard error; elsewhere a line now and then."""
    columns = (
        *(TextColumn(of), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True, markup=False)
    say = _seldom()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)

        def show(line: str) -> None:
            bar.update(task, description=line)
            if not console.is_terminal:
                done = int(bar.tasks[task].completed)
                say(f"{done:,} of {total:,} {of} done{': ' if line else ''}{line}")

        yield Bar(lambda: bar.advance(task), show)


def _status(on: str, line: str, elapsed: float) -> str:
    """A line of a terminal; the time is said when people begin to wonder."""
    shown = f"{on}: {line}" if line else on
    return f"{shown}, {format_seconds(int(elapsed))} …" if elapsed > PATIENCE else f"{shown} …"


def _seldom() -> Show:
    """Prints on standard error after the first seconds, and then now and then."""
    began, said = monotonic(), -math.inf

    def say(line: str) -> None:
        nonlocal said
        now = monotonic()
        if now - began >= PATIENCE and now - said >= EVERY:
            said = now
            print(f"{line}, {format_seconds(now - began)}", file=sys.stderr, flush=True)

    return say


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: small problems gain nothing from more, and a busy machine slows down."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _console() -> Console:
    """Text as it is: names of files may contain [brackets], which must not count as markup."""
    return Console(markup=False, highlight=False)


def _table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> Table:
    table = Table(box=None, show_header=bool(headings), pad_edge=False, padding=(0, 3, 0, 0))
    for heading in headings:
        table.add_column(heading, header_style="bold")
    for row in rows:
        table.add_row(*row)
    return table


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# ---- Long work in a thread of its own, while the main thread shows how it goes and minds Ctrl-C.


POLL = 0.1  # seconds between two looks at the work

T = TypeVar("T")


class InterruptedWorkError(Exception):
    """Ctrl-C, with a sentence on what is done so far; typer would drop that of its own kind."""


def waited_for(work: Callable[[], T], show: Callable[[str], None]) -> T:
    """What `work` gives; meanwhile `show` is called with what it last told of itself.

    Python delivers Ctrl-C between two instructions of the main thread, and a compiled loop is one
    instruction. Here the main thread only waits, so it answers at once. It then leaves the work
    behind, since nobody can stop a thread: `left_behind` tells.
    """
    task = _Task(work)
    _tasks.add(task)
    task.start()
    while not task.done.wait(POLL):
        show(task.line)
    _tasks.discard(task)
    return task.outcome()


def left_behind() -> bool:
    """Whether work goes on that nobody waits for."""
    return any(not task.done.is_set() for task in _tasks)


class _Task(Thread, Generic[T]):
    """Work with the settings of the thread that starts it.

    Attributes:
        line: what the work told last.
        done: whether it ended.
    """

    def __init__(self, work: Callable[[], T]):
        super().__init__(daemon=True)
        self._work, self._context = work, copy_context()
        self._found: T
        self._error: BaseException | None = None
        self.line, self.done = "", Event()

    def run(self) -> None:
        """Called by the thread."""
        try:
            self._context.run(self._listened)
        except BaseException as error:
            self._error = error
        finally:
            self.done.set()

    def outcome(self) -> T:
        """What the work gave; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._found

    def _listened(self) -> None:
        with progress_callback(self._hear):
            self._found = self._work()

    def _hear(self, line: str) -> None:
        self.line = line


_tasks: set[_Task] = set()
