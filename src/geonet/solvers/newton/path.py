"""Geodesics given by their potential u at t = ½ in quadratic splines.

With s = t − ½, the particle at y at the midpoint is at x = y + s∇u(y) at time t, so that

    v(x, t) = ∇u(y)            u(x, t) = u(y) + (s/2)|∇u(y)|².
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet._progress import report_progress
from geonet._threads import threads_for
from geonet.density import Density, requires_grad
from geonet.grid import Grid, unit_box
from geonet.numerics.autograd import once_differentiable, with_dual_gradient
from geonet.numerics.c_transform import Lattice, transform_with_minimisers
from geonet.numerics.splines import (
    Jet,
    evaluate_at_half_cells,
    evaluate_at_points,
    half_cell_centres,
    repeat_cells,
)
from geonet.paths import Geodesic
from geonet.solvers.newton import compiled
from geonet.solvers.newton.bounds import bound_distance, evaluate_on_lattice
from geonet.solvers.newton.system import (
    ResidualIntegrals,
    build_hierarchy,
    project_onto_splines,
    pull_back_density,
    signed_det_and_cofactor,
)


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
        cells = zip(self.box.sides, coefficients.shape, strict=True)
        self.step = [side / n for side, n in cells]

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Lower and upper bound of W2, in the unit cube."""
        report_progress("bounding W2")
        source, target = (
            self.box.to_density(end.tensor.detach()) for end in (self.source, self.target)
        )
        sides, distance = self.box.sides, self.integrals.distance
        lower, upper = bound_distance(self.coefficients, source, target, sides, distance)
        moments = [float(bound) / self.box.length for bound in self._moment_bounds]
        upper = min(upper, moments[1])
        return min(max(lower, moments[0]), upper), upper

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

    def _kernel_size(self) -> int:
        return self.coefficients.numel() if compiled.is_available() else 0

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        inside = (times > 0) & (times < 1)
        frames = torch.empty(len(times), *grid.shape, dtype=torch.float64)
        coefficients = self.coefficients
        if requires_grad(self.source, self.target):
            frames = frames.clone()
            coefficients = differentiable_coefficients(self)
        for k in torch.nonzero(~inside).flatten().tolist():
            end = self.target if times[k] == 1 else self.source
            frames[k] = end.tensor if grid == self.grid else end.resample(grid).tensor
        if bool(inside.any()):
            pushed = push_frames(
                coefficients,
                self._densities(),
                self.box.sides,
                times[inside],
                grid.shape,
                threads_for(self.coefficients.numel()),
            )
            frames[inside] = self.box.from_density(pushed)
        return frames

    def _distance(self) -> Tensor:
        """Return the Kantorovich dual value of u, restricted by its bounds.

        Its gradient is that of the envelope theorem.
        """
        value = torch.tensor(self._certified_distance(), dtype=torch.float64)
        scaled = self.box.from_length(value)
        return with_dual_gradient(scaled, self.source, self.target, self._kantorovich)

    def _certified_distance(self, max_error: float = 5e-3, rounding: float = 5e-6) -> float:
        """Return the dual value in the unit cube, moved by as little as its bounds require.

        If they are at most twice `max_error` apart, the relative error is at most `max_error`; if
        they are farther apart, the result is the mean of both.
        """
        lower, upper = self.bounds
        margin = max(max_error * lower, (upper - lower) / 2, rounding)
        value = min(max(self.integrals.distance, upper - margin), lower + margin)
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
        lower, upper = self.grid.lower_tensor, self.grid.upper_tensor
        return super()._trajectories(times, points).clamp(lower, upper)

    def _map_points(
        self, times: Tensor, points: Tensor, function: Callable[[float, Jet], Tensor]
    ) -> Tensor:
        """Apply a function of t and of the jet of u at the midpoint positions of particles."""
        c, x = self.coefficients, self.box.to_points(points)
        if requires_grad(self.source, self.target):
            c = differentiable_coefficients(self)
        return torch.stack(
            [
                function(t, evaluate_at_points(c, self.step, self._midpoint_positions(c, t, x)))
                for t in times.tolist()
            ]
        )

    def _midpoint_positions(self, c: Tensor, t: float, x: Tensor) -> Tensor:
        """Return y (N, d) with y + (t − ½)∇u(y) = x; differentiable with respect to c."""
        with torch.no_grad():
            y = _solve_preimage(c.detach(), self.step, t - 0.5, x, self.box.sides)
        if not c.requires_grad:
            return y
        jet = evaluate_at_points(c, self.step, y)  # one more step, to first order in c
        jacobian = _regularised_jacobian(jet.hessian.detach(), t - 0.5)
        error = y + (t - 0.5) * jet.gradient - x
        return y - torch.linalg.solve(jacobian, (error - error.detach())[..., None])[..., 0]

    def _final_positions(self, grid: Grid) -> Tensor:
        """Return 2y − x for the vertex y that maximises u(y) − |x − y|², for all centres x."""
        sides, shape = self.box.sides, self.coefficients.shape
        vertices = [Lattice(0.0, h, n + 1) for h, n in zip(self.step, shape, strict=True)]
        u = evaluate_on_lattice(self.coefficients, sides, vertices)
        spacing = [side / n for side, n in zip(sides, grid.shape, strict=True)]
        centres = [Lattice(h / 2, h, n) for h, n in zip(spacing, grid.shape, strict=True)]
        _, indices = transform_with_minimisers(-u, vertices, centres)
        y = indices.movedim(0, -1) * torch.tensor(self.step, dtype=torch.float64)
        return 2 * self.box.from_points(y) - grid.points()

    def _diagnostics(self) -> dict[str, Tensor]:
        (lower, upper), distance = self.bounds, self._certified_distance()
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


