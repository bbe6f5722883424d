"""The default: the fastest solver that can be trusted with the pair at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from geonet._progress import report_progress
from geonet.density import Density
from geonet.paths import BatchedGeodesic, Geodesic
from geonet.solvers.base import MenuEntry, Solver, SolverInfo, solve_sequential
from geonet.solvers.bures import Bures
from geonet.solvers.neural.pretrained import pretrained_solver
from geonet.solvers.newton.solver import Midpoint
from geonet.solvers.quantile import Quantile

if TYPE_CHECKING:
    from geonet.solvers.neural.transport.path import CosineGeodesic

ATOMS = 1000  # cells with mass up to which the linear program is quick
SPARSE = 0.25  # of neighbours of cells with mass: where fewer have mass too, these are atoms
CUT_OFF = 1e-3  # share of a Gaussian outside the box up to which its closed form is the answer


@dataclass(frozen=True)
class Auto(Solver):
    """Chooses the fastest solver that can be trusted with the pair.

    In 1D that is `quantile`. In 2D and 3D it takes the first of these that fits:

    - `bures`, for Gaussians that are given by their formulas;
    - `linear-program`, for atoms: at most 1,000 cells with mass, most of which stand alone;
    - `transport-3d`, if both ends agree on the density halfway as well as they do for pairs like
      those of its training;
    - `midpoint`, for everything else: zeros, shapes, textures, noise. In 2D it begins with the
      potential of `universal-2d`, which is asked once for all pairs of a batch, and takes as many
      steps of Newton's method as are left to do.

    `path.solver` and the report name the solver that answered. Only densities and the distance are
    promised, because every one of these solvers gives them. Choose a solver by name if you need
    velocities. It does not take more than three dimensions.

    None of its attempts is open-ended: a network answers once, the linear program has at most a
    million entries, and `midpoint` takes at most 20 steps for each of seven blurs on each of its
    grids. On large grids these can still take minutes; `time_limit` ends them. It tells what it
    tries while it works (`geonet.listening`).

    Attributes:
        learned: whether trained models may answer.
        tolerance: the tolerance of `midpoint`.
        time_limit: seconds for each pair after which `midpoint` answers with the best potential so
            far, and the report says that it has not converged. None for no limit.
    """

    info = SolverInfo(
        name="auto",
        summary="1D to 3D, the default: chooses the fastest reliable solver for the pair",
        family="automatic",
        dimensions=(1, 2, 3),
        provides=("density", "distance"),
        differentiable=("distance",),
        tolerance="share of the mass that is not balanced at t = ½",
        menu=MenuEntry("Automatic"),
    )

    learned: bool = True
    tolerance: float = Midpoint.tolerance
    time_limit: float | None = None

    def __post_init__(self) -> None:
        self._by_midpoint()  # which checks its options: not only where it answers

    def _solve(self, source: Density, target: Density) -> Geodesic:
        if source.grid.dimension == 1:
            return Quantile()(source, target)
        if not source.batch_shape:
            return self._solve_pair(source, target)
        special = [_special(*pair) for pair in zip(source, target, strict=True)]
        if any(special):
            return solve_sequential(lambda i: self._solve_pair(source[i], target[i]), len(source))
        if not self.learned or source.grid.dimension == 2:
            return self._midpoint(source, target)
        path = _transport(source, target)
        if bool(path.trusted.all()):
            return path
        foreign = torch.nonzero(~path.trusted).flatten().tolist()
        solved = self._midpoint(source.take(foreign), target.take(foreign))
        assert isinstance(solved, BatchedGeodesic)
        paths = dict(zip(foreign, solved.paths, strict=True))
        return BatchedGeodesic([paths.get(i) or path[i] for i in range(len(source))])

    def _solve_pair(self, source: Density, target: Density) -> Geodesic:
        if (solver := _special(source, target)) is not None:
            report_progress(f"auto: {solver.info.name}")
            return solver(source, target)
        if self.learned and source.grid.dimension == 3:
            path = _transport(source, target)
            if bool(path.trusted.all()):
                return path
        return self._midpoint(source, target)

    def _midpoint(self, source: Density, target: Density) -> Geodesic:
        report_progress("auto: midpoint")
        start = "network" if self.learned and source.grid.dimension == 2 else "zero"
        return self._by_midpoint(start)(source, target)

    def _by_midpoint(self, start: str = "zero") -> Midpoint:
        return Midpoint(tolerance=self.tolerance, start=start, time_limit=self.time_limit)


def _special(source: Density, target: Density) -> Solver | None:
    """The solver for pairs of a kind that has its own."""
    if _is_gaussian(source) and _is_gaussian(target):
        return Bures()
    if _is_atoms(source) and _is_atoms(target):
        from geonet.solvers.linear_program import LinearProgram  # POT takes a second or two

        return LinearProgram()
    return None


def _is_atoms(density: Density) -> bool:
    """Whether its mass stands in few cells, most of them alone: a path should not blur these."""
    full = density.tensor > 0
    count = int(full.sum())
    touching = sum(
        int((full.narrow(axis, 1, n - 1) & full.narrow(axis, 0, n - 1)).sum())
        for axis, n in enumerate(full.shape)
    )
    return count <= ATOMS and touching < SPARSE * count * full.ndim


def _transport(source: Density, target: Density) -> CosineGeodesic:
    """What the network for 3D alone answers."""
    solver = pretrained_solver("transport-3d")
    report_progress(f"auto: asking {solver.info.name}")
    return solver(corrections=0)(source, target)  # pyright: ignore


def _is_gaussian(density: Density) -> bool:
    """Whether it is one Gaussian, known by its formula, that lies in the box."""
    mixture = density.mixture
    return (
        mixture is not None
        and mixture.components == 1
        and float(density.mass.detach()) > 1 - CUT_OFF
    )
