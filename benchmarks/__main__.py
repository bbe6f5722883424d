"""Run the benchmarks: `python -m benchmarks figures`, `compare` and `study NAME`.

`compare` measures error against time of all solvers. A study measures the figures of one
documentation page and writes them there, with commit, date and machine. `figures` runs the
comparison, all studies and the paper's experiments.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

import benchmarks.baselines  # noqa: F401  registers the baselines
from benchmarks.records import FILE, Benchmark, read_benchmark
from benchmarks.suites import check_suites
from geonet._files import ensure_dir
from geonet._format import format_seconds
from geonet._utils import import_object
from geonet.cli.output import print_table
from geonet.errors import GeonetError, InputError

# Every study with the page that it writes. A run takes minutes on an otherwise idle machine.
STUDIES = {
    "accuracy": ("exact_solvers", "docs/accuracy.md: solvers on known maps"),
    "models": ("learned_solvers", "docs/models.md: the trained models"),
    "midpoint": ("midpoint_accuracy", "docs/midpoint.md: accuracy, bounds and cost"),
    "universal": ("universal_accuracy", "docs/universal.md: universal-2d"),
    "universal-3d": ("universal_3d", "docs/universal.md: universal-3d"),
    "transport": ("transport_accuracy", "docs/transport.md: errors of the transport models"),
    "transport-failures": ("transport_failures", "docs/transport.md: their failures"),
    "own-training": ("own_training", "docs/training.md: training on one's own densities"),
    "start-up": ("start_up", "docs/benchmark.md: time of the first command"),
    "gradients": ("gradient_accuracy", "docs/gradients.md: accuracy of gradients"),
    "app-latency": ("app_latency", "docs/app.md: latency of the page"),
    "fields": ("radar_fields", "stored, see docs/fields.md: rain; needs --radar FOLDER"),
    "field-cluster": ("field_cluster", "docs/fields.md: a thousand images on a cluster"),
    "dotmark": ("dotmark", "stored, see docs/dotmark.md: DOTmark; needs --data FOLDER"),
    "barycenters": ("barycenters", "stored, see docs/barycenters.md; DOTmark with --data FOLDER"),
    "unbalanced": ("unbalanced", "stored, see docs/unbalanced.md; --data FOLDER, --radar FOLDER"),
    "periodic": ("periodic_axes", "stored, see docs/periodic.md: periodic axes"),
    "solvers": ("solver_list", "docs/solvers.md: list of solvers, from their docstrings"),
}

app = typer.Typer(add_completion=False)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def study(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="Name of the study; none lists them.")] = None,
) -> None:
    """Measure the figures of one page and write them into it.

    Options of a study follow its name: python -m benchmarks study dotmark --data FOLDER
    """
    if name is None:
        print_table([(name, page) for name, (_, page) in STUDIES.items()])
    elif name not in STUDIES:
        raise typer.BadParameter(f"There is no study {name!r}; choose from {', '.join(STUDIES)}.")
    else:
        _run_study(name, context.args)


def _run_study(name: str, options: list[str]) -> None:
    """Run the main function of a study, whose parameters are its options."""
    command = typer.Typer(add_completion=False)
    command.command()(import_object(f"benchmarks.studies.{STUDIES[name][0]}:main"))
    try:
        command(options, prog_name=f"benchmarks study {name}", standalone_mode=False)
    except GeonetError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


@app.command()
def compare(
    suite: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="1d, 2d or any; repeatable. Default: all."),
    ] = None,
    solvers: Annotated[
        str, typer.Option(metavar="NAME,…", help="Solvers or model files; default: all solvers.")
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Check with few pairs and sizes; two minutes.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Keep other suites, and other solvers with --solvers.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
) -> None:
    """Measure error and time of every solver on the same pairs.

    A full run takes a quarter of an hour on an idle machine. Two solvers only:
    python -m benchmarks compare --suite 1d --solvers quantile,transport-1d
    """
    from benchmarks.pictures import save_figures
    from benchmarks.run import make_plan, run_benchmark
    from benchmarks.tables import make_tables

    try:
        plan = make_plan(suite or [], [name for name in solvers.split(",") if name], quick)
        start, folder = perf_counter(), ensure_dir(out)
        before = _read_previous(folder, quick, suite or [], solvers) if update else None
        result = run_benchmark(plan, lambda line: typer.echo(line, err=True))
    except GeonetError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    result = result if before is None else result.merge(before)
    files = [result.save(folder), *save_figures(result, folder)]
    for table in make_tables(result):
        typer.echo(f"\n{table.title}")
        print_table(table.format_rows(), list(table.columns))
    typer.echo(f"\n{', '.join(map(str, files))}; {format_seconds(perf_counter() - start)}")


def _read_previous(folder: Path, quick: bool, suites: list[str], solvers: str) -> Benchmark | None:
    """Read the results to keep; quick and full results do not mix."""
    if not (folder / FILE).exists():
        return None
    previous = read_benchmark(folder)
    if previous.quick != quick:
        kinds = ("a quick run", "a full run")
        was, now = kinds if previous.quick else kinds[::-1]
        raise InputError(f"The results in {folder} are of {was}, this is {now}; omit --update.")
    return previous if solvers else previous.drop_suites(check_suites(suites))


@app.command()
def figures(
    data: Annotated[Path | None, typer.Option(help="Folder of DOTmark images.")] = None,
    radar: Annotated[Path | None, typer.Option(help="Folder of radar images.")] = None,
    only: Annotated[str, typer.Option(metavar="NAME,…", help="Steps to run; default: all.")] = "",
    show: Annotated[
        bool, typer.Option("--list", help="List the steps with the seconds of their last run.")
    ] = False,
) -> None:
    """Measure every figure of README and docs, and write the pages.

    Steps that are complete at this commit are skipped. Their output is in runs/figures.
    """
    from benchmarks.figures import list_steps, run_steps, select_steps

    if show:
        print_table(list_steps(), ["step", "last run", "commit"])
        return
    try:
        steps = select_steps(only)
    except InputError as error:
        raise typer.BadParameter(str(error)) from error
    if run_steps(steps, data, radar, lambda line: typer.echo(line, err=True)):
        raise typer.Exit(1)


if __name__ == "__main__":
    sys.exit(app())
