"""Weights to start a training from."""

from __future__ import annotations

from torch import Tensor
from torch.nn.init import xavier_normal_


def glorot(weight: Tensor) -> Tensor:
    """Glorot's normal weights, in place.

    A tensor without storage, whose values are loaded later, stays as it is: for such a one torch
    would import its compiler, which takes seconds.
    """
    return weight if weight.is_meta else xavier_normal_(weight)
