"""Poisson's equation on cells, by cosines."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields.cosines import cosine_transform, frequencies


def poisson_solved(right: Tensor) -> Tensor:
    """−Δ⁻¹ of fields (B, *cells) of mean zero, in units of a cell; no flow through the faces.

    Δ has the stencil 1, −2, 1 along each axis, so cos(kπx) has the eigenvalue 2cos(kπ/n) − 2.
    """
    shape = right.shape[1:]
    for axis, n in enumerate(shape, 1):
        right = _product(right, _transforms(n)[0], axis)
    right = right / _eigenvalues(shape)
    for axis, n in enumerate(shape, 1):
        right = _product(right, _transforms(n)[1], axis)
    return right


def _product(values: Tensor, matrix: Tensor, axis: int) -> Tensor:
    if axis == values.ndim - 2:
        return matrix @ values
    return (values.movedim(axis, -1) @ matrix.T).movedim(-1, axis)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _transforms(n: int) -> tuple[Tensor, Tensor]:
    """Values to coefficients, and back, (n, n) each, single precision."""
    there = cosine_transform(n)
    return there.float(), torch.linalg.inv(there).float()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _eigenvalues(shape: torch.Size) -> Tensor:
    """Of −Δ, (*shape); that of the mean is infinite."""
    total = torch.zeros(shape, dtype=torch.float64, device="cpu")
    for axis, n in enumerate(shape):
        own = 2 - 2 * torch.cos(frequencies(n) / n)
        total += own.reshape(-1, *(1,) * (len(shape) - 1 - axis))
    total.view(-1)[0] = torch.inf
    return total.float()
