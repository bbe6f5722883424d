"""Plain and modified multilayer perceptrons, on tensors and on jets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, Sequential
from torch.nn.init import xavier_normal_, zeros_

from geonet._toml import require
from geonet.density import Density
from geonet.grid import unit_box
from geonet.numerics.cosine import cosine_transform, frequencies, splined
from geonet.solvers.neural.jets import (
    Jet,
    Z,
    affine,
    backwards,
    columns,
    cosine,
    joined,
    sine,
    tanh_layer,
    with_constant,
)
from geonet.solvers.neural.model import LARGEST, Branch, ModelSettings, Trunk

# ---- Weights to start a training from.


def glorot(weight: Tensor) -> Tensor:
    """Glorot's normal weights, in place.

    A tensor without storage, whose values are loaded later, stays as it is: for such a one torch
    would import its compiler, which takes seconds.
    """
    return weight if weight.is_meta else xavier_normal_(weight)


class MLP(Module):
    """`depth` layers: tanh(W_k · + b_k), `depth − 1` of them, and a linear output."""

    def __init__(self, inputs: int, width: int, depth: int, outputs: int):
        super().__init__()
        sides = [inputs] + [width] * (depth - 1)
        self.layers = ModuleList(linear(i, o) for i, o in pairwise(sides))
        self.output = linear(sides[-1], outputs)

    def features(self, z: Z) -> Z:
        """What the output layer sees, (..., width)."""
        for layer in self.layers:
            z = tanh_layer(layer, z)  # pyright: ignore[reportArgumentType]
        return z

    def forward(self, z: Z) -> Z:
        """(..., inputs) to (..., outputs)."""
        return affine(self.output, self.features(z))


class ModifiedMLP(Module):
    """The paper's gated network, of `depth` layers from H¹ to the output:

        U = σ(W¹X + b¹),  V = σ(W²X + b²),  H¹ = σ(W^h X + b^h)
        Z^k = σ(W^k H^k + b^k),  H^{k+1} = (1 − Z^k)⊙U + Z^k⊙V.

    (The paper prints U for the second gate, a slip.)
    """

    def __init__(self, inputs: int, width: int, depth: int, outputs: int):
        super().__init__()
        self.gate_u, self.gate_v, self.first = (linear(inputs, width) for _ in range(3))
        self.layers = ModuleList(linear(width, width) for _ in range(depth - 2))
        self.output = linear(width, outputs)

    def features(self, z: Z) -> Z:
        """What the output layer sees, (..., width)."""
        u, v, h = (tanh_layer(layer, z) for layer in (self.gate_u, self.gate_v, self.first))
        between = v - u
        for layer in self.layers:
            h = u + tanh_layer(layer, h) * between  # pyright: ignore[reportArgumentType]
        return h

    def forward(self, z: Z) -> Z:
        """(..., inputs) to (..., outputs)."""
        return affine(self.output, self.features(z))


def linear(inputs: int, outputs: int) -> Linear:
    """Glorot's normal weights, zero biases."""
    layer = Linear(inputs, outputs)
    glorot(layer.weight)
    zeros_(layer.bias)
    return layer


# ---- Functions of (x, t) in the unit box: features, then networks; joint or separable.


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


# ---- Densities at sensors as sums of cosines.


MOST_MODES = 4096  # sensors an axis of which a series is made: its table has their square


class CosineModes(Module):
    """The cosine series through the values at sensors^d centres of cells, cut after modes^d terms.

    μ(x) = Σ_k c_k Π_i cos(k_i πx_i), with k_i < modes.
    """

    def __init__(self, dimension: int, sensors: int, modes: int):
        super().__init__()
        self.shape = (sensors,) * dimension
        self.modes = modes

    def forward(self, values: Tensor) -> Tensor:
        """Values (B, sensors^d) to c, (B, modes^d)."""
        found = values.reshape(-1, *self.shape)
        matrix = cosine_transform(self.shape[0])[: self.modes].T.to(values)
        for axis in range(1, len(self.shape) + 1):
            found = (found.movedim(axis, -1) @ matrix).movedim(-1, axis)
        return found.flatten(1)

    def functions(self, z: Z) -> Z:
        """(x, t), rows (..., d + 1), to Π_i cos(k_i πx_i) there, (..., modes^d)."""
        first, *others = (self._along(columns(z, i, i + 1)) for i in range(len(self.shape)))
        for other in others:
            first = _outer(first, other)
        return first

    def _along(self, x: Z) -> Z:
        """cos(kπx) of one coordinate, (..., 1) to (..., modes)."""
        kappa = frequencies(self.modes)
        if isinstance(x, Tensor):
            return torch.cos(x * kappa.to(x))
        return cosine(x.like(x.data * kappa.to(x.data)))


