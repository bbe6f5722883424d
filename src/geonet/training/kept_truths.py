"""Exact paths in a file of the run's folder, so that none is solved twice."""

from __future__ import annotations

import hashlib
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from geonet.errors import FileError
from geonet.evaluation.truth import Truth, truth_of, truth_of_pair
from geonet.geodesics.base import QUARTERS
from geonet.measures.density import Density
from geonet.operators.model_file import read_tensors, write_tensors
from geonet.version import VERSION

TRUTHS = "truths.safetensors"
FORMAT, KIND = 1, "exact paths"
WRITE_EVERY = 10.0  # seconds of solving that a kill may cost


class Kept(NamedTuple):
    """What is kept of a pair's truth: frames (5, *cells), W2 (), and who solved it."""

    frames: Tensor
    distance: Tensor
    solver: str

    def fits(self, density: Density) -> bool:
        """Whether this can be the path of such a density: finite, and on its cells."""
        shape = (len(QUARTERS), *density.grid.shape)
        return (
            (self.frames.shape, self.distance.shape) == (shape, ())
            and self.frames.dtype == self.distance.dtype == torch.float64
            and bool(torch.isfinite(self.frames).all())
        )


class KeptTruths:
    """Truths by a digest of their pair; a pair that is not in the file is solved.

    A file that is damaged, or holds something else, counts as empty and is written anew.

    Args:
        file: written when there is something new to keep; None keeps nothing.
    """

    def __init__(self, file: Path | None):
        self.file = file
        self._known = {} if file is None else _read(file)
        self._written, self._news = perf_counter(), False

    def of(self, source: Density, target: Density, epsilon: float = 0.0) -> Truth:
        """`truth_of` a batch; what is solved is kept, however the work ends."""
        try:
            return truth_of(source, target, epsilon, self._of_pair)
        finally:
            self._write()

    def _of_pair(self, source: Density, target: Density, epsilon: float) -> Truth:
        key = pair_digest(source, target, epsilon)
        if key not in self._known or not self._known[key].fits(source):
            found = truth_of_pair(source, target, epsilon)
            frames, distance = found.frames.values.double(), found.distance.double()
            self._known[key] = Kept(frames, distance, *found.solvers)
            self._news = True
            if perf_counter() - self._written > WRITE_EVERY:
                self._write()
        frames, distance, solver = self._known[key]
        return Truth(Density.as_computed(frames, source.grid), distance, {solver: 1})

    def _write(self) -> None:
        if self.file is None or not self._news:
            return
        tensors = {f"frames/{key}": kept.frames for key, kept in self._known.items()}
        tensors |= {f"distance/{key}": kept.distance for key, kept in self._known.items()}
        solvers = {key: kept.solver for key, kept in self._known.items()}
        write_tensors(self.file, tensors, {"format": FORMAT, "kind": KIND, "solvers": solvers})
        self._written, self._news = perf_counter(), False


def pair_digest(source: Density, target: Density, epsilon: float) -> str:
    """A name for the truth of a pair: of its values, its box, its noise, and this version."""
    grid, formula = source.grid, source.mixture is not None and target.mixture is not None
    of_what = (VERSION, epsilon, formula, grid.shape, grid.lower, grid.upper)
    digest = hashlib.sha256(repr(of_what).encode())
    for end in (source, target):
        digest.update(end.values.double().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _read(file: Path) -> dict[str, Kept]:
    if not file.exists():
        return {}
    try:
        tensors, header = read_tensors(file, KIND)
    except FileError:  # damaged
        return {}
    solvers = header.get("solvers")
    if (header.get("format"), header.get("kind")) != (FORMAT, KIND) or not isinstance(
        solvers, dict
    ):
        return {}
    return {
        key: Kept(tensors[f"frames/{key}"], tensors[f"distance/{key}"], str(solver))
        for key, solver in solvers.items()
        if {f"frames/{key}", f"distance/{key}"} <= tensors.keys()
    }
