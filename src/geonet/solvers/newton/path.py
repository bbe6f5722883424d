"""Geodesics given by their potential u at t = ½ in quadratic splines.

With s = t − ½, the particle at y at the midpoint is at x = y + s∇u(y) at time t, so that

    v(x, t) = ∇u(y)            u(x, t) = u(y) + (s/2)|∇u(y)|².
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from geonet._progress import report_progress
from geonet._threads import threads_for
from geonet.density import Density, requires_grad
from geonet.grid import Grid, unit_box
from geonet.numerics.autograd import with_dual_gradient
from geonet.numerics.c_transform import Lattice, transform_with_minimisers
from geonet.numerics.interpolation import resample
from geonet.numerics.splines import (
    Jet,
    evaluate_at_half_cells,
    evaluate_at_points,
    half_cell_centres,
    is_periodic,
    repeat_cells,
)
from geonet.paths import Geodesic
from geonet.solvers.newton import compiled
from geonet.solvers.newton.adjoint import differentiate_solution, signed_determinants
from geonet.solvers.newton.bounds import DEFAULT_BOUNDS, bound_distance
from geonet.solvers.newton.compiled import BALANCED_PAIR, Formulation
from geonet.solvers.newton.lattices import evaluate_at_vertices
from geonet.solvers.newton.reference import pull_back_density, shorten, weight_exponent
from geonet.solvers.newton.system import ResidualIntegrals


class PeriodicRoll(NamedTuple):
    """A shift by whole cells along periodic axes that brings the mass to the middle of the box.

    Levels and lattices begin at the seam. After this shift, results do not depend on its place.

    Attributes:
        cells: cells of the grid.
        shift: number of cells along each axis.
    """

    cells: tuple[int, ...]
    shift: tuple[int, ...]

    @classmethod
    def centre(cls, grid: Grid, values: Tensor) -> PeriodicRoll:
        """Return the shift that centres the circular mean of values (*shape)."""
        shift = [0] * grid.dimension
        for axis in (k for k, wraps in enumerate(grid.periodic) if wraps):
            n = grid.shape[axis]
            marginal = values.detach().double().movedim(axis, 0).reshape(n, -1).sum(1)
            angle = 2 * math.pi / n * torch.arange(n, dtype=torch.float64)
            moment = complex((marginal * angle.cos()).sum(), (marginal * angle.sin()).sum())
            if abs(moment) > 1e-6 * float(marginal.sum()):  # otherwise there is no mean direction
                place = n * cmath.phase(moment) / (2 * math.pi)
                # The quarter keeps cell centres and faces, common places, away from a jump.
                shift[axis] = math.floor(n / 2 - place + 0.25) % n
        return cls(grid.shape, tuple(shift))

    def apply(self, values: Tensor) -> Tensor:
        """Shift values (..., *cells), also on cells that are divided."""
        return self._roll(values, 1)

    def undo(self, values: Tensor) -> Tensor:
        """Shift values back."""
        return self._roll(values, -1)

    def _roll(self, values: Tensor, sign: int) -> Tensor:
        if not any(self.shift):
            return values
        axes = range(values.ndim - len(self.cells), values.ndim)
        parts = [values.shape[axis] // n for axis, n in zip(axes, self.cells, strict=True)]
        steps = [sign * part * k for part, k in zip(parts, self.shift, strict=True)]
        return values.roll(steps, tuple(axes))


class MidpointGeodesic(Geodesic):
    """The path of one pair from its potential at t = ½.

    Args:
        source: one density.
        target: likewise.
        solver: name of the solver.
        info: entries for the report.
        coefficients: spline coefficients in the unit cube around the box, (*cells), double
            precision, on the cells of the grid or on halves, quarters, … of them.
        residual: share of the mass that is not balanced at t = ½.
        integrals: integrals of the potential and both densities at t = ½.
        in_distribution: whether the pair is similar to the training data of the network that
            answered; None if no network did.
    """

    kind = "midpoint"
    has_bounds = True

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        info: dict[str, Any],
        coefficients: Tensor,
        residual: float,
        integrals: ResidualIntegrals,
        in_distribution: bool | None = None,
    ):
        super().__init__(source, target, solver, info)
        self.coefficients, self.residual, self.integrals = coefficients, residual, integrals
        self.in_distribution = in_distribution
        self.box = unit_box(source.grid)
        self.formulation = Formulation(source.grid.periodic)
        cells = zip(self.box.sides, coefficients.shape, strict=True)
        self.step = [side / n for side, n in cells]

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        """Lower and upper bound of W2, in the unit cube."""
        report_progress("bounding W2")
        source, target = (
            self.box.to_density(end.tensor.detach()) for end in (self.source, self.target)
        )
        roll = self._centring_roll()
        lower, upper = bound_distance(
            roll.apply(self.coefficients),
            roll.apply(source),
            roll.apply(target),
            self.box.sides,
            self.integrals.distance,
            periodic=self.grid.periodic,
        )
        moments = [float(bound) / self.box.length for bound in self._moment_bounds]
        upper = min(upper, moments[1])
        return min(max(lower, moments[0]), upper), upper

    def is_certified(self) -> bool:
        """Return whether the bounds of W2 are as close as they are meant to be."""
        lower, upper = self._bounds
        return upper - lower <= DEFAULT_BOUNDS.max_gap * upper

    def expected_error(self) -> float:
        """Return the expected L1 error of frames between the ends.

        Most of the mismatch is detail of the size of a half-cell of the potential, which cancels
        in means over the cells of the grid: the more so, the finer the potential. Mass that is not
        balanced beyond the default tolerance is misplaced by more than a cell. The factors are
        fitted to DOTmark (`make benchmark NAME=dotmark`): the estimate is one to three times the
        error of nine in ten pairs.
        """
        parts = self.coefficients.shape[0] / self.grid.shape[0]
        balanced = min(self.residual, 2e-3)
        unbalanced = self.residual - balanced
        return min(2.0, 0.18 * self.integrals.mismatch / parts + 0.4 * balanced + 3.0 * unbalanced)

    def _densities(self) -> tuple[Tensor, Tensor]:
        """Return source and target in the unit cube, on the cells of the potential."""
        shape = self.coefficients.shape
        return (
            repeat_cells(self.box.to_density(self.source.tensor), shape),
            repeat_cells(self.box.to_density(self.target.tensor), shape),
        )

    def _centring_roll(self) -> PeriodicRoll:
        return PeriodicRoll.centre(self.grid, self.source.tensor + self.target.tensor)

    def _differentiable_coefficients(self) -> Tensor:
        """Return the coefficients as a differentiable function of both ends."""
        return differentiate_solution(
            self.coefficients, self._densities(), self.box.sides, self.formulation
        )

    def _kernel_size(self) -> int:
        return self.coefficients.numel() if compiled.is_available() else 0

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        inside = (times > 0) & (times < 1)
        frames = torch.empty(len(times), *grid.shape, dtype=torch.float64)
        coefficients = self.coefficients
        if requires_grad(self.source, self.target):
            frames = frames.clone()
            coefficients = self._differentiable_coefficients()
        for k in torch.nonzero(~inside).flatten().tolist():
            end = self.target if times[k] == 1 else self.source
            frames[k] = end.tensor if grid == self.grid else end.resample(grid).tensor
        if bool(inside.any()):
            frames[inside] = self._carry(coefficients, times[inside], grid)
        return frames

    def _carry(self, c: Tensor, times: Tensor, grid: Grid) -> Tensor:
        """Return frames (T, *shape) of mass one between the ends, for a potential."""
        threads = threads_for(self.coefficients.numel())
        own = self._densities(), self.box.sides, times, grid.shape, threads, self.formulation
        return self.box.from_density(push_frames(c, *own))

    def _distance(self) -> Tensor:
        """Return the Kantorovich dual value of u, restricted by its bounds.

        Its gradient is that of the envelope theorem.
        """
        value = torch.tensor(self._certified_distance(), dtype=torch.float64)
        scaled = self.box.from_length(value)
        return with_dual_gradient(scaled, self.source, self.target, self._kantorovich)

    def _certified_distance(self) -> float:
        """Return the dual value in the unit cube, moved by as little as its bounds require.

        If the bounds are close, the relative error is at most `certified_error`; if they are
        farther apart, the result is their mean. A dual value between bounds that are more than
        `mean_gap` apart is more accurate than the mean, and is the result.
        """
        config, (lower, upper), value = DEFAULT_BOUNDS, self._bounds, self.integrals.distance
        gap = upper - lower
        if gap <= config.mean_gap * lower or not lower < value < upper:
            margin = max(config.certified_error * lower, gap / 2, config.least_margin)
            value = min(max(value, upper - margin), lower + margin)
        return min(max(value, lower), upper)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return self._map_points(times, points, lambda t, jet: self.box.from_length(jet.gradient))

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        def propagate(t: float, jet: Jet) -> Tensor:
            value = jet.value + 0.5 * (t - 0.5) * (jet.gradient**2).sum(-1)
            return self.box.from_potential(value)

        return self._map_points(times, points, propagate)

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Return straight lines, clipped to the box: splines may leave it by part of a cell."""
        return self._clip_to_walls(super()._trajectories(times, points))

    def _clip_to_walls(self, points: Tensor) -> Tensor:
        """Clip points to the box, except along periodic axes."""
        wraps = torch.tensor(self.grid.periodic)
        clipped = points.clamp(self.grid.lower_tensor, self.grid.upper_tensor)
        return torch.where(wraps, points, clipped)

    def _map_points(
        self, times: Tensor, points: Tensor, function: Callable[[float, Jet], Tensor]
    ) -> Tensor:
        """Apply a function of t and of the jet of u at the midpoint positions of particles."""
        c, x = self.coefficients, self.box.to_points(points)
        if requires_grad(self.source, self.target):
            c = self._differentiable_coefficients()
        return torch.stack(
            [
                function(t, self._evaluate(c, self._midpoint_positions(c, t, x)))
                for t in times.tolist()
            ]
        )

    def _evaluate(self, c: Tensor, y: Tensor) -> Jet:
        return evaluate_at_points(c, self.step, y, self.grid.periodic)

    def _midpoint_positions(self, c: Tensor, t: float, x: Tensor) -> Tensor:
        """Return y (N, d) with y + (t − ½)∇u(y) = x; differentiable with respect to c."""

        def move(y: Tensor) -> tuple[Tensor, Tensor]:
            jet = self._evaluate(c.detach(), y)
            return y + (t - 0.5) * jet.gradient, (t - 0.5) * jet.hessian

        with torch.no_grad():
            y = solve_preimage(move, x, self.box.sides, self.grid.periodic)
        if not c.requires_grad:
            return y
        jet = self._evaluate(c, y)  # one more step, to first order in c
        jacobian = _regularise_jacobian((t - 0.5) * jet.hessian.detach())
        error = y + (t - 0.5) * jet.gradient - x
        return y - torch.linalg.solve(jacobian, (error - error.detach())[..., None])[..., 0]

    def _final_positions(self, grid: Grid) -> Tensor:
        """Return 2y − x for the vertex y that maximises u(y) − |x − y|², for all centres x."""
        sides, wraps = self.box.sides, self.grid.periodic
        u, vertices = evaluate_at_vertices(self.coefficients, sides, wraps)
        spacing = [side / n for side, n in zip(sides, grid.shape, strict=True)]
        centres = [Lattice(h / 2, h, n) for h, n in zip(spacing, grid.shape, strict=True)]
        _, indices = transform_with_minimisers(-u, vertices, centres, periodic=wraps)
        y = indices.movedim(0, -1) * torch.tensor(self.step, dtype=torch.float64)
        return 2 * self.box.from_points(y) - grid.points()

    def _diagnostics(self) -> dict[str, Tensor]:
        (lower, upper), distance = self._bounds, self._certified_distance()
        uncertainty = max(upper - distance, distance - lower)
        values = {
            "distance_lower_bound": self.box.from_length(lower),
            "distance_upper_bound": self.box.from_length(upper),
            "distance_uncertainty": self.box.from_length(uncertainty),
            "mismatch": self.integrals.mismatch,
            "error_estimate": self.expected_error(),
        }
        if self.in_distribution is not None:
            values["in_distribution"] = self.in_distribution
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}

    def _state(self) -> dict[str, np.ndarray]:
        state = {
            "coefficients": self.coefficients.numpy(),
            "residual": np.array(self.residual),
            "integrals": np.array(self.integrals),
        }
        if self.in_distribution is not None:
            state["in_distribution"] = np.array(self.in_distribution)
        return state

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> MidpointGeodesic:
        return cls(
            source,
            target,
            solver,
            info,
            torch.from_numpy(state["coefficients"]),
            float(state["residual"]),
            ResidualIntegrals(*state["integrals"].tolist()),
            bool(state["in_distribution"]) if "in_distribution" in state else None,
        )


