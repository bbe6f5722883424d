"""The gradient of a potential with respect to both ends: the adjoint of its elliptic problem.

The potential c solves r(c, μ0, μ1) = 0, with r_i = ∫B_i(ρ1 − ρ0). Where the ends change r by δr
with c held still, c changes by δc = −J⁻¹δr, J = ∂r/∂c. So a gradient g with respect to c is one
with respect to the ends: that of λ·r with −Jᵀλ = g. On fine cells −J is the symmetric K of Newton's
step; what it is on these cells is found by some corrections, λ ← λ + K⁻¹(g + Jᵀλ).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from geonet.fields.carried import determinants
from geonet.fields.elliptic import brought, levels_on, spread_back
from geonet.fields.quadratic import at_half_cells
from geonet.geodesics.gradients import first_order
from geonet.threads import threads_for

if TYPE_CHECKING:
    from geonet.geodesics.midpoint.splined import SplineGeodesic

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
