"""A file that was dropped on the page, as a density on the page's cells."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from geonet.app.gallery import encoded
from geonet.errors import FileError
from geonet.files import reading
from geonet.measures.contents import opened
from geonet.measures.density import Density
from geonet.measures.images import FORMATS
from geonet.quiet import quiet

IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp")
SUFFIXES = (*IMAGES, ".npy", ".npz", ".csv")
MOST_VALUES = 2**24  # pixels or numbers
MOST_UNPACKED = 2**27  # bytes of an npz
MOST_TEXT = 2**23  # bytes of a csv
LONGEST = 80  # characters of a label
NOUNS = {1: "a curve", 2: "a picture", 3: "a volume"}


def read_dropped(content: bytes, name: str, dimension: int, cells: int) -> dict[str, Any]:
    """What a file holds: its values (base64 of uint16), a label, and what was changed.

    The name that came with the file is its label, and says what kind of file it is. On the disk the
    file has a name of ours, for as long as it is read.
    """
    label = _label(name)
    suffix = PurePosixPath(label).suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError(f"{label} cannot be read here; drop one of {', '.join(SUFFIXES)}.")
    with TemporaryDirectory(prefix="geonet-") as folder:
        file = Path(folder) / f"dropped{suffix}"
        file.write_bytes(content)
        try:
            density = _read(file)
        except FileError as error:
            raise FileError(str(error).replace(str(file), label)) from error
    if density.grid.dimension != dimension:
        raise FileError(
            f"{label} holds {NOUNS[density.grid.dimension]}; drop {NOUNS[dimension]} here."
        )
    values, changed = fitted(density, cells)
    return {"values": encoded(values), "label": label, "changed": changed}


def fitted(density: Density, cells: int) -> tuple[np.ndarray, list[str]]:
    """Values on so many cells along each axis, and sentences on what was changed.

    The longest side of the box fills the page, the others have empty margins. Every region keeps
    its mass.
    """
    grid = density.grid
    shape = [max(2, round(cells * length / grid.longest)) for length in grid.lengths]
    values = density.resample(grid.with_shape(shape)).numpy()
    margins = [(cells - n) // 2 for n in shape]
    around = [(m, cells - n - m) for m, n in zip(margins, shape, strict=True)]
    changed, wanted = [], (cells,) * grid.dimension
    if grid.shape != wanted:
        changed.append(f"Resampled from {_size(grid.shape)} to {_size(wanted)}.")
    if any(after for _, after in around):
        where = "above and below" if around[0][1] else "left and right"
        changed.append(f"Its proportions are kept, with empty margins {where}.")
    return np.pad(values, around), changed


def _label(name: str) -> str:
    """The last part of a name, as people read it."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(character if character.isprintable() else "?" for character in last)
    if len(shown) > LONGEST:
        shown = f"…{shown[-LONGEST:]}"
    return shown or "The file"


def _read(file: Path) -> Density:
    _check_size(file)
    contents = opened(file)
    if "values" not in contents.kinds:
        raise FileError(f"{file} holds points; count them on a grid, and drop a table of values.")
    if contents.numbers.size > MOST_VALUES:
        raise FileError(f"{file} holds {contents.numbers.size} values; drop one of fewer.")
    return contents.told("values").density()


def _check_size(file: Path) -> None:
    """Refuse a small file that becomes a large one, before it is unpacked."""
    suffix = file.suffix
    if suffix in IMAGES:
        with reading(file, "an image"), quiet(), Image.open(file, formats=FORMATS) as image:
            width, height = image.size
        if width * height > MOST_VALUES:
            raise FileError(f"{file} has {width}×{height} pixels; drop a smaller one.")
    elif suffix == ".npz":
        with reading(file, "an npz archive"), zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_UNPACKED:
            raise FileError(f"{file} holds {size >> 20} MiB when unpacked; drop a smaller one.")
    elif suffix == ".csv" and file.stat().st_size > MOST_TEXT:
        raise FileError(f"{file} is larger than {MOST_TEXT >> 20} MiB; save its values as .npy.")


def _size(shape: tuple[int, ...]) -> str:
    """Width × height, or the number of cells."""
    return "×".join(map(str, reversed(shape))) + ("" if shape[1:] else " cells")
