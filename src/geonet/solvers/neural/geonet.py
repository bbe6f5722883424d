"""The form "geonet": the paper's operator, two DeepONets trained on the equations of geodesics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn import Module

from geonet._toml import require
from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.metrics import l1
from geonet.numerics.autograd import root
from geonet.numerics.ode import carried
from geonet.paths import Geodesic
from geonet.solvers.neural.deeponet import DeepONetModel, DeepONetPath, answer
from geonet.solvers.neural.jets import Jet, Second, variables
from geonet.solvers.neural.layers import (
    MOST_MODES,
    BetweenEnds,
    BranchTrunkSettings,
    DeepONet,
    all_sensed,
    cartesian,
    paired,
)
from geonet.solvers.neural.losses import (
    GAUSS,
    Batch,
    Loss,
    LossSettings,
    SelfCheck,
    Terms,
    boundary,
    continuity,
    densities_carried,
    hamilton_jacobi,
    momentum,
    self_check,
    softened,
)
from geonet.solvers.neural.model import Header

# ---- Whether a density is like those that a model was trained on.


DIRECTIONS = 64  # along which the spread of the densities is known
FAINT = 1e-5  # of the largest variance: the smallest that a direction is taken to have
RARE = 0.001  # share of the model's own densities that are called unusual


class Usual(Module):
    """Mean and principal directions of the densities of a family, at m sensors.

    How unusual a density is: its squared distance from their mean, in units of the variance along
    each direction, divided by m. Lumps narrower than any of the family's lie far off along
    directions in which those hardly vary.
    """

    mean: Tensor
    directions: Tensor
    faint: Tensor
    limit: Tensor

    def __init__(self, sensors: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(sensors))
        self.register_buffer("directions", torch.zeros(sensors, min(DIRECTIONS, sensors)))
        self.register_buffer("faint", torch.ones(()))  # the variance along all other directions
        self.register_buffer("limit", torch.zeros(()))  # how unusual its own densities are at most

    @property
    def known(self) -> bool:
        """Whether it has seen a family."""
        return bool(self.limit > 0)

    @torch.no_grad()
    def learn(self, densities: Tensor) -> None:
        """The first half of the densities (N, m) tells how they spread, the second half the limit.

        A limit from densities that the directions were fitted to would be too low.
        """
        fitted, others = densities.double().chunk(2)
        mean = fitted.mean(0)
        _, scales, axes = torch.linalg.svd(fitted - mean, full_matrices=False)
        count = min(self.directions.shape[1], len(scales))
        variances = scales**2 / len(fitted)
        smallest = FAINT * variances[0].clamp(min=torch.finfo(torch.float32).tiny / FAINT)
        left = variances[count:].sum() / max(1, len(mean) - count)  # of noise, say
        faint = torch.maximum(smallest, left)
        directions = axes[:count].T / variances[:count].clamp(min=faint).sqrt()
        self.mean.copy_(mean)
        self.directions.zero_()
        self.directions[:, :count] = directions.to(self.directions)
        self.faint.copy_(faint)
        self.limit.copy_(torch.quantile(self.distance(others.float()), 1 - RARE))

    def distance(self, densities: Tensor) -> Tensor:
        """How unusual densities (B, m) are, (B,)."""
        off = (densities - self.mean).double()
        scaled = self.directions.double()
        along = off @ scaled
        lengths = (scaled**2).sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        rest = (off**2).sum(-1) - (along**2 / lengths).sum(-1)
        return ((along**2).sum(-1) + rest.clamp(min=0) / self.faint) / off.shape[-1]

    def forward(self, densities: Tensor) -> Tensor:
        """Whether densities (B, m) are no more unusual than nearly all of the family's, (B,)."""
        return self.distance(densities) <= self.limit


STEPS = 16  # of Runge–Kutta from t = 0 to 1
AT_ONCE = 1 << 13  # points whose functions and their derivatives are in memory together
CARRIED = "characteristics"
LEAST = 1e-3  # density, relative to uniform, by which a gradient is divided


