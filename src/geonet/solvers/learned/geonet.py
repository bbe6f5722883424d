"""Trained GeONet models as solvers: one pass through the branches, one matmul per grid."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from geonet.evaluation.metrics import l1
from geonet.geodesic import Geodesic
from geonet.measures.density import Density
from geonet.measures.grid import Grid
from geonet.operators.architecture import Architecture
from geonet.operators.build import build
from geonet.operators.deeponet import GeONet, cartesian
from geonet.operators.jets import Jet, variables
from geonet.settings import from_table, to_table
from geonet.solvers.base import Solver
from geonet.solvers.flow import runge_kutta
from geonet.solvers.learned.opened import CACHED_MODELS, PRETRAINED, opened
from geonet.solvers.learned.sensors import sensed

STEPS = 16  # of Runge–Kutta from t = 0 to 1
LEAST = 1e-3  # density, relative to uniform, by which a gradient is divided
CACHED_BYTES = 2**28  # of the bases on grids that a model keeps
UNUSUAL = 4.0


class Operator:
    """A trained model on a box of any size, in float32, with the bases it was asked for lately.

    Attributes:
        model: C and H in the unit box.
        epsilon: the entropic regularisation it was trained with, in the unit box.
    """

    def __init__(self, model: GeONet, epsilon: float = 0.0):
        self.model = model
        self.epsilon = epsilon
        self._bases: dict[tuple[Grid, float], Tensor] = {}

    @torch.no_grad()
    def coefficients(self, source: Density, target: Density) -> tuple[Tensor, Tensor]:
        """Coefficients (B, functions) of C and H for a batch of pairs."""
        sensors = self.model.settings.sensors
        return self.model.coefficients(sensed(source, sensors), sensed(target, sensors))

    @torch.no_grad()
    def basis_on(self, grid: Grid, t: float) -> Tensor:
        """C's functions at all cells at time t, (cells, functions); the latest ones are kept."""
        basis = self._bases.pop((grid, t), None)
        if basis is None:
            points = unit_points(grid.points().reshape(-1, grid.dimension), grid)
            rows = torch.cat([points, torch.full_like(points[:, :1], t)], dim=1)
            basis = self.model.density.basis(rows)
        self._bases[grid, t] = basis  # the last place is the latest
        while sum(kept.nbytes for kept in self._bases.values()) > CACHED_BYTES:
            self._bases.pop(next(iter(self._bases)))
        return basis

    @torch.no_grad()
    def jets(
        self, coefficients: tuple[Tensor, Tensor], points: Tensor, t: float, box: Grid
    ) -> list[Jet]:
        """Jets (channels, B, N) of C and H at t, at points (N, d) or each pair's own (B, N, d)."""
        unit = unit_points(points.reshape(-1, box.dimension), box)
        z = variables(unit, torch.full_like(unit[:, 0], t), "none")
        jets = []
        for own, net in zip(coefficients, (self.model.density, self.model.potential), strict=True):
            basis = net.basis(z)
            if points.ndim == 2:
                jets.append(cartesian(own, basis))
            else:
                data = basis.data.unflatten(1, points.shape[:2])  # (channels, B, N, functions)
                jets.append(basis.like((own[:, None] * data).sum(-1)))
        return jets


def unit_points(points: Tensor, box: Grid) -> Tensor:
    """Points (N, d) of a box in the unit cube around it, float32."""
    return ((points - box.corner("lower")) / max(box.lengths)).float()


