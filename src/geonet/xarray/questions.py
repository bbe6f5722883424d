"""What can be asked of every pair of neighbouring frames."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from geonet.xarray.pair import REPORTED, Pair, Treatment, Where

NUMBER, TRUTH = np.dtype(float), np.dtype(bool)


@dataclass(frozen=True)
class Question(ABC):
    """Asked of a pair at some shares of its way.

    Attributes:
        how: pairs are treated.
        dtype: of the answers.
    """

    how: Treatment
    dtype: np.dtype = NUMBER

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the answer for one moment."""
        return ()

    @abstractmethod
    def answer(
        self, first: np.ndarray, last: np.ndarray, shares: np.ndarray, length: float, where: Where
    ) -> np.ndarray:
        """(T, *shape).

        Args:
            first: the earlier frame, (*space).
            last: the later frame.
            shares: of the way, (T,); NaN for a moment that is outside.
            length: of the way, in time.
            where: names the earlier frame, 0, or the later, 1.
        """


@dataclass(frozen=True)
class Frames(Question):
    """The field itself. Where a moment is a frame's time, that frame bit for bit."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.how.space.grid.shape

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        frames = np.full((len(shares), *self.shape), np.nan, self.dtype)
        between = shares > 0
        if between.any():
            frames[between] = Pair(first, last, self.how, where).frames(shares[between])
        given = self.how.mass == "given"
        if (shares == 0).any():
            frames[shares == 0] = first if given else Pair(first, first, self.how, where).start()
        return frames


@dataclass(frozen=True)
class Velocities(Question):
    """How fast it moves, along each axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        grid = self.how.space.grid
        return (grid.dimension, *grid.shape)

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        velocities = np.full((len(shares), *self.shape), np.nan, self.dtype)
        inside = ~np.isnan(shares)
        if inside.any():
            pair = Pair(first, last, self.how, where)
            velocities[inside] = pair.velocities(shares[inside], length)
        return velocities


@dataclass(frozen=True)
class Faded(Question):
    """Whether a moment lies between two frames of which one is empty."""

    dtype: np.dtype = TRUTH

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        between = shares > 0
        return between & (between.any() and Pair(first, last, self.how, where).faded)


@dataclass(frozen=True)
class Distances(Question):
    """W2 from each frame to the next."""

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        return np.full(len(shares), Pair(first, last, self.how, where).distance())


@dataclass(frozen=True)
class Reports(Question):
    """What can be said of each pair."""

    dtype: np.dtype = REPORTED

    def answer(self, first, last, shares, length, where) -> np.ndarray:
        return np.full(len(shares), Pair(first, last, self.how, where).report())
