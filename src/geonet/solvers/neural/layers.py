"""Layers of the DeepONet forms: perceptrons, features of (x, t), cosine modes, branches and trunks.

A DeepONet is F(μ0, μ1)(x, t) = Σ_k B0_k(μ0) · B1_k(μ1) · T_k(x, t) with two branch networks B0, B1
of the densities at sensors and a trunk network T. Every layer accepts tensors and jets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, Sequential
from torch.nn.init import xavier_normal_, zeros_

from geonet._toml import require
from geonet.density import Density
from geonet.grid import unit_box
from geonet.numerics.cosine import cosine_transform, frequencies, sample_spline
from geonet.solvers.neural.jets import (
    Jet,
    Z,
    append_constant,
    apply_linear,
    apply_tanh_layer,
    concatenate,
    cosine,
    reverse_time,
    select_columns,
    sine,
)
from geonet.solvers.neural.model import MAX_SIZE, Branch, ModelSettings, Trunk

# ---- perceptrons


class _Network(Module):
    """A network with a linear output layer; its input are the `features`."""

    output: Linear

    def features(self, z: Z) -> Z:
        """Return the input of the output layer, (..., width)."""
        raise NotImplementedError

    def forward(self, z: Z) -> Z:
        """Map (..., inputs) to (..., outputs)."""
        return apply_linear(self.output, self.features(z))


class MLP(_Network):
    """A perceptron of `depth` layers: `depth − 1` times tanh(W_k · + b_k), and a linear output."""

    def __init__(self, inputs: int, width: int, depth: int, outputs: int):
        super().__init__()
        sizes = [inputs] + [width] * (depth - 1)
        self.layers = ModuleList(build_linear(i, o) for i, o in pairwise(sizes))
        self.output = build_linear(sizes[-1], outputs)

    def features(self, z: Z) -> Z:
        for layer in self.layers:
            z = apply_tanh_layer(layer, z)  # pyright: ignore[reportArgumentType]
        return z


class ModifiedMLP(_Network):
    """The paper's gated network, of `depth` layers from H¹ to the output:

        U = σ(W¹X + b¹),  V = σ(W²X + b²),  H¹ = σ(W^h X + b^h)
        Z^k = σ(W^k H^k + b^k),  H^{k+1} = (1 − Z^k)⊙U + Z^k⊙V.

    (The paper prints U for the second gate, a slip.)
    """

    def __init__(self, inputs: int, width: int, depth: int, outputs: int):
        super().__init__()
        self.gate_u, self.gate_v, self.first = (build_linear(inputs, width) for _ in range(3))
        self.layers = ModuleList(build_linear(width, width) for _ in range(depth - 2))
        self.output = build_linear(width, outputs)

    def features(self, z: Z) -> Z:
        u, v, h = (apply_tanh_layer(layer, z) for layer in (self.gate_u, self.gate_v, self.first))
        difference = v - u
        for layer in self.layers:
            h = u + apply_tanh_layer(layer, h) * difference  # pyright: ignore[reportArgumentType]
        return h


NETWORKS = {"mlp": MLP, "modified-mlp": ModifiedMLP}


def build_linear(inputs: int, outputs: int) -> Linear:
    """Return a linear layer with Xavier-normal weights and zero bias."""
    layer = Linear(inputs, outputs)
    xavier_normal(layer.weight)
    zeros_(layer.bias)
    return layer


def xavier_normal(weight: Tensor) -> Tensor:
    """Fill a tensor with Xavier-normal weights, in place.

    Tensors on the device "meta" are skipped: there torch would import its compiler, which takes
    seconds.
    """
    return weight if weight.is_meta else xavier_normal_(weight)


# ---- trunks: functions of (x, t) in the unit box


class Coordinates(Module):
    """The features (x, t), scaled from [0, 1] to [−1, 1]."""

    def __init__(self, count: int):
        super().__init__()
        self.outputs = count
        self.scale = _build_fixed_linear(
            (count, count), lambda: 2 * torch.eye(count), lambda: -torch.ones(count)
        )

    def forward(self, z: Z) -> Z:
        """Map (..., count) to (..., count)."""
        return apply_linear(self.scale, z)


class Cosines(Module):
    """The features cos(kπx_i), k = 1 … modes, whose normal derivative vanishes at every face."""

    def __init__(self, count: int, modes: int):
        super().__init__()
        self.outputs = count * modes

        def compute() -> Tensor:
            wave_numbers = math.pi * torch.arange(1.0, modes + 1)
            return torch.kron(torch.eye(count), wave_numbers[:, None])

        self.phases = _build_fixed_linear((count * modes, count), compute)

    def forward(self, z: Z) -> Z:
        """Map (..., count) to (..., count · modes)."""
        return cosine(apply_linear(self.phases, z))


class RandomFourier(Module):
    """The features (cos 2πBv, sin 2πBv), B fixed with N(0, σ²) entries."""

    def __init__(self, count: int, modes: int, sigma: float):
        super().__init__()
        self.outputs = 2 * modes
        self.phases = _build_fixed_linear(
            (modes, count), lambda: 2 * math.pi * sigma * torch.randn(modes, count)
        )

    def forward(self, z: Z) -> Z:
        """Map (..., count) to (..., 2 · modes)."""
        phases = apply_linear(self.phases, z)
        return concatenate([cosine(phases), sine(phases)])


Features = Coordinates | Cosines | RandomFourier


class JointTrunk(_Network):
    """A network of the features of x and t together."""

    def __init__(self, settings: Trunk, dimension: int, rank: int):
        super().__init__()
        self.space, self.time = _build_features(settings, dimension)
        inputs = self.space.outputs + self.time.outputs
        self.network = NETWORKS[settings.network](inputs, settings.width, settings.depth, rank)
        self.dimension = dimension

    @property
    def output(self) -> Linear:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The last layer, width to rank."""
        return self.network.output  # pyright: ignore[reportReturnType]

    def features(self, z: Z) -> Z:
        """Map (x, t), rows (..., d + 1), to the input of the last layer, (..., width)."""
        space = self.space(select_columns(z, 0, self.dimension))
        time = self.time(select_columns(z, self.dimension))
        return self.network.features(concatenate([space, time]))


