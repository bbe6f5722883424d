"""The form "transport": two densities to the potential at t = ½, a cosine series.

Both sides are cosine series on the unit box, so a reflection along an axis changes the sign of the
odd modes of that axis, and nothing else. The network commutes with these reflections, and it is odd
under the swap of the densities: u(μ1, μ0) = −u(μ0, μ1), so that u(μ, μ) = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter, ParameterList
from torch.nn.functional import gelu

from geonet._toml import require
from geonet.density import Density
from geonet.grid import Grid
from geonet.numerics.autograd import wanted
from geonet.numerics.cosine import centres, frequencies, waves
from geonet.paths import Geodesic
from geonet.solvers.neural.jets import Jet, cosine, variables
from geonet.solvers.neural.layers import all_sensed, cartesian, glorot
from geonet.solvers.neural.losses import Batch, Loss, LossSettings, Terms, densities_carried
from geonet.solvers.neural.model import LARGEST, BasisModel, Header, ModelSettings
from geonet.solvers.neural.transport.certificate import calibrated
from geonet.solvers.neural.transport.path import MidpointGeodesic
from geonet.solvers.neural.transport.potential import unfolded

# ---- A network that commutes with the symmetries of its problem, whatever its weights.
#
# The symmetries are reflections: of the box along each of its axes, and the swap of the two ends of a
# path. Each is its own inverse and they commute, so k of them split every feature into 2^k classes,
# even or odd under each one; class c is odd under symmetry i where bit i of c is set. A linear map
# commutes with them if it acts within each class. A nonlinear one commutes if it acts alike on the
# 2^k images of a feature under the symmetries, and images are sums and differences of classes: a
# Hadamard transform.


class ClassLinear(Module):
    """A matrix of its own for every class: (classes, B, inputs) to (classes, B, outputs)."""

    def __init__(self, classes: int, inputs: int, outputs: int):
        super().__init__()
        # Apart, not in one tensor: SOAP preconditions matrices.
        self.weights = ParameterList(glorot(torch.empty(inputs, outputs)) for _ in range(classes))
        self._frozen: Tensor | None
        self.register_buffer("_frozen", None, persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """One product of matrices per class."""
        return torch.bmm(z, self.together())

    def together(self) -> Tensor:
        """The matrices as one tensor, (classes, inputs, outputs)."""
        return torch.stack(list(self.weights)) if self._frozen is None else self._frozen

    def freeze(self) -> None:
        """Put the matrices together once and for all: nothing will change them any more."""
        self._frozen = self.together().detach()


class ImageGELU(Module):
    """GELU of the images under all symmetries, plus a bias that is the same for all of them."""

    def __init__(self, width: int):
        super().__init__()
        self.bias = Parameter(torch.zeros(width))

    def forward(self, z: Tensor) -> Tensor:
        """(classes, B, width) to the same."""
        transform = hadamard(len(z), z.dtype).to(z.device)
        images = (transform @ z.flatten(1)).view(z.shape)
        return (transform @ _gelu(images + self.bias).flatten(1)).view(z.shape)


def _gelu(z: Tensor) -> Tensor:
    """½z(1 + erf(z/√2)); torch's own has a price per call that a single pair feels."""
    if torch.is_grad_enabled():
        return gelu(z)
    return torch.erf(z * math.sqrt(0.5)).add_(1).mul_(z).mul_(0.5)


