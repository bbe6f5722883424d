"""Paths for the page: solved when their turn comes, kept for a while, dropped when outdated."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Generic, TypeVar

from geonet.api import geodesic
from geonet.app.asked import Asked
from geonet.app.refused import RefusedError
from geonet.geodesics.base import Geodesic
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid

KEPT_PATHS, KEPT_CLIENTS = 8, 256

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Solved:
    """A path, and what it took.

    Attributes:
        path: between the two drawings.
        seconds: to solve.
    """

    path: Geodesic
    seconds: float


class Solving:
    """The last paths by their keys, and the last number of every page."""

    def __init__(self) -> None:
        self.paths: Recent[Solved] = Recent(KEPT_PATHS)
        self.numbers: Recent[int] = Recent(KEPT_CLIENTS)

    def note(self, asked: Asked) -> None:
        """Remember that a page asked for a path: what it asked for before is outdated."""
        before = self.numbers.get(asked.client)
        self.numbers.put(asked.client, max(asked.number, before or 0))

    def check_latest(self, asked: Asked) -> None:
        """Refuse what is outdated."""
        latest = self.numbers.get(asked.client)
        if latest is not None and asked.number < latest:
            raise RefusedError("A newer drawing is being solved.", 409)

    def solved(self, asked: Asked) -> Solved:
        """The path that is asked for, solved unless it is one of the last."""
        known = self.paths.get(asked.key)
        if known is not None:
            return known
        options = dict(asked.solver.options)
        if asked.epsilon is not None:
            options["epsilon"] = asked.epsilon
        began = perf_counter()
        path = geodesic(asked.source, asked.target, asked.solver.name, **options)
        solved = Solved(path, perf_counter() - began)
        self.paths.put(asked.key, solved)
        return solved


def first_path() -> None:
    """Solve a pair that nobody asked for: it loads the network and the compiled loops."""
    grid = Grid((64, 64))
    source, target = (
        GaussianMixture.isotropic([[x, 0.3], [0.5, x]], 0.1).on(grid) for x in (0.3, 0.7)
    )
    _ = geodesic(source, target).report


class Recent(Generic[Value]):
    """The values that were used last, at most so many, by name; for several threads."""

    def __init__(self, most: int):
        self._most, self._lock = most, Lock()
        self._values: OrderedDict[str, Value] = OrderedDict()

    def get(self, name: str) -> Value | None:
        """The value, or None where it is not kept."""
        with self._lock:
            if name in self._values:
                self._values.move_to_end(name)
            return self._values.get(name)

    def put(self, name: str, value: Value) -> None:
        """Keep a value; the one that was not used for longest may go."""
        with self._lock:
            self._values[name] = value
            self._values.move_to_end(name)
            if len(self._values) > self._most:
                self._values.popitem(last=False)

    def __len__(self) -> int:
        return len(self._values)
