"""Gradients of distances with respect to the densities at both ends.

W2² has them by the envelope theorem. Kantorovich's dual problem is

    ½W2²(μ_0, μ_1) = max ∫φ dμ_0 + ∫ψ dμ_1        over φ(x) + ψ(y) ≤ ½|x − y|²,

so the gradient in μ_0 is the maximiser φ, and in μ_1 it is ψ. The potential of a path gives both,
φ = −u_0 and ψ = u_1, and nothing has to be differentiated. Any other feasible pair, such as
one of a network, gives a lower bound for all densities: it is a subgradient up to the duality gap.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from geonet.density import Density, requires_grad
from geonet.errors import UnavailableError

Potentials = Callable[[], tuple[Tensor, Tensor]]


def safe_sqrt(square: Tensor) -> Tensor:
    """Return √square with gradient zero at zero, where the true one is infinite.

    A distance has no gradient at zero, and the gradient of its square becomes right this way.
    """
    if not square.requires_grad:
        return square.clamp(min=0).sqrt()
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def with_dual_gradient(
    distance: Tensor, source: Density, target: Density, potentials: Potentials
) -> Tensor:
    """Return a distance W2, (batch?), with the gradient of the envelope theorem.

    Args:
        distance: its value.
        source: μ_0.
        target: μ_1, on the same grid.
        potentials: returns Kantorovich's φ and ψ at the cells, (batch?, *shape) each, up to
            constants of sum zero; called in the backward pass only.
    """
    if not requires_grad(source, target):
        return distance
    volume = source.grid.cell_volume
    return _Envelope.apply(source.tensor, target.tensor, distance.detach(), potentials, volume)  # pyright: ignore[reportReturnType]


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` so that second derivatives raise UnavailableError.

    Torch's `once_differentiable` checks the incoming gradient alone, which may be a constant.
    """

    @wraps(backward)
    def wrapper(ctx: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise UnavailableError(
                "Only first derivatives are implemented here; leave create_graph=True out."
            )
        return backward(ctx, *upstream)

    return wrapper


class _Envelope(torch.autograd.Function):
    """The distance as a function of the values at both ends."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        source: Tensor,
        target: Tensor,
        distance: Tensor,
        potentials: Potentials,
        volume: float,
    ) -> Tensor:
        ctx.distance, ctx.potentials, ctx.volume = distance, potentials, volume
        ctx.dtypes = source.dtype, target.dtype
        return distance.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Return (φ, ψ)/W2, since ½W2² has the gradient (φ, ψ); zero if W2 is zero."""
        is_positive = ctx.distance > 0
        safe = torch.where(is_positive, ctx.distance, 1.0)
        scale = torch.where(is_positive, upstream[0] / safe, 0.0)
        first, second = (
            (scale.reshape(scale.shape + (1,) * (field.ndim - scale.ndim)) * field * ctx.volume).to(
                dtype
            )
            for field, dtype in zip(ctx.potentials(), ctx.dtypes, strict=True)
        )
        return first, second, None, None, None