def solve_preimage(
    move: Callable[[Tensor], tuple[Tensor, Tensor]],
    x: Tensor,
    sides: Sequence[float],
    periodic: Sequence[bool],
    max_iterations: int = 60,
    tolerance: float = 1e-12,
    min_step: float = 2.0**-20,
) -> Tensor:
    """Return y (N, d) with X(y) = x, by a damped Newton method.

    Points leave the iteration once their error is below the tolerance, or once steps shorter than
    `min_step` of a Newton step bring no improvement; these keep their best position.

    Args:
        move: returns X(y), (N, d), and DX − I, (N, d, d), or an approximation of it.
        x: goals, (N, d).
        sides: side lengths of the box, which y does not leave.
        periodic: axes along which it may leave it.
        max_iterations: largest number of steps.
        tolerance: error at which a point is done.
        min_step: shortest step, as a share of a Newton step.
    """
    upper, wraps = torch.tensor(sides, dtype=torch.float64), torch.tensor(periodic)
    result, active = x.clone(), torch.arange(len(x))
    y, best, newton_step = x, x, torch.zeros_like(x)
    smallest = torch.full((len(x),), torch.inf, dtype=torch.float64)
    size = torch.ones(len(x), 1, dtype=torch.float64)
    for _ in range(max_iterations):
        position, gradient = move(y)
        error = position - x[active]
        norm = error.norm(dim=-1)
        better = norm < smallest
        jacobian = _regularise_jacobian(gradient[better])
        solution = torch.linalg.solve(jacobian, error[better, :, None])
        newton_step = newton_step.index_put((better,), solution[..., 0])
        best, smallest = torch.where(better[:, None], y, best), torch.minimum(smallest, norm)
        size = torch.where(better[:, None], (2 * size).clamp(max=1.0), size / 2)
        result[active] = best
        going = (smallest >= tolerance) & (size[:, 0] >= min_step)
        if not bool(going.any()):
            break
        active, best, newton_step = active[going], best[going], newton_step[going]
        smallest, size = smallest[going], size[going]
        y = best - size * newton_step
        y = torch.where(wraps, y, torch.minimum(y.clamp(min=0), upper))
    return result