class LowModes(CosineModes):
    """What a branch reads instead of sensors: their first modes, as numbers of the same size."""

    def forward(self, values: Tensor) -> Tensor:
        """Values (B, sensors^d) to (B, modes^d)."""
        return math.prod(self.shape) ** 0.5 * super().forward(values)


def _outer(a: Z, b: Z) -> Z:
    """All products of an entry of each, (..., K) and (..., L) to (..., KL)."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (a[..., :, None] * b[..., None, :]).flatten(-2)
    assert isinstance(a, Jet) and isinstance(b, Jet)
    both = a.like(a.data[..., :, None]) * b.like(b.data[..., None, :])
    return both.like(both.data.flatten(-2))


# ---- What the networks see of a density.


def sensed(density: Density, sensors: int) -> Tensor:
    """A density, relative to uniform, at sensors^d cells of the cube around its box, (B, m)."""
    (found,) = all_sensed([density], sensors)
    return found


def all_sensed(
    densities: Sequence[Density], sensors: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """The same for several on one grid, at the cost of one."""
    grid, d = densities[0].grid, densities[0].grid.dimension
    values = torch.cat([density.tensor.reshape(-1, *grid.shape) for density in densities])
    relative = unit_box(grid).to_density(values).to(dtype)
    found = splined(relative, grid, [sensors] * d, centred=True).flatten(1)
    return found.chunk(len(densities))


# ---- Two branches and a trunk: a function of (x, t) for every pair of densities.


BRANCHES = {"mlp": MLP, "modified-mlp": ModifiedMLP}


@dataclass(frozen=True)
class BranchTrunkSettings(ModelSettings):
    """What forms with branches and trunks share.

    Attributes:
        dimension: d.
        sensors: cells along each axis where the branches read the densities.
        rank: p, the number of terms in the sum over k.
    """

    dimension: int = 1
    sensors: int = 100
    rank: int = 800
    branch: Branch = field(default_factory=Branch)
    trunk: Trunk = field(default_factory=Trunk)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.rank <= LARGEST, f"rank is {self.rank}; give 1 to {LARGEST}.")
        modes = self.branch.modes
        require(
            0 <= modes <= self.sensors,
            f"branch.modes is {modes}; give 0 to {self.sensors}, the number of sensors.",
        )
        require(
            not modes or self.sensors <= MOST_MODES,
            f"sensors is {self.sensors}; with branch.modes give at most {MOST_MODES}.",
        )


class DeepONet(Module):
    """F(μ0, μ1)(x, t) = Σ_{k≤p} B0_k(μ0) · B1_k(μ1) · T_k(x, t)        (paper, eq. 9 and 10).

    T's last layer is linear, T = Wh + c, so F = (Wᵀb)·h + c·b with b = B0 ⊙ B1: the sum over k is
    done once per pair, and a pair meets a point in one product of `width + 1` numbers.

    Args:
        settings: sizes and kinds of the networks.
        parity: +1 or −1 builds in F(μ0, μ1)(x, t) = ±F(μ1, μ0)(x, 1 − t) by averaging; 0 does not.
        scale: a constant in front, the size F is expected to have.
    """

    def __init__(self, settings: BranchTrunkSettings, parity: int, scale: float):
        super().__init__()
        self.branches = torch.nn.ModuleList(make_branch(settings) for _ in range(2))
        self.trunk = make_trunk(settings.trunk, settings.dimension, settings.rank)
        self.parity = parity
        self.scale = scale / math.sqrt(settings.rank)

    def coefficients(self, source: Tensor, target: Tensor) -> Tensor:
        """Sensor values (B, m) of both ends to what multiplies `basis`, (B, functions)."""
        if not self.parity:
            return self._folded(source, target)
        both = self._folded(torch.cat([source, target]), torch.cat([target, source]))
        pairs = source.shape[0]  # ONNX could not cut by chunk(2)
        forth, back = 0.5 * both[:pairs], 0.5 * both[pairs:]
        return torch.cat([forth, self.parity * back], dim=1)

    def basis(self, z: Z) -> Z:
        """(x, t) in the unit box, rows (..., d + 1), to the functions there, (..., functions)."""
        forth = with_constant(self.trunk.features(z))
        if not self.parity:
            return forth
        return joined([forth, with_constant(self.trunk.features(backwards(z)))])

    def _folded(self, source: Tensor, target: Tensor) -> Tensor:
        first, second = self.branches
        products = self.scale * first(source) * second(target)
        output = self.trunk.output
        return torch.cat([products @ output.weight, products @ output.bias[:, None]], dim=1)


def make_branch(settings: BranchTrunkSettings) -> Module:
    """Sensor values (B, m) to (B, rank), with random weights."""
    branch, d = settings.branch, settings.dimension
    inputs = (branch.modes or settings.sensors) ** d
    network = BRANCHES[branch.network](inputs, branch.width, branch.depth, settings.rank)
    if not branch.modes:
        return network
    return Sequential(LowModes(d, settings.sensors, branch.modes), network)


def scaled(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Densities as numbers of order one."""
    return (source - 1) / 2, (target - 1) / 2


