"""Geodesics between Gaussians in any dimension, in closed form (Bures–Wasserstein geometry).

Between N(m_0, S_0) and N(m_1, S_1) the optimal map is x ↦ m_1 + A(x − m_0) with
A = S_0^{-1/2}(S_0^{1/2} S_1 S_0^{1/2})^{1/2} S_0^{-1/2}, and μ_t = N(m_t, M_t S_0 M_t) with
M_t = (1−t)I + tA. The distance also bounds W2 of all densities with the same moments from below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from geonet.density import Density
from geonet.errors import GridError, InputError, SolverError
from geonet.grid import Grid
from geonet.mixture import End, GaussianMixture
from geonet.numerics.autograd import once_differentiable, safe_sqrt
from geonet.paths import Geodesic
from geonet.solvers.base import ALL_QUANTITIES, MixtureSolver, SolverInfo


@dataclass(frozen=True)
class Bures(MixtureSolver):
    """Closed form between Gaussians: mixtures of one component, with or without a grid.

    The optimal map between N(m0, S0) and N(m1, S1) is x ↦ m1 + A(x − m0) with A·S0·A = S1. μ_t is
    the Gaussian with mean (1 − t)·m0 + t·m1 and covariance M_t·S0·M_t, M_t = (1 − t)·I + t·A.
    Batches are solved at once.

    It raises `SolverError` for everything that is not a single Gaussian. On a grid the Gaussians
    are renormalised to the box, but the distance is W2 of the Gaussians on all of R^d; leave some
    room in the box.
    """

    info = SolverInfo(
        name="bures",
        summary="any dimension, Gaussians only, closed form",
        family="closed form",
        differentiable=ALL_QUANTITIES,  # with respect to means and covariances
        exact=True,
        guarantee="the path is exact for Gaussians on all of R^d",
    )

    def _check(self, source: Density, target: Density) -> None:
        super()._check(source, target)
        _check_gaussians(source, target)

    def _solve(self, source: Density, target: Density) -> BuresGeodesic:
        # The path is the one on R^d, so report the mass that the box cuts off.
        cut = 1 - torch.minimum(source.mass_tensor, target.mass_tensor)
        info = {"mass outside the box": cut.clamp(min=0).tolist()}
        return BuresGeodesic(source, target, self.name, info)

    _solve_pair = _solve

    def _solve_mixtures(
        self, source: GaussianMixture, target: GaussianMixture
    ) -> GridlessBuresGeodesic:
        _check_gaussians(source, target)
        return GridlessBuresGeodesic(source, target, self.name)


def _check_gaussians(source: End, target: End) -> None:
    first, second = get_gaussian(source), get_gaussian(target)
    if first.means.shape != second.means.shape:
        raise SolverError(
            f"Source {first} and target {second} differ in dimension or batch; "
            "give two Gaussians, or two batches of the same length, of one dimension."
        )


def get_gaussian(end: End) -> GaussianMixture:
    """Return the Gaussian of a density or mixture; raise SolverError if it is not one Gaussian."""
    mixture = end.mixture if isinstance(end, Density) else end
    if mixture is None or mixture.components != 1:
        kind = "a density on a grid" if mixture is None else f"{mixture.components} components"
        raise SolverError(
            f"bures needs Gaussians, this is {kind}; "
            "give a GaussianMixture of one component, or use solver='auto'."
        )
    return mixture


class BuresGeodesic(Geodesic):
    """N(m_t, M_t S_0 M_t) on R^d; on a grid it is renormalised to the box like every mixture."""

    kind = "bures"

    def __init__(self, source: Density, target: Density, solver: str, info: dict[str, Any]):
        super().__init__(source, target, solver, info)
        first, second = get_gaussian(source), get_gaussian(target)
        self._mean, self._shift = first.means[..., 0, :], (second.means - first.means)[..., 0, :]
        self._covariance = first.covariances[..., 0, :, :]
        self._target_covariance = second.covariances[..., 0, :, :]
        self._map = optimal_matrix(self._covariance, self._target_covariance)

    @property
    def batch(self) -> tuple[int, ...]:
        """() for a single pair, (B,) for a batch."""
        return tuple(self._mean.shape[:-1])

    def _distance(self) -> Tensor:
        return gaussian_distance(self._shift, self._covariance, self._target_covariance)

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        frames = []
        for t in times.tolist():
            jacobian = self._jacobian(t)
            covariance = jacobian @ self._covariance @ jacobian
            covariance = (covariance + covariance.transpose(-1, -2)) / 2
            mean = self._mean + t * self._shift
            gaussian = GaussianMixture(mean[..., None, :], covariance[..., None, :, :])
            frames.append(gaussian.to_density(grid).tensor)
        return torch.stack(frames, dim=len(self.batch))

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        """Return v_t(x) = (m_1 − m_0) + (A − I)M_t⁻¹(x − m_t)."""
        frames = []
        for t in times.tolist():
            offset = points - (self._mean + t * self._shift)[..., None, :]
            frames.append(self._shift[..., None, :] + offset @ self._rate(t).transpose(-1, -2))
        return torch.stack(frames, dim=len(self.batch))

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        """Return ½(x − m_t)ᵀ(A − I)M_t⁻¹(x − m_t) + (m_1 − m_0)·(x − m_t) + (t/2)|m_1 − m_0|²."""
        frames = []
        for t in times.tolist():
            offset = points - (self._mean + t * self._shift)[..., None, :]
            quadratic = 0.5 * ((offset @ self._rate(t).transpose(-1, -2)) * offset).sum(-1)
            linear = (offset * self._shift[..., None, :]).sum(-1)
            frames.append(quadratic + linear + 0.5 * t * (self._shift**2).sum(-1)[..., None])
        return torch.stack(frames, dim=len(self.batch))

    def _jacobian(self, t: float) -> Tensor:
        """Return M_t."""
        return (1 - t) * self._identity() + t * self._map

    def _rate(self, t: float) -> Tensor:
        """Return (A − I)M_t⁻¹; the two commute, so it is symmetric."""
        return torch.linalg.solve(self._jacobian(t), self._map - self._identity())

    def _identity(self) -> Tensor:
        return torch.eye(self._dimension, dtype=torch.float64)

    def _clip(self, points: Tensor) -> Tensor:
        return points  # the formulas hold on all of R^d

    @property
    def _dimension(self) -> int:
        return self._mean.shape[-1]

    @classmethod
    def _from_state(cls, source, target, solver, info, state) -> BuresGeodesic:
        return cls(source, target, solver, info)


class GridlessBuresGeodesic(BuresGeodesic):
    """A path between Gaussians without a grid; `density` needs one as an argument."""

    def __init__(self, source: GaussianMixture, target: GaussianMixture, solver: str):
        # The formulas use only the Gaussians of the ends; every other use is overridden below.
        super().__init__(source, target, solver, {})  # pyright: ignore[reportArgumentType]

    @property
    def grid(self) -> Grid:
        """Raise InputError: there is no grid."""
        raise InputError("These Gaussians have no grid; give grid=...")

    @property
    def _n_cells(self) -> int:
        return 0

    def _pair(self, k: int) -> GridlessBuresGeodesic:
        first, second = get_gaussian(self.source), get_gaussian(self.target)
        return GridlessBuresGeodesic(first[k], second[k], self.solver)

    def __repr__(self) -> str:
        return f"BuresGeodesic({self._dimension}D, solver={self.solver!r})"

    def _interpolate_mass(self, times: Tensor) -> Tensor:
        return torch.ones(*self.batch, len(times), dtype=torch.float64)

    def _output_grid(self, grid: Grid | None) -> Grid:
        if grid is None:
            return self.grid
        if grid.dimension != self._dimension:
            raise GridError(f"The Gaussians are {self._dimension}D, the grid is {grid.dimension}D.")
        if grid.is_periodic:
            raise GridError(
                "The path between these Gaussians is the one on R^d, and the grid is periodic; "
                "give a grid without periodic axes."
            )
        return grid


def moment_bounds(
    source: Density, target: Density, rounding: float = 1e-12
) -> tuple[Tensor, Tensor]:
    """Return a lower and an upper bound of W2 from means and covariances, (batch?) each.

    The lower bound is the distance of the Gaussians with the same moments (Gelbrich), the upper one
    the cost of the product plan: W2² ≤ |m_1 − m_0|² + tr S_0 + tr S_1. Both hold for atoms at the
    cell centres and for constant cells: spreading atoms over their cells does not increase W2, so
    the lower bound uses the moments of constant cells.

    Args:
        source: one density or a batch.
        target: likewise.
        rounding: rounding error of W2², relative to the squared diagonal of the box.
    """
    shift = target._mean() - source._mean()
    first, second = source._covariance(), target._covariance()
    traces = (first + second).diagonal(dim1=-2, dim2=-1).sum(-1)
    within = torch.diag(torch.tensor(source.grid.spacing, dtype=torch.float64) ** 2 / 12)
    lower = gaussian_distance(shift, first + within, second + within)
    lower = safe_sqrt(lower**2 - rounding * sum(side**2 for side in source.grid.lengths))
    return lower, ((shift**2).sum(-1) + traces).sqrt()


def gaussian_distance(shift: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return W2: W2² = |m_1 − m_0|² + tr(S_0 + S_1 − 2(S_0^{1/2} S_1 S_0^{1/2})^{1/2}).

    Args:
        shift: m_1 − m_0, (..., d).
        source: S_0, (..., d, d); may be singular.
        target: S_1, (..., d, d); may be singular.
    """
    half = _matrix_power(source, 0.5)
    cross = safe_sqrt(torch.linalg.eigvalsh(half @ target @ half)).sum(-1)
    traces = (source + target).diagonal(dim1=-2, dim2=-1).sum(-1)
    return safe_sqrt((shift**2).sum(-1) + traces - 2 * cross)