def _regularise_jacobian(gradient: Tensor, min_eigenvalue: float = 0.02) -> Tensor:
    """Return I + a symmetric matrix with eigenvalues of at least `min_eigenvalue`."""
    matrix = torch.eye(gradient.shape[-1], dtype=torch.float64) + gradient
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=min_eigenvalue)[..., None, :]) @ vectors.mT


# ---- Frames: cell means in and cell means out
#
# A half-cell y of the potential's grid carries the mass of ρ0 and ρ1. At time t it is the box
# around y + (t − ½)∇u(y), stretched by I + (t − ½)D²u, whose mass is distributed evenly over the
# cells that it overlaps. Since −2 ≤ D²u ≤ 2 no box is more than twice as wide as its half-cell, so
# that frames have no holes. If u is linear, a frame is the shifted density, and as sharp.
#
# An error in D²u changes ρ0 and ρ1 in inverse proportion to their determinants. Both are therefore
# averaged with weights 1 − t and t times the squares of the determinants.


def push_frames(
    coefficients: Tensor,
    densities: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
    threads: int,
    formulation: Formulation = BALANCED_PAIR,
) -> Tensor:
    """Return frames (T, *shape) of mass one at times (T,), on a box with corner zero.

    Args:
        coefficients: potential at t = ½, (*cells).
        densities: source and target on the same cells.
        sides: side lengths of the box.
        times: times between 0 and 1.
        shape: cells of the frames.
        threads: largest number of threads.
        formulation: boundary, of balanced transport.
    """
    frames = carry_masses(coefficients, densities, sides, times, shape, threads, formulation)
    volume = math.prod(sides) / math.prod(shape)
    # No density of a geodesic exceeds both ends; only folds do.
    highest = max(float(values.detach().max()) for values in densities)
    return _normalise_mass(_normalise_mass(frames, volume).clamp(max=highest), volume)


