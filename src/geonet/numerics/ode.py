"""Particles carried by a velocity field."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Flow = Callable[[Tensor], Tensor]  # positions to velocities, at one time


def runge_kutta(
    speed: Callable[[float], Flow], where: Tensor, start: float, end: float, steps: int
) -> Tensor:
    """Classical fourth order from start to end, in `steps` per unit; speed(s) is the field at s."""
    count = math.ceil((end - start) * steps)
    step = (end - start) / max(count, 1)
    at_end = speed(start)
    for k in range(count):
        at_start, halfway, at_end = (
            at_end,
            speed(start + (k + 0.5) * step),
            speed(start + (k + 1) * step),
        )
        first = at_start(where)
        second = halfway(where + step / 2 * first)
        third = halfway(where + step / 2 * second)
        fourth = at_end(where + step * third)
        where = where + step / 6 * (first + 2 * second + 2 * third + fourth)
    return where


def carried(
    flow: Callable[[Tensor, float], Tensor],
    where: Tensor,
    times: Tensor,
    steps: int,
    bounds: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Particles (..., N, d) from t = 0 at times (T,) in any order: (T, ..., N, d).

    flow(x, t) is the velocity there. Particles do not leave the box of the `bounds`.
    """

    def inside(x: Tensor) -> Tensor:
        return x if bounds is None else x.clamp(*bounds)

    found, now = {}, 0.0
    for t in sorted(set(times.tolist())):  # one way through serves all times
        where = inside(runge_kutta(lambda s: lambda x: flow(inside(x), s), where, now, t, steps))
        found[t], now = where, t
    return torch.stack([found[t] for t in times.tolist()])
