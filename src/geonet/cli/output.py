"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.box import ROUNDED
from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from geonet.geodesics.report import Report

UNBROKEN = 1000  # columns of a pipe or a file: one line per row, for grep
PANEL = 100  # columns of a panel, at most


def print_json(answer: Any) -> None:
    """Print strict JSON: numbers that are not finite become null."""
    typer.echo(json.dumps(_strict(answer), indent=2, ensure_ascii=False, allow_nan=False))


def print_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> None:
    """Print rows in columns, under headings if there are any."""
    console = _console()
    if not console.is_terminal:
        console.width = UNBROKEN
    console.print(_table(rows, headings))


def print_report(report: Report, rows: Iterable[tuple[str, str]] = ()) -> None:
    """Print a report as a panel: the verdict, `rows`, then every entry."""
    console = _console()
    console.width = min(console.width, PANEL)
    content = Group(Text(report.verdict(), style="bold"), Text(), _table([*rows, *report.rows()]))
    console.print(Panel(content, title="report", title_align="left", box=ROUNDED, padding=(1, 2)))


def counted(number: int, what: str) -> str:
    """1 pair, 2 pairs."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def working(on: str) -> AbstractContextManager[Any]:
    """Shows on a terminal's standard error that work goes on."""
    return Console(stderr=True, markup=False).status(f"{on} …")


@contextmanager
def progress(of: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal's standard error; every call of the function given counts one more."""
    columns = (TextColumn(of), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True, markup=False)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(of, total=total)
        yield lambda: bar.advance(task)


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
