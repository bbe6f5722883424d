"""Training on one's own densities, from random weights or from the weights of universal-2d.

Writes a table of docs/training.md. Run it by `make benchmark NAME=own-training`, on an idle
machine.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

import geonet
from benchmarks.pages import Cells, format_share, format_table, publish
from benchmarks.pairs import draw
from benchmarks.results import record_provenance
from experiments.mnist import sample_digits
from geonet.evaluation import reference_solution
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.training import make_config, train
from geonet.training.config import (
    TrainingConfig,
    ValidationSettings,
)
from geonet.training.log import read_log
from geonet.training.user_data import read_dataset

MINUTES = 1.0
TRIAL = 8  # steps by which the time of one is measured
PAIRS = 16  # that training does not see
HALFWAY = QUARTERS.index(0.5)


def digits(count: int = 400) -> np.ndarray:
    """Return MNIST's digits as they are, (count, 28, 28)."""
    return np.asarray(sample_digits().images[:count], dtype=float)


def photographs(count: int = 120) -> np.ndarray:
    """Return leaves with edges at all scales, (count, 64, 64)."""
    pairs = (draw("photographs", 64, k, seed=31) for k in range(count // 2))
    return np.stack([end.tensor.numpy() for pair in pairs for end in pair])


SETS = {"MNIST's digits, 28²": digits, "photographs, 64²": photographs}


def from_nothing(file: Path) -> TrainingConfig:
    """Return the cascade from random weights."""
    base = make_config(file)
    return replace(base, start=None, optimizer=replace(base.optimizer, learning_rate=2e-3))


WAYS = {
    "trained from random weights": from_nothing,
    "trained from `universal-2d`": make_config,
}


def train_model(config: TrainingConfig, folder: Path) -> Path:
    """Return a model after `MINUTES`, whose schedule ends then."""
    quick = replace(config, validation=ValidationSettings(pairs=0), log_every=1)
    train(quick, folder / "trial", stop_at=TRIAL)
    times = [entry["seconds"] for entry in read_log(folder / "trial" / "log.jsonl")]
    steps = int(60 * MINUTES / ((times[-1] - times[1]) / (TRIAL - 2)))
    outcome = train(replace(quick, steps=steps, checkpoint_every=steps), folder / "whole")
    assert outcome.model is not None
    return outcome.model


def errors(solver: str, file: Path, **options) -> Cells:
    """Return W2 and L1 at ½ on pairs that training did not see, means."""
    source, target = read_dataset(file).test_pairs(PAIRS)
    truth = reference_solution(source, target)
    path = geonet.geodesic(source, target, solver=solver, **options)
    off = (path.distance / truth.distance - 1).abs().mean()
    return format_share(off), format_share(
        l1(path.density(QUARTERS), truth.frames)[:, HALFWAY].mean()
    )


def rows() -> list[Cells]:
    """Return errors by data set and training: the network alone and with Newton steps."""
    found = []
    for name, made in SETS.items():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "own.npz"
            np.savez(file, values=made())
            ways = {"`universal-2d` as it is": "universal-2d"}
            for way, config in WAYS.items():
                print(f"{name}: {way}", file=sys.stderr)
                ways[way] = str(train_model(config(file), Path(folder) / config.__name__))
            for way, solver in ways.items():
                alone, corrected = errors(solver, file, max_iterations=0), errors(solver, file)
                found.append((name, way, *alone, *corrected))
    return found


def main() -> None:
    """Train, measure, print and write the table."""
    warnings.simplefilter("ignore")
    provenance = record_provenance()
    header = ("densities", "model", "W2 alone", "L1 at ½ alone", "W2 corrected", "L1 corrected")
    unit = "minute" if MINUTES == 1 else "minutes"
    text = f"Each was trained for {MINUTES:g} {unit}.\n\n{format_table(header, rows())}"
    publish("own-training", provenance, {"docs/training.md": {"own": text}})
    print(text)


if __name__ == "__main__":
    main()