class SymmetricMLP(Module):
    """Residual blocks z + W·gelu(z), and beside them a linear path from input to output.

    Args:
        symmetries: k, how many; there are 2^k classes.
        inputs: numbers per class.
        width: features per class.
        depth: blocks.
        outputs: numbers per class of the output.
        output_classes: the classes that the output has.
    """

    def __init__(
        self,
        symmetries: int,
        inputs: int,
        width: int,
        depth: int,
        outputs: int,
        output_classes: slice,
    ):
        super().__init__()
        classes = 2**symmetries
        kept = len(range(classes)[output_classes])
        self.output_classes = output_classes
        self.first = ClassLinear(classes, inputs, width)
        self.blocks = ModuleList(ClassLinear(classes, width, width) for _ in range(depth))
        self.activations = ModuleList(ImageGELU(width) for _ in range(depth + 1))
        self.output = ClassLinear(kept, width, outputs)
        self.direct = ClassLinear(kept, inputs, outputs)
        for weight in self.direct.weights:
            torch.nn.init.zeros_(weight)

    def forward(self, x: Tensor) -> Tensor:
        """(classes, B, inputs) to (output classes, B, outputs)."""
        *activations, last = self.activations
        z = self.first(x)
        together = [block.together() for block in self.blocks if isinstance(block, ClassLinear)]
        for activation, matrices in zip(activations, together, strict=True):
            z = torch.baddbmm(z, activation(z), matrices)
        kept = self.output_classes
        return self.output(last(z)[kept]) + self.direct(x[kept])


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def hadamard(size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The symmetric orthogonal matrix of entries ±1/√size, (−1) to the bits that i and j share."""
    numbers = range(size)
    signs = [[(-1.0) ** (i & j).bit_count() for j in numbers] for i in numbers]
    exact = torch.tensor(signs, dtype=torch.float64, device="cpu") / math.sqrt(size)
    return exact.to(dtype)


LEAST = 0.05  # determinants below are penalised
FAINT = 0.2  # modes whose spread is below are not blown up to the size of the others
POTENTIAL_SCALE = 0.1  # of the lowest modes of u in the unit box


@dataclass(frozen=True)
class TransportSettings(ModelSettings):
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
        super().__post_init__()
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
        require(0 < self.width <= LARGEST, f"width is {self.width}; give 1 to {LARGEST}.")
        require(0 < self.depth <= 100, f"depth is {self.depth}; give 1 to 100 blocks.")


class TransportNet(BasisModel):
    """(μ0, μ1) ↦ c with u(x) = Σ_k c_k Π_i cos(k_i π x_i), the potential at t = ½."""

    Settings = TransportSettings
    quantities = ("potential",)
    basis_outputs = ("potential", "potential_gradient", "potential_hessian")
    formula = (
        "u(x) = potential_coefficients @ potential.T is the potential at t = 1/2; the "
        "particle at y then is at y + (t - 1/2) grad u(y) at time t"
    )
    timeless = True
    typical = 1000

    settings: TransportSettings
    mean: Tensor
    gain: Tensor

    def __init__(self, settings: TransportSettings):
        super().__init__(settings)
        d = settings.dimension
        self.network = SymmetricMLP(
            symmetries=d + 1,
            inputs=(settings.seen // 2) ** d,
            width=settings.width,
            depth=settings.depth,
            outputs=(settings.modes // 2) ** d,
            output_classes=slice(2**d, None),  # the swap is the highest bit
        )
        self.register_buffer("mean", torch.zeros(settings.seen**d))
        self.register_buffer("gain", torch.ones(settings.seen**d))

    @torch.no_grad()
    def prepare(self, densities: Tensor) -> None:
        """Take mean and spread of the modes from typical densities at the sensors, (N, m).

        Odd modes keep the mean zero: with any other the network would not commute with reflections.
        """
        modes = self._modes(densities)
        even = classes(self.settings.dimension, self.settings.seen)[0][0]
        self.mean[even] = modes.mean(0)[even]
        self.gain.copy_(1 / (modes.std(0) + FAINT))

    def coefficients(self, source: Tensor, target: Tensor) -> tuple[Tensor]:
        """Unit-box densities at the sensors, (B, m) each, to c, (B, modes^d)."""
        return (self.potential(source, target),)

    def potential(self, source: Tensor, target: Tensor, blur: float = 0.0) -> Tensor:
        """Unit-box densities at the sensors, (B, m) each, to c, (B, modes^d).

        With `blur` the network sees both after a heat flow of that standard deviation.
        """
        s = self.settings
        modes = self._modes(torch.cat([source, target]))
        if blur:
            modes = modes * softening(s.dimension, s.seen, blur).to(source)
        both = (modes - self.mean) * self.gain
        pairs = source.shape[0]  # ONNX could not cut by chunk(2)
        first, second = both[:pairs], both[pairs:]
        order, _ = classes(s.dimension, s.seen)
        halves = torch.stack([first + second, first - second]) / 2  # even and odd in the swap
        sorted_modes = halves.index_select(2, order.flatten().to(source.device))
        inputs = sorted_modes.unflatten(2, order.shape).movedim(2, 1).flatten(0, 1)
        outputs = self.network(inputs).movedim(1, 0).flatten(1)  # (B, modes^d), class by class
        _, back = classes(s.dimension, s.modes)
        answer = outputs.index_select(1, back.to(source.device))
        return answer * decay(s.dimension, s.modes).to(source)

    def basis(self, z: Jet) -> Jet:
        """Π_i cos(k_i π x_i) at the points of the jet of `variables`, (channels, N, modes^d)."""
        return cosine_products(z, self.settings.modes)

    def basis_at(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """The basis, (N, modes^d), its gradient and its second derivatives at points (N, d)."""
        jet = self.basis(variables(points, torch.zeros_like(points[:, 0]), "hessian"))
        return jet.value, jet.gradient, jet.hessian

    def objective(self, settings: LossSettings, box: Grid) -> TransportObjective:
        """The mismatch of both ends at t = ½, and folds."""
        return TransportObjective(self, settings)

    def path(self, source: Density, target: Density, name: str, header: Header) -> MidpointGeodesic:
        """The path of the network's potential, scaled down where it would fold."""
        coefficients = unfolded(potential_of(self, source, target))
        return MidpointGeodesic(source, target, name, {}, coefficients)

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """Of `loss`, only `floor` applies: the weights of both terms are fixed."""
        require(
            loss == LossSettings(floor=loss.floor),
            "the transport form fixes its weights: of loss it takes only floor; remove the others.",
        )
        require(loss.floor > 0, "the transport form needs loss.floor > 0.")
        require(
            scheme == "cartesian", 'the transport form takes sampling.scheme = "cartesian" only.'
        )
        require(not compiled, "the transport form is not compiled; remove compile.")

    def calibration(self, path: Geodesic, errors: Tensor) -> dict[str, Any]:
        """What a mismatch means for the error."""
        assert isinstance(path, MidpointGeodesic)
        return {"calibration": calibrated(path.halfway.mismatch, errors)._asdict()}

    def freeze(self) -> None:
        """Put the matrices of every layer together once and for all."""
        for part in self.modules():
            if isinstance(part, ClassLinear):
                part.freeze()

    def _modes(self, values: Tensor) -> Tensor:
        """∫ μ Π_i cos(k_i π x_i) dx from values at the sensors, (B, seen^d)."""
        s = self.settings
        return values @ analysis(s.dimension, s.sensors, s.seen, values.dtype).to(values.device)


class TransportObjective(Loss):
    """What both ends bring to t = ½ should agree, and nothing should fold.

    mismatch = mean (ρ0 − ρ1)² / (ρ0 + ρ1 + floor), the denominator without gradient: by Cauchy and
    Schwarz, times 2 + floor, it bounds the square of ∫|ρ0 − ρ1|; the plain square sees little but
    the peaks.
    folds = mean max(0, LEAST − det(I ∓ ½D²u))²: where there is no mass, nothing else prevents them.
    """

    def __init__(self, model: TransportNet, settings: LossSettings):
        super().__init__()
        self.model = model
        self.floor = settings.floor
        self.weights = {"mismatch": 1.0, "folds": 1.0}

    def forward(self, batch: Batch) -> Terms:
        """The means over all pairs at all points."""
        z = variables(batch.points, torch.zeros_like(batch.times), "hessian")
        coefficients = self.model.potential(batch.source, batch.target)
        potential = cartesian(coefficients, self.model.basis(z))
        (source, target), determinants = densities_carried(potential, batch.points, batch.ends)
        scale = (source + target).detach().abs() + self.floor
        folds = [(LEAST - determinant).clamp(min=0) ** 2 for determinant in determinants]
        return {
            "mismatch": ((source - target) ** 2 / scale).mean(),
            "folds": (folds[0] + folds[1]).mean(),
        }


def potential_of(
    model: TransportNet, source: Density, target: Density, blur: float = 0.0
) -> Tensor:
    """The network's potentials at t = ½ in the unit cube, (B, modes, …), folded or not."""
    settings = model.settings
    with torch.set_grad_enabled(wanted(source, target)):  # in the densities, not in the weights
        first, second = all_sensed([source, target], settings.sensors, model.mean.dtype)
        coefficients = model.potential(first, second, blur)
    return coefficients.unflatten(1, (settings.modes,) * settings.dimension)


def cosine_products(z: Jet, modes: int) -> Jet:
    """Π_i cos(k_i π x_i), k_i < modes, of the jet of (x, t): (channels, N, modes^d)."""
    # In the precision of the jet: ONNX would round a table in double precision otherwise.
    kappa = math.pi * torch.arange(modes, dtype=z.data.dtype, device=z.data.device)
    product, *factors = (cosine(z.like(z.data[..., i : i + 1] * kappa)) for i in range(z.dimension))
    for factor in factors:
        pairs = z.like(product.data[..., :, None]) * z.like(factor.data[..., None, :])
        product = z.like(pairs.data.flatten(-2))
    return product


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def analysis(dimension: int, sensors: int, modes: int, dtype: torch.dtype) -> Tensor:
    """(sensors^d, modes^d): from values at the sensors to means of value × cos(k_1 π x_1)⋯."""
    (table,) = waves(centres(sensors), frequencies(modes), 1)
    product = matrix = table / sensors
    for _ in range(dimension - 1):
        product = torch.kron(product, matrix)
    return product.to(dtype)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def classes(dimension: int, modes: int) -> tuple[Tensor, Tensor]:
    """Modes k sorted by the parities of k_1 … k_d: indices (2^d, (modes/2)^d), and the way back.

    Bit i of a class is the parity of k along axis i.
    """
    k = _wave_vectors(dimension, modes)
    parities = ((k % 2) * 2 ** torch.arange(dimension, device="cpu")).sum(-1)
    order = parities.argsort(stable=True)
    return order.reshape(2**dimension, -1), order.argsort()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def decay(dimension: int, modes: int) -> Tensor:
    """The size that c_k is expected to have, (modes^d,)."""
    return POTENTIAL_SCALE / (1 + (_wave_vectors(dimension, modes) ** 2).sum(-1)) ** 1.5


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def softening(dimension: int, modes: int, blur: float) -> Tensor:
    """By what a heat flow of standard deviation `blur` multiplies each mode, (modes^d,)."""
    return torch.exp(-0.5 * (math.pi * blur * _wave_vectors(dimension, modes)).square().sum(-1))


def _wave_vectors(dimension: int, modes: int) -> Tensor:
    """All k, the last axis fastest, (modes^d, d)."""
    axis = torch.arange(modes, device="cpu")
    return torch.cartesian_prod(*[axis] * dimension).reshape(-1, dimension)