def unscaled(values: Tensor) -> Tensor:
    """Back to densities."""
    return 2 * values + 1


def cartesian(coefficients: Tensor, basis: Z) -> Z:
    """Every pair at every point: (B, functions) and (..., N, functions) to (..., B, N)."""
    if isinstance(basis, Tensor):
        return coefficients @ basis.transpose(-1, -2)
    channels, points, functions = basis.data.shape
    product = coefficients @ basis.data.reshape(-1, functions).T
    return basis.like(product.reshape(-1, channels, points).transpose(0, 1))


def paired(coefficients: Tensor, basis: Jet) -> Jet:
    """Pair n at point n only: (N, functions) and (channels, N, functions) to (channels, N)."""
    return basis.like((coefficients * basis.data).sum(-1))


# ---- A density between two ends that it has by construction.


class BetweenEnds(Module):
    """C(x, t) = (1 − t)·μ0(x) + t·μ1(x) + t(1 − t)·F(μ0, μ1)(x, t), where F is a DeepONet.

    μ0 and μ1 are the cosine series through their sensors. So C is Σ_k B0_k·B1_k·T_k still, as in
    the paper's eq. 9: in the first terms one branch is known and linear, and the other is one.
    """

    def __init__(self, settings: BranchTrunkSettings, parity: int, scale: float):
        super().__init__()
        self.inner = DeepONet(settings, parity, scale)
        self.ends = CosineModes(settings.dimension, settings.sensors, settings.sensors)
        self.dimension = settings.dimension

    @property
    def trunk(self) -> JointTrunk | SeparableTrunk:
        """That of F."""
        return self.inner.trunk

    def coefficients(self, source: Tensor, target: Tensor) -> Tensor:
        """Sensor values (B, m) of both ends, scaled, to what multiplies `basis`, (B, functions)."""
        ends = (self.ends(unscaled(end)) for end in (source, target))
        return torch.cat([self.inner.coefficients(source, target), *ends], dim=1)

    def basis(self, z: Z) -> Z:
        """(x, t) in the unit box, rows (..., d + 1), to the functions there, (..., functions)."""
        past, left = (columns(way, self.dimension) for way in (z, backwards(z)))
        waves = self.ends.functions(z)
        return joined([past * left * self.inner.basis(z), left * waves, past * waves])
