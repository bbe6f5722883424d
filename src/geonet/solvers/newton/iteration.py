"""Multilevel Newton iteration for the potential at t = ½.

Every level solves the equation of `system` for densities averaged to its cells, from the potential
of the next coarser level. If the cells of the densities are too large for the potential, the last
levels have halved cells. A step that does not lower the residual is repeated with a larger
Levenberg–Marquardt damping.

Quadrature changes the masses of both densities halfway by some thousandths, and no potential could
balance different masses. So the iteration scales the densities until their masses are one. With a
reach masses may differ, and nothing is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import NamedTuple

import torch
from torch import Tensor

from geonet._progress import report_progress
from geonet.grid import Grid
from geonet.numerics.interpolation import resample
from geonet.numerics.splines import Periodic, is_periodic, prolong_spline, repeat_cells
from geonet.solvers.newton.compiled import BALANCED_PAIR, Formulation
from geonet.solvers.newton.system import (
    Hierarchy,
    NewtonSystem,
    ResidualIntegrals,
    bound_rebalancing,
    build_hierarchy,
)


@dataclass(frozen=True)
class NewtonConfig:
    """Tuning parameters of the iteration; residuals are shares of the mass."""

    damping: float = 0.1  # first and smallest damping λ, relative to the uniform density
    local_damping: float = 10.0  # ratio to λ of the damping by the residual nearby
    max_damping: float = 30.0  # damping above which the iteration stops
    fine_residual: float = 0.002  # residual below which the damping may be smaller
    fine_damping: float = 0.03  # smallest damping below this residual
    damping_increase: float = 5.0  # factor of the damping after a failed step
    damping_decrease: float = 3.0  # divisor after a successful step; cubed after a fast one
    fast_reduction: float = 0.3  # ratio of residuals below which a step is fast
    sufficient_reduction: float = 0.95  # ratio of residuals above which a step has failed
    linear_tolerance: float = 0.1  # relative residual of the linear system
    linear_iterations: int = 40  # largest number of conjugate gradient iterations
    coarsest_cells: int = 8  # cells along the longest axis of the coarsest level
    coarse_tolerance: float = 0.02  # residual at which levels before the last one stop
    halving_residual: float = 0.1  # residual at which cells are halved
    coarse_width: float = 1.0  # width in cells of averages before the last level
    # standard deviations in cells of the blurs with which the coarsest level is solved first
    first_blurs: tuple[float, ...] = (3.0, 1.5, 0.7, 0.0)
    uniform_share: float = 0.1  # uniform mass in the blurred densities
    guess_residual: float = 0.25  # largest residual of a usable guess on the densities' cells
    resampled_guess_residual: float = 0.3  # largest residual of a usable guess on other cells
    mass_tolerance: float = 0.05  # error of quadrature that may change a mass
    detail_mismatch: float = 0.2  # unresolved mismatch above which cells are halved
    small_grid: int = 2048  # cells up to which a grid counts as small
    small_grid_mismatch: float = 0.1  # the same for small grids
    short_distance: float = 1.0  # W2 in cells below which cells are halved; half of it for twice
    zero_distance: float = 1e-3  # W2 in cells below which densities count as equal
    max_halvings: int = 2  # largest number of halvings of the cells
    max_cells: int = 2**20  # largest number of cells after halving
    rebalancing_share: float = 0.3  # cost of rebalancing over W2² at which the last level stops


DEFAULT_CONFIG = NewtonConfig()
# With a reach the system is better conditioned, and the first level needs no blurred densities.
REACH_CONFIG = NewtonConfig(local_damping=3.0, coarse_tolerance=0.004, first_blurs=(0.0,))
# Many weights are small, so that the same damping would dominate the system.
WFR_CONFIG = NewtonConfig(damping=0.01, coarse_tolerance=0.008, first_blurs=(0.0,))


def choose_config(formulation: Formulation) -> NewtonConfig:
    """Return the tuning parameters for a formulation."""
    if formulation.reach is None:
        return DEFAULT_CONFIG
    return WFR_CONFIG if formulation.growth == "wfr" else REACH_CONFIG


@dataclass(frozen=True)
class NewtonResult:
    """A potential and the course of its iteration.

    Attributes:
        coefficients: spline coefficients in the unit cube, (*cells), double precision.
        residual: Σ_i|∫B_i(ρ1 − ρ0)|, the share of the mass that is not balanced, plus lost mass.
        integrals: integrals on the last level.
        steps: per level, from coarse to fine: cells, Newton steps, conjugate gradient iterations.
        converged: True if the residual is at most the tolerance, and hardly matters for W2.
        timed_out: True if the time limit ended the iteration before it converged.
    """

    coefficients: Tensor
    residual: float
    integrals: ResidualIntegrals
    steps: tuple[tuple[str, int, int], ...]
    converged: bool
    timed_out: bool


class InitialGuess:
    """A potential from which the iteration starts.

    Attributes:
        coefficients: spline coefficients in the unit cube, (*any cells).
    """

    def __init__(self, coefficients: Tensor):
        self.coefficients = coefficients

    def refine(self) -> InitialGuess | None:
        """Return a better guess on cells of half the side, or None; `polish` asks for it."""
        return None


@dataclass(frozen=True)
class MultilevelNewton:
    """The solver of one pair on the unit cube.

    Attributes:
        tolerance: residual at which the last level stops.
        max_iterations: largest number of Newton steps in one run on a level; the first level has
            several runs.
        refine: whether the last levels may halve the cells of the densities.
        threads: largest number of threads.
        time_limit: seconds after which no step begins and the best potential so far is returned.
        formulation: boundary and growth.
    """

    tolerance: float
    max_iterations: int = 20
    refine: bool = True
    threads: int = 1
    time_limit: float | None = None
    formulation: Formulation = BALANCED_PAIR

    def solve(
        self,
        source: Tensor,
        target: Tensor,
        sides: Sequence[float],
        start: Tensor | InitialGuess | None = None,
    ) -> NewtonResult:
        """Return the potential between two densities.

        Args:
            source: density in the unit cube, (*cells).
            target: likewise.
            sides: side lengths of the box.
            start: initial guess. If it is close enough, it replaces all coarser levels; if the
                solution from it does not converge, the better one of it and a solution from zero
                is returned.
        """
        problem = self._problem(source, target, sides)
        guess = InitialGuess(start) if isinstance(start, Tensor) else start
        solution = None if guess is None else self._warm_start(problem, guess)
        if solution is None:
            guess, solution = None, self._multilevel(problem)
        solution = self._halve_while_needed(problem, solution)
        result = self._result(problem.budget, solution)
        if guess is None or result.converged or result.timed_out:
            return result
        again = replace(self, time_limit=problem.budget.seconds_left)
        from_zero = again.solve(source, target, sides)
        is_better = from_zero.converged or from_zero.residual < result.residual
        return from_zero if is_better else replace(result, timed_out=from_zero.timed_out)

    def polish(
        self, source: Tensor, target: Tensor, sides: Sequence[float], guess: InitialGuess
    ) -> NewtonResult:
        """Return a guess on the densities' cells after at most `max_iterations` steps in all.

        The guess is refined first, if the pair needs that and it raises the dual value.
        """
        state = self._choose_resolution(self._problem(source, target, sides), guess)
        problem = state.problem
        iteration = NewtonIteration(state.system, self.max_iterations, problem)
        solution = iteration.run(
            state.coefficients, problem.densities, 0.0, self.tolerance, state.evaluation
        )
        problem.budget.steps.append(iteration.summary())
        return self._result(problem.budget, solution)

    def _problem(self, source: Tensor, target: Tensor, sides: Sequence[float]) -> Problem:
        densities = source.double(), target.double()
        return Problem(densities, tuple(sides), Budget(self.time_limit), self.formulation)

    def _result(self, budget: Budget, solution: Solution) -> NewtonResult:
        converged = solution.residual <= self.tolerance and solution.rebalancing <= 1
        late = budget.is_exhausted()
        return NewtonResult(
            solution.coefficients,
            solution.residual,
            solution.integrals,
            tuple(budget.steps),
            converged,
            late and not converged,
        )

    def _multilevel(self, problem: Problem) -> Solution:
        """Solve on the densities' own cells, from zero on the coarsest level."""
        levels = problem.build_hierarchy(self.threads)
        fine = sum(max(shape) > problem.config.coarsest_cells for shape in levels.shapes)
        first = min(fine, len(levels.shapes) - 1)
        c = torch.zeros(levels.shapes[first], dtype=torch.float64)
        return self._descend(problem, levels, first, c, from_zero=True)

    def _warm_start(self, problem: Problem, guess: InitialGuess) -> Solution | None:
        """Solve from a guess; return None if it is not close enough."""
        c = guess.coefficients.double()
        if self.formulation.reach is None:  # masses differ slightly: a constant would matter
            c = c - c.mean()
        if c.shape == problem.shape:
            state = self._evaluate(problem, c)
            if state.residual > problem.config.guess_residual:
                return None
            return self._solve_level(
                problem,
                state.system,
                c,
                needs_halving=self._halving_test(problem, 1),
                evaluation=state.evaluation,
            )
        levels = problem.build_hierarchy(self.threads)
        finer = [k for k, shape in enumerate(levels.shapes) if max(shape) >= max(c.shape)] or [0]
        if not self._start_is_close(problem, levels[finer[-1]], c):
            return None
        return self._descend(problem, levels, finer[-1], c, from_zero=False)

    def _choose_resolution(self, problem: Problem, guess: InitialGuess) -> _LevelState:
        """Refine a guess while the pair needs it and the dual value rises."""
        best = self._evaluate(problem, guess.coefficients.double())
        for times in range(1, problem.config.max_halvings + 1):
            if not self._halving_test(problem, times)(best.integrals, best.residual):
                break
            finer = guess.refine()
            if finer is None:
                break
            guess = finer
            state = self._evaluate(problem.halve(times), guess.coefficients.double())
            if state.integrals.distance <= best.integrals.distance:
                break
            best = state
        return best

    def _evaluate(self, problem: Problem, c: Tensor) -> _LevelState:
        """Evaluate the equation at a potential on the densities' cells."""
        hierarchy = build_hierarchy(c.shape, problem.sides, self.threads, self.formulation)
        system = hierarchy[0]
        system.set_densities(problem.densities, 0.0)
        return _LevelState(problem, system, c, system.evaluate(c))

    def _descend(
        self, problem: Problem, levels: Hierarchy, first: int, c: Tensor, from_zero: bool
    ) -> Solution:
        """Solve level by level, from `first` to the finest, which has the densities' cells."""
        for k in range(first, 0, -1):
            begins = from_zero and k == first
            c = self._solve_level(problem, levels[k], c, is_last=False, is_first=begins)[0]
        begins, needs_halving = from_zero and first == 0, self._halving_test(problem, 1)
        return self._solve_level(
            problem, levels[0], c, is_first=begins, needs_halving=needs_halving
        )

    def _solve_level(
        self,
        problem: Problem,
        system: NewtonSystem,
        c: Tensor,
        *,
        is_last: bool = True,
        is_first: bool = False,
        needs_halving: HalvingTest | None = None,
        evaluation: Evaluation | None = None,
    ) -> Solution:
        """Solve one level.

        Args:
            problem: the pair.
            system: the equation of the level.
            c: potential to start from, on any cells.
            is_last: whether it is solved to the tolerance, with densities that are not averaged.
            is_first: whether it starts from zero, with blurred densities.
            needs_halving: whether cells will be halved. Then the densities are averaged, as on
                coarser levels: their details would fold the maps.
            evaluation: the equation at c, if `system` has evaluated it already.
        """
        config, width = problem.config, 0.0 if is_last else problem.config.coarse_width
        c = prolong_spline(c, system.shape, self.formulation.periodic)
        means = problem.average(system.shape)
        goal = self.tolerance if is_last else max(config.coarse_tolerance, self.tolerance)
        iteration = NewtonIteration(system, self.max_iterations, problem)
        for blur in config.first_blurs if is_first else ():
            blurred = problem.blur(means, blur, config.uniform_share)
            c = iteration.run(c, blurred, config.coarse_width, goal).coefficients
        if needs_halving is not None:
            evaluation = evaluation or iteration.evaluate(c, means, width)
            size = unbalanced_mass(evaluation[0], list_masses(evaluation[1], self.formulation))
            if needs_halving(ResidualIntegrals(*evaluation[1]), size):
                c = iteration.run(c, means, config.coarse_width, config.coarse_tolerance)[0]
                evaluation = None
        solution = iteration.run(c, means, width, goal, evaluation, needs_halving)
        problem.budget.steps.append(iteration.summary())
        return solution

    def _halve_while_needed(self, problem: Problem, solution: Solution) -> Solution:
        """Solve again on halved cells while the pair has more detail than the cells."""
        fine = problem
        for times in range(1, problem.config.max_halvings + 1):
            needs_halving = self._halving_test(problem, times)(
                solution.integrals, solution.residual
            )
            if not needs_halving or problem.budget.is_exhausted():
                break
            fine = fine.halve()
            system = fine.build_hierarchy(self.threads)[0]
            solution = self._solve_level(
                fine,
                system,
                solution.coefficients,
                needs_halving=self._halving_test(problem, times + 1),
            )
        return solution

    def _start_is_close(self, problem: Problem, system: NewtonSystem, start: Tensor) -> bool:
        """Return whether a potential balances most of the mass; others are worse than zero."""
        system.set_densities(problem.average(system.shape), problem.config.coarse_width)
        start = prolong_spline(start.double(), system.shape, self.formulation.periodic)
        residual, _ = system.evaluate(start)
        return float(residual.abs().sum()) < problem.config.resampled_guess_residual

    def _halving_test(self, problem: Problem, times: int) -> HalvingTest:
        """Return the test whether cells should be halved for the first or second time."""
        config, cell = problem.config, problem.cell
        is_small = problem.cells < config.small_grid
        detail = config.small_grid_mismatch if is_small else config.detail_mismatch
        cells = problem.cells << times * len(problem.shape)
        can_halve = self.refine and times <= config.max_halvings and cells <= config.max_cells

        def needs_halving(integrals: ResidualIntegrals, residual: float) -> bool:
            distance, unresolved = integrals.distance, integrals.mismatch - residual
            is_short = config.zero_distance < distance / cell < config.short_distance / times
            is_short = is_short and self.formulation.reach is None  # growth dominates the cost
            return can_halve and (is_short or (times == 1 and unresolved > detail))

        return needs_halving


