"""The tables of cos(kπx) and of their derivatives; networks build their own, as jets.

All in double precision on the processor, whatever torch's defaults are.
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
    """κ_k = kπ/length for `modes` modes k = first, first + 1, …, (modes,)."""
    k = torch.arange(first, first + modes, dtype=torch.float64, device="cpu")
    return k * (math.pi / length)


def centres(cells: int) -> Tensor:
    """The centres of the cells of [0, 1], (cells,)."""
    return (torch.arange(cells, dtype=torch.float64, device="cpu") + 0.5) / cells


def faces(cells: int) -> Tensor:
    """The faces of the cells of [0, 1], (cells + 1,)."""
    return torch.arange(cells + 1, dtype=torch.float64, device="cpu") / cells


def waves(x: Tensor, kappa: Tensor, orders: int, odd: bool = False) -> Tensor:
    """cos κx at points x (N,) for κ (K,) and its first derivatives in x, (orders, N, K).

    Or those of sin κx, which are `odd` at zero. Autograd follows x.
    """
    phase = x[:, None] * kappa
    turns = (torch.sin, torch.cos) if odd else (torch.cos, torch.sin)
    signs = (1, 1, -1, -1) if odd else (1, -1, -1, 1)
    known = [turn(phase) for turn in turns[:orders]]
    return torch.stack([known[m % 2] * (signs[m % 4] * kappa**m) for m in range(orders)])


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def cosine_transform(n: int, odd: bool = False) -> Tensor:
    """(n, n): values at n cell centres to coefficients of cos(kπx), the inverse of their table.

    Or to those of sin(kπx), k = 1, …, n, where the function is `odd` at the faces.
    """
    (table,) = waves(centres(n), frequencies(n, first=int(odd)), 1, odd)
    matrix = table.T * (2.0 / n)
    matrix[-1 if odd else 0] /= 2
    return matrix


# ---- Functions on a box with ∂u/∂n = 0 on its faces, as cosine series with exact derivatives.


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


# ---- Matrices that take values along an axis to other places on it, or to derivatives there.
#
# Axes are scaled to [0, 1]; all matrices are single precision and kept. Values may be double.


MOST_CELLS = 512  # along an axis for which a spline is made a matrix


def along(matrices: Sequence[Tensor], values: Tensor) -> Tensor:
    """Apply a matrix (m_i, n_i) along each of the last axes of values (..., n_1, …, n_d).

    The last axis from the right and the others from the left: nothing is transposed, which would
    cost more than the products.
    """
    values = values @ matrices[-1].T
    for axis, matrix in enumerate(reversed(matrices[:-1]), start=2):
        values = from_left(matrix, values, axis)
    return values


def from_left(matrix: Tensor, values: Tensor, axis: int) -> Tensor:
    """Apply a matrix (m, n) along the axis that is the `axis`-th from the back."""
    before, after = values.shape[:-axis], values.shape[1 - axis :]
    columns = values.reshape(-1, values.shape[-axis], math.prod(after))
    return (matrix @ columns).reshape(*before, len(matrix), *after)


def derivatives(
    stacks: Sequence[Tensor], values: Tensor, most: int
) -> dict[tuple[int, ...], Tensor]:
    """Derivatives up to the order `most` in all, by their orders along the axes.

    stacks[i][k], (m_i, n_i), takes values along axis i to their k-th derivatives; values are
    (..., n_1, …, n_d). What several derivatives need is computed once.
    """
    found: dict[tuple[int, ...], Tensor] = {(): values}
    for axis, stack in enumerate(reversed(stacks), start=1):  # counted from the back
        found = {
            (order, *orders): part
            for orders, known in found.items()
            for order, part in enumerate(_each_order(stack[: most + 1 - sum(orders)], known, axis))
        }
    return found


def _each_order(stack: Tensor, values: Tensor, axis: int) -> tuple[Tensor, ...]:
    rows = stack.flatten(0, 1).to(values.dtype)
    product = values @ rows.T if axis == 1 else from_left(rows, values, axis)
    return product.chunk(len(stack), dim=-axis)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def series_matrices(count: int, modes: int, centred: bool = True) -> Tensor:
    """cos(kπx), its first and its second derivative for k < modes, (3, places, modes).

    At the centres of `count` cells or else at their faces.
    """
    return waves(_where(count, centred), frequencies(modes), 3).float()


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def refinement(coarse: int, fine: int, share: float, odd: bool) -> Tensor:
    """(2, fine, coarse): values at the centres of [0, 1] to those of [0, share], and their slopes.

    Through the series of cosines that has the values, or of sines where the function is `odd` at
    the faces: exact for functions with fewer modes than cells.
    """
    synthesis = waves(share * centres(fine), frequencies(coarse, first=int(odd)), 2, odd)
    return (synthesis @ cosine_transform(coarse, odd)).float()


def splined(values: Tensor, grid: Grid, counts: Sequence[int], centred: bool) -> Tensor:
    """Cubic splines of cell values (B, *grid.shape) at places in the cube around the grid's box.

    Along each axis at the centres of `count` cells, or else at their `count` + 1 faces, so that the
    answer is (B, *places). Outside the box, if that is no cube, they are zero.
    """
    axes = list(zip(grid.shape, unit_box(grid).sides, counts, strict=True))
    if max(grid.shape) <= MOST_CELLS:
        matrices = [_spline_matrix(cells, share, count, centred) for cells, share, count in axes]
        return along([matrix.to(values.dtype) for matrix in matrices], values)
    for _, share, count in axes:  # the matrix would be the spline of as many rows as cells
        values = _spline(values.movedim(1, -1), share, _where(count, centred)).to(values.dtype)
    return values


def spline_coefficients(values: Tensor, grid: Grid) -> Tensor:
    """Of the cubic B-splines through cell values (B, *grid.shape), in single precision.

    (B, *(cells + 4)): there are two more on each side.
    """
    if max(grid.shape) <= MOST_CELLS:
        return along([_filter_matrix(cells) for cells in grid.shape], values.float())
    for _ in grid.shape:  # always the axis in front, which then goes to the back
        values = spline_filter(values.movedim(1, -1).to(torch.float64))
    return values.float()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _filter_matrix(cells: int) -> Tensor:
    return spline_filter(torch.eye(cells, dtype=torch.float64)).T.float().contiguous()


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _spline_matrix(cells: int, share: float, count: int, centred: bool) -> Tensor:
    """Values of `cells` cells on [0, share] to their spline at the places, (places, cells)."""
    identity = torch.eye(cells, dtype=torch.float64)
    return _spline(identity, share, _where(count, centred)).T.float().contiguous()


def _spline(values: Tensor, share: float, where: Tensor) -> Tensor:
    """The spline along the last axis, which covers [0, share], at points (n,): (..., n)."""
    spline = CubicSpline(values.to(torch.float64), Grid(values.shape[-1], 0.0, share))
    return spline(where[:, None]) * (where <= share * (1 + 1e-9))


def unit_cells(count: int, share: float) -> Tensor:
    """The centres of `count` cells of [0, share], (count,)."""
    return (share * centres(count)).float()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def unit_centres(d: int, cells: int) -> Tensor:
    """The centres of cells^d cells of the unit cube, (d, cells^d)."""
    return Grid((cells,) * d).points().reshape(-1, d).T.float().contiguous()


def _where(count: int, centred: bool) -> Tensor:
    """The centres of `count` cells, or else their `count` + 1 faces."""
    return centres(count) if centred else faces(count)


# ---- Poisson's equation on cells, by cosines.


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
