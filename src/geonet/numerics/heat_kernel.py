"""The heat flow with reflecting walls on the cells of a grid, on logarithms.

K_t acts on cell centres by the Gaussian of variance 2εt and its mirror images, axis by axis. While
2εt is at least a cell squared, sums over cells are integrals to 1e-8 (at half a cell squared: to
1e-4), however steep f is: the error does not depend on the slope of log f. (The nearest-neighbour
random walk, which conserves mass at all times, would add noise of the order |v|·h to the noise 2ε.)
For shorter times the density f_t·g_t is spread over a finer lattice first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from geonet.grid import Grid

RESOLVED = 1.0  # cells²: the least variance for which a sum over cells is an integral (to 1e-8)
FINEST = 16  # sub-cells per cell at most

Flow = Callable[[Tensor], Tensor]


def heat_flow(grid: Grid, epsilon: float, t: float, axes: Sequence[int] | None = None) -> Flow:
    """K_t along all axes or some, on logarithms."""
    kernels = {
        axis: HeatKernel(grid.shape[axis], 2 * epsilon * t / grid.spacing[axis] ** 2)
        for axis in (range(grid.dimension) if axes is None else axes)
    }

    def carry(log_values: Tensor) -> Tensor:
        for axis, kernel in kernels.items():
            log_values = kernel(log_values, axis)
        return log_values

    return carry


def carried_factors(
    log_f: Tensor, log_g: Tensor, grid: Grid, epsilon: float, t: float
) -> tuple[Tensor, Tensor]:
    """Logarithms of f_t and g_t for t ≤ ½, from those of f_0 and g_1.

    g has come at least half the way, so it is smooth; f may not be.
    """
    shortest = max(grid.spacing) ** 2 * RESOLVED / (2 * epsilon * FINEST**2)
    if 0 < t < shortest:  # mass moves by a fraction of a sub-cell: linear in time
        log_g_0, log_g_t = (heat_flow(grid, epsilon, 1 - s)(log_g) for s in (0.0, t))
        later_f, later_g = carried_factors(log_f, log_g, grid, epsilon, shortest)
        share = t / shortest
        log_density = torch.logaddexp(
            log_f + log_g_0 + math.log1p(-share), later_f + later_g + math.log(share)
        )
        return log_density - log_g_t, log_g_t
    for axis, (cells, h) in enumerate(zip(grid.shape, grid.spacing, strict=True)):
        variance = 2 * epsilon / h**2
        if 0 < variance * t < RESOLVED:
            partner = heat_flow(grid, epsilon, 1.0, range(axis + 1, grid.dimension))(log_g)
            log_f = _carried_briefly(log_f, partner, axis, variance, t)
        elif t > 0:
            log_f = HeatKernel(cells, variance * t)(log_f, axis)
        log_g = HeatKernel(cells, variance * (1 - t))(log_g, axis)
    return log_f, log_g


def _carried_briefly(log_f: Tensor, log_g: Tensor, axis: int, variance: float, t: float) -> Tensor:
    """Logarithm of f after the heat flow of variance·t < RESOLVED (cells²) along an axis.

    f alone may be too steep to interpolate, but f = m/(K_1 g) with a density m and a factor that is
    known between the centres as well; so m is spread over sub-cells, and the sum runs over those.
    """
    cells = log_f.shape[axis]
    refinement = math.ceil(1 / math.sqrt(variance * t))
    log_density = log_f + HeatKernel(cells, variance)(log_g, axis)
    top = log_density.max()
    spread = _spread((log_density - top).exp().movedim(axis, -1), refinement).movedim(-1, axis)
    log_fine = spread.log() + top - HeatKernel(cells, variance, at=refinement)(log_g, axis)
    return HeatKernel(cells, variance * t, nodes=refinement)(log_fine, axis)


def _spread(density: Tensor, refinement: int) -> Tensor:
    """Values (..., n) at centres to values ≥ 0 (..., n·refinement) at sub-cells, even at the walls.

    Each value m_i comes with the basis function of cubic interpolation where its neighbours are of
    its size, and tends to the hat function where they are much smaller: then the cubic's negative
    lobes (up to 0.064·m_i) would outweigh them. Both bases sum to one, so mass is kept.
    """
    n = density.shape[-1]
    position = (torch.arange(n * refinement, dtype=torch.float64) + 0.5) / refinement - 0.5
    first = position.floor().long()
    s = position - first
    cells = torch.arange(n)
    smallest = torch.stack([density[..., _folded(cells + k, n)] for k in (-2, -1, 1, 2)]).amin(0)
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
        cell = _folded(first + k - 1, n)
        total += density[..., cell] * (hat[k] + cubic_share[..., cell] * (cubic[k] - hat[k]))
    return total.clamp(min=0)


def _folded(index: Tensor, n: int) -> Tensor:
    """Indices beyond the walls, reflected."""
    index = index % (2 * n)
    return torch.where(index < n, index, 2 * n - 1 - index)


class HeatKernel:
    """The heat kernel on [0, cells] with reflecting walls, acting on logarithms: log(K exp(·)).

    Rows of K sum to one. They are taken in blocks: K_ij = (K_ij / K_rj)·K_rj, with r the middle row
    of its block. The first factor stays between e^±200 and is multiplied as a matrix; the second
    goes into the exponent, whose largest entry is taken out. So nothing that counts can underflow,
    and there are as many exponentials as blocks, not as rows.

    Args:
        cells: length of the axis.
        variance: of the kernel, in cells².
        at: sub-cells per cell at whose centres values are wanted, m = cells·at.
        nodes: sub-cells per cell at whose centres they are given, n = cells·nodes.
    """

    SPAN = 200.0
    CHUNK = 1 << 22  # entries held at once

    def __init__(self, cells: int, variance: float, at: int = 1, nodes: int = 1):
        log_kernel = _log_kernel(cells, variance, at, nodes)
        rows, columns = log_kernel.shape
        # log K changes by at most cells/variance per cell, |x_i − x_r| ≤ half a block
        size = min(max(int(2 * self.SPAN * variance / cells**2 * rows), 1), rows)
        padded = math.ceil(rows / size) * size
        grouped = log_kernel[torch.arange(padded).clamp(max=rows - 1)].reshape(-1, size, columns)
        self._rows = rows
        self._reference = grouped[:, size // 2]  # (blocks, n)
        self._ratio = (grouped - self._reference[:, None]).exp()  # (blocks, size, n)

    def __call__(self, log_values: Tensor, axis: int) -> Tensor:
        """Along one axis of log_values."""
        columns = log_values.movedim(axis, 0)
        flat = columns.reshape(len(columns), -1)
        width = max(1, self.CHUNK // self._reference.numel())
        carried = torch.cat([self._apply(part) for part in flat.split(width, dim=1)], dim=1)
        return carried.reshape(self._rows, *columns.shape[1:]).movedim(0, axis)

    def _apply(self, log_values: Tensor) -> Tensor:
        """(n, M) to (m, M)."""
        exponent = self._reference[..., None] + log_values  # (blocks, n, M)
        top = exponent.amax(1, keepdim=True).clamp(min=-1e300)  # finite where all is −inf
        carried = (self._ratio @ (exponent - top).exp()).log() + top
        return carried.reshape(-1, log_values.shape[1])[: self._rows]


def _log_kernel(cells: int, variance: float, at: int, nodes: int) -> Tensor:
    """Logarithm of K(x, y) = θ(x − y) + θ(x + y), (cells·at, cells·nodes).

    θ(d) = Σ_k N(d + 2·cells·k) sums the Gaussian over the images in both walls. All distances are
    multiples of half a sub-cell, so θ is needed at few places.
    """
    variance = min(variance, 9.0 * cells**2)  # beyond, the kernel is flat to 1e-19
    farthest = 1 + int(5 * math.sqrt(variance) / cells)  # images further off add nothing
    unit = 2 * max(at, nodes)
    period = 2 * cells * unit
    distance = torch.arange(period, dtype=torch.float64)[:, None] / unit
    images = distance + 2 * cells * torch.arange(-farthest - 1, farthest + 1)
    log_theta = (images.square() / (-2 * variance)).logsumexp(1)
    x = (2 * torch.arange(cells * at) + 1)[:, None] * (unit // (2 * at))
    y = (2 * torch.arange(cells * nodes) + 1) * (unit // (2 * nodes))
    log_kernel = torch.logaddexp(log_theta[(x - y) % period], log_theta[(x + y) % period])
    return log_kernel - log_kernel[0].logsumexp(0)  # the sum is the same in all rows
