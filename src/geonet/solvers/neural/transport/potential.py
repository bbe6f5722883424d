"""Potentials in the unit cube as cosine series, and the velocity of the paths that they define.

u(x) = Σ_k c_k Π_i cos(k_i π x_i) is the potential at t = ½, with coefficients (B, modes, …, modes)
for a batch. The velocity is v(x, t) = ∇u(y) with y + (t − ½)∇u(y) = x. It is as smooth as u: y is
computed by Newton's method on a coarse grid of the cube only, and v is interpolated to finer grids
by its series. Everything is in single precision; Hessians are packed symmetric matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from geonet.grid import Grid, unit_box
from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.cosine import (
    cube_centres,
    mixed_derivatives,
    resampling_matrices,
    synthesis_matrices,
)
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.splines import Fields

MAX_SPECTRAL_RADIUS = 0.999  # of ½D²u; below 1 the paths of particles do not cross


@dataclass(frozen=True)
class VelocityConfig:
    """Constants of Newton's method for the velocity in one dimension d.

    Attributes:
        cells: cells per axis of the coarse grid.
        nodes: cells per axis of the table of ∇u and D²u.
        group: number of points that stop together: a row in 2D, as in cosine_paths.c, otherwise all
            points of one time.
        tolerance: |y + s∇u(y) − x| below which the next step, which squares it, is the last one.
        max_iterations: largest number of steps.
    """

    cells: int
    nodes: int
    group: int
    tolerance: float = 0.002
    max_iterations: int = 12


VELOCITY = {
    1: VelocityConfig(cells=512, nodes=512, group=512),
    2: VelocityConfig(cells=compiled.CELLS, nodes=64, group=compiled.CELLS),
    3: VelocityConfig(cells=24, nodes=48, group=24**3, tolerance=0.02),
}


# ---- potential


def evaluate_potential(
    coefficients: Tensor, cells: int, centred: bool = True
) -> tuple[Tensor, Fields, Fields]:
    """Return u, ∇u and packed D²u on cells^d cells of the unit cube.

    Each is (B, cells^d), at the cell centres; with centred=False at their corners,
    (B, (cells + 1)^d).
    """
    d, modes = coefficients.ndim - 1, coefficients.shape[-1]
    matrices = [synthesis_matrices(cells, modes, centred)] * d
    derivatives = mixed_derivatives(matrices, coefficients, max_order=2)

    def derivative(*directions: int) -> Tensor:
        return derivatives[tuple(directions.count(axis) for axis in range(d))].flatten(1)

    hessian = [derivative(i, j) for i in range(d) for j in range(i, d)]
    return derivative(), [derivative(i) for i in range(d)], hessian


def half_spectral_radius(hessian: Fields) -> Tensor:
    """Return the largest |eigenvalue| of ½D²u over all points, (B,), from D²u, each (B, points)."""
    return 0.5 * packed.spectral_radius(torch.stack(list(hessian))).amax(1)


def max_spectral_radius(coefficients: Tensor) -> Tensor:
    """Return the spectral radius of ½D²u on a fine grid, (B,).

    The grid includes the faces, where D²u tends to be largest.
    """
    _, _, hessian = evaluate_potential(coefficients, 4 * coefficients.shape[-1], centred=False)
    return half_spectral_radius(hessian)


def scale_to_injective(coefficients: Tensor) -> Tensor:
    """Scale down potentials whose map would fold, until it is injective."""
    radius = max_spectral_radius(coefficients.detach())
    if coefficients.requires_grad and bool((radius > MAX_SPECTRAL_RADIUS).any()):
        radius = _differentiable_spectral_radius(coefficients)
    scale = MAX_SPECTRAL_RADIUS / radius.clamp(min=MAX_SPECTRAL_RADIUS)
    return coefficients * scale.reshape(-1, *(1,) * (coefficients.ndim - 1))


def _differentiable_spectral_radius(coefficients: Tensor) -> Tensor:
    """Return `max_spectral_radius` with the gradient of the eigenvalue at the maximum.

    The square roots of `packed.spectral_radius` have infinite gradients if eigenvalues coincide.
    """
    d = coefficients.ndim - 1
    _, _, hessian = evaluate_potential(coefficients, 4 * coefficients.shape[-1], centred=False)
    index = packed.spectral_radius(torch.stack(list(hessian)).detach()).argmax(1)
    matrix = [entry.gather(1, index[:, None])[:, 0] for entry in hessian]
    return 0.5 * torch.linalg.eigvalsh(packed.unpack(matrix, d)).abs().amax(-1)


# ---- velocity


def solve_velocity(coefficients: Tensor, times: Tensor) -> Fields:
    """Return v at the cell centres of the coarse grid at times (T,): d of (B, T, cells)."""
    d = coefficients.ndim - 1
    if d == 2 and compiled.is_available():
        return list(compiled.solve_velocity(coefficients, times, VELOCITY[2]))
    return _solve_velocity_torch(coefficients, (times - 0.5)[:, None])


def _solve_velocity_torch(coefficients: Tensor, s: Tensor) -> Fields:
    """Solve y + s∇u(y) = x by Newton's method at all points at once, with s (T, 1)."""
    d = coefficients.ndim - 1
    config = VELOCITY[d]
    _, gradient, hessian = evaluate_potential(coefficients, config.cells)
    table, x = tabulate_potential(coefficients), cube_centres(d, config.cells)
    # From y = x the first step needs no table: v = (I + sD²u)⁻¹∇u.
    gradient, hessian = ([f[:, None] for f in field] for field in (gradient, hessian))
    velocity = packed.solve(hessian, s, gradient)
    active = _exceeds_tolerance([s * g for g in gradient], config)
    for _ in range(config.max_iterations):
        if not bool(active.any()):
            break
        y = [torch.addcmul(x[i], velocity[i], -s).clamp_(0, 1) for i in range(d)]
        values = interpolate_table(table, y)
        rest, hessian = values[:d], values[d:]
        linear = packed.multiply(hessian, y)
        moved = [torch.add(rest[i], linear[i], alpha=0.5) for i in range(d)]
        residual = [torch.addcmul(y[i] - x[i], moved[i], s) for i in range(d)]
        # Newton's step moves y by −(I + sD²u)⁻¹ residual; ∇u follows to first order.
        steps = packed.multiply(hessian, packed.solve(hessian, s, residual))
        velocity = [
            _select_groups(active, m.sub_(step), before)
            for m, step, before in zip(moved, steps, velocity, strict=True)
        ]
        active &= _exceeds_tolerance(residual, config)
    return velocity


