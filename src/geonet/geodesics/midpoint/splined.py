"""A geodesic given by its potential at t = ½ in quadratic splines: any two densities.

With s = t − ½ the particle that is at y halfway is at x = y + s∇u(y) at time t, so that

    v(x, t) = ∇u(y)            u(x, t) = u(y) + (s/2)|∇u(y)|².

Frames carry the half-cells of the potential's grid from t = ½ to any time; see `fields.carried`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.fields.carried import carried
from geonet.fields.compiled import elliptic as compiled
from geonet.fields.elliptic import Totals
from geonet.fields.levels import repeated
from geonet.fields.quadratic import Jet, at_points
from geonet.geodesics.base import Geodesic
from geonet.geodesics.gaussian import gaussian_distance
from geonet.geodesics.gradients import wanted, with_dual_gradient
from geonet.geodesics.midpoint.adjoint import followed
from geonet.geodesics.midpoint.bounds import lower_bound, upper_bound
from geonet.geodesics.midpoint.estimate import expected_error
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box
from geonet.progress import tell
from geonet.threads import threads_for

STEPS = 60  # of Newton's method for where a particle is halfway
STEEPEST = 0.02  # least eigenvalue of I + sD²u that a step may divide by
POOR = 0.05  # residual above which a potential may be useless
NEAR = 1e-12  # in the unit cube: where a particle was found
SHORTEST = 2.0**-20  # of a step, beyond which shorter ones are of no use


class SplineGeodesic(Geodesic):
    """The path of one pair from its potential at t = ½.

    Args:
        source: one density.
        target: likewise.
        solver: the name.
        notes: for the report.
        coefficients: of the quadratic splines, (*cells), double precision, in the unit cube around
            the box. Cells are those of the grid, or halves, quarters, … of them.
        residual: the share of the mass that Newton's method left unbalanced.
        totals: what the potential makes of both ends.
        usual: whether the pair is like those of a network's training; None where none took part.
    """

    kind = "splines"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        coefficients: Tensor,
        residual: float,
        totals: Totals,
        usual: bool | None = None,
    ):
        super().__init__(source, target, solver, notes)
        self.coefficients, self.residual, self.totals = coefficients, residual, totals
        self.usual = usual
        self.box = unit_box(source.grid)
        cells = zip(self.box.sides, coefficients.shape, strict=True)
        self.step = [side / n for side, n in cells]

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Both ends in the unit cube, on the cells of the potential."""
        first, second = (
            repeated(self.box.to_density(end.values), self.coefficients.shape)
            for end in (self.source, self.target)
        )
        return first, second

    # ---- answers

    def _loops_over(self) -> int:
        return self.coefficients.numel() if compiled.available() else 0

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        inside = (times > 0) & (times < 1)
        frames = torch.empty(len(times), *grid.shape, dtype=torch.float64)
        coefficients = self.coefficients
        if wanted(self.source, self.target):
            frames = frames.clone()
            coefficients = followed(self)
        for k in torch.nonzero(~inside).flatten().tolist():
            end = self.target if times[k] == 1 else self.source
            frames[k] = end.values if grid == self.grid else end.resample(grid).values
        if bool(inside.any()):
            threads = threads_for(self.coefficients.numel())
            known = coefficients, self._ends(), self.box.sides, times[inside], grid.shape, threads
            frames[inside] = self.box.from_density(carried(*known))
        return frames

    def _distance(self) -> Tensor:
        """Kantorovich's dual value of u; its gradient is by the envelope theorem.

        A useless u may give less than the moments alone, which bound W2 from below as well. Where
        Newton's method did not converge the value is kept within its bounds.
        """
        value = self.totals.distance
        if not self.notes.get("converged", True):
            value = min(max(value, self.bounds[0]), self.bounds[1])
        scaled = self.box.from_velocity(torch.tensor(value, dtype=torch.float64))
        dual = with_dual_gradient(scaled, self.source, self.target, self._kantorovich)
        spreads = self.source.covariance(), self.target.covariance()
        moments = gaussian_distance(self.target.mean() - self.source.mean(), *spreads)
        return torch.maximum(dual, moments) if self.residual > POOR else dual

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return self._each(times, points, lambda t, jet: self.box.from_velocity(jet.gradient))

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        def moved(t: float, jet: Jet) -> Tensor:
            value = jet.value + 0.5 * (t - 0.5) * (jet.gradient**2).sum(-1)
            return self.box.from_potential(value)

        return self._each(times, points, moved)

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Straight lines; those that splines lead out, by part of a cell, end at a wall."""
        lower, upper = self.grid.corner("lower"), self.grid.corner("upper")
        return super()._trajectories(times, points).clamp(lower, upper)

    def _each(
        self, times: Tensor, points: Tensor, answer: Callable[[float, Jet], Tensor]
    ) -> Tensor:
        """What `answer` makes of u halfway, where the particles at `points` are then."""
        c, places = self.coefficients, self.box.to_points(points)
        if wanted(self.source, self.target):
            c = followed(self)
        jets = ((t, at_points(c, self.step, self._halfway(c, t, places))) for t in times.tolist())
        return torch.stack([answer(t, jet) for t, jet in jets])

    def _halfway(self, c: Tensor, t: float, x: Tensor) -> Tensor:
        """y (N, d) with y + (t − ½)∇u(y) = x, by Newton's method; autograd follows c."""
        with torch.no_grad():
            y = _traced_back(c.detach(), self.step, t - 0.5, x, self.box.sides)
        if not c.requires_grad:
            return y
        jet = at_points(c, self.step, y)  # one more step, to first order in c
        matrix = _floored(jet.hessian.detach(), t - 0.5)
        miss = y + (t - 0.5) * jet.gradient - x
        return y - torch.linalg.solve(matrix, (miss - miss.detach())[..., None])[..., 0]

    # ---- trust

    def expected_error(self) -> float:
        """The L1 error to expect between the ends."""
        return expected_error(self.residual, self.totals)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """W2 is at least and at most this, in the unit cube."""
        ends = [self.box.to_density(end.values.detach()) for end in (self.source, self.target)]
        known = ends[0], ends[1], self.box.sides, self.totals.distance
        tell("bounding W2 from below")
        lower = lower_bound(self.coefficients, *known)
        source, target = (end.detach() for end in self._ends())
        distance = max(lower, self.totals.distance)
        tell("bounding W2 from above")
        return lower, upper_bound(self.coefficients, source, target, self.box.sides, distance)

    def _checks(self) -> dict[str, Tensor]:
        lower, upper = self.bounds
        checks = {
            "distance_lower_bound": self.box.from_velocity(lower),
            "distance_upper_bound": self.box.from_velocity(upper),
            "mismatch": self.totals.mismatch,
            "error_estimate": self.expected_error(),
        }
        if not self.notes.get("converged", True):  # then nothing but the bounds is known of W2
            distance = min(max(lower, self.totals.distance), upper)
            unsure = max(upper - distance, distance - lower)
            checks["distance_uncertainty"] = self.box.from_velocity(unsure)
        if self.usual is not None:
            checks["in_distribution"] = self.usual
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in checks.items()}

    def _state(self) -> dict[str, np.ndarray]:
        state = {
            "coefficients": self.coefficients.numpy(),
            "residual": np.array(self.residual),
            "totals": np.array(self.totals),
        }
        return state if self.usual is None else state | {"usual": np.array(self.usual)}

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> SplineGeodesic:
        coefficients = torch.from_numpy(state["coefficients"])
        totals = Totals(*state["totals"].tolist())
        usual = bool(state["usual"]) if "usual" in state else None
        known = coefficients, float(state["residual"]), totals, usual
        return cls(source, target, solver, notes, *known)


