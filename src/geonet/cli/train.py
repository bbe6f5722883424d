"""`geonet train CONFIG`: a model from a TOML file."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from geonet.training.loop import Outcome

INTERRUPTED = 130


def train(
    config: Annotated[Path, typer.Argument(help="A TOML file, such as experiments/*.toml.")],
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to write; by default runs/NAME, with the config's name."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint in the folder.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option(min=0.0, help="Minutes after which to save and stop.")
    ] = None,
    stop_at: Annotated[
        int | None, typer.Option(min=1, help="The step after which to save and stop.")
    ] = None,
) -> int:
    """Train an operator; Ctrl-C saves and stops, --resume goes on as if nothing had happened.

    Several processes: torchrun --nproc-per-node 2 -m geonet train CONFIG.
    """
    from geonet.training.config import read_config
    from geonet.training.loop import train as run

    settings = read_config(config)
    where = folder or Path("runs") / settings.name
    seconds = None if time_limit is None else 60 * time_limit
    outcome = run(settings, where, resume=resume, time_limit=seconds, stop_at=stop_at)
    if os.environ.get("RANK", "0") == "0":  # torchrun numbers its processes; the first one talks
        _print(outcome, where, settings.steps)
    return INTERRUPTED if outcome.reason == "interrupted" else 0


def _print(outcome: Outcome, where: Path, steps: int) -> None:
    typer.echo(f"{outcome.reason} at step {outcome.step} of {steps}, in {where}")
    if outcome.model is not None:
        error = f", validation L1 {outcome.best:.2f} %" if math.isfinite(outcome.best) else ""
        typer.echo(f"model: {outcome.model}{error}")
        typer.echo(f"use it: geonet.geodesic(source, target, solver='{outcome.model}')")
    if outcome.step < steps:
        typer.echo("go on: the same command with --resume")
