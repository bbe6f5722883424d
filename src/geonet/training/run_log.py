"""What a training shows and keeps: a progress bar, a log of JSON lines, TensorBoard."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from geonet.files import written_atomically

SHORT = {
    "continuity": "cont",
    "mismatch": "ρ0−ρ1",
    "folds": "folds",
    "error": "C−μ",
    "hamilton_jacobi": "HJ",
    "source": "t=0",
    "target": "t=1",
    "continuity_gradient": "∇cont",
    "hamilton_jacobi_gradient": "∇HJ",
}


class RunLog:
    """log.jsonl in the run's folder, a bar on a terminal, lines elsewhere.

    Args:
        folder: of the run.
        steps: in all.
        step: where it starts; later lines of an earlier attempt are dropped.
    """

    def __init__(self, folder: Path, steps: int, step: int):
        self.file = folder / "log.jsonl"
        _drop_after(self.file, step)
        self.stream = self.file.open("a", encoding="utf-8")
        self.board = _tensorboard(folder)
        self.console = Console(stderr=True, markup=False, highlight=False)
        self.bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=steps, completed=step)
        self.errors = ""

    def __enter__(self) -> RunLog:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        self.stream.close()
        if self.board is not None:
            self.board.close()

    def advance(self, step: int) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=step)

    def losses(self, step: int, loss: float, terms: dict[str, float], **more: Any) -> None:
        """Log the loss, its weighted terms, and more."""
        self._write({"step": step, "loss": loss, "terms": terms, **more})
        text = " ".join(f"{SHORT[name]} {value:.1e}" for name, value in terms.items())
        self.bar.update(self.task, description=f"loss {loss:.2e} ({text}) {self.errors}")

    def validation(self, step: int, errors: list[float], seconds: float) -> None:
        """Log the validation errors in percent."""
        self._write({"step": step, "validation": errors, "seconds": seconds})
        self.errors = "L1 % " + " ".join(f"{e:.2f}" for e in errors)
        if not self.console.is_terminal:
            print(f"step {step}  {seconds:.0f} s  {self.errors}", file=sys.stderr, flush=True)

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
    with written_atomically(file) as temporary:
        temporary.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")


def _tensorboard(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"))
