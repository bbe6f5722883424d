"""idx files are read as they are; what is wrong with one is a FileError that names it."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import numpy as np
import pytest
import torch

from experiments.mnist import read_idx
from geonet.errors import FileError

TYPES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
RNG = np.random.default_rng(0)
DIGITS = RNG.integers(0, 256, (3, 4, 5)).astype(np.uint8)


def idx(array, shape=None):
    """The bytes of an idx file; another shape makes its header lie."""
    shape = array.shape if shape is None else shape
    kind = array.dtype.str[1:]
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, TYPES[kind], len(shape), *shape)
    return header + array.astype(f">{kind}").tobytes()


@pytest.fixture(params=["plain", "gzip"])
def write(request, tmp_path):
    """Writes the bytes of an idx file, as they are or compressed."""

    def write(content):
        zipped = request.param == "gzip"
        file = tmp_path / ("digits-idx3-ubyte" + ".gz" * zipped)
        file.write_bytes(gzip.compress(content) if zipped else content)
        return file

    return write


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(7,), (2, 3), (3, 4, 5), (0, 28, 28)])
def test_every_type_and_shape_is_read(write, kind, shape):
    array = (100 * RNG.normal(size=shape)).astype(np.int8).astype(kind)
    found = read_idx(write(idx(array)))
    assert found.dtype == np.dtype(kind) and found.dtype.isnative
    assert found.shape == shape
    assert np.array_equal(found, array)


def test_an_array_of_many_pieces_is_read(write):
    array = RNG.integers(0, 256, (3, 1000, 1000)).astype(np.uint8)
    assert np.array_equal(read_idx(write(idx(array))), array)


def test_torch_takes_the_array_without_a_warning(write):
    assert torch.from_numpy(read_idx(write(idx(DIGITS)))).shape == DIGITS.shape


def test_a_path_may_be_a_string(write):
    assert np.array_equal(read_idx(str(write(idx(DIGITS)))), DIGITS)


# ---- broken files


@pytest.mark.parametrize(
    "start", [b"\1\0\x08\3", b"\0\1\x08\3", b"\0\0\x0a\3", b"\0\0\x08\0", b"\0\0\x08", b"%PDF"]
)
def test_another_start_is_refused(write, start):
    content = start if len(start) < 4 else start + idx(DIGITS)[4:]
    with pytest.raises(FileError, match=f"bytes {start.hex(' ')}, which no idx.*right file"):
        read_idx(write(content))


@pytest.mark.parametrize("length", [4, 5, 15])
def test_a_file_that_ends_within_its_header_is_refused(write, length):
    with pytest.raises(FileError, match="digits-idx3-ubyte.*ends within its header"):
        read_idx(write(idx(DIGITS)[:length]))


@pytest.mark.parametrize("missing", [1, 60])
def test_a_truncated_file_is_refused(write, missing):
    with pytest.raises(FileError, match=r"fewer values than the shape \(3, 4, 5\).*again"):
        read_idx(write(idx(DIGITS)[:-missing]))


@pytest.mark.parametrize("more", [b"\0", b"\0" * 1000])
def test_a_file_that_is_too_long_is_refused(write, more):
    with pytest.raises(FileError, match=r"more values than the shape \(3, 4, 5\)"):
        read_idx(write(idx(DIGITS) + more))


@pytest.mark.parametrize("shape", [(2**32 - 1,), (2**32 - 1,) * 3, (2**24, 28, 28)])
def test_a_size_in_the_header_costs_no_memory(write, shape):
    file = write(idx(DIGITS, shape))
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="fewer values"):
            read_idx(file)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_a_file_longer_than_it_says_is_not_read_on(write):
    file = write(idx(np.zeros(2**25, np.uint8), (10,)))
    tracemalloc.start()
    try:
        with pytest.raises(FileError, match="more values"):
            read_idx(file)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def test_more_axes_than_numpy_has_are_refused(write):
    with pytest.raises(FileError, match="digits-idx3-ubyte.* as an idx file"):
        read_idx(write(idx(DIGITS[0, 0, :1], (1,) * 255)))


def test_what_is_not_gzip_is_refused(tmp_path):
    file = tmp_path / "digits.gz"
    file.write_bytes(idx(DIGITS))
    with pytest.raises(FileError, match="digits.gz as an idx file: Not a gzipped file.*whole"):
        read_idx(file)


def test_a_truncated_gzip_is_refused(tmp_path):
    file = tmp_path / "digits.gz"
    file.write_bytes(gzip.compress(idx(DIGITS))[:-12])
    with pytest.raises(FileError, match="digits.gz as an idx file: Compressed file ended"):
        read_idx(file)


def test_a_damaged_gzip_is_refused(tmp_path):
    content = bytearray(gzip.compress(idx(DIGITS)))
    content[-8] ^= 1  # its checksum, which only a reader to the end looks at
    file = tmp_path / "digits.gz"
    file.write_bytes(content)
    with pytest.raises(FileError, match="digits.gz as an idx file: CRC check failed"):
        read_idx(file)


def test_no_file_an_empty_one_and_a_folder_are_refused(tmp_path):
    with pytest.raises(FileError, match="There is no file .*nothing"):
        read_idx(tmp_path / "nothing")
    (tmp_path / "empty").touch()
    with pytest.raises(FileError, match="empty is empty"):
        read_idx(tmp_path / "empty")
    with pytest.raises(FileError, match="is a folder"):
        read_idx(tmp_path)
