"""Bounds of W2 from a potential u at t = ½, valid for any u: wrong, folded or not converged.

Below: the Kantorovich dual value of the admissible pair that u defines,

    ½W2² ≥ ∫u_1 dμ1 − ∫u_0 dμ0,
    u_1(x) = min_y u(y) + |x − y|²,        u_0(x) = max_y u(y) − |x − y|².

The minimum is taken over a lattice and then improved by Newton's method.

Above: the cost of a plan with the right marginals. The half-cells y of a measure ν go from y − ½∇u
to y + ½∇u, and the mass that arrives in a cell is spread evenly over it. Cells then hold too much
or too little mass, which is repaired in two stages: by a few rounds of a flow between neighbours
along the gradient of a Poisson problem, limited by the mass of the cells; then scale by scale, in
blocks of 2, 4, 8, … cells per axis, within which surplus goes to deficits in proportion. The cost
of the composed plan is computed exactly, not by the triangle inequality, so that repairs over short
distances cost little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from scipy.fft import dctn, idctn
from torch import Tensor
from torch.nn.functional import pad

from geonet.numerics import symmetric_matrices as symmetric
from geonet.numerics.c_transform import Lattice, transform_with_minimisers
from geonet.numerics.splines import (
    evaluate_at_half_cells,
    evaluate_at_points,
    half_cell_centres,
    overlap_fractions,
    prolong_spline,
    spline_stencil,
)
from geonet.solvers.newton.system import displaced_boxes, signed_det_and_cofactor


@dataclass(frozen=True)
class BoundsConfig:
    """Tuning parameters of the bounds."""

    slack: float = 1e-3  # relative safety margin of the lower bound, for its quadrature
    lattice_parts: int = 2  # lattice intervals per cell for the search of minima
    newton_steps: int = 2  # Newton steps from the best lattice point
    quadrature_points: int = 2**15  # number of points to which coarse grids are subdivided
    max_axis_points: int = 2**11  # largest number of points along an axis
    small_grid: int = 2**14  # cells up to which cells have several quadrature points
    far_distance: float = 8.0  # W2 in cells above which large grids have one point per cell
    max_spreading: float = 0.01  # share of W2² that spreading over cells may add to the upper bound
    negligible_spreading: float = 0.001  # share of W2² below which cells of a plan are merged
    min_plan_cells: int = 2**12  # cells below which cells of a plan are not merged
    max_plan_cells: int = 2**18  # largest number of cells of a plan
    max_subdivision: int = 16  # largest number of parts of a cell along an axis
    flow_rounds: int = 3  # rounds of the flow between neighbours
    chunk: int = 2**18  # points or half-cells that are processed together


DEFAULT_BOUNDS = BoundsConfig()


def lower_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    distance: float = 0.0,
    config: BoundsConfig = DEFAULT_BOUNDS,
) -> float:
    """Return a lower bound of W2.

    Args:
        coefficients: potential, (*cells).
        source: density, (*own cells), on a box with corner zero.
        target: likewise.
        sides: side lengths of the box.
        distance: estimate of W2, if there is one.
        config: tuning parameters.
    """
    cell = max(side / n for side, n in zip(sides, source.shape, strict=True))
    is_far = distance > config.far_distance * cell
    first = _dual_integral(-1.0 * coefficients, source, sides, is_far, config)
    second = _dual_integral(1.0 * coefficients, target, sides, is_far, config)
    return (1 - config.slack) * math.sqrt(max(0.0, 2 * (first + second)))


def _dual_integral(
    coefficients: Tensor,
    density: Tensor,
    sides: Sequence[float],
    is_far: bool,
    config: BoundsConfig,
) -> float:
    """Return ∫(min_y u(y) + |x − y|²) dμ(x), by two Gauss points per axis and cell of μ.

    On large grids with distant mass one point per cell suffices: u_1 − |x|² is concave, so that
    the error is some hundredths of a squared cell.
    """
    while (
        int((density > 0).sum()) * 4**density.ndim <= config.quadrature_points
        and density.numel() * 2**density.ndim <= config.small_grid
        and 2 * max(density.shape) <= config.max_axis_points
    ):
        for axis in range(density.ndim):  # few points would miss variations of u_1 within a cell
            density = density.repeat_interleave(2, axis)
    has_gauss_points = density.numel() <= config.small_grid or not is_far
    step = [side / n for side, n in zip(sides, coefficients.shape, strict=True)]
    parts = config.lattice_parts if has_gauss_points else 1
    while (
        coefficients.numel() * (2 * parts) ** density.ndim <= config.quadrature_points
        and 2 * parts * max(coefficients.shape) <= config.max_axis_points
    ):
        parts *= 2
    lattices = [
        Lattice(0.0, h / parts, parts * n + 1)
        for h, n in zip(step, coefficients.shape, strict=True)
    ]
    values = _evaluate_on_lattice(coefficients, step, lattices)
    cell = [side / n for side, n in zip(sides, density.shape, strict=True)]
    has_mass = density.flatten() > 0
    mass = density.double().flatten()[has_mass] * math.prod(cell)
    gauss = 0.5 / math.sqrt(3)
    nodes = list(product((-gauss, gauss) if has_gauss_points else (0.0,), repeat=density.ndim))
    total = 0.0
    for offsets in nodes:
        points = [
            Lattice((0.5 + o) * h, h, n)
            for o, h, n in zip(offsets, cell, density.shape, strict=True)
        ]
        _, index = transform_with_minimisers(values, lattices, points)
        y = torch.stack([lat.points()[index[a]] for a, lat in enumerate(lattices)], -1)
        x = torch.stack(torch.meshgrid(*(lat.points() for lat in points), indexing="ij"), -1)
        y, x = (part.reshape(-1, density.ndim)[has_mass] for part in (y, x))
        minimum = _minimise_locally(coefficients, step, y, x, sides, config)
        total += float((mass * minimum).sum()) / len(nodes)
    return total


def _evaluate_on_lattice(
    coefficients: Tensor, step: Sequence[float], lattices: Sequence[Lattice]
) -> Tensor:
    """Return the spline at the points of a lattice."""
    values = coefficients.double()
    for axis, (h, lattice) in enumerate(zip(step, lattices, strict=True)):
        taps, weights = spline_stencil(lattice.points(), h, values.shape[axis])
        values = (values.movedim(axis, -1)[..., taps] * weights[0]).sum(-1).movedim(-1, axis)
    return values


def _minimise_locally(
    coefficients: Tensor,
    step: Sequence[float],
    y: Tensor,
    x: Tensor,
    sides: Sequence[float],
    config: BoundsConfig,
) -> Tensor:
    """Return the minimum, (N,), of u(y) + |x − y|² over Newton iterates from y (N, d)."""
    upper = torch.tensor(sides, dtype=torch.float64)
    minima = []
    for here, there in zip(y.split(config.chunk), x.split(config.chunk), strict=True):
        minimum = torch.full((len(here),), torch.inf, dtype=torch.float64)
        for _ in range(config.newton_steps + 1):
            jet = evaluate_at_points(coefficients, step, here)
            minimum = torch.minimum(minimum, jet.value + ((there - here) ** 2).sum(-1))
            slope = (jet.gradient - 2 * (there - here)).unbind(-1)
            # The Hessian is 2I + D²u = 2(I + ½D²u).
            newton = torch.stack(symmetric.solve(symmetric.pack(jet.hessian), 0.5, slope), -1)
            moved = here - 0.5 * newton.nan_to_num(0.0, 0.0, 0.0)
            here = torch.minimum(moved.clamp(min=0), upper)
        minima.append(minimum)
    return torch.cat(minima)


def upper_bound(
    coefficients: Tensor,
    source: Tensor,
    target: Tensor,
    sides: Sequence[float],
    distance: float,
    config: BoundsConfig = DEFAULT_BOUNDS,
) -> float:
    """Return an upper bound of W2.

    Args:
        coefficients: potential, (*cells).
        source: density on the same cells.
        target: likewise.
        sides: side lengths of the box.
        distance: estimate of W2.
        config: tuning parameters.
    """
    shape = _plan_shape(coefficients.shape, sides, distance, config)
    c = prolong_spline(coefficients, shape)
    moments = [_block_moments(values.double(), shape, sides) for values in (source, target)]
    densities = [values[..., 0] for values in moments]
    total, held = 0.0, [torch.zeros(math.prod(shape), dtype=torch.float64) for _ in moments]
    for mass, boxes in _iterate_half_cells(c, densities, sides, config):
        total += float(mass.sum())
        for own, side in zip(held, boxes, strict=True):
            for cell, share in side:
                own.index_add_(0, cell, mass * share)
    repaired = [
        _repair_marginal(own.reshape(shape) / total, values, sides, config)
        for own, values in zip(held, moments, strict=True)
    ]
    cost = 0.0
    for mass, boxes in _iterate_half_cells(c, densities, sides, config):
        means, variance = [], torch.zeros_like(mass)
        for (mean, second), side in zip(repaired, boxes, strict=True):
            positions = sum(share[:, None] * mean[cell] for cell, share in side)
            squares = sum(share * second[cell] for cell, share in side)
            means.append(positions)
            variance += squares - (positions**2).sum(-1)  # pyright: ignore
        cost += float((mass * (variance + ((means[1] - means[0]) ** 2).sum(-1))).sum()) / total
    return math.sqrt(cost)


def _plan_shape(
    shape: tuple[int, ...], sides: Sequence[float], distance: float, config: BoundsConfig
) -> tuple[int, ...]:
    """Return the cells of a plan: as coarse as spreading over them permits."""
    d, parts = len(shape), 1
    max_spreading = config.max_spreading * distance**2
    while _spreading_cost(shape, sides) > max_spreading and 2 * parts <= config.max_subdivision:
        if math.prod(shape) * 2**d > config.max_plan_cells:
            break
        shape, parts = tuple(2 * n for n in shape), 2 * parts
    can_merge = parts == 1
    while can_merge and all(n % 2 == 0 for n in shape) and math.prod(shape) > config.min_plan_cells:
        half = tuple(n // 2 for n in shape)
        negligible = config.negligible_spreading * distance**2
        if math.prod(shape) <= config.max_plan_cells and _spreading_cost(half, sides) > negligible:
            break
        shape = half
    return shape


def _spreading_cost(shape: Sequence[int], sides: Sequence[float]) -> float:
    """Return the cost that spreading over the cells of both densities adds."""
    return sum((side / n) ** 2 for side, n in zip(sides, shape, strict=True)) / 6


def _block_moments(density: Tensor, shape: Sequence[int], sides: Sequence[float]) -> Tensor:
    """Return density, E x and E|x|² in the cells (*shape) of a plan, (*shape, d + 2).

    These cells are parts or blocks of the density's own, in which it is constant.
    """
    for axis, n in enumerate(shape):
        density = density.repeat_interleave(max(1, n // density.shape[axis]), axis)
    step = torch.tensor([s / n for s, n in zip(sides, density.shape, strict=True)]).double()
    axes = [torch.arange(n, dtype=torch.float64) + 0.5 for n in density.shape]
    centre = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1) * step
    square = (centre**2).sum(-1, keepdim=True) + float((step**2).sum()) / 12
    moments = torch.cat([torch.ones_like(square), centre, square], -1)
    size = density.shape[0] // shape[0]
    offsets = (0,) * density.ndim
    weighted = _block_sums(density[..., None] * moments, size, offsets)
    unweighted = _block_sums(moments, size, offsets)
    means = torch.where(
        weighted[..., :1] > 0, weighted / weighted[..., :1], unweighted / unweighted[..., :1]
    )
    return torch.cat([weighted[..., :1] / size**density.ndim, means[..., 1:]], -1)


Boxes = list[tuple[Tensor, Tensor]]  # cells (N,) and fractions (N,) of boxes in them


def _iterate_half_cells(
    c: Tensor, densities: Sequence[Tensor], sides: Sequence[float], config: BoundsConfig
) -> Iterator[tuple[Tensor, tuple[Boxes, Boxes]]]:
    """Yield masses (N,) of half-cells, and their overlaps with cells of source and target."""
    shape, d = c.shape, c.ndim
    step = [side / n for side, n in zip(sides, shape, strict=True)]
    rows = max(1, config.chunk // (2**d * math.prod(shape[1:])))
    for first in range(0, shape[0], rows):
        last = min(first + rows, shape[0])
        low, high = max(first - 1, 0), min(last + 1, shape[0])
        jet = evaluate_at_half_cells(c[low:high], step)
        own = (slice(None),) * d + (slice(first - low, last - low),)
        gradient, hessian = jet.gradient[own], jet.hessian[own]
        centres = half_cell_centres((last - first, *shape[1:]))
        centres[..., 0] += first
        total, confidence, boxes = 0.0, 0.0, []
        for values, s in zip(densities, (-0.5, 0.5), strict=True):
            box, width, jacobian = displaced_boxes(centres, gradient, hessian, s, step)
            overlaps = [
                (cell.flatten(), part) for cell, part in overlap_fractions(box, width, shape)
            ]
            flat = values.flatten()
            density = sum(part * flat[cell].reshape(part.shape) for cell, part in overlaps)
            det = signed_det_and_cofactor(jacobian)[0].clamp(min=0)
            total, confidence = total + det**2 * density * det, confidence + det**2
            boxes.append([(cell, part.flatten()) for cell, part in overlaps])
        mass = torch.as_tensor(total / confidence).nan_to_num(0.0).flatten()
        has_mass = mass > 0
        source, target = (
            [(cell[has_mass], part[has_mass]) for cell, part in side] for side in boxes
        )
        yield mass[has_mass], (source, target)


def _repair_marginal(
    held: Tensor,
    moments: Tensor,
    sides: Sequence[float],
    config: BoundsConfig = DEFAULT_BOUNDS,
) -> tuple[Tensor, Tensor]:
    """Return E x, (cells, d), and E|x|², (cells,), of the final positions of each cell's mass.

    Args:
        held: masses of cells, (*shape).
        moments: required masses, E x and E|x|² by cell, as `_block_moments` returns them.
        sides: side lengths of the box.
        config: tuning parameters.
    """
    d, rounds = held.ndim, []
    required = moments[..., 0] / moments[..., 0].sum()
    for _ in range(config.flow_rounds):
        shares = _neighbour_flow(held, required, sides)
        flows = ((held * share, axis, way) for axis, way, share in shares)
        held = held + sum(flow.roll(way, axis) - flow for flow, axis, way in flows)
        rounds.append(shares)
    final = _repair_blockwise(held, required, moments[..., 1:])
    for shares in reversed(rounds):
        final = final + sum(
            share[..., None] * (final.roll(-way, axis) - final) for axis, way, share in shares
        )
    return final[..., :d].flatten(0, -2), final[..., d].flatten()


Shares = list[tuple[int, int, Tensor]]  # axis, direction ±1, and the share of each cell that moves


def _neighbour_flow(held: Tensor, required: Tensor, sides: Sequence[float]) -> Shares:
    """Return the flow −∇Δ⁻¹ of the excess between neighbours, as shares of the cells' masses."""
    shape = held.shape
    eigenvalues = sum(
        (n / side) ** 2
        * (2 - 2 * torch.cos(math.pi * torch.arange(n).double() / n)).reshape(
            [-1 if k == a else 1 for k in range(held.ndim)]
        )
        for a, (n, side) in enumerate(zip(shape, sides, strict=True))
    )
    eigenvalues = torch.as_tensor(eigenvalues)
    eigenvalues.view(-1)[0] = torch.inf  # the excess has mean zero
    series = torch.from_numpy(np.asarray(dctn((held - required).numpy(), norm="ortho")))
    series = series / eigenvalues
    potential = torch.from_numpy(np.asarray(idctn(series.numpy(), norm="ortho")))
    flows = []
    for a, (n, side) in enumerate(zip(shape, sides, strict=True)):
        descent = -potential.diff(dim=a) * (n / side) ** 2  # across the face to the next cell
        zero = torch.zeros_like(potential.narrow(a, 0, 1))
        flows.append((a, 1, torch.cat([descent.clamp(min=0), zero], a)))
        flows.append((a, -1, torch.cat([zero, (-descent).clamp(min=0)], a)))
    outflow = torch.as_tensor(sum(flow for _, _, flow in flows))
    scale = 1 / torch.maximum(outflow, held).clamp(min=torch.finfo(held.dtype).tiny)
    return [(a, way, torch.where(held > 0, flow * scale, 0.0)) for a, way, flow in flows]


