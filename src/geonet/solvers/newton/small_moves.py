"""Bounds of W2 for densities that are nearly equal, with errors relative to W2 itself.

The bounds of `bounds` move parts of cells as a whole, so that they are far apart if mass moves by
much less than a part. The following ones hold for all densities that are constant in their cells,
and are close if the change of the densities is small compared with these.

Below: let κ be an upper bound of |eigenvalues of D²u| for a potential u at t = ½. Then
u(y) ≥ u(z) + ∇u(z)·(y − z) − ½κ|y − z|², so that the Hopf–Lax formula gives u_1 at least
u − |∇u|²/(4 − 2κ), and u_0 at most u + |∇u|²/(4 − 2κ). By duality, for all u with κ < 2,

    W2² ≥ 2∫u d(μ1 − μ0) − ∫|∇u|² d(μ0 + μ1)/(2 − κ).

Above: let w be a flux with div w = μ0 − μ1 that does not cross the faces of the box. It drives
(1 − s)μ0 + sμ1, and the Benamou–Brenier formula gives, with the logarithmic mean L of μ0 and μ1,

    W2² ≤ ∫|w|²/L.

Fluxes through the faces of cells that are linear in between have a constant divergence in each
cell. Conjugate gradients solve −div(L∇p) = μ0 − μ1, and w is −L∇p. The divergence that is left is
paid by moving surplus to deficits, with the triangle inequality.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from geonet.solvers.newton.repairs import solve_poisson
from geonet.solvers.newton.system import bound_rebalancing

GAUSS_POINTS = ((-math.sqrt(0.15), 5 / 18), (0.0, 4 / 9), (math.sqrt(0.15), 5 / 18))


def bound_below(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    periodic: Sequence[bool],
) -> float:
    """Return a lower bound of W2².

    Args:
        coefficients: potential at t = ½, on the cells of the densities or on parts of them.
        source: masses of the cells with sum one, (*shape).
        target: likewise.
        sides: side lengths of the box.
        periodic: whether each axis is periodic.
    """
    c, shape = coefficients.double(), source.shape
    if any(own % n for own, n in zip(c.shape, shape, strict=True)):
        return 0.0
    step = [side / n for side, n in zip(sides, c.shape, strict=True)]
    padded = _pad(c - c.mean(), periodic)
    value = _apply(padded, [(1 / 6, 2 / 3, 1 / 6)] * c.ndim)
    square = torch.zeros_like(c)
    for points in product(GAUSS_POINTS, repeat=c.ndim):
        weight = math.prod(share for _, share in points)
        for axis in range(c.ndim):
            stencils = [
                _slope_stencil(x, h) if k == axis else _value_stencil(x)
                for k, ((x, _), h) in enumerate(zip(points, step, strict=True))
            ]
            square += weight * _apply(padded, stencils) ** 2
    gain = 2 * float((_average(value, shape) * (target - source)).sum())
    cost = float((_average(square, shape) * (source + target)).sum())
    curvature = _bound_curvature(padded, step)
    if not (cost > 0 and gain > 0):
        return 0.0
    scales = 1.0, gain / cost, gain / cost * max(0.0, 1 - curvature / 2)
    values = (s * gain - s**2 * cost / (2 - s * curvature) for s in scales if s * curvature < 2)
    return max(0.0, *values)


def _pad(values: Tensor, periodic: Sequence[bool]) -> Tensor:
    """Add the neighbours of the first and the last cells along each axis."""
    for axis, (n, wraps) in enumerate(zip(values.shape, periodic, strict=True)):
        index = torch.arange(-1, n + 1)
        values = values.index_select(axis, index % n if wraps else index.clamp(0, n - 1))
    return values


def _apply(padded: Tensor, stencils: Sequence[Sequence[float]]) -> Tensor:
    """Apply three weights along each axis of padded values."""
    for axis, weights in enumerate(stencils):
        n = padded.shape[axis] - 2
        terms = (w * padded.narrow(axis, k, n) for k, w in enumerate(weights) if w)
        padded = torch.as_tensor(sum(terms))
    return padded


def _value_stencil(x: float) -> tuple[float, float, float]:
    """Return the weights of the coefficients for the value at −½ ≤ x ≤ ½ from the centre."""
    return (0.5 - x) ** 2 / 2, 0.75 - x**2, (0.5 + x) ** 2 / 2


def _slope_stencil(x: float, step: float) -> tuple[float, float, float]:
    return (x - 0.5) / step, -2 * x / step, (x + 0.5) / step


def _average(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Return means over the cells of a coarser grid."""
    for axis, n in enumerate(shape):
        values = values.unflatten(axis, (n, -1)).mean(axis + 1)
    return values


