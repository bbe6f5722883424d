"""Fixtures of the training tests: configs that train in milliseconds, comparison of runs."""

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
SIZES = {"dimension": 1, "sensors": 12, "seen": 6, "modes": 8, "width": 6, "depth": 2}
TRANSPORT: dict[str, Any] = {**TINY, "model": {"kind": "transport", **SIZES}}
CASCADE: dict[str, Any] = {
    **TINY,
    "problem": {"family": "anything-2d"},
    "model": {"kind": "cascade", "dimension": 2, "sensors": 16, "whole": 3, "detail": 2},
    "sampling": {"pairs": 2, "points": 1},
    "validation": {"pairs": 1, "every": 6},
}
SUPERVISED: dict[str, Any] = {**TINY, "model": {"kind": "deeponet", **TINY["model"]}}


def _fixture(table: dict[str, Any]):
    """Return a fixture of a config; keywords change keys, such as optimizer={"name": "adam"}."""

    def make() -> Callable[..., TrainingConfig]:
        return lambda **changes: _change(table, changes)

    return pytest.fixture(scope="session")(make)


tiny = _fixture(TINY)
tiny_transport = _fixture(TRANSPORT)
tiny_cascade = _fixture(CASCADE)  # on synthetic pairs
tiny_supervised = _fixture(SUPERVISED)  # on exact paths


def _change(table: dict[str, Any], changes: dict[str, Any]) -> TrainingConfig:
    table = copy.deepcopy(table)
    for key, value in changes.items():
        merges = isinstance(value, dict) and key != "problem"
        table[key] = {**table.get(key, {}), **value} if merges else value
    return from_table(TrainingConfig, table)


@pytest.fixture(scope="session")
def assert_same_state() -> Callable[[Path, Path], None]:
    """Assert that two runs have bitwise the same weights, optimizer, random states and progress."""

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
            assert progress.pop("seconds") >= progress.pop("data_seconds")
        assert header["progress"] == other["progress"]

    return check


@pytest.fixture(scope="session")
def logged() -> Callable[[Path], list[dict[str, Any]]]:
    """Return the log of a run without the times."""

    def read(folder: Path) -> list[dict[str, Any]]:
        entries = read_log(folder / "log.jsonl")
        for entry in entries:
            assert entry.pop("seconds") >= 0
        return entries

    return read


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: synchronisation makes small problems slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
