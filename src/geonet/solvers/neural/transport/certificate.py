"""Certificates of a path given by its potential u at t = ½, without any reference.

At t = ½ the source is pushed to ρ0 and the target is pulled back to ρ1, both of mass one; for the
exact u they are equal. For any potential whose map does not fold, whatever ρ0 and ρ1 are:

    W2² ≥ ½∫|∇u|²(ρ0 + ρ1) + 2∫u(ρ1 − ρ0)                                    (lower)
    W2  ≤ (∫|∇u|²ρ0)^½ + Λ·W2(ρ0, ρ1)          Λ the largest eigenvalue of I + ½D²u    (upper)

The first is the Kantorovich dual value of the pair (−u_0, u_1), which is feasible: u_1 is the
c-transform of u_0, since x ↦ u_0(x) + ½|x − y|² is convex. The second is the triangle inequality
through (id + ∇u_0)#μ0, to which that map is optimal. W2(ρ0, ρ1) is bounded by the Benamou–Brenier
action of the flow −∇Δ⁻¹(ρ0 − ρ1) along the linear interpolation of both. Integrals are sums over
cells; both bounds allow a relative slack for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from geonet.numerics import symmetric_matrices as packed
from geonet.numerics.cosine import (
    apply_along_axes,
    cosine_transform,
    cube_centres,
    frequencies,
    synthesis_matrices,
)
from geonet.solvers.neural.transport import compiled
from geonet.solvers.neural.transport.potential import (
    evaluate_potential,
    half_spectral_radius,
    max_spectral_radius,
)
from geonet.solvers.neural.transport.splines import DensityPairs, Fields, Splines


@dataclass(frozen=True)
class CertificateConfig:
    """Constants of the certificate.

    Attributes:
        max_cells: largest number of cells per axis in 1D, 2D and 3D.
        slack: relative error allowed for sums over cells.
        max_missing: missing share of the mass from which on the mismatch is set to 2.
        curvature: coefficient of the squared mismatch in the error estimate, an empirical value.
        deviations: standard deviations of the log mismatch within which a pair is in distribution.
    """

    max_cells: tuple[int, int, int] = (1024, 128, 32)
    slack: float = 1e-3
    max_missing: float = 0.5
    curvature: float = 0.35
    deviations: float = 4.0


CONFIG = CertificateConfig()


@dataclass(frozen=True)
class Certificate:
    """Mismatch and bounds of each pair, (B,), in the unit cube.

    Attributes:
        mismatch: ∫|ρ0 − ρ1|.
        distance: W2 from the dual value, whose error is quadratic in the error of u.
        lower: lower bound on W2.
        upper: upper bound on W2.
        determinant: the smallest det(I ∓ ½D²u).
    """

    mismatch: Tensor
    distance: Tensor
    lower: Tensor
    upper: Tensor
    determinant: Tensor


def certify(pairs: DensityPairs, coefficients: Tensor) -> Certificate:
    """Return the certificate of all pairs with their potentials at t = ½."""
    d, modes = pairs.grid.dimension, coefficients.shape[-1]
    resolution = math.ceil(max(pairs.grid.shape) / min(pairs.box.sides))
    cells = min(CONFIG.max_cells[d - 1], max(4 * modes, resolution))
    parts = [_certify(coefficients[some], ends, cells) for some, ends in pairs.chunks(cells**d)]
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Certificate(*(torch.cat(column) for column in columns))


def _certify(coefficients: Tensor, ends: tuple[Splines, Splines], cells: int) -> Certificate:
    middle = pull_to_midpoint(coefficients, ends, cells)
    source, target, value = middle.source.double(), middle.target.double(), middle.value.double()
    squares = torch.stack([g.double() ** 2 for g in middle.gradient]).sum(0)
    energies = [(squares * density).mean(1) for density in (source, target)]
    dual_term = 2 * (value * (target - source)).mean(1)
    distance = ((energies[0] + energies[1]) / 2 + dual_term).clamp(min=0).sqrt()
    smaller = torch.minimum(energies[0], energies[1]).sqrt()
    mismatch_distance = benamou_brenier_bound(source, target, cells, coefficients.ndim - 1)
    radius = max_spectral_radius(coefficients).double()
    # On cells too coarse for the densities the masses are not one; ∫uρ may be off by as much.
    height = value.amax(1) - value.amin(1)
    lower = (distance**2 - 2 * middle.missing.double() * height).clamp(min=0).sqrt()
    upper = smaller + (1 + radius) * mismatch_distance
    return Certificate(
        mismatch=middle.mismatch().double(),
        distance=distance,
        lower=torch.where(radius < 1, (1 - CONFIG.slack) * lower, 0.0),
        upper=torch.where(radius < 1, (1 + CONFIG.slack) * upper, torch.inf),
        determinant=middle.determinant.double(),
    )


@dataclass(frozen=True)
class MidpointDensities:
    """u, ∇u, packed D²u, ρ0 and ρ1 of mean one on cells of the cube, each (B, cells).

    Attributes:
        determinant: the smallest det(I ∓ ½D²u), (B,).
        radius: the largest |eigenvalue| of ½D²u, (B,).
        missing: distance of the masses of ρ0 and ρ1 from one before they were normalised, (B,).
    """

    value: Tensor
    gradient: Fields
    hessian: Fields
    source: Tensor
    target: Tensor
    determinant: Tensor
    radius: Tensor
    missing: Tensor

    def mismatch(self) -> Tensor:
        """Return ∫|ρ0 − ρ1|, (B,); 2, as for disjoint densities, if most of the mass is missing."""
        difference = (self.source - self.target).abs().mean(1)
        return torch.where(self.missing < CONFIG.max_missing, difference, 2.0)


def pull_to_midpoint(
    coefficients: Tensor, ends: tuple[Splines, Splines], cells: int
) -> MidpointDensities:
    """Pull both ends to t = ½ on cells^d cells of the unit cube."""
    if compiled.supports(ends[0].grid):
        planes, (source, target), (smallest, radius) = compiled.pull_to_midpoint(
            coefficients, *ends, cells
        )
        value, gradient, hessian = planes[0], list(planes[1:3]), list(planes[3:])
    else:
        value, gradient, hessian = evaluate_potential(coefficients, cells)
        source, target, smallest = _pull_torch(gradient, hessian, ends, cells)
        radius = half_spectral_radius(hessian)
    masses = torch.stack([source, target]).mean(2)
    missing = (masses - 1).abs().amax(0)
    scale = 1 / masses.clamp_(min=torch.finfo(masses.dtype).tiny)[..., None]
    source, target = source * scale[0], target * scale[1]
    return MidpointDensities(value, gradient, hessian, source, target, smallest, radius, missing)


def _pull_torch(
    gradient: Fields, hessian: Fields, ends: tuple[Splines, Splines], cells: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ρ0 and ρ1, (B, cells^d), and the smallest determinant, (B,)."""
    invariants, velocity = packed.invariants(hessian), [g[:, None] for g in gradient]
    before, after = (packed.characteristic_polynomial(invariants, s) for s in (-0.5, 0.5))
    points = cube_centres(len(gradient), cells)
    source, target = (
        (end.at(points, velocity, s)[:, 0] * determinant).clamp(min=0)
        for end, s, determinant in zip(ends, (0.5, -0.5), (before, after), strict=True)
    )
    return source, target, torch.minimum(before, after).amin(1)


