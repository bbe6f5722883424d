"""Trained GeONet models as solvers: one pass through the branches, one matmul per grid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from geonet.fields.flow import carried
from geonet.geodesics.gradients import root, wanted
from geonet.measures.density import Density
from geonet.operators.deeponet import GeONet, cartesian
from geonet.operators.jets import Jet, variables
from geonet.operators.opened import PRETRAINED, doubled, opened
from geonet.solvers.base import EVERY_ANSWER, Solver
from geonet.solvers.learned.deeponet import DeepONetPath, operator_of, tested_in, unit_points

STEPS = 16  # of Runge–Kutta from t = 0 to 1
LEAST = 1e-3  # density, relative to uniform, by which a gradient is divided


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
        if self.operator.epsilon:  # C may come near zero, or below
            scores = density.gradient / density.value.clamp(min=LEAST)
            velocity = velocity + self.operator.epsilon * scores
        return velocity.movedim(0, -1).to(torch.float64) * max(self.grid.lengths)

    def _trajectories(self, times: Tensor, points: Tensor) -> Tensor:
        """Along the learned velocity, which is straight only as far as H solves its equation."""
        box = self.grid.corner("lower"), self.grid.corner("upper")
        start = points.expand(len(self.coefficients[0]), *points.shape)
        return self._shaped(carried(self._flow, start, times, STEPS, box).movedim(0, 1))

    def _potential(self, times: Tensor, points: Tensor) -> Tensor:
        scale = max(self.grid.lengths) ** 2
        values = [self._jets(points, t)[1].value for t in times.tolist()]
        return self._shaped(torch.stack(values, dim=1)) * scale

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
        return root(0.5 * (squares[0] + squares[1]))

    def _jets(self, points: Tensor, t: float) -> list[Jet]:
        """Jets (channels, B, N) of C and H at t, at points (N, d) or each pair's own (B, N, d)."""
        varied = any(tensor.requires_grad for tensor in (points, *self.coefficients))
        with torch.set_grad_enabled(varied and torch.is_grad_enabled()):
            return self._jets_at(points, t)

    def _jets_at(self, points: Tensor, t: float) -> list[Jet]:
        unit = unit_points(points.reshape(-1, self._dimension), self.grid).to(self.operator.dtype)
        z = variables(unit, torch.full_like(unit[:, 0], t), "none")
        jets = []
        for own, part in zip(self.coefficients, self.parts, strict=True):
            basis = getattr(self.operator.model, part).basis(z)
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


@dataclass(frozen=True)
class GeONetSolver(Solver):
    """A trained model from a file.

    Attributes:
        file: the model, as `geonet train` writes it.
    """

    name = "geonet"
    summary = "a GeONet model from a file that `geonet train` wrote"
    dimensions = (1, 2, 3)
    differentiable = EVERY_ANSWER

    file: str

    def _solve(self, source: Density, target: Density) -> GeONetPath:
        model, header = opened(Path(self.file), GeONet, source.grid.dimension)
        model = doubled(model) if wanted(source, target) else model
        operator = operator_of(model, float(header["epsilon"]))
        coefficients = operator.coefficients(source, target)
        notes = {"model": header.get("name", Path(self.file).stem)}
        if operator.epsilon:
            notes["epsilon"] = operator.epsilon * max(source.grid.lengths) ** 2
        tested = tested_in(header, self.file)
        return GeONetPath(source, target, self.name, notes, operator, coefficients, tested)

    _solve_pair = _solve


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
    differentiable = ("density", *gives)

    file: str = str(PRETRAINED / "er-geonet-1d.safetensors")


@dataclass(frozen=True)
class GeONetCloud(GeONetSolver):
    """The paper's operator with Fourier features, trained on histograms of point clouds."""

    name = "geonet-cloud"
    summary = "2D, the paper's neural operator, trained on histograms of point clouds"
    dimensions = (2,)

    file: str = str(PRETRAINED / "geonet-cloud.safetensors")


@dataclass(frozen=True)
class GeONetMNIST(GeONetSolver):
    """The paper's operator, trained on codes of handwritten digits."""

    name = "geonet-mnist"
    summary = "1D, the paper's neural operator, trained on codes of MNIST's digits"
    dimensions = (1,)

    file: str = str(PRETRAINED / "geonet-mnist.safetensors")
