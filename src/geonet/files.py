"""How any file is read and written: one clear error, nothing half-written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from PIL import UnidentifiedImageError

from geonet.errors import FileError, GeonetError


@contextmanager
def written_atomically(file: Path) -> Iterator[Path]:
    """A temporary name beside `file` to write to; it gets the real name only if all went well."""
    if not file.parent.is_dir():
        raise FileError(f"The folder {file.parent} does not exist; create it first.")
    temporary = file.with_name(f".{file.stem}.{os.getpid()}{file.suffix}")
    try:
        yield temporary
        temporary.replace(file)
    except OSError as error:
        raise FileError(f"Cannot write {file}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def made_folder(folder: Path) -> Path:
    """The folder, there and ready for files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror}.") from error
    return folder


@contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
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
