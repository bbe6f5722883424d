"""Training batches, losses and PDE residuals.

A geodesic with density μ and potential u satisfies

    ∂tμ + div(μ∇u) = 0            ∂tu + ½|∇u|² = 0,

and a Schrödinger bridge (ε > 0) has +εΔμ in the first and −εΔu in the second equation (paper,
appendix D: ER-GeONet). The residuals below are functions of the jets of μ and u.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad

from geonet._toml import require
from geonet.grid import Grid, unit_box
from geonet.numerics import symmetric_matrices as packed
from geonet.solvers.neural.jets import Jet

# A density or a batch of densities, relative to uniform, as a function of points in the unit box.
DensityFunction = Callable[[Tensor], Tensor]
DensityFunctions = tuple[DensityFunction, DensityFunction]
Terms = dict[str, Tensor]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)  # on [−1, 1]
TIME_QUADRATURE: list[tuple[float, float]] = list(  # times and weights on [0, 1]
    zip(((_NODES + 1) / 2).tolist(), (_WEIGHTS / 2).tolist(), strict=True)
)


@dataclass(frozen=True)
class Batch:
    """The input of one training step, in the unit box and in single precision.

    With the sampling scheme "cartesian" each of B pairs is evaluated at each of Q points; with
    "triples" pair n is evaluated at point n only.

    Attributes:
        source: μ0 at the sensors, (B, m).
        target: μ1 at the sensors, (B, m).
        points: collocation points of the equations, (Q, d).
        times: their times, (Q,).
        endpoint_points: points at which the endpoints are compared, (P, d).
        source_values: μ0 at the endpoint points, (B, P); triples (B,).
        target_values: μ1 at the endpoint points, likewise.
        ends: μ0 and μ1 of every pair as functions.
        is_paired: whether these are triples.
        exact_density: μ_t at points and times, (B, Q), for training with exact paths.
    """

    source: Tensor
    target: Tensor
    points: Tensor
    times: Tensor
    endpoint_points: Tensor
    source_values: Tensor
    target_values: Tensor
    ends: DensityFunctions
    is_paired: bool
    exact_density: Tensor | None = None

    def to(self, device: str) -> Batch:
        """Return the batch on a device."""
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class LossSettings:
    """Loss weights as in the paper, in the units of the problem's box (paper, eq. 12 to 15).

    Attributes:
        continuity: α1.
        hamilton_jacobi: α2.
        source: β0.
        target: β1.
        continuity_gradient: γ, weight of the squared gradient of the continuity residual
            (appendix E).
        hamilton_jacobi_gradient: ω, the same for the Hamilton–Jacobi residual.
        characteristics: weight of the integrated continuity equation, in the unit box: C equals the
            densities that both endpoints push along the straight lines of H.
        robust: continuity residual from which on the loss grows linearly instead of quadratically,
            in the unit box and relative to the uniform density; 0 for always quadratic.
        epsilon: ε, the entropic regularisation, in the box's units of length²; 0 for geodesics.
        weigh_by_density: multiply the squared Hamilton–Jacobi residual by C + `floor`, relative
            to the uniform density, so that it counts where the mass is.
        floor: floor of that weight. `characteristics` and the transport form, which uses no other
            setting, divide squares of densities by ρ0 + ρ1 + `floor`.
    """

    continuity: float = 0.5
    hamilton_jacobi: float = 0.25
    source: float = 1.0
    target: float = 1.0
    continuity_gradient: float = 0.0
    hamilton_jacobi_gradient: float = 0.0
    characteristics: float = 0.0
    robust: float = 0.0
    epsilon: float = 0.0
    weigh_by_density: bool = False
    floor: float = 0.1

    def __post_init__(self) -> None:
        for name in vars(self):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; give ≥ 0.")
        weights = self.in_unit_box(Grid(2)).values()
        require(any(weight > 0 for weight in weights), "all weights are zero; give at least one.")

    def in_unit_box(self, box: Grid) -> dict[str, float]:
        """Return the weights of the terms in the unit box, times the common factor L^2d.

        x → x/L turns μ into μ·L^d and u into u/L². The continuity residual scales like μ, the
        Hamilton–Jacobi residual like u, and a derivative in x adds 1/L. So α2 becomes α2·L^(2d+4).
        """
        length = unit_box(box).length
        potential = length ** (2 * box.dimension + 4)
        return {
            "continuity": self.continuity,
            "hamilton_jacobi": self.hamilton_jacobi * potential,
            "source": self.source,
            "target": self.target,
            "continuity_gradient": self.continuity_gradient / length**2,
            "hamilton_jacobi_gradient": self.hamilton_jacobi_gradient * potential / length**2,
            "characteristics": self.characteristics,
        }


class Loss(Module):
    """A model and its loss as one module: maps a batch to the loss terms by name.

    Attributes:
        weights: weights of the terms, in the unit box.
        epsilon: the entropic regularisation, in the unit box.
    """

    weights: dict[str, float]
    epsilon: float = 0.0

    def total(self, terms: Terms, weights: dict[str, float] | None = None) -> Tensor:
        """Return Σ weight · term."""
        weights = weights or self.weights
        return torch.stack([weights[name] * term for name, term in terms.items()]).sum()


# ---- residuals


def continuity_residual(density: Jet, potential: Jet, epsilon: float = 0.0) -> Tensor:
    """Return ∂tμ + div(μ∇u) + εΔμ, with div(μ∇u) = ∇μ·∇u + μΔu."""
    transport = (density.gradient * potential.gradient).sum(0) + density.value * potential.laplacian
    diffusion = epsilon * density.laplacian if epsilon else 0.0
    return density.rate + transport + diffusion


def hamilton_jacobi_residual(potential: Jet, epsilon: float = 0.0) -> Tensor:
    """Return ∂tu + ½|∇u|² − εΔu."""
    diffusion = epsilon * potential.laplacian if epsilon else 0.0
    return potential.rate + 0.5 * (potential.gradient**2).sum(0) - diffusion


def acceleration(potential: Jet) -> Tensor:
    """Return ∇(∂tu + ½|∇u|²) = ∂tv + (v·∇)v with v = ∇u, (d, ...): zero on straight lines."""
    convection = (potential.hessian * potential.gradient[:, None]).sum(0)
    return potential.gradient_rate + convection


def pseudo_huber(residual: Tensor, limit: float) -> Tensor:
    """Return the pseudo-Huber loss 2·limit·(√(r² + limit²) − limit), or r² if the limit is 0.

    It is close to r² for |r| ≪ limit and to 2·limit·|r| for |r| ≫ limit. The formula below has no
    cancellation.
    """
    square = residual**2
    return 2 * limit * square / ((square + limit**2).sqrt() + limit) if limit else square


def push_forward_endpoints(
    potential: Jet, points: Tensor, ends: DensityFunctions, times: float | Tensor = 0.5
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Push both endpoints along the straight lines of u to time t.

    ρ0(y) = μ0(y − t∇u)·det(I − tD²u) and ρ1(y) = μ1(y + (1 − t)∇u)·det(I + (1 − t)D²u) are the
    continuity equation, integrated from each endpoint; both equal μ_t on a geodesic.

    Args:
        potential: jet of u at the points, with the Hessian.
        points: y, (Q, d).
        ends: μ0 and μ1.
        times: t, a number or (Q,).

    Returns:
        (ρ0, ρ1) and both determinants, each (B, Q).
    """
    d = potential.dimension
    gradient, hessian = potential.gradient.movedim(0, -1), potential.split()[2][: d * (d + 1) // 2]
    invariants = packed.invariants(hessian)
    steps = -torch.as_tensor(times), 1 - torch.as_tensor(times)
    before, after = (packed.characteristic_polynomial(invariants, s) for s in steps)
    source, target = (
        end(points + s[..., None] * gradient) for end, s in zip(ends, steps, strict=True)
    )
    return (source * before, target * after), (before, after)


# ---- residuals of a path, integrated


class PDEResiduals(NamedTuple):
    """Residuals of a batch of paths in the unit box, integrated over x and t, each (B,).

    Attributes:
        continuity_residual: ∫∫|r| with r = ∂tC + ∇·(C∇H) + εΔC, the rate of mass that is created
            or destroyed.
        acceleration: √∫∫|a|²dC over √∫∫|∇H|²dC, where a = ∇(∂tH + ½|∇H|² − εΔH) is the
            acceleration of particles, which is zero on a geodesic.
        displaced_mass: ∫∫|∇·(Ca)|, the rate at which that acceleration changes the density.
    """

    continuity_residual: Tensor
    acceleration: Tensor
    displaced_mass: Tensor

    @property
    def error(self) -> Tensor:
        """The L1 error at t = ½ that the residuals can explain, up to a factor.

        The mass created until then is ½∫∫|r|; a constant acceleration a displaces particles by a/8.
        """
        return self.continuity_residual / 2 + self.displaced_mass / 8


def integrate_residuals(
    jets: Callable[[float], tuple[Jet, Jet]], grid: Grid, epsilon: float
) -> PDEResiduals:
    """Integrate the residuals by Gauss's rule in t and over the cells of a grid in x.

    Args:
        jets: function of t that returns the jets of C and H with their Laplacians at all cells,
            (channels, B, N).
        grid: the cells in the unit box.
        epsilon: ε of a bridge, in the unit box.
    """
    sums = [torch.zeros(()) for _ in range(4)]
    for t, weight in TIME_QUADRATURE:
        density, potential = jets(t)
        mass = density.value.clamp(min=0)
        residual = hamilton_jacobi_residual(potential, epsilon)
        accelerations = [_differentiate(residual, grid, axis) for axis in range(grid.dimension)]
        displaced = sum(_differentiate(mass * a, grid, i) for i, a in enumerate(accelerations))
        integrands = (
            continuity_residual(density, potential, epsilon).abs(),
            displaced.abs(),  # pyright: ignore[reportAttributeAccessIssue]
            mass * sum(a**2 for a in accelerations),
            mass * (potential.gradient**2).sum(0),
        )
        scale = weight * grid.volume
        sums = [s + scale * f.double().mean(-1) for s, f in zip(sums, integrands, strict=True)]
    created, displaced, squares, energy = sums
    tiny = torch.finfo(torch.float64).tiny
    return PDEResiduals(created, (squares / energy.clamp(min=tiny)).sqrt(), displaced)


def _differentiate(values: Tensor, grid: Grid, axis: int) -> Tensor:
    """Return ∂_axis of values (B, cells) by central differences."""
    field = values.unflatten(-1, grid.shape)
    return torch.gradient(field, spacing=grid.spacing[axis], dim=axis + 1)[0].flatten(1)


# ---- fold penalty: a map halfway folds if an eigenvalue of ½D²u leaves [−1, 1]


def max_abs_eigenvalue(coefficients: Tensor, regularization: float = 1e-12) -> Tensor:
    """Return the largest |eigenvalue| of ½D²u by finite differences, with finite gradients.

    In 3D it is off by at most a thousandth if two eigenvalues are equal.

    Args:
        coefficients: spline coefficients of u, in squared cells, (B, *cells) in 2D or 3D.
        regularization: added under square roots, whose gradient is infinite at zero.

    Returns:
        (B, *cells).
    """
    diagonal, mixed = half_hessian(coefficients)
    if len(diagonal) == 2:
        (xx, yy), (xy,) = diagonal, mixed
        mean, difference = (xx + yy) / 2, (xx - yy) / 2
        return mean.abs() + (difference**2 + xy**2 + regularization).sqrt()
    # With the mean eigenvalue m, eigenvalues are m + 2p·cos(θ + 2πk/3), where 6p² = |A − m|² and
    # det((A − m)/p) = 2·cos 3θ.
    mean = (diagonal[0] + diagonal[1] + diagonal[2]) / 3
    x, y, z = (entry - mean for entry in diagonal)
    xy, xz, yz = mixed
    off = xy**2 + xz**2 + yz**2
    p = ((x**2 + y**2 + z**2 + 2 * off) / 6 + regularization).sqrt()
    determinant = x * (y * z - yz**2) - xy * (xy * z - yz * xz) + xz * (xy * yz - y * xz)
    limit = 1 - 1e-6  # arccos has an infinite slope at ±1
    angle = (determinant / (2 * p**3)).clamp(-limit, limit).acos() / 3
    top, bottom = mean + 2 * p * angle.cos(), mean + 2 * p * (angle + math.tau / 3).cos()
    return torch.maximum(top, -bottom)


def half_hessian(coefficients: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return ½D²u at the cell centres: the diagonal and the entries above it, (B, *cells) each."""
    axes = range(1, coefficients.ndim)
    padded = pad(coefficients[:, None], (1, 1) * len(axes), mode="replicate")[:, 0]

    def shift(offsets: dict[int, int]) -> Tensor:
        """Return the coefficients of neighbours, by the offset along each axis."""
        values = padded
        for axis in axes:
            values = values.narrow(axis, 1 + offsets.get(axis, 0), padded.shape[axis] - 2)
        return values

    centre = shift({})
    diagonal = [(shift({i: 1}) - 2 * centre + shift({i: -1})) / 2 for i in axes]
    mixed = []
    for i, j in combinations(axes, 2):
        a, b, c, d = (shift({i: m, j: n}) for m in (1, -1) for n in (1, -1))
        mixed.append((a - b - c + d) / 8)
    return diagonal, mixed
