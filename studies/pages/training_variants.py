"""What each choice in training is worth: the same time for all, the error on unseen pairs.

Every variant is the base config of the 1D experiment with one thing changed. Its steps are counted
out so that all take the same time, schedule included. Prints a table and writes it into
docs/training.md. Run it by `make variants` on an otherwise idle machine:

    python studies/pages/training_variants.py [SECONDS]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from pages import ROOT, Cells, table
from published import begun, publish

from geonet.operators.architecture import Branch, Trunk
from geonet.operators.geonet import GeONetSettings
from geonet.operators.objective import LossSettings
from geonet.optimizers.settings import OptimizerSettings
from geonet.training.config import (
    ProblemSettings,
    SamplingSettings,
    TrainingConfig,
    ValidationSettings,
    read_config,
)
from geonet.training.loop import Run, train
from geonet.training.processes import Processes
from geonet.training.run_log import read_log

BASE = replace(
    read_config(ROOT / "studies" / "configs" / "gaussian-1d.toml"),
    compile=False,
    validation=ValidationSettings(pairs=64, every=1_000_000),
)
PAPER = TrainingConfig(
    name="paper",
    problem=ProblemSettings("mixtures-1d"),
    steps=1,
    model=GeONetSettings(
        dimension=1, sensors=100, branch=Branch(width=150), trunk=Trunk(width=100)
    ),
    sampling=SamplingSettings("triples", 2000),
    optimizer=OptimizerSettings("adam", 5e-4, "exponential", warmup=0),
    validation=BASE.validation,
)


def variants() -> dict[str, TrainingConfig]:
    """The base, and one thing changed at a time."""
    model, trunk, branch = BASE.model, BASE.model.trunk, BASE.model.branch
    plain = replace(
        model, branch=replace(branch, network="mlp"), trunk=replace(trunk, network="mlp")
    )
    enhanced = LossSettings(continuity_gradient=0.05, hamilton_jacobi_gradient=0.05)
    return {
        "base: Cartesian, modified MLP, SOAP, cosines, symmetry": BASE,
        "MLP instead of modified MLP": replace(BASE, model=plain),
        "2,000 triples instead of Cartesian": replace(
            BASE, sampling=SamplingSettings("triples", 2000)
        ),
        "Adam (10⁻³) instead of SOAP": replace(
            BASE, optimizer=replace(BASE.optimizer, name="adam", learning_rate=1e-3)
        ),
        "coordinates instead of cosines": replace(
            BASE, model=replace(model, trunk=replace(trunk, features="coordinates"))
        ),
        "separable trunk": replace(
            BASE, model=replace(model, trunk=replace(trunk, network="separable"))
        ),
        "no swap symmetry": replace(BASE, model=replace(model, swap_symmetry="none")),
        "balanced gradient norms": replace(
            BASE, optimizer=replace(BASE.optimizer, balance_every=100)
        ),
        "gradient enhancement, γ = ω = 0.05": replace(BASE, loss=enhanced),
        "the paper's: 2,000 triples, its networks, Adam": PAPER,
    }


def steps_within(config: TrainingConfig, seconds: float, folder: Path) -> int:
    """How many steps fit into the time, from a tenth of it after some steps to warm up."""
    run = Run(replace(config, validation=ValidationSettings(pairs=0)), folder, Processes())
    for _ in range(3):
        run.take_step()
    began, taken = perf_counter(), 0
    while perf_counter() - began < seconds / 10:
        run.take_step()
        taken += 1
    return max(1, round(seconds * taken / (perf_counter() - began)))


def measure(config: TrainingConfig, seconds: float) -> tuple[int, float, list[float]]:
    """Steps, seconds and validation errors in percent of one variant."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps = steps_within(config, seconds, folder)
        warmup = min(config.optimizer.warmup, steps // 5)
        config = replace(
            config,
            steps=steps,
            checkpoint_every=steps,
            optimizer=replace(config.optimizer, warmup=warmup),
        )
        train(config, folder / "run")
        entries = [e for e in read_log(folder / "run" / "log.jsonl") if "validation" in e]
    return steps, entries[-1]["seconds"], entries[-1]["validation"]


def main(seconds: float) -> None:
    """Train all variants one after the other."""
    stamped = begun("variants")
    rows: list[Cells] = []
    for label, config in variants().items():
        steps, took, errors = measure(config, seconds)
        cells = (f"{e:.1f}" for e in errors[:3])
        rows.append((label, f"{steps:,}", f"{took:.0f}", *cells))
        print(rows[-1], flush=True)
    header = ("1D, L1 in %", "steps", "seconds", "t = 0", "t = ¼", "t = ½")
    text = table(header, rows)
    print(text)
    publish("variants", stamped, {"docs/training.md": {"variants": text}})


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