def _bound_curvature(padded: Tensor, step: Sequence[float]) -> float:
    """Return an upper bound of |eigenvalues of D²u|.

    Second derivatives are convex combinations of second differences of the coefficients.
    """
    d = len(step)
    rows = []
    for axis, h in enumerate(step):
        row = float(padded.diff(2, axis).abs().max()) / h**2
        for other in range(d):
            if other != axis:
                mixed = padded.diff(dim=axis).diff(dim=other).abs().max()
                row += float(mixed) / (h * step[other])
        rows.append(row)
    return max(rows)


def bound_above(
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    periodic: Sequence[bool],
    max_iterations: int = 60,
    tolerance: float = 1e-3,
) -> float:
    """Return an upper bound of W2.

    Args:
        source: masses of the cells with sum one, (*shape).
        target: likewise.
        sides: side lengths of the box.
        periodic: whether each axis is periodic.
        max_iterations: largest number of conjugate gradient iterations.
        tolerance: share of the remaining divergence in the bound that ends the iteration.
    """
    step = [side / n for side, n in zip(sides, source.shape, strict=True)]
    mean = logarithmic_mean(source, target)
    conductances = [_couple(mean, axis, periodic[axis]) for axis in range(mean.ndim)]
    root = torch.where(mean > 0, mean.rsqrt(), 0.0)
    excess, p = torch.where(mean > 0, source - target, 0.0), torch.zeros_like(source)
    best = math.sqrt(bound_rebalancing(source - target, step))  # without a flux
    r, direction, before = excess, torch.zeros_like(p), 1.0
    for _ in range(max_iterations):
        z = root * solve_poisson(root * r, step, periodic).double()
        now = float((r * z).sum())
        if not now > 0:
            break
        direction = z + now / before * direction
        applied = _diverge(_flux(conductances, direction, step), step)
        curvature = float((direction * applied).sum())
        if not curvature > 0:
            break
        p, r, before = p + now / curvature * direction, r - now / curvature * applied, now
        driven, rest = _measure_flux(_flux(conductances, p, step), source, target, step)
        best = min(best, driven + rest)
        if rest <= tolerance * driven < math.inf:
            break
    return best


def logarithmic_mean(first: Tensor, second: Tensor) -> Tensor:
    """Return (b − a)/log(b/a), zero if a or b is."""
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    x = torch.where(low > 0, (high - low) / low, 0.0)
    ratio = torch.where(x > 1e-5, x / torch.log1p(x).clamp(min=1e-300), 1 + x / 2 - x**2 / 12)
    return torch.where(low > 0, low * ratio, 0.0)


def _couple(mean: Tensor, axis: int, wraps: bool) -> Tensor:
    """Return the conductance of the face after each cell along an axis, (*shape)."""
    following = mean.roll(-1, axis)
    total = mean + following
    coupling = torch.where(total > 0, 2 * mean * following / total, 0.0)
    if not wraps:
        coupling.narrow(axis, -1, 1).zero_()
    return coupling


def _flux(conductances: Sequence[Tensor], p: Tensor, step: Sequence[float]) -> list[Tensor]:
    """Return −k∂p through the face after each cell along each axis, as mass times velocity."""
    axes = zip(conductances, step, strict=True)
    return [k * (p - p.roll(-1, axis)) / h for axis, (k, h) in enumerate(axes)]


def _diverge(fluxes: Sequence[Tensor], step: Sequence[float]) -> Tensor:
    """Return the outflow of each cell."""
    axes = zip(fluxes, step, strict=True)
    return torch.as_tensor(
        sum((flux - flux.roll(1, axis)) / h for axis, (flux, h) in enumerate(axes))
    )


def _measure_flux(
    fluxes: Sequence[Tensor], source: Tensor, target: Tensor, step: Sequence[float]
) -> tuple[float, float]:
    """Return upper bounds of W2 from the source to the end of a flux, and from it to the target."""
    end = source - _diverge(fluxes, step)
    if bool((end < 0).any()):
        return math.inf, 0.0
    mean, squares = logarithmic_mean(source, end), torch.zeros_like(source)
    for axis, after in enumerate(fluxes):
        before = after.roll(1, axis)
        squares += (before**2 + before * after + after**2) / 3
    action = float(torch.where(squares > 0, squares / mean, 0.0).sum())
    return math.sqrt(action), math.sqrt(bound_rebalancing(end - target, step))
