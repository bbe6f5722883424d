"""Reading and writing of files: one kind of error, no partial files."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import glob
from pathlib import Path
from threading import get_ident
from typing import IO

import numpy as np

from geonet.errors import FileError, GeonetError

IMAGE_SUFFIXES = tuple(f".{s}" for s in "png jpg jpeg gif bmp tif tiff webp pgm ppm".split())  # noqa: SIM905
READABLE_SUFFIXES = (*IMAGE_SUFFIXES, ".npy", ".npz", ".csv")
MAX_COMPRESSION = 1032  # largest ratio that deflate can reach


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """Yield a temporary name beside `file`, which is renamed to `file` if there was no error."""
    if not file.parent.is_dir():
        raise FileError(f"The folder {file.parent} does not exist; create it first.")
    temporary = file.with_name(f".{file.stem}.{os.getpid()}-{get_ident()}{file.suffix}")
    try:
        yield temporary
        temporary.replace(file)
    except OSError as error:
        raise FileError(f"Cannot write {file}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def ensure_dir(folder: Path) -> Path:
    """Create the folder if it does not exist, and return it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot create the folder {folder}: {error.strerror}.") from error
    return folder


def expand_files(
    names: Iterable[str | Path],
    suffixes: Sequence[str],
    is_store: Callable[[Path], bool] | None = None,
) -> list[Path]:
    """Return the files of a list of files, folders and patterns, each of them once.

    Args:
        names: a folder stands for the files in it that have one of the suffixes, and a pattern for
            those that match it, both in the order of their names.
        suffixes: the suffixes, in lower case.
        is_store: decides whether a folder counts as one file.
    """
    found = [file for name in names for file in _expand(Path(name), suffixes, is_store)]
    if not found:
        raise FileError("No file is given; give one or more.")
    return list(dict.fromkeys(found))


def _expand(
    path: Path, suffixes: Sequence[str], is_store: Callable[[Path], bool] | None
) -> list[Path]:
    if path.is_dir() and not (is_store is not None and is_store(path)):
        found = sorted(
            file
            for file in path.iterdir()
            if file.name.lower().endswith(tuple(suffixes)) and not file.name.startswith(".")
        )
        if not found:
            raise FileError(
                f"The folder {path} holds no file whose name ends in {', '.join(suffixes)}; "
                "give another folder."
            )
        return found
    if path.exists() or not any(sign in str(path) for sign in "*?["):
        if not path.exists():
            raise FileError(f"There is no file {path}; check the path.")
        return [path]
    found = [Path(name) for name in sorted(glob(str(path)))]
    if not found:
        raise FileError(f"No file matches {path}; check the pattern.")
    return found


@contextmanager
def wrap_read_errors(file: Path, content: str) -> Iterator[None]:
    """Turn any exception of a decoder into a `FileError`.

    Broken files make third-party decoders raise almost anything (OSError, ValueError, SyntaxError,
    zlib.error, struct.error, MemoryError, ...), so every Exception is caught.
    """
    _check_file(file)
    try:
        yield
    except GeonetError:
        raise
    except Exception as error:
        raise FileError(
            f"Cannot read {file} as {content}: {_cause(error)}; check that it is complete."
        ) from error


def read_arrays(file: Path, content: str) -> dict[str, np.ndarray]:
    """Return the arrays of an npz, without pickled objects."""
    with open_npz(file, content) as archive:
        return dict(archive)


@contextmanager
def open_npz(file: Path, content: str) -> Iterator[SafeNpz]:
    """Yield the arrays of an npz by name; each is read on access."""
    with wrap_read_errors(file, content), zipfile.ZipFile(file) as members:
        yield SafeNpz(members, MAX_COMPRESSION * file.stat().st_size)


class SafeNpz(Mapping[str, np.ndarray]):
    """The arrays of an npz, read without trust in the sizes that their headers state."""

    def __init__(self, members: zipfile.ZipFile, max_bytes: int):
        self._members, self._max_bytes = members, max_bytes
        self._names = {name.removesuffix(".npy"): name for name in members.namelist()}

    def __getitem__(self, name: str) -> np.ndarray:
        info = self._members.getinfo(self._names[name])
        with self._members.open(info) as stream:
            return read_npy(stream, min(info.file_size, self._max_bytes))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_npy(stream: IO[bytes], size: int) -> np.ndarray:
    """Return the array in an npy of `size` bytes; NumPy would allocate by the header first."""
    npy = np.lib.format
    major, _ = npy.read_magic(stream)
    start = stream.tell()
    if int.from_bytes(stream.read(2 if major == 1 else 4), "little") > size:
        raise ValueError("its header says that it is longer than the file")
    stream.seek(start)
    read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    if math.prod(shape) * dtype.itemsize > size and not dtype.hasobject:
        raise ValueError(f"its header says {shape} values, more than there are")
    stream.seek(0)
    return npy.read_array(stream, allow_pickle=False)


def _cause(error: Exception) -> str:
    """Return the message of a decoder in one line."""
    if type(error).__name__ == "UnidentifiedImageError":  # Pillow is imported by its users only
        return "no known format"
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(message.split()).rstrip(".")


def _check_file(file: Path) -> None:
    try:
        if file.is_dir():
            raise FileError(f"{file} is a folder; give a file.")
        size = file.stat().st_size
    except FileNotFoundError as error:
        raise FileError(f"There is no file {file}; check the path.") from error
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise FileError(f"Cannot open {file}: {error}; check path and permissions.") from error
    if size == 0 and file.is_file():
        raise FileError(f"{file} is empty; give another file.")
