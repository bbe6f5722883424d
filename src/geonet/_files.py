"""How any file is read and written: one clear error, nothing half-written."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import IO

import numpy as np
from PIL import UnidentifiedImageError

from geonet.errors import FileError, GeonetError

PACKED = 1032  # bytes that one byte of an archive can stand for, at most


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """A temporary name beside `file` to write to; it gets the real name only if all went well."""
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
    """The folder, there and ready for files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror}.") from error
    return folder


@contextmanager
def wrap_read_errors(file: Path, what: str) -> Iterator[None]:
    """Turn whatever a decoder raises into a `FileError`.

    Broken files make third-party decoders raise almost anything (OSError, ValueError, SyntaxError,
    zlib.error, struct.error, MemoryError, ...), so all is caught; keep the body to their calls.
    """
    _check_file(file)
    try:
        yield
    except GeonetError:
        raise
    except Exception as error:
        raise FileError(
            f"Cannot read {file} as {what}: {_cause(error)}; check that it is whole and readable."
        ) from error


def read_arrays(file: Path, what: str) -> dict[str, np.ndarray]:
    """The arrays of an npz; nothing is unpickled."""
    with open_npz(file, what) as archive:
        return dict(archive)


@contextmanager
def open_npz(file: Path, what: str) -> Iterator[SafeNpz]:
    """The arrays of an npz by their names, each read when it is asked for."""
    with wrap_read_errors(file, what), zipfile.ZipFile(file) as members:
        yield SafeNpz(members, PACKED * file.stat().st_size)


class SafeNpz(Mapping[str, np.ndarray]):
    """What np.load gives, but that nothing is taken for an array which is none, nor trusted."""

    def __init__(self, members: zipfile.ZipFile, most: int):
        self._members, self._most = members, most
        self._names = {name.removesuffix(".npy"): name for name in members.namelist()}

    def __getitem__(self, name: str) -> np.ndarray:
        info = self._members.getinfo(self._names[name])
        with self._members.open(info) as stream:
            return read_npy(stream, min(info.file_size, self._most))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def read_npy(stream: IO[bytes], size: int) -> np.ndarray:
    """The array in an npy of `size` bytes; numpy would believe the header and make room first."""
    form = np.lib.format
    major, _ = form.read_magic(stream)
    start, short = stream.tell(), major == 1
    if int.from_bytes(stream.read(2 if short else 4), "little") > size:
        raise ValueError("its header says that it is longer than the file")
    stream.seek(start)
    shape, _, kind = (form.read_array_header_1_0 if short else form.read_array_header_2_0)(stream)
    if math.prod(shape) * kind.itemsize > size and not kind.hasobject:
        raise ValueError(f"its header says {shape} values, more than there are")
    stream.seek(0)
    return form.read_array(stream, allow_pickle=False)


def _cause(error: Exception) -> str:
    """What a decoder says, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "no known format"
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(said.split()).rstrip(".")


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
        raise FileError(f"{file} is empty; write it again.")
