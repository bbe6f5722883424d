"""Problems with exact answers and simple shapes: barycenters, unequal masses, periodic axes.

All densities are on the unit square or the unit interval, as means over cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from benchmarks.pairs import gauss_means, gauss_points
from experiments.mnist import sample_digits
from geonet import Density, Grid
from geonet.solvers.bures import gaussian_distance, optimal_matrix
from geonet.synthetic import box_distance, cell_centres, fill

Point = tuple[float, float]


def average_function(function: Callable[[Tensor], Tensor], grid: Grid) -> Density:
    """Return the cell means of a function of points (N, 2) on a square grid."""
    cells = grid.shape[0]
    return Density(gauss_means(function(gauss_points(cells)), cells), grid)


# ---- shapes


def _disc_distance(x: Tensor, radius: float) -> Tensor:
    return torch.hypot(x[0], x[1]) - radius


def _cross_distance(x: Tensor) -> Tensor:
    return torch.minimum(box_distance(x, 0.09, 0.36), box_distance(x, 0.36, 0.09))


# signed distances to points (2, N) relative to the centre
SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "disc": lambda x: _disc_distance(x, 0.3),
    "ring": lambda x: _disc_distance(x, 0.285).abs() - 0.065,
    "square": lambda x: box_distance(x, 0.28, 0.28),
    "cross": _cross_distance,
}


def draw_shape(
    name: str, grid: Grid, centre: Point = (0.5, 0.5), scale: float = 1.0, mass: float = 1.0
) -> Density:
    """Return a shape with anti-aliased edges.

    Args:
        name: one of `SHAPES`.
        grid: square grid on the unit square.
        centre: position of its centre.
        scale: size; one is a shape that fills the middle of the square.
        mass: mass of the density.
    """
    cells = grid.shape[0]
    points = (cell_centres(cells, 2) - torch.tensor(centre)[:, None]) / scale
    inside = fill(SHAPES[name](points) * scale, cells).view(cells, cells).double()
    return Density(inside * (mass / inside.mean()), grid)


def draw_shapes(cells: int) -> list[Density]:
    """Return disc, ring, square and cross on cells × cells cells."""
    return [draw_shape(name, Grid((cells, cells))) for name in SHAPES]


def draw_digits(cells: int = 28) -> list[Density]:
    """Return the first 0, 1, … 9 of MNIST's test set, as bundled with geonet."""
    digits, grid = sample_digits(), Grid((28, 28))
    images = [digits.images[np.flatnonzero(digits.labels == k)[0]] for k in range(10)]
    return [Density(image / 255, grid).resample(Grid((cells, cells))) for image in images]


