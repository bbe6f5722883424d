"""Training problems of the paper's experiments: particle clouds and handwritten digits.

Configs name them by location, such as `family = "experiments.problems:Clouds"`. Headers of older
model files have short names, which importing this module registers.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from experiments.autoencoder import SHIPPED, as_rows, code_densities, load_autoencoder
from experiments.mnist import as_densities, mnist
from experiments.point_clouds import BOX_CLOUDS, PARTICLES, cell_masses, cloud_mixtures
from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import GaussianMixture
from geonet.numerics.interpolation import CubicSpline
from geonet.solvers.neural.losses import DensityFunction, DensityFunctions
from geonet.training import register_problem
from geonet.training.problems import Mixtures
from geonet.training.user_data import DensityDataset

BLUR = 1.0  # of images of digits, in pixels
FLOOR = 0.05  # share of their mass that is uniform: maps between densities with holes have jumps


class Clouds(Mixtures):
    """Mixtures of three Gaussians, which the model reads as histograms of some 3,000 particles.

    The loss uses the mixtures themselves, so the model learns to remove the sampling noise.
    """

    def __init__(self) -> None:
        super().__init__(cloud_mixtures, BOX_CLOUDS)

    def draw(self, count: int, generator: torch.Generator) -> DensityFunctions:
        """Draw mixtures with particles; sources and targets are independent."""
        mixture = self.family(2 * count, generator)
        source, target = self.to_functions(mixture)
        histograms = sample_histograms(mixture, self.box, generator).float() * self.box.volume
        first, second = histograms.chunk(2)
        return Cloud(source, first), Cloud(target, second)

    def draw_densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Draw histograms."""
        values = sample_histograms(self.family(2 * count, generator), self.box, generator)
        return Density(values[:count], self.box), Density(values[count:], self.box)

    def mass(self, mixture: GaussianMixture, logs: Tensor) -> Tensor:
        """Return the exact mass in the box: the bumps are too narrow for the quadrature."""
        return cell_masses(mixture, self.box).sum(dim=(-2, -1)).float()

    def read_sensors(self, density: DensityFunction, sensors: Tensor) -> Tensor:
        """Return the histograms at the sensors, interpolated by splines as in solvers."""
        assert isinstance(density, Cloud)
        return CubicSpline(density.histograms, Grid(self.box.shape))(sensors)


class Cloud:
    """Mixtures as functions on the unit box, with histograms of particles drawn from them."""

    def __init__(self, pdf: DensityFunction, histograms: Tensor):
        self.pdf = pdf
        self.histograms = histograms

    def __call__(self, points: Tensor) -> Tensor:
        """Return the mixtures at points, relative to uniform."""
        return self.pdf(points)


def sample_histograms(mixture: GaussianMixture, grid: Grid, generator: torch.Generator) -> Tensor:
    """Return densities of histograms of about 3,000 particles, (B, *grid.shape), float64.

    The counts of cells are independent Poisson numbers: given their sum, they are distributed as
    counts of that number of particles.
    """
    expected = PARTICLES * cell_masses(mixture, grid)
    counts = torch.poisson(expected, generator=generator)
    total = counts.sum(dim=(-2, -1), keepdim=True)
    return counts / (total * grid.cell_volume)


def digit_images() -> DensityDataset:
    """Return MNIST's training digits, slightly blurred, on the unit square."""
    return DensityDataset(as_densities(mnist("train").images, BLUR, FLOOR))


def digit_codes(autoencoder: Path = SHIPPED) -> DensityDataset:
    """Return the codes of MNIST's training digits as densities on [0, 5].

    Args:
        autoencoder: file of the autoencoder; in a config, `problem.file`.
    """
    codes = load_autoencoder(autoencoder).encode(as_rows(mnist("train").images))
    return DensityDataset(code_densities(codes))


register_problem("clouds", Clouds)
register_problem("digits", digit_images)
register_problem("digit-codes", digit_codes)
