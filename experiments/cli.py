"""`geonet reproduce NAME`: the paper's tables and figures."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from geonet._format import format_seconds
from geonet.cli.output import print_json, print_table
from geonet.errors import InputError


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or `all`; --list lists them.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Check with few pairs; under two minutes each.")
    ] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train the models from scratch first, in runs/.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where to write the results.")] = Path("results"),
    json: Annotated[bool, typer.Option("--json", help="With --list: print JSON.")] = False,
) -> None:
    """Reproduce the paper's experiments: print tables, and write files to results/.

    For example: geonet reproduce table-1 --quick
    """
    from experiments.paper.experiments import EXPERIMENTS

    if listed:
        titles = {name: experiment.title for name, experiment in EXPERIMENTS.items()}
        print_json(titles) if json else print_table(list(titles.items()))
        return
    for name in _chosen(names or [], list(EXPERIMENTS)):
        _run(name, quick, train, out)


def _chosen(names: list[str], known: list[str]) -> list[str]:
    unknown = [name for name in names if name not in (*known, "all")]
    if unknown:
        raise InputError(
            f"There is no experiment {unknown[0]!r}; choose from all, {', '.join(known)}."
        )
    if not names:
        raise InputError("Which experiment? Name one, or all; geonet reproduce --list names them.")
    return known if "all" in names else list(dict.fromkeys(names))


def _run(name: str, quick: bool, train: bool, out: Path) -> None:
    from experiments.paper.experiments import EXPERIMENTS, Conditions

    experiment, began = EXPERIMENTS[name], perf_counter()
    conditions = Conditions(quick)
    if train:
        from experiments.paper.experiments import with_training

        folder = Path("runs") / ("reproduce-quick" if quick else "reproduce")
        conditions = with_training(conditions, experiment.models, folder)
    result = experiment.measured(conditions)
    typer.echo(f"\n{name}: {result.title}{' (quick)' if quick else ''}")
    for table in result.tables:
        typer.echo(f"\n{table.title}")
        print_table(table.texts(), list(table.columns))
    for remark in result.remarks:
        typer.echo(f"\n{remark}")
    files = result.save(out)
    typer.echo(f"\n{', '.join(map(str, files))}; {format_seconds(perf_counter() - began)}")
