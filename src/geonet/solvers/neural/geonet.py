"""The form "geonet": the paper's operator, two DeepONets trained on the geodesic equations.

One DeepONet is the density C(μ0, μ1)(x, t), the other the potential H(μ0, μ1)(x, t). The loss
(paper, eq. 12 to 15) is the weighted sum of the mean squares of

    ∂tC + div(C∇H) + εΔC,    ∂tH + ½|∇H|² − εΔH,    C(·, 0) − μ0,    C(·, 1) − μ1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn import Module

from geonet._toml import require
from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.metrics import l1_tensor
from geonet.numerics.autograd import safe_sqrt
from geonet.numerics.ode import integrate_particles
from geonet.paths import Geodesic
from geonet.solvers.neural.deeponet import DeepONetModel, DeepONetPath, predict
from geonet.solvers.neural.jets import Jet, Second, make_variables
from geonet.solvers.neural.layers import (
    BranchTrunkSettings,
    CosineModes,
    DeepONet,
    HardEndpointDensity,
    combine_cartesian,
    combine_paired,
    read_sensors,
)
from geonet.solvers.neural.losses import (
    TIME_QUADRATURE,
    Batch,
    Loss,
    LossSettings,
    PDEResiduals,
    Terms,
    acceleration,
    continuity_residual,
    hamilton_jacobi_residual,
    integrate_residuals,
    pseudo_huber,
    push_forward_endpoints,
)
from geonet.solvers.neural.model import Header


@dataclass(frozen=True)
class GeONetSettings(BranchTrunkSettings):
    """GeONet: two branches and a trunk each for the density C and the potential H.

    Attributes:
        swap_symmetry: symmetry imposed by averaging with the swapped pair: "density" for
            C(μ0,μ1)(x,t) = C(μ1,μ0)(x,1−t), "both" also for H(μ0,μ1)(x,t) = −H(μ1,μ0)(x,1−t),
            which holds for geodesics but not for Schrödinger bridges.
        ends: "learned" as in the paper, or "given": C equals both ends by construction (see
            `HardEndpointDensity`).
        density_scale: expected size of the learned part of C, relative to uniform.
        potential_scale: expected size of H in the unit box; some hundredths if mass moves by some
            tenths of it.
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
        limit = CosineModes.max_sensors
        require(
            self.ends == "learned" or self.sensors <= limit,
            f"sensors is {self.sensors}; with ends = 'given' give at most {limit}.",
        )


class GeONet(DeepONetModel):
    """Density C and potential H of the path between two densities, in the unit box."""

    Settings = GeONetSettings
    quantities = basis_outputs = ("density", "potential")
    formula = (
        "C(x, t) = density_coefficients @ density.T is the density relative to uniform and "
        "H(x, t) = potential_coefficients @ potential.T the potential"
    )
    needs_endpoint_loss = True
    n_calibration_densities = 4096
    optional_prefixes = ("usual.",)

    def __init__(self, settings: GeONetSettings):
        super().__init__(settings)
        density = 0 if settings.swap_symmetry == "none" else 1
        potential = -1 if settings.swap_symmetry == "both" else 0
        self.density = (HardEndpointDensity if settings.ends == "given" else DeepONet)(
            settings, density, settings.density_scale
        )
        self.potential = DeepONet(settings, potential, settings.potential_scale)
        self.usual = InputDistribution(settings.sensors**settings.dimension)  # the name in files

    def prepare(self, densities: Tensor) -> None:
        """Fit the distribution of inputs to sample densities at the sensors, (N, m)."""
        self.usual.fit(densities)

    def build_loss(self, settings: LossSettings, box: Grid) -> GeONetLoss:
        """Return the squared residuals of both equations and both ends."""
        return GeONetLoss(self, settings, box)

    def build_path(self, source: Density, target: Density, name: str, header: Header) -> GeONetPath:
        """Return the path of a pair or a batch; with ε > 0 a Schrödinger bridge."""
        path = GeONetPath(source, target, name, *predict(self, source, target, header))
        if path.bases.epsilon:
            path.info["epsilon"] = unit_box(source.grid).from_potential(path.bases.epsilon)
        return path

    def calibrate(self, path: Geodesic, errors: Tensor) -> dict[str, Any]:
        """Return the median of the largest L1 error along a path over its `residual_error`."""
        assert isinstance(path, GeONetPath)
        if path.bases.epsilon:
            return {}
        explained = path.residual_error.clamp(min=torch.finfo(torch.float64).tiny)
        return {"calibration": {"slope": float((errors.amax(1) / explained).median())}}

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """Raise ConfigError for a floor, and with ε > 0 for terms that hold for geodesics only."""
        require(not floor, 'problem.floor is for model.kind = "transport"; remove it.')
        require(
            not (loss.epsilon and settings.swap_symmetry == "both"),
            "with loss.epsilon > 0 the potential has no swap symmetry; "
            'set model.swap_symmetry = "density".',
        )
        require(
            not (loss.characteristics and loss.epsilon),
            "the particles of a bridge do not move along straight lines; "
            "set loss.characteristics = 0 if loss.epsilon > 0.",
        )
        require(
            not loss.characteristics or scheme == "cartesian",
            'loss.characteristics supports sampling.scheme = "cartesian" only.',
        )