def _solve_preimage(
    c: Tensor,
    step: list[float],
    s: float,
    x: Tensor,
    sides: tuple[float, ...],
    max_iterations: int = 60,
    tolerance: float = 1e-12,
    min_step: float = 2.0**-20,
) -> Tensor:
    """Return y (N, d) with y + s∇u(y) = x, by a damped Newton method.

    Points leave the iteration once their error is below the tolerance, or once steps shorter than
    `min_step` of a Newton step bring no improvement; these keep their best position.
    """
    upper = torch.tensor(sides, dtype=torch.float64)
    result, active = x.clone(), torch.arange(len(x))
    y, best, newton_step = x, x, torch.zeros_like(x)
    smallest = torch.full((len(x),), torch.inf, dtype=torch.float64)
    size = torch.ones(len(x), 1, dtype=torch.float64)
    for _ in range(max_iterations):
        jet = evaluate_at_points(c, step, y)
        error = y + s * jet.gradient - x[active]
        norm = error.norm(dim=-1)
        better = norm < smallest
        jacobian = _regularised_jacobian(jet.hessian[better], s)
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
        y = torch.minimum((best - size * newton_step).clamp(min=0), upper)
    return result


def _regularised_jacobian(hessian: Tensor, s: float, min_eigenvalue: float = 0.02) -> Tensor:
    """Return I + sD²u with eigenvalues of at least `min_eigenvalue`, which can be divided by."""
    matrix = torch.eye(hessian.shape[-1], dtype=torch.float64) + s * hessian
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
) -> Tensor:
    """Return frames (T, *shape) of mass one at times (T,), on a box with corner zero.

    Args:
        coefficients: potential at t = ½, (*cells).
        densities: source and target on the same cells.
        sides: side lengths of the box.
        times: times between 0 and 1.
        shape: cells of the frames.
        threads: largest number of threads.
    """
    traced = coefficients.requires_grad or any(values.requires_grad for values in densities)
    if compiled.is_available() and not (traced and torch.is_grad_enabled()):
        frames = compiled.push_frames(coefficients, densities, sides, times, shape, threads)
    else:
        frames = push_frames_torch(coefficients, densities, sides, times, shape)
    volume = math.prod(sides) / math.prod(shape)
    # No density of a geodesic exceeds both ends; only folds do.
    highest = max(float(values.detach().max()) for values in densities)
    return _normalise_mass(_normalise_mass(frames, volume).clamp(max=highest), volume)


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
) -> Tensor:
    """Return frames up to a factor; differentiable in the potential and both densities."""
    own = coefficients.shape
    step = [side / n for side, n in zip(sides, own, strict=True)]
    jet = evaluate_at_half_cells(coefficients.double(), step)
    rho, confidence = [], []
    for values, s in zip(densities, (-0.5, 0.5), strict=True):
        density, jacobian = pull_back_density(values.double(), jet.gradient, jet.hessian, s, step)
        det = _signed_determinants(jacobian)
        rho.append(density * det)
        confidence.append(det.clamp(min=0) ** 2)
    scale = torch.tensor([m / n for m, n in zip(shape, own, strict=True)], dtype=torch.float64)
    displacement = jet.gradient / torch.tensor(step, dtype=torch.float64)
    stretch = jet.hessian.diagonal(dim1=-2, dim2=-1)
    frames = []
    for t in times.tolist():
        first, second = (1 - t) * confidence[0], t * confidence[1]
        weight = (first + second).clamp(min=torch.finfo(torch.float64).tiny)
        mass = ((first * rho[0] + second * rho[1]) / weight).clamp(min=0)
        centre = (half_cell_centres(own) + (t - 0.5) * displacement) * scale
        width = (0.5 + 0.5 * (t - 0.5) * stretch) * scale
        frames.append(
            _deposit_boxes(mass.flatten(), centre.flatten(0, -2), width.flatten(0, -2), shape)
        )
    return torch.stack(frames)


def _signed_determinants(jacobian: Tensor) -> Tensor:
    """Return determinants of I ∓ ½D²u, (...), negative for folds, which have no gradient."""
    det, _, folds = signed_det_and_cofactor(jacobian.detach())
    return torch.where(folds, det, torch.linalg.det(jacobian)) if jacobian.requires_grad else det


