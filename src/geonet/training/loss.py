"""The loss: mean squares of the residuals, as named terms, and how they are weighed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn import Module

from geonet.measures.grid import Grid
from geonet.operators.build import Model
from geonet.operators.deeponet import DensityNet, GeONet, cartesian, paired
from geonet.operators.jets import Jet, variables
from geonet.operators.residuals import both_sides, boundary, continuity, hamilton_jacobi
from geonet.operators.transport import TransportNet
from geonet.settings import require
from geonet.training.sampling import Batch

Terms = dict[str, Tensor]
LEAST = 0.05  # determinant of the transport form that costs nothing


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
        epsilon: ε, the entropic regularisation, in the box's units of length²; 0 for geodesics.
        weigh_by_density: multiply the squared Hamilton–Jacobi residual by C + `floor`, relative
            to the uniform density, so that it counts where the mass is.
        floor: of that weight; the transport form, which has no other setting here, divides its
            mismatch by ρ0 + ρ1 + `floor`.
    """

    continuity: float = 0.5
    hamilton_jacobi: float = 0.25
    source: float = 1.0
    target: float = 1.0
    continuity_gradient: float = 0.0
    hamilton_jacobi_gradient: float = 0.0
    epsilon: float = 0.0
    weigh_by_density: bool = False
    floor: float = 0.1

    def __post_init__(self) -> None:
        for name in vars(self):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; give ≥ 0.")
        weights = self.in_unit_box(Grid(2)).values()
        require(any(weight > 0 for weight in weights), "all weights are zero; give at least one.")

    def in_unit_box(self, box: Grid) -> dict[str, float]:
        """The weights of the terms in the unit box, relative to the paper's times L^2d.

        x → x/L turns μ into μ·L^d and u into u/L²; the residual of continuity scales like μ, that
        of Hamilton–Jacobi like u, and derivatives in x gain 1/L. So α2 becomes α2·L^(2d+4).
        """
        d, length = box.dimension, max(box.lengths)
        potential = length ** (2 * d + 4)
        return {
            "continuity": self.continuity,
            "hamilton_jacobi": self.hamilton_jacobi * potential,
            "source": self.source,
            "target": self.target,
            "continuity_gradient": self.continuity_gradient / length**2,
            "hamilton_jacobi_gradient": self.hamilton_jacobi_gradient * potential / length**2,
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


class Objective(Loss):
    """GeONet's: the squares of both equations and both ends."""

    def __init__(self, model: GeONet, settings: LossSettings, box: Grid):
        super().__init__()
        self.model = model
        self.settings = settings
        self.epsilon = settings.epsilon / max(box.lengths) ** 2
        self.weights = {k: w for k, w in settings.in_unit_box(box).items() if w > 0}
        self.enhanced = {"continuity_gradient", "hamilton_jacobi_gradient"} & set(self.weights)

    def forward(self, batch: Batch) -> Terms:
        """Mean squared residuals by name, in the unit box and without their weights."""
        coefficients = self.model.coefficients(batch.source, batch.target)
        terms = self._interior(coefficients, batch)
        for name, t, given in (
            ("source", 0.0, batch.source_there),
            ("target", 1.0, batch.target_there),
        ):
            moment = torch.full_like(batch.places[:, 0], t)
            computed = self._density(coefficients[0], batch, moment)
            terms[name] = (boundary(computed, given) ** 2).mean()
        return {name: term for name, term in terms.items() if name in self.weights}

    def _interior(self, coefficients: tuple[Tensor, Tensor], batch: Batch) -> Terms:
        """The equations' terms, and with gradient enhancement those of their x-derivatives."""
        if not self.enhanced:
            return _mean_squares(*self._residuals(coefficients, batch, batch.points))
        terms, slopes = {}, []
        for direction in torch.eye(batch.points.shape[1], device=batch.points.device):
            # Forward mode: a point's derivative for every pair at once, which reverse would add up.
            values, along = jvp(  # pyright: ignore[reportAssignmentType]
                lambda points: self._residuals(coefficients, batch, points),
                (batch.points,),
                (direction.expand_as(batch.points),),
            )
            terms = _mean_squares(*values)
            slopes.append(_mean_squares(*along))
        for name in ("continuity", "hamilton_jacobi"):
            if f"{name}_gradient" in self.enhanced:
                terms[f"{name}_gradient"] = torch.stack([s[name] for s in slopes]).sum()
        return terms

    def _residuals(
        self, coefficients: tuple[Tensor, Tensor], batch: Batch, points: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Residuals of continuity and Hamilton–Jacobi, (B, Q) or (N,)."""
        met = paired if batch.paired else cartesian
        z = variables(points, batch.times, "laplacian")
        flat = z if self.epsilon else Jet(z.data[: z.dimension + 2], z.dimension, "none")
        density = met(coefficients[0], self.model.density.basis(flat))
        potential = met(coefficients[1], self.model.potential.basis(z))
        hj = hamilton_jacobi(potential, self.epsilon)
        if self.settings.weigh_by_density:
            hj = hj * (density.value.detach().clamp(min=0) + self.settings.floor).sqrt()
        return continuity(density, potential, self.epsilon), hj

    def _density(self, coefficients: Tensor, batch: Batch, times: Tensor) -> Tensor:
        """C at the places, (B, P) or (N,)."""
        rows = torch.cat([batch.places, times[:, None]], dim=1)
        basis = self.model.density.basis(rows)
        if batch.paired:
            return (coefficients * basis).sum(-1)
        return cartesian(coefficients, basis)


class TransportObjective(Loss):
    """The transport form's: what both ends bring to t = ½ should agree, and nothing should fold.

    mismatch = mean (ρ0 − ρ1)² / (ρ0 + ρ1 + floor), the denominator without gradient: by Cauchy and
    Schwarz, times 2 + floor, it bounds the square of ∫|ρ0 − ρ1|; the plain square sees little but
    the peaks.
    folds = mean max(0, LEAST − det(I ∓ ½D²u))²: where there is no mass, nothing else prevents them.
    """

    def __init__(self, model: TransportNet, settings: LossSettings):
        super().__init__()
        self.model = model
        self.floor = settings.floor
        self.weights = {"mismatch": 1.0, "folds": 1.0}

    def forward(self, batch: Batch) -> Terms:
        """The means over all pairs at all points."""
        z = variables(batch.points, torch.zeros_like(batch.times), "hessian")
        coefficients = self.model.coefficients(batch.source, batch.target)
        potential = cartesian(coefficients, self.model.basis(z))
        (source, target), determinants = both_sides(potential, batch.points, batch.ends)
        scale = (source + target).detach().abs() + self.floor
        folds = [(LEAST - determinant).clamp(min=0) ** 2 for determinant in determinants]
        return {
            "mismatch": ((source - target) ** 2 / scale).mean(),
            "folds": (folds[0] + folds[1]).mean(),
        }


class SupervisedObjective(Loss):
    """Without physics: error = mean (C(x, t) − μ_t(x))², with μ_t of the exact path."""

    def __init__(self, model: DensityNet):
        super().__init__()
        self.model = model
        self.weights = {"error": 1.0}

    def forward(self, batch: Batch) -> Terms:
        """The mean over all pairs at all points."""
        assert batch.known is not None
        (coefficients,) = self.model.coefficients(batch.source, batch.target)
        rows = torch.cat([batch.points, batch.times[:, None]], dim=1)
        computed = cartesian(coefficients, self.model.density.basis(rows))
        return {"error": ((computed - batch.known) ** 2).mean()}


def make_objective(model: Model, settings: LossSettings, box: Grid) -> Loss:
    """The loss of a model of any form."""
    if isinstance(model, TransportNet):
        return TransportObjective(model, settings)
    if isinstance(model, DensityNet):
        return SupervisedObjective(model)
    return Objective(model, settings, box)


def _mean_squares(continuity_residual: Tensor, hamilton_jacobi_residual: Tensor) -> Terms:
    return {
        "continuity": (continuity_residual**2).mean(),
        "hamilton_jacobi": (hamilton_jacobi_residual**2).mean(),
    }
