"""Pairs of densities to train on, in the unit box: what they are, and random families of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from geonet.density import Density
from geonet.grid import Grid
from geonet.mixture import (
    BOX_1D,
    BOX_2D,
    BOX_3D,
    GaussianMixture,
    mixtures_1d,
    mixtures_2d,
    mixtures_3d,
)
from geonet.numerics.interpolation import CubicSpline, resample
from geonet.solvers.neural.losses import Batch, EndFunction, EndFunctions

# ---- Densities that are known by their means over cells, as functions of points.


class Cells:
    """Densities, relative to uniform, by their means over the cells of the unit box.

    Attributes:
        values: the means, (count, *cells), float32.
    """

    def __init__(self, values: Tensor):
        self.tensor = values
        self.grid = Grid(tuple(values.shape[1:]))

    def __call__(self, points: Tensor) -> Tensor:
        """The densities at points, by splines, which overshoot where the values jump."""
        if not points.numel():  # where making splines would be in vain
            return self.tensor.new_zeros(len(self.tensor), points.shape[-2])
        return self._spline(points)

    @cached_property
    def _spline(self) -> CubicSpline:
        return CubicSpline(self.tensor, self.grid)

    def means(self, cells: int) -> Tensor:
        """The means over cells^d cells, (count, cells^d), float32."""
        target = Grid((cells,) * self.grid.dimension)
        found = resample(self.tensor.double(), self.grid, target) if target != self.grid else None
        return (self.tensor if found is None else found).flatten(1).float()


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


# ---- Random pairs and random points, in two schemes.


def sensor_points(sensors: int, dimension: int) -> Tensor:
    """Where the branches read: the centres of sensors^d cells of the unit box, (m, d), float32."""
    return Grid((sensors,) * dimension).points().reshape(-1, dimension).float()


def cartesian_batch(
    problem: Problem,
    sensors: Tensor,
    pairs: int,
    points: int,
    places: int,
    generator: torch.Generator,
    means: int | None = None,
) -> Batch:
    """`pairs` new pairs, each to be asked at the same `points` and `places`.

    With `means`, the number of cells an axis, the sensors read means over cells instead of values.
    """
    d = problem.box.dimension
    ends = problem.draw(pairs, generator)
    where, there = spread(points, d + 1, generator), spread(places, d, generator)
    seen = [
        problem.sensed(end, sensors) if means is None else problem.means(end, means) for end in ends
    ]
    return _batch(ends, seen, where, there, [end(there) for end in ends], paired=False)


def triples_batch(
    problem: Problem, sensors: Tensor, count: int, generator: torch.Generator
) -> Batch:
    """The paper's: `count` pairs, each with a point and a place of its own (algorithm 1)."""
    d = problem.box.dimension
    ends = problem.draw(count, generator)
    where = torch.rand(count, d + 1, generator=generator)
    there = torch.rand(count, d, generator=generator)
    at_places = [end(there[:, None])[:, 0] for end in ends]
    seen = [problem.sensed(end, sensors) for end in ends]
    return _batch(ends, seen, where, there, at_places, paired=True)