class SeparableTrunk(_Network):
    """The product X(x) ⊙ τ(t) of two tanh networks: the paper's Fourier-feature trunk."""

    def __init__(self, settings: Trunk, dimension: int, rank: int):
        super().__init__()
        self.space, self.time = _build_features(settings, dimension)
        self.stacks = ModuleList(
            MLP(part.outputs, settings.width, settings.depth - 1, settings.width)
            for part in (self.space, self.time)
        )
        self.output = build_linear(settings.width, rank)
        self.dimension = dimension

    def features(self, z: Z) -> Z:
        """Map (x, t), rows (..., d + 1), to the input of the last layer, (..., width)."""
        d = self.dimension
        space, time = self.stacks
        return space(self.space(select_columns(z, 0, d))) * time(self.time(select_columns(z, d)))


def build_trunk(settings: Trunk, dimension: int, rank: int) -> JointTrunk | SeparableTrunk:
    """Return a trunk with random weights."""
    trunk = SeparableTrunk if settings.network == "separable" else JointTrunk
    return trunk(settings, dimension, rank)


def _build_features(settings: Trunk, dimension: int) -> tuple[Features, Features]:
    """Return the features of x and of t."""
    if settings.features == "cosines":
        return Cosines(dimension, settings.modes), Coordinates(1)
    if settings.features == "fourier":
        modes, sigma = settings.modes, settings.sigma
        return RandomFourier(dimension, modes, sigma), RandomFourier(1, modes, sigma)
    return Coordinates(dimension), Coordinates(1)


def _build_fixed_linear(
    shape: tuple[int, int],
    weight: Callable[[], Tensor],
    bias: Callable[[], Tensor] | None = None,
) -> Linear:
    """Return a layer with weights that training does not change.

    They are not computed on the device "meta", where torch would import its compiler.
    """
    outputs, inputs = shape
    values = None if torch.empty(0).is_meta else weight()
    layer = Linear(inputs, outputs, bias=bias is not None)
    if values is not None:
        layer.weight.data = values
        if bias is not None:
            layer.bias.data = bias()
    return layer.requires_grad_(False)


# ---- densities at sensors