class InputDistribution(Module):
    """Mean and principal directions of a family of densities at m sensors.

    The distance of a density from the family is its squared Mahalanobis distance from the mean,
    divided by m. Features narrower than any of the family are far away along directions in which
    the family hardly varies.
    """

    mean: Tensor
    directions: Tensor
    faint: Tensor
    limit: Tensor

    n_directions: ClassVar[int] = 64  # number of principal directions with their own variance
    min_variance: ClassVar[float] = 1e-5  # smallest variance of a direction, over the largest one
    outlier_fraction: ClassVar[float] = 0.001  # fraction of the family that counts as unusual

    def __init__(self, sensors: int):
        super().__init__()
        count = min(self.n_directions, sensors)
        self.register_buffer("mean", torch.zeros(sensors))
        self.register_buffer("directions", torch.zeros(sensors, count))
        self.register_buffer("faint", torch.ones(()))  # the variance along all other directions
        self.register_buffer("limit", torch.zeros(()))  # the largest distance within the family

    @property
    def is_fitted(self) -> bool:
        """True after `fit`."""
        return bool(self.limit > 0)

    @torch.no_grad()
    def fit(self, densities: Tensor) -> None:
        """Fit the directions to the first half of densities (N, m) and the limit to the second.

        A limit from the densities that the directions were fitted to would be too low.
        """
        fitted, others = densities.double().chunk(2)
        mean = fitted.mean(0)
        _, scales, axes = torch.linalg.svd(fitted - mean, full_matrices=False)
        count = min(self.directions.shape[1], len(scales))
        variances = scales**2 / len(fitted)
        tiny = torch.finfo(torch.float32).tiny
        smallest = self.min_variance * variances[0].clamp(min=tiny / self.min_variance)
        remaining = variances[count:].sum() / max(1, len(mean) - count)  # for example noise
        faint = torch.maximum(smallest, remaining)
        directions = axes[:count].T / variances[:count].clamp(min=faint).sqrt()
        self.mean.copy_(mean)
        self.directions.zero_()
        self.directions[:, :count] = directions.to(self.directions)
        self.faint.copy_(faint)
        distances = self.distance(others.float())
        self.limit.copy_(torch.quantile(distances, 1 - self.outlier_fraction))

    def distance(self, densities: Tensor) -> Tensor:
        """Return the distance of densities (B, m) from the family, (B,)."""
        difference = (densities - self.mean).double()
        scaled = self.directions.double()
        along = difference @ scaled
        lengths = (scaled**2).sum(0).clamp(min=torch.finfo(torch.float64).tiny)
        rest = (difference**2).sum(-1) - (along**2 / lengths).sum(-1)
        return ((along**2).sum(-1) + rest.clamp(min=0) / self.faint) / difference.shape[-1]

    def forward(self, densities: Tensor) -> Tensor:
        """Return whether densities (B, m) are within the limit of the family, (B,)."""
        return self.distance(densities) <= self.limit


