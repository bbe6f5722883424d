"""A convolutional network from what is unbalanced halfway to a correction of the potential.

It commutes with the reflections of a grid in 2D or 3D and with any exchange of its axes: the
weights of a kernel, three cells wide, differ only by how many axes they are off its centre along.
It is odd in the residual, so that the swap of the ends changes the sign of the answer: f(r) −
f(−r). Lengths are in cells, so that it does on one grid what it does on another.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import combinations, pairwise, repeat
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, ModuleList, Parameter
from torch.nn.functional import avg_pool2d, avg_pool3d, conv2d, conv3d, hardswish, interpolate, pad

from geonet.numerics import kernels as loader

# ---- unet.c, where pip could compile it: the network of `operators.symmetric_unet`, without torch.
#
# Everything that is handed over is checked here: C looks at nothing but addresses.


VERSION = 1  # of unet.c
MOST_LEVELS = 16  # of unet.c
INPUTS_UNET = 6  # of unet.c: what a grid is shown of three fields
TAPS = 3  # of unet.c: weights of a symmetric kernel of 3×3
OUTS = 4  # of unet.c: outputs whose weights stand side by side
MOST_THREADS = 64
MOST = 2**30  # cells of a field: C counts rows and columns in 32 bits

_pointer, _whole, _long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


def available() -> bool:
    """Whether the compiled loops are there and not turned off."""
    return loader.fitting(_declared) is not None


class Affine(NamedTuple):
    """x ↦ Wᵀx + b: matrix (inputs, outputs) and bias (outputs,).

    A convolution has TAPS·inputs rows: the weights of all inputs at its centre, then those at its
    edges, then those at its corners.
    """

    matrix: Tensor
    bias: Tensor


class Layers(NamedTuple):
    """The layers of a network, each by grid and the finest first.

    Attributes:
        enter: convolutions of INPUTS planes.
        down: convolutions on the way to coarser grids, any number a grid.
        fall: matrices (finer, coarser) to the next coarser grid, one fewer than grids.
        rise: matrices (coarser, finer) back.
        up: convolutions on the way back, any number a grid.
        head: matrices (width, 1).
    """

    enter: Sequence[Affine]
    down: Sequence[Sequence[Affine]]
    fall: Sequence[Tensor]
    rise: Sequence[Tensor]
    up: Sequence[Sequence[Affine]]
    head: Sequence[Tensor]


class _Net(ctypes.Structure):
    _fields_ = (
        ("levels", _whole),
        *((name, _whole * MOST_LEVELS) for name in ("width", "down", "up")),
        ("weights", _pointer),
    )


class CompiledUNet:
    """What a `SymmetricUNet` does, to rounding of single precision.

    The weights are copied: those of a network that learns on are not followed.
    """

    def __init__(self, layers: Layers):
        self.widths = tuple(len(head) for head in layers.head)
        self.halvings = len(self.widths) - 1
        assert 0 < len(self.widths) <= MOST_LEVELS
        self._down, self._up = [len(k) for k in layers.down], [len(k) for k in layers.up]
        self._weights = torch.cat(_in_order(layers, self.widths))

    def __call__(self, residual: Tensor, weight: Tensor, solved: Tensor, threads: int) -> Tensor:
        """Fields (B, h, w) to coefficients (B, h, w), in squared cells; h and w halve evenly.

        Args:
            residual: ρ1 − ρ0, relative to the uniform density.
            weight: trace A/d, likewise.
            solved: −Δ⁻¹ of the residual, in squared cells.
            threads: how many may work on it; every pair keeps two busy.
        """
        fields = [loader._single(field) for field in (residual, weight, solved)]
        pairs, *shape = fields[0].shape
        assert all(field.shape == (pairs, *shape) for field in fields)
        assert len(shape) == 2 and all(n > 0 and n % 2**self.halvings == 0 for n in shape)
        assert shape[0] * shape[1] < MOST and threads > 0
        threads = max(1, min(threads, 2 * pairs, MOST_THREADS))
        net, sizes = self._net(), (_long * 3)()
        _call().geonet_unet_sizes(net, *shape, sizes)
        assert sizes[0] == len(self._weights)
        answer = torch.empty_like(fields[0])
        heads, rooms = loader._room(2 * pairs * sizes[1]), loader._room(threads * sizes[2])
        addresses = loader._addresses(*fields, answer, heads, rooms)
        _call().geonet_unet(net, *addresses, *shape, pairs, threads)
        return answer

    def _net(self) -> _Net:
        """Afresh: what has addresses cannot be copied, but the object can."""
        numbers = (self.widths, self._down, self._up)
        arrays = ((_whole * MOST_LEVELS)(*entries) for entries in numbers)
        return _Net(len(self.widths), *arrays, self._weights.data_ptr())


def _in_order(layers: Layers, widths: Sequence[int]) -> list[Tensor]:
    """All weights, checked, in the order in which C comes by.

    Down the grids: `enter` with the matrix of `fall` below its own, then the convolutions. Back up:
    the convolutions, `head`, and `rise`, which has no bias: zeros.
    """
    last, found = len(widths) - 1, []
    assert all(len(part) == len(widths) for part in (layers.enter, layers.down, layers.up))
    assert len(layers.fall) == len(layers.rise) == last
    for k, width in enumerate(widths):
        matrix, bias = layers.enter[k]
        if k > 0:
            matrix = torch.cat([matrix, layers.fall[k - 1]])
        finer = widths[k - 1] if k > 0 else 0
        found += _padded(matrix, bias, TAPS * INPUTS_UNET + finer, width)
        found += _convolutions(layers.down[k], width)
    for k in reversed(range(len(widths))):
        found += _convolutions(layers.up[k], widths[k])
        assert layers.head[k].shape == (widths[k], 1)
        found.append(_wider(layers.head[k].T)[0])
        if k > 0:
            matrix = layers.rise[k - 1]
            found += _padded(matrix, matrix.new_zeros(widths[k - 1]), widths[k], widths[k - 1])
    return found


def _convolutions(layers: Sequence[Affine], width: int) -> list[Tensor]:
    return [part for layer in layers for part in _padded(*layer, TAPS * width, width)]


def _padded(matrix: Tensor, bias: Tensor, inputs: int, outputs: int) -> list[Tensor]:
    """The matrix as (outputs/OUTS, inputs, OUTS), and the bias; zeros fill the last block."""
    assert matrix.shape == (inputs, outputs) and bias.shape == (outputs,)
    blocks = _wider(matrix).unflatten(1, (-1, OUTS)).transpose(0, 1)
    return [blocks.flatten(), _wider(bias[None])[0]]


def _wider(matrix: Tensor) -> Tensor:
    """Columns of zeros up to whole OUTS; single precision."""
    return pad(loader._single(matrix), (0, -matrix.shape[1] % OUTS))


def _call() -> ctypes.CDLL:
    return loader.called(_declared)


@lru_cache(maxsize=8)
def _declared(library: ctypes.CDLL) -> bool:
    """Whether a library fits this file; what its functions take is declared."""
    ours = [VERSION, MOST_LEVELS, INPUTS_UNET, OUTS, ctypes.sizeof(_Net)]
    try:
        if list((_whole * len(ours)).in_dll(library, "geonet_unet_made_for")) != ours:
            return False
    except ValueError:  # it is older than unet.c
        return False
    net = ctypes.POINTER(_Net)
    library.geonet_unet_sizes.argtypes = [net, _whole, _whole, _pointer]
    library.geonet_unet_sizes.restype = None
    library.geonet_unet.argtypes = [net, *[_pointer] * 6, _whole, _whole, _long, _whole]
    library.geonet_unet.restype = None
    return True


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
        if self._compiled is not None and available() and not torch.is_grad_enabled():
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


# ---- How strongly potentials bend: where an eigenvalue of ½D²u leaves [−1, 1], a map halfway folds.


FLAT = 1e-12  # added under a root, which has no slope at zero
WITHIN = 1 - 1e-6  # where a cosine is kept, whose angle has no slope at ±1


def steepest(coefficients: Tensor) -> Tensor:
    """The largest |eigenvalue| of ½D²u, (B, *cells), by differences of neighbours.

    Unlike that of `packed.spectral_radius` its gradient is finite everywhere. In 3D it is off by at
    most a thousandth where two eigenvalues are equal.

    Args:
        coefficients: of the splines of u, in squared cells, (B, *cells) in 2D or 3D.
    """
    along, mixed = bends(coefficients)
    return _steepest_2d(along, mixed) if len(along) == 2 else _steepest_3d(along, mixed)


def bends(coefficients: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """½D²u at the cells' centres, (B, *cells) an entry: the diagonal, and the rows above it."""
    axes = range(1, coefficients.ndim)
    c = pad(coefficients[:, None], (1, 1) * len(axes), mode="replicate")[:, 0]
    here, lines = _inside(c), [_inside(c, (axis,)) for axis in axes]
    along = [
        (_after(line, axis) - 2 * here + _before(line, axis)) / 2
        for axis, line in zip(axes, lines, strict=True)
    ]
    return along, [_mixed(c, *pair) for pair in combinations(axes, 2)]


