"""The default solver: a choice of the fastest reliable method for the pair."""

from __future__ import annotations

from dataclasses import dataclass

from geonet._progress import report_progress
from geonet.density import Density
from geonet.errors import ConvergenceError, SolverError
from geonet.paths import BatchedGeodesic, Geodesic
from geonet.solvers.base import MenuEntry, Solver, SolverInfo, solve_sequential
from geonet.solvers.bures import Bures
from geonet.solvers.linear_program import LinearProgram
from geonet.solvers.newton.solver import (
    Midpoint,
    check_limits,
    check_reach,
    warn_unless_converged,
)
from geonet.solvers.quantile import Quantile

MAX_ENTRIES = 8_000_000  # of the cost matrix of a linear program: some seconds, 0.4 GB


@dataclass(frozen=True)
class Auto(Solver):
    """Choice of the fastest reliable solver for the pair.

    With a reach it is `midpoint`. Without, in 1D it is `quantile`; on grids with periodic axes in
    2D and 3D it is `midpoint`, which then starts from zero. On others it is the first of these that
    fits:

    - `bures`, for Gaussians that are given by means and covariances;
    - `linear-program`, for cells with mass that are mostly isolated, if the product of their
      numbers in both densities is at most 8 million. If its bounds of W2 are more than 2 % apart,
      `midpoint` is tried, too;
    - `midpoint`, for everything else: zeros, shapes, textures, noise. In 2D it starts from the
      potential of the network `universal-2d`, which is evaluated once for all pairs of a batch. If
      it does not converge, and a linear program is small enough, the result is the path with the
      smaller distance between its bounds of W2.

    Densities count as constant in each cell, except by `bures`. All of the solvers provide density,
    distance, velocity, potential and trajectories. `path.solver` and the report name the solver
    that was chosen. Densities have at most three dimensions.

    Each attempt is bounded: a linear program takes some seconds and 0.4 GB, and `midpoint` takes at
    most 20 steps on each of its grids. On large grids this can still take
    minutes; `time_limit` ends it. `geonet.progress_callback` shows the current attempt.

    Attributes:
        learned: whether trained models may be used.
        tolerance: the tolerance of `midpoint`, a share of the mass.
        reach: length for densities of unequal mass, by `midpoint`: mass moves about this far at
            most, and the rest grows or fades. None for balanced transport.
        growth: with a reach, "hellinger" or "wfr" (Wasserstein–Fisher–Rao).
        time_limit: seconds for each pair after which `midpoint` returns its best potential so far,
            which the report marks as not converged. None for no limit.
        accept_gap: relative gap between the bounds of W2 up to which a path of `midpoint` that did
            not converge is the result; others are compared with a linear program's.
    """

    info = SolverInfo(
        name="auto",
        summary="1D to 3D, the default: chooses the fastest reliable solver for the pair",
        family="automatic",
        dimensions=(1, 2, 3),
        differentiable=("distance",),  # by every solver that it may choose
        periodic=True,
        tolerance="share of the mass that is not balanced at t = ½",
        menu=MenuEntry("Automatic"),
    )

    learned: bool = True
    tolerance: float = Midpoint.tolerance
    reach: float | None = None
    growth: str = "hellinger"
    time_limit: float | None = None
    accept_gap: float = 0.0

    def __post_init__(self) -> None:
        check_limits(self.tolerance, self.time_limit)
        if not 0 <= self.accept_gap < 1:
            raise SolverError(f"accept_gap is {self.accept_gap:g}; give a share in [0, 1).")
        check_reach(self.reach, self.growth)

    def _solve(self, source: Density, target: Density) -> Geodesic:
        if self.reach is not None:
            return Midpoint(
                tolerance=self.tolerance,
                reach=self.reach,
                growth=self.growth,
                time_limit=self.time_limit,
            )._solve(source, target)
        if source.grid.dimension == 1:
            return Quantile()._solve(source, target)
        if not source.batch_shape:
            return self._solve_pair(source, target)
        pairs = list(zip(source, target, strict=True))
        others = [k for k, pair in enumerate(pairs) if _find_special_solver(*pair) is None]
        if len(others) == len(pairs):
            path = self._solve_newton(source, target)
        else:
            solved = self._solve_newton(source.take(others), target.take(others)) if others else ()
            paths = dict(zip(others, solved, strict=True))
            path = solve_sequential(
                lambda k: paths[k] if k in paths else self._solve_pair(*pairs[k]), len(pairs)
            )
        warn_unless_converged(path, self.tolerance)
        return path

    def _solve_pair(self, source: Density, target: Density) -> Geodesic:
        if (solver := _find_special_solver(source, target)) is not None:
            report_progress(f"auto: {solver.name}")
            path = solver._solve(source, target)
            return self._confirm(path) if isinstance(solver, LinearProgram) else path
        path = self._solve_newton(source, target)
        warn_unless_converged(path, self.tolerance)
        return path

    def _confirm(self, path: Geodesic, max_gap: float = 0.02) -> Geodesic:
        """Return the path of a linear program, or `midpoint`'s if it knows W2 more precisely."""
        if _measure_gap(path) <= max_gap * float(path._distance().detach()):
            return path
        report_progress("auto: midpoint")
        solver = Midpoint(tolerance=self.tolerance, time_limit=self.time_limit)
        other = solver.solve_silently(path.source, path.target)
        return min(path, other, key=_measure_gap) if other.info["converged"] else path

    def _solve_newton(self, source: Density, target: Density) -> Geodesic:
        """Return the path of a pair or batch, without a warning if it did not converge."""
        report_progress("auto: midpoint")
        has_network = source.grid.dimension == 2 and not source.grid.is_periodic
        start = "network" if self.learned and has_network else "zero"
        solver = Midpoint(tolerance=self.tolerance, start=start, time_limit=self.time_limit)
        path = solver.solve_silently(source, target)
        if not isinstance(path, BatchedGeodesic):
            return _replace_if_better(path, self.accept_gap)
        if all(pair.info["converged"] for pair in path.paths):
            return path
        return BatchedGeodesic([_replace_if_better(pair, self.accept_gap) for pair in path.paths])


