"""The settings of a training on one's own densities, where nobody gave any."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from geonet.arguments import as_path, check_count
from geonet.operators.cascade_path import square_cells
from geonet.operators.model_file import load_model
from geonet.operators.objective import LossSettings
from geonet.operators.opened import PRETRAINED
from geonet.operators.transport import TransportSettings
from geonet.optimizers.settings import OptimizerSettings
from geonet.settings import require
from geonet.training.config import (
    ProblemSettings,
    SamplingSettings,
    TrainingConfig,
    ValidationSettings,
)
from geonet.training.own import Pool, Recorded, read_own

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
    ends = [own.pool] if isinstance(own, Pool) else [own.source.values, own.target.values]
    empty = sum(int((end == 0).sum()) for end in ends) / sum(end.numel() for end in ends)
    return FLOOR if empty > EMPTY else 0.0
