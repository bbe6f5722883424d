"""Pairs on which the hot paths are timed."""

import pytest
import torch

from geonet import Density, Grid
from geonet.mixture import BOX_1D, BOX_2D, mixtures_1d, mixtures_2d


def densities(family, grid: Grid, count: int, seed: int) -> tuple[Density, Density]:
    """Return sources and targets as arrays of values, (count, *grid.shape) each."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (family(count, generator).to_density(grid).tensor for _ in range(2))
    return Density(first, grid), Density(second, grid)


@pytest.fixture(scope="session")
def batch_2d() -> tuple[Density, Density]:
    """Return 64 of the paper's 2D pairs, 64×64."""
    return densities(mixtures_2d, BOX_2D.with_shape(64), 64, 7_000)


@pytest.fixture(scope="session")
def pair_2d(batch_2d) -> tuple[Density, Density]:
    """Return one of the 2D pairs."""
    return batch_2d[0][0], batch_2d[1][0]


@pytest.fixture(scope="session")
def pair_1d() -> tuple[Density, Density]:
    """Return one of the paper's 1D pairs, 1,000 cells."""
    source, target = densities(mixtures_1d, BOX_1D.with_shape(1000), 1, 7_001)
    return source[0], target[0]