class NewtonIteration:
    """Damped Newton steps on one level."""

    def __init__(self, system: NewtonSystem, max_iterations: int, problem: Problem):
        self.system, self.max_iterations = system, max_iterations
        self.uniform, self.budget, self.config = problem.uniform, problem.budget, problem.config
        self.steps = self.linear_iterations = 0
        self.cells = "×".join(map(str, system.shape))

    def run(
        self,
        c: Tensor,
        densities: Sequence[Tensor],
        min_width: float,
        goal: float,
        evaluation: Evaluation | None = None,
        needs_halving: HalvingTest | None = None,
    ) -> Solution:
        """Iterate until the residual is at most `goal`, or no step lowers it.

        On the last level, rebalancing the residual must not cost too much, either.

        Args:
            c: potential to start from.
            densities: source and target.
            min_width: see `NewtonSystem.set_densities`; zero on the last level.
            goal: residual to reach.
            evaluation: the equation at c, if the system has evaluated it for these densities.
            needs_halving: if it holds, the residual of `halving_residual` is enough.
        """
        system, config, damping = self.system, self.config, self.config.damping
        residual, integrals = evaluation or self.evaluate(c, densities, min_width)
        size = self._measure(residual, integrals)
        is_pair = system.formulation.reach is None and system.formulation.weights is None
        is_last = is_pair and min_width == 0
        for _ in range(self.max_iterations):
            if damping > config.max_damping or self.budget.is_exhausted():
                break
            if size <= goal and (not is_last or self._rebalance(residual, integrals) <= 1):
                break
            if (
                needs_halving is not None
                and size <= config.halving_residual
                and needs_halving(ResidualIntegrals(*integrals), size)
            ):
                break
            self._report(size)
            step = system.compute_step(
                residual,
                damping * self.uniform,
                config.linear_tolerance,
                config.linear_iterations,
                damping * config.local_damping,
            )
            self._normalise_masses(integrals)
            trial, trial_integrals = system.evaluate(c + step)
            trial_size = self._measure(trial, trial_integrals)
            self.steps += 1
            self.linear_iterations += system.iterations
            if trial_size < config.sufficient_reduction * size:
                is_fine = trial_size <= config.fine_residual
                is_fast = trial_size <= config.fast_reduction * size
                damping = max(
                    config.fine_damping if is_fine else config.damping,
                    damping / config.damping_decrease ** (3 if is_fast else 1),
                )
                c, residual, integrals, size = c + step, trial, trial_integrals, trial_size
            else:
                damping *= config.damping_increase
                residual, integrals = system.evaluate(c)  # restores the weights of c
                size = self._measure(residual, integrals)
        rebalancing = self._rebalance(residual, integrals) if is_last and size <= goal else 0.0
        return Solution(c, size, integrals, rebalancing)

    def _rebalance(self, residual: Tensor, integrals: Sequence[float]) -> float:
        """Return the cost of rebalancing the residual, relative to the largest that is allowed."""
        step, config = self.system.step, self.config
        distance = ResidualIntegrals(*integrals).distance
        allowed = config.rebalancing_share * distance**2 + (config.zero_distance * max(step)) ** 2
        return bound_rebalancing(residual, step) / allowed

    def evaluate(self, c: Tensor, densities: Sequence[Tensor], min_width: float) -> Evaluation:
        """Evaluate the equation for these densities."""
        self.system.set_densities(densities, min_width)
        return self.system.evaluate(c)

    def _measure(self, residual: Tensor, integrals: Sequence[float]) -> float:
        return unbalanced_mass(residual, list_masses(integrals, self.system.formulation))

    def _normalise_masses(self, integrals: Sequence[float]) -> None:
        """Scale the densities so that their masses at the last potential are one.

        If a mass is far from one, the potential is the cause, and must change.
        """
        masses = list_masses(integrals, self.system.formulation)
        if masses and max(abs(1 - mass) for mass in masses) < self.config.mass_tolerance:
            self.system.scale_densities([1 / mass for mass in masses])

    def summary(self) -> tuple[str, int, int]:
        """Return cells, Newton steps and conjugate gradient iterations so far."""
        return self.cells, self.steps, self.linear_iterations

    def _report(self, residual: float) -> None:
        name = "midpoint" if self.system.formulation.weights is None else "barycenter"
        report_progress(
            f"{name}: {self.cells} cells, Newton step {self.steps + 1}, "
            f"residual {100 * residual:.3g} %"
        )


