"""Cosine series on a box, matrices that act along axes, and Poisson's equation in cosine modes.

Tables of cos(kπx) and their derivatives are double precision on the CPU, whatever torch's defaults
are. `CosineSeries` represents functions with ∂u/∂n = 0 on the faces of a box. The axis matrices act
on axes scaled to [0, 1], are single precision, and are cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from geonet.grid import Grid, unit_box
from geonet.numerics.interpolation import CubicSpline, spline_filter


def frequencies(modes: int, length: float = 1.0, first: int = 0) -> Tensor:
    """Return κ_k = kπ/length for k = first, …, first + modes − 1, (modes,)."""
    k = torch.arange(first, first + modes, dtype=torch.float64, device="cpu")
    return k * (math.pi / length)


def cell_centres_1d(cells: int) -> Tensor:
    """Return the centres of the cells of [0, 1], (cells,)."""
    return (torch.arange(cells, dtype=torch.float64, device="cpu") + 0.5) / cells


def cell_faces_1d(cells: int) -> Tensor:
    """Return the faces of the cells of [0, 1], (cells + 1,)."""
    return torch.arange(cells + 1, dtype=torch.float64, device="cpu") / cells


def cosine_table(x: Tensor, kappa: Tensor, orders: int, odd: bool = False) -> Tensor:
    """Return cos κx and its derivatives in x, (orders, N, K).

    Args:
        x: points (N,); the result is differentiable in x.
        kappa: frequencies (K,).
        orders: number of derivatives, counting the function itself.
        odd: use sin κx instead.
    """
    phase = x[:, None] * kappa
    functions = (torch.sin, torch.cos) if odd else (torch.cos, torch.sin)
    signs = (1, 1, -1, -1) if odd else (1, -1, -1, 1)
    values = [function(phase) for function in functions[:orders]]
    return torch.stack([values[m % 2] * (signs[m % 4] * kappa**m) for m in range(orders)])


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def cosine_transform(n: int, odd: bool = False) -> Tensor:
    """Return the matrix (n, n) from values at n cell centres to coefficients of cos(kπx), k < n.

    If the function is `odd` at the faces: to coefficients of sin(kπx), k = 1, …, n.
    """
    (table,) = cosine_table(cell_centres_1d(n), frequencies(n, first=int(odd)), 1, odd)
    matrix = table.T * (2.0 / n)
    matrix[-1 if odd else 0] /= 2
    return matrix


class CosineSeries:
    """Function u(x) = Σ_k c_k Π_i cos(k_i π (x_i − a_i)/L_i) on the box [a, a + L].

    Every term is even at every face, so its normal derivative vanishes there.

    Args:
        coefficients: c, (K_1, ..., K_d), float64.
        grid: a grid on the box; its shape is not used.
    """

    def __init__(self, coefficients: Tensor, grid: Grid):
        self.coefficients = coefficients
        self.grid = grid

    @classmethod
    def from_values(cls, values: Tensor, grid: Grid) -> CosineSeries:
        """Interpolate `values` (*grid.shape) at the cell centres, with one mode per cell."""
        for axis, n in enumerate(grid.shape):
            values = _apply_along(cosine_transform(n), values, axis)
        return cls(values, grid)

    def derivatives_on(self, grid: Grid) -> tuple[Tensor, Tensor]:
        """Return ∇u (d, *grid.shape) and D²u (d, d, *grid.shape) at the cell centres of a grid."""
        d = self.grid.dimension
        gradient = torch.stack([self._derivative_on(grid, i) for i in range(d)])
        return gradient, _hessian(lambda i, j: self._derivative_on(grid, i, j), d, dim=0)

    def values_on(self, grid: Grid) -> Tensor:
        """Return u at the cell centres of a grid, (*grid.shape)."""
        return self._derivative_on(grid)

    def at(self, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return u (N,), ∇u (N, d) and D²u (N, d, d) at scattered points (N, d)."""
        d = self.grid.dimension
        axes = zip(self.coefficients.shape, self.grid.lower, self.grid.lengths, strict=True)
        tables = [
            cosine_table(points[:, i] - lower, frequencies(modes, length), 3)
            for i, (modes, lower, length) in enumerate(axes)
        ]
        partial: dict[tuple[int, ...], Tensor] = {}

        def derivative(*directions: int) -> Tensor:
            first, *rest = (directions.count(axis) for axis in range(d))
            # Sums over all axes but the first are shared by every order along the first.
            if (key := tuple(rest)) not in partial:
                partial[key] = self._sum_other_axes(tables, key)
            return (tables[0][first] * partial[key]).sum(-1)

        gradient = torch.stack([derivative(i) for i in range(d)], -1)
        return derivative(), gradient, _hessian(derivative, d, dim=-1)

    def tabulate(self, grid: Grid) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
        """Return a faster `at` for series with many modes: cubic splines of values on a grid.

        The grid is extended beyond the faces, where the series is even, so that ∂u/∂n = 0 holds.
        """
        d = self.grid.dimension
        rows, columns = torch.triu_indices(d, d)
        grid = _extend(grid, cells=12)  # a cubic spline forgets its end: 0.27^12 < 1e-6
        gradient, hessian = self.derivatives_on(grid)
        fields = torch.cat([self.values_on(grid)[None], gradient, hessian[rows, columns]])
        spline = CubicSpline(fields, grid)

        def at(points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            values = spline(points)
            matrix = points.new_empty(len(points), d, d)
            matrix[:, rows, columns] = matrix[:, columns, rows] = values[1 + d :].T
            return values[0], values[1 : 1 + d].T, matrix

        return at

    def pad(self, shape: Sequence[int]) -> CosineSeries:
        """Return the same function with zero coefficients added up to `shape`."""
        larger = torch.zeros(tuple(shape), dtype=self.coefficients.dtype)
        larger[tuple(slice(n) for n in self.coefficients.shape)] = self.coefficients
        return CosineSeries(larger, self.grid)

    def _derivative_on(self, grid: Grid, *directions: int) -> Tensor:
        """Return the derivative of u in the given directions at the cell centres."""
        values = self.coefficients
        for axis in range(grid.dimension):
            cells, modes = grid.shape[axis], self.coefficients.shape[axis]
            start = grid.lower[axis] - self.grid.lower[axis]
            table = _centre_table(cells, modes, self.grid.lengths[axis], start, grid.spacing[axis])
            values = _apply_along(table[directions.count(axis)], values, axis)
        return values

    def _sum_other_axes(self, tables: Sequence[Tensor], orders: Sequence[int]) -> Tensor:
        """Sum over k_2..k_d, (N, K_1)."""
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
    """Return the cosine table at the cell centres of an axis; GMRES needs it at every step."""
    points = start + (torch.arange(cells, dtype=torch.float64) + 0.5) * spacing
    return cosine_table(points, frequencies(modes, length), 3)


def _hessian(derivative: Callable[..., Tensor], d: int, dim: int) -> Tensor:
    """Return the matrix of second derivatives from its upper triangle, with its axes at `dim`."""
    upper = {(i, j): derivative(i, j) for i in range(d) for j in range(i, d)}
    rows = [torch.stack([upper[min(i, j), max(i, j)] for j in range(d)], dim) for i in range(d)]
    return torch.stack(rows, dim if dim == 0 else dim - 1)


def _extend(grid: Grid, cells: int) -> Grid:
    """Add a number of cells beyond every face."""
    margins = [cells * h for h in grid.spacing]
    return Grid(
        [n + 2 * cells for n in grid.shape],
        [a - m for a, m in zip(grid.lower, margins, strict=True)],
        [b + m for b, m in zip(grid.upper, margins, strict=True)],
    )


def _apply_along(matrix: Tensor, values: Tensor, axis: int) -> Tensor:
    """Apply a matrix (m, n) along one axis of length n."""
    return torch.tensordot(matrix, values, dims=([1], [axis])).movedim(0, axis)  # pyright: ignore


# ---- matrices that act along axes scaled to [0, 1]

MAX_MATRIX_CELLS = 512  # largest axis for which spline interpolation is stored as a matrix


def apply_along_axes(matrices: Sequence[Tensor], values: Tensor) -> Tensor:
    """Apply a matrix (m_i, n_i) along each of the last axes of values (..., n_1, …, n_d).

    The last axis is multiplied from the right and the others from the left, since transposing
    would cost more than the products.
    """
    values = values @ matrices[-1].T
    for axis, matrix in enumerate(reversed(matrices[:-1]), start=2):
        values = left_multiply(matrix, values, axis)
    return values


def left_multiply(matrix: Tensor, values: Tensor, axis: int) -> Tensor:
    """Apply a matrix (m, n) along the axis −`axis` of values."""
    before, after = values.shape[:-axis], values.shape[1 - axis :]
    columns = values.reshape(-1, values.shape[-axis], math.prod(after))
    return (matrix @ columns).reshape(*before, len(matrix), *after)


def mixed_derivatives(
    stacks: Sequence[Tensor], values: Tensor, max_order: int
) -> dict[tuple[int, ...], Tensor]:
    """Return all derivatives of total order ≤ `max_order`, by their orders along the axes.

    Intermediate results that several derivatives share are computed once.

    Args:
        stacks: stacks[i][k], (m_i, n_i), maps values along axis i to their k-th derivatives.
        values: (..., n_1, …, n_d).
        max_order: largest total order.
    """
    result: dict[tuple[int, ...], Tensor] = {(): values}
    for axis, stack in enumerate(reversed(stacks), start=1):  # counted from the back
        result = {
            (order, *orders): part
            for orders, partial in result.items()
            for order, part in enumerate(
                _derivatives_along(stack[: max_order + 1 - sum(orders)], partial, axis)
            )
        }
    return result


def _derivatives_along(stack: Tensor, values: Tensor, axis: int) -> tuple[Tensor, ...]:
    rows = stack.flatten(0, 1).to(values.dtype)
    product = values @ rows.T if axis == 1 else left_multiply(rows, values, axis)
    return product.chunk(len(stack), dim=-axis)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def synthesis_matrices(count: int, modes: int, centred: bool = True) -> Tensor:
    """Return cos(kπx), k < modes, and its first two derivatives, (3, points, modes).

    The points are the centres of `count` cells, or their faces.
    """
    return cosine_table(_points_1d(count, centred), frequencies(modes), 3).float()


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def resampling_matrices(coarse: int, fine: int, share: float, odd: bool) -> Tensor:
    """Return matrices (2, fine, coarse) from values on [0, 1] to values and slopes on [0, share].

    They interpolate by the cosine series through the values, or by the sine series if the function
    is `odd` at the faces: exact for functions with fewer modes than cells.
    """
    synthesis = cosine_table(
        share * cell_centres_1d(fine), frequencies(coarse, first=int(odd)), 2, odd
    )
    return (synthesis @ cosine_transform(coarse, odd)).float()


def sample_spline(values: Tensor, grid: Grid, counts: Sequence[int], centred: bool) -> Tensor:
    """Evaluate cubic splines on a lattice in the unit cube that contains the scaled box.

    Args:
        values: cell values, (B, *grid.shape).
        grid: the grid of the values.
        counts: number of cells of the lattice along each axis of the cube.
        centred: evaluate at the cell centres; otherwise at the faces, one more along each axis.

    Returns:
        (B, *points); zero outside the box.
    """
    axes = list(zip(grid.shape, unit_box(grid).sides, counts, strict=True))
    if max(grid.shape) <= MAX_MATRIX_CELLS:
        matrices = [_spline_matrix(cells, share, count, centred) for cells, share, count in axes]
        return apply_along_axes([matrix.to(values.dtype) for matrix in matrices], values)
    for _, share, count in axes:  # always the first axis, which is then moved to the end
        points = _points_1d(count, centred)
        values = _evaluate_spline(values.movedim(1, -1), share, points).to(values.dtype)
    return values


def spline_coefficients(values: Tensor, grid: Grid) -> Tensor:
    """Return coefficients of the cubic B-splines through cell values (B, *grid.shape).

    The result is single precision, (B, *(cells + 4)): two more on each side.
    """
    if max(grid.shape) <= MAX_MATRIX_CELLS:
        return apply_along_axes([_filter_matrix(cells) for cells in grid.shape], values.float())
    for _ in grid.shape:  # always the first axis, which is then moved to the end
        values = spline_filter(values.movedim(1, -1).to(torch.float64))
    return values.float()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _filter_matrix(cells: int) -> Tensor:
    return spline_filter(torch.eye(cells, dtype=torch.float64)).T.float().contiguous()


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _spline_matrix(cells: int, share: float, count: int, centred: bool) -> Tensor:
    """Return the matrix (points, cells) from values on [0, share] to their spline."""
    identity = torch.eye(cells, dtype=torch.float64)
    return _evaluate_spline(identity, share, _points_1d(count, centred)).T.float().contiguous()


def _evaluate_spline(values: Tensor, share: float, points: Tensor) -> Tensor:
    """Evaluate the spline along the last axis, which covers [0, share], at points (n,)."""
    spline = CubicSpline(values.to(torch.float64), Grid(values.shape[-1], 0.0, share))
    return spline(points[:, None]) * (points <= share * (1 + 1e-9))


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def cube_centres(d: int, cells: int) -> Tensor:
    """Return the centres of cells^d cells of the unit cube, (d, cells^d), single precision."""
    return Grid((cells,) * d).points().reshape(-1, d).T.float().contiguous()


def _points_1d(count: int, centred: bool) -> Tensor:
    """Return the centres of `count` cells, or their `count` + 1 faces."""
    return cell_centres_1d(count) if centred else cell_faces_1d(count)


def laplacian_eigenvalues(
    shape: Sequence[int], spacing: Sequence[float], periodic: Sequence[bool] | None = None
) -> Tensor:
    """Return the eigenvalues of −Δ with the stencil 1, −2, 1 on cells, one for each mode.

    Modes are cosines along axes with walls, and those of the discrete Fourier transform along
    periodic axes. The constant mode has ∞ instead of zero, so that dividing by the result removes
    the mean.
    """
    total = torch.zeros(tuple(shape), dtype=torch.float64, device="cpu")
    flags = (False,) * len(shape) if periodic is None else periodic
    for axis, (n, h, wraps) in enumerate(zip(shape, spacing, flags, strict=True)):
        along = (2 - 2 * torch.cos((2 if wraps else 1) * frequencies(n) / n)) / h**2
        total += along.reshape(-1, *(1,) * (len(shape) - 1 - axis))
    total.view(-1)[0] = torch.inf
    return total
