"""The operator of the transport form: two densities to the potential at t = ½, a cosine series.

Both sides are cosine series on the unit box, so a reflection along an axis changes the sign of the
odd modes of that axis, and nothing else. The network commutes with these reflections, and it is odd
under the swap of the densities: u(μ1, μ0) = −u(μ0, μ1), so that u(μ, μ) = 0.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import Module

from geonet.operators.architecture import Transport
from geonet.operators.jets import Jet, cosine
from geonet.operators.symmetric import SymmetricMLP

FAINT = 0.2  # modes whose spread is below are not blown up to the size of the others
POTENTIAL_SCALE = 0.1  # of the lowest modes of u in the unit box


class TransportNet(Module):
    """(μ0, μ1) ↦ c with u(x) = Σ_k c_k Π_i cos(k_i π x_i), the potential at t = ½."""

    mean: Tensor
    gain: Tensor

    def __init__(self, settings: Transport):
        super().__init__()
        self.settings = settings
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
    def standardise(self, densities: Tensor) -> None:
        """Take mean and spread of the modes from typical densities at the sensors, (N, m).

        Odd modes keep the mean zero: with any other the network would not commute with reflections.
        """
        modes = self._modes(densities)
        even = classes(self.settings.dimension, self.settings.seen)[0][0]
        self.mean[even] = modes.mean(0)[even]
        self.gain.copy_(1 / (modes.std(0) + FAINT))

    def coefficients(self, source: Tensor, target: Tensor, blur: float = 0.0) -> Tensor:
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

    def _modes(self, values: Tensor) -> Tensor:
        """∫ μ Π_i cos(k_i π x_i) dx from values at the sensors, (B, seen^d)."""
        s = self.settings
        return values @ analysis(s.dimension, s.sensors, s.seen, values.dtype).to(values.device)


def cosine_products(z: Jet, modes: int) -> Jet:
    """Π_i cos(k_i π x_i), k_i < modes, of the jet of (x, t): (channels, N, modes^d)."""
    frequencies = math.pi * torch.arange(modes, dtype=z.data.dtype, device=z.data.device)
    product, *factors = (
        cosine(z.like(z.data[..., i : i + 1] * frequencies)) for i in range(z.dimension)
    )
    for factor in factors:
        pairs = z.like(product.data[..., :, None]) * z.like(factor.data[..., None, :])
        product = z.like(pairs.data.flatten(-2))
    return product


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def analysis(dimension: int, sensors: int, modes: int, dtype: torch.dtype) -> Tensor:
    """(sensors^d, modes^d): the means over the sensors of cos(k_1 π x_1)⋯cos(k_d π x_d)."""
    centres = (torch.arange(sensors, dtype=torch.float64, device="cpu") + 0.5) / sensors
    frequencies = math.pi * torch.arange(modes, dtype=torch.float64, device="cpu")
    matrix = torch.cos(centres[:, None] * frequencies) / sensors
    product = matrix
    for _ in range(dimension - 1):
        product = torch.kron(product, matrix)
    return product.to(dtype)


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def classes(dimension: int, modes: int) -> tuple[Tensor, Tensor]:
    """Modes k sorted by the parities of k_1 … k_d: indices (2^d, (modes/2)^d), and the way back.

    Bit i of a class is the parity of k along axis i.
    """
    k = _modes(dimension, modes)
    parities = ((k % 2) * 2 ** torch.arange(dimension, device="cpu")).sum(-1)
    order = parities.argsort(stable=True)
    return order.reshape(2**dimension, -1), order.argsort()


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def decay(dimension: int, modes: int) -> Tensor:
    """The size that c_k is expected to have, (modes^d,)."""
    return POTENTIAL_SCALE / (1 + (_modes(dimension, modes) ** 2).sum(-1)) ** 1.5


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def softening(dimension: int, modes: int, blur: float) -> Tensor:
    """By what a heat flow of standard deviation `blur` multiplies each mode, (modes^d,)."""
    return torch.exp(-0.5 * (math.pi * blur * _modes(dimension, modes)).square().sum(-1))


def _modes(dimension: int, modes: int) -> Tensor:
    """All k, the last axis fastest, (modes^d, d)."""
    axis = torch.arange(modes, device="cpu")
    return torch.cartesian_prod(*[axis] * dimension).reshape(-1, dimension)
