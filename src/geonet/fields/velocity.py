"""The velocity of a path given by its potential at t = ½, on grids and for a batch of pairs.

v(x, t) = ∇u(y) with y + (t − ½)∇u(y) = x. It is as smooth as u, so y is sought on a coarse grid of
the cube only, and v goes on to finer grids by its series.
"""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.fields import packed
from geonet.fields.compiled import loops as compiled
from geonet.fields.lookup import Fields, look_up
from geonet.fields.matrices import derivatives, refinement, unit_centres
from geonet.fields.potential import potential_on, potential_table
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box

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
