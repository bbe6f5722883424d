"""What vanishes on a geodesic, as functions of the jets of density μ and potential u.

With ε > 0 these are the equations of the Schrödinger bridge (ER-GeONet, paper, appendix D).
"""

from __future__ import annotations

from torch import Tensor

from geonet.operators.jets import Jet


def continuity(density: Jet, potential: Jet, epsilon: float = 0.0) -> Tensor:
    """∂tμ + div(μ∇u) + εΔμ, with div(μ∇u) = ∇μ·∇u + μΔu."""
    transport = (density.gradient * potential.gradient).sum(0) + density.value * potential.laplacian
    diffusion = epsilon * density.laplacian if epsilon else 0.0
    return density.rate + transport + diffusion


def hamilton_jacobi(potential: Jet, epsilon: float = 0.0) -> Tensor:
    """∂tu + ½|∇u|² − εΔu."""
    diffusion = epsilon * potential.laplacian if epsilon else 0.0
    return potential.rate + 0.5 * (potential.gradient**2).sum(0) - diffusion


def boundary(computed: Tensor, given: Tensor) -> Tensor:
    """C(x, 0) − μ0(x), or C(x, 1) − μ1(x)."""
    return computed - given
