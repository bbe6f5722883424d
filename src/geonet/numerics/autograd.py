"""Gradients with respect to the densities at the ends, for autograd.

W2² has them by the envelope theorem. It is the largest value of Kantorovich's dual problem,

    ½W2²(μ_0, μ_1) = max ∫φ dμ_0 + ∫ψ dμ_1        over φ(x) + ψ(y) ≤ ½|x − y|²,

and where a maximum is attained the maximiser may be held still: the gradient in μ_0 is φ, in μ_1 it
is ψ. A path's potential gives both, φ = −u_0 and ψ = u_1, so nothing has to be differentiated. For
any other pair of the constraint, as that of a network, the value is below ½W2² for all densities:
(φ, ψ) is a subgradient up to the gap between the two values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from geonet.density import Density
from geonet.errors import UnavailableError
from geonet.mixture import GaussianMixture

Potentials = Callable[[], tuple[Tensor, Tensor]]


def wanted(*ends: Density | GaussianMixture) -> bool:
    """Whether autograd is on and any of the ends takes part in it."""
    return torch.is_grad_enabled() and any(map(_takes_part, ends))


def root(square: Tensor) -> Tensor:
    """√square; the gradient, which is infinite at zero, is zero there, so that no NaN comes out.

    That suits a distance: it has no gradient at zero, and its square has the right one.
    """
    if not square.requires_grad:
        return square.clamp(min=0).sqrt()
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def with_dual_gradient(
    distance: Tensor, source: Density, target: Density, potentials: Potentials
) -> Tensor:
    """A distance W2, (batch?), with the gradient of the envelope theorem.

    Args:
        distance: its value.
        source: μ_0.
        target: μ_1, on the same grid.
        potentials: gives Kantorovich's φ and ψ at the cells, (batch?, *shape) each, up to constants
            of sum zero; called when the gradient is asked for, and not before.
    """
    if not wanted(source, target):
        return distance
    volume = source.grid.cell_volume
    return _Envelope.apply(source.tensor, target.tensor, distance.detach(), potentials, volume)  # pyright: ignore[reportReturnType]


def first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """For a `backward` that cannot be differentiated itself: where it would be, it refuses.

    Torch's `once_differentiable` looks at the incoming gradient alone, which may be a constant.
    """

    @wraps(backward)
    def guarded(ctx: Any, *upstream: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise UnavailableError(
                "geonet has first derivatives only here; leave create_graph=True out."
            )
        return backward(ctx, *upstream)

    return guarded


class _Envelope(torch.autograd.Function):
    """The distance as a function of both ends' values."""

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
    @first_order
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        """By W2, since the gradient of ½W2² is W2 times that of W2; zero where W2 is."""
        apart = ctx.distance > 0
        scale = torch.where(apart, upstream[0] / torch.where(apart, ctx.distance, 1.0), 0.0)
        first, second = (
            (scale.reshape(scale.shape + (1,) * (field.ndim - scale.ndim)) * field * ctx.volume).to(
                dtype
            )
            for field, dtype in zip(ctx.potentials(), ctx.dtypes, strict=True)
        )
        return first, second, None, None, None


def _takes_part(end: Density | GaussianMixture) -> bool:
    if isinstance(end, Density):
        return end.tensor.requires_grad
    return any(part.requires_grad for part in end.parts().values())
