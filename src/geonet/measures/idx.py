"""The idx format, in which MNIST and its kin are published: a header with the shape, then numbers.

Two zero bytes, one for the type, one for the number of axes, then every size as four bytes; all of
it big-endian.
"""

from __future__ import annotations

import gzip
import math
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from geonet.errors import FileError
from geonet.files import reading

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CHUNK = 2**20


def read_idx(file: str | Path) -> np.ndarray:
    """The array in an idx file, with the shape and the type that its header says.

    Args:
        file: what to read; gzip if its name ends in .gz, plain otherwise.
    """
    file = Path(file)
    open_file = gzip.open if file.suffix.lower() == ".gz" else open
    with reading(file, "an idx file"), open_file(file, "rb") as stream:
        shape, kind = _header(file, stream)
        size = math.prod(shape) * kind.itemsize
        content = _read_at_most(stream, size + 1)  # one byte more reveals a file that is too long
        if len(content) != size:
            raise FileError(
                f"{file} has {'fewer' if len(content) < size else 'more'} values than the shape "
                f"{shape} that its header says; get the whole file again."
            )
        # an array of a bytearray is writable; torch.from_numpy would warn of one that is not
        numbers = np.frombuffer(content, kind).reshape(shape)
        return numbers.astype(kind.newbyteorder("="), copy=False)


def _header(file: Path, stream: BufferedIOBase) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and the type of the numbers that follow."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise FileError(
            f"{file} begins with the bytes {magic.hex(' ') or 'of nothing'}, which no idx file "
            "does; check that it is the right file."
        )
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise FileError(f"{file} ends within its header; get the whole file again.")
    return tuple(np.frombuffer(sizes, ">u4").tolist()), np.dtype(TYPES[magic[2]])


def _read_at_most(stream: BufferedIOBase, size: int) -> bytearray:
    """Up to `size` bytes, in pieces: memory grows with the file, not with its claims."""
    content = bytearray()
    while piece := stream.read(min(CHUNK, size - len(content))):
        content += piece
    return content
