"""What all tests of training share: a config that trains in milliseconds, and how runs compare."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from geonet._toml import from_table
from geonet.solvers.neural.model import read_tensors
from geonet.training.config import TrainingConfig
from geonet.training.log import read_log

TINY: dict[str, Any] = {
    "name": "tiny",
    "problem": {"family": "mixtures-1d"},
    "steps": 12,
    "checkpoint_every": 3,
    "log_every": 1,
    "model": {
        "dimension": 1,
        "sensors": 12,
        "rank": 6,
        "branch": {"width": 8, "depth": 3},
        "trunk": {"width": 8, "depth": 3},
    },
    "sampling": {"pairs": 4, "points": 6, "places": 5},
    "optimizer": {"warmup": 2},
    "validation": {"pairs": 2, "every": 6},
}
TRANSPORT: dict[str, Any] = {
    **TINY,
    "model": {
        "kind": "transport",
        "dimension": 1,
        "sensors": 12,
        "seen": 6,
        "modes": 8,
        "width": 6,
        "depth": 2,
    },
}
CASCADE: dict[str, Any] = {
    **TINY,
    "problem": {"family": "anything-2d"},
    "model": {"kind": "cascade", "dimension": 2, "sensors": 16, "whole": 3, "detail": 2},
    "sampling": {"pairs": 2, "points": 1},
    "validation": {"pairs": 1, "every": 6},
}
SUPERVISED: dict[str, Any] = {**TINY, "model": {"kind": "deeponet", **TINY["model"]}}


@pytest.fixture(scope="session")
def tiny() -> Callable[..., TrainingConfig]:
    """Makes the tiny config; keywords change its keys, such as optimizer={"name": "adam"}."""
    return lambda **changes: _changed(TINY, changes)


@pytest.fixture(scope="session")
def tiny_transport() -> Callable[..., TrainingConfig]:
    """Likewise for a model of the transport form."""
    return lambda **changes: _changed(TRANSPORT, changes)


@pytest.fixture(scope="session")
def tiny_cascade() -> Callable[..., TrainingConfig]:
    """Likewise for a cascade, on anything."""
    return lambda **changes: _changed(CASCADE, changes)


@pytest.fixture(scope="session")
def tiny_supervised() -> Callable[..., TrainingConfig]:
    """Likewise for a DeepONet, which is shown exact paths."""
    return lambda **changes: _changed(SUPERVISED, changes)


def _changed(table: dict[str, Any], changes: dict[str, Any]) -> TrainingConfig:
    table = copy.deepcopy(table)
    for key, value in changes.items():
        joins = isinstance(value, dict) and key != "problem"
        table[key] = {**table.get(key, {}), **value} if joins else value
    return from_table(TrainingConfig, table)


@pytest.fixture(scope="session")
def assert_same_state() -> Callable[[Path, Path], None]:
    """Two run folders hold one state: weights, optimizer, random streams, progress, bit for bit."""

    def check(first: Path, second: Path) -> None:
        (ours, header), (theirs, other) = (
            read_tensors(folder / "checkpoint.safetensors", "a checkpoint")
            for folder in (first, second)
        )
        assert ours.keys() == theirs.keys()
        assert {name.split("/")[0] for name in ours} == {"model", "optimizer", "rng"}
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name
        for progress in (header["progress"], other["progress"]):
            assert progress.pop("seconds") > progress.pop("data_seconds")
        assert header["progress"] == other["progress"]

    return check


@pytest.fixture(scope="session")
def logged() -> Callable[[Path], list[dict[str, Any]]]:
    """The log of a run without the times, which are never twice the same."""

    def read(folder: Path) -> list[dict[str, Any]]:
        entries = read_log(folder / "log.jsonl")
        for entry in entries:
            assert entry.pop("seconds") >= 0
        return entries

    return read


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch that wait for each other make these small problems slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
