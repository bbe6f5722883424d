"""Problems: sources of random training pairs in the unit box, their registry, and batches of them.

A config names a registered problem, such as "mixtures-2d", or the location "module:factory" of
another one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from geonet._utils import import_object
from geonet.density import Density
from geonet.errors import ConfigError
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
from geonet.solvers.neural.losses import Batch, DensityFunction, DensityFunctions


class Problem(ABC):
    """A source of random pairs on one box.

    Attributes:
        box: the box in the units of its densities.
    """

    box: Grid

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> DensityFunctions:
        """Draw `count` pairs: sources and targets as functions on the unit box.

        The functions map points (N, d) or (count, N, d) to densities relative to the uniform one,
        (count, N), float32.
        """

    @abstractmethod
    def draw_densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Draw `count` pairs on a grid, for validation by a solver."""

    def read_sensors(self, density: DensityFunction, sensors: Tensor) -> Tensor:
        """Return the inputs of a model, (count, m), at sensors (m, d), for a result of `draw`."""
        return density(sensors)

    def cell_means(self, density: DensityFunction, cells: int) -> Tensor:
        """Return means over cells^d cells of the unit box, (count, cells^d), of a result of `draw`.

        They are exact for `CellMeans`, else from two points along each axis of a cell.
        """
        if isinstance(density, CellMeans):
            return density.on_grid(cells)
        d = self.box.dimension
        points = Grid((2 * cells,) * d).points().reshape(-1, d).float()
        values = density(points).unflatten(1, (cells, 2) * d)
        return values.mean(tuple(range(2, 2 * d + 1, 2))).flatten(1)


class CellMeans:
    """Densities relative to uniform, given by their means over cells of the unit box.

    Attributes:
        tensor: the means, (count, *cells), float32.
    """

    def __init__(self, values: Tensor):
        self.tensor = values
        self.grid = Grid(tuple(values.shape[1:]))

    def __call__(self, points: Tensor) -> Tensor:
        """Interpolate by cubic splines, which overshoot at jumps."""
        if not points.numel():  # the splines would be computed in vain
            return self.tensor.new_zeros(len(self.tensor), points.shape[-2])
        return self._spline(points)

    @cached_property
    def _spline(self) -> CubicSpline:
        return CubicSpline(self.tensor, self.grid)

    def on_grid(self, cells: int) -> Tensor:
        """Return the means over cells^d cells, (count, cells^d), float32."""
        target = Grid((cells,) * self.grid.dimension)
        if target == self.grid:
            return self.tensor.flatten(1).float()
        return resample(self.tensor.double(), self.grid, target).flatten(1).float()


# ---- Registry


_REGISTRY: dict[str, Callable[[], Problem]] = {
    "mixtures-1d": lambda: Mixtures(mixtures_1d, BOX_1D),
    "mixtures-2d": lambda: Mixtures(mixtures_2d, BOX_2D),
    "mixtures-3d": lambda: Mixtures(mixtures_3d, BOX_3D),
    "anything-2d": lambda: _synthetic_pairs("SQUARE"),
    "anything-3d": lambda: _synthetic_pairs("CUBE"),
}


def register_problem(name: str, factory: Callable[[], Problem]) -> None:
    """Let configs name a problem: `family = name` builds it with `factory()`."""
    _REGISTRY[name] = factory


def list_problems() -> list[str]:
    """Return the names of all registered problems."""
    return list(_REGISTRY)


def make_problem(family: str, file: str | None = None) -> Problem:
    """Build a problem.

    Args:
        family: a registered name, or the location "module:factory" of a function or class.
        file: argument of the factory at a location; None calls it without one.
    """
    if family in _REGISTRY:
        return _REGISTRY[family]()
    if ":" not in family:
        raise ConfigError(
            f"problem.family is {family!r}; choose from {', '.join(_REGISTRY)}, or give a location "
            '"module:factory".'
        )
    try:
        factory = import_object(family)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"problem.family is {family!r}, which cannot be imported: {error}; correct the "
            "location."
        ) from error
    return factory() if file is None else factory(Path(file))


def _synthetic_pairs(config: str) -> Problem:
    from geonet import synthetic
    from geonet.training.synthetic_pairs import SyntheticPairs

    return SyntheticPairs(getattr(synthetic, config))


# ---- Gaussian mixtures


