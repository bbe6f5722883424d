"""Settings of a training run, as frozen dataclasses that a TOML file fills."""

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
from geonet.solvers.neural.model import PRETRAINED, ModelSettings, model_class


@dataclass(frozen=True)
class ProblemSettings:
    """Training data: a problem by name or location, or a file of densities.

    Attributes:
        family: "mixtures-1d", "mixtures-2d", "mixtures-3d", "anything-2d", "anything-3d", a name
            from `geonet.training.register_problem`, or a location "module:factory".
        file: npz with `source` and `target`, or with `values` (see `read_dataset`). With a
            location as `family`, the file is the argument of its factory.
        floor: share of the mass of every density of the file that is made uniform, in training and
            inference.
    """

    family: str | None = None
    file: str | None = None
    floor: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        is_location = self.family is not None and ":" in self.family
        require(
            (self.family is None) != (self.file is None) or is_location,
            "give either a family or a file of densities.",
        )
        require(0 <= self.floor < 1, f"floor is {self.floor:g}; give a share in [0, 1).")
        require(not self.floor or self.family is None, "floor applies to a file only; remove it.")


@dataclass(frozen=True)
class SamplingSettings:
    """Pairs and points of one step.

    Attributes:
        scheme: "cartesian" evaluates every pair at every point; "triples", as in the paper, each
            pair at one point of its own.
        pairs: number of new pairs per step.
        points: number of points (x, t) per step; ignored for triples.
        places: number of points at which the ends are compared; ignored for triples, by models with
            exact ends, and by a DeepONet, which is compared with whole paths.
    """

    scheme: Literal["cartesian", "triples"] = "cartesian"
    pairs: int = 64
    points: int = 512
    places: int = 128

    def __post_init__(self) -> None:
        check_types(self)
        _require_positive(self, "pairs", "points", "places")


@dataclass(frozen=True)
class OptimizerSettings:
    """Optimizer and learning rate.

    Attributes:
        name: "soap" or "adam".
        learning_rate: largest value of the schedule.
        schedule: "cosine" or "exponential", both down to `final`, or "constant".
        final: learning rate at the end, relative to `learning_rate`.
        warmup: steps over which the learning rate rises from zero.
        balance_every: steps between two rescalings of the terms of the loss to gradients of equal
            norm; 0 for none.
        weight_decay: share of all matrices, times the learning rate, that a step subtracts. It
            stops the random walk of weights that have no influence on the training densities, but
            may have some on others.
        clip: largest norm of a gradient; longer ones are shortened; 0 for no limit.
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
        for name in ("warmup", "balance_every", "weight_decay", "clip"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name):g}; give ≥ 0.")


@dataclass(frozen=True)
class ValidationSettings:
    """Validation pairs, which training does not use; their exact paths are solved at the start.

    Attributes:
        pairs: number of pairs; 0 for no validation.
        every: steps between two validations.
        seed: seed of the pairs.
    """

    pairs: int = 32
    every: int = 500
    seed: int = 1_000_000

    def __post_init__(self) -> None:
        check_types(self)
        require(self.pairs >= 0, f"pairs is {self.pairs}; give ≥ 0.")
        _require_positive(self, "every")
        require(0 <= self.seed < 2**31, f"seed is {self.seed}; give 0 to 2³¹ − 1.")


@dataclass(frozen=True)
class TrainingConfig:
    """One training run: the same config yields the same weights on the same machine.

    Attributes:
        name: name of the model, and of the run's folder.
        steps: number of steps.
        seed: seed of weights, pairs and points.
        checkpoint_every: steps between checkpoints.
        log_every: steps between lines of the log.
        compile: compile the loss: a slow start, then faster steps.
        start: a pretrained model, or a model file, whose weights are the initial ones.
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
        _require_positive(self, "steps", "checkpoint_every", "log_every")
        model_class(self.model.kind).check_training(
            self.model,
            self.loss,
            scheme=self.sampling.scheme,
            family=self.problem.family,
            floor=self.problem.floor,
            compiled=self.compile,
        )


def _require_positive(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        require(value > 0, f"{name} is {value}; give at least 1.")


def read_config(file: str | Path) -> TrainingConfig:
    """Read a TOML file; paths in it are relative to its folder."""
    file = as_path(file)
    table = read_toml(file)
    problem, start = table.get("problem"), table.get("start")
    with wrap_read_errors(file, "a config"):  # a name may contain characters that no path can
        if isinstance(problem, dict) and isinstance(problem.get("file"), str):
            problem["file"] = str((file.parent / problem["file"]).resolve())
        if isinstance(start, str) and not (PRETRAINED / f"{start}.safetensors").exists():
            table["start"] = str((file.parent / start).resolve())
    return from_table(TrainingConfig, table)
