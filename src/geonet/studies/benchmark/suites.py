"""What is measured: families of pairs on grids of several sizes, at several numbers of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from geonet.errors import InputError
from geonet.evaluation.suites import SEED, Case, KnownPairs, pairs_of
from geonet.geodesics.base import QUARTERS
from geonet.measures.density import Density
from geonet.measures.families import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.studies.benchmark.any_pair.suite import ANY

TIMES = len(QUARTERS)  # of the calls in which errors are measured: the quarters


@dataclass(frozen=True)
class Call:
    """One call: cells along each axis, pairs given together, times asked for."""

    cells: int
    pairs: int = 1
    times: int = TIMES

    @property
    def is_base(self) -> bool:
        """Whether errors are measured in it."""
        return self.pairs == 1 and self.times == TIMES

    def moments(self) -> torch.Tensor:
        """The times, evenly from 0 to 1, or t = ½ alone."""
        if self.times == 1:
            return torch.tensor([0.5], dtype=torch.float64)
        return torch.linspace(0, 1, self.times, dtype=torch.float64)


@dataclass(frozen=True)
class Suite:
    """Pairs of one family.

    Attributes:
        name: on the command line.
        family: draws the mixtures.
        box: where they live.
        cells: along each axis, ascending; a single pair at the quarters is measured on all.
        reference: of these the one on which the other numbers of times and pairs are measured.
        times: numbers of times.
        batches: numbers of pairs in a call.
    """

    name: str
    family: Callable[..., GaussianMixture]
    box: Grid
    cells: tuple[int, ...]
    reference: int
    times: tuple[int, ...] = (1, TIMES, 20)
    batches: tuple[int, ...] = (1, 64)

    @property
    def dimension(self) -> int:
        """Of the densities."""
        return self.box.dimension

    def calls(self) -> list[Call]:
        """What every solver is asked, the smaller grids first."""
        found = []
        for cells in self.cells:
            found.append(Call(cells))
            if cells == self.reference:
                found += [Call(cells, times=n) for n in self.times if n != TIMES]
                found += [Call(cells, pairs=n) for n in self.batches if n != 1]
        return found

    def quickly(self, cells: tuple[int, ...]) -> Suite:
        """A check: some of the grids, a pair at a time, at the quarters."""
        return replace(self, cells=cells, times=(TIMES,), batches=(1,))

    def write_pairs(self, cells: int, count: int, file: Path) -> None:
        """Pairs with their truth, and the largest batch where one is asked for."""
        case = Case(self.family, self.box.with_shape(cells))
        pairs = pairs_of(case, count)
        tensors = {
            "source": pairs.source.values,
            "target": pairs.target.values,
            "truth": pairs.truth.values,
            "distance": pairs.distance,
        }
        size = max(self.batches) if cells == self.reference else 0
        if size > 1:
            ends = self.family(2 * size, torch.Generator().manual_seed(SEED)).on(case.grid).values
            tensors |= {"sources": ends[:size], "targets": ends[size:]}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


@dataclass(frozen=True)
class PairsFile:
    """What `Suite.write_pairs` wrote, for a process that solves them."""

    file: Path
    grid: Grid

    def pairs(self) -> KnownPairs:
        """Pairs with their truth."""
        tensors = load_file(self.file)
        source, target = (Density(tensors[end], self.grid) for end in ("source", "target"))
        truth = Density.as_computed(tensors["truth"], self.grid)
        return KnownPairs(source, target, truth, tensors["distance"])

    def batch(self, size: int) -> tuple[Density, Density]:
        """Sources and targets of so many pairs."""
        tensors = load_file(self.file)
        first, second = (Density(tensors[end][:size], self.grid) for end in ("sources", "targets"))
        return first, second


SUITES = {
    "1d": Suite("1d", mixtures_1d, BOX_1D, (100, 200, 500, 1000), 200),
    "2d": Suite("2d", mixtures_2d, BOX_2D, (24, 32, 64, 128, 256), 64),
}
QUICK_CELLS = {"1d": (100, 200), "2d": (24, 64)}
SCALING = "scaling"  # which is not about errors
NAMES = (*SUITES, ANY, SCALING)


def check_suites(names: Sequence[str]) -> list[str]:
    """The names, each once; all if there are none."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise InputError(f"There is no suite {unknown[0]!r}; choose from {', '.join(NAMES)}.")
    return list(dict.fromkeys(names)) or list(NAMES)


def suite_of(name: str, quick: bool) -> Suite:
    """A suite, in full or as a check."""
    return SUITES[name].quickly(QUICK_CELLS[name]) if quick else SUITES[name]
