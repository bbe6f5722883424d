"""A solver that answers at once, and a suite that it goes through at once."""

from __future__ import annotations

from dataclasses import dataclass
from time import sleep

import pytest
import torch

from benchmarks.any_pair import run
from benchmarks.any_pair import run as worker
from benchmarks.any_pair.suite import AnySuite
from geonet.errors import SolverError
from geonet.solvers import registry
from geonet.solvers.base import Solver
from geonet.solvers.linear import Linear, LinearPath

TINY = AnySuite({16: 64, 32: 128}, ("smooth", "digits"), 2, "stub", budget=5.0, repeats=2)


class StubPath(LinearPath):
    """A fade with a distance, bounds and an estimate that somebody made up."""

    off: float = 0.0

    def _distance(self):
        return torch.tensor(0.1 * (1 + self.off), dtype=torch.float64)

    def _diagnostics(self):
        return {
            "distance_lower_bound": torch.tensor(0.09),
            "distance_upper_bound": torch.tensor(0.11),
            "error_estimate": torch.tensor(0.03),
        }


@dataclass(frozen=True)
class Stub(Linear):
    """Gives stubs: off in W2, after a pause, refusing grids and densities with zeros at will."""

    name = "stub"
    gives = ("distance",)

    off: float = 0.0
    seconds: float = 0.0
    refused: int = 0  # cells a side
    positive: bool = False

    _solve = Solver._solve

    def _solve_pair(self, source, target):
        sleep(self.seconds)
        if source.grid.shape[0] == self.refused:
            raise SolverError("Not this grid.")
        if self.positive and bool((source.tensor == 0).any()):
            raise ZeroDivisionError("by zero")
        path = StubPath(source, target, "stub", {})
        path.off = self.off
        return path


@pytest.fixture
def stub(monkeypatch):
    """Registers it; gives the way to have the worker make a changed one."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    registry.register("stub", "geonet.solvers.linear:Linear")
    monkeypatch.setattr(registry, "located", lambda location: Stub)

    def changed(**options):
        monkeypatch.setattr(worker, "made", lambda entrant: Stub(**options))

    return changed


@pytest.fixture
def here(monkeypatch):
    """Everything in this process."""
    monkeypatch.setattr(run, "in_new_process", lambda function, given: function(given))


@pytest.fixture
def tiny():
    return TINY
