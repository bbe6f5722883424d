"""What a training shows and keeps: a progress bar, a log of JSON lines, TensorBoard."""

from __future__ import annotations

import json
import sys
from copy import deepcopy
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from geonet._files import atomic_write
from geonet.grid import unit_box
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import Model
from geonet.solvers.registry import make_solver
from geonet.training.checkpoint import KeptTruths
from geonet.training.config import TrainingConfig
from geonet.training.problems import Problem

# ---- The error against exact solutions, on pairs that training never sees.


HALFWAY = QUARTERS.index(0.5)


class Validation:
    """Pairs with their exact paths at the quarters.

    Attributes:
        truth: the frames of the exact paths, (pairs, 5, *cells).
        linear: the error of the linear mixture at t = ½ in percent, mean over the pairs.
    """

    def __init__(self, config: TrainingConfig, problem: Problem, truths: KeptTruths):
        settings = config.validation
        generator = torch.Generator().manual_seed(settings.seed)
        self.source, self.target = problem.densities(settings.pairs, generator)
        self.epsilon = config.loss.epsilon
        self.truth = truths.of(self.source, self.target, self.epsilon).frames
        mixture = make_solver("linear")(self.source, self.target).density(QUARTERS)
        self.linear = _percent(l1(mixture, self.truth))[HALFWAY]

    def measured(self, model: Model) -> dict[str, Any]:
        """What goes into the model's file: the errors, and what the form makes of them."""
        model = model if next(model.parameters()).is_cpu else deepcopy(model).cpu()
        unit = unit_box(self.source.grid).to_potential(self.epsilon)
        path = model.path(self.source, self.target, model.settings.kind, {"epsilon": unit})
        errors = l1(path.density(QUARTERS), self.truth)
        quarters = _percent(errors)
        return {
            "validation_l1_percent": quarters,
            "halfway_l1_percent": {"model": quarters[HALFWAY], "linear": self.linear},
            **model.calibration(path, errors),
        }


def halfway_text(model: float | None, linear: float | None) -> str:
    """How errors in percent are shown: at t = ½, for the ends of some forms are always exact."""
    if model is None:
        return ""
    beside = "" if linear is None else f" (linear mixture {linear:.3g} %)"
    return f"L1 at t = ½: {model:.3g} %{beside}"


def _percent(errors: torch.Tensor) -> list[float]:
    """The mean over pairs of errors (pairs, 5), in percent."""
    return [round(100 * error, 4) for error in errors.mean(0).tolist()]


LINE_EVERY = 10.0  # seconds between lines about one piece of work
SHORT = {
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


class Display:
    """A bar on a terminal, lines elsewhere, both on standard error.

    Args:
        steps: in all.
        shown: False for a process that shows nothing.
    """

    def __init__(self, steps: int, shown: bool = True):
        console = Console(stderr=True, markup=False, highlight=False)
        self.bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
        )
        self.task = self.bar.add_task("", total=steps)
        self._prints = shown and not console.is_terminal
        self._what, self._printed = "", 0.0

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def at(self, step: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=step)

    def describe(self, text: str) -> None:
        """Show this beside the bar."""
        self.bar.update(self.task, description=text)

    def line(self, text: str) -> None:
        """Print this where there is no bar."""
        if self._prints:
            print(text, file=sys.stderr, flush=True)

    def doing(self, what: str, where: str = "") -> None:
        """Show what goes on between steps: a line when it begins, then one in ten seconds."""
        text = f"{what}: {where}" if where else what
        self.describe(text)
        now = monotonic()
        if what != self._what or now - self._printed > LINE_EVERY:
            self._what, self._printed = what, now
            self.line(text)


class RunLog:
    """log.jsonl in the run's folder, and what of it is shown.

    Args:
        folder: of the run.
        display: shows losses and errors.
        step: where it starts; later lines of an earlier attempt are dropped.
    """

    def __init__(self, folder: Path, display: Display, step: int):
        self.file, self.display = folder / "log.jsonl", display
        _drop_after(self.file, step)
        self.stream = self.file.open("a", encoding="utf-8")
        self.board = _tensorboard(folder)
        self.errors = ""

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        if self.board is not None:
            self.board.close()

    def losses(self, step: int, loss: float, terms: dict[str, float], **more: Any) -> None:
        """Log the loss, its weighted terms, and more."""
        self._write({"step": step, "loss": loss, "terms": terms, **more})
        text = " ".join(f"{SHORT.get(name, name)} {value:.1e}" for name, value in terms.items())
        self.display.describe(f"loss {loss:.2e} ({text}) {self.errors}")

    def validation(self, step: int, errors: list[float], linear: float, seconds: float) -> None:
        """Log validation errors in percent: at the quarters, and the linear mixture's at t = ½."""
        entry = {"step": step, "validation": errors, "linear_halfway": linear, "seconds": seconds}
        self._write(entry)
        self.errors = halfway_text(errors[HALFWAY], linear)
        self.display.line(f"step {step}  {seconds:.0f} s  {self.errors}")

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
    """The entries of a log; a last line cut off by a kill is left out."""
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries


def _drop_after(file: Path, step: int) -> None:
    if not file.exists():
        return
    kept = [entry for entry in read_log(file) if entry["step"] <= step] if step else []
    with atomic_write(file) as temporary:
        temporary.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")


def _tensorboard(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))
