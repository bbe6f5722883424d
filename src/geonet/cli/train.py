"""`geonet train`: a model from a TOML file, or from your own densities."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from geonet.errors import InputError

if TYPE_CHECKING:
    from geonet.training.config import TrainingConfig
    from geonet.training.loop import Stops, TrainingOutcome
    from geonet.training.user_data import OwnReport

CODES = {"interrupted": 130, "terminated": 143}  # what shells say of SIGINT and SIGTERM
WHO = {"interrupted": "Ctrl-C", "terminated": "SIGTERM", "stopped": "--stop-at"}
GO_ON = "go on: the same command with --resume"


class StoppedTraining(BaseException):
    """A signal stopped the training, which has saved and said so; the exit code is left to give."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


def train(
    config: Annotated[
        Path | None, typer.Argument(help="A TOML file, such as studies/configs/*.toml.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="NPZ",
            help="Your own densities instead: source and target, (n, cells…), or values, of which "
            "any two make a pair; lower and upper if the box is not the unit one.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="With --pairs: the model's name.")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="With --pairs: the number of training steps.")
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(
            help="With --pairs, 1D and 3D: share of the mass that is made uniform; by default 0.05 "
            "if more than a hundredth of the cells is empty."
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to write; by default runs/NAME, with the model's name."),
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
    """Train an operator. Ctrl-C saves and stops; --resume continues exactly where it stopped.

    For example: geonet train --pairs my.npz

    Several processes: torchrun --nproc-per-node 2 -m geonet train CONFIG.
    """
    began = perf_counter()  # importing torch takes seconds
    from geonet.training.loop import train as run

    def left() -> float | None:
        """Seconds of the time limit."""
        return None if time_limit is None else 60 * time_limit - (perf_counter() - began)

    settings = _settings(config, pairs, name, steps, floor)
    where = folder or Path("runs") / settings.name
    if pairs is not None and _talks():
        _announce(settings)
    outcome = run(settings, where, resume=resume, time_limit=left(), stop_at=stop_at)
    reason: str | None = outcome.reason
    if _talks():
        _print(outcome, where, settings.steps)
        if pairs is not None and outcome.model is not None and reason == "finished":
            reason = _print_report(outcome.model, settings, where, left())
    if reason in CODES:
        raise StoppedTraining(CODES[reason])
    return 0


def _settings(
    config: Path | None,
    pairs: Path | None,
    name: str | None,
    steps: int | None,
    floor: float | None,
) -> TrainingConfig:
    if (config is None) == (pairs is None):
        raise InputError("What is it to be trained on? Give a TOML file, or --pairs NPZ.")
    if pairs is not None:
        from geonet.training.user_data import config_for

        return config_for(pairs, name, steps, floor)
    if (name, steps, floor) != (None, None, None):
        raise InputError("--name, --steps and --floor go with --pairs; the TOML file has its own.")
    from geonet.training.config import read_config

    assert config is not None
    return read_config(config)


def _talks() -> bool:
    """torchrun numbers its processes; only the first one prints."""
    return os.environ.get("RANK", "0") == "0"


def _announce(settings: TrainingConfig) -> None:
    problem = settings.problem
    typer.echo(f"training {settings.name} on {problem.file}, {settings.steps} steps")
    if problem.floor:
        typer.echo(
            f"{problem.floor:.0%} of the mass is spread evenly, now and in every answer: "
            "maps of densities with holes have jumps (--floor 0 for none)"
        )


def _print(outcome: TrainingOutcome, where: Path, steps: int) -> None:
    from geonet.training.log import halfway_text

    if outcome.reason == "finished":
        typer.echo(f"finished at step {outcome.step} of {steps}, in {where}")
    else:
        who = WHO.get(outcome.reason, outcome.reason)
        typer.echo(f"saved, stopped at step {outcome.step} of {steps} ({who}); {GO_ON}")
    if outcome.model is not None:
        errors = halfway_text(outcome.halfway, outcome.linear)
        typer.echo(f"model: {outcome.model}" + (f", {errors}" if errors else ""))
        typer.echo(f"use it: geonet geodesic A B --solver {outcome.model}")


def _print_report(
    model: Path, settings: TrainingConfig, where: Path, time_limit: float | None
) -> str | None:
    """Measure on held-out pairs; gives the reason if it was stopped, and None if it was not."""
    from geonet._format import format_percent
    from geonet.cli.output import counted, print_table
    from geonet.training.loop import Stopped, Stops

    stops = Stops(time_limit)
    try:
        report = _report(model, settings, where, stops)
    except Stopped:
        who = WHO.get(str(stops.reason), stops.reason)
        typer.echo(f"stopped before the report on held-out pairs ({who}); {GO_ON}")
        return stops.reason
    file = report.save(where)
    exact = ", ".join(f"{solver} ({count})" for solver, count in report.truth.items())
    pairs = counted(report.model.pairs, "pair")
    typer.echo(f"\n{pairs} that training did not see, L1 in %, against {exact}")
    rows = zip(report.model.rows(), report.linear.rows(), strict=True)
    print_table(
        [(*own, mixed[1]) for own, mixed in rows], ("t", "model", "its worst", "linear mixture")
    )
    if report.model.distance is not None:
        typer.echo(f"W2 is off by {format_percent(report.model.distance / 100)} on average.")
    typer.echo(f"report: {file}")
    return None


def _report(model: Path, settings: TrainingConfig, where: Path, stops: Stops) -> OwnReport:
    """The report, which shows the pair that it is at; a stop leaves by `Stopped`."""
    from geonet._progress import progress_callback
    from geonet.training.checkpoint import TRUTHS
    from geonet.training.log import Display
    from geonet.training.user_data import report_on_own

    def hear(line: str) -> None:
        stops.check()
        display.doing("held-out pairs", line)

    with stops.listening_to_signals(), Display(settings.steps) as display, progress_callback(hear):
        display.at(settings.steps)
        return report_on_own(model, settings, truths=where / TRUTHS)
