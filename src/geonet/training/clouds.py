"""Clouds of particles from mixtures of three Gaussians: the model sees their histograms."""

from __future__ import annotations

import torch
from torch import Tensor

from geonet.measures.density import Density
from geonet.measures.families import BOX_CLOUDS, PARTICLES, cell_masses, clouds
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline
from geonet.operators.objective import EndFunction, EndFunctions
from geonet.training.problem import Mixtures


class Cloud:
    """A mixture in the unit box, and the histograms of particles drawn from it."""

    def __init__(self, pdf: EndFunction, histograms: Tensor):
        self.pdf = pdf
        self.histograms = histograms

    def __call__(self, points: Tensor) -> Tensor:
        """The mixtures, relative to uniform, at points."""
        return self.pdf(points)


class Clouds(Mixtures):
    """Sensors read histograms, the equations hold for the mixtures that the particles are from.

    So the model learns to look through the sampling noise of some 3,000 particles.
    """

    def __init__(self) -> None:
        super().__init__(clouds, BOX_CLOUDS)

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """New mixtures with new particles; both ends are independent."""
        mixture = self.family(2 * count, generator)
        ends = self.ends_of(mixture)
        histograms = sampled(mixture, self.box, generator).float() * self.box.volume
        first, second = (Cloud(*both) for both in zip(ends, histograms.chunk(2), strict=True))
        return first, second

    def mass(self, mixture: GaussianMixture, logs: Tensor) -> Tensor:
        """Exact: the lumps are too narrow for the quadrature of the other families."""
        return cell_masses(mixture, self.box).sum(dim=(-2, -1)).float()

    def sensed(self, end: EndFunction, sensors: Tensor) -> Tensor:
        """The histograms at the sensors, by splines, as solvers read them."""
        assert isinstance(end, Cloud)
        return CubicSpline(end.histograms, Grid(self.box.shape))(sensors)

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Histograms."""
        values = sampled(self.family(2 * count, generator), self.box, generator)
        return Density(values[:count], self.box), Density(values[count:], self.box)


def sampled(mixture: GaussianMixture, grid: Grid, generator: torch.Generator) -> Tensor:
    """Densities of histograms of about 3,000 particles of each mixture, (B, *grid.shape), float64.

    The counts of cells are independent Poisson numbers: given their sum, they are distributed as
    counts of that many particles.
    """
    expected = PARTICLES * cell_masses(mixture, grid)
    counts = torch.poisson(expected, generator=generator)
    total = counts.sum(dim=(-2, -1), keepdim=True)
    return counts / (total * grid.cell_volume)
