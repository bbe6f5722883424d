"""The settings of a model: what has to be known to build its networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from geonet.settings import require

LARGEST = 1 << 20  # of any width or count: beyond it is a slip of the keyboard


@dataclass(frozen=True)
class Branch:
    """A branch: sensor values of one density to `rank` numbers."""

    network: Literal["mlp", "modified-mlp"] = "modified-mlp"
    width: int = 150
    depth: int = 7

    def __post_init__(self) -> None:
        _check_size(self.network, self.width, self.depth)


@dataclass(frozen=True)
class Trunk:
    """A trunk: (x, t) in the unit box to `rank` numbers.

    Attributes:
        network: "mlp" and "modified-mlp" see x and t together; "separable" multiplies a stack for
            x with a stack for t (the paper's Fourier-feature trunk).
        features: what the network is given: "coordinates"; "cosines" cos(kπx_i), k ≤ `modes`, even
            at every face of the box; "fourier": cos and sin of `modes` random frequencies with
            standard deviation `sigma`, in periods per box, frozen.
    """

    network: Literal["mlp", "modified-mlp", "separable"] = "modified-mlp"
    width: int = 100
    depth: int = 7
    features: Literal["coordinates", "cosines", "fourier"] = "coordinates"
    modes: int = 8
    sigma: float = 2.5

    def __post_init__(self) -> None:
        _check_size(self.network, self.width, self.depth)
        require(0 < self.modes <= LARGEST, f"modes is {self.modes}; give at least 1.")
        require(self.sigma > 0, f"sigma is {self.sigma}; give a positive number.")


@dataclass(frozen=True)
class Architecture:
    """GeONet: for the density C and the potential H each two branches and a trunk.

    Attributes:
        dimension: d.
        sensors: cells along each axis where the branches read the densities.
        rank: p, the number of terms in the sum over k.
        swap_symmetry: what to build in by averaging with the swapped pair: "density" has
            C(μ0,μ1)(x,t) = C(μ1,μ0)(x,1−t), "both" also H(μ0,μ1)(x,t) = −H(μ1,μ0)(x,1−t), which
            holds for geodesics but not for Schrödinger bridges.
    """

    dimension: int = 1
    sensors: int = 100
    rank: int = 800
    swap_symmetry: Literal["none", "density", "both"] = "none"
    branch: Branch = field(default_factory=Branch)
    trunk: Trunk = field(default_factory=Trunk)
    kind: Literal["geonet"] = "geonet"

    def __post_init__(self) -> None:
        _check_sensors(self.dimension, self.sensors)
        _check_rank(self.rank)


@dataclass(frozen=True)
class DensityOnly:
    """A DeepONet for the density C alone: GeONet without the potential, and so without physics.

    Attributes:
        dimension: d.
        sensors: cells along each axis where the branches read the densities.
        rank: p, the number of terms in the sum over k.
        swap_symmetry: "density" builds in C(μ0,μ1)(x,t) = C(μ1,μ0)(x,1−t) by averaging.
    """

    kind: Literal["deeponet"] = "deeponet"
    dimension: int = 1
    sensors: int = 100
    rank: int = 800
    swap_symmetry: Literal["none", "density"] = "none"
    branch: Branch = field(default_factory=Branch)
    trunk: Trunk = field(default_factory=Trunk)

    def __post_init__(self) -> None:
        _check_sensors(self.dimension, self.sensors)
        _check_rank(self.rank)


@dataclass(frozen=True)
class Transport:
    """The transport form: both densities to the potential at t = ½, as cosine series.

    Attributes:
        dimension: d.
        sensors: cells along each axis where the densities are read.
        seen: modes of each density along each axis that the network sees, an even number.
        modes: of the potential along each axis, an even number.
        width: features in each of the 2^(d+1) classes of symmetry.
        depth: residual blocks.
    """

    kind: Literal["transport"] = "transport"
    dimension: int = 1
    sensors: int = 100
    seen: int = 32
    modes: int = 48
    width: int = 128
    depth: int = 3

    def __post_init__(self) -> None:
        _check_sensors(self.dimension, self.sensors)
        for name in ("seen", "modes"):
            count = getattr(self, name)
            require(
                count > 0 and count % 2 == 0 and count**self.dimension <= LARGEST,
                f"{name} is {count}; give an even number of modes, at most 2^20 in all.",
            )
        require(
            self.seen <= self.sensors,
            f"{self.sensors} sensors cannot tell {self.seen} modes apart; "
            f"give seen ≤ {self.sensors}.",
        )
        require(0 < self.width <= LARGEST, f"width is {self.width}; give at least 1.")
        require(0 < self.depth <= 100, f"depth is {self.depth}; give 1 to 100 blocks.")


def _check_sensors(dimension: int, sensors: int) -> None:
    require(dimension in (1, 2, 3), f"dimension is {dimension}; give 1, 2 or 3.")
    require(2 <= sensors <= 4096, f"sensors is {sensors}; give 2 to 4096.")


def _check_rank(rank: int) -> None:
    require(0 < rank <= LARGEST, f"rank is {rank}; give at least 1.")


def _check_size(network: str, width: int, depth: int) -> None:
    least = 2 if network == "mlp" else 3  # below, gates or stacks would be empty
    require(0 < width <= LARGEST, f"width is {width}; give at least 1.")
    require(least <= depth <= 100, f"depth is {depth}; give {least} to 100 layers to {network}.")