# ---- Gaussians


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian measure on the plane.

    Attributes:
        mean: its centre.
        covariance: (xx, xy, yy).
        mass: total mass.
    """

    mean: Point
    covariance: tuple[float, float, float]
    mass: float = 1.0

    @property
    def centre(self) -> Tensor:
        """Return the mean as a tensor, (2,)."""
        return torch.tensor(self.mean, dtype=torch.float64)

    @property
    def matrix(self) -> Tensor:
        """Return the covariance as a matrix, (2, 2)."""
        xx, xy, yy = self.covariance
        return torch.tensor([[xx, xy], [xy, yy]], dtype=torch.float64)

    def to_density(self, grid: Grid) -> Density:
        """Return its cell means."""
        return _average_gaussian(self.centre, self.matrix, self.mass, grid)


def _average_gaussian(mean: Tensor, covariance: Tensor, mass: float, grid: Grid) -> Density:
    inverse = torch.linalg.inv(covariance)
    height = mass / (2 * math.pi * float(torch.linalg.det(covariance)) ** 0.5)

    def evaluate(points: Tensor) -> Tensor:
        offset = points - mean
        return height * torch.exp(-0.5 * torch.einsum("ni,ij,nj->n", offset, inverse, offset))

    return average_function(evaluate, grid)


def average_gaussians(
    gaussians: Sequence[Gaussian], weights: Sequence[float], grid: Grid
) -> tuple[Density, float]:
    """Return the exact barycenter of Gaussians and Σ w_i W2², by the fixed point of Bures."""
    shares = torch.tensor(weights, dtype=torch.float64)
    means = torch.stack([g.centre for g in gaussians])
    matrices = torch.stack([g.matrix for g in gaussians])
    covariance, mean = matrices[0], shares @ means
    for _ in range(200):  # Álvarez-Esteban et al. 2016
        maps = optimal_matrix(covariance.expand_as(matrices), matrices)
        mean_map = torch.einsum("k,kij->ij", shares, maps)
        covariance = mean_map @ covariance @ mean_map
    distances = gaussian_distance(means - mean, covariance.expand_as(matrices), matrices)
    return _average_gaussian(mean, covariance, 1.0, grid), float(shares @ distances**2)


def gaussian_hellinger_cost(source: Gaussian, target: Gaussian, reach: float) -> float:
    """Return min ∫½|x − z|²dπ + λKL(π_0|μ_0) + λKL(π_1|μ_1), λ = reach²/2, between Gaussians.

    The optimal plan has the mass m = √(m_0 m_1) exp(−E/2λ) and Gaussian marginals N(a_i, S_i),
    which minimise E = ½W2² + λΣKL(N(a_i, S_i)|N(b_i, Σ_i)). For the map A between them,
    S_0⁻¹ = Σ_0⁻¹ + (I − A)/λ and S_1⁻¹ = Σ_1⁻¹ + (I − A⁻¹)/λ, hence A P_1 A = P_0 with
    P_i = Σ_i⁻¹ + I/λ. The cost is λ(m_0 + m_1 − 2m).
    """
    scale, one = reach**2 / 2, torch.eye(2, dtype=torch.float64)
    given = [source.matrix, target.matrix]
    precisions = [torch.linalg.inv(matrix) for matrix in given]
    across = optimal_matrix(precisions[1] + one / scale, precisions[0] + one / scale)
    maps = [across, torch.linalg.inv(across)]
    plan = [torch.linalg.inv(p + (one - a) / scale) for p, a in zip(precisions, maps, strict=True)]
    shift = target.centre - source.centre
    energy = shift @ torch.linalg.solve(one + (given[0] + given[1]) / scale, shift) / 2
    energy = energy + gaussian_distance(torch.zeros(2), plan[0], plan[1]) ** 2 / 2
    for matrix, precision in zip(plan, precisions, strict=True):
        ratio = precision @ matrix
        energy = energy + scale / 2 * (ratio.trace() - 2 - torch.logdet(ratio))
    masses = source.mass, target.mass
    matched = math.sqrt(masses[0] * masses[1]) * math.exp(-float(energy) / (2 * scale))
    return scale * (sum(masses) - 2 * matched)


def dirac_cost(masses: tuple[float, float], distance: float, reach: float) -> float:
    """Return the Wasserstein–Fisher–Rao cost of two Diracs, 2δ²(m_0 + m_1 − 2√(m_0 m_1) cos)."""
    angle = min(distance / reach, math.pi / 2)
    matched = math.sqrt(masses[0] * masses[1]) * math.cos(angle)
    return reach**2 / 2 * (sum(masses) - 2 * matched)


# ---- translates


def draw_lumps(centre: Point, grid: Grid) -> Density:
    """Return a smooth asymmetric lump at a position."""
    offset = torch.tensor(centre, dtype=torch.float64)

    def evaluate(points: Tensor) -> Tensor:
        x, y = (points - offset).T
        wide = torch.exp(-(x**2 / 0.006 + y**2 / 0.012))
        return wide + 0.5 * torch.exp(-((x - 0.1) ** 2 + y**2) / 0.004)

    return average_function(evaluate, grid)


# ---- showers


@dataclass(frozen=True)
class Shower:
    """A shower that moves and changes its mass: centres, masses at both ends, and its width."""

    centres: tuple[Point, Point]
    masses: tuple[float, float]
    width: float = 0.05

    def at_end(self, end: int) -> Gaussian:
        """Return the shower at one end."""
        return Gaussian(self.centres[end], (self.width**2, 0.0, self.width**2), self.masses[end])


SHOWERS = (
    Shower(((0.25, 0.25), (0.30, 0.28)), (1.0, 2.0)),
    Shower(((0.75, 0.70), (0.78, 0.72)), (1.0, 0.3)),
)


def draw_showers(grid: Grid) -> tuple[Density, Density]:
    """Return a growing shower beside a decaying one at both ends, with their masses."""
    source, target = (
        sum((shower.at_end(k).to_density(grid).numpy("given") for shower in SHOWERS), np.array(0))
        for k in (0, 1)
    )
    return Density(source, grid), Density(target, grid)


# ---- periodic maps


@dataclass(frozen=True)
class CircleMap:
    """The optimal map T(x) = x + u′(x) of a density on the circle of length one, u periodic.

    The density is 1 + height·cos 2π(x − centre), u′(x) = Σ_k a_k sin(2πkx)/(2πk).

    Attributes:
        centre: maximum of the density.
        height: below one.
        amplitudes: a_1, a_2, …; the sum of their sizes is below one.
    """

    centre: float
    height: float
    amplitudes: tuple[float, ...]

    def cell_means(self, cells: int, t: float) -> np.ndarray:
        """Return the exact cell means of the density carried to time t, (cells,)."""
        edges = self._invert(np.arange(cells + 1) / cells, t)
        phase = 2 * np.pi * (edges - self.centre)
        cumulative = edges + self.height * np.sin(phase) / (2 * np.pi)
        return np.diff(cumulative) * cells

    @property
    def squared_distance(self) -> float:
        """Return W2², by the midpoint rule, which is exact for these periodic functions."""
        x = (np.arange(4096) + 0.5) / 4096
        density = 1 + self.height * np.cos(2 * np.pi * (x - self.centre))
        return float((density * self._displace(x) ** 2).mean())

    def _displace(self, x: np.ndarray) -> np.ndarray:
        rates = 2 * np.pi * np.arange(1, len(self.amplitudes) + 1)
        return np.sin(x[..., None] * rates) @ (np.array(self.amplitudes) / rates)

    def _invert(self, y: np.ndarray, t: float) -> np.ndarray:
        """Return x with x + t·u′(x) = y, by bisection."""
        low, high = y - 0.5, y + 0.5
        for _ in range(60):
            middle = (low + high) / 2
            is_low = middle + t * self._displace(middle) < y
            low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
        return (low + high) / 2


CIRCLE_MAPS = (CircleMap(0.2, 0.8, (0.6, 0.2)), CircleMap(0.65, 0.5, (-0.4, 0.3, 0.1)))


def draw_circle_maps(maps: Sequence[CircleMap], t: float, grid: Grid) -> Density:
    """Return the product of circle maps at time t, exact in cells."""
    factors = [each.cell_means(n, t) for each, n in zip(maps, grid.shape, strict=True)]
    return Density(reduce(np.multiply.outer, factors), grid)
