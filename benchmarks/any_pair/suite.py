"""The suite `any`: kinds of pairs, sizes, contestants and references."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from benchmarks.any_pair.records import Reference
from benchmarks.contestants import Contestant, make_default, make_labelled
from benchmarks.pairs import KINDS, PAIRS, draw
from benchmarks.process import format_error
from geonet.density import Density
from geonet.grid import Grid
from geonet.paths import QUARTERS
from geonet.solvers.base import Solver
from geonet.solvers.registry import make_solver

ANY = "any"  # name of the suite
Pair = tuple[str, int]  # kind and number
DIMENSION = 2


@dataclass(frozen=True)
class AnySuite:
    """Pairs, sizes and limits.

    Attributes:
        finer: cells along each axis of the pairs, ascending, with those of their reference.
        kinds: of the pairs.
        pairs: of each kind.
        reference: the solver that gives the references.
        budget: seconds for the pairs of one kind on one grid.
        repeats: of a pair that takes less than a second.
    """

    finer: dict[int, int] = field(default_factory=lambda: {64: 256, 256: 512})
    kinds: tuple[str, ...] = KINDS
    pairs: int = PAIRS
    reference: str = "midpoint"
    budget: float = 2.0
    repeats: int = 3

    def list_pairs(self) -> list[Pair]:
        """Return kind and number of all pairs."""
        return [(kind, k) for kind in self.kinds for k in range(self.pairs)]

    def reduce(self) -> AnySuite:
        """Return a check with the smallest grid and one pair of each kind."""
        cells = min(self.finer)
        return replace(self, finer={cells: self.finer[cells]}, pairs=1, budget=2.0)

    def write_pairs(self, folder: Path) -> dict[int, Path]:
        """Write all pairs to files, keyed by the number of cells."""
        found: dict[int, dict[str, Density]] = {cells: {} for cells in self.finer}
        for kind, k in self.list_pairs():  # a pair is drawn once for all grids
            for cells, tensors in found.items():
                ends = zip(("source", "target"), draw(kind, cells, k), strict=True)
                tensors |= {f"{kind} {k} {name}": end for name, end in ends}
        files = {cells: folder / f"any-{cells}.safetensors" for cells in self.finer}
        for cells, file in files.items():
            save_file({name: end.tensor.contiguous() for name, end in found[cells].items()}, file)
        return files


SUITE = AnySuite()


def read_pairs(file: Path, cells: int) -> dict[Pair, tuple[Density, Density]]:
    """Read the pairs of one grid that `AnySuite.write_pairs` wrote."""
    grid, tensors = Grid((cells, cells)), load_file(file)
    found: dict[Pair, tuple[Density, Density]] = {}
    for name in tensors:
        kind, k, end = name.split()
        if end == "source":
            values = (tensors[f"{kind} {k} {end}"] for end in ("source", "target"))
            source, target = (Density(value, grid) for value in values)
            found[kind, int(k)] = source, target
    return found


# ---- contestants, each in one setting

CONTESTANTS = (
    Contestant("auto", "auto", (2,), "learned", quick=True),
    Contestant(
        "universal-2d, network alone", "universal-2d", (2,), "learned", {"max_iterations": 0}
    ),
    Contestant("midpoint", "midpoint", (2,), quick=True),
    Contestant("back-and-forth", "back-and-forth", (2,), quick=True),
    make_labelled("schrodinger", (2,), {"epsilon": 3e-4, "tolerance": 1e-3}, quick=True),
    make_labelled("ott-barycenter", (2,), {"epsilon": 4e-3, "tolerance": 1e-3}),
    Contestant("linear-program, at most 48²", "linear-program", (2,), options={"coarsen": True}),
)


def select_any_contestants(solvers: Sequence[str], quick: bool) -> list[Contestant]:
    """Return all contestants or the named solvers; others get their default options."""
    if not solvers:
        return [entrant for entrant in CONTESTANTS if entrant.quick or not quick]
    chosen: list[Contestant] = []
    for name in dict.fromkeys(solvers):
        own = [entrant for entrant in CONTESTANTS if entrant.solver == name] or [make_default(name)]
        chosen += [e for e in own if e.dimensions is None or DIMENSION in e.dimensions]
    return chosen


# ---- References: solutions of the same pairs with every cell divided into smaller ones.
#
# Densities are constant in their cells, so this is the same pair on a finer grid.


COARSE = Grid((16, 16))  # the blocks of `block_l1`


@dataclass(frozen=True)
class ReferenceJob:
    """The work of one process: the references of all pairs of one size."""

    suite: AnySuite
    cells: int


@dataclass(frozen=True)
class KnownPath:
    """A reference with its frames.

    Attributes:
        reference: the numbers.
        frames: block means at t = ¼, ½, ¾, (3, 16, 16), a NumPy array to go between processes.
    """

    reference: Reference
    frames: np.ndarray

    def density(self) -> Density:
        """Return the frames, (3, 16, 16)."""
        return Density.from_unnormalized(torch.from_numpy(self.frames), COARSE)


References = dict[Pair, KnownPath | str]  # or the reason if there is none


def solve_references(job: ReferenceJob) -> References:
    """Solve the references of all pairs of one size."""
    warnings.simplefilter("ignore")
    try:
        solver = make_solver(job.suite.reference)
    except Exception as error:
        return dict.fromkeys(job.suite.list_pairs(), format_error(error))
    found: References = {}
    for kind, k in job.suite.list_pairs():
        try:
            found[kind, k] = _solve_finer(solver, kind, k, job.cells, job.suite.finer[job.cells])
        except Exception as error:  # a failed pair must not end the run
            found[kind, k] = format_error(error)
    return found


def _solve_finer(solver: Solver, kind: str, k: int, cells: int, finer: int) -> KnownPath:
    """Solve one pair on `finer` instead of `cells` cells along each axis."""
    grid = Grid((finer, finer))
    source, target = (end.resample(grid) for end in draw(kind, cells, k))
    start = perf_counter()
    path = solver(source, target)
    frames = path.density(QUARTERS)
    seconds = perf_counter() - start
    blocks = take_interior(frames).resample(COARSE).tensor.detach().double()
    reference = Reference(cells, finer, kind, k, float(path.distance), seconds)
    return KnownPath(reference, blocks.numpy())


def take_interior(frames: Density) -> Density:
    """Return the frames at t = ¼, ½, ¾ from the frames at the quarters, (3, n, n)."""
    return Density.from_unnormalized(frames.tensor[1:-1], frames.grid)