class GeONetLoss(Loss):
    """The squared residuals of both equations and both ends (paper, eq. 12 to 15)."""

    def __init__(self, model: GeONet, settings: LossSettings, box: Grid):
        super().__init__()
        self.model = model
        self.settings = settings
        self.epsilon = unit_box(box).to_potential(settings.epsilon)
        self.weights = {k: w for k, w in settings.in_unit_box(box).items() if w > 0}
        # Gradients of residuals with third derivatives, which jets do not have.
        third = ["continuity", "hamilton_jacobi"] if self.epsilon else ["continuity"]
        self.differentiated = [name for name in third if f"{name}_gradient" in self.weights]

    def forward(self, batch: Batch) -> Terms:
        """Return the mean squared residuals by name, in the unit box and without weights."""
        coefficients = self.model.coefficients(batch.source, batch.target)
        residuals = self._residuals(coefficients, batch, batch.points)
        terms = {name: (residual**2).mean() for name, residual in residuals.items()}
        terms["continuity"] = pseudo_huber(residuals["continuity"], self.settings.robust).mean()
        components = {"hamilton_jacobi_gradient": batch.points.shape[1], "characteristics": 2}
        for name, count in components.items():
            if name in terms:  # the squared norm of a vector, not a mean over its components
                terms[name] *= count
        terms |= self._gradient_terms(coefficients, batch)
        terms |= self._endpoint_terms(coefficients[0], batch)
        return {name: term for name, term in terms.items() if name in self.weights}

    def _endpoint_terms(self, coefficients: Tensor, batch: Batch) -> Terms:
        """Return the squared errors of C at t = 0 and 1."""
        terms: Terms = {}
        for name, t, values in (
            ("source", 0.0, batch.source_values),
            ("target", 1.0, batch.target_values),
        ):
            if name in self.weights:
                times = torch.full_like(batch.endpoint_points[:, 0], t)
                computed = self._density(coefficients, batch, times)
                terms[name] = ((computed - values) ** 2).mean()
        return terms

    def _residuals(
        self, coefficients: tuple[Tensor, ...], batch: Batch, points: Tensor
    ) -> dict[str, Tensor]:
        """Return the residuals of both equations, (B, Q) or (N,), and those with components."""
        combine = combine_paired if batch.is_paired else combine_cartesian
        has_acceleration = "hamilton_jacobi_gradient" in self.weights and not self.epsilon
        second = "hessian" if "characteristics" in self.weights else "laplacian"
        z = make_variables(points, batch.times, "mixed" if has_acceleration else second)
        first = z if self.epsilon else Jet(z.data[: z.dimension + 2], z.dimension, "none")
        density = combine(coefficients[0], self.model.density.basis(first))
        potential = combine(coefficients[1], self.model.potential.basis(z))
        residuals = {"hamilton_jacobi": hamilton_jacobi_residual(potential, self.epsilon)}
        if has_acceleration:
            residuals["hamilton_jacobi_gradient"] = acceleration(potential)
        if self.settings.weigh_by_density:
            weight = (density.value.detach().clamp(min=0) + self.settings.floor).sqrt()
            residuals = {name: weight * residual for name, residual in residuals.items()}
        if "characteristics" in self.weights:
            residuals["characteristics"] = self._characteristics(density.value, potential, batch)
        return {"continuity": continuity_residual(density, potential, self.epsilon), **residuals}

    def _characteristics(self, density: Tensor, potential: Jet, batch: Batch) -> Tensor:
        """Return ρ0 − ρ1 and √2(C − ρ), relative to the densities, (2, B, Q).

        The first is zero for the exact H. ρ = (1 − t)ρ0 + tρ1, which is more exact near the ends,
        is the target of C. It has no gradient, so that H does not follow an inaccurate C.
        """
        t = batch.times
        (source, target), _ = push_forward_endpoints(potential, batch.points, batch.ends, t)
        mean = ((1 - t) * source + t * target).detach()
        scale = (source.abs() + target.abs()).detach() + self.settings.floor
        return torch.stack([source - target, math.sqrt(2) * (density - mean)]) / scale.sqrt()

    def _gradient_terms(self, coefficients: tuple[Tensor, ...], batch: Batch) -> Terms:
        """Return the gradient enhancement: squared derivatives of the residuals in x."""
        terms: Terms = {}
        if not self.differentiated:
            return terms
        for direction in torch.eye(batch.points.shape[1], device=batch.points.device):
            # Forward mode keeps the derivatives of the pairs apart; reverse mode would add them up.
            _, derivatives = jvp(  # pyright: ignore[reportAssignmentType]
                lambda points: self._residuals(coefficients, batch, points),
                (batch.points,),
                (direction.expand_as(batch.points),),
            )
            for name in self.differentiated:
                square = (derivatives[name] ** 2).mean()
                terms[f"{name}_gradient"] = terms.get(f"{name}_gradient", 0.0) + square
        return terms

    def _density(self, coefficients: Tensor, batch: Batch, times: Tensor) -> Tensor:
        """Return C at the endpoint points, (B, P) or (N,)."""
        rows = torch.cat([batch.endpoint_points, times[:, None]], dim=1)
        basis = self.model.density.basis(rows)
        if batch.is_paired:
            return (coefficients * basis).sum(-1)
        return combine_cartesian(coefficients, basis)


