"""The form "transport": two densities to the potential at t = ½, as cosine series.

A reflection along an axis of the unit box changes the sign of the odd cosine modes of that axis.
The network commutes with these reflections and is odd under the swap of the densities:
u(μ1, μ0) = −u(μ0, μ1), so u(μ, μ) = 0.

Reflections and swap are involutions that commute, so k of them split the features into 2^k classes;
class c is odd under symmetry i if bit i of c is set. A linear map commutes with them if it acts
within each class. A nonlinearity commutes if it acts alike on the 2^k images of a feature, which
are sums and differences of its classes: a Hadamard transform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter, ParameterList
from torch.nn.functional import gelu

from geonet._toml import require
from geonet.density import Density, requires_grad
from geonet.grid import Grid
from geonet.numerics.cosine import cell_centres_1d, cosine_table, frequencies
from geonet.paths import Geodesic
from geonet.solvers.neural.jets import Jet, cosine, make_variables
from geonet.solvers.neural.layers import combine_cartesian, read_sensors, xavier_normal
from geonet.solvers.neural.losses import Batch, Loss, LossSettings, Terms, push_forward_endpoints
from geonet.solvers.neural.model import MAX_SIZE, BasisModel, Header, ModelSettings
from geonet.solvers.neural.transport.certificate import fit_calibration
from geonet.solvers.neural.transport.path import CosineGeodesic
from geonet.solvers.neural.transport.potential import scale_to_injective


@dataclass(frozen=True)
class TransportSettings(ModelSettings):
    """The transport form: both densities to the potential at t = ½, as cosine series.

    Attributes:
        dimension: dimension d of the densities.
        sensors: number of cells along each axis at which the densities are read.
        seen: modes of each density along each axis that the network reads, an even number.
        modes: modes of the potential along each axis, an even number.
        width: features in each of the 2^(d+1) classes of symmetry.
        depth: number of residual blocks.
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
                count > 0 and count % 2 == 0 and count**self.dimension <= MAX_SIZE,
                f"{name} is {count}; give an even number of modes, at most 2^20 in all.",
            )
        require(
            self.seen <= self.sensors,
            f"{self.sensors} sensors cannot resolve {self.seen} modes; give seen ≤ {self.sensors}.",
        )
        require(0 < self.width <= MAX_SIZE, f"width is {self.width}; give 1 to {MAX_SIZE}.")
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
    is_time_independent = True
    n_calibration_densities = 1000
    min_spread: ClassVar[float] = 0.2  # added to the standard deviation by which modes are divided

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
        """Fit mean and scale of the modes to sample densities at the sensors, (N, m).

        The mean of odd modes stays zero; otherwise the network would not commute with reflections.
        """
        modes = self._modes(densities)
        even = parity_classes(self.settings.dimension, self.settings.seen)[0][0]
        self.mean[even] = modes.mean(0)[even]
        self.gain.copy_(1 / (modes.std(0) + self.min_spread))

    def coefficients(self, source: Tensor, target: Tensor) -> tuple[Tensor]:
        """Map unit-box densities at the sensors, (B, m) each, to c, (B, modes^d)."""
        return (self.predict(source, target),)

    def predict(self, source: Tensor, target: Tensor) -> Tensor:
        """Map unit-box densities at the sensors, (B, m) each, to c, (B, modes^d)."""
        s = self.settings
        both = (self._modes(torch.cat([source, target])) - self.mean) * self.gain
        pairs = source.shape[0]  # ONNX does not export chunk(2) of a dynamic axis
        first, second = both[:pairs], both[pairs:]
        order, _ = parity_classes(s.dimension, s.seen)
        halves = torch.stack([first + second, first - second]) / 2  # even and odd in the swap
        sorted_modes = halves.index_select(2, order.flatten().to(source.device))
        inputs = sorted_modes.unflatten(2, order.shape).movedim(2, 1).flatten(0, 1)
        outputs = self.network(inputs).movedim(1, 0).flatten(1)  # (B, modes^d), class by class
        _, inverse = parity_classes(s.dimension, s.modes)
        modes = outputs.index_select(1, inverse.to(source.device))
        return modes * coefficient_scale(s.dimension, s.modes).to(source)

    def basis(self, z: Jet) -> Jet:
        """Return Π_i cos(k_i π x_i) for a jet of `make_variables`, (channels, N, modes^d)."""
        return evaluate_cosine_basis(z, self.settings.modes)

    def evaluate_basis(self, points: Tensor, times: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the basis, (N, modes^d), its gradient and its Hessian at points (N, d)."""
        jet = self.basis(make_variables(points, torch.zeros_like(points[:, 0]), "hessian"))
        return jet.value, jet.gradient, jet.hessian

    def build_loss(self, settings: LossSettings, box: Grid) -> TransportLoss:
        """Return the mismatch of both ends at t = ½ and the fold penalty."""
        return TransportLoss(self, settings)

    def build_path(
        self, source: Density, target: Density, name: str, header: Header
    ) -> CosineGeodesic:
        """Return the path of the network's potential, scaled down if it would fold."""
        coefficients = scale_to_injective(predict_potential(self, source, target))
        return CosineGeodesic(source, target, name, {}, coefficients)

    @classmethod
    def check_training(cls, settings, loss, *, scheme, family, floor, compiled) -> None:
        """Raise ConfigError for loss settings other than the floor, and for other schemes."""
        require(
            loss == LossSettings(floor=loss.floor),
            "the transport form has fixed loss weights; remove all of loss except floor.",
        )
        require(loss.floor > 0, "the transport form needs loss.floor > 0.")
        require(
            scheme == "cartesian", 'the transport form supports sampling.scheme = "cartesian" only.'
        )
        require(not compiled, "the transport form is not compiled; remove compile.")

    def calibrate(self, path: Geodesic, errors: Tensor) -> dict[str, Any]:
        """Return the relation of mismatch and error."""
        assert isinstance(path, CosineGeodesic)
        return {"calibration": fit_calibration(path.certificate.mismatch, errors)._asdict()}

    def freeze(self) -> None:
        """Stack the matrices of every layer."""
        for part in self.modules():
            if isinstance(part, ClassLinear):
                part.freeze()

    def _modes(self, values: Tensor) -> Tensor:
        """Return ∫ μ Π_i cos(k_i π x_i) dx from values at the sensors, (B, seen^d)."""
        s = self.settings
        return values @ analysis_matrix(s.dimension, s.sensors, s.seen, values.dtype).to(
            values.device
        )


class TransportLoss(Loss):
    """The mismatch of both ends, pushed to t = ½, and a fold penalty.

    mismatch = mean (ρ0 − ρ1)² / (ρ0 + ρ1 + floor), the denominator without gradient. By Cauchy and
    Schwarz, times 2 + floor, it bounds the square of ∫|ρ0 − ρ1|; the plain square would mostly
    measure the peaks.
    folds = mean max(0, min_determinant − det(I ∓ ½D²u))², which prevents folds in empty regions.
    """

    min_determinant: ClassVar[float] = 0.05

    def __init__(self, model: TransportNet, settings: LossSettings):
        super().__init__()
        self.model = model
        self.floor = settings.floor
        self.weights = {"mismatch": 1.0, "folds": 1.0}

    def forward(self, batch: Batch) -> Terms:
        """Return the means over all pairs and points."""
        z = make_variables(batch.points, torch.zeros_like(batch.times), "hessian")
        coefficients = self.model.predict(batch.source, batch.target)
        potential = combine_cartesian(coefficients, self.model.basis(z))
        (source, target), determinants = push_forward_endpoints(potential, batch.points, batch.ends)
        scale = (source + target).detach().abs() + self.floor
        folds = [(self.min_determinant - det).clamp(min=0) ** 2 for det in determinants]
        return {
            "mismatch": ((source - target) ** 2 / scale).mean(),
            "folds": (folds[0] + folds[1]).mean(),
        }


def predict_potential(model: TransportNet, source: Density, target: Density) -> Tensor:
    """Return the network's potentials at t = ½ in the unit cube, (B, modes, …)."""
    settings = model.settings
    # Differentiable in the densities, not in the weights.
    with torch.set_grad_enabled(requires_grad(source, target)):
        first, second = read_sensors([source, target], settings.sensors, model.mean.dtype)
        coefficients = model.predict(first, second)
    return coefficients.unflatten(1, (settings.modes,) * settings.dimension)


def evaluate_cosine_basis(z: Jet, modes: int) -> Jet:
    """Return Π_i cos(k_i π x_i), k_i < modes, of the jet of (x, t): (channels, N, modes^d)."""
    # In the precision of the jet, because ONNX would round a double-precision table differently.
    kappa = math.pi * torch.arange(modes, dtype=z.data.dtype, device=z.data.device)
    product, *factors = (cosine(z.like(z.data[..., i : i + 1] * kappa)) for i in range(z.dimension))
    for factor in factors:
        pairs = z.like(product.data[..., :, None]) * z.like(factor.data[..., None, :])
        product = z.like(pairs.data.flatten(-2))
    return product


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def analysis_matrix(dimension: int, sensors: int, modes: int, dtype: torch.dtype) -> Tensor:
    """Return (sensors^d, modes^d): from sensor values to means of value · Π cos(k_i π x_i)."""
    (table,) = cosine_table(cell_centres_1d(sensors), frequencies(modes), 1)
    product = matrix = table / sensors
    for _ in range(dimension - 1):
        product = torch.kron(product, matrix)
    return product.to(dtype)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def parity_classes(dimension: int, modes: int) -> tuple[Tensor, Tensor]:
    """Return the modes k sorted by parity, (2^d, (modes/2)^d), and the inverse permutation.

    Bit i of a class is the parity of k along axis i.
    """
    k = _wave_vectors(dimension, modes)
    parities = ((k % 2) * 2 ** torch.arange(dimension, device="cpu")).sum(-1)
    order = parities.argsort(stable=True)
    return order.reshape(2**dimension, -1), order.argsort()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def coefficient_scale(dimension: int, modes: int) -> Tensor:
    """Return the expected size of c_k in the unit box, (modes^d,)."""
    return 0.1 / (1 + (_wave_vectors(dimension, modes) ** 2).sum(-1)) ** 1.5


def _wave_vectors(dimension: int, modes: int) -> Tensor:
    """Return all k, the last axis fastest, (modes^d, d)."""
    axis = torch.arange(modes, device="cpu")
    return torch.cartesian_prod(*[axis] * dimension).reshape(-1, dimension)


# ---- equivariant network


class ClassLinear(Module):
    """One matrix per class: (classes, B, inputs) to (classes, B, outputs)."""

    def __init__(self, classes: int, inputs: int, outputs: int):
        super().__init__()
        # Separate tensors, because SOAP preconditions matrices.
        self.weights = ParameterList(
            xavier_normal(torch.empty(inputs, outputs)) for _ in range(classes)
        )
        self._frozen: Tensor | None
        self.register_buffer("_frozen", None, persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """Apply one matrix product per class."""
        return torch.bmm(z, self.stack())

    def stack(self) -> Tensor:
        """Return the matrices as one tensor, (classes, inputs, outputs)."""
        return torch.stack(list(self.weights)) if self._frozen is None else self._frozen

    def freeze(self) -> None:
        """Stack the matrices once, for inference."""
        self._frozen = self.stack().detach()


class ImageGELU(Module):
    """GELU of the images under all symmetries, plus a bias common to all images."""

    def __init__(self, width: int):
        super().__init__()
        self.bias = Parameter(torch.zeros(width))

    def forward(self, z: Tensor) -> Tensor:
        """Map (classes, B, width) to the same shape."""
        transform = hadamard_matrix(len(z), z.dtype).to(z.device)
        images = (transform @ z.flatten(1)).view(z.shape)
        return (transform @ _gelu(images + self.bias).flatten(1)).view(z.shape)


def _gelu(z: Tensor) -> Tensor:
    """Return ½z(1 + erf(z/√2)), with less overhead per call than torch's own."""
    if torch.is_grad_enabled():
        return gelu(z)
    return torch.erf(z * math.sqrt(0.5)).add_(1).mul_(z).mul_(0.5)


class SymmetricMLP(Module):
    """Residual blocks z + W·gelu(z) and a linear skip connection from input to output.

    Args:
        symmetries: number k of symmetries; there are 2^k classes.
        inputs: numbers per class.
        width: features per class.
        depth: blocks.
        outputs: numbers per class of the output.
        output_classes: the classes of the output.
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
        """Map (classes, B, inputs) to (output classes, B, outputs)."""
        *activations, last = self.activations
        z = self.first(x)
        matrices = [block.stack() for block in self.blocks if isinstance(block, ClassLinear)]
        for activation, matrix in zip(activations, matrices, strict=True):
            z = torch.baddbmm(z, activation(z), matrix)
        kept = self.output_classes
        return self.output(last(z)[kept]) + self.direct(x[kept])


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def hadamard_matrix(size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the matrix of entries (−1)^b/√size, b the number of bits that i and j share."""
    numbers = range(size)
    signs = [[(-1.0) ** (i & j).bit_count() for j in numbers] for i in numbers]
    exact = torch.tensor(signs, dtype=torch.float64, device="cpu") / math.sqrt(size)
    return exact.to(dtype)
