"""Suites: families of pairs on grids of several sizes, at several numbers of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.any_pair.suite import ANY
from geonet.density import Density
from geonet.errors import InputError
from geonet.evaluation import (
    SEED,
    ReferencePairs,
    TestSet,
    prescribed_map_geodesic,
    random_potential,
    sample_pairs,
)
from geonet.grid import Grid
from geonet.mixture import (
    BOX_1D,
    BOX_2D,
    BOX_3D,
    GaussianMixture,
    mixtures_1d,
    mixtures_2d,
    mixtures_3d,
)
from geonet.paths import QUARTERS

TIMES = len(QUARTERS)  # errors are measured at the quarters


@dataclass(frozen=True)
class Call:
    """One call: cells along each axis, pairs given together, number of times."""

    cells: int
    pairs: int = 1
    times: int = TIMES

    @property
    def is_base(self) -> bool:
        """Return True if errors are measured in this call."""
        return self.pairs == 1 and self.times == TIMES

    def make_times(self) -> torch.Tensor:
        """Return evenly spaced times from 0 to 1, or t = ½ alone."""
        if self.times == 1:
            return torch.tensor([0.5], dtype=torch.float64)
        return torch.linspace(0, 1, self.times, dtype=torch.float64)


@dataclass(frozen=True)
class Suite:
    """Pairs of one family.

    Attributes:
        name: name on the command line.
        family: draws the mixtures.
        box: grid with the box of the densities.
        cells: along each axis, ascending; a single pair at the quarters is measured on all.
        reference: number of cells at which batches are measured.
        batches: numbers of pairs in a call.
    """

    name: str
    family: Callable[..., GaussianMixture]
    box: Grid
    cells: tuple[int, ...]
    reference: int
    batches: tuple[int, ...] = (1, 64)

    @property
    def dimension(self) -> int:
        """Return the dimension of the densities."""
        return self.box.dimension

    def calls(self) -> list[Call]:
        """Return the calls of every solver, the smaller grids first."""
        found = []
        for cells in self.cells:
            found.append(Call(cells))
            if cells == self.reference:
                found += [Call(cells, pairs=n) for n in self.batches if n != 1]
        return found

    def reduce(self, cells: tuple[int, ...]) -> Suite:
        """Return a check with some of the grids, one pair at a time, at the quarters."""
        return replace(self, cells=cells, batches=(1,))

    def write_pairs(self, cells: int, count: int, file: Path) -> None:
        """Write pairs with their reference, and the largest batch if the suite has batches."""
        case = TestSet(self.family, self.box.with_shape(cells))
        pairs = sample_pairs(case, count)
        tensors = {
            "source": pairs.source.tensor,
            "target": pairs.target.tensor,
            "truth": pairs.truth.tensor,
            "distance": pairs.distance,
        }
        size = max(self.batches) if cells == self.reference else 0
        if size > 1:
            ends = (
                self.family(2 * size, torch.Generator().manual_seed(SEED))
                .to_density(case.grid)
                .tensor
            )
            tensors |= {"sources": ends[:size], "targets": ends[size:]}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


@dataclass(frozen=True)
class PairsFile:
    """Reader of the file that `Suite.write_pairs` wrote."""

    file: Path
    grid: Grid

    def pairs(self) -> ReferencePairs:
        """Return the pairs with their reference."""
        tensors = load_file(self.file)
        source, target = (Density(tensors[end], self.grid) for end in ("source", "target"))
        truth = Density.from_unnormalized(tensors["truth"], self.grid)
        return ReferencePairs(source, target, truth, tensors["distance"])

    def batch(self, size: int) -> tuple[Density, Density]:
        """Return sources and targets of a batch of `size` pairs."""
        tensors = load_file(self.file)
        first, second = (Density(tensors[end][:size], self.grid) for end in ("sources", "targets"))
        return first, second


SUITES = {
    "1d": Suite("1d", mixtures_1d, BOX_1D, (200, 1000), 200),
    "2d": Suite("2d", mixtures_2d, BOX_2D, (64, 256), 64),
}
QUICK_CELLS = {"1d": (200,), "2d": (64,)}
NAMES = (*SUITES, ANY)


def check_suites(names: Sequence[str]) -> list[str]:
    """Return the names without repetition, all suites by default; raise if one is unknown."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise InputError(f"There is no suite {unknown[0]!r}; choose from {', '.join(NAMES)}.")
    return list(dict.fromkeys(names)) or list(NAMES)


def get_suite(name: str, quick: bool) -> Suite:
    """Return a suite, in full or reduced for a quick run."""
    return SUITES[name].reduce(QUICK_CELLS[name]) if quick else SUITES[name]


def prescribed_map_pairs(count: int = 20, seed: int = SEED) -> ReferencePairs:
    """Draw 3D mixtures and push them along random potentials: exact by construction."""
    generator = torch.Generator().manual_seed(seed)
    mixtures = mixtures_3d(count, generator)
    paths = [
        prescribed_map_geodesic(
            mixtures[k].to_density(BOX_3D), random_potential(BOX_3D, generator, 3, 0.5)
        )
        for k in range(count)
    ]
    frames = torch.stack([path.density(QUARTERS).tensor for path in paths])
    return ReferencePairs(
        Density(torch.stack([path.source.tensor for path in paths]), BOX_3D),
        Density(torch.stack([path.target.tensor for path in paths]), BOX_3D),
        Density.from_unnormalized(frames, BOX_3D),
        torch.stack([path._distance() for path in paths]),
    )
