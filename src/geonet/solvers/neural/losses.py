"""What a step of training sees and what it minimises: batches, named terms, and their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from geonet._toml import require
from geonet.grid import Grid, unit_box
from geonet.numerics import symmetric_matrices as packed
from geonet.solvers.neural.jets import Jet

# A density, or a batch of them, as a function of points in the unit box, relative to uniform.
EndFunction = Callable[[Tensor], Tensor]
EndFunctions = tuple[EndFunction, EndFunction]
Terms = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """What one step of training sees, all in the unit box, float32.

    Cartesian: every one of B pairs at every one of Q points. Triples: pair n at point n only.

    Attributes:
        source: μ0 at the sensors, (B, m).
        target: μ1 at the sensors, (B, m).
        points: where the equations are asked for, (Q, d).
        times: and when, (Q,).
        places: where the ends are compared, (P, d).
        source_there: μ0 at the places, (B, P); triples (B,).
        target_there: μ1 at the places, likewise.
        ends: μ0 and μ1 of every pair as functions.
        paired: whether these are triples.
        known: μ_t at the points and times, (B, Q), where the training is shown exact paths.
    """

    source: Tensor
    target: Tensor
    points: Tensor
    times: Tensor
    places: Tensor
    source_there: Tensor
    target_there: Tensor
    ends: EndFunctions
    paired: bool
    known: Tensor | None = None

    def to(self, device: str) -> Batch:
        """The same on a device."""
        tensors = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)


@dataclass(frozen=True)
class LossSettings:
    """Weights as the paper has them, in the units of the problem's box (paper, eq. 12 to 15).

    Attributes:
        continuity: α1.
        hamilton_jacobi: α2.
        source: β0.
        target: β1.
        continuity_gradient: γ, of the squared gradient of the continuity residual (appendix E).
        hamilton_jacobi_gradient: ω, likewise of the Hamilton–Jacobi residual.
        characteristics: of the equation of continuity, integrated: C is what both ends bring along
            the straight lines of H (`densities_carried`). In the unit box.
        robust: the residual of continuity from which on it counts linearly instead of squared, in
            the unit box and relative to the uniform density; 0 for always squared.
        epsilon: ε, the entropic regularisation, in the box's units of length²; 0 for geodesics.
        weigh_by_density: multiply the squared Hamilton–Jacobi residual by C + `floor`, relative
            to the uniform density, so that it counts where the mass is.
        floor: of that weight. `characteristics` and the transport form, which has no other setting
            here, divide squares of densities by ρ0 + ρ1 + `floor`.
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
        """The weights of the terms in the unit box, all multiplied by the common factor L^2d.

        x → x/L turns μ into μ·L^d and u into u/L²; the residual of continuity scales like μ, that
        of Hamilton–Jacobi like u, and derivatives in x gain 1/L. So α2 becomes α2·L^(2d+4).
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
    """A model and its loss, as one module: a batch in, the terms out.

    Attributes:
        weights: of the terms, in the unit box.
        epsilon: the entropic regularisation, in the unit box.
    """

    weights: dict[str, float]
    epsilon: float = 0.0

    def total(self, terms: Terms, weights: dict[str, float] | None = None) -> Tensor:
        """Σ weight · term."""
        weights = weights or self.weights
        return torch.stack([weights[name] * term for name, term in terms.items()]).sum()


# ---- What vanishes on a geodesic, as functions of the jets of density μ and potential u.
#
# With ε > 0 these are the equations of the Schrödinger bridge (ER-GeONet, paper, appendix D).


def continuity(density: Jet, potential: Jet, epsilon: float = 0.0) -> Tensor:
    """∂tμ + div(μ∇u) + εΔμ, with div(μ∇u) = ∇μ·∇u + μΔu."""
    transport = (density.gradient * potential.gradient).sum(0) + density.value * potential.laplacian
    diffusion = epsilon * density.laplacian if epsilon else 0.0
    return density.rate + transport + diffusion


def hamilton_jacobi(potential: Jet, epsilon: float = 0.0) -> Tensor:
    """∂tu + ½|∇u|² − εΔu."""
    diffusion = epsilon * potential.laplacian if epsilon else 0.0
    return potential.rate + 0.5 * (potential.gradient**2).sum(0) - diffusion


def momentum(potential: Jet) -> Tensor:
    """∇(∂tu + ½|∇u|²) = ∂tv + (v·∇)v with v = ∇u, (d, ...): what bends the ways of particles."""
    bent = (potential.hessian * potential.gradient[:, None]).sum(0)
    return potential.gradient_rate + bent


def softened(residual: Tensor, limit: float) -> Tensor:
    """r² where |r| is small against the limit, and nearly 2·limit·|r| where it is large.

    A pseudo-Huber loss, 2·limit·(√(r² + limit²) − limit), written without a difference of nearly
    equal numbers; plain squares if the limit is 0.
    """
    square = residual**2
    return 2 * limit * square / ((square + limit**2).sqrt() + limit) if limit else square


def boundary(computed: Tensor, given: Tensor) -> Tensor:
    """C(x, 0) − μ0(x), or C(x, 1) − μ1(x)."""
    return computed - given


def densities_carried(
    potential: Jet, points: Tensor, ends: EndFunctions, times: float | Tensor = 0.5
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """ρ0 and ρ1 at t, which are μ_t on a geodesic, and the determinants in them; each (B, Q).

    ρ0(y) = μ0(y − t∇u)·det(I − tD²u) is what the source brings along the straight lines of u to
    the points y (Q, d), and ρ1(y) = μ1(y + (1 − t)∇u)·det(I + (1 − t)D²u) what the target sends
    back: the equation of continuity, integrated from each end.
    """
    d = potential.dimension
    gradient, hessian = potential.gradient.movedim(0, -1), potential.parts()[2][: d * (d + 1) // 2]
    spread = packed.invariants(hessian)
    lines = -torch.as_tensor(times), 1 - torch.as_tensor(times)
    before, after = (packed.characteristic(spread, s) for s in lines)
    source, target = (
        end(points + s[..., None] * gradient) for end, s in zip(ends, lines, strict=True)
    )
    return (source * before, target * after), (before, after)


# ---- How well C and H of a path solve their equations, and what that says about its error.


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)  # on [−1, 1]
GAUSS = ((_NODES + 1) / 2).tolist(), (_WEIGHTS / 2).tolist()  # times and weights on [0, 1]


class SelfCheck(NamedTuple):
    """Residuals of a batch of paths in the unit box, integrated over x and t, each (B,).

    Attributes:
        created: ∫∫|r| with r = ∂tC + ∇·(C∇H) + εΔC: mass that comes from nowhere, or goes there.
        bent: √∫∫|a|²dC over √∫∫|∇H|²dC, where a = ∇(∂tH + ½|∇H|² − εΔH) is the acceleration of
            particles, which is zero on a geodesic.
        displaced: ∫∫|∇·(Ca)|: the rate at which that acceleration changes the density.
    """

    created: Tensor
    bent: Tensor
    displaced: Tensor

    @property
    def expected(self) -> Tensor:
        """The L1 error at t = ½ that the residuals can explain, up to a factor.

        What comes from nowhere until then, ½∫∫|r|, and what particles bring that are off their
        lines, by a/8 at most where a does not change.
        """
        return self.created / 2 + self.displaced / 8


def self_check(jets: Callable[[float], tuple[Jet, Jet]], grid: Grid, epsilon: float) -> SelfCheck:
    """By Gauss's rule in t, and on the cells of a grid.

    Args:
        jets: the jets of C and H, with their Laplacians, at all cells at a time, (channels, B, N).
        grid: these cells in the unit box.
        epsilon: of a bridge, in the unit box.
    """
    sums = [torch.zeros(()) for _ in range(4)]
    for t, weight in zip(*GAUSS, strict=True):
        density, potential = jets(t)
        mass = density.value.clamp(min=0)
        bend = _gradient(hamilton_jacobi(potential, epsilon), grid)
        displaced = sum(_slope(mass * a, grid, i) for i, a in enumerate(bend))
        found = (
            continuity(density, potential, epsilon).abs(),
            displaced.abs(),  # pyright: ignore[reportAttributeAccessIssue]
            mass * sum(a**2 for a in bend),
            mass * (potential.gradient**2).sum(0),
        )
        whole = weight * grid.volume
        sums = [s + whole * f.double().mean(-1) for s, f in zip(sums, found, strict=True)]
    created, displaced, bent, moved = sums
    tiny = torch.finfo(torch.float64).tiny
    return SelfCheck(created, (bent / moved.clamp(min=tiny)).sqrt(), displaced)


def _gradient(values: Tensor, grid: Grid) -> list[Tensor]:
    """∂_i of values (B, cells) for every axis, each (B, cells)."""
    return [_slope(values, grid, axis) for axis in range(grid.dimension)]


def _slope(values: Tensor, grid: Grid, axis: int) -> Tensor:
    """∂_axis by central differences, (B, cells) to the same."""
    field = values.unflatten(-1, grid.shape)
    return torch.gradient(field, spacing=grid.spacing[axis], dim=axis + 1)[0].flatten(1)