def read_sensors(
    densities: Sequence[Density], sensors: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Sample densities on one grid at sensors^d cell centres of the cube around its box.

    Returns:
        One tensor (B, sensors^d) for each density, relative to the uniform density of the cube.
    """
    grid, d = densities[0].grid, densities[0].grid.dimension
    values = torch.cat([density.tensor.reshape(-1, *grid.shape) for density in densities])
    relative = unit_box(grid).to_density(values).to(dtype)
    samples = sample_spline(relative, grid, [sensors] * d, centred=True).flatten(1)
    return samples.chunk(len(densities))


class CosineModes(Module):
    """The cosine series through the values at sensors^d cell centres, cut off at modes^d terms.

    μ(x) = Σ_k c_k Π_i cos(k_i πx_i), with k_i < modes.
    """

    max_sensors = 4096  # the transform is a matrix of sensors² numbers

    def __init__(self, dimension: int, sensors: int, modes: int):
        super().__init__()
        self.shape = (sensors,) * dimension
        self.modes = modes

    def forward(self, values: Tensor) -> Tensor:
        """Map values (B, sensors^d) to coefficients c, (B, modes^d)."""
        series = values.reshape(-1, *self.shape)
        matrix = cosine_transform(self.shape[0])[: self.modes].T.to(values)
        for axis in range(1, len(self.shape) + 1):
            series = (series.movedim(axis, -1) @ matrix).movedim(-1, axis)
        return series.flatten(1)

    def evaluate_basis(self, z: Z) -> Z:
        """Map (x, t), rows (..., d + 1), to Π_i cos(k_i πx_i), (..., modes^d)."""
        product, *others = (
            self._evaluate_axis(select_columns(z, i, i + 1)) for i in range(len(self.shape))
        )
        for other in others:
            product = _outer_product(product, other)
        return product

    def _evaluate_axis(self, x: Z) -> Z:
        """Map one coordinate (..., 1) to cos(kπx), (..., modes)."""
        kappa = frequencies(self.modes)
        if isinstance(x, Tensor):
            return torch.cos(x * kappa.to(x))
        return cosine(x.like(x.data * kappa.to(x.data)))


class LowModes(CosineModes):
    """The first cosine modes of the sensor values, scaled to the size of the sensor values."""

    def forward(self, values: Tensor) -> Tensor:
        """Map values (B, sensors^d) to (B, modes^d)."""
        return math.prod(self.shape) ** 0.5 * super().forward(values)


def _outer_product(a: Z, b: Z) -> Z:
    """Return all products of entries, (..., K) and (..., L) to (..., KL)."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (a[..., :, None] * b[..., None, :]).flatten(-2)
    assert isinstance(a, Jet) and isinstance(b, Jet)
    products = a.like(a.data[..., :, None]) * b.like(b.data[..., None, :])
    return products.like(products.data.flatten(-2))


# ---- DeepONets


@dataclass(frozen=True)
class BranchTrunkSettings(ModelSettings):
    """Settings that the forms with branches and trunks share.

    Attributes:
        dimension: dimension d of the densities.
        sensors: number of cells along each axis at which the branches read the densities.
        rank: p, the number of terms in the sum over k.
        branch: settings of both branches.
        trunk: settings of the trunk.
    """

    dimension: int = 1
    sensors: int = 100
    rank: int = 800
    branch: Branch = field(default_factory=Branch)
    trunk: Trunk = field(default_factory=Trunk)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.rank <= MAX_SIZE, f"rank is {self.rank}; give 1 to {MAX_SIZE}.")
        modes = self.branch.modes
        require(
            0 <= modes <= self.sensors,
            f"branch.modes is {modes}; give 0 to {self.sensors}, the number of sensors.",
        )
        require(
            not modes or self.sensors <= CosineModes.max_sensors,
            f"sensors is {self.sensors}; with branch.modes give at most {CosineModes.max_sensors}.",
        )


