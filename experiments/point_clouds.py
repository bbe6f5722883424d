"""The paper's point clouds: random mixtures, particles and histograms."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet.density import Array, Density, as_tensor, to_user_array
from geonet.errors import DensityError, GridError
from geonet.grid import Grid, check_grid
from geonet.mixture import GaussianMixture
from geonet.samples import count_in_cells

BOX_CLOUDS = Grid((25, 25), 0.0, 5.0, orientation="plane")  # bins on [−7, 7]², scaled to [0, 5]²
PARTICLES = 3000  # in a cloud


def cloud_mixtures(count: int, generator: torch.Generator) -> GaussianMixture:
    """Return `count` mixtures on [0, 5]² of 3 equal components, to sample point clouds from.

    On [−7, 7]², the domain of the paper's particles, means are U[−3, 3]² and standard deviations
    U[0.9, 1.3]. The paper only states three Gaussians; these values reproduce its level of sampling
    noise and leave gaps between the components.
    """
    scale = BOX_CLOUDS.lengths[0] / 14
    means = 7.0 + (-3.0 + 6.0 * torch.rand(count, 3, 2, dtype=torch.float64, generator=generator))
    std = 0.9 + (1.3 - 0.9) * torch.rand(count, 3, dtype=torch.float64, generator=generator)
    return GaussianMixture.isotropic(scale * means, scale * std)


def cell_masses(mixture: GaussianMixture, grid: Grid) -> Tensor:
    """Return the mass of isotropic mixtures in every cell of a 2D grid, (B, *grid.shape)."""
    std = mixture.covariances[..., 0, 0].sqrt()
    along = []
    for i, (n, low, high) in enumerate(zip(grid.shape, grid.lower, grid.upper, strict=True)):
        edges = torch.linspace(low, high, n + 1, dtype=torch.float64)
        below = torch.special.ndtr((edges - mixture.means[..., i, None]) / std[..., None])
        along.append(below.diff(dim=-1))
    return torch.einsum("bk,bki,bkj->bij", mixture.weights, *along)


def histogram(particles: ArrayLike | Tensor, grid: Grid) -> Density:
    """Return the shares of particles (..., n, d) in the cells.

    The outermost cells count particles outside the box.
    """
    check_grid(grid)
    positions = as_tensor(particles).to(torch.float64)
    if positions.ndim < 2 or positions.shape[-1] != grid.dimension:
        raise GridError(
            f"Particles have shape {tuple(positions.shape)} and the grid is {grid.dimension}D; "
            f"give an array (..., n, {grid.dimension})."
        )
    if not positions.numel():
        raise DensityError("There are no particles; give at least one.")
    if not bool(torch.isfinite(positions).all()):
        raise DensityError("Some particles are NaN or infinite; leave them out.")
    clouds = positions.reshape(-1, *positions.shape[-2:])
    weights = torch.ones(positions.shape[-2], dtype=torch.float64)
    counts = torch.stack([count_in_cells(cloud, weights, grid) for cloud in clouds])
    density = Density(counts.reshape(*positions.shape[:-2], *grid.shape), grid)
    density.is_torch = isinstance(particles, Tensor)
    return density


def quantize(density: Density, count: int) -> Array:
    """Return about `count` particles at the cell centres, (n, d): each cell's share, rounded.

    This is the paper's simplest way; it does not compensate for rounding.
    """
    masses = density.tensor.to(torch.float64).clamp(min=0).reshape(-1) * density.grid.cell_volume
    repeats = (count * masses).round().long()
    centres = density.grid.points().reshape(-1, density.grid.dimension)
    return to_user_array(centres.repeat_interleave(repeats, 0), density.is_torch)