class Mixtures(Problem):
    """One of the paper's families of Gaussian mixtures, restricted to a box."""

    def __init__(self, family: Callable[..., GaussianMixture], box: Grid):
        self.family, self.box = family, box

    def draw(self, count: int, generator: torch.Generator) -> DensityFunctions:
        """Draw independent sources and targets."""
        return self.to_functions(self.family(2 * count, generator))

    def draw_densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Draw mixtures on the family's own grid."""
        mixture = self.family(2 * count, generator)
        source, target = (
            GaussianMixture(
                mixture.means[part], mixture.covariances[part], mixture.weights[part]
            ).to_density(self.box)
            for part in (slice(count), slice(count, None))
        )
        return source, target

    def to_functions(self, mixture: GaussianMixture) -> DensityFunctions:
        """Return the first and the second half of a batch of mixtures, of mass one in the box."""
        logs = log_quadratics(mixture, self.box)
        mass = self.mass(mixture, logs)[:, None, None]
        logs = torch.cat([logs[..., :1] - mass.log()[..., :1], logs[..., 1:]], dim=-1)
        first, second = logs.chunk(2)
        return (
            lambda points: evaluate(first.to(points.device), points),
            lambda points: evaluate(second.to(points.device), points),
        )

    def mass(self, mixture: GaussianMixture, logs: Tensor) -> Tensor:
        """Return the mass of each mixture in the box, (B,), given its `log_quadratics`."""
        nodes, weights = quadrature(self.box.dimension)
        return evaluate(logs, nodes) @ weights


@lru_cache(maxsize=4)
def quadrature(dimension: int) -> tuple[Tensor, Tensor]:
    """Return Gauss–Legendre nodes (n, d) in the unit box and their weights (n,), float32."""
    order = {1: 32, 2: 12, 3: 10}[dimension]  # enough for the paper's mixtures
    x, w = (torch.from_numpy(a) / 2 for a in np.polynomial.legendre.leggauss(order))
    nodes = torch.cartesian_prod(*[x + 0.5] * dimension).reshape(-1, dimension)
    weights = torch.cartesian_prod(*[w] * dimension).reshape(-1, dimension).prod(-1)
    return nodes.float(), weights.float()


def log_quadratics(mixture: GaussianMixture, box: Grid) -> Tensor:
    """Return log of each component as a polynomial of degree 2 in the unit box, (B, k, terms).

    Evaluating polynomials is one matrix product, an order of magnitude faster than solving with
    each covariance. Single precision suffices, because the coordinates are centred.
    """
    d = box.dimension
    length = torch.tensor(box.lengths, dtype=torch.float64)
    middle = (box.lower_tensor + box.upper_tensor) / 2
    mean = (mixture.means - middle) / length
    precision = torch.linalg.inv(mixture.covariances) * length[:, None] * length
    half_log_det = 0.5 * torch.logdet(precision)
    linear = (precision @ mean[..., None]).squeeze(-1)
    height = mixture.weights.log() + half_log_det - 0.5 * d * math.log(math.tau)
    constant = height - 0.5 * (mean * linear).sum(-1)
    rows, columns = torch.triu_indices(d, d)
    multiplicity = torch.where(rows == columns, 1.0, 2.0)
    quadratic = -0.5 * precision[..., rows, columns] * multiplicity
    return torch.cat([constant[..., None], linear, quadratic], dim=-1).float()


def evaluate(logs: Tensor, points: Tensor) -> Tensor:
    """Return Σ_k exp(polynomial_k) at points (N, d) or (B, N, d) of the unit box, (B, N)."""
    centred = points - 0.5
    rows, columns = torch.triu_indices(points.shape[-1], points.shape[-1])
    one = torch.ones_like(centred[..., :1])
    terms = torch.cat([one, centred, centred[..., rows] * centred[..., columns]], dim=-1)
    return (logs @ terms.transpose(-1, -2)).exp_().sum(-2)


# ---- Batches


def sensor_points(sensors: int, dimension: int) -> Tensor:
    """Return the centres of sensors^d cells of the unit box, (m, d), float32."""
    return Grid((sensors,) * dimension).points().reshape(-1, dimension).float()


def cartesian_batch(
    problem: Problem,
    sensors: Tensor,
    pairs: int,
    points: int,
    places: int,
    generator: torch.Generator,
    cells: int | None = None,
) -> Batch:
    """Draw `pairs` new pairs, to be evaluated at the same points and compared at the same places.

    If `cells` is given, the model's input is the means over cells^d cells, not sensor values.
    """
    d = problem.box.dimension
    ends = problem.draw(pairs, generator)
    space_time = kronecker_points(points, d + 1, generator)
    there = kronecker_points(places, d, generator)
    source, target = (
        problem.read_sensors(end, sensors) if cells is None else problem.cell_means(end, cells)
        for end in ends
    )
    return Batch(
        source,
        target,
        points=space_time[:, :-1],
        times=space_time[:, -1],
        endpoint_points=there,
        source_values=ends[0](there),
        target_values=ends[1](there),
        ends=ends,
        is_paired=False,
    )


def triples_batch(
    problem: Problem, sensors: Tensor, count: int, generator: torch.Generator
) -> Batch:
    """Draw `count` pairs, each with a point and a place of its own (the paper's algorithm 1)."""
    d = problem.box.dimension
    ends = problem.draw(count, generator)
    space_time = torch.rand(count, d + 1, generator=generator)
    there = torch.rand(count, d, generator=generator)
    return Batch(
        problem.read_sensors(ends[0], sensors),
        problem.read_sensors(ends[1], sensors),
        points=space_time[:, :-1],
        times=space_time[:, -1],
        endpoint_points=there,
        source_values=ends[0](there[:, None])[:, 0],
        target_values=ends[1](there[:, None])[:, 0],
        ends=ends,
        is_paired=True,
    )


