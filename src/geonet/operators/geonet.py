"""The form "geonet": the paper's operator, two DeepONets trained on the equations of geodesics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import jvp

from geonet.fields.flow import carried
from geonet.geodesics.gradients import root
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.measures.unit_box import unit_box
from geonet.operators.branch_trunk import BranchTrunkSettings, DeepONet, cartesian, paired
from geonet.operators.deeponet import DeepONetModel, DeepONetPath, answer
from geonet.operators.jets import Jet, variables
from geonet.operators.model import Header
from geonet.operators.objective import Batch, Loss, LossSettings, Terms
from geonet.operators.residuals import boundary, continuity, hamilton_jacobi
from geonet.settings import require

POTENTIAL_SCALE = 0.1  # of H in the unit box, where displacements are some tenths
STEPS = 16  # of Runge–Kutta from t = 0 to 1
LEAST = 1e-3  # density, relative to uniform, by which a gradient is divided


@dataclass(frozen=True)
class GeONetSettings(BranchTrunkSettings):
    """GeONet: for the density C and the potential H each two branches and a trunk.

    Attributes:
        swap_symmetry: what to build in by averaging with the swapped pair: "density" has
            C(μ0,μ1)(x,t) = C(μ1,μ0)(x,1−t), "both" also H(μ0,μ1)(x,t) = −H(μ1,μ0)(x,1−t), which
            holds for geodesics but not for Schrödinger bridges.
    """

    kind: Literal["geonet"] = "geonet"
    swap_symmetry: Literal["none", "density", "both"] = "none"


class GeONet(DeepONetModel):
    """C, the density, and H, the potential, of the path between two densities, in the unit box."""

    Settings = GeONetSettings
    quantities = basis_outputs = ("density", "potential")
    formula = (
        "C(x, t) = density_coefficients @ density.T is the density relative to uniform and "
        "H(x, t) = potential_coefficients @ potential.T the potential"
    )
    compares_ends = True

    def __init__(self, settings: GeONetSettings):
        super().__init__(settings)
        density = 0 if settings.swap_symmetry == "none" else 1
        potential = -1 if settings.swap_symmetry == "both" else 0
        self.density = DeepONet(settings, density, 1.0)
        self.potential = DeepONet(settings, potential, POTENTIAL_SCALE)

    def objective(self, settings: LossSettings, box: Grid) -> GeONetObjective:
        """The squares of both equations and both ends."""
        return GeONetObjective(self, settings, box)

    def path(self, source: Density, target: Density, name: str, header: Header) -> GeONetPath:
        """C and H of a pair or a batch; with ε a Schrödinger bridge."""
        path = GeONetPath(source, target, name, *answer(self, source, target, header))
        if path.bases.epsilon:
            path.notes["epsilon"] = unit_box(source.grid).from_potential(path.bases.epsilon)
        return path

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """Refuse a floor, and the swap symmetry of the potential where ε > 0."""
        require(not floor, 'problem.floor is for model.kind = "transport"; remove it.')
        require(
            not (loss.epsilon and settings.swap_symmetry == "both"),
            "with loss.epsilon > 0 the potential has no swap symmetry; "
            'set model.swap_symmetry = "density".',
        )


class GeONetObjective(Loss):
    """The squares of both equations and both ends (paper, eq. 12 to 15)."""

    def __init__(self, model: GeONet, settings: LossSettings, box: Grid):
        super().__init__()
        self.model = model
        self.settings = settings
        self.epsilon = unit_box(box).to_potential(settings.epsilon)
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

    def _interior(self, coefficients: tuple[Tensor, ...], batch: Batch) -> Terms:
        """The equations' terms, and with gradient enhancement those of their x-derivatives."""
        if not self.enhanced:
            return _mean_squares(*self._residuals(coefficients, batch, batch.points))
        terms, slopes = {}, []
        for direction in torch.eye(batch.points.shape[1], device=batch.points.device):
            # Forward mode keeps the derivatives of the pairs apart; reverse mode would add them up.
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
        self, coefficients: tuple[Tensor, ...], batch: Batch, points: Tensor
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


def _mean_squares(continuity_residual: Tensor, hamilton_jacobi_residual: Tensor) -> Terms:
    return {
        "continuity": (continuity_residual**2).mean(),
        "hamilton_jacobi": (hamilton_jacobi_residual**2).mean(),
    }


class GeONetPath(DeepONetPath):
    """C and H of a batch of pairs, given by their coefficients."""

    kind = "geonet"
    parts = ("density", "potential")

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return self._shaped(torch.stack([self._flow(points, t) for t in times.tolist()], dim=1))

    def _flow(self, points: Tensor, t: float) -> Tensor:
        """∇H; with entropy the current velocity ∇H + ε∇log C, which carries the density."""
        density, potential = self._jets(points, t)
        velocity = potential.gradient
        if self.bases.epsilon:  # C may come near zero, or below
            scores = density.gradient / density.value.clamp(min=LEAST)
            velocity = velocity + self.bases.epsilon * scores
        return unit_box(self.grid).from_velocity(velocity.movedim(0, -1).to(torch.float64))

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Along the learned velocity, which is straight only as far as H solves its equation."""
        box = self.grid.corner("lower"), self.grid.corner("upper")
        start = points.expand(len(self.coefficients[0]), *points.shape)
        return self._shaped(carried(self._flow, start, times, STEPS, box).movedim(0, 1))

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        values = [self._jets(points, t)[1].value for t in times.tolist()]
        return unit_box(self.grid).from_potential(self._shaped(torch.stack(values, dim=1)))

    def _distance(self) -> Tensor:
        """W2² = ∫|∇H_0|² dμ0 = ∫|∇H_1|² dμ1: the mean of both, since each end is known."""
        if self.bases.epsilon:
            raise self._unavailable("distance")
        points = self.grid.points().reshape(-1, self._dimension)
        squares = []
        for t, end in ((0.0, self.source), (1.0, self.target)):
            speed = (self._velocity(torch.tensor([t]), points).squeeze(-3) ** 2).sum(-1)
            mass = end.values.reshape(*self.batch, -1) * self.grid.cell_volume
            squares.append((speed * mass).sum(-1))
        return root(0.5 * (squares[0] + squares[1]))

    def _jets(self, points: Tensor, t: float) -> list[Jet]:
        """Jets (channels, B, N) of C and H at t, at points (N, d) or each pair's own (B, N, d)."""
        varied = any(tensor.requires_grad for tensor in (points, *self.coefficients))
        with torch.set_grad_enabled(varied and torch.is_grad_enabled()):
            return self._jets_at(points, t)

    def _jets_at(self, points: Tensor, t: float) -> list[Jet]:
        flat = points.reshape(-1, self._dimension)
        unit = unit_box(self.grid).to_points(flat).to(self.bases.dtype)
        z = variables(unit, torch.full_like(unit[:, 0], t), "none")
        jets = []
        for own, network in zip(self.coefficients, self.bases.model.networks, strict=True):
            basis = network.basis(z)
            if points.ndim == 2:
                jets.append(cartesian(own, basis))
            else:
                data = basis.data.unflatten(1, points.shape[:2])  # (channels, B, N, functions)
                jets.append(basis.like((own[:, None] * data).sum(-1)))
        return jets

    def _shaped(self, answer: Tensor) -> Tensor:
        """(B, T, ...) without B for a single pair, in double precision."""
        answer = answer.to(torch.float64)
        return answer if self.batch else answer[0]