def benamou_brenier_bound(source: Tensor, target: Tensor, cells: int, d: int) -> Tensor:
    """Return an upper bound on W2 between densities (B, cells^d) of mean one on the cube, (B,).

    The action is ∫∫|w|²/ρ_s dx ds with ρ_s = (1 − s)ρ0 + sρ1 and div w = ρ1 − ρ0, at most
    ∫½(1/ρ0 + 1/ρ1)|w|² dx. If that is larger, the bound moves the mismatch across the cube.
    """
    difference = (source - target).reshape(-1, *(cells,) * d)
    series = apply_along_axes([cosine_transform(cells)] * d, difference)
    squares = torch.stack(torch.meshgrid(*[frequencies(cells) ** 2] * d, indexing="ij")).sum(0)
    squares.view(-1)[0] = torch.inf  # the mean, which is zero
    cosines, derivatives, _ = synthesis_matrices(cells, cells).double()
    flow = [
        apply_along_axes(
            [derivatives if i == axis else cosines for axis in range(d)], series / squares
        )
        for i in range(d)
    ]
    action = sum(w.flatten(1) ** 2 for w in flow) * 0.5 * (1 / source + 1 / target)
    moved = 0.5 * (source - target).abs().mean(1)
    return torch.minimum(action.mean(1).nan_to_num(torch.inf), d * moved).sqrt()


# ---- calibration


class Calibration(NamedTuple):
    """The relation of mismatch and error, measured on pairs with a known solution.

    Attributes:
        slope: the largest L1 error along the path over the mismatch, if both are small.
        limit: the mismatch up to which a pair is in the distribution of the training.
    """

    slope: float
    limit: float

    def estimate_error(self, mismatch: Tensor) -> Tensor:
        """Return the expected L1 error.

        Small errors of ρ0 and ρ1 mostly cancel in their mean; large ones do not.
        """
        return (self.slope * mismatch + CONFIG.curvature * mismatch**2).clamp(max=2.0)


def fit_calibration(mismatch: Tensor, errors: Tensor) -> Calibration:
    """Fit a calibration to mismatches (n,) and L1 errors (n, times) of pairs of the training.

    The slope is the median of the largest error along the path over the mismatch. The limit is
    `deviations` standard deviations above the mean of the mismatch's logarithm.
    """
    mismatch = mismatch.clamp(min=1e-12)  # zero for equal ends
    logs = mismatch.log()
    slope = (errors.amax(1) / mismatch).median()
    limit = (logs.mean() + CONFIG.deviations * logs.std(correction=0)).exp()
    return Calibration(float(slope), float(limit))
