"""Densities between the ends, on grids, in single precision: what a learned path is mostly asked.

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
from geonet.fields.velocity import refined, velocity_on_cube
from geonet.geodesics.midpoint.ends import Ends, Splined, Tabled
from geonet.geodesics.midpoint.traced import Traced
from geonet.measures.grid import Grid


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
    first, second = ends
    if isinstance(first, Splined) and isinstance(second, Splined):
        velocity, splines = compiled.velocity(coefficients, times), (first.splines, second.splines)
        compiled.put_frames(answer, moments, splines, velocity, times, grid)
        return
    velocity, slope = refined(velocity_on_cube(coefficients, times), grid)
    points, scale = signed_points(grid), max(grid.lengths) ** -grid.dimension
    t, spread = times[:, None], packed.invariants(slope)
    source, target = (
        end.at(points, velocity, s) * packed.characteristic(spread, -s)
        for end, s in zip(ends, (t, t - 1), strict=True)
    )
    # Scaled in double precision, which has room for any box.
    answer[:, moments] = torch.lerp(source, target, t).clamp_(min=0).to(answer.dtype) * scale


def at_rest(end: Tabled | Splined | Traced, grid: Grid) -> Tensor:
    """The density of an end on a grid, in the units of its box, (B, cells)."""
    still = [torch.zeros(len(end), 1, grid.size, dtype=torch.float32)] * grid.dimension
    found = end.at(signed_points(grid), still, 0.0)[:, 0]
    return found.double() / max(grid.lengths) ** grid.dimension


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def signed_points(grid: Grid) -> Tensor:
    """The cells of a grid in the cube [−1, 1]^d around its box, (d, cells), single precision."""
    unit = (grid.points() - grid.corner("lower")) / max(grid.lengths)
    return (2 * unit - 1).reshape(-1, grid.dimension).T.float().contiguous()
