"""Validation against exact paths, and the display and log of a training run."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from geonet._files import atomic_write, wrap_read_errors
from geonet._format import format_seconds
from geonet._validation import as_path
from geonet.errors import FileError
from geonet.grid import unit_box
from geonet.metrics import l1_tensor
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import Model
from geonet.solvers.registry import make_solver
from geonet.training.checkpoint import ReferenceCache
from geonet.training.config import TrainingConfig
from geonet.training.problems import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HALFWAY = QUARTERS.index(0.5)
LOG_FILE = "log.jsonl"  # in the folder of a run


class Validation:
    """Validation pairs with their exact paths at t = 0, ¼, ½, ¾, 1.

    Attributes:
        reference: frames of the exact paths, (pairs, 5, *cells).
        linear: mean error at t = ½ of the linear blend of the ends, in percent.
    """

    def __init__(self, config: TrainingConfig, problem: Problem, cache: ReferenceCache):
        settings = config.validation
        generator = torch.Generator().manual_seed(settings.seed)
        self.source, self.target = problem.draw_densities(settings.pairs, generator)
        self.epsilon = config.loss.epsilon
        self.reference = cache.solve(self.source, self.target, self.epsilon).frames
        mixture = make_solver("linear")(self.source, self.target).density(QUARTERS)
        self.linear = _mean_percent(l1_tensor(mixture, self.reference))[HALFWAY]

    def measure(self, model: Model) -> dict[str, Any]:
        """Return the errors of a model and its calibration, for the header of its file."""
        model = model if next(model.parameters()).is_cpu else deepcopy(model).cpu()
        epsilon = unit_box(self.source.grid).to_potential(self.epsilon)
        name, header = model.settings.kind, {"epsilon": epsilon}
        path = model.build_path(self.source, self.target, name, header)
        errors = l1_tensor(path.density(QUARTERS), self.reference)
        percent = _mean_percent(errors)
        return {
            "validation_l1_percent": percent,
            "halfway_l1_percent": {"model": percent[HALFWAY], "linear": self.linear},
            **model.calibrate(path, errors),
        }


def _mean_percent(errors: torch.Tensor) -> list[float]:
    """Return the mean over pairs of errors (pairs, 5) in percent."""
    return [round(100 * error, 4) for error in errors.mean(0).tolist()]


def format_halfway_error(model: float | None, linear: float | None) -> str:
    """Format errors in percent at t = ½: at the ends, some models are exact by construction."""
    if model is None:
        return ""
    comparison = "" if linear is None else f" (linear blend {linear:.3g} %)"
    return f"L1 at t = ½: {model:.3g} %{comparison}"


class Display:
    """Progress on standard error: a bar on a terminal, else a line at least every ten seconds.

    Args:
        steps: number of steps of the run.
        visible: False for a process that displays nothing.
        line_every: seconds between two lines without a terminal.
    """

    def __init__(self, steps: int, visible: bool = True, line_every: float = 10.0):
        console = Console(stderr=True, markup=False, highlight=False)
        self.steps, self.line_every = steps, line_every
        self.bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not (visible and console.is_terminal),
        )
        self.task = self.bar.add_task("", total=steps)
        self._prints_lines = visible and not console.is_terminal
        self._activity, self._line, self._description = "", "starting", ""
        self._start = self._last_line = monotonic()
        self._is_done = Event()
        self._ticker = Thread(target=self._print_lines, daemon=True)

    def __enter__(self) -> Display:
        self.bar.start()
        if self._prints_lines:
            self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        if self._prints_lines:
            self._ticker.join()
        self.bar.stop()

    def set_step(self, step: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=step)
        self._line = f"step {step}/{self.steps}"

    def describe(self, text: str) -> None:
        """Show a text beside the bar, or in the next line."""
        self._description = text
        self.bar.update(self.task, description=text)

    def log(self, text: str) -> None:
        """Print a line if there is no bar."""
        self._last_line = monotonic()
        if self._prints_lines:
            print(text, file=sys.stderr, flush=True)

    def format_line(self, state: str, text: str) -> str:
        """Return a line with a state, the time since this display began, and a text."""
        elapsed = format_seconds(monotonic() - self._start)
        return f"{state}, {elapsed}  {text}".rstrip()

    def status(self, activity: str, detail: str = "") -> None:
        """Show an activity between steps: one line when it begins, more if it takes long."""
        text = f"{activity}: {detail}" if detail else activity
        self.bar.update(self.task, description=text)
        self._line = text
        if activity != self._activity:
            self._activity = activity
            self.log(text)

    def _print_lines(self) -> None:
        """Print the state if there was no line for a while, also during long computations."""
        while not self._is_done.wait(self._last_line + self.line_every - monotonic()):
            if monotonic() - self._last_line >= self.line_every:
                self.log(self.format_line(self._line, self._description))


class RunLog:
    """The file log.jsonl in the folder of a run, TensorBoard if it is installed, and the display.

    Args:
        folder: folder of the run.
        display: display for losses and errors.
        step: first step; lines of later steps from an earlier attempt are removed.
    """

    short_names: ClassVar = {
        "continuity": "cont",
        "characteristics": "char",
        "mismatch": "ρ0−ρ1",
        "folds": "folds",
        "error": "C−μ",
        "hamilton_jacobi": "HJ",
        "source": "t=0",
        "target": "t=1",
        "continuity_gradient": "∇cont",
        "hamilton_jacobi_gradient": "∇HJ",
    }

    def __init__(self, folder: Path, display: Display, step: int):
        self.file, self.display = folder / LOG_FILE, display
        _truncate_log(self.file, step)
        self.stream = self.file.open("a", encoding="utf-8")
        self.board = _open_tensorboard(folder)
        self.errors = ""

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        if self.board is not None:
            self.board.close()

    def log_loss(self, step: int, loss: float, terms: dict[str, float], **more: Any) -> None:
        """Log the loss, its weighted terms, and further numbers."""
        self._write({"step": step, "loss": loss, "terms": terms, **more})
        names = self.short_names
        text = " ".join(f"{names.get(name, name)} {value:.1e}" for name, value in terms.items())
        self.display.describe(f"loss {loss:.2e} ({text}) {self.errors}")

    def log_validation(self, step: int, errors: list[float], linear: float, seconds: float) -> None:
        """Log validation errors in percent at five times, and the linear blend's at t = ½."""
        entry = {"step": step, "validation": errors, "linear_halfway": linear, "seconds": seconds}
        self._write(entry)
        self.errors = format_halfway_error(errors[HALFWAY], linear)
        self.display.log(self.display.format_line(f"step {step}/{self.display.steps}", self.errors))

    def _write(self, entry: dict[str, Any]) -> None:
        print(json.dumps(entry), file=self.stream, flush=True)
        if self.board is None:
            return
        step = entry["step"]
        for key in ("loss", "learning_rate"):
            if key in entry:
                self.board.add_scalar(key, entry[key], step)
        for name, value in entry.get("terms", {}).items():
            self.board.add_scalar(f"terms/{name}", value, step)
        for k, value in enumerate(entry.get("validation", [])):
            self.board.add_scalar(f"validation/{k}", value, step)


