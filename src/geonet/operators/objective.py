"""What a step of training sees and what it minimises: batches, named terms, and their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import Module

from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box
from geonet.settings import require

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
