"""Potentials in the unit cube as cosine series, a batch of them: u(x) = Σ_k c_k Π_i cos(k_i π x_i).

Coefficients are (B, modes, …, modes); matrices of second derivatives are packed.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from geonet.grid import Grid, unit_box
from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.cosine import derivatives, refinement, series_matrices, unit_centres
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.splines import Fields, look_up

NODES = {1: 512, 2: compiled.NODES, 3: 48}  # of the tables of ∇u and D²u, along each axis
STEEPEST = 0.999  # eigenvalue of ½D²u: below 1 particles neither meet nor cross


def potential_on(
    coefficients: Tensor, cells: int, centred: bool = True
) -> tuple[Tensor, Fields, Fields]:
    """u, ∇u and D²u, packed, at cells^d cells of the unit cube: each (B, cells^d).

    At their centres, or else at their faces: (B, (cells + 1)^d).
    """
    d, modes = coefficients.ndim - 1, coefficients.shape[-1]
    found = derivatives([series_matrices(cells, modes, centred)] * d, coefficients, most=2)

    def field(*directions: int) -> Tensor:
        return found[tuple(directions.count(axis) for axis in range(d))].flatten(1)

    hessian = [field(i, j) for i in range(d) for j in range(i, d)]
    return field(), [field(i) for i in range(d)], hessian


def potential_table(coefficients: Tensor) -> Tensor:
    """∇u − ½D²u·x and D²u at nodes of the unit cube, (B, channels, *nodes).

    Looked up at x, the first plus ½D²u·x is ∇u(x) = Σ_j w_j (∇u_j + ½D²u_j (x − x_j)) over the
    nodes around x with linear weights w, which is exact for quadratic fields; linear interpolation
    alone is exact for linear ones.
    """
    d = coefficients.ndim - 1
    nodes = NODES[d]
    _, gradient, hessian = potential_on(coefficients, nodes, centred=False)
    bent = packed.product(hessian, _nodes(d))
    rest = [torch.sub(g, b, alpha=0.5) for g, b in zip(gradient, bent, strict=True)]
    return torch.stack([*rest, *hessian], dim=1).unflatten(-1, (nodes + 1,) * d)


@lru_cache(maxsize=3)
@torch.inference_mode(False)
def _nodes(d: int) -> Tensor:
    """The places of the table's nodes, (d, nodes)."""
    axis = torch.arange(NODES[d] + 1, dtype=torch.float32, device="cpu") / NODES[d]
    return torch.stack(torch.meshgrid(*[axis] * d, indexing="ij")).flatten(1)


def steepness(hessian: Fields) -> Tensor:
    """The largest |eigenvalue| of ½D²u over all points, (B,), from D²u packed, each (B, points)."""
    return 0.5 * packed.spectral_radius(torch.stack(list(hessian))).amax(1)


def steepest(coefficients: Tensor) -> Tensor:
    """The steepness on a fine grid with the faces, where D²u tends to be largest, (B,)."""
    _, _, hessian = potential_on(coefficients, 4 * coefficients.shape[-1], centred=False)
    return steepness(hessian)


def unfolded(coefficients: Tensor) -> Tensor:
    """Potentials whose maps would fold, scaled down until they do not."""
    steep = steepest(coefficients.detach())
    if coefficients.requires_grad and bool((steep > STEEPEST).any()):
        steep = _steepest_traced(coefficients)
    scale = STEEPEST / steep.clamp(min=STEEPEST)
    return coefficients * scale.reshape(-1, *(1,) * (coefficients.ndim - 1))


def _steepest_traced(coefficients: Tensor) -> Tensor:
    """`steepest` with its gradient: that of an eigenvalue at the steepest point alone.

    The roots of `steepness` have infinite ones where eigenvalues coincide, which may be elsewhere.
    """
    d = coefficients.ndim - 1
    _, _, hessian = potential_on(coefficients, 4 * coefficients.shape[-1], centred=False)
    place = packed.spectral_radius(torch.stack(list(hessian)).detach()).argmax(1)
    there = [entry.gather(1, place[:, None])[:, 0] for entry in hessian]
    return 0.5 * torch.linalg.eigvalsh(packed.unpacked(there, d)).abs().amax(-1)


# ---- The velocity of a path given by its potential at t = ½, on grids and for a batch of pairs.
#
# v(x, t) = ∇u(y) with y + (t − ½)∇u(y) = x. It is as smooth as u, so y is sought on a coarse grid of
# the cube only, and v goes on to finer grids by its series.


CELLS = {1: 512, 2: compiled.CELLS, 3: 24}  # of the coarse grid, per axis
# Newton's method stops for TOGETHER points at once, when every |y + s∇u(y) − x| was below NEAR
# before the last step, which squares it. In 2D the points of a row stop together, as in kernels.c;
# otherwise all points of one time do.
TOGETHER = {1: CELLS[1], 2: CELLS[2], 3: CELLS[3] ** 3}
NEAR = {1: compiled.NEAR, 2: compiled.NEAR, 3: 0.02}


