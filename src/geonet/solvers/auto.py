"""The default: the most accurate solver that works for the pair at hand."""

from __future__ import annotations

from dataclasses import dataclass

from geonet.errors import ConvergenceError, DensityError
from geonet.geodesic import Geodesic
from geonet.measures.density import Density
from geonet.solvers.base import Solver
from geonet.solvers.exact.bures import Bures
from geonet.solvers.exact.quantile import Quantile

CUT_OFF = 1e-3  # share of a Gaussian outside the box up to which its closed form is the answer


@dataclass(frozen=True)
class Auto(Solver):
    """`quantile` in 1D; otherwise `monge-ampere` and, where that fails, `linear-program`.

    Gaussians given by formula go to `bures`. The linear program runs on the finest grid that it can
    afford. `path.solver` and the report name the solver that answered, and the report says why
    another one did not.
    """

    name = "auto"
    summary = "1D to 3D, the default: quantile in 1D, else monge-ampere, else linear-program"
    dimensions = (1, 2, 3)
    gives = ("distance",)  # what every one of them gives

    learned: bool = True

    def _solve(self, source: Density, target: Density) -> Geodesic:
        if source.grid.dimension == 1:
            return Quantile()(source, target)
        return super()._solve(source, target)

    def _solve_pair(self, source: Density, target: Density) -> Geodesic:
        if _is_gaussian(source) and _is_gaussian(target):
            return Bures()(source, target)
        # Imported here: 1D needs neither, and POT alone takes longer to import than most solves.
        from geonet.solvers.exact.monge_ampere import MongeAmpere

        try:
            return MongeAmpere()(source, target)
        except (ConvergenceError, DensityError) as error:
            from geonet.solvers.exact.linear_program import LinearProgram

            path = LinearProgram(coarsen=True)(source, target)
            path.notes["instead of monge-ampere"] = str(error)
            return path


def _is_gaussian(density: Density) -> bool:
    """Whether it is one Gaussian, known by its formula, that lies in the box."""
    mixture = density.mixture
    return mixture is not None and mixture.components == 1 and float(density.mass) > 1 - CUT_OFF
