"""Interpolation of gridded values.

`CubicSpline` interpolates smoothly: fourth order for smooth functions, up to the faces of the box.
`resample` transfers cell averages to another grid and conserves the mass of every region exactly.
`gaussian_blur` smooths along an axis.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from geonet.errors import GridError
from geonet.grid import Grid

GHOSTS = 2  # B-spline coefficients beyond each face


class CubicSpline:
    """Interpolating cubic B-spline s(x) = Σ_k c_k β³((x − x_k)/h) of gridded values.

    s is twice continuously differentiable, s(x_k) = values_k, and |s − f| = O(h⁴) everywhere in the
    box for f ∈ C⁴: beyond the faces the values are extrapolated by cubic polynomials, and along
    periodic axes they are repeated. Autograd
    differentiates it in the values and in the points. Like every cubic interpolation it may
    overshoot near jumps.

    Args:
        values: (*leading, *grid.shape).
        grid: the grid of the values.
    """

    def __init__(self, values: Tensor, grid: Grid):
        self.grid = grid
        self.batch_shape = tuple(values.shape[: values.ndim - grid.dimension])
        coefficients = values.reshape(-1, *grid.shape)
        for axis, wraps in enumerate(grid.periodic, start=1):
            coefficients = spline_filter(coefficients.movedim(axis, -1), wraps).movedim(-1, axis)
        self._padded_shape = tuple(coefficients.shape[1:])
        self._coefficients = coefficients.reshape(len(coefficients), -1)  # (B, C), C = Π padded

    def __call__(self, points: Tensor) -> Tensor:
        """Return values (*leading, N) at points (N, d), or at separate points (*leading, N, d).

        Points outside the box are moved to the nearest face, or wrapped along periodic axes.
        """
        index, weights, _ = self._taps(points)
        return self._contract(index, _outer(weights), points)

    def value_and_gradient(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return values (*leading, N) and gradients (*leading, N, d)."""
        index, weights, slopes = self._taps(points)
        value = self._contract(index, _outer(weights), points)
        gradient = [
            self._contract(index, _outer([*weights[:i], slopes[i], *weights[i + 1 :]]), points)
            for i in range(self.grid.dimension)
        ]
        return value, torch.stack(gradient, dim=-1)

    def _taps(self, points: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return flat indices (P, N, 4^d) of coefficients; weights, slopes (P, N, 4) per axis."""
        grid, d = self.grid, self.grid.dimension
        points = points.reshape(math.prod(points.shape[:-2]), points.shape[-2], d)
        index = torch.zeros(*points.shape[:-1], 1, dtype=torch.long)
        weights, slopes = [], []
        for i in range(d):
            h, n = grid.spacing[i], grid.shape[i]
            cells = (points[..., i] - grid.lower[i]) / h - 0.5
            if grid.periodic[i]:
                cells = cells - n * ((cells.detach() + 0.5) / n).floor()
            cells = cells.clamp(-0.5, n - 0.5)
            first = cells.detach().floor().clamp(-1, n - 1)
            w, dw = _cubic_weights(cells - first)
            weights.append(w)
            slopes.append(dw / h)
            taps = first.long()[..., None] + torch.arange(-1, 3) + GHOSTS
            index = index[..., :, None] * self._padded_shape[i] + taps[..., None, :]
            index = index.flatten(-2)
        return index, weights, slopes

    def _contract(self, index: Tensor, weights: Tensor, points: Tensor) -> Tensor:
        """Return Σ_taps weight · coefficient, (*leading, N).

        `embedding_bag` gathers and sums in one pass; indexing would store all taps at once.
        """
        table = self._coefficients.T  # (C, B): one row serves all densities
        if points.ndim > 2:  # separate points for each density: a table of width one
            batch, cells = self._coefficients.shape
            index = index + cells * torch.arange(batch)[:, None, None]
            table = self._coefficients.reshape(-1, 1)
        taps = index.shape[-1]
        summed = torch.nn.functional.embedding_bag(
            index.reshape(-1, taps),
            table.contiguous(),
            per_sample_weights=weights.to(table.dtype).reshape(-1, taps),
            mode="sum",
        )
        return summed.T.reshape(*self.batch_shape, points.shape[-2])


def resample(values: Tensor, source: Grid, target: Grid) -> Tensor:
    """Transfer cell averages (..., *source.shape) to another grid on the same box.

    The density is constant in each cell. Differences of its cumulative mass at the new edges give
    (..., *target.shape), so every new cell contains exactly the mass that lies in it.
    """
    if not source.same_box(target):
        raise GridError(
            f"Cannot resample from {source} to {target}: boxes or periodic axes differ; "
            "pass a grid on the same box with the same periodic axes."
        )
    d = source.dimension
    for i in reversed(range(d)):
        axis = values.ndim - d + i
        columns = values.movedim(axis, -1)
        n, m = source.shape[i], target.shape[i]
        if n % m == 0:  # means of blocks, as products, which are faster than reductions
            share = torch.full((n // m,), m / n, dtype=columns.dtype)
            values = (columns.unflatten(-1, (m, n // m)) @ share).movedim(-1, axis)
            continue
        zero = torch.zeros_like(columns[..., :1])
        cumulative = torch.cat([zero, columns.cumsum(-1)], dim=-1)
        edges = torch.arange(m + 1, dtype=columns.dtype) * (n / m)
        cell = edges.floor().clamp(max=n - 1)
        left = cell.long()
        below, above = cumulative[..., left], cumulative[..., left + 1]
        at_edges = below + (edges - cell) * (above - below)
        values = (at_edges.diff(dim=-1) * (m / n)).movedim(-1, axis)
    return values.contiguous()


def spline_filter(values: Tensor, periodic: bool = False) -> Tensor:
    """Return B-spline coefficients along the last axis: (..., n) to (..., n + 2·GHOSTS).

    (c_{k−1} + 4c_k + c_{k+1})/6 = s_k is inverted by its two-sided exponential impulse response.
    """
    pole = math.sqrt(3) - 2
    reach = 32  # |pole|^32 < 1e-18: the tail of the response is below rounding
    n, pad = values.shape[-1], reach + GHOSTS
    if periodic:
        padded = values[..., torch.arange(-pad, n + pad) % n]
    else:
        order = min(4, n)
        outward = _extrapolation(pad, order).to(values.dtype)
        left = (values[..., :order] @ outward.T).flip(-1)
        right = values[..., -order:].flip(-1) @ outward.T
        padded = torch.cat([left, values, right], dim=-1)
    offsets = torch.arange(-reach, reach + 1, dtype=values.dtype).abs()
    response = pole**offsets * (-6 * pole / (1 - pole**2))
    rows = padded.reshape(-1, 1, padded.shape[-1])
    filtered = torch.nn.functional.conv1d(rows, response[None, None])
    return filtered.reshape(*values.shape[:-1], n + 2 * GHOSTS)


def _extrapolation(count: int, order: int) -> Tensor:
    """Return (count, order): the polynomial through nodes 0..order−1 at −1, −2, ..., −count."""
    nodes = torch.arange(order, dtype=torch.float64)
    points = -torch.arange(1, count + 1, dtype=torch.float64)
    columns = []
    for k in range(order):
        others = nodes[nodes != k]
        columns.append(((points[:, None] - others) / (k - others)).prod(-1))
    return torch.stack(columns, dim=-1)


def _cubic_weights(s: Tensor) -> tuple[Tensor, Tensor]:
    """Return the four B-spline weights at offset s ∈ [0, 1] in a cell, and their derivatives."""
    r = 1 - s
    weights = torch.stack([r**3, 4 - 6 * s**2 + 3 * s**3, 4 - 6 * r**2 + 3 * r**3, s**3], -1) / 6
    slopes = torch.stack([-(r**2), 3 * s**2 - 4 * s, 4 * r - 3 * r**2, s**2], -1) / 2
    return weights, slopes


def _outer(weights: list[Tensor]) -> Tensor:
    """Return products of one weight per axis, (P, N, 4^d), in the order of the flat indices."""
    product = weights[0]
    for w in weights[1:]:
        product = (product[..., :, None] * w[..., None, :]).flatten(-2)
    return product


def gaussian_blur(
    values: Tensor, width: float, truncate: float = 4.0, periodic: bool = False
) -> Tensor:
    """Blur along the last axis by a Gaussian, with reflecting walls or periodic.

    Args:
        values: (..., n).
        width: standard deviation, in cells.
        truncate: half the width of the kernel, in standard deviations.
        periodic: whether the axis wraps around.
    """
    count, reach = values.shape[-1], math.ceil(truncate * width)
    offsets = torch.arange(-reach, reach + 1, dtype=values.dtype)
    kernel = torch.exp(-0.5 * (offsets / width) ** 2)
    index = torch.arange(-reach, count + reach) % (count if periodic else 2 * count)
    inside = torch.minimum(index, 2 * count - 1 - index)
    return values[..., inside].unfold(-1, len(kernel), 1) @ (kernel / kernel.sum())
