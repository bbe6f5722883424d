"""Newton's method for W2 barycenters: all potentials at once, without inner transport problems.

Seen from the barycenter, the maps to the densities are T_i = y + ∇ψ_i with Σ w_i ψ_i = 0. They are
monotone and Σ w_i T_i = id, so that 0 ≤ DT_i ≤ 1/w_i: every ψ_i is C^{1,1}, whatever the densities
are. The dual value Σ w_i∫(½|∇ψ_i|² + ψ_i)ρ_i is largest if all pulled-back densities ρ_i agree;
then they are the barycenter. `system` has the equation and the linear system of a step.

With a reach the weighted densities agree, and the result is Σ w_i times the densities carried to
the barycenter: mass without a partner within reach stays, with its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from geonet.numerics.splines import prolong_spline
from geonet.solvers.newton.compiled import Formulation
from geonet.solvers.newton.iteration import (
    Budget,
    NewtonIteration,
    Problem,
    Solution,
)
from geonet.solvers.newton.system import NewtonSystem, ResidualIntegrals, unmatched_mass


@dataclass(frozen=True)
class BarycenterResult:
    """Potentials of a barycenter and the course of their iteration.

    Attributes:
        potentials: ψ_i in the unit cube, (N, *cells), double precision, on the cells of the
            densities or on halves of them.
        density: the barycenter on the densities' cells, of mass one, or of the mean mass with a
            reach.
        residual: Σ_i w_i Σ_k|∫B_k(ρ_i − ρ)|, the share of the mass that is not balanced.
        dual: dual value, half the objective.
        steps: per level, from coarse to fine: cells, Newton steps, conjugate gradient iterations.
        converged: whether the residual is at most the tolerance.
        timed_out: whether the time limit ended the iteration before it converged.
    """

    potentials: Tensor
    density: Tensor
    residual: float
    dual: float
    steps: tuple[tuple[str, int, int], ...]
    converged: bool
    timed_out: bool


@dataclass(frozen=True)
class BarycenterNewton:
    """The solver of one weight vector on the unit cube.

    Attributes:
        tolerance: residual at which the last level stops.
        max_iterations: largest number of Newton steps in one run on a level; the first level has
            several runs.
        refine: whether the last level may halve the cells of the densities.
        threads: largest number of threads.
        time_limit: seconds after which no step begins and the best potentials so far are returned.
    """

    tolerance: float = 1.5e-3
    max_iterations: int = 20
    refine: bool = True
    threads: int = 1
    time_limit: float | None = None

    def solve(
        self,
        densities: Tensor,
        weights: Tensor,
        sides: Sequence[float],
        *,
        periodic: Sequence[bool] = (),
        reach: float | None = None,
        start: Tensor | None = None,
    ) -> BarycenterResult:
        """Return the barycenter of densities.

        Args:
            densities: densities in the unit cube, (N, *cells): of mass one, with a reach of mean
                mass one.
            weights: weights above zero that sum to one, (N,).
            sides: side lengths of the box.
            periodic: whether each axis is periodic.
            reach: length in the unit cube; None for balanced transport.
            start: potentials of similar weights, (N, *any cells). If they are close enough, they
                replace all coarser levels.
        """
        formulation = Formulation(tuple(periodic), reach, weights=tuple(weights.tolist()))
        own = list(densities.double())
        problem = Problem(own, tuple(sides), Budget(self.time_limit), formulation)
        solution = None if start is None else self._warm_start(problem, start.double())
        if solution is None:
            solution = self._multilevel(problem)
        solution, system = self._complete(problem, *solution)
        return self._result(problem, solution, system)

    def _multilevel(self, problem: Problem) -> tuple[Solution, NewtonSystem]:
        """Solve roughly on the densities' own cells, from zero on the coarsest level."""
        levels, goal = problem.build_hierarchy(self.threads), self._coarse_goal(problem)
        fine = sum(max(shape) > problem.config.coarsest_cells for shape in levels.shapes)
        first = min(fine, len(levels.shapes) - 1)
        c = torch.zeros(len(problem.densities), *levels.shapes[first], dtype=torch.float64)
        for k in range(first, 0, -1):
            c = self._solve_level(
                *(problem, levels[k], c, goal),
                width=problem.config.coarse_width,
                is_first=k == first,
            ).coefficients
        system = levels[0]
        return self._solve_level(problem, system, c, goal, is_first=first == 0), system

    def _warm_start(self, problem: Problem, start: Tensor) -> tuple[Solution, NewtonSystem] | None:
        """Solve roughly from potentials of similar weights; None if they are not close enough."""
        assert problem.formulation.weights is not None
        system = problem.build_hierarchy(self.threads)[0]
        w = torch.tensor(problem.formulation.weights, dtype=torch.float64)
        c = _prolong(start, system.shape, problem.formulation)
        c = c - (w.reshape(-1, *(1,) * len(system.shape)) * c).sum(0)
        iteration = NewtonIteration(system, self.max_iterations, problem)
        residual, _ = iteration.evaluate(c, problem.densities, 0.0)
        if float(residual.abs().sum()) > problem.config.guess_residual:
            return None
        return self._solve_level(problem, system, c, self._coarse_goal(problem)), system

    def _solve_level(
        self,
        problem: Problem,
        system: NewtonSystem,
        c: Tensor,
        goal: float,
        width: float = 0.0,
        is_first: bool = False,
    ) -> Solution:
        """Solve one level; see `MultilevelNewton._solve_level`."""
        config, means = problem.config, problem.average(system.shape)
        c = _prolong(c, system.shape, problem.formulation)
        iteration = NewtonIteration(system, self.max_iterations, problem)
        for blur in config.first_blurs if is_first else ():
            blurred = problem.blur(means, blur, config.uniform_share)
            c = iteration.run(c, blurred, config.coarse_width, goal).coefficients
        solution = iteration.run(c, means, width, goal)
        problem.budget.steps.append(iteration.summary())
        return solution

    def _coarse_goal(self, problem: Problem) -> float:
        return max(problem.config.coarse_tolerance, self.tolerance)

    def _complete(
        self, problem: Problem, solution: Solution, system: NewtonSystem
    ) -> tuple[Solution, NewtonSystem]:
        """Solve to the tolerance, on halved cells if the densities have more detail than theirs."""
        config = problem.config
        is_small = problem.cells < config.small_grid
        detail = config.small_grid_mismatch if is_small else config.detail_mismatch
        cells = problem.cells << len(problem.shape)
        if self.refine and cells <= config.max_cells and not problem.budget.is_exhausted():
            _, mismatch = system.mean_density(solution.coefficients)
            if mismatch - solution.residual > detail:
                problem = problem.halve()
                system = problem.build_hierarchy(self.threads)[0]
        return self._solve_level(problem, system, solution.coefficients, self.tolerance), system

    def _result(
        self, problem: Problem, solution: Solution, system: NewtonSystem
    ) -> BarycenterResult:
        density, _ = system.mean_density(solution.coefficients)
        converged, late = solution.residual <= self.tolerance, problem.budget.is_exhausted()
        return BarycenterResult(
            solution.coefficients,
            _normalise(density, problem),
            solution.residual,
            _dual_value(solution, problem),
            tuple(problem.budget.steps),
            converged,
            late and not converged,
        )


