"""When, where and from what a result was measured, so that a page can tell that it is stale."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geonet.evaluation.machine import machine
from geonet.evaluation.sources import SOURCES, source_files, sources_hash

CHANGED = "+"  # behind a commit: sources differed from it


@dataclass(frozen=True)
class Stamp:
    """What a result knows about its measurement.

    Attributes:
        commit: the short hash, with a + where a source differed from it; None outside a clone.
        date: the day, in UTC.
        machine: processor, memory, system and versions.
        sources: the hash of the sources, see `geonet.evaluation.sources`.
    """

    commit: str | None
    date: str
    machine: dict[str, Any]
    sources: str

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @staticmethod
    def from_json(table: dict[str, Any] | None) -> Stamp | None:
        """What `to_json` gave; None for a result from before there were stamps."""
        return None if table is None else Stamp(**table)

    def is_fresh(self, modules: Sequence[str], folders: Sequence[Path] = (SOURCES,)) -> bool:
        """Whether the sources are still those that were measured."""
        return self.sources == sources_hash(modules, folders)


def stamp(modules: Sequence[str], folders: Sequence[Path] = (SOURCES,)) -> Stamp:
    """A stamp for a measurement that begins in these modules; take it before measuring.

    Args:
        modules: names, of the package or of scripts in one of the folders.
        folders: where modules are looked for; one of them has the package.
    """
    files = list(source_files(modules, folders).values())
    today = datetime.now(UTC).date().isoformat()
    return Stamp(_commit(files), today, machine(), sources_hash(modules, folders))


def _commit(files: list[Path]) -> str | None:
    """The commit of the clone that has these files, marked where one of them differs from it."""
    if not files:
        return None
    folder = files[0].parent
    names = list(map(str, files))
    # A package that is installed below somebody's own repository is not in that repository.
    if _git(folder, "ls-files", "--", names[0]) in (None, ""):
        return None
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    if commit is None:  # before the first commit
        return None
    return commit + (CHANGED if _git(folder, "status", "--porcelain", "--", *names) else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, or None where it fails or is not there."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