@dataclass(frozen=True)
class GeONetSettings(BranchTrunkSettings):
    """GeONet: for the density C and the potential H each two branches and a trunk.

    Attributes:
        swap_symmetry: what to build in by averaging with the swapped pair: "density" has
            C(μ0,μ1)(x,t) = C(μ1,μ0)(x,1−t), "both" also H(μ0,μ1)(x,t) = −H(μ1,μ0)(x,1−t), which
            holds for geodesics but not for Schrödinger bridges.
        ends: "learned" as in the paper, or "given": C has both ends by construction (see
            `BetweenEnds`).
        density_scale: how large what is learned of C is expected to be, relative to uniform.
        potential_scale: how large H is expected to be in the unit box; some hundredths where mass
            moves by some tenths of it.
    """

    kind: Literal["geonet"] = "geonet"
    swap_symmetry: Literal["none", "density", "both"] = "none"
    ends: Literal["learned", "given"] = "learned"
    density_scale: float = 1.0
    potential_scale: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("density_scale", "potential_scale"):
            require(getattr(self, name) > 0, f"{name} is {getattr(self, name):g}; give > 0.")
        require(
            self.ends == "learned" or self.sensors <= MOST_MODES,
            f"sensors is {self.sensors}; with ends = 'given' give at most {MOST_MODES}.",
        )


class GeONet(DeepONetModel):
    """C, the density, and H, the potential, of the path between two densities, in the unit box."""

    Settings = GeONetSettings
    quantities = basis_outputs = ("density", "potential")
    formula = (
        "C(x, t) = density_coefficients @ density.T is the density relative to uniform and "
        "H(x, t) = potential_coefficients @ potential.T the potential"
    )
    compares_ends = True
    typical = 4096
    later = ("usual.",)

    def __init__(self, settings: GeONetSettings):
        super().__init__(settings)
        density = 0 if settings.swap_symmetry == "none" else 1
        potential = -1 if settings.swap_symmetry == "both" else 0
        self.density = (BetweenEnds if settings.ends == "given" else DeepONet)(
            settings, density, settings.density_scale
        )
        self.potential = DeepONet(settings, potential, settings.potential_scale)
        self.usual = Usual(settings.sensors**settings.dimension)

    def prepare(self, densities: Tensor) -> None:
        """Learn which densities are usual, from some at the sensors, (N, m)."""
        self.usual.learn(densities)

    def objective(self, settings: LossSettings, box: Grid) -> GeONetObjective:
        """The squares of both equations and both ends."""
        return GeONetObjective(self, settings, box)

    def path(self, source: Density, target: Density, name: str, header: Header) -> GeONetPath:
        """C and H of a pair or a batch; with ε a Schrödinger bridge."""
        path = GeONetPath(source, target, name, *answer(self, source, target, header))
        if path.bases.epsilon:
            path.notes["epsilon"] = unit_box(source.grid).from_potential(path.bases.epsilon)
        return path

    def calibration(self, path: Geodesic, errors: Tensor) -> dict[str, Any]:
        """The largest L1 error along a path over what its residuals explain: the median."""
        assert isinstance(path, GeONetPath)
        if path.bases.epsilon:
            return {}
        explained = path.explained_error.clamp(min=torch.finfo(torch.float64).tiny)
        return {"calibration": {"slope": float((errors.amax(1) / explained).median())}}

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """Refuse a floor, and with ε > 0 what holds for geodesics only."""
        require(not floor, 'problem.floor is for model.kind = "transport"; remove it.')
        require(
            not (loss.epsilon and settings.swap_symmetry == "both"),
            "with loss.epsilon > 0 the potential has no swap symmetry; "
            'set model.swap_symmetry = "density".',
        )
        require(
            not (loss.characteristics and loss.epsilon),
            "the particles of a bridge do not move along straight lines; "
            "set loss.characteristics = 0 where loss.epsilon > 0.",
        )
        require(
            not loss.characteristics or scheme == "cartesian",
            'loss.characteristics takes sampling.scheme = "cartesian" only.',
        )