def carry_masses(
    coefficients: Tensor,
    densities: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
    threads: int,
    formulation: Formulation,
) -> Tensor:
    """Return frames as in `push_frames`, up to a factor, with or without a reach.

    If the potential of a pair that did not converge folds so much that no mass arrives, a frame is
    a mixture of both ends.
    """
    arguments = coefficients, densities, sides, times, shape
    traced = coefficients.requires_grad or any(values.requires_grad for values in densities)
    if compiled.is_available() and not (traced and torch.is_grad_enabled()):
        frames = compiled.push_frames(*arguments, threads, formulation)
    else:
        frames = push_frames_torch(*arguments, formulation)
    if bool((frames.detach().flatten(1).sum(1) > 0).all()):
        return frames
    return _replace_empty(frames, densities, times)


def _replace_empty(frames: Tensor, densities: tuple[Tensor, Tensor], times: Tensor) -> Tensor:
    """Replace frames (T, *shape) without mass by mixtures of both densities."""
    own, shape = Grid(densities[0].shape), Grid(frames.shape[1:])
    first, second = (resample(values.double(), own, shape) for values in densities)
    t = times.double().reshape(-1, *(1,) * first.ndim)
    empty = ~(frames.flatten(1).sum(1) > 0).reshape(t.shape)
    return torch.where(empty, torch.lerp(first, second, t), frames)


