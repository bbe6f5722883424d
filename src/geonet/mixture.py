"""Gaussian mixtures in any dimension, and the random families of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet._utils import check_generator
from geonet._validation import check_count, check_index
from geonet.density import Array, Density, as_points, as_tensor, to_user_array
from geonet.errors import DensityError
from geonet.grid import Grid, check_grid


class GaussianMixture:
    """Σ_k w_k N(m_k, S_k) on R^d, one mixture or a batch of them.

    Args:
        means: (batch?, k, d).
        covariances: (batch?, k, d, d), symmetric positive definite.
        weights: (batch?, k), positive; scaled to sum one. Equal if not given.

    Attributes:
        means, covariances, weights: float64 tensors.
        is_torch: whether results are torch tensors, as one of the arguments was.
    """

    def __init__(
        self,
        means: ArrayLike | Tensor,
        covariances: ArrayLike | Tensor,
        weights: ArrayLike | Tensor | None = None,
    ):
        self.is_torch = any(isinstance(given, Tensor) for given in (means, covariances, weights))
        self.means = as_tensor(means).to(
            torch.float64, copy=True
        )  # the caller may write into its array later
        self.covariances = as_tensor(covariances).to(torch.float64, copy=True)
        *leading, k, d = self.means.shape if self.means.ndim in (2, 3) else (0, 0, 0)
        if weights is None:
            weights = torch.ones(*leading, k, dtype=torch.float64)
        self.weights = as_tensor(weights).to(torch.float64)
        expected = ((*leading, k, d, d), (*leading, k))
        if (tuple(self.covariances.shape), tuple(self.weights.shape)) != expected or d == 0:
            raise DensityError(
                f"Means {tuple(self.means.shape)}, covariances {tuple(self.covariances.shape)} and "
                f"weights {tuple(self.weights.shape)} do not fit; "
                "give (batch?, k, d), (batch?, k, d, d) and (batch?, k)."
            )
        if not bool((self.weights > 0).all() and torch.isfinite(self.weights).all()):
            raise DensityError(
                "Weights of a mixture must be positive and finite; leave out the others."
            )
        factor, failed = torch.linalg.cholesky_ex(self.covariances)
        skew = (self.covariances - self.covariances.transpose(-1, -2)).abs().max()
        symmetric = bool(skew <= 1e-8 * self.covariances.abs().max())
        if bool(failed.any()) or not symmetric or not bool(torch.isfinite(self.means).all()):
            raise DensityError(
                "The mixture parameters are invalid; give finite means and symmetric positive "
                "definite covariances."
            )
        self.weights = self.weights / self.weights.sum(-1, keepdim=True)
        self._factor = factor

    @classmethod
    def isotropic(
        cls,
        means: ArrayLike | Tensor,
        std: ArrayLike | Tensor,
        weights: ArrayLike | Tensor | None = None,
    ) -> GaussianMixture:
        """Return a mixture of isotropic Gaussians.

        Args:
            means: (batch?, k, d).
            std: standard deviations, (batch?, k), or one for all.
            weights: (batch?, k), as in the class.
        """
        is_torch = any(isinstance(given, Tensor) for given in (means, std, weights))
        means = as_tensor(means).to(torch.float64)
        std = as_tensor(std).to(torch.float64)
        if means.ndim not in (2, 3):
            raise DensityError(
                f"Means have shape {tuple(means.shape)}; give (k, d), or (batch, k, d)."
            )
        if std.ndim and std.shape != means.shape[:-1]:
            raise DensityError(
                f"Standard deviations of shape {tuple(std.shape)} do not fit means of shape "
                f"{tuple(means.shape)}; give one number, or one per component."
            )
        if not bool(((std > 0) & torch.isfinite(std)).all()):
            raise DensityError(
                "Standard deviations must be positive and finite; leave out components without any."
            )
        std = std.expand(means.shape[:-1])
        covariances = torch.diag_embed(std[..., None].expand(means.shape) ** 2)
        mixture = cls(means, covariances, weights)
        mixture.is_torch = is_torch
        return mixture

    @property
    def dimension(self) -> int:
        """d, the number of coordinates."""
        return self.means.shape[-1]

    @property
    def components(self) -> int:
        """k, the number of Gaussians."""
        return self.means.shape[-2]

    def pdf(self, points: ArrayLike | Tensor) -> Array:
        """Return the density on R^d at points (..., d): (batch?, ...)."""
        return to_user_array(self._pdf(as_points(points, self.dimension)), self.is_torch)

    def to_density(self, grid: Grid) -> Density:
        """Return the values at the cell centres, renormalised on the box.

        Along periodic axes the Gaussians are wrapped: they are sums over all their images.
        The density keeps the mixture, and evaluates it at points off the grid.
        """
        check_grid(grid)
        density = Density(self._pdf_on(grid, grid.points()), grid)
        density.mixture, density.is_torch = self, self.is_torch
        return density

    def sample(self, n: int, generator: torch.Generator | None = None) -> Array:
        """Return `n` independent points, (batch?, n, d)."""
        check_count(n, 1, "n")
        check_generator(generator)
        flat = self.weights.reshape(-1, self.components)
        component = torch.multinomial(flat, n, replacement=True, generator=generator)  # (B, n)
        means = self.means.reshape(-1, self.components, self.dimension)
        factor = self._factor.reshape(-1, self.components, self.dimension, self.dimension)
        rows = torch.arange(len(flat))[:, None]
        noise = torch.randn(
            *component.shape, self.dimension, 1, dtype=torch.float64, generator=generator
        )
        points = means[rows, component] + (factor[rows, component] @ noise).squeeze(-1)
        points = points.reshape(*self.means.shape[:-2], n, self.dimension)
        return to_user_array(points, self.is_torch)

    def parameters(self) -> dict[str, Tensor]:
        """Return means, covariances and weights by name, the arguments of `GaussianMixture`."""
        return {"means": self.means, "covariances": self.covariances, "weights": self.weights}

    @property
    def requires_grad(self) -> bool:
        """True if any parameter requires a gradient."""
        return any(value.requires_grad for value in self.parameters().values())

    def detach(self) -> GaussianMixture:
        """Return the mixture detached from the autograd graph."""
        if not self.requires_grad:
            return self
        return self._like(*(value.detach() for value in self.parameters().values()))

    def _pdf(self, points: Tensor) -> Tensor:
        flat = points.reshape(-1, self.dimension)
        total = torch.zeros(*self.means.shape[:-2], len(flat), dtype=torch.float64)
        for k in range(self.components):  # one at a time, to save memory
            offset = (flat - self.means[..., k, None, :]).transpose(-1, -2)
            factor = self._factor[..., k, :, :]
            whitened = torch.linalg.solve_triangular(factor, offset, upper=False)
            scale = factor.diagonal(dim1=-2, dim2=-1).prod(-1) * math.tau ** (self.dimension / 2)
            height = (self.weights[..., k] / scale)[..., None]
            total += height * torch.exp(-0.5 * whitened.square().sum(-2))
        return total.reshape(*self.means.shape[:-2], *points.shape[:-1])

    def _pdf_on(self, grid: Grid, points: Tensor, reach: float = 8.5) -> Tensor:
        """Return the density at points (..., d) with the images along the periodic axes of a grid.

        Args:
            grid: its periodic axes wrap; on others this is `_pdf`.
            points: (..., d).
            reach: standard deviations beyond which a Gaussian is zero up to rounding.
        """
        points = grid.wrap(points)
        if not grid.is_periodic:
            return self._pdf(points)
        std = self.covariances.detach().diagonal(dim1=-2, dim2=-1).sqrt() * reach
        means = self.means.detach()
        lowest = (means - std).reshape(-1, self.dimension).amin(0).tolist()
        highest = (means + std).reshape(-1, self.dimension).amax(0).tolist()
        shifts = []
        for axis, (wraps, length) in enumerate(zip(grid.periodic, grid.lengths, strict=True)):
            first = math.floor((lowest[axis] - grid.upper[axis]) / length) + 1
            last = math.ceil((highest[axis] - grid.lower[axis]) / length) - 1
            numbers = range(first, max(last, first) + 1) if wraps else (0,)
            shifts.append([k * length for k in numbers])
        images = (torch.tensor(shift, dtype=torch.float64) for shift in product(*shifts))
        return sum((self._pdf(points + image) for image in images), torch.zeros(()).double())

    def _like(self, means: Tensor, covariances: Tensor, weights: Tensor) -> GaussianMixture:
        """Return a mixture of other parameters whose results have the same array type."""
        mixture = GaussianMixture(means, covariances, weights)
        mixture.is_torch = self.is_torch
        return mixture

    def __getitem__(self, index: int) -> GaussianMixture:
        """Return one mixture of a batch."""
        check_index(index, len(self))
        return self._like(self.means[index], self.covariances[index], self.weights[index])

    def __len__(self) -> int:
        if self.means.ndim == 2:
            raise DensityError(
                "This mixture has no batch axis; use it without an index, or give means "
                "(batch, k, d)."
            )
        return len(self.means)

    def __iter__(self) -> Iterator[GaussianMixture]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return True  # a single mixture has no length

    def __repr__(self) -> str:
        batch = f"{len(self.means)} of " if self.means.ndim == 3 else ""
        return f"GaussianMixture({batch}{self.components} components in {self.dimension}D)"


End = Density | GaussianMixture  # either end of a path


# ---- The random families of the paper

BOX_1D = Grid(100, 0.0, 10.0)
BOX_2D = Grid((64, 64), 0.0, 5.0, orientation="plane")
BOX_3D = Grid((24, 24, 24), 0.0, 5.0, orientation="plane")


def mixtures_1d(
    count: int,
    generator: torch.Generator,
    spread: tuple[float, float] = (0.5, 0.6),
) -> GaussianMixture:
    """Return `count` mixtures on [0, 10]: 6 equal components, means U[2, 8], std in `spread`.

    The paper calls the spread a variance, but its published code uses it as a standard deviation,
    which is the harder task, and so does this function. Out of distribution: spread (0.3, 0.4).
    """
    means = _uniform((count, 6, 1), 2.0, 8.0, generator)
    return GaussianMixture.isotropic(means, _uniform((count, 6), *spread, generator))


def mixtures_2d(
    count: int,
    generator: torch.Generator,
    narrow: tuple[float, float] = (0.35, 0.4),
    wide: tuple[float, float] = (0.75, 0.9),
) -> GaussianMixture:
    """Return `count` mixtures on [0, 5]²: 6 components with variances in `narrow` and 6 in `wide`.

    Means U[0.8, 4.2]², covariance U[−0.1, 0.1]. Out of distribution: (0.25, 0.3), (0.65, 0.8).
    """
    return _anisotropic(2, count, generator, narrow, wide)


def mixtures_3d(
    count: int,
    generator: torch.Generator,
    narrow: tuple[float, float] = (0.35, 0.4),
    wide: tuple[float, float] = (0.75, 0.9),
) -> GaussianMixture:
    """Return `count` mixtures on [0, 5]³, sampled like `mixtures_2d`; the paper has none in 3D."""
    return _anisotropic(3, count, generator, narrow, wide)


def _anisotropic(
    d: int,
    count: int,
    generator: torch.Generator,
    narrow: tuple[float, float],
    wide: tuple[float, float],
) -> GaussianMixture:
    """Return 12 components: means U[0.8, 4.2]^d, variances in `narrow` or `wide`."""
    means = _uniform((count, 12, d), 0.8, 4.2, generator)
    variances = [_uniform((count, 6, d), *bounds, generator) for bounds in (narrow, wide)]
    covariance = torch.diag_embed(torch.cat(variances, dim=1))
    rows, columns = torch.triu_indices(d, d, offset=1)
    mixed = _uniform((count, 12, len(rows)), -0.1, 0.1, generator)
    covariance[..., rows, columns] = covariance[..., columns, rows] = mixed
    return GaussianMixture(means, covariance)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)
