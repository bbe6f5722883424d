"""Functions on a box with ∂u/∂n = 0 on its faces, as cosine series with exact derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields.cosines import cosine_transform, frequencies, waves
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline

MARGIN = 12  # cells after which a cubic spline has forgotten its end (0.27^12 < 1e-6)


class CosineSeries:
    """u(x) = Σ_k c_k Π_i cos(k_i π (x_i − a_i)/L_i) on the box [a, a + L].

    Even reflection at every face makes the normal derivative vanish there, term by term.

    Args:
        coefficients: c, (K_1, ..., K_d), float64.
        grid: names the box; its shape is not used.
    """

    def __init__(self, coefficients: Tensor, grid: Grid):
        self.coefficients = coefficients
        self.grid = grid

    @classmethod
    def through(cls, values: Tensor, grid: Grid) -> CosineSeries:
        """The series with one mode per cell that takes `values` (*grid.shape) at the centres."""
        for axis, n in enumerate(grid.shape):
            values = _along(cosine_transform(n), values, axis)
        return cls(values, grid)

    def derivatives_on(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """∇u (d, *grid.shape) and D²u (d, d, *grid.shape) at the cell centres of a grid."""
        d = self.grid.dimension
        gradient = torch.stack([self._on(grid, i) for i in range(d)])
        return gradient, _symmetric(lambda i, j: self._on(grid, i, j), d, dim=0)

    def values_on(self, grid: Grid) -> Tensor:
        """u, (*grid.shape)."""
        return self._on(grid)

    def at(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """u (N,), ∇u (N, d) and D²u (N, d, d) at scattered points (N, d)."""
        d = self.grid.dimension
        tables = [
            waves(points[:, i] - self.grid.lower[i], self.frequencies(i), 3) for i in range(d)
        ]
        partial: dict[tuple[int, ...], Tensor] = {}

        def derivative(*directions: int) -> Tensor:
            first, *rest = _orders(d, *directions)
            # Sums over all axes but the first are shared by every order along the first.
            if (key := tuple(rest)) not in partial:
                partial[key] = self._sum_behind_first(tables, key)
            return (tables[0][first] * partial[key]).sum(-1)

        gradient = torch.stack([derivative(i) for i in range(d)], -1)
        return derivative(), gradient, _symmetric(derivative, d, dim=-1)

    def sampled(self, grid: Grid) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
        """`at` for series of many modes: u, ∇u and D²u taken on a grid once, then cubic splines.

        The grid goes on beyond the faces, where the series is even: so ∂u/∂n = 0 on them stays.
        """
        d = self.grid.dimension
        rows, columns = torch.triu_indices(d, d)
        grid = _continued(grid)
        gradient, hessian = self.derivatives_on(grid)
        fields = torch.cat([self.values_on(grid)[None], gradient, hessian[rows, columns]])
        spline = CubicSpline(fields, grid)

        def at(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            values = spline(points)
            matrix = points.new_empty(len(points), d, d)
            matrix[:, rows, columns] = matrix[:, columns, rows] = values[1 + d :].T
            return values[0], values[1 : 1 + d].T, matrix

        return at

    def padded(self, shape: Sequence[int]) -> CosineSeries:
        """The same function with room for more modes."""
        larger = torch.zeros(tuple(shape), dtype=self.coefficients.dtype)
        larger[tuple(slice(n) for n in self.coefficients.shape)] = self.coefficients
        return CosineSeries(larger, self.grid)

    def frequencies(self, axis: int) -> Tensor:
        """κ_k = kπ/L along an axis, (K,)."""
        return frequencies(self.coefficients.shape[axis], self.grid.lengths[axis])

    def _on(self, grid: Grid, *directions: int) -> Tensor:
        """The derivative of u in the given directions at the cell centres."""
        values = self.coefficients
        for axis, order in enumerate(_orders(grid.dimension, *directions)):
            cells, modes = grid.shape[axis], self.coefficients.shape[axis]
            start = grid.lower[axis] - self.grid.lower[axis]
            table = _centre_table(cells, modes, self.grid.lengths[axis], start, grid.spacing[axis])
            values = _along(table[order], values, axis)
        return values

    def _sum_behind_first(self, tables: Sequence[Tensor], orders: Sequence[int]) -> Tensor:
        """Σ over k_2..k_d, (N, K_1)."""
        d, count = self.grid.dimension, tables[0].shape[1]
        if d == 1:
            return self.coefficients.expand(count, -1)
        last = tables[-1][orders[-1]]
        values = last @ self.coefficients.reshape(-1, self.coefficients.shape[-1]).T
        for axis in range(d - 2, 0, -1):
            values = values.reshape(count, -1, self.coefficients.shape[axis])
            values = (values * tables[axis][orders[axis - 1]][:, None, :]).sum(-1)
        return values


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _centre_table(cells: int, modes: int, length: float, start: float, spacing: float) -> Tensor:
    """The waves at the cell centres of an axis; cached, since GMRES asks for it at every step."""
    centres = start + (torch.arange(cells, dtype=torch.float64) + 0.5) * spacing
    return waves(centres, frequencies(modes, length), 3)


def _symmetric(derivative: Callable[..., Tensor], d: int, dim: int) -> Tensor:
    """The matrix of second derivatives from its upper triangle, with its two axes at `dim`."""
    upper = {(i, j): derivative(i, j) for i in range(d) for j in range(i, d)}
    rows = [torch.stack([upper[min(i, j), max(i, j)] for j in range(d)], dim) for i in range(d)]
    return torch.stack(rows, dim if dim == 0 else dim - 1)


def _continued(grid: Grid) -> Grid:
    """The same cells with MARGIN more beyond every face."""
    beyond = [MARGIN * h for h in grid.spacing]
    return Grid(
        [n + 2 * MARGIN for n in grid.shape],
        [a - m for a, m in zip(grid.lower, beyond, strict=True)],
        [b + m for b, m in zip(grid.upper, beyond, strict=True)],
    )


def _along(matrix: Tensor, values: Tensor, axis: int) -> Tensor:
    """Apply a matrix (m, n) along one axis of length n."""
    return torch.tensordot(matrix, values, dims=([1], [axis])).movedim(0, axis)  # pyright: ignore


def _orders(dimension: int, *derivatives: int) -> list[int]:
    return [derivatives.count(axis) for axis in range(dimension)]
