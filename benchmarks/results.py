"""Results of an experiment: tables, remarks, a figure, provenance, and their files."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from geonet._files import atomic_write, ensure_dir
from geonet.numerics.kernels import library_name

# ---- The machine.


PACKAGES = ("torch", "numpy", "scipy", "POT", "jax", "ott-jax")


def read_machine() -> dict[str, Any]:
    """Return processor, memory, system and versions; None if not available."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": _memory(),
        "os": platform.platform(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "compiled_loops": library_name(),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> float | None:
    with suppress(AttributeError, ValueError, OSError):  # not on every system
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return None


def _version(package: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(package)
    return None


# ---- Provenance: commit, date and machine of a measurement.


CHANGED = "+"  # appended to the commit if the code differs from it
# Results and pages may differ: every measurement writes them.
CODE = ("src", "benchmarks", "experiments", "pyproject.toml", "setup.py", "constraints.txt")
CODE += (":!benchmarks/results", ":!experiments/results")


@dataclass(frozen=True)
class Provenance:
    """Commit, date and machine of a measurement.

    Attributes:
        commit: short hash, with a "+" if the code differed from it; None outside a clone.
        date: the day, in UTC.
        machine: processor, memory, system and versions.
    """

    commit: str | None
    date: str
    machine: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @staticmethod
    def from_json(table: dict[str, Any] | None) -> Provenance | None:
        """Rebuild a provenance from `to_json`."""
        return table and Provenance(table["commit"], table["date"], table["machine"])


def record_provenance() -> Provenance:
    """Return the provenance of a measurement that starts now."""
    return Provenance(_read_commit(), datetime.now(UTC).date().isoformat(), read_machine())


def _read_commit() -> str | None:
    """Return the commit of this clone, marked if the code differs from it."""
    commit = _run_git("rev-parse", "--short", "HEAD")
    if commit is None:
        return None
    return commit + (CHANGED if _run_git("status", "--porcelain", "-uno", "--", *CODE) else "")


def _run_git(*arguments: str) -> str | None:
    """Return the output of git, or None if it fails or is not installed."""
    command = ["git", "-C", str(Path(__file__).parents[1]), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


DPI = 110


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the pairs."""

    mean: float
    sd: float


Cell = Spread | float | int | str | None


@dataclass(frozen=True)
class Table:
    """A table with a title; the first cell of a row is its label."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def format_rows(self) -> list[list[str]]:
        """Return the cells as texts."""
        return [[format_cell(cell) for cell in row] for row in self.rows]

    def to_markdown(self) -> str:
        """Return the table in Markdown, with its title above."""
        lines = [f"**{self.title}**\n"] if self.title else []
        lines += [_format_row(self.columns), _format_row(["---"] * len(self.columns))]
        return "\n".join([*lines, *(_format_row(row) for row in self.format_rows())])


@dataclass(frozen=True)
class Result:
    """The outcome of an experiment.

    Attributes:
        name: name of the experiment.
        title: one line.
        quick: True for a check with few pairs.
        tables: the results.
        remarks: sentences about the results.
        figure: a figure, or None.
        provenance: commit, date and machine; None if it was not recorded.
    """

    name: str
    title: str
    quick: bool
    tables: list[Table]
    remarks: list[str] = field(default_factory=list)
    figure: Figure | None = None
    provenance: Provenance | None = None

    def to_markdown(self) -> str:
        """Return tables, remarks and figure in Markdown."""
        parts = [table.to_markdown() for table in self.tables]
        parts += self.remarks
        if self.figure is not None:
            parts.append(f"![{self.title}]({self.name}.png)")
        return "\n\n".join(parts)

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.json, NAME.md and, if there is a figure, NAME.png; return the files."""
        folder = ensure_dir(folder)
        files = [folder / f"{self.name}.{kind}" for kind in ("json", "md")]
        content = {
            "name": self.name,
            "title": self.title,
            "quick": self.quick,
            "tables": [asdict(table) for table in self.tables],
            "remarks": self.remarks,
            "provenance": None if self.provenance is None else self.provenance.to_json(),
        }
        with atomic_write(files[0]) as temporary:
            text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
        with atomic_write(files[1]) as temporary:
            temporary.write_text(self.to_markdown() + "\n", encoding="utf-8")
        if self.figure is not None:
            files.append(folder / f"{self.name}.png")
            with atomic_write(files[2]) as temporary:
                save_figure(self.figure, temporary)
        return files


def save_figure(figure: Figure, file: Path) -> None:
    """Write a PNG with a palette of 256 colours, which is a third of the size."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=DPI, format="png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(256).save(file, optimize=True)


def format_cell(cell: Cell) -> str:
    """Format a cell with three digits."""
    if cell is None:
        return "–"
    if isinstance(cell, Spread):
        return f"{format_digits(cell.mean)} ± {format_digits(cell.sd)}"
    return cell if isinstance(cell, str) else format_digits(cell)


def format_digits(number: float) -> str:
    """Format a number with three significant digits, at most three decimals."""
    size = abs(float(f"{number:.3g}"))  # as it is shown: 9.996 is 10.0
    if isinstance(number, int) or size >= 100:
        return f"{number:.0f}"
    return f"{number:.1f}" if size >= 10 else f"{number:.2f}" if size >= 1 else f"{number:.3f}"


def make_spreads(errors: Tensor, scale: float = 100.0) -> list[Cell]:
    """Return mean and standard deviation over the pairs at each time, from (pairs, times)."""
    errors = scale * errors.double()
    deviations = errors.std(0) if len(errors) > 1 else 0 * errors[0]
    return [Spread(m, s) for m, s in zip(errors.mean(0).tolist(), deviations.tolist(), strict=True)]


def make_means(errors: Tensor, scale: float = 100.0) -> list[Cell]:
    """Return means over the pairs at each time, from (pairs, times)."""
    return list((scale * errors.double()).mean(0).tolist())


def _format_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def describe_machine() -> str:
    """Return one line on the machine: architecture, threads and versions."""
    facts = read_machine()
    return (
        f"{facts['cpu']}, {facts['threads']} threads, Python {facts['python']}, "
        f"torch {facts['torch']}"
    )