def spread(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Points spread evenly over the unit cube, moved by a random vector as a whole, (count, d).

    Point i is i·(1/g, 1/g², …) modulo 1, with g^(d+1) = g + 1, the golden ratio for d = 1
    (Kronecker's sequence). All pairs of a batch share its points, so gaps between random points
    would show in every one of them.
    """
    ratio = 1.0
    for _ in range(64):  # which is a contraction
        ratio = (1 + ratio) ** (1 / (dimension + 1))
    steps = ratio ** -torch.arange(1.0, dimension + 1, dtype=torch.float64)
    start = torch.rand(dimension, generator=generator, dtype=torch.float64)
    index = torch.arange(count, dtype=torch.float64)[:, None]
    return ((start + index * steps) % 1).float()


def _batch(
    ends: EndFunctions,
    seen: list[Tensor],
    where: Tensor,
    there: Tensor,
    at_places: list[Tensor],
    paired: bool,
) -> Batch:
    (source, target), (points, times) = seen, (where[:, :-1], where[:, -1])
    return Batch(source, target, points, times, there, *at_places, ends=ends, paired=paired)


# ---- Exact 1D geodesics at any (x, t), for a batch of pairs at once: what a supervised model is shown.
#
# In 1D the optimal map is monotone: mass at x0 goes to the x1 with F1(x1) = F0(x0), straight.


CELLS = 128  # of the distribution functions; at random points the answer is right to some 1e-4
LEAST = 1e-10  # density, relative to uniform, so that distribution functions have an inverse
TINY = torch.finfo(torch.float64).tiny  # of a denominator
MOMENTS = 8  # in a batch: finding the lines that meet a point takes one sorted table for each


def with_known_paths(batch: Batch) -> Batch:
    """The batch with μ_t(x) of every pair at its points, at `MOMENTS` of its times."""
    times = batch.times[torch.arange(len(batch.times)) % MOMENTS]
    return replace(batch, times=times, known=known_density(batch.ends, batch.points, times))


def known_density(ends: EndFunctions, points: Tensor, times: Tensor) -> Tensor:
    """μ_t(x) of B pairs at points (Q, 1) and times (Q,) of the unit box: (B, Q), float32.

    By conservation of mass 1/μ_t(x) = (1 − t)/μ0(x0) + t/μ1(x1), where the line from x0 to x1 is at
    x at time t.
    """
    starts, stops = _lines(ends)
    x0, x1 = (torch.empty(len(starts), len(times), dtype=torch.float64) for _ in range(2))
    for t in times.unique():
        (here,) = torch.nonzero(times == t, as_tuple=True)
        meeting = _meeting(starts, stops, points[here, 0].double(), float(t))
        for whole, part in zip((x0, x1), meeting, strict=True):
            whole[:, here] = part
    source, target = (
        end(x[..., None].float()).double().clamp(min=0)  # splines overshoot
        for end, x in zip(ends, (x0, x1), strict=True)
    )
    t = times.double()
    return (source * target / ((1 - t) * target + t * source).clamp(min=TINY)).float()


def _lines(ends: EndFunctions) -> tuple[Tensor, Tensor]:
    """x0 and x1 of the lines that start or end at an edge of a cell, from left to right.

    (B, 2·CELLS + 2) each: in between both are nearly linear, also where one of the densities is
    much smaller than the other.
    """
    edges = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64)
    centres = ((edges[1:] + edges[:-1]) / 2)[:, None].float()
    first, second = (_distribution(end(centres).double()) for end in ends)
    levels = torch.cat([first, second], dim=1).sort(dim=1).values
    return _quantiles(first, levels), _quantiles(second, levels)


def _distribution(values: Tensor) -> Tensor:
    """F at the edges of cells with these densities, (B, CELLS) to (B, CELLS + 1)."""
    cumulative = (values.clamp(min=0) + LEAST).cumsum(1)
    return torch.cat([torch.zeros_like(values[:, :1]), cumulative / cumulative[:, -1:]], dim=1)


def _quantiles(distribution: Tensor, levels: Tensor) -> Tensor:
    """F⁻¹ at levels (B, K), linear in each cell."""
    cell = torch.searchsorted(distribution, levels, right=True).clamp(1, CELLS) - 1
    low, high = distribution.gather(1, cell), distribution.gather(1, cell + 1)
    return (cell + (levels - low) / (high - low)) / CELLS


def _meeting(starts: Tensor, stops: Tensor, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """x0 and x1, (B, N) each, of the lines that are at x (N,) at time t: (1 − t)x0 + t·x1 = x."""
    now = torch.lerp(starts, stops, t)
    after = torch.searchsorted(now, x.expand(len(now), -1).contiguous(), right=True)
    after = after.clamp(1, now.shape[1] - 1)
    left, right = now.gather(1, after - 1), now.gather(1, after)
    share = ((x - left) / (right - left).clamp(min=TINY)).clamp(0, 1)
    x0, x1 = (
        torch.lerp(ends.gather(1, after - 1), ends.gather(1, after), share)
        for ends in (starts, stops)
    )
    return x0, x1
