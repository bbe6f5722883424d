"""What vanishes on a geodesic, as functions of the jets of density μ and potential u.

With ε > 0 these are the equations of the Schrödinger bridge (ER-GeONet, paper, appendix D).
"""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.fields import packed
from geonet.operators.jets import Jet
from geonet.operators.objective import EndFunctions


def continuity(density: Jet, potential: Jet, epsilon: float = 0.0) -> Tensor:
    """∂tμ + div(μ∇u) + εΔμ, with div(μ∇u) = ∇μ·∇u + μΔu."""
    transport = (density.gradient * potential.gradient).sum(0) + density.value * potential.laplacian
    diffusion = epsilon * density.laplacian if epsilon else 0.0
    return density.rate + transport + diffusion


def hamilton_jacobi(potential: Jet, epsilon: float = 0.0) -> Tensor:
    """∂tu + ½|∇u|² − εΔu."""
    diffusion = epsilon * potential.laplacian if epsilon else 0.0
    return potential.rate + 0.5 * (potential.gradient**2).sum(0) - diffusion


def momentum(potential: Jet) -> Tensor:
    """∇(∂tu + ½|∇u|²) = ∂tv + (v·∇)v with v = ∇u, (d, ...): what bends the ways of particles."""
    bent = (potential.hessian * potential.gradient[:, None]).sum(0)
    return potential.gradient_rate + bent


def softened(residual: Tensor, limit: float) -> Tensor:
    """r² where |r| is small against the limit, and nearly 2·limit·|r| where it is large.

    A pseudo-Huber loss, 2·limit·(√(r² + limit²) − limit), written without a difference of nearly
    equal numbers; plain squares if the limit is 0.
    """
    square = residual**2
    return 2 * limit * square / ((square + limit**2).sqrt() + limit) if limit else square


def boundary(computed: Tensor, given: Tensor) -> Tensor:
    """C(x, 0) − μ0(x), or C(x, 1) − μ1(x)."""
    return computed - given


def densities_carried(
    potential: Jet, points: Tensor, ends: EndFunctions, times: float | Tensor = 0.5
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """ρ0 and ρ1 at t, which are μ_t on a geodesic, and the determinants in them; each (B, Q).

    ρ0(y) = μ0(y − t∇u)·det(I − tD²u) is what the source brings along the straight lines of u to
    the points y (Q, d), and ρ1(y) = μ1(y + (1 − t)∇u)·det(I + (1 − t)D²u) what the target sends
    back: the equation of continuity, integrated from each end.
    """
    d = potential.dimension
    gradient, hessian = potential.gradient.movedim(0, -1), potential.parts()[2][: d * (d + 1) // 2]
    spread = packed.invariants(hessian)
    lines = -torch.as_tensor(times), 1 - torch.as_tensor(times)
    before, after = (packed.characteristic(spread, s) for s in lines)
    source, target = (
        end(points + s[..., None] * gradient) for end, s in zip(ends, lines, strict=True)
    )
    return (source * before, target * after), (before, after)