class DeepONet(Module):
    """F(μ0, μ1)(x, t) = Σ_{k≤p} B0_k(μ0) · B1_k(μ1) · T_k(x, t)        (paper, eq. 9 and 10).

    The last layer of T is linear, T = Wh + c, so F = (Wᵀb)·h + c·b with b = B0 ⊙ B1: the sum over k
    is computed once per pair, and each point costs one product of `width + 1` numbers.

    Args:
        settings: sizes and kinds of the networks.
        parity: +1 or −1 imposes F(μ0, μ1)(x, t) = ±F(μ1, μ0)(x, 1 − t) by averaging; 0 does not.
        scale: expected size of F, a constant factor.
    """

    def __init__(self, settings: BranchTrunkSettings, parity: int, scale: float):
        super().__init__()
        self.branches = ModuleList(_build_branch(settings) for _ in range(2))
        self.trunk = build_trunk(settings.trunk, settings.dimension, settings.rank)
        self.parity = parity
        self.scale = scale / math.sqrt(settings.rank)

    def coefficients(self, source: Tensor, target: Tensor) -> Tensor:
        """Map sensor values (B, m) of both ends to the coefficients of `basis`, (B, functions)."""
        if not self.parity:
            return self._contract(source, target)
        both = self._contract(torch.cat([source, target]), torch.cat([target, source]))
        pairs = source.shape[0]  # ONNX does not export chunk(2) of a dynamic axis
        forth, back = 0.5 * both[:pairs], 0.5 * both[pairs:]
        return torch.cat([forth, self.parity * back], dim=1)

    def basis(self, z: Z) -> Z:
        """Map (x, t) in the unit box, rows (..., d + 1), to the basis, (..., functions)."""
        forth = append_constant(self.trunk.features(z))
        if not self.parity:
            return forth
        return concatenate([forth, append_constant(self.trunk.features(reverse_time(z)))])

    def _contract(self, source: Tensor, target: Tensor) -> Tensor:
        """Multiply the branches with the last layer of the trunk, (B, width + 1)."""
        first, second = self.branches
        products = self.scale * first(source) * second(target)
        output = self.trunk.output
        return torch.cat([products @ output.weight, products @ output.bias[:, None]], dim=1)


def _build_branch(settings: BranchTrunkSettings) -> Module:
    """Return a network of sensor values, (B, m) to (B, rank), with random weights."""
    branch, d = settings.branch, settings.dimension
    inputs = (branch.modes or settings.sensors) ** d
    network = NETWORKS[branch.network](inputs, branch.width, branch.depth, settings.rank)
    if not branch.modes:
        return network
    return Sequential(LowModes(d, settings.sensors, branch.modes), network)


class HardEndpointDensity(Module):
    """C(x, t) = (1 − t)·μ0(x) + t·μ1(x) + t(1 − t)·F(μ0, μ1)(x, t) with a DeepONet F.

    μ0 and μ1 are the cosine series through their sensor values. So C is still a sum
    Σ_k B0_k·B1_k·T_k as in the paper's eq. 9: in the first terms one branch is a linear map of the
    density and the other is 1.
    """

    def __init__(self, settings: BranchTrunkSettings, parity: int, scale: float):
        super().__init__()
        self.inner = DeepONet(settings, parity, scale)
        self.ends = CosineModes(settings.dimension, settings.sensors, settings.sensors)
        self.dimension = settings.dimension

    @property
    def trunk(self) -> JointTrunk | SeparableTrunk:
        """The trunk of F."""
        return self.inner.trunk

    def coefficients(self, source: Tensor, target: Tensor) -> Tensor:
        """Map standardised sensor values (B, m) to the coefficients of `basis`, (B, functions)."""
        ends = (self.ends(2 * end + 1) for end in (source, target))  # undoes `standardize`
        return torch.cat([self.inner.coefficients(source, target), *ends], dim=1)

    def basis(self, z: Z) -> Z:
        """Map (x, t) in the unit box, rows (..., d + 1), to the basis, (..., functions)."""
        t, rest = (select_columns(way, self.dimension) for way in (z, reverse_time(z)))
        waves = self.ends.evaluate_basis(z)
        return concatenate([t * rest * self.inner.basis(z), rest * waves, t * waves])


def standardize(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Shift and scale unit-box densities to numbers of order one."""
    return (source - 1) / 2, (target - 1) / 2


def combine_cartesian(coefficients: Tensor, basis: Z) -> Z:
    """Evaluate all pairs at all points: (B, functions) and (..., N, functions) to (..., B, N)."""
    if isinstance(basis, Tensor):
        return coefficients @ basis.transpose(-1, -2)
    channels, points, functions = basis.data.shape
    product = coefficients @ basis.data.reshape(-1, functions).T
    return basis.like(product.reshape(-1, channels, points).transpose(0, 1))


def combine_paired(coefficients: Tensor, basis: Jet) -> Jet:
    """Evaluate pair n at point n: (N, functions) and (channels, N, functions) to (channels, N)."""
    return basis.like((coefficients * basis.data).sum(-1))
