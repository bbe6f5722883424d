"""Pairs of handwritten digits: as images, and as codes of an autoencoder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline
from geonet.measures.mnist import as_densities, mnist
from geonet.solvers.learned.autoencoder_file import SHIPPED, code_densities, load_autoencoder
from geonet.training.autoencoder import as_rows
from geonet.training.problem import Ends, Problem

BLUR = 1.0  # pixels
FLOOR = 0.05  # share of the mass that is uniform: maps of densities with holes have jumps


class Pool(Problem):
    """Pairs of any two densities of a set; the last tenth is held out for validation."""

    def __init__(self, densities: Density):
        self.box = densities.grid
        self.pool = (densities.values * self.box.volume).float()  # relative to uniform
        self.seen = len(self.pool) - len(self.pool) // 10

    def draw(self, count: int, generator: torch.Generator) -> Ends:
        """Splines through the cells."""
        first, second = (self._chosen(0, self.seen, count, generator) for _ in range(2))
        unit = Grid(self.box.shape)
        return CubicSpline(first, unit), CubicSpline(second, unit)

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Densities that were held out."""
        bounds = self.seen, len(self.pool)
        first, second = (self._chosen(*bounds, count, generator).double() for _ in range(2))
        return Density(first, self.box), Density(second, self.box)

    def _chosen(self, first: int, last: int, count: int, generator: torch.Generator) -> Tensor:
        return self.pool[torch.randint(first, last, (count,), generator=generator)]


def digit_images() -> Pool:
    """MNIST's training digits, slightly blurred, on the unit square."""
    return Pool(as_densities(mnist("train").images, BLUR, FLOOR))


def digit_codes(autoencoder: Path = SHIPPED) -> Pool:
    """The codes of MNIST's training digits, as densities on [0, 5]."""
    return Pool(
        code_densities(load_autoencoder(autoencoder).encode(as_rows(mnist("train").images)))
    )
