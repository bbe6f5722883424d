"""`geonet train`: train a model from a TOML config or on the user's own densities."""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from geonet.cli.output import CommandStop, format_count, parse_duration, print_table
from geonet.errors import InputError

if TYPE_CHECKING:
    from geonet.training.config import TrainingConfig
    from geonet.training.loop import StopMonitor, TrainingOutcome
    from geonet.training.user_data import HoldoutReport, UserDataset

RESUME_HINT = "to continue, repeat the command with --resume"


def train(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="TOML config of the run.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="NPZ",
            help="Your own densities instead of a config: arrays source and target, (n, cells…), "
            "or values, of which any two are a pair; lower and upper for another box than the unit "
            "box.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --pairs: name of the model.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --pairs: number of training steps."),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With --pairs, in 1D, 3D or with --exportable: share of the mass that is made "
            "uniform; by default 0.05 if more than a hundredth of the cells is empty.",
        ),
    ] = None,
    exportable: Annotated[
        bool,
        typer.Option(
            "--exportable",
            help="With --pairs, in 2D: train a form that `geonet export` can write as ONNX; it is "
            "less accurate for densities with holes or fine detail.",
        ),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Output folder; by default runs/NAME, with the name of the model.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint in the folder.")
    ] = False,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time after which to save and stop: seconds, or a number with a unit, such as "
            "300, 5min or 2h.",
        ),
    ] = None,
    stop_at: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Step after which to save and stop.")
    ] = None,
    plot: Annotated[
        bool,
        typer.Option(
            "--plot",
            help="Draw the losses and errors of the run, training.png in its folder; with --resume "
            "also of a finished run.",
        ),
    ] = False,
) -> int:
    """Train a model from a config or on your own densities; --resume continues after a stop.

    For example: geonet train --pairs my.npz

    Ctrl-C saves and stops. Several processes: torchrun --nproc-per-node 2 -m geonet train CONFIG.
    """
    start = perf_counter()  # importing torch takes seconds
    seconds = None if time_limit is None else parse_duration(time_limit, "--time-limit")
    from geonet.training.loop import train as run

    def seconds_left() -> float | None:
        return None if seconds is None else seconds - (perf_counter() - start)

    dataset = _read_pairs(config, pairs, name, steps, floor, exportable)
    if pairs is not None:
        from geonet.training.user_data import make_config

        settings = make_config(pairs, name, steps, floor, exportable=exportable, dataset=dataset)
    else:
        from geonet.training.config import read_config

        settings = read_config(Path(str(config)))
    folder = folder or Path("runs") / settings.name
    # torchrun numbers its processes; only the first one prints.
    is_main = os.environ.get("RANK", "0") == "0"
    if dataset is not None and is_main:
        _print_settings(settings, dataset)
    outcome = run(settings, folder, resume=resume, time_limit=seconds_left(), stop_at=stop_at)
    reason: str | None = outcome.reason
    if is_main:
        if plot:
            _plot(folder)
        _print_outcome(outcome, folder, settings.steps)
        if pairs is not None and outcome.model is not None and reason == "finished":
            reason = _print_report(outcome.model, settings, folder, seconds_left())
    codes = {"interrupted": 130, "terminated": 143}  # the exit codes of shells for signals
    if reason in codes:
        raise CommandStop(codes[reason])
    return 0


def _read_pairs(
    config: Path | None, pairs: Path | None, name: str | None, *others: object
) -> UserDataset | None:
    """Check that the options fit together, and return the densities of --pairs."""
    if (config is None) == (pairs is None):
        raise InputError("No training data: pass either a TOML config or --pairs FILE.npz.")
    if pairs is None:
        if any(option not in (None, False) for option in (name, *others)):
            raise InputError(
                "--name, --steps, --floor and --exportable need --pairs; set them in the TOML "
                "config."
            )
        return None
    from geonet.training.user_data import read_dataset

    return read_dataset(pairs)


