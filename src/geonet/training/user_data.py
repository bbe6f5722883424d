"""Training on the user's own densities: data sets, default settings and the report on a holdout.

The last tenth of a data set is held out, two densities or pairs at least. For pairs, the first half
of the holdout is for validation and the second half for tests; for single densities, both draw
pairs from all of it.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from geonet._files import atomic_write, read_arrays
from geonet._format import format_percent
from geonet._toml import require
from geonet._validation import as_path, check_count
from geonet.density import Density
from geonet.errors import FileError, InputError
from geonet.evaluation import Accuracy, measure
from geonet.grid import Grid
from geonet.solvers.neural.cascade import choose_resolution
from geonet.solvers.neural.losses import DensityFunctions, LossSettings
from geonet.solvers.neural.model import PRETRAINED, load_model
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.solvers.registry import make_solver
from geonet.training.checkpoint import ReferenceCache
from geonet.training.config import (
    OptimizerSettings,
    ProblemSettings,
    SamplingSettings,
    TrainingConfig,
    ValidationSettings,
)
from geonet.training.problems import CellMeans, Problem

# ---- Data sets


class UserDataset(Problem):
    """Densities from a file, of which the last ones are held out.

    Attributes:
        n_training: number of densities or pairs that are used for training; they come first.
        unpadded: shape of the arrays in the file, if they were padded to squares or cubes.
    """

    noun: ClassVar[str]

    def __init__(self, box: Grid, count: int, unpadded: tuple[int, ...] | None = None):
        self.box, self.unpadded, self._count = box, unpadded, count
        self.n_training = max(1, count - max(2, math.ceil(count / 10)))

    def describe(self) -> list[str]:
        """Return sentences on the contents of the file and their use."""
        cells = "×".join(map(str, self.unpadded or self.box.shape))
        sides = f"[{self.box.lower[0]:g}, {self.box.upper[0]:g}]"
        power = {1: "", 2: "²", 3: "³"}[self.box.dimension]
        empty = self.empty_share()
        lines = [
            f"read {self._count:,} {self.noun} of {cells} cells, {format_percent(empty)} of them "
            f"empty, on the box {sides}{power}; {self.n_training:,} are for training, "
            f"{self._describe_holdout()}"
        ]
        if self.unpadded:
            square = "×".join(map(str, self.box.shape))
            lines.append(
                f"{cells} cells are centred in {square} cells, so that they stay square; give "
                "lower and upper in the file for another box"
            )
        return lines

    @abstractmethod
    def _describe_holdout(self) -> str:
        """Return the use of the densities that are held out."""

    @abstractmethod
    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """Return at most `count` different pairs that are not used for training."""

    @abstractmethod
    def pairs(self, count: int) -> tuple[Density, Density]:
        """Return at most `count` different pairs of all data."""

    @abstractmethod
    def empty_share(self) -> float:
        """Return the share of the file's cells that are zero; cells of the padding do not count."""

    def _crop(self, values: Tensor) -> Tensor:
        """Return densities (n, *cells) without the padding."""
        shape = self.unpadded or self.box.shape
        starts = [_margins(n, max(shape))[0] for n in shape]
        return values[(..., *(slice(a, a + n) for a, n in zip(starts, shape, strict=True)))]

    def _to_functions(self, source: Tensor, target: Tensor) -> DensityFunctions:
        """Return densities (n, *cells) as functions on the unit box, relative to uniform."""
        volume = self.box.volume
        return CellMeans(source.float() * volume), CellMeans(target.float() * volume)


