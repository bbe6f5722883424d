"""Gaussian mixtures in any dimension."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from geonet.arguments import check_count, check_index
from geonet.errors import DensityError
from geonet.measures.density import Density, as_points, as_tensor
from geonet.measures.grid import Grid, check_grid
from geonet.randomness import check_generator


class GaussianMixture:
    """Σ_k w_k N(m_k, S_k) on R^d, one mixture or a batch of them.

    Args:
        means: (batch?, k, d).
        covariances: (batch?, k, d, d), symmetric positive definite.
        weights: (batch?, k), positive; scaled to sum one. Equal if not given.
    """

    def __init__(
        self,
        means: ArrayLike | Tensor,
        covariances: ArrayLike | Tensor,
        weights: ArrayLike | Tensor | None = None,
    ):
        self.means = as_tensor(means).to(torch.float64, copy=True)  # the caller may go on writing
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
                "These are no mixture; "
                "give finite means and symmetric positive definite covariances."
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
        """Round components: means (batch?, k, d), deviations (batch?, k) or one for all."""
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
        return cls(means, torch.diag_embed(std[..., None].expand(means.shape) ** 2), weights)

    @property
    def dimension(self) -> int:
        """d, the number of coordinates."""
        return self.means.shape[-1]

    @property
    def components(self) -> int:
        """k, the number of Gaussians."""
        return self.means.shape[-2]

    def pdf(self, points: ArrayLike | Tensor) -> Tensor:
        """The density on R^d at points (..., d): (batch?, ...)."""
        where = as_points(points, self.dimension)
        flat = where.reshape(-1, self.dimension)
        total = torch.zeros(*self.means.shape[:-2], len(flat), dtype=torch.float64)
        for k in range(self.components):  # one at a time, so memory stays that of the answer
            offset = (flat - self.means[..., k, None, :]).transpose(-1, -2)
            factor = self._factor[..., k, :, :]
            whitened = torch.linalg.solve_triangular(factor, offset, upper=False)
            scale = factor.diagonal(dim1=-2, dim2=-1).prod(-1) * math.tau ** (self.dimension / 2)
            height = (self.weights[..., k] / scale)[..., None]
            total += height * torch.exp(-0.5 * whitened.square().sum(-2))
        return total.reshape(*self.means.shape[:-2], *where.shape[:-1])

    def on(self, grid: Grid) -> Density:
        """The mixture at the cell centres, renormalised on the box; remembers its formula."""
        check_grid(grid)
        density = Density(self.pdf(grid.points()), grid)
        density.mixture = self
        return density

    def parts(self) -> dict[str, Tensor]:
        """Means, covariances and weights, from which the mixture can be made again."""
        return {"means": self.means, "covariances": self.covariances, "weights": self.weights}

    def detach(self) -> GaussianMixture:
        """The same mixture, out of reach of autograd."""
        if not any(part.requires_grad for part in self.parts().values()):
            return self
        return GaussianMixture(*(part.detach() for part in self.parts().values()))

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """`n` independent points, (batch?, n, d)."""
        check_count(n, 1, "n")
        check_generator(generator)
        flat = self.weights.reshape(-1, self.components)
        chosen = torch.multinomial(flat, n, replacement=True, generator=generator)  # (B, n)
        means = self.means.reshape(-1, self.components, self.dimension)
        factor = self._factor.reshape(-1, self.components, self.dimension, self.dimension)
        rows = torch.arange(len(flat))[:, None]
        noise = torch.randn(
            *chosen.shape, self.dimension, 1, dtype=torch.float64, generator=generator
        )
        points = means[rows, chosen] + (factor[rows, chosen] @ noise).squeeze(-1)
        return points.reshape(*self.means.shape[:-2], n, self.dimension)

    def __getitem__(self, index: int) -> GaussianMixture:
        """One mixture of a batch."""
        if self.means.ndim == 2:
            raise DensityError(
                "This mixture has no batch axis, it is a single one; use it without an index."
            )
        check_index(index, len(self))
        return GaussianMixture(self.means[index], self.covariances[index], self.weights[index])

    def __len__(self) -> int:
        if self.means.ndim == 2:
            raise DensityError(
                "This mixture has no batch axis, it is a single one; give means (batch, k, d)."
            )
        return len(self.means)

    def __iter__(self) -> Iterator[GaussianMixture]:
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return True  # a single mixture cannot be counted

    def __repr__(self) -> str:
        batch = f"{len(self.means)} of " if self.means.ndim == 3 else ""
        return f"GaussianMixture({batch}{self.components} components in {self.dimension}D)"


End = Density | GaussianMixture  # what a path may start from