def _print_settings(settings: TrainingConfig, dataset: UserDataset) -> None:
    from geonet._format import format_percent
    from geonet.solvers.neural.model import BasisModel, model_class

    problem, kind = settings.problem, settings.model.kind
    typer.echo(f"training {settings.name} on {problem.file}, {settings.steps} steps")
    for sentence in dataset.describe():
        typer.echo(sentence)
    pairs = format_count(settings.validation.pairs, "random pair")
    typer.echo(
        f"validation: {pairs} of those held out for it, whose exact paths are computed first; "
        "a pair may be drawn more than once"
    )
    if problem.floor:
        typer.echo(
            f"{format_percent(problem.floor)} of the mass is made uniform, in training and "
            "inference: maps between densities with holes have jumps (--floor 0 for none)"
        )
    if not issubclass(model_class(kind), BasisModel):
        typer.echo(
            f'models of the form "{kind}" cannot be exported to ONNX; add --exportable for one '
            "that can"
        )


def _plot(folder: Path) -> None:
    from geonet._files import atomic_write
    from geonet.training.log import LOG_FILE, plot_log

    with atomic_write(folder / "training.png") as temporary:
        plot_log(folder / LOG_FILE).savefig(temporary)
    typer.echo(f"plot: {folder / 'training.png'}")


def _print_outcome(outcome: TrainingOutcome, folder: Path, steps: int) -> None:
    from geonet.training.log import format_halfway_error

    if outcome.reason == "finished":
        typer.echo(f"finished at step {outcome.step} of {steps}, in {folder}")
    else:
        cause = _format_cause(outcome.reason)
        typer.echo(f"saved, stopped at step {outcome.step} of {steps} ({cause}); {RESUME_HINT}")
    if outcome.model is not None:
        errors = format_halfway_error(outcome.halfway, outcome.linear)
        typer.echo(f"model: {outcome.model}" + (f", {errors}" if errors else ""))
        if outcome.best_step == 0:
            typer.echo("No step was better than the model to start from, which this is a copy of.")
        typer.echo(f"use it: geonet geodesic A B --solver {outcome.model}")


def _format_cause(reason: str | None) -> str:
    causes = {"interrupted": "Ctrl-C", "terminated": "SIGTERM", "stopped": "--stop-at"}
    return causes.get(str(reason), str(reason))


def _print_report(
    model: Path, settings: TrainingConfig, folder: Path, time_limit: float | None
) -> str | None:
    """Evaluate the model on held-out pairs; return the reason if this was stopped, else None."""
    from geonet._format import format_percent
    from geonet.training.loop import StopMonitor, StopRequested

    monitor = StopMonitor(time_limit)
    try:
        report = _evaluate(model, settings, folder, monitor)
    except StopRequested:
        cause = _format_cause(monitor.reason)
        typer.echo(f"stopped before the report on held-out pairs ({cause}); {RESUME_HINT}")
        return monitor.reason
    file = report.save(folder)
    exact = ", ".join(f"{solver} ({count})" for solver, count in report.reference.items())
    pairs = format_count(report.model.pairs, "pair")
    typer.echo(
        f"\nfinal report: {pairs} held out for it, not used in training, L1 in %, compared with "
        f"{exact}"
    )
    rows = zip(report.model.rows(), report.linear.rows(), strict=True)
    print_table(
        [(*model_row, linear_row[1]) for model_row, linear_row in rows],
        ("t", "model", "its worst", "linear blend"),
    )
    if report.model.distance is not None:
        typer.echo(f"mean error of W2: {format_percent(report.model.distance / 100)}")
    typer.echo(f"report: {file}")
    return None


def _evaluate(
    model: Path, settings: TrainingConfig, folder: Path, monitor: StopMonitor
) -> HoldoutReport:
    """Return the report and display progress; raise StopRequested after a stop request."""
    from geonet._progress import progress_callback
    from geonet.training.checkpoint import ReferenceCache
    from geonet.training.log import Display
    from geonet.training.user_data import evaluate_on_holdout

    def on_progress(line: str) -> None:
        monitor.check()
        display.status("held-out pairs", line)

    cache = folder / ReferenceCache.file_name
    with (
        monitor.install_handlers(),
        Display(settings.steps) as display,
        progress_callback(on_progress),
    ):
        display.set_step(settings.steps)
        return evaluate_on_holdout(model, settings, cache=cache)
