"""The default solver: a choice of the fastest reliable method for the pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from geonet._progress import report_progress
from geonet.density import Density
from geonet.errors import SolverError
from geonet.paths import BatchedGeodesic, Geodesic
from geonet.solvers.base import MenuEntry, Solver, SolverInfo, solve_sequential
from geonet.solvers.bures import Bures
from geonet.solvers.neural.pretrained import pretrained_solver
from geonet.solvers.newton.solver import Midpoint
from geonet.solvers.registry import make_solver

if TYPE_CHECKING:
    from geonet.solvers.neural.transport.path import CosineGeodesic


@dataclass(frozen=True)
class Auto(Solver):
    """Choice of the fastest reliable solver for the pair.

    In 1D this is `quantile`. In 2D and 3D it is the first of these that fits:

    - `bures`, for Gaussians that are given by means and covariances;
    - `linear-program`, for atoms: at most 1,000 cells with mass, most of them isolated;
    - `transport-3d`, if both ends agree on the density halfway as well as for its training pairs;
    - `midpoint`, for everything else: zeros, shapes, textures, noise. In 2D it starts from the
      potential of the network `universal-2d`, which is evaluated once for all pairs of a batch.

    All of them provide density, distance, velocity, potential and trajectories. `path.solver` and
    the report name the solver that was chosen. Densities have at most three dimensions.

    Each attempt is bounded: a network is evaluated once, the linear program has at most a million
    entries, and `midpoint` takes at most 20 steps for each of seven blurs on each of its grids. On
    large grids this can still take minutes; `time_limit` ends it. `geonet.progress_callback` shows
    the current attempt.

    Attributes:
        learned: whether trained models may be used.
        tolerance: the tolerance of `midpoint`, a share of the mass.
        time_limit: seconds for each pair after which `midpoint` returns its best potential so far,
            which the report marks as not converged. None for no limit.
    """

    info = SolverInfo(
        name="auto",
        summary="1D to 3D, the default: chooses the fastest reliable solver for the pair",
        family="automatic",
        dimensions=(1, 2, 3),
        differentiable=("distance",),  # by every solver that it may choose
        tolerance="share of the mass that is not balanced at t = ½",
        menu=MenuEntry("Automatic"),
    )

    learned: bool = True
    tolerance: float = Midpoint.tolerance
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g}; give a share of the mass in (0, 1)."
            )
        if self.time_limit is not None and not self.time_limit > 0:
            raise SolverError(f"time_limit is {self.time_limit:g}; give seconds above 0.")

    def _solve(self, source: Density, target: Density) -> Geodesic:
        if source.grid.dimension == 1:
            return make_solver("quantile")._solve(source, target)
        if not source.batch_shape:
            return self._solve_pair(source, target)
        pairs = list(zip(source, target, strict=True))
        if any(_find_special_solver(*pair) for pair in pairs):
            return solve_sequential(lambda i: self._solve_pair(*pairs[i]), len(pairs))
        if not self.learned or source.grid.dimension == 2:
            return self._solve_newton(source, target)
        path = _evaluate_network(source, target)
        if bool(path.is_certified.all()):
            return path
        rejected = torch.nonzero(~path.is_certified).flatten().tolist()
        solutions = self._solve_newton(source.take(rejected), target.take(rejected))
        replacements = dict(zip(rejected, solutions, strict=True))
        return BatchedGeodesic([replacements.get(i) or path[i] for i in range(len(source))])

    def _solve_pair(self, source: Density, target: Density) -> Geodesic:
        if (solver := _find_special_solver(source, target)) is not None:
            report_progress(f"auto: {solver.name}")
            return solver._solve(source, target)
        if self.learned and source.grid.dimension == 3:
            path = _evaluate_network(source, target)
            if bool(path.is_certified.all()):
                return path
        return self._solve_newton(source, target)

    def _solve_newton(self, source: Density, target: Density) -> Geodesic:
        report_progress("auto: midpoint")
        start = "network" if self.learned and source.grid.dimension == 2 else "zero"
        solver = Midpoint(tolerance=self.tolerance, start=start, time_limit=self.time_limit)
        return solver._solve(source, target)


def _find_special_solver(source: Density, target: Density) -> Solver | None:
    """Return the solver for a pair of Gaussians or of atoms; None for other pairs."""
    if _is_gaussian(source) and _is_gaussian(target):
        return Bures()
    if _is_sparse(source) and _is_sparse(target):
        return make_solver("linear-program")
    return None


def _is_gaussian(density: Density, cut_off: float = 1e-3) -> bool:
    """Return whether the density is one Gaussian with at most `cut_off` outside the box."""
    mixture = density.mixture
    return (
        mixture is not None
        and mixture.components == 1
        and float(density.mass_tensor.detach()) > 1 - cut_off
    )


def _is_sparse(density: Density, max_atoms: int = 1000, max_neighbours: float = 0.25) -> bool:
    """Return whether the mass lies in few cells, most of them isolated, that must not be blurred.

    Args:
        density: a single density.
        max_atoms: cells with mass up to which the linear program is quick.
        max_neighbours: largest share of neighbours of these cells that have mass, too.
    """
    has_mass = density.tensor > 0
    count = int(has_mass.sum())
    neighbours = sum(
        int((has_mass.narrow(axis, 1, n - 1) & has_mass.narrow(axis, 0, n - 1)).sum())
        for axis, n in enumerate(has_mass.shape)
    )
    return count <= max_atoms and neighbours < max_neighbours * count * has_mass.ndim


def _evaluate_network(source: Density, target: Density) -> CosineGeodesic:
    """Return the path of the 3D network without Newton steps."""
    solver = pretrained_solver("transport-3d")(max_iterations=0)  # pyright: ignore[reportCallIssue]
    report_progress(f"auto: evaluating {solver.name}")
    return solver._solve(source, target)  # pyright: ignore[reportReturnType]
