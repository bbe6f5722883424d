"""Figures on pages: tables between markers, so that a run replaces what the run before wrote."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
Cells = tuple[str, ...]


def percent(value) -> str:
    """A share as per cent with three digits."""
    return f"{100 * float(value):.3g} %"


def table(header: Cells, rows: list[Cells]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put(file: Path, name: str, text: str) -> None:
    """Replace what stands between the markers <!-- name --> and <!-- /name -->."""
    between(file, name)  # which refuses a page without the place
    content = _place(name).sub(lambda m: m[1] + text + m[3], file.read_text(encoding="utf-8"))
    file.write_text(content, encoding="utf-8")


def between(file: Path, name: str) -> str:
    """What stands between the markers."""
    found = _place(name).findall(file.read_text(encoding="utf-8"))
    if len(found) != 1:
        raise SystemExit(f"{file} has {len(found)} places marked {name}; it needs one.")
    return found[0][1]


def _place(name: str) -> re.Pattern[str]:
    return re.compile(f"(<!-- {name} -->\n)(.*?)(\n<!-- /{name} -->)", re.DOTALL)


def machine() -> str:
    """What the figures were measured on."""
    return (
        f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