class PairDataset(UserDataset):
    """Pairs of densities, (n, *cells) each."""

    noun = "pairs"

    def __init__(self, source: Density, target: Density, unpadded: tuple[int, ...] | None = None):
        super().__init__(source.grid, len(source), unpadded)
        self.source, self.target = source, target
        self.test_start = self.n_training + (len(source) - self.n_training + 1) // 2

    def draw(self, count: int, generator: torch.Generator) -> DensityFunctions:
        """Draw training pairs with replacement."""
        index = torch.randint(self.n_training, (count,), generator=generator)
        return self._to_functions(self.source.tensor[index], self.target.tensor[index])

    def draw_densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Draw validation pairs with replacement."""
        first, last = self.n_training, self.test_start
        return self._take(torch.randint(first, last, (count,), generator=generator))

    def _describe_holdout(self) -> str:
        count = len(self.source)
        return (
            f"{count - self.n_training:,} are held out: {self.test_start - self.n_training:,} for "
            f"validation, {count - self.test_start:,} for the final report"
        )

    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """Return the last pairs."""
        return self._take(torch.arange(self.test_start, len(self.source))[:count])

    def pairs(self, count: int) -> tuple[Density, Density]:
        """Return the first pairs."""
        return self._take(torch.arange(len(self.source))[:count])

    def empty_share(self) -> float:
        """Return the share of cells that are zero."""
        empty = [self._crop(end.tensor) == 0 for end in (self.source, self.target)]
        return float(torch.stack([mask.double().mean() for mask in empty]).mean())

    def _take(self, index: Tensor) -> tuple[Density, Density]:
        ends = (self.source, self.target)
        source, target = (Density(end.tensor[index], self.box) for end in ends)
        return source, target


class DensityDataset(UserDataset):
    """Densities (n, *cells), of which any two are a pair."""

    noun = "densities"

    def __init__(self, densities: Density, unpadded: tuple[int, ...] | None = None):
        super().__init__(densities.grid, len(densities), unpadded)
        self.values = densities.tensor.float()  # single precision: MNIST has 60,000 images

    def draw(self, count: int, generator: torch.Generator) -> DensityFunctions:
        """Draw pairs of training densities with replacement."""
        first, second = (
            torch.randint(self.n_training, (count,), generator=generator) for _ in range(2)
        )
        return self._to_functions(self.values[first], self.values[second])

    def draw_densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Draw pairs of different densities of the holdout, with replacement."""
        holdout = self.values[self.n_training :]
        first, second = (
            torch.randint(len(holdout), (count,), generator=generator) for _ in range(2)
        )
        second = torch.where(first == second, (second + 1) % len(holdout), second)
        return self._pair(holdout, first, second)

    def _describe_holdout(self) -> str:
        return (
            f"{len(self.values) - self.n_training:,} are held out: any two of them are a pair for "
            "validation and for the final report"
        )

    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """Return pairs of densities of the holdout, the same at every call."""
        return self._different_pairs(self.values[self.n_training :], count)

    def pairs(self, count: int) -> tuple[Density, Density]:
        """Return pairs of any two densities, the same at every call."""
        return self._different_pairs(self.values, count)

    def empty_share(self) -> float:
        """Return the share of cells that are zero."""
        return float((self._crop(self.values) == 0).double().mean())

    def _different_pairs(self, values: Tensor, count: int) -> tuple[Density, Density]:
        """Return ordered pairs of different densities, each at most once."""
        n, generator = len(values), torch.Generator().manual_seed(7_000)
        total = n * (n - 1)
        if total <= 1 << 20:
            code = torch.randperm(total, generator=generator)[:count]
        else:  # a permutation takes too much memory, and repeats are rare
            code = torch.randint(total, (count,), generator=generator)
        first, second = code // (n - 1), code % (n - 1)
        return self._pair(values, first, second + (second >= first))

    def _pair(self, values: Tensor, first: Tensor, second: Tensor) -> tuple[Density, Density]:
        source, target = (Density(values[k].double(), self.box) for k in (first, second))
        return source, target


def read_dataset(file: Path, floor: float = 0.0) -> PairDataset | DensityDataset:
    """Read densities from an npz file.

    Args:
        file: with arrays `source` and `target`, or `values`, (n, *cells), and the corners `lower`
            and `upper` of a box with equal sides. Without these it is the unit box, and arrays that
            are not square are centred in empty cells.
        floor: share of every density's mass that is made uniform.
    """
    arrays = read_arrays(file, "an npz of densities")
    own_shape = arrays.get("values", arrays.get("source", np.empty(0))).shape[1:]
    unpadded = own_shape if _needs_padding(arrays, own_shape) else None
    if "values" in arrays and not {"source", "target"} & set(arrays):
        values = _read_densities(file, arrays, "values").with_floor(floor)
        _check_count(file, len(values), 4, "densities")
        return DensityDataset(values, unpadded)
    for key in ("source", "target"):
        if key not in arrays:
            raise FileError(
                f"{file} has no array {key!r}; add source and target, (n, cells…), or values, "
                "of which any two are a pair."
            )
    shapes = arrays["source"].shape, arrays["target"].shape
    if shapes[0] != shapes[1]:
        raise FileError(
            f"{file} has source {shapes[0]} and target {shapes[1]}; "
            "give two arrays (n, cells…) of one shape, in 1D to 3D."
        )
    source, target = (
        _read_densities(file, arrays, key).with_floor(floor) for key in ("source", "target")
    )
    _check_count(file, len(source), 3, "pairs")
    return PairDataset(source, target, unpadded)