class Budget:
    """Iteration log and deadline of one solve.

    Attributes:
        steps: entries of `NewtonResult.steps`.
    """

    def __init__(self, time_limit: float | None):
        self.steps: list[tuple[str, int, int]] = []
        self._end = math.inf if time_limit is None else monotonic() + time_limit

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds that are left; None without a limit."""
        return None if self._end == math.inf else max(0.0, self._end - monotonic())

    def is_exhausted(self) -> bool:
        """Return whether the time limit has passed."""
        return monotonic() >= self._end


def list_masses(integrals: Sequence[float], formulation: Formulation) -> list[float]:
    """Return the masses of the densities at a potential that should be one; none with a reach."""
    if formulation.reach is not None:
        return []
    if formulation.weights is None:
        return list(integrals[1:3])
    return list(integrals[2 :: len(ResidualIntegrals._fields)])


def unbalanced_mass(
    residual: Tensor,
    masses: Sequence[float],
    mass_tolerance: float = DEFAULT_CONFIG.mass_tolerance,
) -> float:
    """Return Σ|r_i| plus the mass that densities lose between quadrature points.

    Quadrature alone changes masses by less than `mass_tolerance`, which does not count.
    """
    lost = sum(max(0.0, abs(1 - mass) - mass_tolerance) for mass in masses)
    return float(residual.abs().sum()) + lost


Evaluation = tuple[Tensor, list[float]]  # residual and integrals of NewtonSystem.evaluate
HalvingTest = Callable[[ResidualIntegrals, float], bool]  # from integrals and residual


class Solution(NamedTuple):
    """A potential on one level with its residual and the integrals of `NewtonSystem.evaluate`.

    On the last level, `rebalancing` is the cost of rebalancing a residual that reached its goal,
    relative to the largest that is allowed.
    """

    coefficients: Tensor
    residual: float
    values: list[float]
    rebalancing: float = 0.0

    @property
    def integrals(self) -> ResidualIntegrals:
        """Integrals of a pair."""
        return ResidualIntegrals(*self.values)


class Problem(NamedTuple):
    """Densities (*shape) on a box, and the budget of their solve."""

    densities: Sequence[Tensor]
    sides: tuple[float, ...]
    budget: Budget
    formulation: Formulation

    @property
    def shape(self) -> torch.Size:
        return self.densities[0].shape

    @property
    def cells(self) -> int:
        return self.densities[0].numel()

    @property
    def cell(self) -> float:
        """Side length of a cell."""
        return max(self.sides) / max(self.shape)

    @property
    def config(self) -> NewtonConfig:
        """Tuning parameters."""
        return choose_config(self.formulation)

    @property
    def uniform(self) -> float:
        """Value of the uniform density."""
        return 1 / math.prod(self.sides)

    def build_hierarchy(self, threads: int) -> Hierarchy:
        """Return the Newton systems on the cells of the densities and all coarser ones."""
        return build_hierarchy(self.shape, self.sides, threads, self.formulation)

    def halve(self, times: int = 1) -> Problem:
        """Return the same densities on cells that are halved this many times."""
        shape = [n << times for n in self.shape]
        return self._replace(densities=[repeat_cells(values, shape) for values in self.densities])

    def average(self, shape: Sequence[int]) -> list[Tensor]:
        """Return the densities averaged over the cells of a coarser grid."""
        if tuple(self.shape) == tuple(shape):
            return list(self.densities)
        own, coarse = Grid(self.shape, 0.0, self.sides), Grid(shape, 0.0, self.sides)
        return [resample(values, own, coarse) for values in self.densities]

    def blur(self, densities: Sequence[Tensor], cells: float, uniform_share: float) -> list[Tensor]:
        """Convolve with a Gaussian of this standard deviation, and mix with uniform densities."""
        from scipy.ndimage import gaussian_filter  # which is not needed for most pairs

        mode = _filter_modes(self.formulation.periodic, len(self.shape))
        blurred = [
            torch.from_numpy(gaussian_filter(values.numpy(), cells, mode=mode))  # pyright: ignore
            for values in densities
        ]
        return [torch.lerp(values, values.mean(), uniform_share) for values in blurred]


def _filter_modes(periodic: Periodic, d: int) -> list[str]:
    """Return the names of the boundaries for SciPy's filters."""
    return ["wrap" if is_periodic(periodic, axis) else "reflect" for axis in range(d)]


class _LevelState(NamedTuple):
    """A potential with the equation at it, which its system has evaluated last."""

    problem: Problem
    system: NewtonSystem
    coefficients: Tensor
    evaluation: Evaluation

    @property
    def integrals(self) -> ResidualIntegrals:
        return ResidualIntegrals(*self.evaluation[1])

    @property
    def residual(self) -> float:
        residual, integrals = self.evaluation
        return unbalanced_mass(residual, list_masses(integrals, self.system.formulation))