def read_log(file: Path) -> list[dict[str, Any]]:
    """Return the entries of a log, without a last line that an interruption truncated."""
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries


def plot_log(file: str | Path) -> Figure:
    """Return a figure of a training log: the loss by term, and the errors on validation pairs."""
    from matplotlib.figure import Figure

    file = as_path(file)
    with wrap_read_errors(file, "a training log"):
        entries = read_log(file)
    losses = [entry for entry in entries if "loss" in entry]
    validations = [entry for entry in entries if "validation" in entry]
    if not losses:
        raise FileError(f"{file} has no losses yet; train for at least `log_every` steps.")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [entry["step"] for entry in losses]
    left.semilogy(steps, [entry["loss"] for entry in losses], "k", lw=1.4, label="loss")
    for name in losses[0]["terms"]:
        left.semilogy(steps, [entry["terms"].get(name) for entry in losses], lw=0.9, label=name)
    left.set(xlabel="step", title="loss and its weighted terms")
    left.legend(frameon=False, fontsize="small")
    right.set(xlabel="step", ylabel="L1 error in %", title="validation pairs")
    if validations:
        steps = [entry["step"] for entry in validations]
        for k, t in enumerate(QUARTERS):
            errors = [entry["validation"][k] for entry in validations]
            if any(errors):  # models whose ends are given have none there
                right.plot(steps, errors, ".-", lw=0.9, label=f"t = {t:g}")
        if (linear := validations[-1].get("linear_halfway")) is not None:
            right.axhline(linear, color="grey", ls=":", label="linear blend, t = 0.5")
        right.set_ylim(bottom=0)
        right.legend(frameon=False, fontsize="small")
    return figure


def _truncate_log(file: Path, step: int) -> None:
    """Remove the entries after a step."""
    if not file.exists():
        return
    kept = [entry for entry in read_log(file) if entry["step"] <= step] if step else []
    with atomic_write(file) as temporary:
        temporary.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")


def _open_tensorboard(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))
