"""What a file holds, before it is a density: values of cells, or points."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from geonet._advice import either
from geonet._files import PACKED, open_npz, read_npy, wrap_read_errors
from geonet._utils import suppress_warnings
from geonet._validation import check_choice, check_flag
from geonet.density import Density, Missing, as_tensor, check_nodata, nodata_mask
from geonet.errors import FileError, InputError
from geonet.grid import Grid, check_grid
from geonet.samples import Outside, from_samples

# ---- The brightness of images.


IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp"),
    *(".pgm", ".ppm"),
)
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")  # no other, such as EPS, is run
LUMA = (299, 587, 114)  # thousandths, ITU-R BT.601; whole numbers keep white exactly 1


def image_values(file: Path, invert: bool, nodata: float | None) -> np.ndarray:
    """Brightness (or darkness) in [0, 1] times opacity, (height, width)."""
    with (
        wrap_read_errors(file, "an image"),
        suppress_warnings(),  # about metadata
        Image.open(file, formats=FORMATS) as image,
    ):
        _check_pixels(image, file.stat().st_size)
        grey, opacity = _grey_and_opacity(ImageOps.exif_transpose(image), nodata)
    height, width = grey.shape
    if min(width, height) < 2:
        raise FileError(
            f"{file} is {width}×{height} pixels; a density needs at least 2 pixels along each side."
        )
    return (1 - grey if invert else grey) * opacity


def _check_pixels(image: Image.Image, size: int) -> None:
    """Refuse more pixels than Pillow's limit, or than a PNG of so many bytes can hold.

    Pillow refuses twice its limit by itself, and only warns of what is above it. It believes the
    header and makes room first; a byte holds eight pixels at most before it is packed.
    """
    pixels, most = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if most is not None and pixels > most:
        raise Image.DecompressionBombError(
            f"Image size ({pixels} pixels) exceeds Pillow's limit of {most} pixels"
        )
    if image.format == "PNG" and pixels > 8 * PACKED * size:
        raise ValueError(f"its header says {pixels} pixels, more than there are")


def _grey_and_opacity(
    image: Image.Image, nodata: float | None
) -> tuple[np.ndarray, np.ndarray | float]:
    """Luminance (height, width) in [0, 1], masked where a pixel is `nodata`; alpha in [0, 1]."""
    if image.mode[0] in "IF":  # 16-bit or 32-bit integers, or floats: one channel, no alpha
        levels = as_tensor(np.asarray(image)).double().numpy()
        if nodata is not None:
            levels = np.ma.masked_array(levels, nodata_mask(np.asarray(image), nodata))
        white = 1.0 if image.mode == "F" else 65535.0
        brightest = 0.0 if np.ma.getmaskarray(levels).all() else levels.max()
        return levels / max(white, brightest), 1.0
    channels = np.asarray(image.convert("RGBA"))
    grey = np.zeros(channels.shape[:2])
    for k, weight in enumerate(LUMA):  # one at a time: all would take four times the memory
        grey += np.float64(weight) * channels[..., k]
    if nodata is not None:
        if nodata not in range(256):
            raise InputError(
                f"nodata is {nodata:g} and a pixel of 8 bits is a whole number from 0 to 255; "
                "give the value of pixels without data."
            )
        grey = np.ma.masked_array(grey, nodata_mask(channels[..., :3], nodata).all(-1))
    return grey / (255 * sum(LUMA)), channels[..., 3] / 255


SUFFIXES = (*IMAGE_SUFFIXES, ".npy", ".npz", ".csv")
COORDINATES = ("x", "y", "z")
WEIGHT = "weight"
MAX_AXES = 3
SEPARATORS = {",": "commas", ";": "semicolons", None: "spaces or tabs"}

Corner = float | list[float]
Kind = Literal["points", "values"]
KINDS: tuple[Kind, Kind] = ("points", "values")


def parse_file(file: Path, invert: bool = False, nodata: float | None = None) -> FileContents:
    """The numbers of a file, by its suffix, before they are a density."""
    check_nodata(nodata)
    suffix = file.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return FileContents(file, image_values(file, invert, nodata), ("values",))
    if suffix == ".npy":
        return _checked(_unnamed(file, _npy_array(file)), nodata)
    if suffix == ".npz":
        return _checked(_npz_contents(file), nodata)
    if suffix == ".csv":
        return _checked(_csv_contents(file), nodata)
    raise FileError(
        f"Cannot tell from its suffix {suffix!r} what {file} holds; "
        f"use one of {', '.join(SUFFIXES)}."
    )


@dataclass(frozen=True)
class FileContents:
    """The numbers of a file, before they are a density.

    Attributes:
        file: where they are from.
        numbers: values of cells (n_1, ..., n_d), masked where there are no data; or points, a row
            for each.
        kinds: what the numbers can be, "points", "values" or both.
        names: of the columns, for points.
        box: corners (lower, upper), where the file has them.
    """

    file: Path
    numbers: np.ndarray
    kinds: tuple[Kind, ...]
    names: tuple[str, ...] = COORDINATES
    box: tuple[Corner, Corner] | None = None

    @property
    def kind(self) -> Kind | None:
        """What the numbers are, or None where nobody can tell.

        Few densities have an axis of two or three cells, and most clouds have more points than
        coordinates. A row or a column is a histogram.
        """
        if len(self.kinds) == 1:
            return self.kinds[0]
        shape = self.numbers.shape
        return None if len(shape) == 2 and shape[0] > shape[1] > 1 else "values"

    def told(self, kind: Kind | None) -> FileContents:
        """The same, when somebody says what the numbers are."""
        if kind is None:
            return self
        if kind not in self.kinds:
            raise FileError(f"{self.file} holds {self.kinds[0]} and no {kind}; leave kind out.")
        return replace(self, kinds=(kind,))

    def doubt(self) -> str:
        """Why the kind is not known."""
        rows, columns = self.numbers.shape
        return (
            f"{self.file} holds {rows} rows of {columns} numbers without a header, which may be "
            "points or the values of cells"
        )

    def density(
        self,
        grid: Grid | None = None,
        outside: Outside = "raise",
        missing: Missing = "raise",
    ) -> Density:
        """Return the density of the values, or of the points counted on a grid."""
        try:
            if self.kind == "points":
                return self._counted(grid, outside)
            values = self.values()
            return Density(values, grid or _default_grid(values.shape, self.box), missing)
        except FileError:
            raise
        except InputError as error:
            raise FileError(f"{self.file} does not hold a density: {error}") from error

    def values(self) -> np.ndarray:
        """(n_1, ..., n_d), masked where there are no data; one row or column of a csv is 1D."""
        numbers = self.numbers
        if self.file.suffix.lower() == ".csv" and 1 in numbers.shape:
            return numbers.ravel()
        if not 1 <= numbers.ndim <= MAX_AXES:
            raise FileError(
                f"{self.file} holds an array of shape {numbers.shape}; "
                f"a density has one to {MAX_AXES} axes, one per dimension."
            )
        return numbers

    def points(self) -> tuple[Tensor, Tensor | None]:
        """Points (n, d) and weights (n,), or None."""
        table = as_tensor(np.ma.getdata(self.numbers)).double()
        table = table[:, None] if table.ndim == 1 else table
        bad = int((~torch.isfinite(table)).any(-1).sum())
        if bad or not len(table):
            what = f"{bad} of {len(table)} rows of {self.file} are NaN or infinite; remove them."
            raise FileError(what if bad else f"{self.file} has no rows; write it again.")
        names = self.names[: table.shape[-1]]
        axes = [names.index(name) for name in COORDINATES if name in names]
        return table[:, axes], table[:, names.index(WEIGHT)] if WEIGHT in names else None

    def _counted(self, grid: Grid | None, outside: Outside) -> Density:
        points, weights = self.points()
        if grid is None:
            raise FileError(
                f"{self.file} is a point cloud and needs a grid to be counted on; "
                "give grid=geonet.Grid(shape, lower, upper)."
            )
        if points.shape[-1] != grid.dimension:
            raise FileError(
                f"{self.file} has points in {points.shape[-1]}D but the grid is "
                f"{grid.dimension}D; give a grid with one axis per coordinate."
            )
        return from_samples(
            points.numpy(), grid, weights if weights is None else weights.numpy(), outside
        )


def check_kind_of_file(kind: str | None) -> None:
    """Before the file is read."""
    if kind is not None:
        check_choice(kind, KINDS, "kind")


def _checked(contents: FileContents, nodata: float | None) -> FileContents:
    """Real numbers, with a mask over those that stand for no data."""
    numbers = contents.numbers
    if numbers.dtype.kind not in "biuf":
        raise FileError(
            f"{contents.file} holds {numbers.dtype} values; save an array of real numbers."
        )
    if nodata is None:
        return contents
    return replace(contents, numbers=np.ma.masked_array(numbers, nodata_mask(numbers, nodata)))


def _default_grid(shape: tuple[int, ...], box: tuple[Corner, Corner] | None) -> Grid:
    """Equal cells in a box whose longest side is 1, unless the box is known."""
    if box is not None:
        return Grid(shape, *box)
    return Grid(shape, 0.0, [n / max(1, *shape) for n in shape])


# ---- NumPy files


def _npy_array(file: Path) -> np.ndarray:
    with wrap_read_errors(file, "an npy array"), file.open("rb") as stream:
        return _without_pickle(file, lambda: read_npy(stream, file.stat().st_size))


def _npz_contents(file: Path) -> FileContents:
    """The array `values` or the only one, with the box where its corners are given."""
    with open_npz(file, "an npz archive") as archive:
        names = list(archive)
        if "geonet" in names:
            opens = either(f"open it with geonet.load({str(file)!r})", f"see geonet report {file}")
            raise FileError(f"{file} is a saved geodesic; {opens}.")
        if "values" not in names and len(names) != 1:
            raise FileError(
                f"{file} holds the arrays {', '.join(names) or '(none)'}; "
                "name the one with the density 'values'."
            )
        if "values" not in names:
            return _unnamed(file, _without_pickle(file, lambda: archive[names[0]]))
        values = _without_pickle(file, lambda: archive["values"])
        if ("lower" in names) != ("upper" in names):
            raise FileError(f"{file} has only one of 'lower' and 'upper'; give both or none.")
        box = None
        if "lower" in names:
            box = _corner(archive["lower"]), _corner(archive["upper"])
        return FileContents(file, values, ("values",), box=box)


def _unnamed(file: Path, numbers: np.ndarray) -> FileContents:
    """Numbers that do not say what they are; points are (n,) or (n, d)."""
    shape = numbers.shape
    points = len(shape) == 1 or (len(shape) == 2 and 1 <= shape[1] <= len(COORDINATES))
    return FileContents(file, numbers, KINDS if points else ("values",))


def _corner(corner: np.ndarray) -> Corner:
    if np.iscomplexobj(corner):  # astype would only warn
        raise ValueError("a corner of its box is complex")
    numbers = corner.astype(np.float64).ravel().tolist()
    return numbers[0] if len(numbers) == 1 else numbers


def _without_pickle(file: Path, load: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return load()
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise FileError(
            f"{file} holds pickled objects, which are never loaded because they can run code; "
            "save it as an array of numbers with numpy.save."
        ) from error


# ---- tables and clouds


def _csv_contents(file: Path) -> FileContents:
    names, lines = _csv_lines(file)
    if names is None:
        return _unnamed(file, _csv_numbers(file, lines))
    axes = [name for name in COORDINATES if name in names]
    known = len(axes) + (WEIGHT in names)
    if not axes or tuple(axes) != COORDINATES[: len(axes)] or known != len(names):
        raise FileError(
            f"{file} has the columns {', '.join(names)}; a point cloud has x, then y and z "
            "as needed, and weight if points count differently."
        )
    table = _csv_numbers(file, lines)
    if table.shape[-1] != len(names):
        raise FileError(
            f"{file} names {len(names)} columns but has {table.shape[-1]}; "
            "give every row as many numbers as the header has names."
        )
    return FileContents(file, table, ("points",), tuple(names))


def _csv_lines(file: Path) -> tuple[list[str] | None, list[str]]:
    """Names of the columns if there is a header, and the lines of numbers."""
    with wrap_read_errors(file, "a csv table"):
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets begin a file with a mark
    lines = [line for line in text.splitlines() if line.strip()]
    names = None
    if lines:
        cells = lines[0].strip().lstrip("# ").split(_separator(lines[:1]))
        if not any(map(_is_number, cells)):
            names = [name.strip().strip('"').lower() for name in cells]
            lines = lines[1:]
    if not lines:
        raise FileError(f"{file} has no rows of numbers; write it again.")
    return names, lines


def _csv_numbers(file: Path, lines: list[str]) -> np.ndarray:
    """Rows of numbers, (rows, columns), float64."""
    separator = _separator(lines)
    if separator == "," and any(";" in line for line in lines):
        raise FileError(
            f"{file} has both commas and semicolons; "
            "separate numbers by one of them, and write decimals with a point."
        )
    try:
        return np.loadtxt(lines, delimiter=separator, ndmin=2, comments=None)
    except ValueError as error:
        width = len(lines[0].split(separator))
        rows = ((line, line.split(separator)) for line in lines)
        broken = (r for r, cells in rows if len(cells) != width or not all(map(_is_number, cells)))
        bad = next(broken, lines[0])
        raise FileError(
            f"{file} has the row {bad[:40]!r}, not {width} numbers separated by "
            f"{SEPARATORS[separator]}; correct or remove it."
        ) from error


def _separator(lines: list[str]) -> str | None:
    """Of the cells of a row: a comma or a semicolon where there is one, else white space."""
    return next((mark for mark in (",", ";") if any(mark in line for line in lines)), None)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# ---- Densities from files: images, arrays, tables and point clouds.
#
# Orientation: what holds the pixels of a picture, be it an image, an array or a table, is read as it
# is: axis 0 runs down the rows and axis 1 to the right. Points have their coordinates in the order of
# the axes.


def from_image(
    file: str | os.PathLike[str],
    invert: bool = False,
    missing: Missing = "raise",
    nodata: float | None = None,
) -> Density:
    """The brightness of an image as a density; the longest side of its box has length 1.

    It reads the luminance of colours. A transparent pixel holds no mass, with or without `invert`.
    It takes the first frame of an animation, and applies the orientation that a camera recorded.

    Args:
        file: PNG, JPEG, GIF, BMP, TIFF, WEBP or PPM, with 8 or 16 bits per channel.
        invert: whether dark pixels hold the mass instead of bright ones.
        missing: treatment of pixels without data, see `Density`.
        nodata: the value that marks pixels without data, in the units of the file: 0 to 255 with
            8 bits, and in a colour image the value of all three colours.
    """
    path = _named(file, "from_image")
    check_flag(invert, "invert")
    check_nodata(nodata)
    return FileContents(path, image_values(path, invert, nodata), ("values",)).density(
        missing=missing
    )


def read(
    file: str | os.PathLike[str],
    grid: Grid | None = None,
    kind: Kind | None = None,
    missing: Missing = "raise",
    nodata: float | None = None,
    outside: Outside = "raise",
) -> Density:
    """A density from a file, by its suffix. Every failure is a `FileError` that names the file.

    * images: see `from_image`;
    * .npy: values (n_1, ..., n_d), one to three axes;
    * .npz: an array `values` with optional corners `lower` and `upper` of the box, or one array;
    * .csv with a header `x[,y[,z]][,weight]`: a point cloud, counted on `grid`, which it needs;
    * .csv without header: a table of values, rows along axis 0; one row or one column is 1D.

    A table of two or three columns and more rows than columns, in a csv without header or in an
    array without a name, may as well be a list of points. It is refused unless `kind` says what
    its numbers are. Commas, semicolons, tabs or spaces separate the numbers of a csv.

    Args:
        file: what to read.
        grid: where the values live; by default the file's box or, if it has none, a box with
            longest side 1.
        kind: "values" of cells, or "points", a row for each and a column for each coordinate.
        missing: treatment of cells without a value (NaN or `nodata`), see `Density`.
        nodata: the number that marks cells without a value. For images see `from_image`.
        outside: treatment of points outside the grid's box: "raise" an error, or "drop" them.
    """
    if grid is not None:
        check_grid(grid)
    check_kind_of_file(kind)
    contents = parse_file(_named(file, "read"), nodata=nodata).told(kind)
    if contents.kind is None:
        raise FileError(f'{contents.doubt()}; give kind="points" or kind="values".')
    if nodata is not None and contents.kind == "points":
        raise FileError(f"{contents.file} holds points, and nodata is for cells; leave it out.")
    return contents.density(grid, outside, missing)


def read_points(
    file: str | os.PathLike[str], kind: Kind | None = None
) -> tuple[Tensor, Tensor | None]:
    """Points (n, d) and weights (n,), or None, from a csv with a header `x[,y[,z]][,weight]`.

    With `kind="points"` also from one without header, or from an array (n, d) in an npy.
    """
    check_kind_of_file(kind)
    contents = parse_file(_named(file, "read_points")).told(kind)
    if contents.kind != "points":
        raise FileError(
            f"{contents.file} has no header, so it may be a table of values; begin a cloud with a "
            'line such as x,y,weight, or give kind="points".'
        )
    return contents.points()


def _named(file: str | os.PathLike[str], function: str) -> Path:
    if not isinstance(file, str | os.PathLike):
        raise InputError(
            f"geonet.{function} takes the name of a file, not {type(file).__name__}; "
            "use geonet.Density(values, grid) for an array."
        )
    return Path(file)
