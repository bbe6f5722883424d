"""The potential at t = ½ of any two densities, by Newton's method from coarse to fine.

Every level solves the equation of `fields.elliptic` on densities averaged to its cells, from the
potential that the coarser level found. A step that does not lower the residual is taken again with
a floor λ that is five times higher (Levenberg, Marquardt). Where that does not help either,
densities are blurred and the blur is taken back: `LADDER`. At last the ends are what they were
given as, constant in each cell; nothing of blur or floor stays in the equation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from geonet._format import format_percent
from geonet._progress import report_progress
from geonet.grid import Grid
from geonet.numerics.interpolation import resample
from geonet.numerics.splines import refined, repeated
from geonet.solvers.newton.system import Elliptic, Levels, Totals, levels_on

# ---- Newton's steps on one grid, between two ends, until the residual is at its goal.


FLOOR, HIGHEST = 0.1, 30.0  # of A, relative to uniform
FINE, FINE_FLOOR = 0.002, 0.03  # where the residual is less, the floor may be less
RAISE, LOWER, FAST = (
    5.0,
    3.0,
    0.3,
)  # the floor after a failure and a success; a success that is fast
LOWERS = 0.95  # what a step must leave of the residual at most
INEXACT, ITERATIONS = 0.1, 40  # tolerance and most steps of the linear problem
LOST = 0.05  # of an end's mass: sums over half-cells are off by less

Solution = tuple[Tensor, float, Totals]  # a potential, its residual and its totals
Seen = tuple[Tensor, list[float]]  # what `look` gives


class Course:
    """What was done so far, and until when there is time.

    Attributes:
        steps: as `Found` has them.
    """

    def __init__(self, time_limit: float | None):
        self.steps: list[tuple[str, int, int]] = []
        self._end = math.inf if time_limit is None else monotonic() + time_limit

    def late(self) -> bool:
        """Whether the time is over."""
        return monotonic() >= self._end


class Walk:
    """Newton's steps on one level, counted and told.

    Attributes:
        attempt: the row of `LADDER`, from 1.
    """

    def __init__(self, equation: Elliptic, most: int, uniform: float, course: Course):
        self.equation, self.most, self.uniform, self.course = equation, most, uniform, course
        self.steps = self.iterations = 0
        self.attempt, self.cells = 1, "×".join(map(str, equation.shape))

    def __call__(
        self,
        c: Tensor,
        ends: Sequence[Tensor],
        softness: float,
        goal: float,
        seen: Seen | None = None,
    ) -> Solution:
        """Step until the residual is at the goal, or nothing lowers it.

        What the equation has `seen` of c between these ends need not be looked at again.
        """
        equation, floor = self.equation, FLOOR
        if seen is None:
            equation.between(ends[0], ends[1], softness)
            seen = equation.look(c)
        residual, totals = seen
        size = unbalanced(residual, totals)
        for _ in range(self.most):
            if size <= goal or floor > HIGHEST or self.course.late():
                break
            self._tell(size)
            step = equation.step_for(residual, floor * self.uniform, INEXACT, ITERATIONS)
            trial, found = equation.look(c + step)
            now = unbalanced(trial, found)
            self.steps += 1
            self.iterations += equation.iterations
            if now < LOWERS * size:
                least = FLOOR if now > FINE else FINE_FLOOR
                floor = max(least, floor / (LOWER if now > FAST * size else LOWER**3))
                c, residual, totals, size = c + step, trial, found, now
            else:  # the weights are now those of the trial
                floor *= RAISE
                residual, totals = equation.look(c)
        return c, size, Totals(*totals)

    def _tell(self, residual: float) -> None:
        again = f", attempt {self.attempt}" if self.attempt > 1 else ""
        report_progress(
            f"midpoint: {self.cells} cells{again}, Newton step {self.steps + 1}, "
            f"residual {format_percent(residual)}"
        )


def unbalanced(residual: Tensor, totals: Sequence[float]) -> float:
    """Σ|r_i|, and what both ends miss of their mass where the half-cells jump over it."""
    lost = sum(max(0.0, abs(1 - mass) - LOST) for mass in Totals(*totals)[1:3])
    return float(residual.abs().sum()) + lost


FIRST = 8  # cells along the longest axis of the coarsest level
COARSE = 0.02  # residual that is enough on levels that are not the last
NEAR, NEARER = 0.6, 0.3  # residual of a potential to start from, at most: on the same cells, others
STEPS = 20  # most steps between two ends
SHARED = 0.1  # uniform mass with which the first level begins
SOFT, SHARP = 1.0, 0.0  # least width in cells over which ends are averaged
LADDER = ((), (0.0,), (0.7, 0.0), (1.5, 0.7, 0.0))  # blurs in cells, until one row is enough
GAINS = 0.75  # of the residual: what a row must leave at most, for the next to be tried
HALF_DONE = 5e-3  # residual that is enough while densities are blurred
DETAIL = 0.2  # mismatch above which half the cells' spacing is worth its time,
DETAIL_OF_FEW, FEW = 0.1, 2048  # and where there are fewer cells, which cost little
FINEST = 2**20  # cells above which it is not
SHORT = 2.0  # cells: where W2 is less, so is a quarter of it
NOTHING = 1e-3  # cells: where W2 is less, the ends are equal
MOST_HALVINGS = 2  # of the cells' spacing


@dataclass(frozen=True)
class Found:
    """A potential, and how far Newton's method got.

    Attributes:
        coefficients: of the quadratic splines, (*cells), double precision; in the unit cube.
        residual: Σ_i|∫B_i(ρ1 − ρ0)|, the part of the mass that is not balanced, and what of both
            ends' mass is lost.
        totals: at the last level.
        steps: per level, from coarse to fine: cells, Newton's steps, steps of conjugate gradients.
        converged: whether the residual reached the tolerance.
        late: whether the time limit ended it.
    """

    coefficients: Tensor
    residual: float
    totals: Totals
    steps: tuple[tuple[str, int, int], ...]
    converged: bool
    late: bool


@dataclass(frozen=True)
class Newton:
    """How a pair is solved.

    Attributes:
        tolerance: of the residual.
        max_steps: of Newton's method on each level and for each blur.
        refine: whether levels may have a half and a quarter of the densities' spacing.
        threads: how many may work on it.
        time_limit: seconds after which no step begins; what is best then is the answer.
    """

    tolerance: float
    max_steps: int = STEPS
    refine: bool = True
    threads: int = 1
    time_limit: float | None = None

    def solved(
        self,
        source: Tensor,
        target: Tensor,
        sides: Sequence[float],
        start: Tensor | Start | None = None,
    ) -> Found:
        """The potential of densities (*cells) in the unit cube, in a box with these sides.

        A potential to start from, (*other cells), replaces all levels that are coarser than it, if
        it is near enough; one that knows finer ones is asked for them where they are wanted.
        """
        ends, course = [source.double(), target.double()], Course(self.time_limit)
        begun = start if start is None or not isinstance(start, Tensor) else Start(start)
        solution = None if begun is None else self._from_start(ends, sides, begun, course)
        if solution is None:
            begun, solution = None, self._from_zero(ends, sides, course)
        halvings = _halvings(source.shape, solution[0].shape)
        fine, cell = _halved(ends, halvings), max(sides) / max(source.shape)
        for times in range(halvings + 1, MOST_HALVINGS + 1):
            more = self._may_refine(source.shape, times) and not course.late()
            if not (more and wants_more(solution[2], cell, times, source.numel())):
                break
            fine = _halved(fine, 1)
            equation = levels_on(fine[0].shape, sides, self.threads).at(0)
            solution = self._level(
                equation, solution[0], fine, sides, True, False, math.inf, course
            )
        c, residual, totals = solution
        enough, late = residual <= 2 * self.tolerance, course.late()
        found = Found(c, residual, totals, tuple(course.steps), enough, late and not enough)
        if begun is None or enough or late:
            return found
        again = self.solved(source, target, sides)
        return again if again.residual < residual else found

    def _from_zero(
        self, ends: Sequence[Tensor], sides: Sequence[float], course: Course
    ) -> Solution:
        """The potential on the densities' own cells, level by level."""
        levels = levels_on(ends[0].shape, sides, self.threads)
        shapes = [shape for shape in levels.shapes if max(shape) > FIRST]
        order = list(range(min(len(shapes), len(levels.shapes) - 1), -1, -1))
        c = torch.zeros(levels.shapes[order[0]], dtype=torch.float64)
        return self._levels(levels, order, c, ends, sides, True, course)

    def _from_start(
        self,
        ends: Sequence[Tensor],
        sides: Sequence[float],
        start: Start,
        course: Course,
    ) -> Solution | None:
        """The same from a potential, or from a finer one; None if it is not near enough."""
        c = start.coefficients.double()
        if c.shape != ends[0].shape:
            levels = levels_on(ends[0].shape, sides, self.threads)
            fine = [k for k, shape in enumerate(levels.shapes) if max(shape) >= max(c.shape)] or [0]
            if not self._is_near(levels.at(fine[-1]), c, ends, sides):
                return None
            return self._levels(levels, fine[::-1], c, ends, sides, False, course)
        place = self._finest(ends, sides, start)
        if unbalanced(*place.seen) > NEAR:
            return None
        wish = self._wish(place.c.shape, ends[0].numel())
        known = place.equation, place.c, place.ends, sides, True, False, wish, course, place.seen
        return self._level(*known)

    def _finest(self, ends: Sequence[Tensor], sides: Sequence[float], start: Start) -> _Place:
        """A potential on the densities' cells; finer ones where they lack detail and that helps."""
        best: _Place | None = None
        for halvings in range(MOST_HALVINGS + 1):
            c = start.coefficients.double()
            equation = levels_on(c.shape, sides, self.threads).at(0)
            equation.between(ends[0], ends[1], SHARP)
            place = _Place(equation, c, ends, equation.look(c))
            totals = Totals(*place.seen[1])
            if best is not None and totals.distance <= Totals(*best.seen[1]).distance:
                break
            best = place
            if halvings == MOST_HALVINGS or not self._may_refine(c.shape, 1):
                break
            lacks = lacks_detail(totals, unbalanced(*place.seen), sides, c.shape, halvings)
            finer = start.finer() if lacks else None
            if finer is None:
                break
            start, ends = finer, _halved(ends, 1)
        assert best is not None
        return best

    def _levels(
        self,
        levels: Levels,
        order: Sequence[int],
        c: Tensor,
        ends: Sequence[Tensor],
        sides: Sequence[float],
        from_zero: bool,
        course: Course,
    ) -> Solution:
        """From level to level in this order; the last is number 0."""
        solution = None
        for k in order:
            begins = from_zero and k == order[0]
            wish = self._wish(ends[0].shape, ends[0].numel()) if k == 0 else math.inf
            solution = self._level(levels.at(k), c, ends, sides, k == 0, begins, wish, course)
            c = solution[0]
        assert solution is not None
        return solution

    def polished(
        self, source: Tensor, target: Tensor, sides: Sequence[float], start: Start
    ) -> Found:
        """At most `max_steps` steps in all, from a potential on the densities' cells.

        Or from a finer one, where that is wanted and its dual value is higher.
        """
        course, ends = Course(self.time_limit), [source.double(), target.double()]
        equation, c, ends, seen = self._finest(ends, sides, start)
        walk = Walk(equation, self.max_steps, 1 / math.prod(sides), course)
        c, residual, totals = walk(c, ends, SHARP, self.tolerance, seen)
        steps = ((walk.cells, walk.steps, walk.iterations),)
        enough, late = residual <= 2 * self.tolerance, course.late()
        return Found(c, residual, totals, steps, enough, late and not enough)

    def _wish(self, shape: Sequence[int], cells: int) -> float:
        """The mismatch above which a potential's cells (*shape) are left for smaller ones.

        Args:
            shape: of the potential.
            cells: of a density.
        """
        return detail_of(cells) if self._may_refine(shape, 1) else math.inf

    def _may_refine(self, shape: Sequence[int], times: int) -> bool:
        return self.refine and math.prod(shape) * 2 ** (times * len(shape)) <= FINEST

    def _is_near(
        self, equation: Elliptic, start: Tensor, ends: Sequence[Tensor], sides: Sequence[float]
    ) -> bool:
        """Whether a potential balances most of the mass; others are worse than none."""
        source, target = (_averaged(end, equation.shape, sides) for end in ends)
        equation.between(source, target, SOFT)
        residual, _ = equation.look(refined(start.double(), equation.shape))
        return float(residual.abs().sum()) < NEARER

    def _level(
        self,
        equation: Elliptic,
        c: Tensor,
        ends: Sequence[Tensor],
        sides: Sequence[float],
        last: bool,
        first: bool,
        enough: float,
        course: Course,
        seen: Seen | None = None,
    ) -> Solution:
        """The potential on one level, its residual and totals, from one on any cells.

        A mismatch above `enough` is left to a finer level. On the last level the equation may have
        looked at the potential already, and have `seen` it.
        """
        c = refined(c, equation.shape)
        means = [_averaged(end, equation.shape, sides) for end in ends]
        goal = self.tolerance if last else max(COARSE, self.tolerance)
        walk = Walk(equation, self.max_steps, 1 / math.prod(sides), course)
        if first:
            uniform = 1 / math.prod(sides)
            mixed = [(1 - SHARED) * mean + SHARED * uniform for mean in means]
            c, _, _ = walk(c, mixed, SOFT, goal)
        best: Solution | None = None
        for height, rung in enumerate(LADDER):
            now, walk.attempt = c, height + 1
            for blur in rung:
                blurred = [_blurred(mean, blur) for mean in means]
                now, _, _ = walk(now, blurred, SOFT, max(goal, HALF_DONE))
            found = walk(now, means, SHARP if last else SOFT, goal, None if height else seen)
            gained = best is None or found[1] < GAINS * best[1]
            if best is None or found[1] < best[1]:
                best = found
            if best[1] <= 2 * goal or best[2].mismatch > enough or (height > 1 and not gained):
                break
            if course.late():
                break
        assert best is not None
        course.steps.append((walk.cells, walk.steps, walk.iterations))
        return best


