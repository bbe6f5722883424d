"""The form "deeponet": a DeepONet for the density alone, without physics.

It learns from exact paths, and its paths give densities only. `GeONetPath` extends `DeepONetPath`.
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
from geonet.density import Density
from geonet.errors import FileError
from geonet.grid import Grid, unit_box
from geonet.metrics import l1
from geonet.numerics.autograd import requires_grad
from geonet.paths import Geodesic
from geonet.solvers.neural.layers import (
    BranchTrunkSettings,
    DeepONet,
    read_sensors,
    combine_cartesian,
    standardize,
)
from geonet.solvers.neural.losses import Batch, Loss, LossSettings, Terms
from geonet.solvers.neural.model import CACHED_MODELS, BasisModel, Header, ModelSettings, to_float64

CACHED_BYTES = 2**28  # of the bases on grids that a model keeps
UNUSUAL = 4.0  # standard deviations
_keeping = Lock()  # of bases between threads; not in `Bases`, which could not be copied then


@dataclass(frozen=True)
class DeepONetSettings(BranchTrunkSettings):
    """A DeepONet for the density C alone: GeONet without the potential, and so without physics.

    Attributes:
        swap_symmetry: "density" builds in C(μ0,μ1)(x,t) = C(μ1,μ0)(x,1−t) by averaging.
    """

    kind: Literal["deeponet"] = "deeponet"
    swap_symmetry: Literal["none", "density"] = "none"


class DeepONetModel(BasisModel):
    """A model whose quantities are DeepONets, attributes by their names."""

    @property
    def networks(self) -> list[DeepONet]:
        """One for each quantity."""
        return [getattr(self, quantity) for quantity in self.quantities]

    def coefficients(self, source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Unit-box densities at the sensors, (B, m) each, to (B, functions) of each quantity."""
        ends = standardize(source, target)
        return tuple(network.coefficients(*ends) for network in self.networks)

    def evaluate_basis(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """The functions of each quantity at points (N, d) and times (N,), (N, functions) each."""
        assert times is not None
        rows = torch.cat([points, times[:, None]], dim=1)
        return tuple(network.basis(rows) for network in self.networks)


class DensityNet(DeepONetModel):
    """C alone, of the path between two densities, in the unit box."""

    Settings = DeepONetSettings
    provides = ("density",)
    quantities = basis_outputs = ("density",)
    formula = "C(x, t) = density_coefficients @ density.T is the density relative to uniform"
    needs_exact_paths = True

    def __init__(self, settings: DeepONetSettings):
        super().__init__(settings)
        self.density = DeepONet(settings, int(settings.swap_symmetry == "density"), 1.0)

    def objective(self, settings: LossSettings, box: Grid) -> SupervisedLoss:
        """The squared error."""
        return SupervisedLoss(self)

    def path(self, source: Density, target: Density, name: str, header: Header) -> DeepONetPath:
        """C of a pair or a batch."""
        return DeepONetPath(source, target, name, *predict(self, source, target, header))

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """Refuse all but 1D families, the cartesian scheme and the default loss."""
        require(not floor, 'problem.floor is for model.kind = "transport"; remove it.')
        require(
            family is not None and settings.dimension == 1,
            "a DeepONet learns from exact paths, which are known for 1D families alone; "
            'set problem.family = "mixtures-1d", or model.kind = "geonet".',
        )
        require(
            loss == LossSettings(),
            "a DeepONet has one term and no physics, so it takes nothing of loss; remove it.",
        )
        require(scheme == "cartesian", 'a DeepONet takes sampling.scheme = "cartesian" only.')


class SupervisedLoss(Loss):
    """Without physics: error = mean (C(x, t) − μ_t(x))², with μ_t of the exact path."""

    def __init__(self, model: DensityNet):
        super().__init__()
        self.model = model
        self.weights = {"error": 1.0}

    def forward(self, batch: Batch) -> Terms:
        """The mean over all pairs at all points."""
        assert batch.exact_density is not None
        (coefficients,) = self.model.coefficients(batch.source, batch.target)
        (basis,) = self.model.evaluate_basis(batch.points, batch.times)
        return {"error": ((combine_cartesian(coefficients, basis) - batch.exact_density) ** 2).mean()}


# ---- the path


class BasisCache:
    """A model with its basis on the grids and at the times that it was asked for lately.

    Attributes:
        model: C in the unit box, and H if it has one.
        epsilon: the entropic regularisation it was trained with, in the unit box.
    """

    def __init__(self, model: DeepONetModel, epsilon: float = 0.0):
        self.model = model
        self.epsilon = epsilon
        self.dtype = next(model.parameters()).dtype
        self._kept: dict[tuple[Grid, float], Tensor] = {}

    def coefficients(self, source: Density, target: Density) -> tuple[Tensor, ...]:
        """Coefficients (B, functions) of C, and of H, for a batch of pairs."""
        with torch.set_grad_enabled(requires_grad(source, target)):  # in them, not in the weights
            ends = read_sensors([source, target], self.model.settings.sensors, self.dtype)
            return self.model.coefficients(*ends)

    @torch.inference_mode(False)  # what is kept may be needed for gradients later
    @torch.no_grad()
    def on_grid(self, grid: Grid, t: float) -> Tensor:
        """C's functions at all cells at time t, (cells, functions); the latest ones are kept."""
        with _keeping:
            basis = self._kept.pop((grid, t), None)
        if basis is None:
            points = unit_box(grid).to_points(grid.points().reshape(-1, grid.dimension))
            rows = torch.cat([points, torch.full_like(points[:, :1], t)], dim=1).to(self.dtype)
            basis = self.model.networks[0].basis(rows)
        with _keeping:
            self._kept[grid, t] = basis  # the last place is the latest
            while sum(kept.nbytes for kept in self._kept.values()) > CACHED_BYTES:
                self._kept.pop(next(iter(self._kept)))
        return basis


@lru_cache(CACHED_MODELS)
def get_basis_cache(model: DeepONetModel, epsilon: float) -> BasisCache:
    """One for each model that is open: it keeps its bases."""
    return BasisCache(model, epsilon)


def predict(
    model: DeepONetModel, source: Density, target: Density, header: Header
) -> tuple[BasisCache, tuple[Tensor, ...], MeasuredErrors | None]:
    """What a path is made of: bases, coefficients, and the model's own errors, if it was tested."""
    model = to_float64(model) if requires_grad(source, target) else model
    epsilon = float(header.get("epsilon", 0.0))
    in_training = any(weight.requires_grad for weight in model.parameters())
    bases = BasisCache(model, epsilon) if in_training else get_basis_cache(model, epsilon)
    return bases, bases.coefficients(source, target), read_measured_errors(header)


# "mean" and "sd" of the L1 errors at the quarters, in %, if it was tested; "slope", if it was
# calibrated: the error over what the residuals of a path explain.
MeasuredErrors = dict[str, Sequence[float]]


def _all_finite(numbers: Sequence[float]) -> bool:
    """Whether there are numbers, and no others."""
    return len(numbers) > 0 and all(map(math.isfinite, numbers))


def read_measured_errors(header: Header) -> MeasuredErrors | None:
    """What the tests of a model measured, if it was tested."""
    try:
        measured = header.get("measured", {})
        errors: MeasuredErrors = {}
        if (tested := measured.get("test")) is not None:
            errors |= {key: [float(number) for number in tested[key]] for key in ("mean", "sd")}
        if (calibration := measured.get("calibration")) is not None:
            errors["slope"] = [float(calibration["slope"])]
        if not all(map(_all_finite, errors.values())):
            raise ValueError("no errors")
        return errors or None
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
        file = header.get("file", "the model")
        raise FileError(f"The header of {file} has odd test errors; get it again.") from error


class DeepONetPath(Geodesic):
    """C of a batch of pairs, given by its coefficients."""

    kind = "deeponet"
    parts: ClassVar[tuple[str, ...]] = ("density",)  # what `coefficients` belong to

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
        """C on the grid; as the network has it, so mass and sign are only nearly right."""
        frames = [
            combine_cartesian(self.coefficients[0], self.bases.on_grid(grid, t)) for t in times.tolist()
        ]
        values = unit_box(grid).from_density(torch.stack(frames, dim=1))
        return values.reshape(*self.batch, len(times), *grid.shape)

    def _diagnostics(self) -> dict[str, Tensor]:
        """Whether both ends, which are known, come out as well as in the model's own tests.

        That is, with an L1 error within `UNUSUAL` standard deviations of the mean there.
        """
        checks = {}
        if (epsilon := self.info.get("epsilon")) is not None:  # of a model with noise
            checks["blur"] = torch.full(self.batch, (epsilon / 2) ** 0.5, dtype=torch.float64)
        if self.tested is None or "mean" not in self.tested:
            return checks
        usual = torch.ones(self.batch, dtype=torch.bool)
        for k, t, end in ((0, 0.0, self.source), (-1, 1.0, self.target)):
            limit = (self.tested["mean"][k] + UNUSUAL * self.tested["sd"][k]) / 100
            usual &= l1(self.density(t), end) <= limit
        return checks | {"in_distribution": usual}

    def _pair(self, k: int) -> DeepONetPath:
        own = tuple(part[k : k + 1] for part in self.coefficients)
        ends, info = (self.source[k], self.target[k]), self._pair_info(k)
        return type(self)(*ends, self.solver, self.bases, own, self.tested, info)

    def _state(self) -> dict[str, np.ndarray]:
        """Coefficients and trunks: what is needed at any (x, t)."""
        model = self.bases.model
        kept = (".trunk.", "usual.")
        weights = {k: v for k, v in model.state_dict().items() if any(part in k for part in kept)}
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
        from geonet.solvers.neural.model import build_model

        header = json.loads(str(state["header"]))
        table = {"kind": cls.kind, **header["architecture"]}
        model = build_model(from_table(ModelSettings, table), seed=0)
        weights = {
            name.removeprefix("weights/"): torch.from_numpy(value)
            for name, value in state.items()
            if name.startswith("weights/")
        }
        model.load_state_dict(weights, strict=False)  # the branches have done their work
        coefficients = tuple(torch.from_numpy(state[name]) for name in cls.parts)
        bases = BasisCache(model.eval().requires_grad_(False), header["epsilon"])  # pyright: ignore[reportArgumentType]
        return cls(source, target, solver, bases, coefficients, header.get("tested"), info)
