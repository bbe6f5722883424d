"""Checkpoints of a training run, and the cache of its exact reference paths.

Files are written under a temporary name and renamed, so that they are complete after any
interruption.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from geonet._files import wrap_read_errors
from geonet._toml import from_table, to_table
from geonet._utils import VERSION
from geonet.density import Density
from geonet.errors import ConfigError, FileError
from geonet.evaluation import Reference, reference_for_pair, reference_solution
from geonet.paths import QUARTERS
from geonet.solvers.neural.model import read_tensors, write_tensors
from geonet.training.config import TrainingConfig


@dataclass
class Progress:
    """Progress of a training run.

    Attributes:
        step: number of steps done.
        best: lowest validation error in percent; infinite before the first validation.
        seconds: time spent in steps.
        weights: weights of the terms of the loss, which balancing changes.
        data_seconds: part of `seconds` spent on exact paths for supervised models.
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
    rng_states: list[Tensor],
) -> None:
    """Write the state of a run; there is one random state per process."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{key}": value for key, value in state.items()}
    tensors |= {f"rng/{rank}": state for rank, state in enumerate(rng_states)}
    header = {
        "format": 1,
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
    """Restore weights and optimizer in place; return the progress and the random states."""
    tensors, header = read_tensors(file, "a checkpoint")
    if (header.get("format"), header.get("kind")) != (1, "checkpoint"):
        raise FileError(f"{file} is not a checkpoint of this version; start without --resume.")
    with wrap_read_errors(file, "a checkpoint"):
        _check_equal(_add_defaults(header["config"]), to_table(config), file)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "rng": {}}
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
        saved = header["progress"]
        progress = Progress(**{**saved, "best": float(saved["best"])})
        return progress, [parts["rng"][str(rank)] for rank in range(len(parts["rng"]))]


def _add_defaults(saved: dict[str, Any]) -> dict[str, Any]:
    """Return a saved config with the defaults of keys that are newer than it."""
    try:
        return to_table(from_table(TrainingConfig, saved))
    except ConfigError:  # the comparison names the cause
        return saved


def _check_equal(saved: dict[str, Any], given: dict[str, Any], file: Path, path: str = "") -> None:
    """Raise ConfigError if two configs differ, with the first key in which they do."""
    for key in sorted(saved.keys() | given.keys()):
        old, new = saved.get(key), given.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            _check_equal(old, new, file, f"{path}{key}.")
        elif old != new:
            raise ConfigError(
                f"{path}{key} is {new!r}, but {file} was trained with {old!r}; "
                "resume with the config of the run, or train into another folder."
            )


# ---- Reference cache


class CachedReference(NamedTuple):
    """Exact path of one pair: frames (5, *cells), W2 (), and the solver."""

    frames: Tensor
    distance: Tensor
    solver: str

    def matches(self, density: Density) -> bool:
        """Return whether the frames are finite and on the cells of this density."""
        shape = (len(QUARTERS), *density.grid.shape)
        return (
            (self.frames.shape, self.distance.shape) == (shape, ())
            and self.frames.dtype == self.distance.dtype == torch.float64
            and bool(torch.isfinite(self.frames).all())
        )


class ReferenceCache:
    """Exact paths in a file, by a digest of their pair, so that each is solved only once.

    A damaged file, or one of another kind, counts as empty and is overwritten.

    Args:
        file: None for a cache in memory.
        write_every: seconds of solving that an interruption may cost.
    """

    file_name = "references.safetensors"  # in the folder of a run
    _header: ClassVar = {"format": 1, "kind": "exact paths"}

    def __init__(self, file: Path | None, write_every: float = 10.0):
        self.file, self.write_every = file, write_every
        self._entries = {} if file is None else self._read(file)
        self._last_write, self._is_dirty = perf_counter(), False

    def solve(self, source: Density, target: Density, epsilon: float = 0.0) -> Reference:
        """Return the exact paths of a batch; all solved ones are stored, also after an error."""
        try:
            return reference_solution(source, target, epsilon, self._solve_pair)
        finally:
            self._write()

    def _solve_pair(self, source: Density, target: Density, epsilon: float) -> Reference:
        key = pair_digest(source, target, epsilon)
        if key not in self._entries or not self._entries[key].matches(source):
            result = reference_for_pair(source, target, epsilon)
            frames, distance = result.frames.tensor.double(), result.distance.double()
            self._entries[key] = CachedReference(frames, distance, *result.solvers)
            self._is_dirty = True
            if perf_counter() - self._last_write > self.write_every:
                self._write()
        frames, distance, solver = self._entries[key]
        return Reference(Density.from_unnormalized(frames, source.grid), distance, {solver: 1})

    def _write(self) -> None:
        if self.file is None or not self._is_dirty:
            return
        tensors = {f"frames/{key}": entry.frames for key, entry in self._entries.items()}
        tensors |= {f"distance/{key}": entry.distance for key, entry in self._entries.items()}
        solvers = {key: entry.solver for key, entry in self._entries.items()}
        write_tensors(self.file, tensors, {**self._header, "solvers": solvers})
        self._last_write, self._is_dirty = perf_counter(), False

    def _read(self, file: Path) -> dict[str, CachedReference]:
        try:
            tensors, header = read_tensors(file, "exact paths")
        except FileError:  # missing or damaged
            return {}
        solvers = header.get("solvers")
        if not self._header.items() <= header.items() or not isinstance(solvers, dict):
            return {}
        return {
            key: CachedReference(tensors[f"frames/{key}"], tensors[f"distance/{key}"], str(solver))
            for key, solver in solvers.items()
            if {f"frames/{key}", f"distance/{key}"} <= tensors.keys()
        }


def pair_digest(source: Density, target: Density, epsilon: float) -> str:
    """Return a key for the exact path of a pair: values, box, ε, and the version of geonet."""
    grid, has_formula = source.grid, source.mixture is not None and target.mixture is not None
    parameters = (VERSION, epsilon, has_formula, grid.shape, grid.lower, grid.upper)
    digest = hashlib.sha256(repr(parameters).encode())
    for end in (source, target):
        digest.update(end.tensor.double().contiguous().numpy().tobytes())
    return digest.hexdigest()
