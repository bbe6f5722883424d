"""Densities of the user's own to train on: pairs in a file, or a set of which any two make a pair.

The last tenth is held out, two at least. Of pairs its first half is for validation and its second
half for tests; of a set both draw pairs from all of it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from geonet.errors import FileError, InputError
from geonet.files import read_arrays
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators.objective import EndFunctions
from geonet.training.cells import Cells
from geonet.training.problem import Problem

TEST_SEED = 7_000
ALL = 1 << 20  # pairs that are put in a random order
LEAST_PAIRS, LEAST_DENSITIES = 3, 4


class Own(Problem):
    """What there is of pairs and sets alike.

    Attributes:
        seen: how many come first and are trained on.
    """

    def __init__(self, box: Grid, count: int):
        self.box = box
        self.seen = max(1, count - max(2, math.ceil(count / 10)))

    @abstractmethod
    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """At most `count` pairs that training did not see, all different."""

    @abstractmethod
    def pairs(self, count: int) -> tuple[Density, Density]:
        """At most `count` of all pairs, all different."""

    def _splines(self, *ends: Tensor) -> EndFunctions:
        """Densities (n, *cells) as functions on the unit box, relative to uniform."""
        first, second = (Cells(end.float() * self.box.volume) for end in ends)
        return first, second


class Recorded(Own):
    """Pairs of densities, (n, *cells) each."""

    def __init__(self, source: Density, target: Density):
        super().__init__(source.grid, len(source))
        self.source, self.target = source, target
        self.validated = self.seen + (len(source) - self.seen + 1) // 2  # the rest is for tests

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """Random pairs, with repeats, as splines through their cells."""
        chosen = torch.randint(self.seen, (count,), generator=generator)
        return self._splines(self.source.values[chosen], self.target.values[chosen])

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Random pairs that are held out for validation, with repeats."""
        chosen = torch.randint(self.seen, self.validated, (count,), generator=generator)
        return self._chosen(chosen)

    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """The last pairs."""
        return self._chosen(torch.arange(self.validated, len(self.source))[:count])

    def pairs(self, count: int) -> tuple[Density, Density]:
        """The first pairs."""
        return self._chosen(torch.arange(len(self.source))[:count])

    def _chosen(self, chosen: Tensor) -> tuple[Density, Density]:
        ends = (self.source, self.target)
        source, target = (Density(end.values[chosen], self.box) for end in ends)
        return source, target


class Pool(Own):
    """A set of densities (n, *cells), of which any two make a pair."""

    def __init__(self, densities: Density):
        super().__init__(densities.grid, len(densities))
        self.pool = densities.values.float()  # MNIST has 60,000

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """Splines through the cells."""
        chosen = (torch.randint(self.seen, (count,), generator=generator) for _ in range(2))
        return self._splines(*(self.pool[k] for k in chosen))

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Pairs of densities that are held out."""
        held_out = self.pool[self.seen :]
        first, second = (
            torch.randint(len(held_out), (count,), generator=generator) for _ in range(2)
        )
        second = torch.where(first == second, (second + 1) % len(held_out), second)  # no one alone
        source, target = (Density(held_out[k].double(), self.box) for k in (first, second))
        return source, target

    def test_pairs(self, count: int) -> tuple[Density, Density]:
        """Pairs of densities that are held out, the same at every call."""
        return self._different(self.pool[self.seen :], count)

    def pairs(self, count: int) -> tuple[Density, Density]:
        """Pairs of any two, the same at every call."""
        return self._different(self.pool, count)

    def _different(self, densities: Tensor, count: int) -> tuple[Density, Density]:
        """Ordered pairs of different ones, each at most once."""
        n, generator = len(densities), torch.Generator().manual_seed(TEST_SEED)
        most = n * (n - 1)
        if most <= ALL:
            code = torch.randperm(most, generator=generator)[:count]
        else:  # repeats are rare
            code = torch.randint(most, (count,), generator=generator)
        first, second = code // (n - 1), code % (n - 1)
        second = second + (second >= first)
        source, target = (Density(densities[k].double(), self.box) for k in (first, second))
        return source, target


def read_own(file: Path, floor: float = 0.0) -> Recorded | Pool:
    """What is in an npz: `source` and `target`, or `values`, (n, *cells), and a box.

    Args:
        file: with `lower` and `upper`, the corners of the box, or else it is the unit box.
        floor: share of every density's mass that is made uniform.
    """
    arrays = read_arrays(file, "an npz of densities")
    if "values" in arrays and not {"source", "target"} & set(arrays):
        values = _density(file, arrays, "values").with_floor(floor)
        _check_count(file, len(values), LEAST_DENSITIES, "densities")
        return Pool(values)
    for key in ("source", "target"):
        if key not in arrays:
            raise FileError(
                f"{file} has no array {key!r}; give source and target, (n, cells…), or values, "
                "of which any two make a pair."
            )
    shapes = arrays["source"].shape, arrays["target"].shape
    if shapes[0] != shapes[1]:
        raise FileError(
            f"{file} has source {shapes[0]} and target {shapes[1]}; "
            "give two arrays (n, cells…) of one shape, in 1D to 3D."
        )
    source, target = (_density(file, arrays, key).with_floor(floor) for key in ("source", "target"))
    _check_count(file, len(source), LEAST_PAIRS, "pairs")
    return Recorded(source, target)


def _check_count(file: Path, count: int, least: int, what: str) -> None:
    if count < least:
        raise FileError(
            f"{file} holds {count} {what}, and two are held out for validation and tests; "
            f"give at least {least}."
        )


def _density(file: Path, arrays: dict[str, np.ndarray], key: str) -> Density:
    """A batch of densities on the box in the file, which must be a cube."""
    values = arrays[key]
    if not 2 <= values.ndim <= 4:
        raise FileError(f"{file} has {key} {values.shape}; give an array (n, cells…), in 1D to 3D.")
    lower, upper = (
        arrays.get(name, np.float64(k)).tolist() for k, name in enumerate(("lower", "upper"))
    )
    _check_numbers(file, values)
    try:
        density = Density(values, Grid(values.shape[1:], lower, upper))
    except (InputError, TypeError, ValueError) as error:
        raise FileError(f"{file}: {error}") from error
    sides = density.grid.lengths
    if density.grid.longest > min(sides) * (1 + 1e-9):
        raise FileError(f"The box in {file} has sides {sides}; pad the densities to a cube.")
    return density


def _check_numbers(file: Path, values: np.ndarray) -> None:
    """Refuse what `nodata` would be the remedy for elsewhere: a training takes none."""
    if values.dtype.kind not in "if":
        return
    for bad, what, remedy in (
        (np.isnan(values), "NaN", "fill them first"),
        (values < 0, "negative", "clip them at zero if they are noise"),
    ):
        if bad.any():
            raise FileError(f"{file}: {bad.sum()} of {values.size} values are {what}; {remedy}.")