def _exceeds_tolerance(residual: Fields, config: VelocityConfig) -> Tensor:
    """Return which groups of points need a further step, (B, T, groups)."""
    groups = [r.unflatten(-1, (-1, config.group)) for r in residual]
    largest = [torch.linalg.vector_norm(group, torch.inf, dim=-1) for group in groups]
    return torch.stack(largest).amax(0) >= config.tolerance


def _select_groups(active: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """Return `after` in the active groups (B, T, groups) and `before` in the others, (B, T, P)."""
    shape = (*active.shape, -1)
    return torch.where(active[..., None], after.reshape(shape), before.reshape(shape)).flatten(2)


def tabulate_potential(coefficients: Tensor) -> Tensor:
    """Return ∇u − ½D²u·x and D²u at the nodes of the table, (B, channels, *nodes).

    Interpolated at x, the first plus ½D²u·x is ∇u(x) = Σ_j w_j (∇u_j + ½D²u_j (x − x_j)) over the
    nodes around x with linear weights w, which is exact for quadratic fields; linear interpolation
    alone is exact for linear ones.
    """
    d = coefficients.ndim - 1
    nodes = VELOCITY[d].nodes
    _, gradient, hessian = evaluate_potential(coefficients, nodes, centred=False)
    linear = packed.multiply(hessian, _node_positions(d))
    rest = [torch.sub(g, b, alpha=0.5) for g, b in zip(gradient, linear, strict=True)]
    return torch.stack([*rest, *hessian], dim=1).unflatten(-1, (nodes + 1,) * d)


@lru_cache(maxsize=3)
@torch.inference_mode(False)
def _node_positions(d: int) -> Tensor:
    """Return the positions of the table's nodes, (d, nodes)."""
    nodes = VELOCITY[d].nodes
    axis = torch.arange(nodes + 1, dtype=torch.float32, device="cpu") / nodes
    return torch.stack(torch.meshgrid(*[axis] * d, indexing="ij")).flatten(1)


def interpolate_table(table: Tensor, points: Fields) -> Tensor:
    """Interpolate linearly: table (B, C, *nodes) at points, d of (B, T, P), to (C, B, T, P).

    Nodes are equally spaced and include the faces of the cube; points outside move to its faces.
    """
    d, (batch, times, count) = len(points), points[0].shape
    # grid_sample needs 2x − 1, the last axis first, and at least two axes.
    positions = points[0].new_zeros(batch, times, count, max(d, 2))
    for i, x in enumerate(points):
        torch.add(x.new_tensor(-1.0), x, alpha=2, out=positions[..., d - 1 - i])
    if table.ndim == 3:
        table = table[:, :, None]
    if batch == 1:  # threads share the leading axis: use the times
        table, positions = table.expand(times, *table.shape[1:]), positions.transpose(0, 1)
    if table.ndim == 5:
        positions = positions[:, None]
    values = grid_sample(table, positions, padding_mode="border", align_corners=True)
    values = values.flatten(2).transpose(0, 1)  # (C, B or T, rest)
    return values.reshape(len(values), batch, times, count)


def interpolate_velocity(velocity: Fields, grid: Grid) -> tuple[Fields, Fields]:
    """Return v of `solve_velocity` and packed Dv on a grid of the box, each (B, T, P).

    v_i is odd at the faces across axis i and even at the others.
    """
    d = len(velocity)
    cells = VELOCITY[d].cells
    axes = list(zip(grid.shape, unit_box(grid).sides, strict=True))
    fields, jacobian = [], []
    for i in range(d):
        matrices = [
            resampling_matrices(cells, n, side, odd=axis == i)[: 1 if axis < i else 2]  # Dv = Dvᵀ
            for axis, (n, side) in enumerate(axes)
        ]
        component = velocity[i].unflatten(-1, (cells,) * d)
        parts = [p.flatten(2) for p in mixed_derivatives(matrices, component, max_order=1).values()]
        fields.append(parts[0])
        jacobian += parts[1:]  # along the axes i, …, d
    return fields, jacobian


def relative_acceleration(coefficients: Tensor, t: float = 0.25, step: float = 1e-2) -> Tensor:
    """Return mean |∂_t v + (v·∇)v| at time t over mean |v|, (B,), on the coarse grid.

    This is the gradient of the Hamilton–Jacobi equation, with ∂_t by central differences.
    """
    d = coefficients.ndim - 1
    fields = solve_velocity(coefficients, coefficients.new_tensor([t - step, t, t + step]))
    velocity, jacobian = interpolate_velocity(fields, Grid((VELOCITY[d].cells,) * d))
    rates = [(v[:, 2] - v[:, 0]) / (2 * step) for v in velocity]
    now = [v[:, 1] for v in velocity]
    convection = packed.multiply([s[:, 1] for s in jacobian], now)
    sums = [rate + c for rate, c in zip(rates, convection, strict=True)]
    norms = (torch.stack(parts).square().sum(0).sqrt().mean(1) for parts in (sums, now))
    acceleration, speed = norms
    return (acceleration / speed.clamp(min=torch.finfo(speed.dtype).tiny)).double()
