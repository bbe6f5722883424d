"""Heat flow on the cells of a grid with walls or periodic axes, in the logarithmic domain.

K_t acts on cell centres by the Gaussian of variance 2εt and its images, axis by axis: mirror images
in reflecting walls, or those one, two, … periods away. If 2εt
is at least a cell squared, sums over cells equal integrals up to 1e-8 (at half a cell squared: up
to 1e-4), however steep log f is. For shorter times the density f_t·g_t is refined to sub-cells
first. (A nearest-neighbour random walk would conserve mass at all times but add noise of the order
|v|·h to the noise 2ε.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from geonet.grid import Grid

MIN_VARIANCE = 1.0  # cells²: smallest variance for which a sum over cells equals the integral
MAX_REFINEMENT = 16  # sub-cells per cell

LogOperator = Callable[[Tensor], Tensor]  # log f to log(K f)


def heat_flow(
    grid: Grid,
    epsilon: float,
    t: float,
    axes: Sequence[int] | None = None,
    weights: Mapping[int, Tensor] | None = None,
) -> LogOperator:
    """Return the operator log f ↦ log(K_t f), along all axes or some.

    Args:
        grid: the cells.
        epsilon: ε, in units of length squared.
        t: time.
        axes: axes along which the heat flows; all by default.
        weights: for periodic axes, factors (n,) by which K(x, y) is multiplied; entry k is for
            y = x + k cells. None by default.
    """
    kernels = {
        axis: HeatKernel(
            grid.shape[axis],
            2 * epsilon * t / grid.spacing[axis] ** 2,
            periodic=grid.periodic[axis],
            weights=(weights or {}).get(axis),
        )
        for axis in (range(grid.dimension) if axes is None else axes)
    }

    def apply(log_values: Tensor) -> Tensor:
        for axis, kernel in kernels.items():
            log_values = kernel(log_values, axis)
        return log_values

    return apply


def propagate_factors(
    log_f: Tensor, log_g: Tensor, grid: Grid, epsilon: float, t: float
) -> tuple[Tensor, Tensor]:
    """Return log f_t and log g_t for t ≤ ½, from log f_0 and log g_1.

    The heat flow has smoothed g over at least half the time; f may still be rough.
    """
    shortest = max(grid.spacing) ** 2 * MIN_VARIANCE / (2 * epsilon * MAX_REFINEMENT**2)
    if 0 < t < shortest:  # mass moves by a fraction of a sub-cell: interpolate linearly in time
        log_g_0, log_g_t = (heat_flow(grid, epsilon, 1 - s)(log_g) for s in (0.0, t))
        later_f, later_g = propagate_factors(log_f, log_g, grid, epsilon, shortest)
        fraction = t / shortest
        log_density = torch.logaddexp(
            log_f + log_g_0 + math.log1p(-fraction), later_f + later_g + math.log(fraction)
        )
        return log_density - log_g_t, log_g_t
    for axis, (cells, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        variance, wraps = 2 * epsilon / h**2, grid.periodic[axis]
        if 0 < variance * t < MIN_VARIANCE:
            partner = heat_flow(grid, epsilon, 1.0, range(axis + 1, grid.dimension))(log_g)
            log_f = _propagate_short(log_f, partner, axis, variance, t, wraps)
        elif t > 0:
            log_f = HeatKernel(cells, variance * t, periodic=wraps)(log_f, axis)
        log_g = HeatKernel(cells, variance * (1 - t), periodic=wraps)(log_g, axis)
    return log_f, log_g


def _propagate_short(
    log_f: Tensor, log_g: Tensor, axis: int, variance: float, t: float, periodic: bool
) -> Tensor:
    """Apply the heat flow of variance·t < MIN_VARIANCE (cells²) to log f along an axis.

    f may be too steep to interpolate, but f = m/(K_1 g) with a density m and a factor that can be
    evaluated between the centres; so m is refined to sub-cells, and the sum runs over these.
    """
    cells = log_f.shape[axis]
    refinement = math.ceil(1 / math.sqrt(variance * t))
    log_density = log_f + HeatKernel(cells, variance, periodic=periodic)(log_g, axis)
    top = log_density.max()
    columns = (log_density - top).exp().movedim(axis, -1)
    fine = _refine(columns, refinement, periodic).movedim(-1, axis)
    between = HeatKernel(cells, variance, at=refinement, periodic=periodic)(log_g, axis)
    log_fine = fine.log() + top - between
    return HeatKernel(cells, variance * t, nodes=refinement, periodic=periodic)(log_fine, axis)


def _refine(density: Tensor, refinement: int, periodic: bool = False) -> Tensor:
    """Interpolate values (..., n) at centres to values ≥ 0 (..., n·refinement) at sub-cells.

    Each value m_i is multiplied by the basis function of cubic interpolation if its neighbours have
    a similar size. If they are much smaller, the negative lobes of the cubic (up to 0.064·m_i)
    would outweigh them, so the basis function tends to the hat function. Both bases sum to one,
    which conserves mass. Values are reflected at the walls, or periodic.
    """
    n = density.shape[-1]
    position = (torch.arange(n * refinement, dtype=torch.float64) + 0.5) / refinement - 0.5
    first = position.floor().long()
    s = position - first
    cells = torch.arange(n)
    near = (_fold(cells + k, n, periodic) for k in (-2, -1, 1, 2))
    smallest = torch.stack([density[..., cell] for cell in near]).amin(0)
    cubic_share = (7 * smallest / density.clamp(min=1e-300)).clamp(max=1)
    cubic = (
        s * (1 - s) * (s - 2) / 6,
        (1 - s * s) * (2 - s) / 2,
        s * (1 + s) * (2 - s) / 2,
        s * (s * s - 1) / 6,
    )
    hat = (0.0, 1 - s, s, 0.0)
    total = torch.zeros(*density.shape[:-1], n * refinement, dtype=density.dtype)
    for k in range(4):
        cell = _fold(first + k - 1, n, periodic)
        total += density[..., cell] * (hat[k] + cubic_share[..., cell] * (cubic[k] - hat[k]))
    return total.clamp(min=0)


def _fold(index: Tensor, n: int, periodic: bool) -> Tensor:
    """Reflect indices beyond the walls, or wrap them."""
    if periodic:
        return index % n
    index = index % (2 * n)
    return torch.where(index < n, index, 2 * n - 1 - index)


class HeatKernel:
    """Heat kernel K on [0, cells] with walls or periodic, as the operator log(K exp(·)).

    Rows of K sum to one. They are processed in blocks: K_ij = (K_ij / K_rj)·K_rj, with r the middle
    row of the block. The first factor stays between e^±span and is multiplied as a matrix; the
    second is added to the exponent, whose largest entry is factored out. This avoids underflow, and
    the number of exponentials grows with the number of blocks instead of rows.

    Args:
        cells: length of the axis.
        variance: variance of the kernel, in cells².
        at: output points per cell, m = cells·at.
        nodes: input points per cell, n = cells·nodes.
        periodic: whether the axis is a circle; otherwise walls reflect.
        weights: positive factors (cells,) of K(x, y) on a circle, for y = x + 0, 1, … cells.
    """

    span = 200.0
    chunk = 1 << 22  # entries in memory at once

    def __init__(
        self,
        cells: int,
        variance: float,
        at: int = 1,
        nodes: int = 1,
        periodic: bool = False,
        weights: Tensor | None = None,
    ):
        log_kernel = _log_kernel(cells, variance, at, nodes, periodic)
        if weights is not None:
            index = torch.arange(cells)
            log_kernel = log_kernel + weights.log()[(index - index[:, None]) % cells]
        rows, columns = log_kernel.shape
        # log K changes by at most cells/variance per cell, |x_i − x_r| ≤ half a block
        size = min(max(int(2 * self.span * variance / cells**2 * rows), 1), rows)
        padded = math.ceil(rows / size) * size
        grouped = log_kernel[torch.arange(padded).clamp(max=rows - 1)].reshape(-1, size, columns)
        self._rows = rows
        self._reference = grouped[:, size // 2]  # (blocks, n)
        self._ratio = (grouped - self._reference[:, None]).exp()  # (blocks, size, n)

    def __call__(self, log_values: Tensor, axis: int) -> Tensor:
        """Apply the operator along one axis of log_values."""
        columns = log_values.movedim(axis, 0)
        flat = columns.reshape(len(columns), -1)
        width = max(1, self.chunk // self._reference.numel())
        result = torch.cat([self._apply(part) for part in flat.split(width, dim=1)], dim=1)
        return result.reshape(self._rows, *columns.shape[1:]).movedim(0, axis)

    def _apply(self, log_values: Tensor) -> Tensor:
        """Map (n, M) to (m, M)."""
        exponent = self._reference[..., None] + log_values  # (blocks, n, M)
        top = exponent.amax(1, keepdim=True).clamp(min=-1e300)  # finite if all are −inf
        result = (self._ratio @ (exponent - top).exp()).log() + top
        return result.reshape(-1, log_values.shape[1])[: self._rows]


def _log_kernel(cells: int, variance: float, at: int, nodes: int, periodic: bool = False) -> Tensor:
    """Return log K with K(x, y) = θ(x − y) + θ(x + y), (cells·at, cells·nodes).

    θ(d) = Σ_k N(d + 2·cells·k) sums the Gaussian over its mirror images in both walls. On a circle
    K(x, y) = θ(x − y) + θ(x − y + cells). All distances are multiples of half a sub-cell, so few
    values of θ are needed.
    """
    variance = min(variance, 9.0 * cells**2)  # the kernel is flat to 1e-19 beyond
    farthest = 1 + int(5 * math.sqrt(variance) / cells)  # farther images contribute nothing
    unit = 2 * max(at, nodes)
    period = 2 * cells * unit
    distance = torch.arange(period, dtype=torch.float64)[:, None] / unit
    images = distance + 2 * cells * torch.arange(-farthest - 1, farthest + 1)
    log_theta = (images.square() / (-2 * variance)).logsumexp(1)
    x = (2 * torch.arange(cells * at) + 1)[:, None] * (unit // (2 * at))
    y = (2 * torch.arange(cells * nodes) + 1) * (unit // (2 * nodes))
    image = x - y + period // 2 if periodic else x + y
    log_kernel = torch.logaddexp(log_theta[(x - y) % period], log_theta[image % period])
    return log_kernel - log_kernel[0].logsumexp(0)  # the sum is the same in all rows