def _find_special_solver(source: Density, target: Density) -> Solver | None:
    """Return the solver for a pair of Gaussians or of atoms; None for other pairs."""
    if source.grid.is_periodic:
        return None
    if _is_gaussian(source) and _is_gaussian(target):
        return Bures()
    if _is_sparse(source) and _is_sparse(target) and _can_solve_program(source, target):
        return LinearProgram(max_cells=MAX_ENTRIES)
    return None


def _replace_if_better(path: Geodesic, accept_gap: float) -> Geodesic:
    """Return the path, or the linear program's if it did not converge and has wider bounds."""
    has_time = "stopped after" not in path.info
    is_kept = path.info["converged"] or not has_time or path.grid.is_periodic
    if not is_kept and accept_gap > 0:
        is_kept = _measure_gap(path) <= accept_gap * float(path._distance().detach())
    if is_kept or not _can_solve_program(path.source, path.target):
        return path
    report_progress("auto: linear-program")
    try:
        other = LinearProgram(max_cells=MAX_ENTRIES)._solve(path.source, path.target)
    except ConvergenceError:
        return path
    return min(path, other, key=_measure_gap)


def _measure_gap(path: Geodesic) -> float:
    bounds = path._diagnostics()
    return float(bounds["distance_upper_bound"] - bounds["distance_lower_bound"])


def _can_solve_program(source: Density, target: Density) -> bool:
    return int((source.tensor > 0).sum()) * int((target.tensor > 0).sum()) <= MAX_ENTRIES


def _is_gaussian(density: Density, cut_off: float = 1e-3) -> bool:
    """Return whether the density is one Gaussian with at most `cut_off` outside the box."""
    mixture = density.mixture
    return (
        mixture is not None
        and mixture.components == 1
        and float(density.mass_tensor.detach()) > 1 - cut_off
    )


def _is_sparse(density: Density, max_neighbours: float = 0.25) -> bool:
    """Return whether the mass lies in cells that are mostly isolated and must not be blurred.

    Args:
        density: a single density.
        max_neighbours: largest share of neighbours of these cells that have mass, too.
    """
    has_mass = density.tensor > 0
    neighbours = sum(
        int((has_mass.narrow(axis, 1, n - 1) & has_mass.narrow(axis, 0, n - 1)).sum())
        for axis, n in enumerate(has_mass.shape)
    )
    return neighbours < max_neighbours * int(has_mass.sum()) * has_mass.ndim
