"""Two branches and a trunk: a function of (x, t) for every pair of densities."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import Module, Sequential

from geonet.operators.architecture import LARGEST, Branch, ModelSettings, Trunk
from geonet.operators.cosine_modes import MOST_MODES, LowModes
from geonet.operators.jets import Jet, Z, backwards, joined, with_constant
from geonet.operators.mlp import MLP, ModifiedMLP
from geonet.operators.trunk import make_trunk
from geonet.settings import require

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
