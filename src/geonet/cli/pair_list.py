"""A csv with the columns `source,target`: the list of pairs of `geonet geodesic --pairs`."""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from geonet.errors import FileError
from geonet.files import reading

COLUMNS = ("source", "target")


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
    with reading(file, "a list of pairs"), file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.DictReader(stream, skipinitialspace=True, strict=True)
        names = [" ".join(name.lower().split()) for name in reader.fieldnames or []]
        reader.fieldnames = names
        if not set(COLUMNS) <= set(names):
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
