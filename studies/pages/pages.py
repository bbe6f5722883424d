"""Figures on pages: tables between markers, so that a run replaces what the run before wrote."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

ROOT = Path(__file__).resolve().parents[2]
Row = tuple[str, ...]


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for every draw."""
    return torch.Generator().manual_seed(seed)


def percent(value) -> str:
    """A share as per cent with three digits."""
    return f"{100 * float(value):.3g} %"


def table(header: Row, rows: list[Row]) -> str:
    """A Markdown table."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def put(file: Path, name: str, text: str) -> None:
    """Replace what stands between the markers <!-- name --> and <!-- /name -->."""
    pattern = re.compile(f"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
    content, found = pattern.subn(lambda m: m[1] + text + m[2], file.read_text(encoding="utf-8"))
    if found != 1:
        raise SystemExit(f"{file} has {found} places marked {name}; it needs one.")
    file.write_text(content, encoding="utf-8")


def seconds(call: Callable[[], object], repeats: int = 1) -> float:
    """The median time of a call; warm up before."""
    times = []
    for _ in range(repeats):
        began = perf_counter()
        call()
        times.append(perf_counter() - began)
    return median(times)


def machine() -> str:
    """What the figures were measured on."""
    return (
        f"{platform.machine()}, {torch.get_num_threads()} threads, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
