"""How good a model trained on one's own densities is, on pairs that were held out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geonet.evaluation.accuracy import Accuracy, measure
from geonet.files import written_atomically
from geonet.solvers.registry import make_solver
from geonet.training.config import TrainingConfig
from geonet.training.kept_truths import KeptTruths
from geonet.training.own import read_own

PAIRS = 20
REPORT = "report.json"


@dataclass(frozen=True)
class OwnReport:
    """Errors of the model, and of what it has to beat.

    Attributes:
        model: the trained one.
        linear: the linear mixture, which moves nothing.
        truth: how many pairs each exact solver answered.
    """

    model: Accuracy
    linear: Accuracy
    truth: dict[str, int]

    def save(self, folder: Path) -> Path:
        """Write report.json."""
        table: dict[str, Any] = {
            "model": self.model.to_json(),
            "linear": self.linear.to_json(),
            "truth": self.truth,
        }
        with written_atomically(folder / REPORT) as temporary:
            temporary.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        return folder / REPORT


def report_on_own(
    model: Path, config: TrainingConfig, pairs: int = PAIRS, truths: Path | None = None
) -> OwnReport:
    """Solve pairs that were held out, exactly and by the model.

    Args:
        model: the trained one.
        config: that it was trained with.
        pairs: how many of them, at most.
        truths: a file for their exact paths, such as truths.safetensors of the run's folder; those
            that are there are not solved again.
    """
    assert config.problem.file is not None
    own = read_own(Path(config.problem.file), config.problem.floor)
    source, target = own.test_pairs(pairs)
    truth = KeptTruths(truths).of(source, target)
    known = source, target, truth.frames, truth.distance
    # These have theirs already.
    options = {"floor": 0.0} if config.problem.floor else {}
    solver = make_solver(str(model), **options)
    return OwnReport(measure(solver, *known), measure(make_solver("linear"), *known), truth.solvers)
