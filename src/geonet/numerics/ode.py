"""Runge–Kutta integration of particles in a velocity field."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

VelocityField = Callable[[Tensor], Tensor]  # points to velocities, at one time


def runge_kutta(
    field: Callable[[float], VelocityField], points: Tensor, start: float, end: float, steps: int
) -> Tensor:
    """Integrate from `start` to `end` by the classical fourth-order method.

    Args:
        field: field(s) is the velocity field at time s.
        points: positions at `start`, (..., d).
        start: first time.
        end: last time.
        steps: number of steps per unit of time.
    """
    count = math.ceil((end - start) * steps)
    step = (end - start) / max(count, 1)
    last = field(start)
    for k in range(count):
        first, middle, last = last, field(start + (k + 0.5) * step), field(start + (k + 1) * step)
        k1 = first(points)
        k2 = middle(points + step / 2 * k1)
        k3 = middle(points + step / 2 * k2)
        k4 = last(points + step * k3)
        points = points + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return points


def integrate_particles(
    flow: Callable[[Tensor, float], Tensor],
    points: Tensor,
    times: Tensor,
    steps: int,
    bounds: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the positions of particles at all times, (T, ..., N, d).

    Args:
        flow: flow(x, t) is the velocity.
        points: positions at t = 0, (..., N, d).
        times: (T,), in any order.
        steps: number of steps per unit of time.
        bounds: lower and upper corner of a box that the particles do not leave.
    """

    def clip(x: Tensor) -> Tensor:
        return x if bounds is None else x.clamp(*bounds)

    positions, now = {}, 0.0
    for t in sorted(set(times.tolist())):  # one integration serves all times
        points = clip(runge_kutta(lambda s: lambda x: flow(clip(x), s), points, now, t, steps))
        positions[t], now = points, t
    return torch.stack([positions[t] for t in times.tolist()])