class GeONetPath(DeepONetPath):
    """Density C and potential H of a batch of pairs, given by their coefficients."""

    kind = "geonet"
    parts = ("density", "potential")

    chunk_points: ClassVar[int] = 1 << 13  # points whose jets are in memory at once
    ode_steps: ClassVar[int] = 16  # Runge–Kutta steps from t = 0 to 1
    min_density: ClassVar[float] = 1e-3  # smallest divisor in ∇C/C, relative to uniform

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        velocities = [self._velocity_at(points, t) for t in times.tolist()]
        return self._drop_batch(torch.stack(velocities, dim=1))

    def _velocity_at(self, points: Tensor, t: float) -> Tensor:
        """Return ∇H; for a bridge the current velocity ∇H + ε∇log C, which transports C."""
        density, potential = self._jets(points, t)
        velocity = potential.gradient
        if self.bases.epsilon:  # C may be close to zero or negative
            scores = density.gradient / density.value.clamp(min=self.min_density)
            velocity = velocity + self.bases.epsilon * scores
        return unit_box(self.grid).from_length(velocity.movedim(0, -1).to(torch.float64))

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Integrate the learned velocity; the lines are as straight as H solves its equation."""
        box = self.grid.lower_tensor, self.grid.upper_tensor
        start = points.expand(len(self.coefficients[0]), *points.shape)
        lines = integrate_particles(self._velocity_at, start, times, self.ode_steps, box)
        return self._drop_batch(lines.movedim(0, 1))

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        values = [self._jets(points, t)[1].value for t in times.tolist()]
        return unit_box(self.grid).from_potential(self._drop_batch(torch.stack(values, dim=1)))

    def _distance(self) -> Tensor:
        """Return W2 from the Kantorovich dual value of H.

        With r = ∂tH + ½|∇H|² and the velocity v of the geodesic,
        ½W2² = ∫H_1 dμ1 − ∫H_0 dμ0 − ∫∫r dμ_t dt + ½∫∫|v − ∇H|² dμ_t dt. The last term is dropped,
        and C replaces μ_t: the error is quadratic in the error of ∇H; for ∫|∇H|² dμ it is linear.
        """
        if self.bases.epsilon:
            raise self._make_unavailable_error("distance")
        points = self.grid.points().reshape(-1, self._dimension)
        first, last = (
            (self._jets(points, t)[1].value * self._relative(end.tensor)).mean(-1)
            for t, end in ((0.0, self.source), (1.0, self.target))
        )
        value = last - first - self._integrate_hamilton_jacobi(points)
        return unit_box(self.grid).length * safe_sqrt(2 * value.clamp(min=0)).reshape(self.batch)

    @cached_property
    def residuals(self) -> PDEResiduals:
        """The residuals of C and H on the grid of the path."""
        points = self.grid.points().reshape(-1, self._dimension)

        def jets(t: float) -> tuple[Jet, Jet]:
            density, potential = self._compute_jets(points, t, "laplacian")
            return density, potential

        with torch.no_grad():
            return integrate_residuals(jets, unit_box(self.grid).cells, self.bases.epsilon)

    @property
    def residual_error(self) -> Tensor:
        """The L1 error at t = ½ that ends and residuals explain, up to a factor, (B,)."""
        with torch.no_grad():
            ends = l1_tensor(self.density(0.0), self.source)
            ends = ends + l1_tensor(self.density(1.0), self.target)
        return ends.reshape(-1) / 2 + self.residuals.error

    def _diagnostics(self) -> dict[str, Tensor]:
        """Return residuals, whether both ends are in the distribution, and the error estimate."""
        checks = super()._diagnostics()
        checks["continuity"] = self.residuals.continuity_residual.reshape(self.batch)
        checks["hamilton_jacobi"] = self.residuals.acceleration.reshape(self.batch)
        model = self.bases.model
        assert isinstance(model, GeONet)
        if model.usual.is_fitted:
            ends = read_sensors([self.source, self.target], model.settings.sensors)
            usual = [model.usual(end.detach()) for end in ends]
            checks["in_distribution"] = (usual[0] & usual[1]).reshape(self.batch)
        if self.tested is not None and "slope" in self.tested:
            estimate = self.tested["slope"][0] * self.residual_error
            checks["error_estimate"] = estimate.clamp(max=2.0).reshape(self.batch)
        return checks

    def _integrate_hamilton_jacobi(self, points: Tensor) -> Tensor:
        """Return ∫∫(∂tH + ½|∇H|²) C dx dt in the unit box, (B,)."""
        total = torch.zeros(len(self.coefficients[0]), dtype=torch.float64)
        for t, weight in TIME_QUADRATURE:
            density, potential = self._jets(points, t)
            mass = self._relative(density.value.clamp(min=0))
            total = total + weight * (hamilton_jacobi_residual(potential) * mass).mean(-1)
        return total

    def _relative(self, values: Tensor) -> Tensor:
        """Return densities, (B, cells) or on the grid, relative to uniform, (B, cells)."""
        flat = values.reshape(-1, self.grid.size).to(torch.float64)
        tiny = torch.finfo(torch.float64).tiny  # the mass of an untrained network may be zero
        return flat / flat.mean(-1, keepdim=True).clamp(min=tiny)

    def _jets(self, points: Tensor, t: float) -> list[Jet]:
        """Return the jets (channels, B, N) of C and H at points (N, d) or (B, N, d)."""
        varied = any(tensor.requires_grad for tensor in (points, *self.coefficients))
        with torch.set_grad_enabled(varied and torch.is_grad_enabled()):
            return self._compute_jets(points, t)

    def _compute_jets(self, points: Tensor, t: float, second: Second = "none") -> list[Jet]:
        if points.ndim == 2 and len(points) > self.chunk_points:
            chunks = points.split(self.chunk_points)
            parts = [self._compute_jets(chunk, t, second) for chunk in chunks]
            return [
                jets[0].like(torch.cat([jet.data for jet in jets], dim=-1))
                for jets in zip(*parts, strict=True)
            ]
        flat = points.reshape(-1, self._dimension)
        unit = unit_box(self.grid).to_points(flat).to(self.bases.dtype)
        z = make_variables(unit, torch.full_like(unit[:, 0], t), second)
        jets = []
        for own, network in zip(self.coefficients, self.bases.model.networks, strict=True):
            basis = network.basis(z)
            if points.ndim == 2:
                jets.append(combine_cartesian(own, basis))
            else:
                data = basis.data.unflatten(1, points.shape[:2])  # (channels, B, N, functions)
                jets.append(basis.like((own[:, None] * data).sum(-1)))
        return jets

    def _drop_batch(self, values: Tensor) -> Tensor:
        """Return values (B, T, ...) in double precision, without B for a single pair."""
        values = values.to(torch.float64)
        return values if self.batch else values[0]
