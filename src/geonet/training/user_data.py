"""Densities of the user's own to train on: pairs in a file, or a set of which any two make a pair.

The last tenth is held out, two at least. Of pairs its first half is for validation and its second
half for tests; of a set both draw pairs from all of it.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet._files import atomic_write, read_arrays
from geonet._toml import require
from geonet._validation import as_path, check_count
from geonet.density import Density
from geonet.errors import FileError, InputError
from geonet.evaluation import Accuracy, measure
from geonet.grid import Grid
from geonet.solvers.neural.cascade import square_cells
from geonet.solvers.neural.losses import EndFunctions, LossSettings
from geonet.solvers.neural.model import PRETRAINED, load_model
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.solvers.registry import make_solver
from geonet.training.checkpoint import KeptTruths
from geonet.training.config import (
    OptimizerSettings,
    ProblemSettings,
    SamplingSettings,
    TrainingConfig,
    ValidationSettings,
)
from geonet.training.problems import Cells, Problem

TEST_SEED = 7_000
ALL = 1 << 20  # pairs that are put in a random order
LEAST_PAIRS, LEAST_DENSITIES = 3, 4


class Own(Problem):
    """What there is of pairs and sets alike.

    Attributes:
        seen: how many come first and are trained on.
    """

    def __init__(self, box: Grid, count: int):
        self.box = box
        self.seen = max(1, count - max(2, math.ceil(count / 10)))

    @abstractmethod
    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """At most `count` pairs that training did not see, all different."""

    @abstractmethod
    def pairs(self, count: int) -> tuple[Density, Density]:
        """At most `count` of all pairs, all different."""

    def _splines(self, *ends: Tensor) -> EndFunctions:
        """Densities (n, *cells) as functions on the unit box, relative to uniform."""
        first, second = (Cells(end.float() * self.box.volume) for end in ends)
        return first, second


class Recorded(Own):
    """Pairs of densities, (n, *cells) each."""

    def __init__(self, source: Density, target: Density):
        super().__init__(source.grid, len(source))
        self.source, self.target = source, target
        self.validated = self.seen + (len(source) - self.seen + 1) // 2  # the rest is for tests

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """Random pairs, with repeats, as splines through their cells."""
        chosen = torch.randint(self.seen, (count,), generator=generator)
        return self._splines(self.source.tensor[chosen], self.target.tensor[chosen])

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Random pairs that are held out for validation, with repeats."""
        chosen = torch.randint(self.seen, self.validated, (count,), generator=generator)
        return self._chosen(chosen)

    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """The last pairs."""
        return self._chosen(torch.arange(self.validated, len(self.source))[:count])

    def pairs(self, count: int) -> tuple[Density, Density]:
        """The first pairs."""
        return self._chosen(torch.arange(len(self.source))[:count])

    def _chosen(self, chosen: Tensor) -> tuple[Density, Density]:
        ends = (self.source, self.target)
        source, target = (Density(end.tensor[chosen], self.box) for end in ends)
        return source, target


