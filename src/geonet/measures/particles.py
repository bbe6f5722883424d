"""From densities to particles, by sampling and by rounding; and back, by counting."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet.arguments import check_count
from geonet.errors import DensityError, GridError
from geonet.measures.density import Density, as_tensor, check_density
from geonet.measures.grid import Grid, check_grid
from geonet.randomness import check_generator


def sampled(density: Density, count: int, generator: torch.Generator) -> Tensor:
    """`count` particles drawn from a density, uniform in their cells, (count, d), float64."""
    masses, grid = _masses(density, count), density.grid
    check_generator(generator)
    cells = torch.multinomial(masses, count, replacement=True, generator=generator)
    centres = grid.points().reshape(-1, grid.dimension)[cells]
    inside = torch.rand(centres.shape, dtype=torch.float64, generator=generator) - 0.5
    return centres + inside * torch.tensor(grid.spacing, dtype=torch.float64)


def rounded(density: Density, count: int) -> Tensor:
    """About `count` particles at the cells' centres, each as often as its rounded share, (n, d).

    This is the paper's simplest way; it does not compensate for rounding.
    """
    times = (count * _masses(density, count)).round().long()
    return density.grid.points().reshape(-1, density.grid.dimension).repeat_interleave(times, 0)


def histogram(particles: ArrayLike | Tensor, grid: Grid) -> Density:
    """Shares of particles (..., n, d) in the cells; those outside the box count at its faces."""
    check_grid(grid)
    particles = as_tensor(particles).to(torch.float64)
    if particles.ndim < 2 or particles.shape[-1] != grid.dimension:
        raise GridError(
            f"Particles have shape {tuple(particles.shape)} and the grid is {grid.dimension}D; "
            f"give an array (..., n, {grid.dimension})."
        )
    if not particles.numel():
        raise DensityError("There are no particles; give at least one.")
    if not bool(torch.isfinite(particles).all()):
        raise DensityError("Some particles are nowhere (NaN or infinite); leave them out.")
    spacing = torch.tensor(grid.spacing, dtype=torch.float64)
    index = torch.zeros(particles.shape[:-1], dtype=torch.long)
    cells = ((particles - grid.corner("lower")) / spacing).floor().long()
    for i, n in enumerate(grid.shape):
        index = index * n + cells[..., i].clamp(0, n - 1)
    leading, n = index.shape[:-1], index.shape[-1]
    flat = index.reshape(-1, n)
    counts = torch.zeros(len(flat), grid.size, dtype=torch.float64)
    counts.scatter_add_(1, flat, torch.ones_like(flat, dtype=torch.float64))
    return Density(counts.reshape(*leading, *grid.shape), grid)


def _masses(density: Density, count: int) -> Tensor:
    """Of the cells of a single density, for so many particles."""
    check_density(density)
    check_count(count, 1, "count")
    if density.leading:
        raise DensityError(f"This is {density!r}; give a single density, such as density[0].")
    return density.values.to(torch.float64).clamp(min=0).reshape(-1) * density.grid.cell_volume
