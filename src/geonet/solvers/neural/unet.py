"""The U-Net of the cascade: from the residual at t = ½ to a correction of the potential.

It commutes with the reflections of a 2D or 3D grid and with permutations of its axes: the weights
of a 3^d kernel depend only on the number of axes along which a cell is off the centre. It is odd in
the residual, f(r) − f(−r), so that swapping the ends changes the sign of the output. Lengths are in
cells, so that the same network applies on every grid.

In 2D the frozen network runs in unet.c if that is compiled, without torch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, repeat

import torch
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter
from torch.nn.functional import avg_pool2d, avg_pool3d, conv2d, conv3d, hardswish, interpolate, pad

from geonet.numerics import kernels

INPUTS = 6  # channels that `make_inputs` makes of three fields


def _draw_weights(inputs: int, outputs: int, scale: float) -> Tensor:
    """Return normal random numbers; on the device "meta" only memory without contents.

    Random numbers on that device would import torch's compiler, which takes seconds.
    """
    weights = torch.empty(inputs, outputs)
    return weights if weights.is_meta else weights.normal_().mul_(scale)


class SymmetricConv(Module):
    """A convolution with 3^d cells and zero padding: (B, inputs, *cells) to (B, outputs, *cells).

    The weight is a matrix ((d + 1)·inputs, outputs), because SOAP preconditions matrices. The
    weights of all inputs at the centre come first, those at the corners last.
    """

    def __init__(self, inputs: int, outputs: int, gain: float, dimension: int = 2):
        super().__init__()
        self.dimension = dimension
        scale = gain / math.sqrt(3**dimension * inputs)
        self.weight = Parameter(_draw_weights((dimension + 1) * inputs, outputs, scale))
        self.bias = Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Apply one convolution with the full kernel."""
        parts = self.weight.T.unflatten(1, (self.dimension + 1, -1)).unbind(1)[::-1]
        for axis in range(self.dimension):  # each pass adds an axis and merges neighbouring parts
            parts = [torch.stack([off, on, off], -1 - axis) for off, on in pairwise(parts)]
        return _convolve(x, _to_channels_last(parts[0]), self.bias, padding=1)


class Pointwise(Module):
    """A matrix applied in every cell: (B, inputs, *cells) to (B, outputs, *cells)."""

    def __init__(self, inputs: int, outputs: int, gain: float = 1.0):
        super().__init__()
        self.weight = Parameter(_draw_weights(inputs, outputs, gain / math.sqrt(inputs)))

    def forward(self, x: Tensor) -> Tensor:
        """Apply one matrix product."""
        return _convolve(x, self.weight.T[(..., *(None,) * (x.ndim - 2))])


