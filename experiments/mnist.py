"""MNIST: handwritten digits, 60,000 to train on and 10,000 to test on, as arrays and densities.

The files are by Y. LeCun and C. Cortes (CC BY-SA 3.0). They are read from the folder `GEONET_DATA`;
if this variable is not set, they are downloaded once into the user's cache.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
from dataclasses import dataclass
from http.client import HTTPException
from importlib.resources import as_file, files
from io import BufferedIOBase
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from geonet._files import atomic_write, wrap_read_errors
from geonet._validation import check_choice, is_number, short_repr
from geonet.density import Density, as_tensor
from geonet.errors import DensityError, FileError, InputError
from geonet.grid import Grid

# ---- The idx format of MNIST, big-endian: two zero bytes, one byte for the type, one for the
# number of axes, four bytes for the length of each axis, then the numbers.


TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CHUNK = 2**20


def read_idx(file: str | Path) -> np.ndarray:
    """Return the array in an idx file, with the shape and the type of its header.

    Args:
        file: path; compressed by gzip if its name ends in .gz.
    """
    file = Path(file)
    open_file = gzip.open if file.suffix.lower() == ".gz" else open
    with wrap_read_errors(file, "an idx file"), open_file(file, "rb") as stream:
        shape, kind = _header(file, stream)
        size = math.prod(shape) * kind.itemsize
        content = _read_at_most(stream, size + 1)  # one byte more reveals a file that is too long
        if len(content) != size:
            raise FileError(
                f"{file} has {'fewer' if len(content) < size else 'more'} values than the shape "
                f"{shape} in its header; get the whole file again."
            )
        # an array of a bytearray is writable; torch.from_numpy would warn of one that is not
        numbers = np.frombuffer(content, kind).reshape(shape)
        return numbers.astype(kind.newbyteorder("="), copy=False)


def _header(file: Path, stream: BufferedIOBase) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and the type of the numbers that follow."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise FileError(
            f"{file} is not an idx file: its first bytes are {magic.hex(' ') or 'missing'}; "
            "check the path."
        )
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise FileError(f"{file} ends within its header; get the whole file again.")
    return tuple(np.frombuffer(sizes, ">u4").tolist()), np.dtype(TYPES[magic[2]])


def _read_at_most(stream: BufferedIOBase, size: int) -> bytearray:
    """Read up to `size` bytes in chunks, so that a wrong header does not allocate memory."""
    content = bytearray()
    while piece := stream.read(min(CHUNK, size - len(content))):
        content += piece
    return content


Part = Literal["train", "test"]

SIDE = 28  # pixels
NAMES: dict[Part, tuple[str, str]] = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
CHECKSUMS = {  # md5, as published
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
TIMEOUT = 30.0  # seconds without an answer
MAX_BYTES = 2**25  # three times the largest file: no server can fill the memory
SAMPLE = "mnist-sample.npz"


@dataclass(frozen=True, eq=False)
class Digits:
    """Images of handwritten digits with their labels.

    Attributes:
        images: (n, 28, 28), uint8, rows from the top, ink is bright.
        labels: (n,), uint8, 0 to 9.
    """

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def mnist(part: Part) -> Digits:
    """Return MNIST's training set (60,000 digits) or test set (10,000), verified by md5.

    Environment variables:
        GEONET_DATA: the folder that holds the files, or has them in a subfolder `mnist`; nothing is
            downloaded then. Unset, they are kept in the user's cache, in `geonet/mnist`.
        GEONET_MNIST_URL: mirror for missing files, instead of the default one.

    Args:
        part: "train" or "test".
    """
    check_choice(part, tuple(NAMES), "part")
    images, labels = (_read_checked(_find(name)) for name in NAMES[part])
    return Digits(images, labels)


def sample_digits() -> Digits:
    """Return 1,000 digits that come with geonet: the first 100 of each class in the test set."""
    with (
        as_file(files("geonet") / "demo_data" / SAMPLE) as file,
        wrap_read_errors(file, "an npz archive"),
        np.load(file) as arrays,
    ):
        return Digits(arrays["images"], arrays["labels"])


def as_densities(images: np.ndarray, blur: float, floor: float) -> Density:
    """Return images as densities on the unit square: axis 0 points down, axis 1 to the right.

    Args:
        images: (n, 28, 28), uint8, rows from the top.
        blur: standard deviation of a Gaussian blur, in pixels; the blur keeps the mass.
        floor: share of the mass that is spread evenly, (1 − floor)·image + floor·uniform.
    """
    pixels = as_tensor(images).numpy()
    if pixels.shape[1:] != (SIDE, SIDE):
        raise DensityError(
            f"Images of digits cannot have shape {pixels.shape}; give an array (n, {SIDE}, {SIDE})."
        )
    if not is_number(blur) or not 0 <= blur <= SIDE:
        raise InputError(
            f"blur is {short_repr(blur)}; give a standard deviation of 0 to {SIDE} pixels."
        )
    scaled = pixels / 255  # as `from_image` scales an image
    blurred = gaussian_filter(scaled, (0, blur, blur), mode="reflect")
    return Density(torch.from_numpy(blurred), Grid((SIDE, SIDE))).with_floor(floor)


# ---- Location of the files


def _find(name: str) -> Path:
    """Return the path of a file; download it if GEONET_DATA is not set and the cache lacks it."""
    if data := os.environ.get("GEONET_DATA"):
        return _find_in(Path(os.path.expanduser(data)), name)
    file = _cache() / name
    if not os.path.isfile(file):
        _download(name, file)
    return file


def _find_in(folder: Path, name: str) -> Path:
    for file in (folder / name, folder / "mnist" / name):
        if os.path.isfile(file):
            return file
    raise FileError(
        f"There is no {name} in {folder} (GEONET_DATA) or in its subfolder mnist; "
        "put it there, or unset GEONET_DATA to download it."
    )


def _cache() -> Path:
    """Return the folder for downloaded files; it need not exist."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # unset, or to be ignored by the XDG specification
        root = Path(os.path.expanduser("~/.cache"))
    if not root.is_absolute():  # a user without a home, as in some containers
        raise FileError(
            "There is no home folder to keep MNIST in; "
            "set XDG_CACHE_HOME to a folder, or GEONET_DATA to one with the files."
        )
    return root / "geonet" / "mnist"


