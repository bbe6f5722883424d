"""The solver "midpoint": Newton's method for any two densities on a grid."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, cast, get_args

import torch
from torch import Tensor

from geonet._format import format_number, format_percent, format_seconds
from geonet._threads import threads_for
from geonet._utils import pair_label, user_stacklevel
from geonet._validation import is_number, short_repr
from geonet.density import Density
from geonet.errors import ConvergenceWarning, SolverError
from geonet.grid import unit_box
from geonet.paths import BatchedGeodesic, Geodesic
from geonet.solvers.base import ALL_QUANTITIES, MenuEntry, Solver, SolverInfo, solve_threaded
from geonet.solvers.newton.compiled import Formulation, Growth
from geonet.solvers.newton.iteration import (
    InitialGuess,
    MultilevelNewton,
    NewtonResult,
)
from geonet.solvers.newton.path import MidpointGeodesic, PeriodicRoll
from geonet.solvers.newton.unbalanced import UnbalancedBatch, UnbalancedGeodesic

WITHOUT_REACH = "leave it out for balanced transport"
MAX_REACH = 1e3  # over the longest side; kernels in single precision lose the growth beyond it


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
    not, there is a warning as well. A residual below the tolerance is lowered further while moving
    it to where it is missing might change W2: a small mass may have to move far. Bounds of W2 from
    both sides hold for any potential.

    With a reach, masses may differ and count as given; the path has a cost with bounds, a
    transported share and a growth rate. Along periodic axes mass moves the shorter way round.

    Attributes:
        tolerance: share of the mass that may remain unbalanced.
        start: "zero", "network" for the potential of `universal-2d` or `universal-3d`, or
            coefficients of quadratic splines in the unit cube around the box, (*any shape), for all
            pairs.
        max_iterations: largest number of Newton steps in one run on a level; the coarsest level has
            a run for each blur of the densities.
        refine: whether the last level may have half the spacing of the grid.
        reach: length for densities of unequal mass, in units of the grid. Mass moves about this far
            at most; the rest grows or fades in place; at most 1000 times the longest side of the
            box. None for balanced transport of densities of mass one.
        growth: with a reach, "hellinger" for Gaussian–Hellinger transport, whose frames are
            cross-faded along the way, or "wfr" for geodesics of the Wasserstein–Fisher–Rao metric.
        time_limit: seconds for each pair after which the best potential so far is the result, which
            the report then calls not converged. None for no limit: the same result every time.
    """

    info = SolverInfo(
        name="midpoint",
        summary="1D to 3D, any two densities: zeros, shapes, noise; sharp frames, milliseconds",
        family="Newton",
        dimensions=(1, 2, 3),
        differentiable=ALL_QUANTITIES,
        periodic=True,
        tolerance="share of the mass that is not balanced at t = ½",
        menu=MenuEntry("Newton's method, without a network", dimensions=(2,)),
    )

    tolerance: float = 2e-3
    start: str | Tensor = "zero"
    max_iterations: int = 20
    refine: bool = True
    reach: float | None = None
    growth: str = "hellinger"
    time_limit: float | None = None

    def __post_init__(self) -> None:
        check_limits(self.tolerance, self.time_limit, self.max_iterations)
        if isinstance(self.start, str) and self.start not in ("zero", "network"):
            raise SolverError(
                f"start is {self.start!r}; give 'zero', 'network' or an array of coefficients."
            )
        check_reach(self.reach, self.growth)
        if self.reach is not None and isinstance(self.start, str) and self.start != "zero":
            raise SolverError(
                "The network solves balanced problems; with a reach give start='zero'."
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
        batch = solve_threaded(solve, len(source), source.grid.size)
        return batch if self.reach is None else UnbalancedBatch(batch.paths)

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
        reach = None
        if self.reach is not None:
            reach = scale_reach(self.reach, box.length)
            masses = [float(end.mass_tensor.detach()) for end in (source, target)]
            first, second = (
                values * (2 * mass / sum(masses))
                for values, mass in zip((first, second), masses, strict=True)
            )
        formulation = Formulation(source.grid.periodic, reach, as_growth(self.growth))
        newton = MultilevelNewton(
            self.tolerance,
            self.max_iterations,
            self.refine,
            threads_for(source.grid.size),
            self.time_limit,
            formulation,
        )
        if start is not None:
            return self.build_path(source, target, newton.solve(first, second, box.sides, start))
        roll = PeriodicRoll.centre(source.grid, source.tensor + target.tensor)
        result = newton.solve(roll.apply(first), roll.apply(second), box.sides)
        result = replace(result, coefficients=roll.undo(result.coefficients))
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
        if self.reach is not None:
            reach = float(self.reach)
            return UnbalancedGeodesic(
                source,
                target,
                self.name,
                info | {"reach": reach, "growth": self.growth},
                result.coefficients,
                result.residual,
                result.integrals,
                reach,
                as_growth(self.growth),
            )
        c = result.coefficients - result.coefficients.mean()  # the constant is free
        path = MidpointGeodesic(
            source, target, self.name, info, c, result.residual, result.integrals
        )
        if not result.converged and result.residual <= self.tolerance:
            info["converged"] = path.is_certified()  # only the effect on W2 was in doubt
        return path


def check_limits(tolerance: Any, time_limit: Any, max_iterations: Any = 1) -> None:
    """Raise SolverError unless Newton's method can run with these options."""
    if not (isinstance(tolerance, Real) and 0 < float(tolerance) < 1):
        raise SolverError(
            f"tolerance is {short_repr(tolerance)}; give a share of the mass in (0, 1)."
        )
    if not (isinstance(max_iterations, Integral) and int(max_iterations) >= 1):
        raise SolverError(
            f"max_iterations is {short_repr(max_iterations)}; give an integer of at least 1."
        )
    if time_limit is not None and not (isinstance(time_limit, Real) and float(time_limit) > 0):
        raise SolverError(f"time_limit is {short_repr(time_limit)}; give seconds above 0.")


def as_reach(reach: Any, without: str = WITHOUT_REACH) -> float:
    """Return a reach as a number; raise SolverError unless it is a finite length above zero.

    Args:
        reach: length in the units of the grid.
        without: the meaning of no reach; "" if one is required.
    """
    if is_number(reach) and 0 < reach < math.inf:
        return float(reach)
    other = f", or {without}" if without else ""
    raise SolverError(f"reach is {short_repr(reach)}; give a finite length above 0{other}.")


def scale_reach(reach: float, length: float, without: str = WITHOUT_REACH) -> float:
    """Return a reach relative to the longest side; raise SolverError if it is too long."""
    if reach > MAX_REACH * length:
        other = f", or {without}" if without else ""
        raise SolverError(
            f"reach is {reach:g}, more than {MAX_REACH:g} times the longest side of the box, "
            f"{length:g}; give a shorter one{other}."
        )
    return float(reach) / length


def check_reach(reach: float | None, growth: str) -> None:
    """Raise SolverError unless reach and growth can be used."""
    if growth not in get_args(Growth):
        choices = " or ".join(map(repr, get_args(Growth)))
        raise SolverError(f"growth is {growth!r}; give {choices}.")
    if reach is None and growth != "hellinger":
        raise SolverError(f"growth is {growth!r} without a reach; give reach=..., too.")
    if reach is not None:
        as_reach(reach)


def as_growth(growth: str) -> Growth:
    """Return a checked name of a model of growth."""
    return cast(Growth, growth)


def warn_unless_converged(path: Geodesic, tolerance: float) -> None:
    """Warn if the pair, or pairs of the batch, did not reach the tolerance."""
    pairs = path.paths if isinstance(path, BatchedGeodesic) else [path]
    missed = [k for k, pair in enumerate(pairs) if not pair.info.get("converged", True)]
    if not missed:
        return
    shares = [min(1.0, pairs[k].info["residual"]) for k in missed]
    subject, balance = pair_label() or "The pair", ""
    if path.batch:
        subject = f"Pairs {', '.join(map(str, missed[:5]))} of {len(pairs)}"
    else:
        balance = f" ({format_percent(shares[0])} of the mass is not balanced)"
    limit = f"the tolerance of {format_number(100 * tolerance)} %{balance}"
    reason = f"did not reach {limit}"
    if max(shares) <= tolerance:
        reason = f"is within {limit}, but has not converged: this mass may have to move far"
    remedy = "the report states how accurate the path is, and how to improve it"
    if pair_label() is not None:
        info = pairs[missed[0]].info
        remedy = "the result may be inaccurate; average the field to coarser cells"
        if "stopped after" in info:
            remedy = "the result may be inaccurate; give a longer time_limit"
        elif "reach" not in info:
            remedy += ", or give a reach=... of 10 to 25 cells"
    warnings.warn(
        f"{subject} {reason}; {remedy}.",
        ConvergenceWarning,
        stacklevel=user_stacklevel(),
    )