def velocity_on_cube(coefficients: Tensor, times: Tensor) -> Fields:
    """v at the centres of CELLS cells per axis of the unit cube, d of (B, T, cells)."""
    d = coefficients.ndim - 1
    if d == 2 and compiled.available():
        return list(compiled.velocity(coefficients, times))
    return _newton(coefficients, (times - 0.5)[:, None])


def _newton(coefficients: Tensor, s: Tensor) -> Fields:
    """Newton's method for y + s∇u(y) = x at all points at once, with s (T, 1).

    Each time of each pair stops on its own; in 2D, each row does.
    """
    d = coefficients.ndim - 1
    _, gradient, hessian = potential_on(coefficients, CELLS[d])
    table, x = potential_table(coefficients), unit_centres(d, CELLS[d])
    # From y = x the first step needs no table: v = (I + sD²u)⁻¹∇u.
    gradient, hessian = ([f[:, None] for f in field] for field in (gradient, hessian))
    velocity = packed.solved(hessian, s, gradient)
    moving = _far([s * g for g in gradient])
    for _ in range(compiled.STEPS):
        if not bool(moving.any()):
            break
        y = [torch.addcmul(x[i], velocity[i], -s).clamp_(0, 1) for i in range(d)]
        found = look_up(table, y)
        rest, hessian = found[:d], found[d:]
        curved = packed.product(hessian, y)
        moved = [torch.add(rest[i], curved[i], alpha=0.5) for i in range(d)]
        miss = [torch.addcmul(y[i] - x[i], moved[i], s) for i in range(d)]
        # Newton's step moves y by −(I + sD²u)⁻¹ miss; ∇u follows to first order.
        steps = packed.product(hessian, packed.solved(hessian, s, miss))
        velocity = [
            _in_rows(moving, m.sub_(step), before)
            for m, step, before in zip(moved, steps, velocity, strict=True)
        ]
        moving &= _far(miss)
    return velocity


def _far(miss: Fields) -> Tensor:
    """Which rows of points, that stop together, need one more step, (B, T, rows)."""
    d = len(miss)
    rows = [m.unflatten(-1, (-1, TOGETHER[d])) for m in miss]
    largest = [torch.linalg.vector_norm(row, torch.inf, dim=-1) for row in rows]
    return torch.stack(largest).amax(0) >= NEAR[d]


def _in_rows(which: Tensor, after: Tensor, before: Tensor) -> Tensor:
    """`after` in some rows (B, T, rows) and `before` in the others, (B, T, P)."""
    rows = (*which.shape, -1)
    return torch.where(which[..., None], after.reshape(rows), before.reshape(rows)).flatten(2)


def refined(velocity: Fields, grid: Grid) -> tuple[Fields, Fields]:
    """v of `velocity_on_cube`, and Dv packed, on a grid of the box in the cube: each (B, T, P).

    v_i is odd at the faces across axis i and even at the others.
    """
    d = len(velocity)
    axes = list(zip(grid.shape, unit_box(grid).sides, strict=True))
    fields, slope = [], []
    for i in range(d):
        stacks = [
            refinement(CELLS[d], n, share, odd=axis == i)[: 1 if axis < i else 2]  # Dv is symmetric
            for axis, (n, share) in enumerate(axes)
        ]
        cells = velocity[i].unflatten(-1, (CELLS[d],) * d)
        found = [part.flatten(2) for part in derivatives(stacks, cells, most=1).values()]
        fields.append(found[0])
        slope += found[1:]  # along the axes i, …, d
    return fields, slope


def acceleration(coefficients: Tensor, t: float = 0.25) -> Tensor:
    """Mean |∂_t v + (v·∇)v| at time t over mean |v|, (B,), as the cells of the cube have v.

    The gradient of the Hamilton–Jacobi equation; ∂_t by central differences.
    """
    d, step = coefficients.ndim - 1, 1e-2
    fields = velocity_on_cube(coefficients, coefficients.new_tensor([t - step, t, t + step]))
    velocity, slope = refined(fields, Grid((CELLS[d],) * d))
    rates = [(v[:, 2] - v[:, 0]) / (2 * step) for v in velocity]
    now = [v[:, 1] for v in velocity]
    carried = packed.product([s[:, 1] for s in slope], now)
    sums = [rate + c for rate, c in zip(rates, carried, strict=True)]
    off, speed = (torch.stack(parts).square().sum(0).sqrt().mean(1) for parts in (sums, now))
    return (off / speed.clamp(min=torch.finfo(speed.dtype).tiny)).double()
