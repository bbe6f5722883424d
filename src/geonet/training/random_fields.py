"""What random densities are made with: numbers of simple laws, random fields, and a blur.

All random numbers come from the generator that is given. All tensors are single precision.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields.cosines import centres, frequencies, waves

Range = tuple[float, float]

SHARP = 0.4  # of all densities: `blurred` leaves them as they are
LEAST = 1e-5  # less is rounding that a blur left, or the tail of what lies outside


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Numbers U[low, high), of this shape."""
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float32)


def log_uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Numbers whose logarithms are uniform: every octave between low and high is as likely."""
    return uniform(generator, math.log(low), math.log(high), *shape).exp()


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Numbers N(0, 1), of this shape."""
    return torch.randn(shape, generator=generator, dtype=torch.float32)


def chance(generator: torch.Generator, share: float | Tensor, *shape: int) -> Tensor:
    """Independent yes or no, of this shape; yes with probability `share`."""
    return uniform(generator, 0, 1, *shape) < share


def smooth_fields(
    generator: torch.Generator,
    count: int,
    cells: int,
    length: Range = (0.02, 0.6),
    decay: Range = (0.0, 6.0),
) -> Tensor:
    """Gaussian random fields of mean zero and standard deviation one, (count, cells, cells).

    The coefficients of cos(πk₁x)·cos(πk₂y) have the amplitudes (1 + ℓ²π²(rk₁² + k₂²/r))^(−p/2).
    Each field has its own length ℓ, log-uniform in `length`, below which detail fades, its own
    decay p, uniform in `decay` (0 is white noise), and its own r, log-uniform in [½, 2].
    """
    k = frequencies(cells).float()
    stretch = log_uniform(generator, 0.5, 2, count, 1, 1)
    squared = k[:, None] ** 2 * stretch + k**2 / stretch
    scale = log_uniform(generator, *length, count, 1, 1)
    power = uniform(generator, *decay, count, 1, 1)
    amplitude = (1 + squared * scale**2) ** (-power / 2)
    amplitude[:, 0, 0] = 0
    table = _orthonormal(cells)
    field = table @ (amplitude * normal(generator, count, cells, cells)) @ table.T
    return field / field.square().mean((1, 2), keepdim=True).sqrt()


def blurred(generator: torch.Generator, values: Tensor, widest: float) -> Tensor:
    """Values (count, n, n) after Gaussian blurs of their own, U[0, widest] cells wide.

    The walls reflect. Some stay as they are.
    """
    count, n, _ = values.shape
    width = widest * uniform(generator, 0, 1, count, 1, 1)
    sharp = chance(generator, SHARP, count, 1, 1)
    k, table = frequencies(n).float() / n, _orthonormal(n)
    damping = torch.exp(-0.5 * width**2 * (k[:, None] ** 2 + k**2))
    smooth = table @ ((table.T @ values @ table) * damping) @ table.T
    return torch.where(sharp, values, smooth.clamp(min=0))  # rounding may go below


def normalised(values: Tensor) -> Tensor:
    """Values (..., n, n) of mean one; ones in place of those whose mean is below `LEAST`."""
    mean = values.mean((-2, -1), keepdim=True)
    return torch.where(mean > LEAST, values / mean, 1.0)


@lru_cache(maxsize=8)
def _orthonormal(n: int) -> Tensor:
    """The cosines at n cell centres, as an orthogonal matrix (n, n): a column for each mode."""
    (table,) = waves(centres(n), frequencies(n), 1)
    table = table * math.sqrt(2 / n)
    table[:, 0] /= math.sqrt(2)
    return table.float()