class _Place(NamedTuple):
    """Where Newton's method begins: an equation that has `seen` c between ends (*cells)."""

    equation: Elliptic
    c: Tensor
    ends: Sequence[Tensor]
    seen: Seen


class Start:
    """A potential to start from.

    Attributes:
        coefficients: of splines, (*any cells), in the unit cube.
    """

    def __init__(self, coefficients: Tensor):
        self.coefficients = coefficients

    def finer(self) -> Start | None:
        """One on cells of half the side, or None if none is known."""
        return None


def detail_of(cells: int) -> float:
    """The mismatch above which a density's cells, so many, are worth being halved."""
    return DETAIL_OF_FEW if cells < FEW else DETAIL


def wants_more(totals: Totals, cell: float, times: int, cells: int) -> bool:
    """Whether a pair has detail, or a distance, that wants smaller cells a first or second time.

    Args:
        totals: of the potential so far.
        cell: the side of a density's cell.
        times: a first or a second.
        cells: of a density.
    """
    if NOTHING * cell < totals.distance < SHORT * cell / (2 * times):
        return True
    return totals.mismatch > detail_of(cells) and (times == 1 or totals.distance < SHORT * cell)


def lacks_detail(
    totals: Totals, unbalanced: float, sides: Sequence[float], shape: Sequence[int], halvings: int
) -> bool:
    """Whether cells (*shape), halved so often already, are too large for a pair.

    Of what does not match halfway, smaller cells mend what the potential on these cannot balance.
    """
    cell = (max(sides) / max(shape)) * 2**halvings
    left = totals._replace(mismatch=totals.mismatch - unbalanced)
    return wants_more(left, cell, halvings + 1, math.prod(shape) >> (halvings * len(shape)))


def _halvings(shape: Sequence[int], finer: Sequence[int]) -> int:
    """How often cells of a shape are halved for a finer one; 0 for any other."""
    halvings = max(0, round(math.log2(max(finer) / max(shape))))
    same = tuple(n << halvings for n in shape) == tuple(finer)
    return halvings if same else 0


def _halved(ends: Sequence[Tensor], halvings: int) -> list[Tensor]:
    """Densities on cells that are halved so often."""
    return [repeated(end, [n << halvings for n in end.shape]) for end in ends]


def _averaged(values: Tensor, shape: Sequence[int], sides: Sequence[float]) -> Tensor:
    """Means over the cells of a coarser grid."""
    if tuple(values.shape) == tuple(shape):
        return values
    return resample(values, Grid(values.shape, 0.0, sides), Grid(shape, 0.0, sides))


def _blurred(values: Tensor, cells: float) -> Tensor:
    return torch.from_numpy(gaussian_filter(values.numpy(), cells, mode="reflect"))
