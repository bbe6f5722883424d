"""What is measured: kinds of pairs, sizes, and who takes part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors.torch import load_file, save_file

from geonet.evaluation.any_pairs import KINDS, PAIRS, draw
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.studies.benchmark.entrants import Entrant, by_default, labelled

ANY = "any"  # the name of the suite
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

    finer: dict[int, int] = field(default_factory=lambda: {64: 256, 128: 512, 256: 512})
    kinds: tuple[str, ...] = KINDS
    pairs: int = PAIRS
    reference: str = "midpoint"
    budget: float = 3.0
    repeats: int = 3

    def each(self) -> list[Pair]:
        """All pairs."""
        return [(kind, k) for kind in self.kinds for k in range(self.pairs)]

    def quickly(self) -> AnySuite:
        """A check: the smallest grid, a pair of each kind."""
        cells = min(self.finer)
        return replace(self, finer={cells: self.finer[cells]}, pairs=1, budget=2.0)

    def write_pairs(self, folder: Path) -> dict[int, Path]:
        """The files of all pairs by the number of cells."""
        found: dict[int, dict[str, Density]] = {cells: {} for cells in self.finer}
        for kind, k in self.each():  # a pair is drawn once for all grids
            for cells, tensors in found.items():
                ends = zip(("source", "target"), draw(kind, cells, k), strict=True)
                tensors |= {f"{kind} {k} {name}": end for name, end in ends}
        files = {cells: folder / f"any-{cells}.safetensors" for cells in self.finer}
        for cells, file in files.items():
            save_file({name: end.values.contiguous() for name, end in found[cells].items()}, file)
        return files


SUITE = AnySuite()


def read_pairs(file: Path, cells: int) -> dict[Pair, tuple[Density, Density]]:
    """What `AnySuite.write_pairs` wrote for a grid."""
    grid, tensors = Grid((cells, cells)), load_file(file)
    found: dict[Pair, tuple[Density, Density]] = {}
    for name in tensors:
        kind, k, end = name.split()
        if end == "source":
            values = (tensors[f"{kind} {k} {end}"] for end in ("source", "target"))
            source, target = (Density(value, grid) for value in values)
            found[kind, int(k)] = source, target
    return found


# ---- who takes part, each in one setting

ENTRANTS = (
    Entrant("auto", "auto", (2,), "learned", quick=True),
    Entrant("universal-2d", "universal-2d", (2,), "learned", quick=True),
    Entrant("universal-2d, network alone", "universal-2d", (2,), "learned", {"corrections": 0}),
    Entrant("midpoint", "midpoint", (2,), quick=True),
    Entrant("back-and-forth", "back-and-forth", (2,), quick=True),
    labelled("schrodinger", (2,), {"epsilon": 3e-4, "tolerance": 1e-3}, quick=True),
    # Of five settings tried on three pairs of the suite; OTT's is the same, untried.
    labelled("debiased-barycenter", (2,), {"method": "sinkhorn", "reg": 4e-3, "tolerance": 1e-3}),
    labelled("ott-barycenter", (2,), {"epsilon": 4e-3, "tolerance": 1e-3}),
    Entrant("linear-program, at most 48²", "linear-program", (2,), options={"coarsen": True}),
)


def any_entrants(solvers: Sequence[str], quick: bool) -> list[Entrant]:
    """All of them, or those of the named solvers; others take part with their default options."""
    if not solvers:
        return [entrant for entrant in ENTRANTS if entrant.quick or not quick]
    chosen: list[Entrant] = []
    for name in dict.fromkeys(solvers):
        own = [entrant for entrant in ENTRANTS if entrant.solver == name] or [by_default(name)]
        chosen += [e for e in own if e.dimensions is None or DIMENSION in e.dimensions]
    return chosen