class Pool(Own):
    """A set of densities (n, *cells), of which any two make a pair."""

    def __init__(self, densities: Density):
        super().__init__(densities.grid, len(densities))
        self.pool = densities.tensor.float()  # MNIST has 60,000

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """Splines through the cells."""
        chosen = (torch.randint(self.seen, (count,), generator=generator) for _ in range(2))
        return self._splines(*(self.pool[k] for k in chosen))

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Pairs of densities that are held out."""
        held_out = self.pool[self.seen :]
        first, second = (
            torch.randint(len(held_out), (count,), generator=generator) for _ in range(2)
        )
        second = torch.where(first == second, (second + 1) % len(held_out), second)  # no one alone
        source, target = (Density(held_out[k].double(), self.box) for k in (first, second))
        return source, target

    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """Pairs of densities that are held out, the same at every call."""
        return self._different(self.pool[self.seen :], count)

    def pairs(self, count: int) -> tuple[Density, Density]:
        """Pairs of any two, the same at every call."""
        return self._different(self.pool, count)

    def _different(self, densities: Tensor, count: int) -> tuple[Density, Density]:
        """Ordered pairs of different ones, each at most once."""
        n, generator = len(densities), torch.Generator().manual_seed(TEST_SEED)
        most = n * (n - 1)
        if most <= ALL:
            code = torch.randperm(most, generator=generator)[:count]
        else:  # repeats are rare
            code = torch.randint(most, (count,), generator=generator)
        first, second = code // (n - 1), code % (n - 1)
        second = second + (second >= first)
        source, target = (Density(densities[k].double(), self.box) for k in (first, second))
        return source, target


def read_own(file: Path, floor: float = 0.0) -> Recorded | Pool:
    """What is in an npz: `source` and `target`, or `values`, (n, *cells), and a box.

    Args:
        file: with `lower` and `upper`, the corners of the box, or else it is the unit box.
        floor: share of every density's mass that is made uniform.
    """
    arrays = read_arrays(file, "an npz of densities")
    if "values" in arrays and not {"source", "target"} & set(arrays):
        values = _density(file, arrays, "values").with_floor(floor)
        _check_count(file, len(values), LEAST_DENSITIES, "densities")
        return Pool(values)
    for key in ("source", "target"):
        if key not in arrays:
            raise FileError(
                f"{file} has no array {key!r}; give source and target, (n, cells…), or values, "
                "of which any two make a pair."
            )
    shapes = arrays["source"].shape, arrays["target"].shape
    if shapes[0] != shapes[1]:
        raise FileError(
            f"{file} has source {shapes[0]} and target {shapes[1]}; "
            "give two arrays (n, cells…) of one shape, in 1D to 3D."
        )
    source, target = (_density(file, arrays, key).with_floor(floor) for key in ("source", "target"))
    _check_count(file, len(source), LEAST_PAIRS, "pairs")
    return Recorded(source, target)


def _check_count(file: Path, count: int, least: int, what: str) -> None:
    if count < least:
        raise FileError(
            f"{file} holds {count} {what}, and two are held out for validation and tests; "
            f"give at least {least}."
        )


def _density(file: Path, arrays: dict[str, np.ndarray], key: str) -> Density:
    """A batch of densities on the box in the file, which must be a cube."""
    values = arrays[key]
    if not 2 <= values.ndim <= 4:
        raise FileError(f"{file} has {key} {values.shape}; give an array (n, cells…), in 1D to 3D.")
    lower, upper = (
        arrays.get(name, np.float64(k)).tolist() for k, name in enumerate(("lower", "upper"))
    )
    _check_numbers(file, values)
    try:
        density = Density(values, Grid(values.shape[1:], lower, upper))
    except (InputError, TypeError, ValueError) as error:
        raise FileError(f"{file}: {error}") from error
    sides = density.grid.lengths
    if density.grid.longest > min(sides) * (1 + 1e-9):
        raise FileError(f"The box in {file} has sides {sides}; pad the densities to a cube.")
    return density


def _check_numbers(file: Path, values: np.ndarray) -> None:
    """Refuse what `nodata` would be the remedy for elsewhere: a training takes none."""
    if values.dtype.kind not in "if":
        return
    for bad, what, remedy in (
        (np.isnan(values), "NaN", "fill them first"),
        (values < 0, "negative", "clip them at zero if they are noise"),
    ):
        if bad.any():
            raise FileError(f"{file}: {bad.sum()} of {values.size} values are {what}; {remedy}.")


# ---- How good a model trained on one's own densities is, on pairs that were held out.


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
        with atomic_write(folder / REPORT) as temporary:
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


# ---- The settings of a training on one's own densities, where nobody gave any.


EMPTY = 0.01  # share of empty cells from which a floor is given
FLOOR = 0.05  # maps of densities with holes have jumps, which no smooth potential has
UNIVERSAL, UNIVERSAL_STEPS = "universal-2d", 1000  # with which a training in 2D goes on
FINEST = 128  # cells of the square along an axis in training
VALIDATIONS = 6  # in the course of a training


@dataclass(frozen=True)
class Size:
    """What suits a dimension on two cores: some minutes, and errors of a percent or so."""

    sensors: int
    seen: int
    modes: int
    width: int
    pairs: int
    steps: int


SIZES = {
    1: Size(sensors=128, seen=32, modes=48, width=128, pairs=256, steps=6000),
    3: Size(sensors=16, seen=8, modes=8, width=96, pairs=96, steps=2000),
}


def config_for(
    file: str | Path,
    name: str | None = None,
    steps: int | None = None,
    floor: float | None = None,
) -> TrainingConfig:
    """A training on the densities in a file: of `universal-2d` in 2D, else of the transport form.

    Args:
        file: see `read_own`.
        name: of the model; by default the file's.
        steps: of the training; by default so many that it takes some minutes.
        floor: share of the mass that is made uniform; by default 5 % if there are empty cells, and
            none in 2D.
    """
    file = as_path(file)
    if steps is not None:
        check_count(steps, 1, "steps")
    own = read_own(file)
    if own.box.dimension == 2:
        require(not floor, f"floor is {floor}; models for 2D need none, remove it.")
        return _of_universal(file, name or file.stem, own, steps or UNIVERSAL_STEPS)
    size, cells = SIZES[own.box.dimension], min(own.box.shape)
    sensors = max(2, min(size.sensors, cells))
    count = steps or size.steps
    every = max(1, count // VALIDATIONS)
    return TrainingConfig(
        name=name or file.stem,
        problem=ProblemSettings(
            file=str(file.resolve()), floor=suggested_floor(own) if floor is None else floor
        ),
        steps=count,
        checkpoint_every=every,
        model=TransportSettings(
            dimension=own.box.dimension,
            sensors=sensors,
            seen=min(size.seen, sensors - sensors % 2),
            modes=size.modes,
            width=size.width,
        ),
        loss=LossSettings(floor=0.05),
        sampling=SamplingSettings(pairs=size.pairs, points=64),
        optimizer=OptimizerSettings(learning_rate=0.01, warmup=min(200, count // 10)),
        validation=ValidationSettings(pairs=16, every=every),
    )


def _of_universal(file: Path, name: str, own: Recorded | Pool, steps: int) -> TrainingConfig:
    """Go on with the weights of `universal-2d`."""
    model, _ = load_model(PRETRAINED / f"{UNIVERSAL}.safetensors")
    every = max(1, steps // VALIDATIONS)
    return TrainingConfig(
        name=name,
        problem=ProblemSettings(file=str(file.resolve())),
        steps=steps,
        checkpoint_every=every,
        start=UNIVERSAL,
        model=replace(model.settings, sensors=min(square_cells(own.box), FINEST)),
        sampling=SamplingSettings(pairs=16, points=1),
        optimizer=OptimizerSettings(learning_rate=5e-4, warmup=min(50, steps // 10), clip=1.0),
        validation=ValidationSettings(pairs=16, every=every),
    )


def suggested_floor(own: Recorded | Pool) -> float:
    """5 % where more than a hundredth of the cells is empty, else none."""
    ends = [own.pool] if isinstance(own, Pool) else [own.source.tensor, own.target.tensor]
    empty = sum(int((end == 0).sum()) for end in ends) / sum(end.numel() for end in ends)
    return FLOOR if empty > EMPTY else 0.0
