"""The gradient of a potential with respect to both ends: the adjoint of its elliptic problem.

The potential c solves r(c, μ0, μ1) = 0, with r_i = ∫B_i(ρ1 − ρ0). To first order K δc = δr for a
change δr that the ends make with c held still, so a gradient g with respect to c is one with
respect to the ends: that of λ·r with K λ = g.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from geonet.fields.elliptic import brought, levels_on, signed, spread_back
from geonet.fields.quadratic import at_half_cells
from geonet.geodesics.gradients import first_order
from geonet.threads import threads_for

if TYPE_CHECKING:
    from geonet.geodesics.midpoint.splined import SplineGeodesic

FLOOR = 1e-3  # of A, relative to uniform: where there is no mass the potential is free
TOLERANCE, ITERATIONS = 1e-6, 200  # of conjugate gradients


def followed(path: SplineGeodesic) -> Tensor:
    """The coefficients of a path, (*cells), which autograd can follow back to both ends."""
    residual = _residual(path)
    return _Solution.apply(residual, path)  # pyright: ignore[reportReturnType]


def _residual(path: SplineGeodesic) -> Tensor:
    """r, (*cells), as a function of the ends with the potential held still."""
    jet = at_half_cells(path.coefficients, path.step)
    rho = []
    for end, s in zip(path._ends(), (-0.5, 0.5), strict=True):
        density, matrix = brought(end, jet.gradient, jet.hessian, s, path.step)
        rho.append(density * signed(matrix)[0])
    share = 1.0
    for h in path.step:
        share *= h / 2
    return spread_back(share * (rho[1] - rho[0]))


class _Solution(torch.autograd.Function):
    """The coefficients as a function of the residual."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, path: SplineGeodesic) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.path = path
        return path.coefficients.clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """λ with K λ = g, at the solution."""
        path = ctx.path
        ends = [end.detach() for end in path._ends()]
        shape, sides = path.coefficients.shape, path.box.sides
        equation = levels_on(shape, sides, threads_for(path.coefficients.numel())).at(0)
        equation.between(ends[0], ends[1], 0.0)
        equation.look(path.coefficients)
        g = upstream[0]
        g = g - g.mean()
        scale = float(g.abs().max())
        if not scale > 0:
            return torch.zeros_like(g), None
        volume = 1.0
        for side in sides:
            volume *= side
        solution = equation.step_for(g / scale, FLOOR / volume, TOLERANCE, ITERATIONS)
        return scale * solution, None
