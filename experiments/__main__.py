"""Reproduce the paper's tables and figures: `python -m experiments NAME`."""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

import benchmarks.baselines  # noqa: F401  registers the methods of the paper's Table 1
from experiments.paper.experiments import EXPERIMENTS, Conditions, train_models
from geonet._format import format_seconds
from geonet.cli.output import print_table
from geonet.errors import GeonetError

app = typer.Typer(add_completion=False)


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or `all`; none lists them.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check with few pairs; under two minutes each.")
    ] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train the models from scratch first, in runs/.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
) -> None:
    """Run experiments of the paper: print their tables and write them to a folder."""
    if not names:
        print_table([(name, experiment.title) for name, experiment in EXPERIMENTS.items()])
        return
    unknown = [name for name in names if name not in (*EXPERIMENTS, "all")]
    if unknown:
        raise typer.BadParameter(
            f"There is no experiment {unknown[0]!r}; choose from all, {', '.join(EXPERIMENTS)}."
        )
    for name in EXPERIMENTS if "all" in names else dict.fromkeys(names):
        try:
            run_experiment(name, quick, train, out)
        except GeonetError as error:
            typer.echo(f"{name}: {error}", err=True)
            raise typer.Exit(2) from error


def run_experiment(name: str, quick: bool, train: bool, out: Path) -> None:
    """Run one experiment, print its tables and remarks, and save it in the folder `out`."""
    experiment, start = EXPERIMENTS[name], perf_counter()
    conditions = Conditions(quick)
    if train:
        folder = Path("runs") / ("reproduce-quick" if quick else "reproduce")
        conditions = train_models(conditions, experiment.models, folder)
    result = experiment.measure(conditions)
    typer.echo(f"\n{name}: {result.title}{' (quick)' if quick else ''}")
    for table in result.tables:
        typer.echo(f"\n{table.title}")
        print_table(table.format_rows(), list(table.columns))
    for remark in result.remarks:
        typer.echo(f"\n{remark}")
    files = result.save(out)
    typer.echo(f"\n{', '.join(map(str, files))}; {format_seconds(perf_counter() - start)}")


if __name__ == "__main__":
    sys.exit(app())