def kronecker_points(count: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return evenly distributed points in the unit cube with a common random shift, (count, d).

    Point i is i·(1/g, 1/g², …) modulo 1, with g^(d+1) = g + 1, the golden ratio for d = 1
    (Kronecker's sequence). All pairs of a batch share these points, so the gaps between independent
    random points would affect every pair.
    """
    ratio = 1.0
    for _ in range(64):  # a contraction
        ratio = (1 + ratio) ** (1 / (dimension + 1))
    steps = ratio ** -torch.arange(1.0, dimension + 1, dtype=torch.float64)
    start = torch.rand(dimension, generator=generator, dtype=torch.float64)
    index = torch.arange(count, dtype=torch.float64)[:, None]
    return ((start + index * steps) % 1).float()


# ---- Exact 1D geodesics at any (x, t), for supervised models
#
# In 1D the optimal map is monotone: mass at x0 moves on a straight line to the x1 with
# F1(x1) = F0(x0).


def add_exact_densities(batch: Batch, n_times: int = 8) -> Batch:
    """Add μ_t(x) of every pair at the points of a 1D batch, at the first `n_times` of its times.

    The number of times is reduced because each one needs a sorted table of lines.
    """
    times = batch.times[torch.arange(len(batch.times)) % n_times]
    density = exact_densities_1d(batch.ends, batch.points, times)
    return replace(batch, times=times, exact_density=density)


def exact_densities_1d(
    ends: DensityFunctions, points: Tensor, times: Tensor, cells: int = 128
) -> Tensor:
    """Return μ_t(x) of B pairs at points (Q, 1) and times (Q,) of the unit box, (B, Q), float32.

    By conservation of mass 1/μ_t(x) = (1 − t)/μ0(x0) + t/μ1(x1) on the line from x0 to x1 that is
    at x at time t. With 128 `cells` for the distribution functions the error is about 1e-4.
    """
    starts, stops = _transport_lines(ends, cells)
    x0, x1 = (torch.empty(len(starts), len(times), dtype=torch.float64) for _ in range(2))
    for t in times.unique():
        (here,) = torch.nonzero(times == t, as_tuple=True)
        x0[:, here], x1[:, here] = _lines_through(starts, stops, points[here, 0].double(), float(t))
    source, target = (
        end(x[..., None].float()).double().clamp(min=0)  # splines overshoot
        for end, x in zip(ends, (x0, x1), strict=True)
    )
    t, tiny = times.double(), torch.finfo(torch.float64).tiny
    return (source * target / ((1 - t) * target + t * source).clamp(min=tiny)).float()


def _transport_lines(ends: DensityFunctions, cells: int) -> tuple[Tensor, Tensor]:
    """Return x0 and x1, (B, 2·cells + 2), of the lines that start or end at an edge of a cell.

    Between two of them both are nearly linear, also if one density is much smaller than the other.
    """
    centres = ((torch.arange(cells, dtype=torch.float64) + 0.5) / cells)[:, None].float()
    distributions = []
    for end in ends:
        values = end(centres).double().clamp(min=0) + 1e-10  # so that an inverse exists
        cumulative = values.cumsum(1)
        zero = torch.zeros_like(values[:, :1])
        distributions.append(torch.cat([zero, cumulative / cumulative[:, -1:]], dim=1))
    levels = torch.cat(distributions, dim=1).sort(dim=1).values
    x0, x1 = (_quantiles(distribution, levels) for distribution in distributions)
    return x0, x1


def _quantiles(distribution: Tensor, levels: Tensor) -> Tensor:
    """Return F⁻¹ at levels (B, K), linear in each cell, for F at the edges of cells."""
    cells = distribution.shape[1] - 1
    cell = torch.searchsorted(distribution, levels, right=True).clamp(1, cells) - 1
    low, high = distribution.gather(1, cell), distribution.gather(1, cell + 1)
    return (cell + (levels - low) / (high - low)) / cells


def _lines_through(starts: Tensor, stops: Tensor, x: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """Return x0 and x1, (B, N), of the lines with (1 − t)x0 + t·x1 = x for x (N,)."""
    now = torch.lerp(starts, stops, t)
    after = torch.searchsorted(now, x.expand(len(now), -1).contiguous(), right=True)
    after = after.clamp(1, now.shape[1] - 1)
    left, right = now.gather(1, after - 1), now.gather(1, after)
    tiny = torch.finfo(torch.float64).tiny
    share = ((x - left) / (right - left).clamp(min=tiny)).clamp(0, 1)
    x0, x1 = (
        torch.lerp(ends.gather(1, after - 1), ends.gather(1, after), share)
        for ends in (starts, stops)
    )
    return x0, x1
