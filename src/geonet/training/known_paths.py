"""Exact 1D geodesics at any (x, t), for a batch of pairs at once: what a supervised model is shown.

In 1D the optimal map is monotone: mass at x0 goes to the x1 with F1(x1) = F0(x0), straight.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from geonet.operators.objective import Batch, EndFunctions

CELLS = 128  # of the distribution functions; at random points the answer is right to some 1e-4
LEAST = 1e-10  # density, relative to uniform, so that distribution functions have an inverse
TINY = torch.finfo(torch.float64).tiny  # of a denominator
MOMENTS = 8  # in a batch: finding the lines that meet a point takes one sorted table for each


def with_known_paths(batch: Batch) -> Batch:
    """The batch with μ_t(x) of every pair at its points, at `MOMENTS` of its times."""
    times = batch.times[torch.arange(len(batch.times)) % MOMENTS]
    return replace(batch, times=times, known=known_density(batch.ends, batch.points, times))


def known_density(ends: EndFunctions, points: Tensor, times: Tensor) -> Tensor:
    """μ_t(x) of B pairs at points (Q, 1) and times (Q,) of the unit box: (B, Q), float32.

    By conservation of mass 1/μ_t(x) = (1 − t)/μ0(x0) + t/μ1(x1), where the line from x0 to x1 is at
    x at time t.
    """
    starts, stops = _lines(ends)
    x0, x1 = (torch.empty(len(starts), len(times), dtype=torch.float64) for _ in range(2))
    for t in times.unique():
        (here,) = torch.nonzero(times == t, as_tuple=True)
        meeting = _meeting(starts, stops, points[here, 0].double(), float(t))
        for whole, part in zip((x0, x1), meeting, strict=True):
            whole[:, here] = part
    source, target = (
        end(x[..., None].float()).double().clamp(min=0)  # splines overshoot
        for end, x in zip(ends, (x0, x1), strict=True)
    )
    t = times.double()
    return (source * target / ((1 - t) * target + t * source).clamp(min=TINY)).float()


def _lines(ends: EndFunctions) -> tuple[Tensor, Tensor]:
    """x0 and x1 of the lines that start or end at an edge of a cell, from left to right.

    (B, 2·CELLS + 2) each: in between both are nearly linear, also where one of the densities is
    much smaller than the other.
    """
    edges = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64)
    centres = ((edges[1:] + edges[:-1]) / 2)[:, None].float()
    first, second = (_distribution(end(centres).double()) for end in ends)
    levels = torch.cat([first, second], dim=1).sort(dim=1).values
    return _quantiles(first, levels), _quantiles(second, levels)


def _distribution(values: Tensor) -> Tensor:
    """F at the edges of cells with these densities, (B, CELLS) to (B, CELLS + 1)."""
    cumulative = (values.clamp(min=0) + LEAST).cumsum(1)
    return torch.cat([torch.zeros_like(values[:, :1]), cumulative / cumulative[:, -1:]], dim=1)


def _quantiles(distribution: Tensor, levels: Tensor) -> Tensor:
    """F⁻¹ at levels (B, K), linear in each cell."""
    cell = torch.searchsorted(distribution, levels, right=True).clamp(1, CELLS) - 1
    low, high = distribution.gather(1, cell), distribution.gather(1, cell + 1)
    return (cell + (levels - low) / (high - low)) / CELLS


def _meeting(starts: Tensor, stops: Tensor, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """x0 and x1, (B, N) each, of the lines that are at x (N,) at time t: (1 − t)x0 + t·x1 = x."""
    now = torch.lerp(starts, stops, t)
    after = torch.searchsorted(now, x.expand(len(now), -1).contiguous(), right=True)
    after = after.clamp(1, now.shape[1] - 1)
    left, right = now.gather(1, after - 1), now.gather(1, after)
    share = ((x - left) / (right - left).clamp(min=TINY)).clamp(0, 1)
    x0, x1 = (
        torch.lerp(ends.gather(1, after - 1), ends.gather(1, after), share)
        for ends in (starts, stops)
    )
    return x0, x1
