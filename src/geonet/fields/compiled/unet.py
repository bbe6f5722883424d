"""unet.c, where pip could compile it: the network of `operators.symmetric_unet`, without torch.

Everything that is handed over is checked here: C looks at nothing but addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from geonet.fields.compiled import loops

VERSION = 1  # of unet.c
MOST_LEVELS = 16  # of unet.c
INPUTS = 6  # of unet.c: what a grid is shown of three fields
TAPS = 3  # of unet.c: weights of a symmetric kernel of 3×3
OUTS = 4  # of unet.c: outputs whose weights stand side by side
MOST_THREADS = 64
MOST = 2**30  # cells of a field: C counts rows and columns in 32 bits

_pointer, _whole, _long = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


def available() -> bool:
    """Whether the compiled loops are there and not turned off."""
    return loops.fitting(_declared) is not None


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
        fields = [loops._single(field) for field in (residual, weight, solved)]
        pairs, *shape = fields[0].shape
        assert all(field.shape == (pairs, *shape) for field in fields)
        assert len(shape) == 2 and all(n > 0 and n % 2**self.halvings == 0 for n in shape)
        assert shape[0] * shape[1] < MOST and threads > 0
        threads = max(1, min(threads, 2 * pairs, MOST_THREADS))
        net, sizes = self._net(), (_long * 3)()
        _call().geonet_unet_sizes(net, *shape, sizes)
        assert sizes[0] == len(self._weights)
        answer = torch.empty_like(fields[0])
        heads, rooms = loops._room(2 * pairs * sizes[1]), loops._room(threads * sizes[2])
        addresses = loops._addresses(*fields, answer, heads, rooms)
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
        found += _padded(matrix, bias, TAPS * INPUTS + finer, width)
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
    return pad(loops._single(matrix), (0, -matrix.shape[1] % OUTS))


def _call() -> ctypes.CDLL:
    return loops.called(_declared)


@lru_cache(maxsize=8)
def _declared(library: ctypes.CDLL) -> bool:
    """Whether a library fits this file; what its functions take is declared."""
    ours = [VERSION, MOST_LEVELS, INPUTS, OUTS, ctypes.sizeof(_Net)]
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
