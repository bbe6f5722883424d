"""A network that commutes with the symmetries of its problem, whatever its weights.

The symmetries are reflections: of the box along each of its axes, and the swap of the two ends of a
path. Each is its own inverse and they commute, so k of them split every feature into 2^k classes,
even or odd under each one; class c is odd under symmetry i where bit i of c is set. A linear map
commutes with them if it acts within each class. A nonlinear one commutes if it acts alike on the
2^k images of a feature under the symmetries, and images are sums and differences of classes: a
Hadamard transform.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter, ParameterList
from torch.nn.functional import gelu

from geonet.operators.initial import glorot


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