# ---- Content


def _read_checked(file: Path) -> np.ndarray:
    with wrap_read_errors(file, "a file of MNIST"):
        content = file.read_bytes()
    if _md5(content) != CHECKSUMS[file.name]:
        raise FileError(
            f"{file} is not the original file of MNIST, its md5 is not {CHECKSUMS[file.name]}; "
            "delete it and get it again."
        )
    return read_idx(file)


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


# ---- Download


def _download(name: str, file: Path) -> None:
    """Download a file and rename it after its checksum is verified."""
    url = (os.environ.get("GEONET_MNIST_URL") or URL).rstrip("/") + "/" + name
    content = _fetch(url)
    if _md5(content) != CHECKSUMS[name]:
        raise FileError(
            f"The content of {url} is not the original file of MNIST, its md5 is not "
            f"{CHECKSUMS[name]}; try again, set GEONET_MNIST_URL to another mirror, or set "
            "GEONET_DATA to a folder with the files."
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"Cannot make the folder {file.parent}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder you may write to, or GEONET_DATA to one with the files."
        ) from error
    with atomic_write(file) as temporary:
        temporary.write_bytes(content)


def _fetch(url: str) -> bytes:
    try:
        with urlopen(url, timeout=TIMEOUT) as answer:
            return answer.read(MAX_BYTES)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: not a URL
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
        cause = str(getattr(error, "reason", None) or error) or type(error).__name__
        raise FileError(
            f"Cannot download {url}: {cause}; "
            "set GEONET_DATA to a folder with the four files of MNIST."
        ) from error