def _repair_blockwise(held: Tensor, required: Tensor, moments: Tensor) -> Tensor:
    """Return E x and E|x|² of the final positions of each cell's mass, (*shape, d + 1).

    Surplus goes to deficits in the smallest block of 2^k cells per axis that has room for it.
    `moments` are E x and E|x|² within each cell.
    """
    shape = held.shape
    surplus, deficit = (held - required).clamp(min=0), (required - held).clamp(min=0)
    share = torch.where(held > 0, surplus / held, 0.0)
    weights = torch.cat([torch.ones_like(moments[..., :1]), moments], -1)
    left, sent = torch.ones_like(held), torch.zeros_like(moments)
    for size, offsets in _block_offsets(shape):
        excess = _block_sums(surplus[..., None], size, offsets)[..., 0]
        goals = _block_sums(deficit[..., None] * weights, size, offsets)
        room = goals[..., 0]
        moved = torch.minimum(excess, room)
        part = _spread_blocks(torch.where(excess > 0, moved / excess, 0.0), size, offsets, shape)
        goal = torch.where(room[..., None] > 0, goals[..., 1:] / room[..., None], 0.0)
        sent += (left * part)[..., None] * _spread_blocks(goal, size, offsets, shape)
        filled = _spread_blocks(torch.where(room > 0, moved / room, 0.0), size, offsets, shape)
        left, surplus, deficit = left * (1 - part), surplus * (1 - part), deficit * (1 - filled)
    return (1 - share)[..., None] * moments + share[..., None] * (sent + left[..., None] * moments)


def _block_offsets(shape: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield block sizes 2^k with offsets of zero or half a block per axis, from small to large."""
    size = 2
    while size < 2 * max(shape):
        is_whole = size >= max(shape)
        for offsets in product((0, size // 2), repeat=len(shape)):
            if not (is_whole and any(offsets)):
                yield size, offsets
        size *= 2


def _block_sums(values: Tensor, size: int, offsets: Sequence[int]) -> Tensor:
    """Sum values (*shape, k) over blocks: (*blocks, k)."""
    for axis, offset in enumerate(offsets):
        n = values.shape[axis]
        behind = -(n + offset) % size
        if offset or behind:
            values = pad(values, [0, 0] * (values.ndim - 1 - axis) + [offset, behind])
        values = values.unflatten(axis, (-1, size)).sum(axis + 1)
    return values


def _spread_blocks(
    values: Tensor, size: int, offsets: Sequence[int], shape: Sequence[int]
) -> Tensor:
    """Repeat values of blocks (*blocks, ...) in all of their cells, (*shape, ...)."""
    for axis, (offset, n) in enumerate(zip(offsets, shape, strict=True)):
        values = values.repeat_interleave(size, axis).narrow(axis, offset, n)
    return values
