"""Variants of the training with equal time: errors on unseen pairs.

Every variant is the base config of the 1D experiment with one thing changed. Its steps are counted
out so that all take the same time of one core, schedule included. Prints two tables and writes them
into docs/training.md: errors in and out of distribution, and how well both equations are solved.
Run it by `make benchmark NAME=variants`:

    python -m benchmarks study variants --seconds 60
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor

from benchmarks.pages import ROOT, Cells, format_table, publish
from benchmarks.results import record_provenance
from geonet.evaluation import PAIRS, TEST_SETS, ReferencePairs, sample_pairs
from geonet.metrics import l1
from geonet.paths import QUARTERS
from geonet.solvers.neural.geonet import GeONetPath
from geonet.solvers.neural.losses import LossSettings
from geonet.solvers.neural.model import load_model
from geonet.training.config import (
    SamplingSettings,
    TrainingConfig,
    ValidationSettings,
    read_config,
)
from geonet.training.loop import MODEL, Processes, Run, train

SEED = 9_000  # of the pairs, used to choose between variants and in no other table
BASE = replace(
    read_config(ROOT / "experiments" / "configs" / "gaussian-1d.toml"),
    compile=False,
    validation=ValidationSettings(pairs=0),
)
PAPER = replace(
    read_config(ROOT / "experiments" / "configs" / "paper-1d.toml"), validation=BASE.validation
)


def variants() -> dict[str, TrainingConfig]:
    """Return the base config and variants with one change each."""
    model, trunk, branch, loss = BASE.model, BASE.model.trunk, BASE.model.branch, BASE.loss
    places = replace(BASE.sampling, places=64)
    gated = {
        "branch": replace(branch, network="modified-mlp"),
        "trunk": replace(trunk, network="modified-mlp"),
    }

    def shaped(**changes: Any) -> TrainingConfig:
        return replace(BASE, model=replace(model, **changes))

    def weighed(**changes: Any) -> TrainingConfig:
        return replace(BASE, loss=replace(loss, **changes))

    def at_points(**changes: Any) -> TrainingConfig:
        return weighed(**{"characteristics": 0.0, "continuity": 0.5} | changes)

    def bare(share: float) -> TrainingConfig:
        return at_points(hamilton_jacobi=0.25 * share, hamilton_jacobi_gradient=0.0)

    def learned(weight: float) -> TrainingConfig:
        ends = replace(loss, source=weight, target=weight)
        return replace(shaped(ends="learned"), loss=ends, sampling=places)

    return {
        "base": BASE,
        "continuity along characteristics only": weighed(continuity=0.0),
        "ends learnt, β = 1": learned(1.0),
        "ends learnt, β = 10": learned(10.0),
        "its gradient, ω × 10": weighed(
            hamilton_jacobi_gradient=10 * loss.hamilton_jacobi_gradient
        ),
        "branches read the sensors": shaped(branch=replace(branch, modes=0)),
        "branches read 8 modes": shaped(branch=replace(branch, modes=8)),
        "branches half as wide": shaped(branch=replace(branch, width=branch.width // 2)),
        "gated networks (modified MLP)": shaped(**gated),
        "coordinates instead of cosines": shaped(trunk=replace(trunk, features="coordinates")),
        "no swap symmetry": shaped(swap_symmetry="none"),
        "Adam (10⁻³) instead of SOAP": replace(
            BASE, optimizer=replace(BASE.optimizer, name="adam", learning_rate=1e-3)
        ),
        "learning rate × 3": replace(
            BASE, optimizer=replace(BASE.optimizer, learning_rate=3 * BASE.optimizer.learning_rate)
        ),
        "weight decay 0.2": replace(BASE, optimizer=replace(BASE.optimizer, weight_decay=0.2)),
        "continuity at points only (P), α1 = 0.5": at_points(),
        "P, α1 = 5": at_points(continuity=5.0),
        "P, Hamilton–Jacobi itself, α2 = 0.25 (the paper's)": bare(1.0),
        "P, Hamilton–Jacobi itself, α2 = 0.0025": bare(0.01),
        "P, not weighed by density": at_points(weigh_by_density=False),
        "P, continuity squared everywhere": at_points(robust=0.0),
        "P, 2,000 triples": replace(at_points(), sampling=SamplingSettings("triples", 2000)),
        "P, the paper's α, β, ends and sensors": replace(
            shaped(ends="learned", branch=replace(branch, modes=0), rank=400),
            loss=LossSettings(),
            sampling=places,
        ),
        "all of the paper's: triples, its networks, Adam": PAPER,
    }


def steps_within(config: TrainingConfig, seconds: float, folder: Path) -> int:
    """Return the number of steps that fit into the time, from a tenth of it after a warm-up.

    It is the time of this process on one core, so that what else the machine does hardly counts.
    """
    run = Run(config, folder, Processes())
    for _ in range(3):
        run.step()
    began, taken = process_time(), 0
    while process_time() - began < seconds / 10:
        run.step()
        taken += 1
    return max(1, round(seconds * taken / (process_time() - began)))


@dataclass(frozen=True)
class Measured:
    """Errors of a variant in percent, means over the pairs."""

    steps: int
    inside: list[float]
    outside: list[float]
    distance: float
    speed: float
    created: float
    bent: float


def train_variant(config: TrainingConfig, seconds: float) -> tuple[TrainingConfig, Any]:
    """Return a variant with as many steps as fit into the time, and its model."""
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
        model, _ = load_model(folder / "run" / MODEL)
    return config, model


def measure(config: TrainingConfig, seconds: float, cases: dict[str, ReferencePairs]) -> Measured:
    """Train a variant and look at its paths."""
    config, model = train_variant(config, seconds)
    found = {
        name: model.build_path(known.source, known.target, "geonet", {})
        for name, known in cases.items()
    }
    inside, outside = (
        percent(l1(found[name].density(QUARTERS), known.truth)) for name, known in cases.items()
    )
    path, known = next(iter(found.values())), next(iter(cases.values()))
    return Measured(
        config.steps,
        inside,
        outside,
        *percent((path.distance / known.distance - 1)[:, None]),
        *percent((speed_at_ends(path) / known.distance - 1)[:, None]),
        *percent(path.residuals.continuity_residual[:, None]),
        *percent(path.residuals.acceleration[:, None]),
    )


def percent(values: Tensor) -> list[float]:
    """Return Means over the pairs of (pairs, columns), in percent."""
    return (100 * values).mean(0).tolist()


def speed_at_ends(path: GeONetPath) -> Tensor:
    """Return (½∫|∇H_0|²dμ0 + ½∫|∇H_1|²dμ1)^½, which is W2 too, but small where H is flat."""
    squares = []
    for t, end in ((0.0, path.source), (1.0, path.target)):
        speed = (path.velocity(t, path.grid.points()) ** 2).sum(-1)
        squares.append((speed * end.tensor).flatten(1).mean(-1) * path.grid.volume)
    return ((squares[0] + squares[1]) / 2).sqrt()


def main(seconds: float = 60.0, pairs: int = PAIRS) -> None:
    """Train all variants one after the other."""
    provenance = record_provenance()
    torch.set_num_threads(1)
    cases = {name: sample_pairs(TEST_SETS[name], pairs, SEED) for name in ("1D random", "1D OOD")}
    errors: list[Cells] = []
    equations: list[Cells] = []
    for label, config in variants().items():
        found = measure(config, seconds, cases)
        cells = [f"{e:.1f}" for part in (found.inside, found.outside) for e in part[:3]]
        errors.append((label, f"{found.steps:,}", *cells))
        signed = (f"{found.distance:+.1f}", f"{found.speed:+.1f}")
        equations.append((label, *signed, f"{found.created:.1f}", f"{found.bent:.1f}"))
        print(errors[-1], equations[-1][1:], flush=True)
    times = ("t = 0", "t = ¼", "t = ½")
    header = (f"L1 in %, {seconds:.0f} s each", "steps", *times, *(f"OOD, {t}" for t in times))
    sections = {
        "variants": format_table(header, errors),
        "equations": format_table(
            ("in %", "W2", "W2 from ∣∇H∣ at the ends", "continuity", "Hamilton–Jacobi"), equations
        ),
    }
    for text in sections.values():
        print(text)
    publish("variants", provenance, {"docs/training.md": sections})


if __name__ == "__main__":
    main()
