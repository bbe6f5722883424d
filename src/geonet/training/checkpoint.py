"""A training in one file: weights, optimizer, step, random streams, config, best value.

Written to a temporary name and renamed, so a kill at any moment leaves the last one whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from geonet.errors import ConfigError, FileError
from geonet.files import reading
from geonet.operators.model_file import read_tensors, write_tensors
from geonet.settings import from_table, to_table
from geonet.training.config import TrainingConfig

FORMAT = 1


@dataclass
class Progress:
    """How far a training is.

    Attributes:
        step: steps done.
        best: the lowest validation error so far, in percent; infinite before the first.
        seconds: time spent in steps.
        weights: of the terms of the loss, which balancing changes.
        data_seconds: the part of `seconds` that went into exact paths, where they are shown.
    """

    step: int
    best: float
    seconds: float
    weights: dict[str, float]
    data_seconds: float = 0.0


def save_checkpoint(
    file: Path,
    config: TrainingConfig,
    progress: Progress,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    streams: list[Tensor],
) -> None:
    """Write all that `load_checkpoint` needs; `streams` are the random states, one per process."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": value for key, value in state.items()}
    tensors |= {f"stream/{rank}": state for rank, state in enumerate(streams)}
    header = {
        "format": FORMAT,
        "kind": "checkpoint",
        "config": to_table(config),
        "progress": {**vars(progress), "best": repr(progress.best)},
    }
    write_tensors(file, tensors, header)


def load_checkpoint(
    file: Path,
    config: TrainingConfig,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> tuple[Progress, list[Tensor]]:
    """Put weights and optimizer back as they were; gives the progress and the random states."""
    tensors, header = read_tensors(file, "a checkpoint")
    if (header.get("format"), header.get("kind")) != (FORMAT, "checkpoint"):
        raise FileError(f"{file} is no checkpoint of this version; start without --resume.")
    with reading(file, "a checkpoint"):
        _check_same(_completed(header["config"]), to_table(config), file)
        return _restored(tensors, header["progress"], model, optimizer)


def _restored(
    tensors: dict[str, Tensor],
    saved: dict[str, Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
) -> tuple[Progress, list[Tensor]]:
    """Model and optimizer filled; the progress and the random states."""
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "stream": {}}
    for name, value in tensors.items():
        part, key = name.split("/", 1)
        parts[part][key] = value
    model.load_state_dict(parts["model"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in parts["optimizer"].items():
        index, key = name.split("/", 1)
        state.setdefault(int(index), {})[key] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    progress = Progress(**{**saved, "best": float(saved["best"])})
    return progress, [parts["stream"][str(rank)] for rank in range(len(parts["stream"]))]


def _completed(saved: dict[str, Any]) -> dict[str, Any]:
    """A saved config with the defaults of keys that are newer than it."""
    try:
        return to_table(from_table(TrainingConfig, saved))
    except ConfigError:  # the comparison says what is odd
        return saved


def _check_same(saved: dict[str, Any], given: dict[str, Any], file: Path, where: str = "") -> None:
    for key in sorted(saved.keys() | given.keys()):
        old, new = saved.get(key), given.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            _check_same(old, new, file, f"{where}{key}.")
        elif old != new:
            raise ConfigError(
                f"{where}{key} is {new!r}, but {file} was trained with {old!r}; "
                "resume with the config it has, or train into another folder."
            )
