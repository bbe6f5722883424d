"""The default: the fastest solver that can be trusted with the pair at hand."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geonet.errors import ConvergenceError, DensityError
from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.solvers.base import Solver, one_by_one
from geonet.solvers.exact.bures import Bures
from geonet.solvers.exact.quantile import Quantile
from geonet.solvers.learned.shipped import shipped_class

if TYPE_CHECKING:
    from geonet.geodesics.bridge import SchrodingerBridge
    from geonet.geodesics.midpoint.path import MidpointGeodesic

POOR = 0.05  # L1 error that the last resorts have, at best: noise, or grain
NOISE = 3e-4  # ε of the bridge, of the longest side squared: at t = ½ it blurs by a hundredth
MET = 1e-4  # L1 error at which the bridge's ends count as met
ATOMS = 1000  # cells with mass up to which the linear program is quick
SPARSE = 0.25  # of neighbours of cells with mass: where fewer have mass too, these are atoms
MOST_CELLS = 1 << 17  # of a bridge, which takes seconds there
CUT_OFF = 1e-3  # share of a Gaussian outside the box up to which its closed form is the answer


@dataclass(frozen=True)
class Auto(Solver):
    """Chooses the fastest solver that can be trusted with the pair.

    In 1D that is `quantile`. In 2D and 3D it tries, in this order:

    - `bures`, for Gaussians that are given by their formulas;
    - `transport-2d` or `transport-3d`, if both ends agree on the density halfway as well as they do
      for pairs like those of its training;
    - `monge-ampere`, if the densities have no zeros and it converges;
    - the transport model again, if it expects an error below 5 %;
    - `schrodinger` with little noise, for densities with holes, islands and jumps. Its ε is 3·10⁻⁴
      of the longest side squared, or the least that the grid resolves if that is more (it is on
      fewer than 41 cells). This blurs frames halfway by about a hundredth of the side;
    - `linear-program`, for atoms (at most 1,000 cells with mass, most of which stand alone), for
      grids of more than 2¹⁷ cells, and where the bridge does not converge.

    `path.solver` and the report name the solver that answered, and the report says why
    `monge-ampere` did not. Only densities and the distance are promised, because every one of these
    solvers gives them. Choose a solver by name if you need velocities.

    It does not take more than three dimensions. The later choices cost more time, and their frames
    are blurred or grainy. Where only narrow tails or a few zeros stand in the way, `monge-ampere`
    with `floor=0.01` often gives the better path.

    Attributes:
        learned: whether trained models may answer.
        tolerance: the tolerance of `monge-ampere`.
    """

    name = "auto"
    summary = (
        "1D to 3D, the default: quantile in 1D, else the fastest that can be trusted with the pair"
    )
    dimensions = (1, 2, 3)
    gives = ("distance",)  # what every one of them gives
    differentiable = ("distance",)

    learned: bool = True
    tolerance: float = 1e-3

    def _solve(self, source: Density, target: Density) -> Geodesic:
        if source.grid.dimension == 1:
            return Quantile()(source, target)
        # Formulas of single Gaussians are for `bures`, which `_solve_pair` asks about.
        gaussian = source.mixture is not None and source.mixture.components == 1
        if not source.leading or not self.learned or gaussian:
            return super()._solve(source, target)
        path = _transport(source, target)
        if bool(path.trusted.all()):
            return path
        return one_by_one(lambda i: self._judged(source[i], target[i], path.pair(i)), len(source))

    def _solve_pair(self, source: Density, target: Density) -> Geodesic:
        if _is_gaussian(source) and _is_gaussian(target):
            return Bures()(source, target)
        return self._judged(source, target, _transport(source, target) if self.learned else None)

    def _judged(
        self, source: Density, target: Density, learned: MidpointGeodesic | None
    ) -> Geodesic:
        """The transport model's path if it can be trusted, else that of a classical solver."""
        if learned is not None and bool(learned.trusted.all()):
            return learned
        # Imported here: 1D needs neither, and POT alone takes longer to import than most solves.
        from geonet.solvers.exact.monge_ampere import MongeAmpere

        try:
            return MongeAmpere(tolerance=self.tolerance)(source, target)
        except (ConvergenceError, DensityError) as error:
            path: Geodesic
            if learned is not None and float(learned.expected_error()) < POOR:
                path = learned
            else:
                path = _rough(source, target)
            path.notes["instead of monge-ampere"] = str(error)
            return path


def _rough(source: Density, target: Density) -> Geodesic:
    """The path of a pair that has no smooth map."""
    grid = source.grid
    if not (_is_atoms(source) and _is_atoms(target)) and grid.size <= MOST_CELLS:
        with suppress(ConvergenceError):
            return bridge(source, target)
    from geonet.solvers.exact.linear_program import LinearProgram  # POT takes a second or two

    return LinearProgram(coarsen=True)(source, target)


def bridge(source: Density, target: Density) -> SchrodingerBridge:
    """The path of one pair with so little noise that it serves for the geodesic."""
    from geonet.solvers.entropic.schrodinger import Schrodinger, least_epsilon

    epsilon = max(NOISE * source.grid.longest**2, least_epsilon(source.grid))
    return Schrodinger(epsilon, MET)._solve_pair(source, target)


def _is_atoms(density: Density) -> bool:
    """Whether its mass stands in few cells, most of them alone: a path should not blur these."""
    full = density.values > 0
    count = int(full.sum())
    touching = sum(
        int((full.narrow(axis, 1, n - 1) & full.narrow(axis, 0, n - 1)).sum())
        for axis, n in enumerate(full.shape)
    )
    return count <= ATOMS and touching < SPARSE * count * full.ndim


def _transport(source: Density, target: Density) -> MidpointGeodesic:
    return shipped_class(f"transport-{source.grid.dimension}d")()(source, target)  # pyright: ignore


def _is_gaussian(density: Density) -> bool:
    """Whether it is one Gaussian, known by its formula, that lies in the box."""
    mixture = density.mixture
    return (
        mixture is not None
        and mixture.components == 1
        and float(density.mass.detach()) > 1 - CUT_OFF
    )
