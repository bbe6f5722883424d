"""Clouds of particles from mixtures of three Gaussians: the model sees their histograms."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from experiments.autoencoder import SHIPPED, as_rows, code_densities, load_autoencoder
from experiments.mnist import as_densities, mnist
from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import BOX_CLOUDS, PARTICLES, GaussianMixture, cell_masses, cloud_mixtures
from geonet.numerics.interpolation import CubicSpline
from geonet.solvers.neural.losses import DensityFunction, DensityFunctions
from geonet.training.problems import Mixtures
from geonet.training.user_data import Pool


class Cloud:
    """A mixture in the unit box, and the histograms of particles drawn from it."""

    def __init__(self, pdf: DensityFunction, histograms: Tensor):
        self.pdf = pdf
        self.histograms = histograms

    def __call__(self, points: Tensor) -> Tensor:
        """Return the mixtures, relative to uniform, at points."""
        return self.pdf(points)


class Clouds(Mixtures):
    """Sensors read histograms, the equations hold for the mixtures that the particles are from.

    So the model learns to look through the sampling noise of some 3,000 particles.
    """

    def __init__(self) -> None:
        super().__init__(cloud_mixtures, BOX_CLOUDS)

    def draw(self, count: int, generator: torch.Generator) -> DensityFunctions:
        """Return new mixtures with new particles; both ends are independent."""
        mixture = self.family(2 * count, generator)
        ends = self.ends_of(mixture)
        histograms = sampled(mixture, self.box, generator).float() * self.box.volume
        first, second = (Cloud(*both) for both in zip(ends, histograms.chunk(2), strict=True))
        return first, second

    def mass(self, mixture: GaussianMixture, logs: Tensor) -> Tensor:
        """Return the exact mass: the components are too narrow for the quadrature of other families."""
        return cell_masses(mixture, self.box).sum(dim=(-2, -1)).float()

    def sensed(self, end: DensityFunction, sensors: Tensor) -> Tensor:
        """Return the histograms at the sensors, by splines, as solvers read them."""
        assert isinstance(end, Cloud)
        return CubicSpline(end.histograms, Grid(self.box.shape))(sensors)

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Return histograms."""
        values = sampled(self.family(2 * count, generator), self.box, generator)
        return Density(values[:count], self.box), Density(values[count:], self.box)


def sampled(mixture: GaussianMixture, grid: Grid, generator: torch.Generator) -> Tensor:
    """Return densities of histograms of about 3,000 particles of each mixture, (B, *grid.shape), float64.

    The counts of cells are independent Poisson numbers: given their sum, they are distributed as
    counts of that many particles.
    """
    expected = PARTICLES * cell_masses(mixture, grid)
    counts = torch.poisson(expected, generator=generator)
    total = counts.sum(dim=(-2, -1), keepdim=True)
    return counts / (total * grid.cell_volume)


# ---- Pairs of handwritten digits: as images, and as codes of an autoencoder.


BLUR = 1.0  # pixels
FLOOR = 0.05  # share of the mass that is uniform: maps of densities with holes have jumps


def digit_images() -> Pool:
    """Return MNIST's training digits, slightly blurred, on the unit square."""
    return Pool(as_densities(mnist("train").images, BLUR, FLOOR))


def digit_codes(autoencoder: Path = SHIPPED) -> Pool:
    """Return the codes of MNIST's training digits, as densities on [0, 5]."""
    return Pool(
        code_densities(load_autoencoder(autoencoder).encode(as_rows(mnist("train").images)))
    )
