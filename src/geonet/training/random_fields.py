"""What random densities in 2D and 3D are made with: numbers of simple laws, fields, and a blur.

All random numbers come from the generator that is given. All tensors are single precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from geonet.numerics.cosine import centres, frequencies, waves

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
    dimension: int = 2,
) -> Tensor:
    """Gaussian random fields of mean zero and standard deviation one, (count, cells, …, cells).

    The coefficients of cos(πk₁x)·cos(πk₂y)·… have the amplitudes (1 + ℓ²π²κ²)^(−p/2), where κ² is
    rk₁² + k₂²/r, in 3D rk₁² + k₂²s/r + k₃²/s. Each field has its own length ℓ, log-uniform in
    `length`, below which detail fades, its own decay p, uniform in `decay` (0 is white noise), and
    its own r and s, log-uniform in [½, 2].
    """
    one = (1,) * dimension
    stretches = [log_uniform(generator, 0.5, 2, count, *one) for _ in range(dimension - 1)]
    k, end = frequencies(cells).float(), torch.ones(one)
    squared = _squared_lengths(k, [end, *stretches, end])
    scale = log_uniform(generator, *length, count, *one)
    power = uniform(generator, *decay, count, *one)
    amplitude = (1 + squared * scale**2) ** (-power / 2)
    amplitude.flatten(1)[:, 0] = 0
    table = _orthonormal(cells)
    field = _transformed(amplitude * normal(generator, count, *(cells,) * dimension), table)
    return field / field.square().mean(tuple(range(1, field.ndim)), keepdim=True).sqrt()


def blurred(generator: torch.Generator, values: Tensor, widest: float) -> Tensor:
    """Values (count, n, …, n) after Gaussian blurs of their own, U[0, widest] cells wide.

    The walls reflect. Some stay as they are.
    """
    (count, n), one = values.shape[:2], (1,) * (values.ndim - 1)
    width = widest * uniform(generator, 0, 1, count, *one)
    sharp = chance(generator, SHARP, count, *one)
    k, table = frequencies(n).float() / n, _orthonormal(n)
    squared = _squared_lengths(k, [torch.ones(one)] * values.ndim)
    damping = torch.exp(-0.5 * width**2 * squared)
    smooth = _transformed(_transformed(values, table.T) * damping, table)
    return torch.where(sharp, values, smooth.clamp(min=0))  # rounding may go below


def normalised(values: Tensor, dimension: int = 2) -> Tensor:
    """Values (..., n, …, n) of mean one; ones in place of those whose mean is below `LEAST`."""
    mean = values.mean(tuple(range(-dimension, 0)), keepdim=True)
    return torch.where(mean > LEAST, values / mean, 1.0)


def _squared_lengths(k: Tensor, stretches: Sequence[Tensor]) -> Tensor:
    """Σ over axes of k²·(stretch after it)/(stretch before it) for k (n,): (count or 1, n, …, n).

    There is one stretch more than axes; the first and the last are ones.
    """
    d = len(stretches) - 1
    total = torch.zeros((1,) * (d + 1))
    for axis, (before, after) in enumerate(pairwise(stretches)):
        line = (k**2).reshape(-1, *(1,) * (d - 1 - axis))
        total = total + line * after / before
    return total


def _transformed(values: Tensor, table: Tensor) -> Tensor:
    """Fields (count, n, …, n) after a matrix (n, n) along each of their two or three axes."""
    values = table @ values @ table.T
    return values if values.ndim == 3 else (table @ values.flatten(2)).view_as(values)


@lru_cache(maxsize=8)
def _orthonormal(n: int) -> Tensor:
    """The cosines at n cell centres, as an orthogonal matrix (n, n): a column for each mode."""
    (table,) = waves(centres(n), frequencies(n), 1)
    table = table * math.sqrt(2 / n)
    table[:, 0] /= math.sqrt(2)
    return table.float()
