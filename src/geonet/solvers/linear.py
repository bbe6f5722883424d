"""The mixture (1−t)·μ_0 + t·μ_1: no transport at all, the floor every method must beat."""

from __future__ import annotations

from dataclasses import dataclass

from geonet.geodesics.linear import LinearPath
from geonet.measures.density import Density
from geonet.solvers.base import Solver


@dataclass(frozen=True)
class Linear(Solver):
    """Fades one density into the other, (1 − t)·μ0 + t·μ1, and moves nothing.

    Every method must beat it. Both ends are exact, and so is the path for μ0 = μ1. It takes any
    dimension and solves batches at once. It is wrong as soon as mass has to move.
    """

    name = "linear"
    summary = "any dimension, the mixture (1−t)μ0 + tμ1: the floor every method must beat"
    dimensions = None
    gives = ()
    differentiable = ("density",)

    def _solve(self, source: Density, target: Density) -> LinearPath:
        return LinearPath(source, target, self.name, {})

    _solve_pair = _solve
