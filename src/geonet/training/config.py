"""The settings of a training, read from a TOML file."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from geonet._files import wrap_read_errors
from geonet._toml import check_types, from_table, read_toml, require
from geonet._validation import as_path
from geonet.solvers.neural.geonet import GeONetSettings
from geonet.solvers.neural.losses import LossSettings
from geonet.solvers.neural.model import PRETRAINED, ModelSettings, form_of

# ---- How weights move: the settings of an optimizer.


@dataclass(frozen=True)
class OptimizerSettings:
    """How the weights move.

    Attributes:
        name: "soap" or "adam".
        learning_rate: at the top of the schedule.
        schedule: "cosine" or "exponential", both down to `final` of it, or "constant".
        final: share of the learning rate that is left at the end.
        warmup: steps over which it rises from zero.
        balance_every: rescale the weights of the terms so that their gradients have equal norms,
            every so many steps; 0 for never.
        weight_decay: every step takes this share, times the learning rate, off all matrices.
            Without it, weights that matter to no density of the training walk at random, and to
            other densities they matter.
        clip: the largest norm of a gradient, to which larger ones are shortened; 0 for any.
    """

    name: Literal["soap", "adam"] = "soap"
    learning_rate: float = 3e-3
    schedule: Literal["cosine", "exponential", "constant"] = "cosine"
    final: float = 0.01
    warmup: int = 200
    balance_every: int = 0
    weight_decay: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}; give > 0.")
        require(0 < self.final <= 1, f"final is {self.final}; give a share in (0, 1].")
        require(self.warmup >= 0, f"warmup is {self.warmup}; give ≥ 0.")
        require(self.clip >= 0, f"clip is {self.clip:g}; give a norm, or 0 for none.")
        require(self.weight_decay >= 0, f"weight_decay is {self.weight_decay:g}; give ≥ 0.")
        require(self.balance_every >= 0, f"balance_every is {self.balance_every}; give ≥ 0.")


DIMENSIONS = {
    "mixtures-1d": 1,
    "mixtures-2d": 2,
    "mixtures-3d": 3,
    "anything-2d": 2,
    "anything-3d": 3,
    "clouds": 2,
    "digits": 2,
    "digit-codes": 1,
}


@dataclass(frozen=True)
class ProblemSettings:
    """What to train on: a family, or a file of your own densities (see `own.read_own`).

    Attributes:
        family: "anything-2d" draws densities of many kinds on the unit square (see `anything`),
            "anything-3d" on the unit cube;
            "digits" and "digit-codes" read MNIST's training set (`GEONET_DATA`).
        file: npz with `source` and `target`, or with `values`.
        floor: share of the mass of every density of the file that is made uniform, in training and
            whenever the model answers.
        autoencoder: for "digit-codes", the file of another autoencoder than the one shipped.
    """

    family: (
        Literal[
            "mixtures-1d",
            "mixtures-2d",
            "mixtures-3d",
            "anything-2d",
            "anything-3d",
            "clouds",
            "digits",
            "digit-codes",
        ]
        | None
    ) = None
    file: str | None = None
    floor: float = 0.0
    autoencoder: str | None = None

    def __post_init__(self) -> None:
        check_types(self)
        require(
            (self.family is None) != (self.file is None),
            "give either a family or a file of pairs.",
        )
        require(0 <= self.floor < 1, f"floor is {self.floor:g}; give a share in [0, 1).")
        require(not self.floor or self.file is not None, "floor belongs to a file; remove it.")
        require(
            self.autoencoder is None or self.family == "digit-codes",
            'autoencoder belongs to family = "digit-codes"; remove it.',
        )


@dataclass(frozen=True)
class SamplingSettings:
    """What one step sees.

    Attributes:
        scheme: "cartesian": every pair at every point; "triples": the paper's, each pair at one.
        pairs: new pairs a step.
        points: points (x, t) a step; with triples as many as pairs.
        places: points where the ends are compared; with triples as many as pairs. The transport
            form has none: its ends are exact; nor has a DeepONet, which is shown whole paths.
    """

    scheme: Literal["cartesian", "triples"] = "cartesian"
    pairs: int = 64
    points: int = 512
    places: int = 128

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("pairs", "points", "places"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; give at least 1.")


@dataclass(frozen=True)
class ValidationSettings:
    """Pairs that training never sees, solved exactly once at the start; 0 pairs for none."""

    pairs: int = 32
    every: int = 500
    seed: int = 1_000_000

    def __post_init__(self) -> None:
        check_types(self)
        require(self.pairs >= 0, f"pairs is {self.pairs}; give ≥ 0.")
        require(self.every > 0, f"every is {self.every}; give at least 1.")
        require(0 <= self.seed < 2**31, f"seed is {self.seed}; give 0 to 2³¹ − 1.")


@dataclass(frozen=True)
class TrainingConfig:
    """One training, complete: the same config gives the same weights on the same machine.

    Attributes:
        name: of the model; the run's folder is called so too.
        steps: in all.
        seed: of weights, pairs and points.
        checkpoint_every: steps between checkpoints.
        log_every: steps between lines of the log.
        compile: compile the loss: a slow start, then faster steps.
        start: a shipped model, or the file of one, whose weights to begin with.
    """

    name: str
    problem: ProblemSettings
    steps: int
    seed: int = 0
    checkpoint_every: int = 500
    log_every: int = 50
    compile: bool = False
    start: str | None = None
    model: ModelSettings = field(default_factory=GeONetSettings)
    loss: LossSettings = field(default_factory=LossSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    validation: ValidationSettings = field(default_factory=ValidationSettings)

    def __post_init__(self) -> None:
        check_types(self)
        require(
            re.fullmatch(r"[\w.-]+", self.name) is not None and not self.name.startswith("."),
            f"name is {self.name!r}; use letters, digits, '-', '_' and '.'.",
        )
        require(0 <= self.seed < 2**31, f"seed is {self.seed}; give 0 to 2³¹ − 1.")
        for name in ("steps", "checkpoint_every", "log_every"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; give at least 1.")
        family = self.problem.family
        if family is not None:
            known = ", ".join(DIMENSIONS)
            require(family in DIMENSIONS, f"family is {family!r}; choose from {known}.")
            d = DIMENSIONS[family]
            require(
                self.model.dimension == d,
                f"model.dimension is {self.model.dimension}, but {family} is {d}D; let them agree.",
            )
        form_of(self.model.kind).check_training(
            self.model,
            self.loss,
            scheme=self.sampling.scheme,
            family=self.problem.family,
            floor=self.problem.floor,
            compiled=self.compile,
        )


def read_config(file: str | Path) -> TrainingConfig:
    """The config in a TOML file; relative paths, to pairs or a model, count from its folder."""
    file = as_path(file)
    table = read_toml(file)
    problem, start = table.get("problem"), table.get("start")
    with wrap_read_errors(file, "a config"):  # a name may hold what no path can
        if isinstance(problem, dict) and isinstance(problem.get("file"), str):
            problem["file"] = str((file.parent / problem["file"]).resolve())
        if isinstance(start, str) and not (PRETRAINED / f"{start}.safetensors").exists():
            table["start"] = str((file.parent / start).resolve())
    return from_table(TrainingConfig, table)
