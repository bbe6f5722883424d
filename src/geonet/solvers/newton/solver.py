"""The solver "midpoint": Newton's method for any two densities on a grid."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
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
from geonet.paths import BatchedGeodesic, Geodesic
from geonet.solvers.base import ALL_QUANTITIES, MenuEntry, Solver, SolverInfo, solve_threaded
from geonet.solvers.newton.iteration import InitialGuess, MultilevelNewton, NewtonResult
from geonet.solvers.newton.path import MidpointGeodesic


@dataclass(frozen=True)
class Midpoint(Solver):
    """Newton's method for the Kantorovich potential at t = ½, for any two densities on a grid.

    Densities may have zeros, holes, islands, jumps, noise and any contrast. The potential at t = ½
    is C^{1,1} for all of them, so that quadratic splines with one coefficient per cell represent
    it. Newton's method proceeds from coarse to fine grids; each step solves an elliptic problem by
    conjugate gradients with multigrid. Densities count as constant in each cell: frames are cell
    means of mass one, as sharp as the ends.

    If densities have more detail than the potential on their cells can balance, the last level has
    half their spacing. The report states the cells of the last level, the steps of each level, the
    share of the mass that is not balanced (the residual), and whether it reached the tolerance; if
    not, there is a warning as well. Bounds of W2 from both sides hold for any potential.

    Attributes:
        tolerance: share of the mass that may remain unbalanced.
        start: "zero", "network" for the potential of `universal-2d` or `universal-3d`, or
            coefficients of quadratic splines in the unit cube around the box, (*any shape), for all
            pairs.
        max_iterations: largest number of Newton steps per level.
        refine: whether the last level may have half the spacing of the grid.
        time_limit: seconds for each pair after which the best potential so far is the result, which
            the report then calls not converged. None for no limit: the same result every time.
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
    max_iterations: int = 20
    refine: bool = True
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise SolverError(
                f"tolerance is {self.tolerance:g}; give a share of the mass in (0, 1)."
            )
        if self.max_iterations < 1:
            raise SolverError(f"max_iterations is {self.max_iterations}; give at least 1.")
        if self.time_limit is not None and not self.time_limit > 0:
            raise SolverError(f"time_limit is {self.time_limit:g}; give seconds above 0.")
        if isinstance(self.start, str) and self.start not in ("zero", "network"):
            raise SolverError(
                f"start is {self.start!r}; give 'zero', 'network' or an array of coefficients."
            )

    def _solve(self, source: Density, target: Density) -> Geodesic:
        path = self.solve_silently(source, target)
        warn_unless_converged(path, self.tolerance)
        return path

    _solve_pair = _solve

    def solve_silently(self, source: Density, target: Density) -> Geodesic:
        """Return the path of a checked pair or batch, without a warning if it did not converge."""
        guesses = self._initial_guesses(source, target)
        if not source.batch_shape:
            return self.solve_from(source, target, guesses[0])
        solve = lambda i: self.solve_from(source[i], target[i], guesses[i])  # noqa: E731
        return solve_threaded(solve, len(source), source.grid.size)

    def _initial_guesses(
        self, source: Density, target: Density
    ) -> Sequence[Tensor | InitialGuess | None]:
        """Return the potential from which each pair starts."""
        count = len(source) if source.batch_shape else 1
        if isinstance(self.start, str):
            if self.start == "zero":
                return [None] * count
            from geonet.solvers.neural.cascade import initial_potentials

            return initial_potentials(source.detach(), target.detach())
        coefficients = torch.as_tensor(self.start, dtype=torch.float64)
        dimension = source.grid.dimension
        if coefficients.ndim != dimension or not bool(torch.isfinite(coefficients).all()):
            raise SolverError(
                f"start has {coefficients.ndim} axes or numbers that are not finite; give finite "
                f"coefficients with {dimension} axes."
            )
        return [coefficients] * count

    def solve_from(
        self, source: Density, target: Density, start: Tensor | InitialGuess | None
    ) -> MidpointGeodesic:
        """Return the path of a checked pair from an initial guess, or from zero."""
        box = unit_box(source.grid)
        first, second = (box.to_density(end.tensor.detach()) for end in (source, target))
        threads = threads_for(source.grid.size)
        newton = MultilevelNewton(
            self.tolerance, self.max_iterations, self.refine, threads, self.time_limit
        )
        result = newton.solve(first, second, box.sides, start)
        return self.build_path(source, target, result)

    def build_path(
        self, source: Density, target: Density, result: NewtonResult
    ) -> MidpointGeodesic:
        """Return the path of a result, with the course of its iteration in `info`."""
        info: dict[str, Any] = {
            "residual": result.residual,
            "converged": result.converged,
            "cells": list(result.coefficients.shape),
            "newton steps": [steps for _, steps, _ in result.steps],
            "multigrid steps": [iterations for _, _, iterations in result.steps],
        }
        if isinstance(self.start, str) and self.start == "network":
            info["start"] = self.start
        if result.timed_out:
            info["stopped after"] = f"time_limit, {format_seconds(self.time_limit or 0)}"
        c = result.coefficients - result.coefficients.mean()  # the constant is free
        return MidpointGeodesic(
            source, target, self.name, info, c, result.residual, result.integrals
        )


def warn_unless_converged(path: Geodesic, tolerance: float) -> None:
    """Warn if the pair, or pairs of the batch, did not reach the tolerance."""
    pairs = path.paths if isinstance(path, BatchedGeodesic) else [path]
    missed = [k for k, pair in enumerate(pairs) if not pair.info.get("converged", True)]
    if not missed:
        return
    if path.batch:
        subject = f"Pairs {', '.join(map(str, missed[:5]))} of {len(pairs)} did"
        share = ""
    else:
        subject = "The pair did"
        share = f" ({format_percent(path.info['residual'])} of the mass is not balanced)"
    warnings.warn(
        f"{subject} not reach the tolerance of {format_number(100 * tolerance)} %{share}; the "
        "report states how accurate the path is, and how to improve it.",
        ConvergenceWarning,
        stacklevel=user_stacklevel(),
    )