class GeONetObjective(Loss):
    """The squares of both equations and both ends (paper, eq. 12 to 15)."""

    def __init__(self, model: GeONet, settings: LossSettings, box: Grid):
        super().__init__()
        self.model = model
        self.settings = settings
        self.epsilon = unit_box(box).to_potential(settings.epsilon)
        self.weights = {k: w for k, w in settings.in_unit_box(box).items() if w > 0}
        # What no jet carries: the gradients of residuals with third derivatives.
        third = ["continuity", "hamilton_jacobi"] if self.epsilon else ["continuity"]
        self.differentiated = [name for name in third if f"{name}_gradient" in self.weights]

    def forward(self, batch: Batch) -> Terms:
        """Mean squared residuals by name, in the unit box and without their weights."""
        coefficients = self.model.coefficients(batch.source, batch.target)
        residuals = self._residuals(coefficients, batch, batch.points)
        terms = {name: (residual**2).mean() for name, residual in residuals.items()}
        terms["continuity"] = softened(residuals["continuity"], self.settings.robust).mean()
        for name, count in (("hamilton_jacobi_gradient", batch.points.shape[1]), (CARRIED, 2)):
            if name in terms:  # a vector
                terms[name] *= count
        terms |= self._slopes(coefficients, batch) | self._ends(coefficients[0], batch)
        return {name: term for name, term in terms.items() if name in self.weights}

    def _ends(self, coefficients: Tensor, batch: Batch) -> Terms:
        """Of C at t = 0 and 1, if it has to learn them."""
        terms: Terms = {}
        for name, t, given in (
            ("source", 0.0, batch.source_there),
            ("target", 1.0, batch.target_there),
        ):
            if name not in self.weights:
                continue
            moment = torch.full_like(batch.places[:, 0], t)
            computed = self._density(coefficients, batch, moment)
            terms[name] = (boundary(computed, given) ** 2).mean()
        return terms

    def _residuals(
        self, coefficients: tuple[Tensor, ...], batch: Batch, points: Tensor
    ) -> dict[str, Tensor]:
        """Of both equations, (B, Q) or (N,), and what has components: ω's term, `_carried`."""
        met = paired if batch.paired else cartesian
        bent = "hamilton_jacobi_gradient" in self.weights and not self.epsilon
        second = "hessian" if CARRIED in self.weights else "laplacian"
        z = variables(points, batch.times, "mixed" if bent else second)
        flat = z if self.epsilon else Jet(z.data[: z.dimension + 2], z.dimension, "none")
        density = met(coefficients[0], self.model.density.basis(flat))
        potential = met(coefficients[1], self.model.potential.basis(z))
        residuals = {"hamilton_jacobi": hamilton_jacobi(potential, self.epsilon)}
        if bent:
            residuals["hamilton_jacobi_gradient"] = momentum(potential)
        if self.settings.weigh_by_density:
            weight = (density.value.detach().clamp(min=0) + self.settings.floor).sqrt()
            residuals = {name: weight * residual for name, residual in residuals.items()}
        if CARRIED in self.weights:
            residuals[CARRIED] = self._carried(density.value, potential, batch)
        return {"continuity": continuity(density, potential, self.epsilon), **residuals}

    def _carried(self, density: Tensor, potential: Jet, batch: Batch) -> Tensor:
        """ρ0 − ρ1, which H is to make zero, and √2(C − ρ), relative to the densities, (2, B, Q).

        ρ = (1 − t)ρ0 + tρ1 is the more exact the nearer the end. It is what C learns, and not what
        H should give up for a C that is not there yet, so no gradient goes to H.
        """
        t = batch.times
        (source, target), _ = densities_carried(potential, batch.points, batch.ends, t)
        mean = ((1 - t) * source + t * target).detach()
        scale = (source.abs() + target.abs()).detach() + self.settings.floor
        return torch.stack([source - target, math.sqrt(2) * (density - mean)]) / scale.sqrt()

    def _slopes(self, coefficients: tuple[Tensor, ...], batch: Batch) -> Terms:
        """Gradient enhancement by differentiating residuals in x."""
        slopes: Terms = {}
        if not self.differentiated:
            return slopes
        for direction in torch.eye(batch.points.shape[1], device=batch.points.device):
            # Forward mode keeps the derivatives of the pairs apart; reverse mode would add them up.
            _, along = jvp(  # pyright: ignore[reportAssignmentType]
                lambda points: self._residuals(coefficients, batch, points),
                (batch.points,),
                (direction.expand_as(batch.points),),
            )
            for name in self.differentiated:
                square = (along[name] ** 2).mean()
                slopes[f"{name}_gradient"] = slopes.get(f"{name}_gradient", 0.0) + square
        return slopes

    def _density(self, coefficients: Tensor, batch: Batch, times: Tensor) -> Tensor:
        """C at the places, (B, P) or (N,)."""
        rows = torch.cat([batch.places, times[:, None]], dim=1)
        basis = self.model.density.basis(rows)
        if batch.paired:
            return (coefficients * basis).sum(-1)
        return cartesian(coefficients, basis)


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
        """W2 from Kantorovich's dual value of H, in which an error of ∇H counts squared.

        With r = ∂tH + ½|∇H|² and the velocity v of the geodesic,
        ½W2² = ∫H_1 dμ1 − ∫H_0 dμ0 − ∫∫r dμ_t dt + ½∫∫|v − ∇H|² dμ_t dt. The last term is left out,
        and C stands for μ_t. ∫|∇H|² dμ, which is W2² too, would be off by twice the error of ∇H.
        """
        if self.bases.epsilon:
            raise self._unavailable("distance")
        points = self.grid.points().reshape(-1, self._dimension)
        ends = (
            (self._jets(points, t)[1].value * self._relative(end.tensor)).mean(-1)
            for t, end in ((0.0, self.source), (1.0, self.target))
        )
        first, last = ends
        value = last - first - self._unbalanced(points)
        return unit_box(self.grid).length * root(2 * value.clamp(min=0)).reshape(self.batch)

    @cached_property
    def self_check(self) -> SelfCheck:
        """How well C and H solve their equations on the path's own grid."""
        points = self.grid.points().reshape(-1, self._dimension)

        def jets(t: float) -> tuple[Jet, Jet]:
            density, potential = self._jets_at(points, t, "laplacian")
            return density, potential

        with torch.no_grad():
            return self_check(jets, unit_box(self.grid).cells, self.bases.epsilon)

    @property
    def explained_error(self) -> Tensor:
        """The L1 error at t = ½ that ends and residuals explain, up to a factor, (B,)."""
        with torch.no_grad():
            ends = l1(self.density(0.0), self.source) + l1(self.density(1.0), self.target)
        return ends.reshape(-1) / 2 + self.self_check.expected

    def _checks(self) -> dict[str, Tensor]:
        """Residuals, whether both ends are usual, and the error to expect, if it was calibrated."""
        checks = super()._checks()
        checks["continuity"] = self.self_check.created.reshape(self.batch)
        checks["hamilton_jacobi"] = self.self_check.bent.reshape(self.batch)
        model = self.bases.model
        assert isinstance(model, GeONet)
        if model.usual.known:
            ends = all_sensed([self.source, self.target], model.settings.sensors)
            known = [model.usual(end.detach()) for end in ends]
            checks["in_distribution"] = (known[0] & known[1]).reshape(self.batch)
        if self.tested is not None and "slope" in self.tested:
            expected = self.tested["slope"][0] * self.explained_error
            checks["error_estimate"] = expected.clamp(max=2.0).reshape(self.batch)
        return checks

    def _unbalanced(self, points: Tensor) -> Tensor:
        """∫∫(∂tH + ½|∇H|²) C dx dt in the unit box, (B,), by Gauss's rule in t."""
        total = torch.zeros(len(self.coefficients[0]), dtype=torch.float64)
        for t, weight in zip(*GAUSS, strict=True):
            density, potential = self._jets(points, t)
            mass = self._relative(density.value.clamp(min=0))
            total = total + weight * (hamilton_jacobi(potential) * mass).mean(-1)
        return total

    def _relative(self, values: Tensor) -> Tensor:
        """Densities, (B, cells) or on the grid, relative to uniform, (B, cells)."""
        flat = values.reshape(-1, self.grid.size).to(torch.float64)
        tiny = torch.finfo(torch.float64).tiny  # a bad network may give no mass at all
        return flat / flat.mean(-1, keepdim=True).clamp(min=tiny)

    def _jets(self, points: Tensor, t: float) -> list[Jet]:
        """Jets (channels, B, N) of C and H at t, at points (N, d) or each pair's own (B, N, d)."""
        varied = any(tensor.requires_grad for tensor in (points, *self.coefficients))
        with torch.set_grad_enabled(varied and torch.is_grad_enabled()):
            return self._jets_at(points, t)

    def _jets_at(self, points: Tensor, t: float, second: Second = "none") -> list[Jet]:
        if points.ndim == 2 and len(points) > AT_ONCE:
            parts = [self._jets_at(some, t, second) for some in points.split(AT_ONCE)]
            return [
                jets[0].like(torch.cat([jet.data for jet in jets], dim=-1))
                for jets in zip(*parts, strict=True)
            ]
        flat = points.reshape(-1, self._dimension)
        unit = unit_box(self.grid).to_points(flat).to(self.bases.dtype)
        z = variables(unit, torch.full_like(unit[:, 0], t), second)
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