def _mixed(padded: Tensor, first: int, second: int) -> Tensor:
    """½∂²u/∂x_first∂x_second by the four corners."""
    plane = _inside(padded, (first, second))
    up_up, up_down, down_up, down_down = (
        beside(above(plane, first), second)
        for above in (_after, _before)
        for beside in (_after, _before)
    )
    return (up_up - up_down - down_up + down_down) / 8


def _inside(padded: Tensor, but: Collection[int] = ()) -> Tensor:
    """Without the first and the last along every axis but some."""
    for axis in range(1, padded.ndim):
        if axis not in but:
            padded = padded.narrow(axis, 1, padded.shape[axis] - 2)
    return padded


def _after(padded: Tensor, axis: int) -> Tensor:
    return padded.narrow(axis, 2, padded.shape[axis] - 2)


def _before(padded: Tensor, axis: int) -> Tensor:
    return padded.narrow(axis, 0, padded.shape[axis] - 2)


def _steepest_2d(along: list[Tensor], mixed: list[Tensor]) -> Tensor:
    (down, across), (both,) = along, mixed
    middle, apart = (down + across) / 2, (down - across) / 2
    return middle.abs() + (apart**2 + both**2 + FLAT).sqrt()


def _steepest_3d(along: list[Tensor], mixed: list[Tensor]) -> Tensor:
    """By the cosine of a third of an angle, as `packed.spectral_radius` has it.

    With A − m for the matrix less its mean eigenvalue, eigenvalues are m + 2p·cos(θ + 2πk/3), where
    6p² = |A − m|² and det((A − m)/p) = 2·cos 3θ.
    """
    mean = (along[0] + along[1] + along[2]) / 3
    x, y, z = (entry - mean for entry in along)
    xy, xz, yz = mixed
    off = xy**2 + xz**2 + yz**2
    p = ((x**2 + y**2 + z**2 + 2 * off) / 6 + FLAT).sqrt()
    determinant = x * (y * z - yz**2) - xy * (xy * z - yz * xz) + xz * (xy * yz - y * xz)
    angle = (determinant / (2 * p**3)).clamp(-WITHIN, WITHIN).acos() / 3
    top, bottom = mean + 2 * p * angle.cos(), mean + 2 * p * (angle + math.tau / 3).cos()
    return torch.maximum(top, -bottom)
