"""A geodesic given by its potential at t = ½ in quadratic splines: any two densities.

With s = t − ½ the particle that is at y halfway is at x = y + s∇u(y) at time t, so that

    v(x, t) = ∇u(y)            u(x, t) = u(y) + (s/2)|∇u(y)|².

Frames carry the half-cells of the potential's grid from t = ½ to any time; see `fields.carried`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet._progress import report_progress
from geonet._threads import threads_for
from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.numerics.autograd import first_order, wanted, with_dual_gradient
from geonet.numerics.splines import Jet, at_half_cells, at_points, half_cell_places, repeated
from geonet.paths import Geodesic
from geonet.solvers.bures import gaussian_distance
from geonet.solvers.newton import compiled
from geonet.solvers.newton.bounds import lower_bound, upper_bound
from geonet.solvers.newton.system import Totals, brought, levels_on, signed, spread_back

# ---- Densities between the ends, cell means in and cell means out.
#
# A half-cell y of the potential's grid holds the mass of ρ0 and ρ1 there. At time t it is the box
# around y + (t − ½)∇u(y), stretched by I + (t − ½)D²u, whose mass is shared out evenly among the
# cells that it meets. Since −2 ≤ D²u ≤ 2 no box is more than twice as wide as its half-cell: nothing
# has holes. Where u is linear, a frame is the density itself, moved, and as sharp.
#
# What an end brings is off by an error in D²u over its determinant, so ρ0 and ρ1 count with (1 − t)
# and t times the square of theirs. Frames are scaled to mass one.


NARROWEST = 1e-3  # cells of a frame


def carried(
    coefficients: Tensor,
    ends: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
    threads: int,
) -> Tensor:
    """Densities (T, *shape) of mass one at times (T,), on the cells of a box that begins at zero.

    Args:
        coefficients: of the potential at t = ½, (*cells).
        ends: source and target on the same cells.
        sides: of the box.
        times: between 0 and 1.
        shape: of the frames.
        threads: how many may work on it.
    """
    traced = coefficients.requires_grad or any(end.requires_grad for end in ends)
    if compiled.available() and not (traced and torch.is_grad_enabled()):
        frames = compiled.carried(coefficients, ends, sides, times, shape, threads)
    else:
        frames = plainly_carried(coefficients, ends, sides, times, shape)
    volume = math.prod(sides) / math.prod(shape)
    # No density on a geodesic is higher than both ends: what is, comes from folds.
    highest = max(float(end.detach().max()) for end in ends)
    return _normalised(_normalised(frames, volume).clamp(max=highest), volume)


def _normalised(frames: Tensor, volume: float) -> Tensor:
    """Frames (T, *shape) scaled to mass one."""
    mass = frames.flatten(1).sum(1) * volume
    return frames / mass.reshape(-1, *(1,) * (frames.ndim - 1))


def plainly_carried(
    coefficients: Tensor,
    ends: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
) -> Tensor:
    """The same in torch, up to a factor; autograd follows the potential and both ends."""
    own = coefficients.shape
    step = [side / n for side, n in zip(sides, own, strict=True)]
    jet = at_half_cells(coefficients.double(), step)
    rho, trust = [], []
    for end, s in zip(ends, (-0.5, 0.5), strict=True):
        density, matrix = brought(end.double(), jet.gradient, jet.hessian, s, step)
        det = determinants(matrix)
        rho.append(density * det)
        trust.append(det.clamp(min=0) ** 2)
    scale = torch.tensor([m / n for m, n in zip(shape, own, strict=True)], dtype=torch.float64)
    moved = jet.gradient / torch.tensor(step, dtype=torch.float64)
    stretch = jet.hessian.diagonal(dim1=-2, dim2=-1)
    frames = []
    for t in times.tolist():
        first, second = (1 - t) * trust[0], t * trust[1]
        weight = (first + second).clamp(min=torch.finfo(torch.float64).tiny)
        mass = ((first * rho[0] + second * rho[1]) / weight).clamp(min=0)
        place = (half_cell_places(own) + (t - 0.5) * moved) * scale
        width = (0.5 + 0.5 * (t - 0.5) * stretch) * scale
        frames.append(_put(mass.flatten(), place.flatten(0, -2), width.flatten(0, -2), shape))
    return torch.stack(frames)


def determinants(matrix: Tensor) -> Tensor:
    """Of I ∓ ½D²u, (...), as `signed` has them; autograd follows those that do not fold."""
    det, _, folds = signed(matrix.detach())
    return torch.where(folds, det, torch.linalg.det(matrix)) if matrix.requires_grad else det


def _put(mass: Tensor, place: Tensor, width: Tensor, shape: Sequence[int]) -> Tensor:
    """Masses (N,) shared out over boxes of width (N, d) around places (N, d), in cells."""
    most = torch.tensor(shape, dtype=torch.float64)
    width = torch.minimum(width.clamp(min=NARROWEST), most)
    low = torch.minimum(place - width / 2, most - width).clamp(min=0)
    high = torch.minimum(low + width, most)
    first = torch.minimum(low.detach().floor(), most - 1)
    reach = [int(k) for k in (high.detach().ceil() - first).amax(0)]
    frame = mass.new_zeros(math.prod(shape))
    density = mass / (high - low).prod(1)
    for corner in product(*(range(k) for k in reach)):
        index, share = torch.zeros(len(mass), dtype=torch.long), density
        for axis, k in enumerate(corner):
            cell = first[:, axis] + k
            over = torch.minimum(high[:, axis], cell + 1) - torch.maximum(low[:, axis], cell)
            share = share * over.clamp(min=0)
            index = index * shape[axis] + cell.clamp(max=shape[axis] - 1).long()
        frame = frame.index_add(0, index, share)
    return frame.reshape(tuple(shape))


# ---- The gradient of a potential with respect to both ends: the adjoint of its elliptic problem.
#
# The potential c solves r(c, μ0, μ1) = 0, with r_i = ∫B_i(ρ1 − ρ0). Where the ends change r by δr
# with c held still, c changes by δc = −J⁻¹δr, J = ∂r/∂c. So a gradient g with respect to c is one
# with respect to the ends: that of λ·r with −Jᵀλ = g. On fine cells −J is the symmetric K of Newton's
# step; what it is on these cells is found by some corrections, λ ← λ + K⁻¹(g + Jᵀλ).


FLOOR = 1e-3  # of A, relative to uniform: where there is no mass the potential is free
TOLERANCE, ITERATIONS = 1e-4, 100  # of conjugate gradients
CORRECTIONS, ENOUGH = 12, 1e-6  # of λ, and what may be left of g


def followed(path: SplineGeodesic) -> Tensor:
    """The coefficients of a path, (*cells), which autograd can follow back to both ends."""
    balance = _balance(path.coefficients, path._ends(), path.step)
    return _Solution.apply(balance, path)  # pyright: ignore[reportReturnType]


def _balance(coefficients: Tensor, ends: tuple[Tensor, Tensor], step: list[float]) -> Tensor:
    """r, (*cells); autograd follows the potential and both ends."""
    jet = at_half_cells(coefficients, step)
    rho = []
    for end, s in zip(ends, (-0.5, 0.5), strict=True):
        density, matrix = brought(end.double(), jet.gradient, jet.hessian, s, step)
        rho.append(density * determinants(matrix))
    share = math.prod(step) / 2 ** len(step)
    return spread_back(share * (rho[1] - rho[0]))


class _Solution(torch.autograd.Function):
    """The coefficients as a function of the balance."""

    @staticmethod
    def forward(ctx: Any, balance: Tensor, path: SplineGeodesic) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.path = path
        return path.coefficients.clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """λ with −Jᵀλ = g, at the solution."""
        path: SplineGeodesic = ctx.path
        g = upstream[0] - upstream[0].mean()  # the constant is free
        size = float(g.norm())
        answer, left, least = torch.zeros_like(g), g, math.inf
        if not size > 0:
            return answer, None
        solved = _preconditioner(path)
        for _ in range(CORRECTIONS):
            trial = answer + size * solved(left / size)
            rest = g + _transposed(path, trial)
            rest = rest - rest.mean()
            now = float(rest.norm())
            if not now < least:  # the maps fold: better than this it does not get
                break
            answer, left, least = trial, rest, now
            if now < ENOUGH * size:
                break
        return answer, None


def _preconditioner(path: SplineGeodesic):
    """K⁻¹ at the solution."""
    source, target = (end.detach() for end in path._ends())
    shape, sides = path.coefficients.shape, path.box.sides
    equation = levels_on(shape, sides, threads_for(path.coefficients.numel())).at(0)
    equation.between(source, target, 0.0)
    residual, _ = equation.look(path.coefficients)
    equation.step_for(residual, FLOOR / math.prod(sides), TOLERANCE, 1)
    return lambda right: equation.solved(right, TOLERANCE, ITERATIONS)


def _transposed(path: SplineGeodesic, direction: Tensor) -> Tensor:
    """Jᵀλ."""
    ends = path._ends()
    with torch.enable_grad():
        c = path.coefficients.detach().clone().requires_grad_()
        balance = _balance(c, (ends[0].detach(), ends[1].detach()), path.step)
        (answer,) = torch.autograd.grad(balance, c, direction)
    return answer


# ---- What a potential's mismatch and residual mean for the error of its frames.
#
# The numbers are measured by `make midpoint` over pairs of every kind, and over pairs with exact
# paths. Most of the mismatch is detail of the size of a half-cell, which cancels in cell means.


SLOPE = 0.35  # of the error over the mismatch
UNBALANCED = 3.0  # of the error over the residual


def expected_error(residual: float, totals: Totals) -> float:
    """The L1 error to expect between the ends."""
    return min(2.0, SLOPE * totals.mismatch + UNBALANCED * residual)


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
            repeated(self.box.to_density(end.tensor), self.coefficients.shape)
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
            frames[k] = end.tensor if grid == self.grid else end.resample(grid).tensor
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
        ends = [self.box.to_density(end.tensor.detach()) for end in (self.source, self.target)]
        known = ends[0], ends[1], self.box.sides, self.totals.distance
        report_progress("bounding W2 from below")
        lower = lower_bound(self.coefficients, *known)
        source, target = (end.detach() for end in self._ends())
        distance = max(lower, self.totals.distance)
        report_progress("bounding W2 from above")
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
