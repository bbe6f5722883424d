"""1D: displacement interpolation by quantile functions, exact for piecewise-constant densities.

In 1D the optimal map is monotone, Q_t = (1−t)·Q_0 + t·Q_1 for the quantile functions Q_i = F_i⁻¹.
Where densities are constant on cells, Q_0 and Q_1 are linear between the merged levels of F_0 and
F_1. Between two neighbouring levels mass spreads uniformly over a segment, and its ends move
straight; so does everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

from geonet.geodesics.quantile import QuantileGeodesic
from geonet.measures.density import Density
from geonet.solvers.base import EVERY_ANSWER, Solver


@dataclass(frozen=True)
class Quantile(Solver):
    """Interpolates quantile functions, which is exact in 1D and costs one sort.

    The optimal map on the line is monotone, so Q_t = (1 − t)·Q_0 + t·Q_1. Between two neighbouring
    levels of the two distribution functions the mass fills a segment whose ends move straight.
    Density, velocity, potential and distance follow in closed form. Batches are solved at once.

    In 1D nothing beats it. The other solvers take 1D densities so that they can be studied.
    """

    name = "quantile"
    summary = "1D, exact for piecewise-constant densities, O(n); the truth in 1D"
    dimensions = (1,)
    differentiable = EVERY_ANSWER

    def _solve(self, source: Density, target: Density) -> QuantileGeodesic:
        return QuantileGeodesic(source, target, self.name)

    _solve_pair = _solve