def _prolong(c: Tensor, shape: Sequence[int], formulation: Formulation) -> Tensor:
    """Return potentials (N, *cells) on other cells."""
    return torch.stack([prolong_spline(own, shape, formulation.periodic) for own in c])


def _dual_value(solution: Solution, problem: Problem) -> float:
    """Return Σ w_i∫(½|∇ψ_i|² + ψ_i)ρ_i or, with a reach, λ Σ w_i(m_i − ∫ρ_i).

    The masses of balanced ρ_i differ slightly, so that constants in the ψ_i would matter; these
    potentials have mean zero.
    """
    weights, count = problem.formulation.weights, len(ResidualIntegrals._fields)
    assert weights is not None
    means = solution.coefficients.flatten(1).mean(1).tolist()
    total, volume = 0.0, math.prod(problem.sides)
    for k, (w, mean) in enumerate(zip(weights, means, strict=True)):
        own = ResidualIntegrals(*solution.values[k * count : (k + 1) * count])
        if problem.formulation.reach is None:
            total += w * (own.kinetic_energy / 2 + own.dual_term - mean * own.target_mass)
        else:
            mass = float(problem.densities[k].mean()) * volume
            lost = unmatched_mass(mass, own.target_mass, own.target_growth)
            total += w * problem.formulation.penalty * lost
    return total


def _normalise(density: Tensor, problem: Problem) -> Tensor:
    """Average over the densities' cells, and scale to the mean mass of the densities."""
    weights = problem.formulation.weights
    assert weights is not None
    parts = density.shape[0] // problem.shape[0]
    for axis, n in enumerate(problem.shape):
        density = density.unflatten(axis, (n, parts)).mean(axis + 1)
    density = density.clamp(min=0)
    mass = sum(w * float(v.mean()) for w, v in zip(weights, problem.densities, strict=True))
    return density * (mass / float(density.mean()))