def _normalise_mass(frames: Tensor, volume: float) -> Tensor:
    """Scale frames (T, *shape) to mass one."""
    mass = frames.flatten(1).sum(1) * volume
    return frames / mass.reshape(-1, *(1,) * (frames.ndim - 1))


def push_frames_torch(
    coefficients: Tensor,
    densities: tuple[Tensor, Tensor],
    sides: Sequence[float],
    times: Tensor,
    shape: Sequence[int],
    formulation: Formulation = BALANCED_PAIR,
) -> Tensor:
    """Return frames up to a factor; differentiable in the potential and both densities."""
    own = coefficients.shape
    step = [side / n for side, n in zip(sides, own, strict=True)]
    jet = evaluate_at_half_cells(coefficients.double(), step, formulation.periodic)
    rho, dets = [], []
    for values, s in zip(densities, formulation.positions, strict=True):
        density, jacobian = pull_back_density(
            values.double(), jet, s, step, 0.0, formulation, is_weighted=False
        )
        dets.append(signed_determinants(jacobian))
        rho.append(density * dets[-1])
    scale = torch.tensor([m / n for m, n in zip(shape, own, strict=True)], dtype=torch.float64)
    gradient, stretch, cone = jet.gradient, jet.hessian.diagonal(dim1=-2, dim2=-1), None
    if formulation.is_shortened:
        assert formulation.reach is not None
        gradient, entries, _, _ = shorten(gradient, formulation.reach)
        stretch, angle = entries * stretch, gradient.norm(dim=-1) / formulation.reach
        first, second = (torch.exp(weight_exponent(jet, s, formulation)) for s in (-0.5, 0.5))
        root = torch.exp((jet.value / formulation.penalty).clamp(-20, 20))
        cone = _Cone(angle, root, (first, second))
    displacement = gradient / torch.tensor(step, dtype=torch.float64)

    def deposit(mass: Tensor, fraction: Tensor) -> Tensor:
        s = (fraction - 0.5)[..., None]
        centre = (half_cell_centres(own) + s * displacement) * scale
        width = (0.5 + 0.5 * s * stretch) * scale
        boxes = mass.flatten(), centre.flatten(0, -2), width.flatten(0, -2)
        return _deposit_boxes(*boxes, shape, formulation.periodic)

    def push(t: float) -> Tensor:
        mass, fraction = _mass_at_time(t, rho, dets, formulation.reach, cone)
        if formulation.reach is None or formulation.is_shortened:
            return deposit(mass, fraction)
        share = moving_share(jet, formulation)
        frame = deposit(share * mass, fraction)
        for part, values, end in zip((1 - t, t), rho, (0.0, 1.0), strict=True):
            still = (1 - share) * part * values.clamp(min=0)
            frame = frame + deposit(still, torch.full_like(still, end))
        return frame

    return torch.stack([push(t) for t in times.tolist()])


