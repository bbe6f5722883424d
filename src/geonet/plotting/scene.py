"""What lies over the densities of a path where it can be watched: particles and the potential."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from geonet.errors import UnavailableError
from geonet.geodesics.base import Geodesic
from geonet.measures.density import Density
from geonet.measures.grid import Grid

PARTICLES = 240
MOMENTS = 9  # times at which the places of particles are known
QUARTERS = 5  # and the potential, which takes longer
LINES = 32  # points along the longest side that lines of equal potential are drawn between
STEPS = (0.7548776662466927, 0.5698402909980532, 0.4301597090019467)  # 1/g, 1/g², 1/g³; g³ = g + 1

Floats = NDArray[np.float32]


def particle_tracks(path: Geodesic, count: int = PARTICLES) -> Floats:
    """Where particles of the source are at `MOMENTS` even times, (T, count, d).

    In shares of the box, the first axis first.
    """
    times = torch.linspace(0, 1, MOMENTS, dtype=torch.float64)
    return _shares(path.trajectories(times, spread_over(path.source, count)), path.grid)


def potential_values(path: Geodesic) -> Floats:
    """u_t at `QUARTERS` even times, on a coarse grid over the box, (T, rows, columns)."""
    times = torch.linspace(0, 1, QUARTERS, dtype=torch.float64)
    longest = max(path.grid.shape)
    coarse = path.grid.with_shape(tuple(max(2, LINES * n // longest) for n in path.grid.shape))
    return path.potential(times, coarse.points()).detach().float().numpy()


def known(
    layer: Callable[[Geodesic], Floats], path: Geodesic, why: dict[str, str], name: str
) -> Floats | None:
    """A layer of the path; None, and the sentence in `why`, where its solver gives none."""
    try:
        return layer(path)
    except UnavailableError as error:
        why[name] = str(error)
        return None


def spread_over(density: Density, count: int) -> Tensor:
    """Points that share the mass of a density evenly, the same at every call, (count, d).

    Every 1/count of the mass along a curve through all cells gets a point. Its place inside of the
    cell is that of a Kronecker sequence, which leaves no pattern.
    """
    grid = density.grid
    order = _along_a_curve(grid)
    masses = density.values.detach().flatten()[order].cumsum(0)
    wanted = (torch.arange(count, dtype=torch.float64) + 0.5) / count * masses[-1]
    cells = order[torch.searchsorted(masses, wanted).clamp(max=grid.size - 1)]
    steps = torch.tensor(STEPS[: grid.dimension], dtype=torch.float64)
    inside = torch.arange(count, dtype=torch.float64)[:, None] * steps % 1 - 0.5
    centres = grid.points().reshape(-1, grid.dimension)[cells]
    return centres + inside * torch.tensor(grid.spacing, dtype=torch.float64)


def _along_a_curve(grid: Grid) -> Tensor:
    """All cells in Morton's order, (cells,): what is near on the curve is near in the box."""
    index = torch.stack(torch.meshgrid(*map(torch.arange, grid.shape), indexing="ij"))
    code = torch.zeros(grid.shape, dtype=torch.long)
    for bit in range(max(grid.shape).bit_length()):
        for axis, own in enumerate(index):
            code += ((own >> bit) & 1) << (bit * grid.dimension + axis)
    return code.flatten().argsort()


def _shares(points: Tensor, grid: Grid) -> Floats:
    """Points of the box as shares of its sides."""
    lower, upper = grid.corner("lower"), grid.corner("upper")
    return ((points.detach() - lower) / (upper - lower)).float().numpy()
