"""Functions of (x, t) in the unit box: features, then networks; joint or separable."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Linear, Module

from geonet.operators.architecture import Trunk
from geonet.operators.jets import Z, affine, columns, cosine, joined, sine
from geonet.operators.mlp import MLP, ModifiedMLP, linear

TRUNKS = {"mlp": MLP, "modified-mlp": ModifiedMLP}


class Coordinates(Module):
    """(x, t) moved from [0, 1] to [−1, 1]."""

    def __init__(self, count: int):
        super().__init__()
        self.outputs = count
        self.scale = _frozen(2 * torch.eye(count), -torch.ones(count))

    def forward(self, z: Z) -> Z:
        """(..., count) to (..., count)."""
        return affine(self.scale, z)


class Cosines(Module):
    """cos(kπx_i) for k = 1 … modes: functions whose normal derivative vanishes at every face."""

    def __init__(self, count: int, modes: int):
        super().__init__()
        self.outputs = count * modes
        frequencies = math.pi * torch.arange(1.0, modes + 1)
        self.phases = _frozen(torch.kron(torch.eye(count), frequencies[:, None]))

    def forward(self, z: Z) -> Z:
        """(..., count) to (..., count · modes)."""
        return cosine(affine(self.phases, z))


class RandomFourier(Module):
    """(cos 2πBv, sin 2πBv), B with N(0, σ²) entries, frozen."""

    def __init__(self, count: int, modes: int, sigma: float):
        super().__init__()
        self.outputs = 2 * modes
        self.phases = _frozen(2 * math.pi * sigma * torch.randn(modes, count))

    def forward(self, z: Z) -> Z:
        """(..., count) to (..., 2 · modes)."""
        phases = affine(self.phases, z)
        return joined([cosine(phases), sine(phases)])


Features = Coordinates | Cosines | RandomFourier


class JointTrunk(Module):
    """A network of the features of x, and of t."""

    def __init__(self, settings: Trunk, dimension: int, rank: int):
        super().__init__()
        self.space, self.time = _features(settings, dimension)
        inputs = self.space.outputs + self.time.outputs
        self.network = TRUNKS[settings.network](inputs, settings.width, settings.depth, rank)
        self.dimension = dimension

    @property
    def output(self) -> Linear:
        """The last layer, width to rank."""
        return self.network.output  # pyright: ignore[reportReturnType]

    def features(self, z: Z) -> Z:
        """(x, t) rows (..., d + 1) to what the last layer sees, (..., width)."""
        d = self.dimension
        return self.network.features(
            joined([self.space(columns(z, 0, d)), self.time(columns(z, d))])
        )

    def forward(self, z: Z) -> Z:
        """(..., d + 1) to (..., rank)."""
        return affine(self.output, self.features(z))


class SeparableTrunk(Module):
    """X(x) ⊙ τ(t), two tanh stacks: the paper's Fourier-feature trunk."""

    def __init__(self, settings: Trunk, dimension: int, rank: int):
        super().__init__()
        self.space, self.time = _features(settings, dimension)
        self.stacks = torch.nn.ModuleList(
            MLP(part.outputs, settings.width, settings.depth - 1, settings.width)
            for part in (self.space, self.time)
        )
        self.output = linear(settings.width, rank)
        self.dimension = dimension

    def features(self, z: Z) -> Z:
        """(x, t) rows (..., d + 1) to what the last layer sees, (..., width)."""
        d = self.dimension
        space, time = self.stacks
        return space(self.space(columns(z, 0, d))) * time(self.time(columns(z, d)))

    def forward(self, z: Z) -> Z:
        """(..., d + 1) to (..., rank)."""
        return affine(self.output, self.features(z))


def make_trunk(settings: Trunk, dimension: int, rank: int) -> JointTrunk | SeparableTrunk:
    """The trunk of these settings, with random weights."""
    kind = SeparableTrunk if settings.network == "separable" else JointTrunk
    return kind(settings, dimension, rank)


def _features(settings: Trunk, dimension: int) -> tuple[Features, Features]:
    """Features of x and of t."""
    if settings.features == "cosines":
        return Cosines(dimension, settings.modes), Coordinates(1)
    if settings.features == "fourier":
        modes, sigma = settings.modes, settings.sigma
        return RandomFourier(dimension, modes, sigma), RandomFourier(1, modes, sigma)
    return Coordinates(dimension), Coordinates(1)


def _frozen(weight: Tensor, bias: Tensor | None = None) -> Linear:
    layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data = weight
    if bias is not None:
        layer.bias.data = bias
    return layer.requires_grad_(False)
