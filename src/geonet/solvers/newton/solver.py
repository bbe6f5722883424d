"""Any two densities: the potential at t = ½ in quadratic splines, by Newton's method."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from geonet._format import format_number, format_percent, format_seconds
from geonet._threads import threads_for
from geonet._utils import user_stacklevel
from geonet.density import Density
from geonet.errors import ConvergenceWarning, SolverError
from geonet.grid import unit_box
from geonet.paths import Geodesic
from geonet.solvers.base import ALL_QUANTITIES, MenuEntry, Solver, SolverInfo, solve_threaded
from geonet.solvers.newton.iteration import STEPS, InitialGuess, MultilevelNewton, NewtonResult
from geonet.solvers.newton.path import MidpointGeodesic

STARTS = ("zero", "network")


@dataclass(frozen=True)
class Midpoint(Solver):
    """Newton's method for the potential at t = ½, for any two densities on a grid.

    Zeros, holes, islands, jumps, noise and any contrast are welcome, and any shape of grid. The
    potential at t = ½ is C^{1,1} whatever the ends are, so quadratic splines with one coefficient
    a cell represent it. Newton's steps go from coarse grids to fine ones; each is an elliptic
    problem, solved by conjugate gradients with multigrid. Densities count as constant in each cell:
    frames are cell means of mass one, as sharp as the ends.

    Where densities have more detail than the potential on their cells can balance, the last level
    has half their spacing. The report says on how many cells it was solved, how many steps each
    level took, how much of the mass is not balanced (the residual), and whether that reached the
    tolerance; if not, there is a warning too. It bounds W2 from both sides, whatever the potential
    is.

    Attributes:
        tolerance: of the residual, a share of the mass.
        start: "zero", "network" for the potential of `universal-2d` or `universal-3d`, or
            coefficients of quadratic splines in the unit cube around the box, (*any shape), for all
            pairs.
        max_steps: of Newton's method on each level and for each blur; a level has seven blurs at
            most.
        refine: whether the last level may have half the spacing of the grid.
        time_limit: seconds for each pair after which the best potential so far is the answer, which
            the report then calls not converged. None for no limit: the same answer every time.
    """

    info = SolverInfo(
        name="midpoint",
        summary="1D to 3D, any two densities: zeros, shapes, noise; sharp frames, milliseconds",
        family="Newton",
        dimensions=(1, 2, 3),
        differentiable=ALL_QUANTITIES,
        tolerance="share of the mass that is not balanced at t = ½",
        menu=MenuEntry("Newton's method, without a network", dimensions=(2,)),
    )

    tolerance: float = 2e-3
    start: str | Tensor = "zero"
    max_steps: int = STEPS
    refine: bool = True
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g}; give a share of the mass in (0, 1)."
            )
        if self.max_steps < 1:
            raise SolverError(f"max_steps is {self.max_steps}; give at least 1.")
        if self.time_limit is not None and not self.time_limit > 0:
            raise SolverError(f"time_limit is {self.time_limit:g}; give seconds above 0.")
        if isinstance(self.start, str) and self.start not in STARTS:
            raise SolverError(
                f"start is {self.start!r}; give 'zero', 'network' or an array of coefficients."
            )

    def _solve(self, source: Density, target: Density) -> Geodesic:
        if not source.batch_shape:
            return self._solve_pair(source, target)
        starts, count = self._starts(source, target), len(source)
        solve = lambda i: self.found(source[i], target[i], starts(i), warn=False)  # noqa: E731
        paths = solve_threaded(solve, count, source.grid.size)
        missed = [k for k, path in enumerate(paths.paths) if not path.info["converged"]]
        if missed:
            _warn(f"Pairs {', '.join(map(str, missed[:5]))} of {count}", self.tolerance)
        return paths

    def _solve_pair(self, source: Density, target: Density) -> MidpointGeodesic:
        return self.found(source, target, self._starts(source, target)(0), warn=True)

    def _starts(
        self, source: Density, target: Density
    ) -> Callable[[int], Tensor | InitialGuess | None]:
        """The potential to begin with, by the pair's number."""
        if isinstance(self.start, str) and self.start == "zero":
            return lambda i: None
        if isinstance(self.start, str):
            from geonet.solvers.neural.transport.solver import initial_potentials

            guesses = initial_potentials(source.detach(), target.detach())
            return lambda i: guesses[i]
        given = torch.as_tensor(self.start, dtype=torch.float64)
        if given.ndim != source.grid.dimension or not bool(torch.isfinite(given).all()):
            raise SolverError(
                f"start has {given.ndim} axes or numbers that are not finite; give finite "
                f"coefficients with {source.grid.dimension} axes."
            )
        return lambda i: given

    def found(
        self,
        source: Density,
        target: Density,
        start: Tensor | InitialGuess | None,
        warn: bool = False,
    ) -> MidpointGeodesic:
        """The path of a checked pair from a potential, (*any cells), or from zero."""
        box = unit_box(source.grid)
        first, second = (box.to_density(end.tensor.detach()) for end in (source, target))
        threads = threads_for(source.grid.size)
        newton = MultilevelNewton(
            self.tolerance, self.max_steps, self.refine, threads, self.time_limit
        )
        found = newton.solved(first, second, box.sides, start)
        if warn and not found.converged:
            _warn("The pair", self.tolerance, found.residual)
        return self.path_of(source, target, found)

    def path_of(self, source: Density, target: Density, found: NewtonResult) -> MidpointGeodesic:
        """The path of what Newton's method found, with info on how it went."""
        info: dict[str, Any] = {
            "residual": found.residual,
            "converged": found.converged,
            "cells": list(found.coefficients.shape),
            "newton steps": [steps for _, steps, _ in found.steps],
            "multigrid steps": [steps for _, _, steps in found.steps],
        }
        if isinstance(self.start, str) and self.start != "zero":
            info["start"] = self.start
        if found.late:
            info["stopped after"] = f"time_limit, {format_seconds(self.time_limit or 0)}"
        c = found.coefficients - found.coefficients.mean()  # the constant is free
        return MidpointGeodesic(source, target, self.name, info, c, found.residual, found.totals)


def _warn(which: str, tolerance: float, residual: float = math.nan) -> None:
    left = (
        "" if math.isnan(residual) else f" ({format_percent(residual)} of the mass is not balanced)"
    )
    warnings.warn(
        f"{which} did not reach the tolerance of {format_number(100 * tolerance)} %{left}; the report "
        "says how far the path can be trusted, and what to do.",
        ConvergenceWarning,
        stacklevel=user_stacklevel(),
    )
