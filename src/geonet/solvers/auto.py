"""The default: the most accurate solver that works for the pair at hand."""

from __future__ import annotations

from dataclasses import dataclass

from geonet.errors import ConvergenceError, DensityError
from geonet.geodesic import Geodesic
from geonet.measures.density import Density
from geonet.solvers.base import Solver
from geonet.solvers.exact.quantile import Quantile

# Frames of the linear program are off by several per cent, so this much is still the better answer.
RESIDUAL = 1e-2


@dataclass(frozen=True)
class Auto(Solver):
    """`quantile` in 1D; otherwise `monge-ampere` and, where that fails, `linear-program`.

    monge-ampere answers up to a residual of 1 %, which the report states. The linear program runs
    on the finest grid that it can afford. `path.solver` and the report name the solver that
    answered, and the report says why another one did not.
    """

    name = "auto"
    summary = "1D to 3D: quantile in 1D, else monge-ampere, else linear-program"
    dimensions = (1, 2, 3)
    gives = ("distance",)  # what every one of the three gives

    def _solve(self, source: Density, target: Density) -> Geodesic:
        if source.grid.dimension == 1:
            return Quantile()(source, target)
        return super()._solve(source, target)

    def _solve_pair(self, source: Density, target: Density) -> Geodesic:
        # Imported here: 1D needs neither, and POT alone takes longer to import than most solves.
        from geonet.solvers.exact.monge_ampere import MongeAmpere

        try:
            return MongeAmpere(tolerance=RESIDUAL)(source, target)
        except (ConvergenceError, DensityError) as error:
            from geonet.solvers.exact.linear_program import LinearProgram

            path = LinearProgram(coarsen=True)(source, target)
            path.notes["instead of monge-ampere"] = str(error).split(";")[0]
            return path
