"""Densities between the ends, on grids, in single precision: what is asked for most.

In the unit cube, with v and Dv at the cells of a grid,

    ρ0 = μ0(x − t v)·det(I − t Dv)            ρ1 = μ1(x + (1 − t)v)·det(I + (1 − t)Dv)

and the answer is (1 − t)ρ0 + tρ1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from geonet.fields import packed
from geonet.fields.compiled import loops as compiled
from geonet.fields.splines import Splines
from geonet.fields.velocity import refined, velocity_on_cube
from geonet.geodesics.midpoint.ends import Ends, compiled_ends, density_at
from geonet.geodesics.midpoint.traced import Traced
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box


def put_frames(
    answer: Tensor,
    moments: Sequence[int],
    coefficients: Tensor,
    ends: Ends,
    times: Tensor,
    grid: Grid,
) -> None:
    """Fill answer[:, moments], answer (B, times, cells), with the densities at times (T,).

    From potentials (B, modes, …) at t = ½, in the units of the grid's box.
    """
    if (splines := compiled_ends(ends)) is not None:
        velocity = compiled.velocity(coefficients, times)
        compiled.put_frames(answer, moments, splines, velocity, times, grid)
        return
    velocity, slope = refined(velocity_on_cube(coefficients, times), grid)
    t, spread = times[:, None], packed.invariants(slope)
    source, target = (
        density_at(end, unit_points(grid), velocity, s) * packed.characteristic(spread, -s)
        for end, s in zip(ends, (t, t - 1), strict=True)
    )
    mean = torch.lerp(source, target, t).clamp_(min=0)
    answer[:, moments] = unit_box(grid).from_density(mean)


def at_rest(end: Splines | Traced, grid: Grid) -> Tensor:
    """The density of an end on a grid, in the units of its box, (B, cells)."""
    still = [torch.zeros(len(end), 1, grid.size, dtype=torch.float32)] * grid.dimension
    return unit_box(grid).from_density(density_at(end, unit_points(grid), still, 0.0)[:, 0])


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def unit_points(grid: Grid) -> Tensor:
    """The cells of a grid in the unit cube around its box, (d, cells), single precision."""
    points = unit_box(grid).to_points(grid.points())
    return points.reshape(-1, grid.dimension).T.float().contiguous()
