"""A training in one file: weights, optimizer, step, random streams, config, best value.

Written to a temporary name and renamed, so a kill at any moment leaves the last one whole.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from geonet._files import wrap_read_errors
from geonet._toml import from_table, to_table
from geonet._utils import VERSION
from geonet.density import Density
from geonet.errors import ConfigError, FileError
from geonet.evaluation import Truth, truth_of, truth_of_pair
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import read_tensors, write_tensors
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
    with wrap_read_errors(file, "a checkpoint"):
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


# ---- Exact paths in a file of the run's folder, so that none is solved twice.


TRUTHS = "truths.safetensors"
FORMAT_KEPT_TRUTHS, KIND = 1, "exact paths"
WRITE_EVERY = 10.0  # seconds of solving that a kill may cost


class Kept(NamedTuple):
    """What is kept of a pair's truth: frames (5, *cells), W2 (), and who solved it."""

    frames: Tensor
    distance: Tensor
    solver: str

    def fits(self, density: Density) -> bool:
        """Whether this can be the path of such a density: finite, and on its cells."""
        shape = (len(QUARTERS), *density.grid.shape)
        return (
            (self.frames.shape, self.distance.shape) == (shape, ())
            and self.frames.dtype == self.distance.dtype == torch.float64
            and bool(torch.isfinite(self.frames).all())
        )


class KeptTruths:
    """Truths by a digest of their pair; a pair that is not in the file is solved.

    A file that is damaged, or holds something else, counts as empty and is written anew.

    Args:
        file: written when there is something new to keep; None keeps nothing.
    """

    def __init__(self, file: Path | None):
        self.file = file
        self._known = {} if file is None else _read(file)
        self._written, self._news = perf_counter(), False

    def of(self, source: Density, target: Density, epsilon: float = 0.0) -> Truth:
        """`truth_of` a batch; what is solved is kept, however the work ends."""
        try:
            return truth_of(source, target, epsilon, self._of_pair)
        finally:
            self._write()

    def _of_pair(self, source: Density, target: Density, epsilon: float) -> Truth:
        key = pair_digest(source, target, epsilon)
        if key not in self._known or not self._known[key].fits(source):
            found = truth_of_pair(source, target, epsilon)
            frames, distance = found.frames.tensor.double(), found.distance.double()
            self._known[key] = Kept(frames, distance, *found.solvers)
            self._news = True
            if perf_counter() - self._written > WRITE_EVERY:
                self._write()
        frames, distance, solver = self._known[key]
        return Truth(Density.as_computed(frames, source.grid), distance, {solver: 1})

    def _write(self) -> None:
        if self.file is None or not self._news:
            return
        tensors = {f"frames/{key}": kept.frames for key, kept in self._known.items()}
        tensors |= {f"distance/{key}": kept.distance for key, kept in self._known.items()}
        solvers = {key: kept.solver for key, kept in self._known.items()}
        write_tensors(
            self.file, tensors, {"format": FORMAT_KEPT_TRUTHS, "kind": KIND, "solvers": solvers}
        )
        self._written, self._news = perf_counter(), False


def pair_digest(source: Density, target: Density, epsilon: float) -> str:
    """A name for the truth of a pair: of its values, its box, its noise, and this version."""
    grid, formula = source.grid, source.mixture is not None and target.mixture is not None
    of_what = (VERSION, epsilon, formula, grid.shape, grid.lower, grid.upper)
    digest = hashlib.sha256(repr(of_what).encode())
    for end in (source, target):
        digest.update(end.tensor.double().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _read(file: Path) -> dict[str, Kept]:
    if not file.exists():
        return {}
    try:
        tensors, header = read_tensors(file, KIND)
    except FileError:  # damaged
        return {}
    solvers = header.get("solvers")
    if (header.get("format"), header.get("kind")) != (FORMAT_KEPT_TRUTHS, KIND) or not isinstance(
        solvers, dict
    ):
        return {}
    return {
        key: Kept(tensors[f"frames/{key}"], tensors[f"distance/{key}"], str(solver))
        for key, solver in solvers.items()
        if {f"frames/{key}", f"distance/{key}"} <= tensors.keys()
    }