def _check_count(file: Path, count: int, least: int, noun: str) -> None:
    if count < least:
        raise FileError(
            f"{file} has too few {noun}, {count}; give at least {least}, of which two are held out "
            "for validation and tests."
        )


def _read_densities(file: Path, arrays: dict[str, np.ndarray], key: str) -> Density:
    """Return a batch of densities on the box in the file, which must be a cube."""
    values = arrays[key]
    if not 2 <= values.ndim <= 4:
        raise FileError(f"{file} has {key} {values.shape}; give an array (n, cells…), in 1D to 3D.")
    lower, upper = (
        arrays.get(name, np.float64(k)).tolist() for k, name in enumerate(("lower", "upper"))
    )
    if values.dtype.kind in "if":  # Density suggests missing=…, which training does not support
        for bad, noun, remedy in (
            (np.isnan(values), "NaN", "fill them first"),
            (values < 0, "negative", "clip them at zero if they are noise"),
        ):
            if bad.any():
                verb = "is" if bad.sum() == 1 else "are"
                raise FileError(
                    f"{file}: {bad.sum()} of {values.size} values {verb} {noun}; {remedy}."
                )
    if _needs_padding(arrays, values.shape[1:]):
        values = _pad_to_cube(values)
    try:
        density = Density(values, Grid(values.shape[1:], lower, upper))
    except (InputError, TypeError, ValueError) as error:
        raise FileError(f"{file}: {error}") from error
    sides = density.grid.lengths
    if density.grid.max_side > min(sides) * (1 + 1e-9):
        raise FileError(f"The box in {file} has sides {sides}; pad the densities to a cube.")
    return density


def _needs_padding(arrays: dict[str, np.ndarray], shape: tuple[int, ...]) -> bool:
    """Return whether arrays without a box are not square: the unit box would stretch them."""
    return not {"lower", "upper"} & set(arrays) and len(set(shape)) > 1


def _pad_to_cube(values: np.ndarray) -> np.ndarray:
    """Centre arrays (n, *cells) in empty cells, as many along every axis."""
    most = max(values.shape[1:])
    return np.pad(values, [(0, 0), *(_margins(n, most) for n in values.shape[1:])])


def _margins(count: int, most: int) -> tuple[int, int]:
    """Return the numbers of empty cells before and after `count` cells in `most` cells."""
    before = (most - count) // 2
    return before, most - count - before


# ---- Default settings


@dataclass(frozen=True)
class DefaultSize:
    """Settings for one dimension: some minutes on two cores, and errors of about a percent."""

    sensors: int
    seen: int
    modes: int
    width: int
    pairs: int
    steps: int


DEFAULT_SIZES = {
    1: DefaultSize(sensors=128, seen=32, modes=48, width=128, pairs=256, steps=6000),
    2: DefaultSize(sensors=32, seen=16, modes=16, width=128, pairs=128, steps=3000),
    3: DefaultSize(sensors=16, seen=8, modes=8, width=96, pairs=96, steps=2000),
}


