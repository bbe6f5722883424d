"""The form "deeponet": a DeepONet for the density alone, trained on exact paths without physics.

Its paths provide densities only. The form "geonet" extends the model and the path of this file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from geonet._toml import from_table, require, to_table
from geonet.density import Density, requires_grad
from geonet.errors import FileError
from geonet.grid import Grid, unit_box
from geonet.metrics import l1_tensor
from geonet.paths import Geodesic
from geonet.solvers.neural.layers import (
    BranchTrunkSettings,
    DeepONet,
    combine_cartesian,
    read_sensors,
    standardize,
)
from geonet.solvers.neural.losses import Batch, Loss, LossSettings, Terms
from geonet.solvers.neural.model import (
    BasisModel,
    Header,
    ModelSettings,
    build_model,
    to_float64,
)

# Errors in a model's header: "mean" and "sd" of the L1 errors at the quarters, in %, of a tested
# model; "slope" of a calibrated one, the error over the error that the residuals explain.
MeasuredErrors = dict[str, Sequence[float]]


@dataclass(frozen=True)
class DeepONetSettings(BranchTrunkSettings):
    """A DeepONet for the density C alone: GeONet without the potential, and so without physics.

    Attributes:
        swap_symmetry: "density" imposes C(μ0,μ1)(x,t) = C(μ1,μ0)(x,1−t) by averaging.
    """

    kind: Literal["deeponet"] = "deeponet"
    swap_symmetry: Literal["none", "density"] = "none"


class DeepONetModel(BasisModel):
    """A model with one DeepONet per quantity, in an attribute of that name."""

    @property
    def networks(self) -> list[DeepONet]:
        """The DeepONet of each quantity."""
        return [getattr(self, quantity) for quantity in self.quantities]

    def coefficients(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Map unit-box densities at the sensors, (B, m) each, to (B, functions) per quantity."""
        ends = standardize(source, target)
        return tuple(network.coefficients(*ends) for network in self.networks)

    def evaluate_basis(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the basis of each quantity at points (N, d) and times (N,), (N, functions)."""
        assert times is not None
        rows = torch.cat([points, times[:, None]], dim=1)
        return tuple(network.basis(rows) for network in self.networks)


class DensityNet(DeepONetModel):
    """The density C of the path between two densities, in the unit box."""

    Settings = DeepONetSettings
    provides = ("density",)
    quantities = basis_outputs = ("density",)
    formula = "C(x, t) = density_coefficients @ density.T is the density relative to uniform"
    needs_exact_paths = True

    def __init__(self, settings: DeepONetSettings):
        super().__init__(settings)
        self.density = DeepONet(settings, int(settings.swap_symmetry == "density"), 1.0)

    def build_loss(self, settings: LossSettings, box: Grid) -> SupervisedLoss:
        """Return the squared error."""
        return SupervisedLoss(self)

    def build_path(
        self, source: Density, target: Density, name: str, header: Header
    ) -> DeepONetPath:
        """Return the path of a pair or a batch."""
        return DeepONetPath(source, target, name, *predict(self, source, target, header))

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """Raise ConfigError except for 1D families, the cartesian scheme and the default loss."""
        require(not floor, 'problem.floor is for model.kind = "transport"; remove it.')
        require(
            family is not None and settings.dimension == 1,
            "a DeepONet learns from exact paths, which are known for 1D families alone; "
            'set problem.family = "mixtures-1d", or model.kind = "geonet".',
        )
        require(
            loss == LossSettings(),
            "a DeepONet has one term and no physics, so the table loss does not apply; remove it.",
        )
        require(scheme == "cartesian", 'a DeepONet supports sampling.scheme = "cartesian" only.')


class SupervisedLoss(Loss):
    """The loss without physics: mean (C(x, t) − μ_t(x))², with μ_t of the exact path."""

    def __init__(self, model: DensityNet):
        super().__init__()
        self.model = model
        self.weights = {"error": 1.0}

    def forward(self, batch: Batch) -> Terms:
        """Return the mean over all pairs and points."""
        assert batch.exact_density is not None
        (coefficients,) = self.model.coefficients(batch.source, batch.target)
        (basis,) = self.model.evaluate_basis(batch.points, batch.times)
        error = combine_cartesian(coefficients, basis) - batch.exact_density
        return {"error": (error**2).mean()}


# ---- the path


class BasisCache:
    """A model and its density basis on recently used grids and times.

    Attributes:
        model: the model, in the unit box.
        epsilon: the entropic regularisation of its training, in the unit box.
        max_bytes: limit on the memory of the stored bases.
    """

    max_bytes: ClassVar[int] = 2**28
    _lock: ClassVar[Lock] = Lock()  # shared, because an instance with a lock could not be copied

    def __init__(self, model: DeepONetModel, epsilon: float = 0.0):
        self.model = model
        self.epsilon = epsilon
        self.dtype = next(model.parameters()).dtype
        self._bases: dict[tuple[Grid, float], Tensor] = {}

    def coefficients(self, source: Density, target: Density) -> tuple[Tensor, ...]:
        """Return the coefficients (B, functions) of each quantity for a batch of pairs."""
        # Differentiable in the densities, not in the weights.
        with torch.set_grad_enabled(requires_grad(source, target)):
            ends = read_sensors([source, target], self.model.settings.sensors, self.dtype)
            return self.model.coefficients(*ends)

    @torch.inference_mode(False)  # a stored basis may be used for gradients later
    @torch.no_grad()
    def on_grid(self, grid: Grid, t: float) -> Tensor:
        """Return the density basis at all cells at time t, (cells, functions)."""
        with self._lock:
            basis = self._bases.pop((grid, t), None)
        if basis is None:
            points = unit_box(grid).to_points(grid.points().reshape(-1, grid.dimension))
            rows = torch.cat([points, torch.full_like(points[:, :1], t)], dim=1).to(self.dtype)
            basis = self.model.networks[0].basis(rows)
        with self._lock:
            self._bases[grid, t] = basis  # the most recent one is the last
            while sum(stored.nbytes for stored in self._bases.values()) > self.max_bytes:
                self._bases.pop(next(iter(self._bases)))
        return basis


@lru_cache(maxsize=8)
def get_basis_cache(model: DeepONetModel, epsilon: float) -> BasisCache:
    """Return the cache of a loaded model; paths of one model share it."""
    return BasisCache(model, epsilon)


def predict(
    model: DeepONetModel, source: Density, target: Density, header: Header
) -> tuple[BasisCache, tuple[Tensor, ...], MeasuredErrors | None]:
    """Return the arguments of a path: bases, coefficients and the measured errors of the model."""
    model = to_float64(model) if requires_grad(source, target) else model
    epsilon = float(header.get("epsilon", 0.0))
    in_training = any(weight.requires_grad for weight in model.parameters())
    bases = BasisCache(model, epsilon) if in_training else get_basis_cache(model, epsilon)
    return bases, bases.coefficients(source, target), read_measured_errors(header)


def read_measured_errors(header: Header) -> MeasuredErrors | None:
    """Return the errors in the header of a model that was tested or calibrated."""
    try:
        measured = header.get("measured", {})
        errors: MeasuredErrors = {}
        if (tested := measured.get("test")) is not None:
            errors |= {key: [float(number) for number in tested[key]] for key in ("mean", "sd")}
        if (calibration := measured.get("calibration")) is not None:
            errors["slope"] = [float(calibration["slope"])]
        for numbers in errors.values():
            if not numbers or not all(map(math.isfinite, numbers)):
                raise ValueError("no errors")
        return errors or None
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        file = header.get("file", "the model")
        raise FileError(
            f"The header of {file} has invalid test errors; download it again."
        ) from error


class DeepONetPath(Geodesic):
    """The density C of a batch of pairs, given by its coefficients."""

    kind = "deeponet"
    parts: ClassVar[tuple[str, ...]] = ("density",)  # quantities of `coefficients`
    max_deviation: ClassVar[float] = 4.0  # standard deviations within which a pair is usual

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        bases: BasisCache,
        coefficients: tuple[Tensor, ...],
        tested: MeasuredErrors | None = None,
        info: dict[str, Any] | None = None,
    ):
        super().__init__(source, target, solver, info or {})
        self.bases = bases
        self.coefficients = coefficients
        self.tested = tested

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """Return C on the grid without correction: mass and sign are only nearly right."""
        frames = [
            combine_cartesian(self.coefficients[0], self.bases.on_grid(grid, t))
            for t in times.tolist()
        ]
        values = unit_box(grid).from_density(torch.stack(frames, dim=1))
        return values.reshape(*self.batch, len(times), *grid.shape)

    def _diagnostics(self) -> dict[str, Tensor]:
        """Return whether the known endpoints are as accurate as in the model's own tests.

        Their L1 error must lie within `max_deviation` standard deviations of the mean there.
        """
        checks = {}
        if (epsilon := self.info.get("epsilon")) is not None:
            checks["blur"] = torch.full(self.batch, (epsilon / 2) ** 0.5, dtype=torch.float64)
        if self.tested is None or "mean" not in self.tested:
            return checks
        usual = torch.ones(self.batch, dtype=torch.bool)
        for k, t, end in ((0, 0.0, self.source), (-1, 1.0, self.target)):
            limit = (self.tested["mean"][k] + self.max_deviation * self.tested["sd"][k]) / 100
            usual &= l1_tensor(self.density(t), end) <= limit
        return checks | {"in_distribution": usual}

    def _pair(self, k: int) -> DeepONetPath:
        return type(self)(
            self.source[k],
            self.target[k],
            self.solver,
            self.bases,
            tuple(part[k : k + 1] for part in self.coefficients),
            self.tested,
            self._pair_info(k),
        )

    def _state(self) -> dict[str, np.ndarray]:
        """Return coefficients and trunks, which determine the path at any (x, t)."""
        model = self.bases.model
        weights = {
            name: value
            for name, value in model.state_dict().items()
            if ".trunk." in name or "usual." in name
        }
        header = {
            "architecture": to_table(model.settings),
            "epsilon": self.bases.epsilon,
            "tested": self.tested,
        }
        return {
            "header": np.array(json.dumps(header)),
            **{
                part: own.detach().float().numpy()
                for part, own in zip(self.parts, self.coefficients, strict=True)
            },
            **{f"weights/{name}": value.float().numpy() for name, value in weights.items()},
        }

    @classmethod
    def _from_state(cls, source, target, solver, info, state):
        header = json.loads(str(state["header"]))
        table = {"kind": cls.kind, **header["architecture"]}
        model = build_model(from_table(ModelSettings, table), seed=0)
        weights = {
            name.removeprefix("weights/"): torch.from_numpy(value)
            for name, value in state.items()
            if name.startswith("weights/")
        }
        model.load_state_dict(weights, strict=False)  # the branches are not needed any more
        coefficients = tuple(torch.from_numpy(state[name]) for name in cls.parts)
        bases = BasisCache(model.eval().requires_grad_(False), header["epsilon"])  # pyright: ignore[reportArgumentType]
        return cls(source, target, solver, bases, coefficients, header.get("tested"), info)
