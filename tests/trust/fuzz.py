"""Read damaged files with every reader and count the outcomes.

`PYTHONPATH=. python tests/trust/fuzz.py --cases 10000 --seed 1` prints a table. Only results and
one-line GeonetErrors are allowed: other exceptions, warnings, hangs and high memory use fail.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from mutations import ODD_TEXT, OUTSIDE
from numpy.random import Generator
from specimens import Reader, readers

from geonet._files import ensure_dir
from geonet.errors import GeonetError

SECONDS = 10  # for one file
MEMORY = 2**30  # bytes more than before the first file
SHOWN = 20  # failures


class HungError(BaseException):
    """A timeout; not an Exception, because readers catch those."""


def main() -> int:
    """Run the cases and print the outcomes; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", help="only this reader")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    faulthandler.enable(os.dup(sys.stderr.fileno()))
    with tempfile.TemporaryDirectory() as place:
        made = readers(ensure_dir(Path(place) / "whole"))
        known = [r for r in made if options.reader in (None, r.name)]
        _warm_up(known, Path(place))
        resource.setrlimit(resource.RLIMIT_AS, (_virtual_memory() + MEMORY,) * 2)
        signal.signal(signal.SIGALRM, _hang)
        noise = os.dup(sys.stderr.fileno())  # libtiff writes to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        counts: dict[str, Counter[str]] = {reader.name: Counter() for reader in known}
        failures: list[str] = []
        for case in range(options.cases):
            reader = known[case % len(known)]
            rng = np.random.default_rng([options.seed, case])
            outcome, detail = _run(reader, made, rng, Path(place) / "case")
            counts[reader.name][outcome] += 1
            if outcome not in ("answer", "typed error"):
                failures.append(f"case {case} of {reader.name}: {outcome}: {detail}")
        os.dup2(noise, sys.stderr.fileno())
    print(json.dumps(counts) if options.json else _table(counts))
    print("\n".join(failures[:SHOWN]), file=sys.stderr)
    return 1 if failures else 0


def _run(reader: Reader, made: list[Reader], rng: Generator, folder: Path) -> tuple[str, str]:
    """Run one case; return its outcome and details of a failure."""
    file, said = _damage(reader, made, rng, folder)
    signal.alarm(SECONDS)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        outcome, detail = _outcome(reader, file)
    signal.alarm(0)
    if warned:
        outcome, detail = "warning", str(warned[0].message)
    if file.is_dir():
        file.rmdir()
    else:
        file.unlink()
    return outcome, f"{said}: {detail}"


def _outcome(reader: Reader, file: Path) -> tuple[str, str]:
    try:
        reader.read(file)
    except GeonetError as error:
        if isinstance(error.__cause__, MemoryError):
            return "memory", str(error)
        return (
            ("untyped", "a message of several lines") if "\n" in str(error) else ("typed error", "")
        )
    except (Exception, HungError) as error:
        where = traceback.extract_tb(error.__traceback__)[-3:]
        lines = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(where))
        kind = "hang" if isinstance(error, HungError) else "untyped"
        return kind, f"{type(error).__name__}: {str(error)[:150]} [{lines}]"
    return "answer", ""


def _damage(reader: Reader, made: list[Reader], rng: Generator, folder: Path) -> tuple[Path, str]:
    """Return a damaged file and a description of the damage."""
    folder.mkdir(exist_ok=True)
    name = str(rng.choice(list(reader.files)))
    content, file, kind = reader.files[name], folder / name, rng.random()
    if kind < 0.01:
        file.mkdir()
        return file, f"a folder {name}"
    if kind < 0.03:
        file = folder / (str(rng.choice(ODD_TEXT[2:10])).replace("/", "") + name)
        said = "an odd name"
        if reader.name == "benchmark":  # its file name is fixed
            file = folder / name
    elif kind < 0.05:
        other = made[rng.integers(len(made))]
        content, said = (
            other.files[str(rng.choice(list(other.files)))],
            f"the content of {other.name}",
        )
    elif reader.inside is not None and kind < 0.5:
        content, said = reader.inside(content, rng), f"{name} changed inside"
    else:
        said = name
        for _ in range(1 if rng.random() < 0.8 else 2):
            mutation = OUTSIDE[rng.integers(len(OUTSIDE))]
            content = mutation(content, rng) if content else content
            said += f", {mutation.__name__}"
    file.write_bytes(content)
    return file, said


def _warm_up(known: list[Reader], place: Path) -> None:
    """Read every undamaged file before memory is measured."""
    folder = ensure_dir(place / "warm")
    for reader in known:
        for name, content in reader.files.items():
            file = folder / name
            file.write_bytes(content)
            reader.read(file)


def _virtual_memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _hang(*_: object) -> None:
    raise HungError


def _table(counts: dict[str, Counter[str]]) -> str:
    columns = ("answer", "typed error", "untyped", "warning", "memory", "hang")
    lines = [f"{'reader':<14}" + "".join(f"{column:>13}" for column in columns)]
    total: Counter[str] = sum(counts.values(), Counter())
    for name, found in (*counts.items(), ("all", total)):
        lines.append(f"{name:<14}" + "".join(f"{found[column]:>13}" for column in columns))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