class GeONetPath(Geodesic):
    """C and H of a batch of pairs, given by their coefficients."""

    kind = "geonet"

    def __init__(
        self,
        source: Density,
        target: Density,
        solver: str,
        notes: dict[str, Any],
        operator: Operator,
        coefficients: tuple[Tensor, Tensor],
        tested: dict[str, list[float]] | None = None,
    ):
        super().__init__(source, target, solver, notes)
        self.operator = operator
        self.coefficients = coefficients
        self.tested = tested  # mean and sd of the model's own test errors at the quarters, in %

    def _density(self, times: Tensor, grid: Grid) -> Tensor:
        """C on the grid; as the network has it, so mass and sign are only nearly right."""
        frames = [
            cartesian(self.coefficients[0], self.operator.basis_on(grid, t)) for t in times.tolist()
        ]
        values = torch.stack(frames, dim=1) / max(grid.lengths) ** grid.dimension
        return values.reshape(*self.batch, len(times), *grid.shape).to(torch.float64)

    def _velocity(self, times: Tensor, points: Tensor) -> Tensor:
        return self._shaped(torch.stack([self._flow(points, t) for t in times.tolist()], dim=1))

    def _flow(self, points: Tensor, t: float) -> Tensor:
        """∇H; with entropy the current velocity ∇H + ε∇log C, which carries the density."""
        density, potential = self._jets(points, t)
        velocity = potential.gradient
        if self.operator.epsilon:  # C may come near zero, or below
            scores = density.gradient / density.value.clamp(min=LEAST)
            velocity = velocity + self.operator.epsilon * scores
        return velocity.movedim(0, -1).to(torch.float64) * max(self.grid.lengths)

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Along the learned velocity, which is straight only as far as H solves its equation."""
        lower, upper = self.grid.corner("lower"), self.grid.corner("upper")
        where, now = points.expand(len(self.coefficients[0]), *points.shape), 0.0
        frames: list[Tensor] = [where] * len(times)
        for k in times.argsort().tolist():
            end = float(times[k])
            where = runge_kutta(
                lambda t: lambda x: self._flow(x.clamp(lower, upper), t), where, now, end, STEPS
            ).clamp(lower, upper)
            frames[k], now = where, end
        return self._shaped(torch.stack(frames, dim=1))

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        scale = max(self.grid.lengths) ** 2
        values = [self._jets(points, t)[1].value * scale for t in times.tolist()]
        return self._shaped(torch.stack(values, dim=1))

    def _distance(self) -> Tensor:
        """W2² = ∫|∇H_0|² dμ0 = ∫|∇H_1|² dμ1: the mean of both, since each end is known."""
        if self.operator.epsilon:
            raise self._unavailable("distance")
        points = self.grid.points().reshape(-1, self._dimension)
        squares = []
        for t, end in ((0.0, self.source), (1.0, self.target)):
            speed = (self._velocity(torch.tensor([t]), points).squeeze(-3) ** 2).sum(-1)
            mass = end.values.reshape(*self.batch, -1) * self.grid.cell_volume
            squares.append((speed * mass).sum(-1))
        return (0.5 * (squares[0] + squares[1])).sqrt()

    def _checks(self) -> dict[str, Tensor]:
        """Whether both ends, which are known, come out as well as in the model's own tests.

        As well: an L1 error of at most the mean and `UNUSUAL` standard deviations there, per pair.
        """
        if self.tested is None:
            return {}
        usual = torch.ones(self.batch, dtype=torch.bool)
        for t, end in ((0, self.source), (-1, self.target)):
            limit = (self.tested["mean"][t] + UNUSUAL * self.tested["sd"][t]) / 100
            usual &= l1(self.density(float(-t)), end) <= limit
        return {"in_distribution": usual}

    def _jets(self, points: Tensor, t: float) -> list[Jet]:
        return self.operator.jets(self.coefficients, points, t, self.grid)

    def _shaped(self, answer: Tensor) -> Tensor:
        """(B, T, ...) without B for a single pair, in double precision."""
        answer = answer.to(torch.float64)
        return answer if self.batch else answer[0]

    def _state(self) -> dict[str, np.ndarray]:
        """Coefficients and trunks: what is needed at any (x, t)."""
        model = self.operator.model
        weights = {k: v for k, v in model.state_dict().items() if ".trunk." in k}
        header = {
            "architecture": to_table(model.settings),
            "epsilon": self.operator.epsilon,
            "tested": self.tested,
        }
        return {
            "header": np.array(json.dumps(header)),
            "density": self.coefficients[0].numpy(),
            "potential": self.coefficients[1].numpy(),
            **{f"weights/{name}": value.numpy() for name, value in weights.items()},
        }

    @classmethod
    def _from_state(cls, source, target, solver, notes, state) -> GeONetPath:
        header = json.loads(str(state["header"]))
        model = build(from_table(Architecture, header["architecture"]), seed=0)
        assert isinstance(model, GeONet)
        weights = {
            name.removeprefix("weights/"): torch.from_numpy(value)
            for name, value in state.items()
            if name.startswith("weights/")
        }
        model.load_state_dict(weights, strict=False)  # the branches have done their work
        coefficients = tuple(torch.from_numpy(state[key]) for key in ("density", "potential"))
        operator = Operator(model.eval().requires_grad_(False), header["epsilon"])
        tested = header.get("tested")
        return cls(source, target, solver, notes, operator, coefficients, tested)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class GeONetSolver(Solver):
    """A trained model from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
    """

    name = "geonet"
    summary = "a GeONet model from a file that `geonet train` wrote"
    dimensions = (1, 2, 3)

    file: str

    def _solve(self, source: Density, target: Density) -> GeONetPath:
        model, header = opened(Path(self.file), GeONet, source.grid.dimension)
        operator = _operator(model, float(header["epsilon"]))
        source, target = source.detach(), target.detach()
        coefficients = operator.coefficients(source, target)
        notes = {"model": header.get("name", Path(self.file).stem)}
        if operator.epsilon:
            notes["epsilon"] = operator.epsilon * max(source.grid.lengths) ** 2
        tested = header.get("measured", {}).get("test")
        return GeONetPath(source, target, self.name, notes, operator, coefficients, tested)

    _solve_pair = _solve


@lru_cache(CACHED_MODELS)
def _operator(model: GeONet, epsilon: float) -> Operator:
    """One for each model that is open: it keeps its bases."""
    return Operator(model, epsilon)


@dataclass(frozen=True)
class GeONet1D(GeONetSolver):
    """The paper's operator, trained on 1D mixtures."""

    name = "geonet-1d"
    summary = "1D, the paper's neural operator, trained on its Gaussian mixtures; milliseconds"
    dimensions = (1,)

    file: str = str(PRETRAINED / "geonet-1d.safetensors")


@dataclass(frozen=True)
class GeONet2D(GeONetSolver):
    """The paper's operator, trained on 2D mixtures."""

    name = "geonet-2d"
    summary = "2D, the paper's neural operator, trained on its Gaussian mixtures; milliseconds"
    dimensions = (2,)

    file: str = str(PRETRAINED / "geonet-2d.safetensors")


@dataclass(frozen=True)
class ERGeONet1D(GeONetSolver):
    """The paper's entropic variant, trained on 1D mixtures: a Schrödinger bridge."""

    name = "er-geonet-1d"
    summary = "1D, the paper's entropic operator: a Schrödinger bridge on its Gaussian mixtures"
    dimensions = (1,)
    gives = ("velocity", "potential", "trajectories")

    file: str = str(PRETRAINED / "er-geonet-1d.safetensors")