def _traced_back(
    c: Tensor, step: list[float], s: float, x: Tensor, sides: tuple[float, ...]
) -> Tensor:
    """y (N, d) with y + s∇u(y) = x, or as near as it gets; the best of all steps.

    Points that are found, or that no step brings nearer, are left alone.
    """
    upper = torch.tensor(sides, dtype=torch.float64)
    found, left = x.clone(), torch.arange(len(x))
    y, best, back = x, x, torch.zeros_like(x)
    least = torch.full((len(x),), torch.inf, dtype=torch.float64)
    size = torch.ones(len(x), 1, dtype=torch.float64)
    for _ in range(STEPS):
        jet = at_points(c, step, y)
        miss = y + s * jet.gradient - x[left]
        now = miss.norm(dim=-1)
        better = now < least
        newton = torch.linalg.solve(_floored(jet.hessian[better], s), miss[better, :, None])
        back = back.index_put((better,), newton[..., 0])
        best, least = torch.where(better[:, None], y, best), torch.minimum(least, now)
        size = torch.where(better[:, None], (2 * size).clamp(max=1.0), size / 2)
        found[left] = best
        going = (least >= NEAR) & (size[:, 0] >= SHORTEST)
        if not bool(going.any()):
            break
        left, best, back = left[going], best[going], back[going]
        least, size = least[going], size[going]
        y = torch.minimum((best - size * back).clamp(min=0), upper)
    return found


def _floored(hessian: Tensor, s: float) -> Tensor:
    """I + sD²u with eigenvalues that are not too small to divide by."""
    matrix = torch.eye(hessian.shape[-1], dtype=torch.float64) + s * hessian
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=STEEPEST)[..., None, :]) @ vectors.mT