def make_config(
    file: str | Path,
    name: str | None = None,
    steps: int | None = None,
    floor: float | None = None,
    *,
    exportable: bool = False,
    dataset: UserDataset | None = None,
) -> TrainingConfig:
    """Return settings for training on a file: `universal-2d` in 2D, else the transport form.

    The form of `universal-2d` cannot be exported to ONNX, the transport form can.

    Args:
        file: the densities, see `read_dataset`.
        name: name of the model; by default the file's.
        steps: number of steps; the default takes some minutes.
        floor: share of the mass that is made uniform; by default 5 % if more than a hundredth of
            the cells is empty. Models that start from `universal-2d` need none.
        exportable: whether to use the transport form in 2D as well. It is less accurate for
            densities with holes or fine detail.
        dataset: contents of the file, if they have been read already.
    """
    file = as_path(file)
    if steps is not None:
        check_count(steps, 1, "steps")
    dataset = dataset or read_dataset(file)
    name = name or file.stem
    if dataset.box.dimension == 2 and not exportable:
        require(
            not floor, f"floor is {floor}; models for 2D need none, remove it or add exportable."
        )
        return _universal_config(file, name, dataset, steps or 1000)
    size = DEFAULT_SIZES[dataset.box.dimension]
    sensors = max(2, min(size.sensors, min(dataset.box.shape)))
    steps = steps or size.steps
    every = max(1, steps // 6)
    if floor is None:
        # Maps between densities with holes have jumps, which a smooth potential has not.
        floor = 0.05 if dataset.empty_share() > 0.01 else 0.0
    return TrainingConfig(
        name=name,
        problem=ProblemSettings(file=str(file.resolve()), floor=floor),
        steps=steps,
        checkpoint_every=every,
        model=TransportSettings(
            dimension=dataset.box.dimension,
            sensors=sensors,
            seen=min(size.seen, sensors - sensors % 2),
            modes=size.modes,
            width=size.width,
        ),
        loss=LossSettings(floor=0.05),
        sampling=SamplingSettings(pairs=size.pairs, points=64),
        optimizer=OptimizerSettings(learning_rate=0.01, warmup=min(200, steps // 10)),
        validation=ValidationSettings(pairs=16, every=every),
    )


def _universal_config(
    file: Path, name: str, dataset: UserDataset, steps: int, max_cells: int = 128
) -> TrainingConfig:
    """Return settings that start from the weights of `universal-2d`, on a grid of limited size."""
    model, _ = load_model(PRETRAINED / "universal-2d.safetensors")
    every = max(1, steps // 6)
    return TrainingConfig(
        name=name,
        problem=ProblemSettings(file=str(file.resolve())),
        steps=steps,
        checkpoint_every=every,
        start="universal-2d",
        model=replace(model.settings, sensors=min(choose_resolution(dataset.box), max_cells)),
        sampling=SamplingSettings(pairs=16, points=1),
        optimizer=OptimizerSettings(learning_rate=5e-4, warmup=min(50, steps // 10), clip=1.0),
        validation=ValidationSettings(pairs=16, every=every),
    )


# ---- Report


@dataclass(frozen=True)
class HoldoutReport:
    """Errors on test pairs that training did not use.

    Attributes:
        model: errors of the trained model.
        linear: errors of the linear blend of the ends.
        reference: number of pairs that each exact solver solved.
    """

    model: Accuracy
    linear: Accuracy
    reference: dict[str, int]

    def save(self, folder: Path) -> Path:
        """Write report.json into a folder."""
        table = {
            "model": self.model.to_json(),
            "linear": self.linear.to_json(),
            "reference": self.reference,
        }
        with atomic_write(folder / "report.json") as temporary:
            temporary.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        return folder / "report.json"


def evaluate_on_holdout(
    model: Path, config: TrainingConfig, pairs: int = 20, cache: Path | None = None
) -> HoldoutReport:
    """Compare a trained model with exact solutions on test pairs.

    Args:
        model: file of the model.
        config: its training settings, with a file of densities.
        pairs: number of pairs, at most.
        cache: file for exact paths, such as references.safetensors in the folder of the run.
    """
    assert config.problem.file is not None
    dataset = read_dataset(Path(config.problem.file), config.problem.floor)
    source, target = dataset.test_pairs(pairs)
    reference = ReferenceCache(cache).solve(source, target)
    options = {"floor": 0.0} if config.problem.floor else {}  # the data set has added it
    trained, linear = (
        measure(solver, source, target, reference.frames, reference.distance)
        for solver in (make_solver(str(model), **options), make_solver("linear"))
    )
    return HoldoutReport(trained, linear, reference.solvers)
