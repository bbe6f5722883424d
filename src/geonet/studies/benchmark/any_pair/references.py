"""References: the answers of one solver to the same pairs, with every cell cut into smaller ones.

Densities are constant in their cells, so that this is the same pair, solved more finely.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from geonet.evaluation.any_pairs import draw
from geonet.geodesics.base import QUARTERS
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.metrics import BLOCKS
from geonet.solvers.base import Solver
from geonet.solvers.registry import make_solver
from geonet.studies.benchmark.any_pair.result import Reference
from geonet.studies.benchmark.any_pair.suite import AnySuite, Pair
from geonet.studies.benchmark.process import told

COARSE = Grid((BLOCKS, BLOCKS))


@dataclass(frozen=True)
class ReferenceJob:
    """What a process is told: the pairs, and the cells along each axis of theirs."""

    suite: AnySuite
    cells: int


@dataclass(frozen=True)
class Known:
    """A reference with its frames.

    Attributes:
        reference: the numbers.
        frames: block means at t = ¼, ½, ¾, (3, 16, 16), a NumPy array to go between processes.
    """

    reference: Reference
    frames: np.ndarray

    def density(self) -> Density:
        """The frames, (3, 16, 16)."""
        return Density.as_computed(torch.from_numpy(self.frames), COARSE)


References = dict[Pair, Known | str]  # with the reason where there is none


def solved_references(job: ReferenceJob) -> References:
    """The references of all pairs of one size."""
    warnings.simplefilter("ignore")
    try:
        solver = make_solver(job.suite.reference)
    except Exception as error:
        return dict.fromkeys(job.suite.each(), told(error))
    found: References = {}
    for kind, k in job.suite.each():
        try:
            found[kind, k] = _known(solver, kind, k, job.cells, job.suite.finer[job.cells])
        except Exception as error:  # one pair's failure must not cost the others' references
            found[kind, k] = told(error)
    return found


def _known(solver: Solver, kind: str, k: int, cells: int, finer: int) -> Known:
    """On `finer` cells along each axis instead of `cells`."""
    grid = Grid((finer, finer))
    source, target = (end.resample(grid) for end in draw(kind, cells, k))
    began = perf_counter()
    path = solver(source, target)
    frames = path.density(QUARTERS)
    seconds = perf_counter() - began
    blocks = between(frames).resample(COARSE).values.detach().double()
    reference = Reference(cells, finer, kind, k, float(path.distance), seconds)
    return Known(reference, blocks.numpy())


def between(frames: Density) -> Density:
    """The frames at t = ¼, ½, ¾ of those at the quarters, (3, n, n)."""
    return Density.as_computed(frames.values[1:-1], frames.grid)