def moving_share(jet: Jet, formulation: Formulation) -> Tensor:
    """Return the share of mass that moves in the Gaussian–Hellinger model, (...).

    It is one unless the plan has less than a third of either density. The rest stays at its end.
    """
    first, second = (weight_exponent(jet, s, formulation) for s in formulation.positions)
    return (3 * torch.exp(torch.minimum(first, second))).clamp(max=1)


class _Cone(NamedTuple):
    """Half-cells on geodesics of the Wasserstein–Fisher–Rao cone.

    Attributes:
        angle: length of the way over the reach.
        root: root of the ratio of both masses, exp(u/λ).
        weights: share of each density that has a partner.
    """

    angle: Tensor
    root: Tensor
    weights: tuple[Tensor, Tensor]


def _mass_at_time(
    t: float, rho: Sequence[Tensor], dets: Sequence[Tensor], reach: float | None, cone: _Cone | None
) -> tuple[Tensor, Tensor]:
    """Return the mass of half-cells at time t, and the fraction of the way that it has covered.

    With a reach, both densities are cross-faded, and all of it moves (see `moving_share`). For
    Wasserstein–Fisher–Rao mass follows the geodesic of the cone, |1 − t + t·root·exp(i·angle)|²
    times the first density. Errors of both densities cancel in the sum of the parts with a partner,
    and do not change the way.
    """
    if reach is None:
        first, second = (
            share * det.clamp(min=0) ** 2 for share, det in zip((1 - t, t), dets, strict=True)
        )
        weight = (first + second).clamp(min=torch.finfo(torch.float64).tiny)
        mass = ((first * rho[0] + second * rho[1]) / weight).clamp(min=0)
        return mass, torch.full_like(mass, t)
    first, second = (values.clamp(min=0) for values in rho)
    if cone is None:
        return (1 - t) * first + t * second, torch.full_like(first, t)
    b = t * cone.root
    x, y = 1 - t + b * torch.cos(cone.angle), b * torch.sin(cone.angle)
    moves = cone.angle > 1e-4
    fraction = torch.where(moves, torch.atan2(y, x) / cone.angle.clamp(min=1e-4), t)
    matched = cone.weights[0] * first + cone.weights[1] * second
    return (1 - t) ** 2 * first + t**2 * second + t * (1 - t) * matched, fraction


def _deposit_boxes(
    mass: Tensor,
    centre: Tensor,
    width: Tensor,
    shape: Sequence[int],
    periodic: Sequence[bool] = (),
    min_width: float = 1e-3,
) -> Tensor:
    """Distribute masses (N,) over boxes with centres and widths (N, d) in cells of a frame."""
    upper = torch.tensor(shape, dtype=torch.float64)
    wraps = torch.tensor([is_periodic(periodic, axis) for axis in range(len(shape))])
    width = torch.minimum(width.clamp(min=min_width), upper)
    low = centre - width / 2
    low = torch.where(wraps, low % upper, torch.minimum(low, upper - width).clamp(min=0))
    high = torch.where(wraps, low + width, torch.minimum(low + width, upper))
    first = torch.minimum(low.detach().floor(), upper - 1)
    reach = [int(k) for k in (high.detach().ceil() - first).amax(0)]
    frame = mass.new_zeros(math.prod(shape))
    density = mass / (high - low).prod(1)
    for corner in product(*(range(k) for k in reach)):
        index, share = torch.zeros(len(mass), dtype=torch.long), density
        for axis, k in enumerate(corner):
            cell = first[:, axis] + k
            overlap = torch.minimum(high[:, axis], cell + 1) - torch.maximum(low[:, axis], cell)
            share = share * overlap.clamp(min=0)
            n = shape[axis]
            cell = cell % n if is_periodic(periodic, axis) else cell.clamp(max=n - 1)
            index = index * n + cell.long()
        frame = frame.index_add(0, index, share)
    return frame.reshape(tuple(shape))
