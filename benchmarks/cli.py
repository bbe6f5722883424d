"""`geonet benchmark`: error against time of every solver."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from geonet._format import format_seconds
from geonet.errors import InputError

if TYPE_CHECKING:
    from benchmarks.records import Benchmark


def benchmark(
    suite: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="1d, 2d, any or scaling; repeat. By default all."),
    ] = None,
    solvers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,…", help="Solvers or model files to measure; by default all solvers."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check with few pairs and sizes; some minutes.")
    ] = False,
    update: Annotated[
        bool,
        typer.Option("--update", help="Keep the results of other solvers and suites."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Where to write the results.")] = Path("results"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False,
) -> None:
    """Measure error and time of every solver, on the same pairs and against one truth.

    Prints tables, and writes benchmark.json and pictures to results/. A full run takes an hour on
    an idle machine, without the suite any, which takes another. Two solvers only:
    geonet benchmark --suite 1d --solvers quantile,transport-1d
    """
    from benchmarks.figures import save_figures
    from benchmarks.run import benchmark as measure
    from benchmarks.run import planned
    from benchmarks.tables import tables
    from geonet._files import ensure_dir
    from geonet.cli.output import print_json, print_table

    names = [name.strip() for given in solvers or [] for name in given.split(",") if name.strip()]
    plan, began = planned(suite or [], names, quick), perf_counter()
    folder = ensure_dir(out)  # before an hour is spent
    before = _before(folder, quick) if update else None
    found = measure(plan, lambda line: typer.echo(line, err=True))
    found = found if before is None else found.with_the_rest_of(before)
    files = [found.save(folder), *save_figures(found, folder)]
    if as_json:
        print_json(found.to_json())
        return
    for table in tables(found):
        typer.echo(f"\n{table.title}")
        print_table(table.texts(), list(table.columns))
    typer.echo(f"\n{', '.join(map(str, files))}; {format_seconds(perf_counter() - began)}")


def _before(folder: Path, quick: bool) -> Benchmark:
    """The results to update; quick and full results do not mix."""
    from benchmarks.records import read_benchmark

    found = read_benchmark(folder)
    if found.quick != quick:
        kinds = ("a quick run", "a full run")
        was, now = kinds if found.quick else kinds[::-1]
        raise InputError(
            f"The results in {folder} are of {was}, this is {now}; leave out --update."
        )
    return found
