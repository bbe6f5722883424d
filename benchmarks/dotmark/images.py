"""Read pairs of densities from folders: images of DOTmark and composites of a weather radar.

DOTmark (Schrieber, Schuhmacher and Gottschlich 2017) has ten classes of images. A folder of them
contains, for every class, either the files as published, CLASS/data64_1001.csv and so on, or one
file CLASS.npz with arrays images_32 … images_512 of shape (images, n, n).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from PIL import Image

from geonet import Density, Grid
from geonet._files import wrap_read_errors
from geonet.errors import InputError

CLASSES = (
    *("WhiteNoise", "GRFrough", "GRFmoderate", "GRFsmooth", "LogGRF", "LogitGRF"),
    *("CauchyDensity", "Shapes", "ClassicImages", "MicroscopyImages"),
)
RADAR = "radar showers"  # the name of their class
RADAR_SIZES = (256, 512)
DRY = 0.1  # mm/h: less is no rain
NO_DATA = 255
APART, EVERY = timedelta(minutes=20), timedelta(minutes=60)  # of a pair; between pairs


@dataclass(frozen=True)
class Pair:
    """Two densities on the unit square, with their class and a name in it, such as "1-2"."""

    kind: str
    name: str
    source: Density
    target: Density

    @property
    def cells(self) -> int:
        """Return the number of cells along each axis."""
        return self.source.grid.shape[0]


# ---- DOTmark


def read_dotmark(
    folder: Path, kinds: Iterable[str], sizes: Iterable[int], numbers: Iterable[tuple[int, int]]
) -> list[Pair]:
    """Return pairs of images, the smallest sizes first.

    Args:
        folder: contains the classes.
        kinds: names of the classes; all classes of the folder if there are none.
        sizes: cells along each axis.
        numbers: numbers of the two images of each pair, from 1.
    """
    known, kinds, numbers = list_classes(folder), list(kinds), list(numbers)
    if unknown := [kind for kind in kinds if kind not in known]:
        raise InputError(f"{folder} has no class {unknown[0]!r}; it has {', '.join(known)}.")
    pairs: list[Pair] = []
    for cells in sorted(sizes):
        for kind in kinds or known:
            images = {k: _read_image(folder, kind, cells, k) for pair in numbers for k in pair}
            pairs += [Pair(kind, f"{i}-{j}", images[i], images[j]) for i, j in numbers]
    return pairs


def list_classes(folder: Path) -> list[str]:
    """Return the classes of a folder in the order of `CLASSES`, others last."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}; give a folder of DOTmark images.")
    names = {file.stem for file in folder.glob("*.npz")}
    names |= {file.parent.name for file in folder.glob("*/data*_*.csv")}
    if not names:
        raise InputError(f"{folder} has neither CLASS.npz nor CLASS/data64_1001.csv; give another.")
    return [*(name for name in CLASSES if name in names), *sorted(names - {*CLASSES})]


def _read_image(folder: Path, kind: str, cells: int, number: int) -> Density:
    """Return an image of a class as a density on the unit square."""
    arrays, table = folder / f"{kind}.npz", folder / kind / f"data{cells}_{1000 + number}.csv"
    if arrays.exists():
        with wrap_read_errors(arrays, "images of DOTmark"), np.load(arrays) as found:
            images = found.get(f"images_{cells}", ())
        if not 1 <= number <= len(images):
            raise InputError(f"{arrays} has no image {number} of {cells}² cells.")
        values = np.asarray(images[number - 1], dtype=np.float64)
    else:
        with wrap_read_errors(table, "an image of DOTmark"):
            values = np.loadtxt(table, delimiter=",")
    return Density(values, Grid((cells, cells)))


# ---- radar


def read_showers(folder: Path, sizes: Iterable[int]) -> list[Pair]:
    """Return pairs of radar images that are 20 minutes apart, one pair for every hour.

    Args:
        folder: contains files such as 201705091045_….pgm.gz, named by their time.
        sizes: cells along each axis; other sizes than 256 and 512 are left out.
    """
    files = {_read_time(file): file for file in sorted(folder.glob("*.pgm.gz"))}
    starts: list[datetime] = []
    for time in files:
        if time + APART in files and (not starts or time - starts[-1] >= EVERY):
            starts.append(time)
    if not starts:
        raise InputError(f"{folder} has no two files TIME_….pgm.gz that are 20 minutes apart.")
    ends = [(time, [_read_rain(files[t]) for t in (time, time + APART)]) for time in starts]
    return [
        Pair(RADAR, f"{time:%H:%M}", *(_average_blocks(rain, cells) for rain in rains))
        for cells in sorted({*sizes} & {*RADAR_SIZES})
        for time, rains in ends
    ]


def read_rain(folder: Path, cells: int) -> tuple[list[datetime], np.ndarray]:
    """Return the times of all radar images of a folder, and rain rates in mm/h, (n, cells, cells).

    Args:
        folder: see `read_showers`.
        cells: cells along each axis of the square in the middle.
    """
    files = {_read_time(file): file for file in sorted(folder.glob("*.pgm.gz"))}
    if not files:
        raise InputError(f"{folder} has no files TIME_….pgm.gz.")
    return list(files), np.array([_block_means(_read_rain(file), cells) for file in files.values()])


def _read_time(file: Path) -> datetime:
    try:
        return datetime.strptime(file.name[:12], "%Y%m%d%H%M")
    except ValueError as error:
        raise InputError(f"{file} is not named by its time, as 201705091045_….pgm.gz.") from error


def _read_rain(file: Path) -> np.ndarray:
    """Return rain rates in mm/h, zero if dry or unknown."""
    with wrap_read_errors(file, "a radar image"), gzip.open(file) as stream:
        values = np.asarray(Image.open(stream)).astype(np.float64)
    rates = (10 ** ((values / 2 - 32) / 10) / 223) ** (1 / 1.53)
    return np.where((values == NO_DATA) | (rates < DRY), 0.0, rates)


def _average_blocks(rain: np.ndarray, cells: int) -> Density:
    return Density(_block_means(rain, cells), Grid((cells, cells)))


def _block_means(rain: np.ndarray, cells: int) -> np.ndarray:
    """Return block means of the largest square in the middle that all sizes divide."""
    side = min(rain.shape) // max(RADAR_SIZES) * max(RADAR_SIZES)
    if side == 0:
        raise InputError(f"A radar image has {rain.shape} cells; 512 × 512 are needed.")
    top, left = ((n - side) // 2 for n in rain.shape)
    blocks = rain[top : top + side, left : left + side]
    blocks = blocks.reshape(cells, side // cells, cells, side // cells)
    return blocks.mean((1, 3))
