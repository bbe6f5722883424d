"""A convolutional network from what is unbalanced halfway to a correction of the potential.

It commutes with the reflections of a grid in 2D or 3D and with any exchange of its axes: the
weights of a kernel, three cells wide, differ only by how many axes they are off its centre along.
It is odd in the residual, so that the swap of the ends changes the sign of the answer: f(r) −
f(−r). Lengths are in cells, so that it does on one grid what it does on another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise, repeat

import torch
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter
from torch.nn.functional import avg_pool2d, avg_pool3d, conv2d, conv3d, hardswish, interpolate

from geonet.fields.compiled import unet as compiled
from geonet.fields.compiled.unet import Affine, CompiledUNet, Layers

INPUTS = 6  # what `shown` makes of three fields
COMPILED = 2  # the dimension for which there is a compiled loop


class SymmetricConv(Module):
    """A convolution of 3^d cells, zero outside: (B, inputs, *cells) to (B, outputs, *cells).

    The weight is a matrix, ((d + 1)·inputs, outputs): SOAP preconditions matrices. The weights of
    all inputs at the centre come first, those at the corners last.
    """

    def __init__(self, inputs: int, outputs: int, gain: float, dimension: int = 2):
        super().__init__()
        self.dimension = dimension
        scale = gain / math.sqrt(3**dimension * inputs)
        self.weight = Parameter(scale * torch.randn((dimension + 1) * inputs, outputs))
        self.bias = Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """One convolution with the whole kernel."""
        kernels = self.weight.T.unflatten(1, (self.dimension + 1, -1)).unbind(1)[::-1]
        for axis in range(self.dimension):  # each has one axis more and there is one less of them
            kernels = [torch.stack([off, on, off], -1 - axis) for off, on in pairwise(kernels)]
        return _convolved(x, _channels_last(kernels[0]), self.bias, padding=1)


class Pointwise(Module):
    """A matrix at every cell: (B, inputs, *cells) to (B, outputs, *cells)."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0):
        super().__init__()
        self.weight = Parameter(gain / math.sqrt(inputs) * torch.randn(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """One product of matrices."""
        return _convolved(x, self.weight.T[(..., *(None,) * (x.ndim - 2))])


class Residuals(Module):
    """x + W·hardswish(x), several times."""

    def __init__(self, width: int, count: int, dimension: int = 2):
        super().__init__()
        self.convolutions = ModuleList(
            SymmetricConv(width, width, 0.7, dimension) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, *cells) to the same."""
        for convolution in self.convolutions:
            x = x + convolution(hardswish(x))
        return x


class SymmetricUNet(Module):
    """Residual and weight of the equation halfway to a correction of the potential.

    Every grid, each of half the cells an axis, is shown the fields' means over its cells, and
    answers with spline coefficients of its own; the finer ones add detail to the coarser ones'.

    Args:
        widths: features on each grid, the finest first.
        down: convolutions on each grid on the way to coarser ones.
        up: and on the way back.
        dimension: of the grids, 2 or 3.
    """

    def __init__(
        self, widths: Sequence[int], down: Sequence[int], up: Sequence[int], dimension: int = 2
    ):
        super().__init__()
        steps, everywhere = list(pairwise(widths)), repeat(dimension)
        self.dimension = dimension
        self.enter = ModuleList(SymmetricConv(INPUTS, width, 1.4, dimension) for width in widths)
        self.down = ModuleList(map(Residuals, widths, down, everywhere))
        self.fall = ModuleList(Pointwise(fine, coarse) for fine, coarse in steps)
        self.rise = ModuleList(Pointwise(coarse, fine) for fine, coarse in steps)
        self.up = ModuleList(map(Residuals, widths, up, everywhere))
        self.head = ModuleList(Pointwise(width, 1, 0.01) for width in widths)
        self.halvings = len(steps)
        self._compiled: CompiledUNet | None = None

    def freeze(self) -> None:
        """Hand the weights to the compiled loop once and for all: nothing will change them.

        In 3D there is none, and torch goes on answering.
        """
        if self.dimension == COMPILED:
            self._compiled = CompiledUNet(layers_of(self))

    def forward(self, residual: Tensor, weight: Tensor, solved: Tensor) -> Tensor:
        """Fields (B, *cells) to coefficients (B, *cells), in squared cells.

        Args:
            residual: ρ1 − ρ0, relative to the uniform density.
            weight: trace A/d, likewise.
            solved: −Δ⁻¹ of the residual, in squared cells.
        """
        if self._compiled is not None and compiled.available() and not torch.is_grad_enabled():
            return self._compiled(residual, weight, solved, torch.get_num_threads())
        fields, passed = torch.stack([residual, weight, solved], 1), []
        x = self.down[0](self.enter[0](shown(fields, 0)))
        for k in range(self.halvings):
            passed.append(x)
            fields = coarsened(fields)
            x = self.enter[k + 1](shown(fields, k + 1)) + self.fall[k](coarsened(x))
            x = self.down[k + 1](x)
        x = self.up[-1](x)
        answer = self._answer(-1, x)
        for k in reversed(range(self.halvings)):
            risen = self.rise[k](hardswish(x))
            x = self.up[k](passed[k] + interpolate(risen, scale_factor=2, mode="nearest"))
            answer = halved(answer) + self._answer(k, x)
        return answer

    def _answer(self, k: int, x: Tensor) -> Tensor:
        """The odd part of what the k-th grid says, (B, *cells)."""
        plus, minus = self.head[k](hardswish(x))[:, 0].chunk(2)
        return plus - minus


def layers_of(net: SymmetricUNet) -> Layers:
    """The weights as `CompiledUNet` takes them."""

    def affine(layers: Iterable[Module]) -> list[Affine]:
        return [Affine(x.weight, x.bias) for x in layers if isinstance(x, SymmetricConv)]

    def chains(layers: Iterable[Module]) -> list[list[Affine]]:
        return [affine(x.convolutions) for x in layers if isinstance(x, Residuals)]

    def matrices(layers: Iterable[Module]) -> list[Tensor]:
        return [x.weight for x in layers if isinstance(x, Pointwise)]

    fall, rise, head = matrices(net.fall), matrices(net.rise), matrices(net.head)
    return Layers(affine(net.enter), chains(net.down), fall, rise, chains(net.up), head)


def shown(fields: Tensor, halvings: int) -> Tensor:
    """What the network sees of residual, weight and solved, (B, 3, *cells): (2B, INPUTS, *cells).

    The second half is what it would see after a swap of the ends. All is squashed by quotients,
    which cost little.
    """
    residual, weight, solved = fields.split(1, 1)
    cells = solved / 4**halvings
    odd = [residual / (1 + residual.abs()), residual / (weight + 0.1)]
    odd += [cells / (size + cells.abs()) for size in (1, 8)]
    even = [weight / (weight + size) for size in (0.2, 3)]
    both = torch.cat(
        [torch.cat([*odd, *even], 1), torch.cat([*[-field for field in odd], *even], 1)]
    )
    return _channels_last(both)


def halved(coefficients: Tensor) -> Tensor:
    """The same spline on cells of half the side, in their square: (B, *cells) to (B, *2·cells)."""
    mode = "bilinear" if coefficients.ndim == 3 else "trilinear"
    finer = interpolate(coefficients[:, None], scale_factor=2, mode=mode, align_corners=False)
    return 4 * finer[:, 0]


def coarsened(fields: Tensor) -> Tensor:
    """Means over cells of twice the side: (B, C, *cells) to (B, C, *cells/2)."""
    return avg_pool2d(fields, 2) if fields.ndim == 4 else avg_pool3d(fields, 2)


def _convolved(x: Tensor, kernel: Tensor, bias: Tensor | None = None, padding: int = 0) -> Tensor:
    convolution = conv2d if x.ndim == 4 else conv3d
    return convolution(x, kernel, bias, padding=padding)


def _channels_last(fields: Tensor) -> Tensor:
    """Fields (B, C, *cells) with the numbers of one cell side by side: twice as fast."""
    last = torch.channels_last if fields.ndim == 4 else torch.channels_last_3d
    return fields.contiguous(memory_format=last)
