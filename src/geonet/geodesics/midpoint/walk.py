"""Newton's steps on one grid, between two ends, until the residual is at its goal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import monotonic

from torch import Tensor

from geonet.fields.elliptic import Elliptic, Totals
from geonet.progress import tell
from geonet.wording import percent

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
        tell(
            f"midpoint: {self.cells} cells{again}, Newton step {self.steps + 1}, "
            f"residual {percent(residual)}"
        )


def unbalanced(residual: Tensor, totals: Sequence[float]) -> float:
    """Σ|r_i|, and what both ends miss of their mass where the half-cells jump over it."""
    lost = sum(max(0.0, abs(1 - mass) - LOST) for mass in Totals(*totals)[1:3])
    return float(residual.abs().sum()) + lost
