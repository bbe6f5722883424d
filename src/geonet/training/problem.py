"""Pairs of densities to train on, in the unit box: what they are, and random families of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from geonet.measures.density import Density
from geonet.measures.families import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.operators.objective import EndFunction, EndFunctions
from geonet.training.cells import Cells

FINER = 2  # points an axis for means over a cell
QUADRATURE = {1: 32, 2: 12, 3: 10}  # Gauss–Legendre nodes per axis for the mass of a mixture


class Problem(ABC):
    """A source of random pairs on one box.

    Attributes:
        box: the box in the units of its densities; the cells do not matter.
    """

    box: Grid

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """`count` pairs: two functions of points in the unit box, (N, d) or (count, N, d).

        Each gives the densities there relative to the uniform one, (count, N), float32.
        """

    def sensed(self, end: EndFunction, sensors: Tensor) -> Tensor:
        """What sensors at these points (m, d) read of an end of `draw`, (count, m)."""
        return end(sensors)

    def means(self, end: EndFunction, cells: int) -> Tensor:
        """Means of an end of `draw` over cells^d cells of the unit box, (count, cells^d).

        Exact where the end knows its cells; else from `FINER` points an axis and cell.
        """
        if isinstance(end, Cells):
            return end.means(cells)
        d = self.box.dimension
        points = Grid((FINER * cells,) * d).points().reshape(-1, d).float()
        values = end(points).unflatten(1, (cells, FINER) * d)
        return values.mean(tuple(range(2, 2 * d + 1, 2))).flatten(1)

    @abstractmethod
    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """`count` pairs as densities on a grid, for a solver to answer."""


class Mixtures(Problem):
    """One of the paper's families of Gaussian mixtures, new ones at every draw."""

    def __init__(self, family: Callable[..., GaussianMixture], box: Grid):
        self.family, self.box = family, box

    def draw(self, count: int, generator: torch.Generator) -> EndFunctions:
        """Mixtures cut to the box; both ends are independent."""
        return self.ends_of(self.family(2 * count, generator))

    def ends_of(self, mixture: GaussianMixture) -> EndFunctions:
        """The first half of the mixtures, and the second, as functions on the unit box."""
        logs = log_quadratics(mixture, self.box)
        mass = self.mass(mixture, logs)[:, None, None]
        logs = torch.cat([logs[..., :1] - mass.log()[..., :1], logs[..., 1:]], dim=-1)
        first, second = logs.chunk(2)
        return (
            lambda points: evaluate(first.to(points.device), points),
            lambda points: evaluate(second.to(points.device), points),
        )

    def mass(self, mixture: GaussianMixture, logs: Tensor) -> Tensor:
        """How much of each mixture, whose `log_quadratics` are given, is in the box, (B,)."""
        nodes, weights = quadrature(self.box.dimension)
        return evaluate(logs, nodes) @ weights

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Mixtures on the family's own grid."""
        mixture = self.family(2 * count, generator)
        ends = (slice(count), slice(count, None))
        return tuple(
            GaussianMixture(mixture.means[k], mixture.covariances[k], mixture.weights[k]).on(
                self.box
            )
            for k in ends
        )  # pyright: ignore[reportReturnType]


FAMILIES: dict[str, Callable[[], Problem]] = {
    "mixtures-1d": lambda: Mixtures(mixtures_1d, BOX_1D),
    "mixtures-2d": lambda: Mixtures(mixtures_2d, BOX_2D),
    "mixtures-3d": lambda: Mixtures(mixtures_3d, BOX_3D),
}


@lru_cache(maxsize=4)
def quadrature(dimension: int) -> tuple[Tensor, Tensor]:
    """Gauss–Legendre nodes (n, d) in the unit box and their weights (n,), float32."""
    x, w = (torch.from_numpy(a) / 2 for a in np.polynomial.legendre.leggauss(QUADRATURE[dimension]))
    nodes = torch.cartesian_prod(*[x + 0.5] * dimension).reshape(-1, dimension)
    weights = torch.cartesian_prod(*[w] * dimension).reshape(-1, dimension).prod(-1)
    return nodes.float(), weights.float()


def log_quadratics(mixture: GaussianMixture, box: Grid) -> Tensor:
    """The logarithm of each component as a polynomial of degree 2 in the unit box, (B, k, terms).

    Evaluating a polynomial is one matmul, an order of magnitude faster than solving with each
    covariance, and single precision suffices: coordinates are centred first.
    """
    d = box.dimension
    length = torch.tensor(box.lengths, dtype=torch.float64)
    middle = (box.corner("lower") + box.corner("upper")) / 2
    mean = (mixture.means - middle) / length
    precision = torch.linalg.inv(mixture.covariances) * length[:, None] * length
    half_log_det = 0.5 * torch.logdet(precision)
    bent = (precision @ mean[..., None]).squeeze(-1)
    height = mixture.weights.log() + half_log_det - 0.5 * d * math.log(math.tau)
    constant = height - 0.5 * (mean * bent).sum(-1)
    rows, columns = torch.triu_indices(d, d)
    twice = torch.where(rows == columns, 1.0, 2.0)
    quadratic = -0.5 * precision[..., rows, columns] * twice
    return torch.cat([constant[..., None], bent, quadratic], dim=-1).float()


def evaluate(logs: Tensor, points: Tensor) -> Tensor:
    """Σ_k exp(polynomial_k) at points (N, d) or (B, N, d) of the unit box: (B, N)."""
    centred = points - 0.5
    rows, columns = torch.triu_indices(points.shape[-1], points.shape[-1])
    one = torch.ones_like(centred[..., :1])
    terms = torch.cat([one, centred, centred[..., rows] * centred[..., columns]], dim=-1)
    return (logs @ terms.transpose(-1, -2)).exp_().sum(-2)
