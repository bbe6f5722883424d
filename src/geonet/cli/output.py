"""What commands print: tables for people, JSON for scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

UNBROKEN = 1000  # columns of a pipe or a file: one line per row, for grep


def print_json(answer: Any) -> None:
    """Print strict JSON: numbers that are not finite become null."""
    typer.echo(json.dumps(_strict(answer), indent=2, ensure_ascii=False, allow_nan=False))


def print_table(rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> None:
    """Print rows in columns, under headings if there are any."""
    table = Table(box=None, show_header=bool(headings), pad_edge=False, padding=(0, 3, 0, 0))
    for heading in headings:
        table.add_column(heading, header_style="bold")
    for row in rows:
        table.add_row(*row)
    # Names of files may hold [brackets], which are no markup here.
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = UNBROKEN
    console.print(table)


def working(on: str) -> AbstractContextManager[Any]:
    """A sign of life on a terminal's standard error while work goes on."""
    return Console(stderr=True, markup=False).status(f"{on} …")


def _strict(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
