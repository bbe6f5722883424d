"""Gradients of potentials with respect to the densities, by the adjoint method.

The potentials c solve r(c, μ) = 0. A change δr of r at fixed c changes c by δc = −J⁻¹δr with
J = ∂r/∂c. A gradient g with respect to c therefore becomes the gradient of λ·r with respect to the
densities, with −Jᵀλ = g. On fine cells −J is close to the symmetric K of a Newton step, which is
the preconditioner of the iteration λ ← λ + K⁻¹(g + Jᵀλ). For a barycenter c and λ satisfy the
constraint Σ w_i c_i = 0, and g counts up to multiples w_i p of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from geonet._threads import threads_for
from geonet.numerics.autograd import once_differentiable
from geonet.numerics.splines import evaluate_at_half_cells
from geonet.solvers.newton.compiled import Formulation, subtract_weighted_mean
from geonet.solvers.newton.reference import (
    project_onto_splines,
    pull_back_density,
    pull_back_smoothly,
    signed_det_and_cofactor,
)
from geonet.solvers.newton.system import build_hierarchy


@dataclass(frozen=True)
class AdjointConfig:
    """Tuning parameters of the adjoint solve."""

    damping: float = 1e-3  # relative to the uniform density, for regions without mass
    linear_tolerance: float = 1e-4  # relative residual of the preconditioner
    linear_iterations: int = 100  # most conjugate gradient iterations of the preconditioner
    max_iterations: int = 12  # largest number of iterations for λ
    tolerance: float = 1e-6  # relative residual at which the iteration for λ stops


DEFAULT_ADJOINT = AdjointConfig()


def differentiate_solution(
    coefficients: Tensor,
    densities: Sequence[Tensor],
    sides: Sequence[float],
    formulation: Formulation,
    config: AdjointConfig = DEFAULT_ADJOINT,
) -> Tensor:
    """Return the coefficients as a differentiable function of the densities.

    Args:
        coefficients: solution for these densities, (*cells), or (N, *cells) for a barycenter.
        densities: the densities on the same cells, of which some require a gradient.
        sides: side lengths of the box.
        formulation: boundary, growth and weights.
        config: tuning parameters.
    """
    own = [values.detach() for values in densities]
    problem = _Problem(coefficients, own, tuple(sides), formulation, config)
    residual = problem.evaluate(coefficients, densities)
    return _ImplicitSolve.apply(residual, problem)  # pyright: ignore[reportReturnType]


def differentiate_mean(
    coefficients: Tensor,
    densities: Sequence[Tensor],
    sides: Sequence[float],
    formulation: Formulation,
) -> Tensor:
    """Return the density of a barycenter, (*cells), differentiable in potentials and densities."""
    weights, shape = formulation.weights, coefficients.shape[1:]
    assert weights is not None
    step = [side / n for side, n in zip(sides, shape, strict=True)]
    total = size = torch.zeros((), dtype=torch.float64)
    for weight, c, values in zip(weights, coefficients, densities, strict=True):
        jet = evaluate_at_half_cells(c, step, formulation.periodic)
        _, jacobian = pull_back_density(values, jet, 1.0, step, formulation=formulation)
        det = signed_determinants(jacobian)
        carried = pull_back_smoothly(values, jet, step, formulation) * det
        if formulation.reach is None:
            share = weight * det.clamp(min=0) ** 2
        else:
            carried, share = carried.clamp(min=0), weight * torch.ones_like(det)
        total, size = total + share * carried, size + share
    mean = total / size.clamp(min=torch.finfo(torch.float64).tiny)
    return mean.mean(tuple(range(len(shape))))


def signed_determinants(jacobian: Tensor) -> Tensor:
    """Return determinants of I + sD²u, (...), negative for folds, which have no gradient."""
    det, _, folds = signed_det_and_cofactor(jacobian.detach())
    return torch.where(folds, det, torch.linalg.det(jacobian)) if jacobian.requires_grad else det


class _Problem(NamedTuple):
    """A solved problem, with detached densities."""

    coefficients: Tensor
    densities: Sequence[Tensor]
    sides: tuple[float, ...]
    formulation: Formulation
    config: AdjointConfig

    @property
    def shape(self) -> torch.Size:
        """Cells of the potentials."""
        leading = 0 if self.formulation.weights is None else 1
        return self.coefficients.shape[leading:]

    @property
    def step(self) -> list[float]:
        return [side / n for side, n in zip(self.sides, self.shape, strict=True)]

    def evaluate(self, coefficients: Tensor, densities: Sequence[Tensor]) -> Tensor:
        """Return r as a differentiable function of the potentials and the densities."""
        weights = self.formulation.weights
        if weights is None:
            return self._evaluate_field(coefficients, densities)
        parts = [
            w * self._evaluate_field(c, [values])
            for w, c, values in zip(weights, coefficients, densities, strict=True)
        ]
        return subtract_weighted_mean(torch.stack(parts), weights)

    def _evaluate_field(self, c: Tensor, densities: Sequence[Tensor]) -> Tensor:
        formulation, step = self.formulation, self.step
        jet = evaluate_at_half_cells(c, step, formulation.periodic)
        difference = torch.zeros_like(jet.value)
        for values, s in zip(densities, formulation.positions, strict=True):
            density, jacobian = pull_back_density(
                values.double(), jet, s, step, formulation=formulation
            )
            sign = math.copysign(1.0, s)
            difference = difference + sign * density * signed_determinants(jacobian)
        volume = math.prod(step) / 2 ** len(step)
        return project_onto_splines(volume * difference, formulation.periodic)

    def project(self, g: Tensor) -> Tensor:
        """Remove parts of a gradient to which no admissible change of the potentials belongs."""
        if self.formulation.weights is not None:
            w = torch.tensor(self.formulation.weights, dtype=g.dtype)
            w = w.reshape(-1, *(1,) * len(self.shape))
            g = g - w * (w * g).sum(0) / (w**2).sum()
        if self.formulation.reach is not None:
            return g
        axes = tuple(range(-len(self.shape), 0))
        return g - g.mean(axes, keepdim=True)  # the constants are free

    def make_preconditioner(self) -> Callable[[Tensor], Tensor]:
        """Return K⁻¹ at the solution, as a function."""
        config = self.config
        threads = threads_for(self.coefficients.numel())
        system = build_hierarchy(self.shape, self.sides, threads, self.formulation)[0]
        system.set_densities(self.densities, 0.0)
        residual, _ = system.evaluate(self.coefficients)
        damping = config.damping / math.prod(self.sides)
        system.compute_step(residual, damping, config.linear_tolerance, 1)
        return lambda right: system.solve(right, config.linear_tolerance, config.linear_iterations)

    def multiply_transposed(self, direction: Tensor) -> Tensor:
        """Return Jᵀλ."""
        with torch.enable_grad():
            c = self.coefficients.detach().clone().requires_grad_()
            (result,) = torch.autograd.grad(self.evaluate(c, self.densities), c, direction)
        return result


class _ImplicitSolve(torch.autograd.Function):
    """The coefficients as a function of the residual."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, residual: Tensor, problem: _Problem
    ) -> Tensor:
        ctx.problem = problem
        return problem.coefficients.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return λ with −Jᵀλ = g at the solution."""
        problem, config = ctx.problem, ctx.problem.config
        g = problem.project(upstream[0])
        size = float(g.norm())
        adjoint, residual, smallest = torch.zeros_like(g), g, math.inf
        if not size > 0:
            return adjoint, None
        precondition = problem.make_preconditioner()
        for _ in range(config.max_iterations):
            trial = adjoint + size * precondition(residual / size)
            trial_residual = problem.project(g + problem.multiply_transposed(trial))
            norm = float(trial_residual.norm())
            if not norm < smallest:  # K is a poor approximation of −J if maps fold
                break
            adjoint, residual, smallest = trial, trial_residual, norm
            if norm < config.tolerance * size:
                break
        return adjoint, None