def _deposit_boxes(
    mass: Tensor, centre: Tensor, width: Tensor, shape: Sequence[int], min_width: float = 1e-3
) -> Tensor:
    """Distribute masses (N,) over boxes with centres and widths (N, d) in cells of a frame."""
    upper = torch.tensor(shape, dtype=torch.float64)
    width = torch.minimum(width.clamp(min=min_width), upper)
    low = torch.minimum(centre - width / 2, upper - width).clamp(min=0)
    high = torch.minimum(low + width, upper)
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
            index = index * shape[axis] + cell.clamp(max=shape[axis] - 1).long()
        frame = frame.index_add(0, index, share)
    return frame.reshape(tuple(shape))


# ---- Gradient of the potential with respect to both densities, by the adjoint method
#
# The potential c solves r(c, μ0, μ1) = 0. A change δr of r at fixed c changes c by δc = −J⁻¹δr
# with J = ∂r/∂c. A gradient g with respect to c therefore becomes the gradient of λ·r with respect
# to the densities, with −Jᵀλ = g. On fine cells −J is close to the symmetric K of a Newton step,
# which is the preconditioner of the iteration λ ← λ + K⁻¹(g + Jᵀλ).


@dataclass(frozen=True)
class AdjointConfig:
    """Tuning parameters of the adjoint solve."""

    damping: float = 1e-3  # relative to the uniform density, for regions without mass
    linear_tolerance: float = 1e-4  # relative residual of the preconditioner
    linear_iterations: int = 100  # most conjugate gradient iterations of the preconditioner
    max_iterations: int = 12  # largest number of iterations for λ
    tolerance: float = 1e-6  # relative residual at which the iteration for λ stops


DEFAULT_ADJOINT = AdjointConfig()


def differentiable_coefficients(
    path: MidpointGeodesic, config: AdjointConfig = DEFAULT_ADJOINT
) -> Tensor:
    """Return the coefficients of a path, (*cells), as a differentiable function of both ends."""
    residual = _differentiable_residual(path.coefficients, path._densities(), path.step)
    return _ImplicitSolve.apply(residual, path, config)  # pyright: ignore[reportReturnType]


def _differentiable_residual(
    coefficients: Tensor, densities: tuple[Tensor, Tensor], step: list[float]
) -> Tensor:
    """Return r, (*cells), as a differentiable function of the potential and both densities."""
    jet = evaluate_at_half_cells(coefficients, step)
    rho = []
    for values, s in zip(densities, (-0.5, 0.5), strict=True):
        density, jacobian = pull_back_density(values.double(), jet.gradient, jet.hessian, s, step)
        rho.append(density * _signed_determinants(jacobian))
    volume = math.prod(step) / 2 ** len(step)
    return project_onto_splines(volume * (rho[1] - rho[0]))


class _ImplicitSolve(torch.autograd.Function):
    """The coefficients as a function of the residual."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, residual: Tensor, path: MidpointGeodesic, config: AdjointConfig
    ) -> Tensor:
        ctx.path, ctx.config = path, config
        return path.coefficients.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return λ with −Jᵀλ = g at the solution."""
        path, config = ctx.path, ctx.config
        g = upstream[0] - upstream[0].mean()  # the constant is free
        size = float(g.norm())
        adjoint, residual, smallest = torch.zeros_like(g), g, math.inf
        if not size > 0:
            return adjoint, None, None
        precondition = _preconditioner(path, config)
        for _ in range(config.max_iterations):
            trial = adjoint + size * precondition(residual / size)
            trial_residual = g + _transposed_jacobian_product(path, trial)
            trial_residual = trial_residual - trial_residual.mean()
            norm = float(trial_residual.norm())
            if not norm < smallest:  # K is a poor approximation of −J if maps fold
                break
            adjoint, residual, smallest = trial, trial_residual, norm
            if norm < config.tolerance * size:
                break
        return adjoint, None, None


def _preconditioner(path: MidpointGeodesic, config: AdjointConfig) -> Callable[[Tensor], Tensor]:
    """Return K⁻¹ at the solution, as a function."""
    source, target = (values.detach() for values in path._densities())
    shape, sides = path.coefficients.shape, path.box.sides
    system = build_hierarchy(shape, sides, threads_for(path.coefficients.numel()))[0]
    system.set_densities(source, target, 0.0)
    residual, _ = system.evaluate(path.coefficients)
    system.compute_step(residual, config.damping / math.prod(sides), config.linear_tolerance, 1)
    return lambda right: system.solve(right, config.linear_tolerance, config.linear_iterations)


def _transposed_jacobian_product(path: MidpointGeodesic, direction: Tensor) -> Tensor:
    """Return Jᵀλ."""
    source, target = (values.detach() for values in path._densities())
    with torch.enable_grad():
        c = path.coefficients.detach().clone().requires_grad_()
        residual = _differentiable_residual(c, (source, target), path.step)
        (result,) = torch.autograd.grad(residual, c, direction)
    return result
