"""The problems that a config can name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from geonet.errors import ConfigError
from geonet.training.anything import CUBE, SQUARE, Anything
from geonet.training.clouds import Clouds
from geonet.training.config import TrainingConfig
from geonet.training.digits import digit_codes, digit_images
from geonet.training.own import read_own
from geonet.training.problem import FAMILIES, Problem

CATALOGUE: dict[str, Callable[[], Problem]] = {
    **FAMILIES,
    "anything-2d": partial(Anything, SQUARE),
    "anything-3d": partial(Anything, CUBE),
    "clouds": Clouds,
    "digits": digit_images,
    "digit-codes": digit_codes,
}


def make_problem(config: TrainingConfig) -> Problem:
    """The family or the file that the config names."""
    settings = config.problem
    if settings.autoencoder is not None:
        return digit_codes(Path(settings.autoencoder))
    if settings.family is not None:
        return CATALOGUE[settings.family]()
    assert settings.file is not None
    problem = read_own(Path(settings.file), settings.floor)
    if problem.box.dimension != config.model.dimension:
        raise ConfigError(
            f"model.dimension is {config.model.dimension}, but the pairs in {settings.file} are "
            f"{problem.box.dimension}D; make them agree."
        )
    return problem
