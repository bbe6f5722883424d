"""Pairs of densities to train on, in the unit box: random families, or the user's own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from geonet.errors import FileError, InputError
from geonet.files import reading
from geonet.measures.density import Density
from geonet.measures.families import (
    BOX_1D,
    BOX_2D,
    BOX_3D,
    mixtures_1d,
    mixtures_2d,
    mixtures_3d,
)
from geonet.measures.gaussian_mixture import GaussianMixture
from geonet.measures.grid import Grid
from geonet.measures.interpolation import CubicSpline

End = Callable[[Tensor], Tensor]
Ends = tuple[End, End]
QUADRATURE = {1: 32, 2: 12, 3: 10}  # Gauss–Legendre nodes per axis for the mass of a mixture


class Problem(ABC):
    """A source of random pairs on one box.

    Attributes:
        box: the box in the units of its densities; the cells do not matter.
    """

    box: Grid

    @abstractmethod
    def draw(self, count: int, generator: torch.Generator) -> Ends:
        """`count` pairs: two functions of points in the unit box, (N, d) or (count, N, d).

        Each gives the densities there relative to the uniform one, (count, N), float32.
        """

    def sensed(self, end: End, sensors: Tensor) -> Tensor:
        """What sensors at these points (m, d) read of an end of `draw`, (count, m)."""
        return end(sensors)

    @abstractmethod
    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """`count` pairs as densities on a grid, for a solver to answer."""


class Mixtures(Problem):
    """One of the paper's families of Gaussian mixtures, new ones at every draw."""

    def __init__(self, family: Callable[..., GaussianMixture], box: Grid):
        self.family, self.box = family, box

    def draw(self, count: int, generator: torch.Generator) -> Ends:
        """Mixtures cut to the box; both ends are independent."""
        return self.ends_of(self.family(2 * count, generator))

    def ends_of(self, mixture: GaussianMixture) -> Ends:
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


class Recorded(Problem):
    """Pairs in an npz: `source` and `target` (n, *cells), and the box's `lower` and `upper`.

    The last tenth of the pairs is held out for validation.
    """

    def __init__(self, file: Path):
        arrays = _read_arrays(file)
        source, target = arrays["source"], arrays["target"]
        if source.shape != target.shape or not 2 <= source.ndim <= 4:
            raise FileError(
                f"{file} has source {source.shape} and target {target.shape}; "
                "give two arrays (n, cells…) of one shape, in 1D to 3D."
            )
        box = [arrays.get(key, np.float64(k)).tolist() for k, key in enumerate(("lower", "upper"))]
        try:
            self.box = Grid(source.shape[1:], *box)
            self.source, self.target = (Density(end, self.box) for end in (source, target))
        except (InputError, ValueError) as error:
            raise FileError(f"{file}: {error}") from error
        if max(self.box.lengths) > min(self.box.lengths) * (1 + 1e-9):
            raise FileError(
                f"The box in {file} has sides {self.box.lengths}; pad the densities to a cube."
            )
        self.seen = max(1, len(source) - math.ceil(len(source) / 10))

    def draw(self, count: int, generator: torch.Generator) -> Ends:
        """Random pairs of the file, with repeats, as splines through their cells."""
        chosen = torch.randint(self.seen, (count,), generator=generator)
        unit = Grid(self.box.shape)
        splines = [
            CubicSpline(end.values[chosen].float() * self.box.volume, unit)
            for end in (self.source, self.target)
        ]
        return splines[0], splines[1]

    def densities(self, count: int, generator: torch.Generator) -> tuple[Density, Density]:
        """Random pairs that were held out, with repeats."""
        first = min(self.seen, len(self.source) - 1)
        chosen = torch.randint(first, len(self.source), (count,), generator=generator)
        return tuple(Density(end.values[chosen], self.box) for end in (self.source, self.target))  # pyright: ignore[reportReturnType]


def _read_arrays(file: Path) -> dict[str, np.ndarray]:
    # np.load leaves a broken archive open, so the file is opened here.
    with (
        reading(file, "an npz of pairs"),
        file.open("rb") as stream,
        np.lib.npyio.NpzFile(stream, allow_pickle=False) as archive,
    ):
        arrays = {key: archive[key] for key in archive.files}
    for key in ("source", "target"):
        if key not in arrays:
            raise FileError(f"{file} has no array {key!r}; give source and target, (n, cells).")
    return arrays


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