class ResidualBlocks(Module):
    """`count` residual blocks x + W·hardswish(x)."""

    def __init__(self, width: int, count: int, dimension: int = 2):
        super().__init__()
        self.convolutions = ModuleList(
            SymmetricConv(width, width, 0.7, dimension) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, width, *cells) to the same shape."""
        for convolution in self.convolutions:
            x = x + convolution(hardswish(x))
        return x


class SymmetricUNet(Module):
    """A U-Net from residual and weight of the Newton equation to a correction of the potential.

    Each grid has half as many cells along each axis as the previous one. Its input are the means of
    the fields over its cells, its output are spline coefficients, and all outputs are added up.

    Args:
        widths: features on each grid, the finest first.
        down: convolutions on each grid on the way to coarser ones.
        up: convolutions on each grid on the way back.
        dimension: dimension of the grids, 2 or 3.
    """

    def __init__(
        self, widths: Sequence[int], down: Sequence[int], up: Sequence[int], dimension: int = 2
    ):
        super().__init__()
        steps = list(pairwise(widths))
        self.dimension = dimension
        self.enter = ModuleList(SymmetricConv(INPUTS, width, 1.4, dimension) for width in widths)
        self.down = ModuleList(map(ResidualBlocks, widths, down, repeat(dimension)))
        self.fall = ModuleList(Pointwise(fine, coarse) for fine, coarse in steps)
        self.rise = ModuleList(Pointwise(coarse, fine) for fine, coarse in steps)
        self.up = ModuleList(map(ResidualBlocks, widths, up, repeat(dimension)))
        self.head = ModuleList(Pointwise(width, 1, 0.01) for width in widths)
        self.halvings = len(steps)
        self._compiled: CompiledUNet | None = None

    def freeze(self) -> None:
        """Copy the weights for the compiled kernel, which exists in 2D only."""
        if self.dimension == 2:
            self._compiled = CompiledUNet(self)

    def forward(self, residual: Tensor, weight: Tensor, poisson: Tensor) -> Tensor:
        """Map fields (B, *cells) to spline coefficients (B, *cells), in squared cells.

        Args:
            residual: ρ1 − ρ0, relative to the uniform density.
            weight: trace A/d, likewise.
            poisson: −Δ⁻¹ of the residual, in squared cells.
        """
        if self._compiled is not None and is_available() and not torch.is_grad_enabled():
            return self._compiled(residual, weight, poisson, torch.get_num_threads())
        fields, skipped = torch.stack([residual, weight, poisson], 1), []
        x = self.down[0](self.enter[0](make_inputs(fields, 0)))
        for k in range(self.halvings):
            skipped.append(x)
            fields = coarsen(fields)
            x = self.enter[k + 1](make_inputs(fields, k + 1)) + self.fall[k](coarsen(x))
            x = self.down[k + 1](x)
        x = self.up[-1](x)
        output = self._odd_output(-1, x)
        for k in reversed(range(self.halvings)):
            risen = self.rise[k](hardswish(x))
            x = self.up[k](skipped[k] + interpolate(risen, scale_factor=2, mode="nearest"))
            output = prolong(output) + self._odd_output(k, x)
        return output

    def _odd_output(self, k: int, x: Tensor) -> Tensor:
        """Return the odd part of the output on grid k, (B, *cells)."""
        plus, minus = self.head[k](hardswish(x))[:, 0].chunk(2)
        return plus - minus


def make_inputs(fields: Tensor, halvings: int) -> Tensor:
    """Map residual, weight and Poisson solution, (B, 3, *cells), to (2B, INPUTS, *cells).

    The second half of the batch is the input for swapped ends. All numbers are bounded by
    quotients, which are cheap.
    """
    residual, weight, poisson = fields.split(1, 1)
    cells = poisson / 4**halvings
    odd = [residual / (1 + residual.abs()), residual / (weight + 0.1)]
    odd += [cells / (size + cells.abs()) for size in (1, 8)]
    even = [weight / (weight + size) for size in (0.2, 3)]
    both = torch.cat(
        [torch.cat([*odd, *even], 1), torch.cat([*[-field for field in odd], *even], 1)]
    )
    return _to_channels_last(both)


def prolong(coefficients: Tensor) -> Tensor:
    """Express splines on cells of half the side, in squared cells: (B, *cells) to (B, *2·cells)."""
    mode = "bilinear" if coefficients.ndim == 3 else "trilinear"
    finer = interpolate(coefficients[:, None], scale_factor=2, mode=mode, align_corners=False)
    return 4 * finer[:, 0]


def coarsen(fields: Tensor) -> Tensor:
    """Average over cells of twice the side: (B, C, *cells) to (B, C, *cells/2)."""
    return avg_pool2d(fields, 2) if fields.ndim == 4 else avg_pool3d(fields, 2)


def _convolve(x: Tensor, kernel: Tensor, bias: Tensor | None = None, padding: int = 0) -> Tensor:
    convolution = conv2d if x.ndim == 4 else conv3d
    return convolution(x, kernel, bias, padding=padding)


def _to_channels_last(fields: Tensor) -> Tensor:
    """Store the channels of a cell side by side, which makes convolutions twice as fast."""
    last = torch.channels_last if fields.ndim == 4 else torch.channels_last_3d
    return fields.contiguous(memory_format=last)


# ---- unet.c; all arguments are checked here, because the C code checks none

_pointer, _int32, _int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
MAX_LEVELS = 16  # of unet.c


def is_available() -> bool:
    """Return whether the compiled kernel is available and not turned off."""
    return kernels.compatible_library(_declare) is not None


class _Net(ctypes.Structure):
    _fields_ = (
        ("levels", _int32),
        *((name, _int32 * MAX_LEVELS) for name in ("width", "down", "up")),
        ("weights", _pointer),
    )


class CompiledUNet:
    """A frozen `SymmetricUNet` in unet.c, equal up to single-precision rounding.

    The weights are copied; later changes of the network have no effect.

    Attributes:
        version: version of unet.c.
        lanes: outputs of unet.c whose weights are stored side by side.
    """

    version = 1
    lanes = 4

    def __init__(self, net: SymmetricUNet):
        self.widths = tuple(len(_weight(head)) for head in net.head)
        self.halvings = len(self.widths) - 1
        assert 0 < len(self.widths) <= MAX_LEVELS
        self._down = [len(_convolutions(blocks)) for blocks in net.down]
        self._up = [len(_convolutions(blocks)) for blocks in net.up]
        self._weights = torch.cat(_flatten_weights(net, self.widths))

    def __call__(self, residual: Tensor, weight: Tensor, poisson: Tensor, threads: int) -> Tensor:
        """Map fields (B, h, w) to coefficients as `SymmetricUNet`; pairs use up to two threads."""
        fields = [kernels.as_f32(field) for field in (residual, weight, poisson)]
        pairs, *shape = fields[0].shape
        assert all(field.shape == (pairs, *shape) for field in fields)
        assert len(shape) == 2 and all(n > 0 and n % 2**self.halvings == 0 for n in shape)
        assert shape[0] * shape[1] < 2**30 and threads > 0  # C counts cells in 32 bits
        threads = max(1, min(threads, 2 * pairs, 64))
        net, sizes = self._struct(), (_int64 * 3)()
        library = kernels.library(_declare)
        library.geonet_unet_sizes(net, *shape, sizes)
        assert sizes[0] == len(self._weights)
        output = torch.empty_like(fields[0])
        heads = kernels.empty_f32(2 * pairs * sizes[1])
        workspace = kernels.empty_f32(threads * sizes[2])
        addresses = kernels.addresses(*fields, output, heads, workspace)
        library.geonet_unet(net, *addresses, *shape, pairs, threads)
        return output

    def _struct(self) -> _Net:
        """Build the C struct anew for each call: this object can be copied, addresses cannot."""
        counts = ((_int32 * MAX_LEVELS)(*n) for n in (self.widths, self._down, self._up))
        return _Net(len(self.widths), *counts, self._weights.data_ptr())


def _flatten_weights(net: SymmetricUNet, widths: Sequence[int]) -> list[Tensor]:
    """Return all weights in the order in which C reads them.

    Down the grids: `enter` with the matrix of `fall` below its own, then the convolutions. Back up:
    the convolutions, `head`, and `rise`, whose bias is zero.
    """
    parts: list[Tensor] = []
    for k, width in enumerate(widths):
        matrix, bias = _weight(net.enter[k]), net.enter[k].bias
        if k > 0:
            matrix = torch.cat([matrix, _weight(net.fall[k - 1])])
        rows = 3 * INPUTS + (widths[k - 1] if k > 0 else 0)
        parts += _pad_affine(matrix, bias, rows, width)  # pyright: ignore[reportArgumentType]
        parts += _flatten_blocks(net.down[k], width)
    for k in reversed(range(len(widths))):
        parts += _flatten_blocks(net.up[k], widths[k])
        parts.append(_pad_columns(_weight(net.head[k]).T)[0])
        if k > 0:
            bias = torch.zeros(widths[k - 1])
            parts += _pad_affine(_weight(net.rise[k - 1]), bias, widths[k], widths[k - 1])
    return parts


def _flatten_blocks(blocks: Module, width: int) -> list[Tensor]:
    layers = _convolutions(blocks)
    return [p for own in layers for p in _pad_affine(own.weight, own.bias, 3 * width, width)]


def _convolutions(blocks: Module) -> list[SymmetricConv]:
    return list(blocks.convolutions)  # pyright: ignore[reportArgumentType, reportReturnType]


def _weight(layer: Module) -> Tensor:
    return layer.weight  # pyright: ignore[reportReturnType]


def _pad_affine(matrix: Tensor, bias: Tensor, rows: int, columns: int) -> list[Tensor]:
    """Return the matrix as (columns/lanes, rows, lanes) and the bias, padded with zeros."""
    assert matrix.shape == (rows, columns) and bias.shape == (columns,)
    blocks = _pad_columns(matrix).unflatten(1, (-1, CompiledUNet.lanes)).transpose(0, 1)
    return [blocks.flatten(), _pad_columns(bias[None])[0]]


def _pad_columns(matrix: Tensor) -> Tensor:
    """Pad with zero columns to a multiple of the lanes, in single precision."""
    return pad(kernels.as_f32(matrix), (0, -matrix.shape[1] % CompiledUNet.lanes))


@lru_cache(maxsize=8)
def _declare(library: ctypes.CDLL) -> bool:
    """Declare the functions of a library; return whether it was built from this version."""
    constants = [CompiledUNet.version, MAX_LEVELS, INPUTS, CompiledUNet.lanes, ctypes.sizeof(_Net)]
    try:
        array = (_int32 * len(constants)).in_dll(library, "geonet_unet_abi")
    except ValueError:  # older than unet.c
        return False
    if list(array) != constants:
        return False
    net = ctypes.POINTER(_Net)
    library.geonet_unet_sizes.argtypes = [net, _int32, _int32, _pointer]
    library.geonet_unet_sizes.restype = None
    library.geonet_unet.argtypes = [net, *[_pointer] * 6, _int32, _int32, _int64, _int32]
    library.geonet_unet.restype = None
    return True