def optimal_matrix(source: Tensor, target: Tensor) -> Tensor:
    """Return A with A S_0 A = S_1, symmetric positive definite, for covariances (..., d, d)."""
    half = _matrix_power(source, 0.5)
    inverse = _matrix_power(source, -0.5)
    return inverse @ _matrix_power(half @ target @ half, 0.5) @ inverse


def _matrix_power(matrix: Tensor, exponent: float) -> Tensor:
    symmetric = (matrix + matrix.transpose(-1, -2)) / 2
    if matrix.requires_grad:
        return _MatrixPower.apply(symmetric, exponent)  # pyright: ignore[reportReturnType]
    return _spectral_power(symmetric, exponent)[0]


def _spectral_power(matrix: Tensor, exponent: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the power of a symmetric matrix, its eigenvalues and its eigenvectors."""
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp(min=0)
    return (vectors * values[..., None, :] ** exponent) @ vectors.mT, values, vectors


class _MatrixPower(torch.autograd.Function):
    """A^p with its derivative V(K∘VᵀdA V)Vᵀ, K_ij = (λ_i^p − λ_j^p)/(λ_i − λ_j) (Daleckii–Krein).

    The derivative of torch's eigenvectors is infinite if eigenvalues coincide, as for a round
    Gaussian.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, exponent: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        power, values, vectors = _spectral_power(matrix, exponent)
        ctx.save_for_backward(values, vectors)
        ctx.exponent = exponent
        return power

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        values, vectors = ctx.saved_tensors
        p, (row, column) = ctx.exponent, (values[..., :, None], values[..., None, :])
        gap, middle = row - column, (row + column) / 2
        is_close = gap.abs() <= 1e-6 * middle  # the quotient equals the derivative up to rounding
        quotient = (row**p - column**p) / torch.where(is_close, 1.0, gap)
        slope = torch.where(is_close, p * middle ** (p - 1), quotient).nan_to_num(0.0, 0.0, 0.0)
        return vectors @ (slope * (vectors.mT @ upstream[0] @ vectors)) @ vectors.mT, None
