"""Files: densities from images, arrays, tables and point clouds; geodesics from and to npz.

Orientation: the pixels of a picture, whether an image, an array or a table, are read as they are:
axis 0 runs down the rows and axis 1 to the right. Points have their coordinates in the order of the
axes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from geonet._files import (
    MAX_COMPRESSION,
    atomic_write,
    open_npz,
    read_arrays,
    read_npy,
    wrap_read_errors,
)
from geonet._utils import suppress_warnings
from geonet._validation import check_choice, check_flag, short_repr
from geonet.density import MASSES, Density, Mass, Missing, as_tensor, check_nodata, nodata_mask
from geonet.errors import FileError, InputError
from geonet.grid import Grid, check_grid
from geonet.mixture import GaussianMixture
from geonet.paths import Geodesic, Times, check_times
from geonet.samples import Outside, from_samples

IMAGE_SUFFIXES = tuple(f".{s}" for s in "png jpg jpeg gif bmp tif tiff webp pgm ppm".split())  # noqa: SIM905
IMAGE_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")  # EPS would run code
COORDINATES = ("x", "y", "z")

Corner = float | list[float]
Kind = Literal["points", "values"]


def from_image(
    file: str | os.PathLike[str],
    invert: bool = False,
    missing: Missing = "raise",
    nodata: float | None = None,
) -> Density:
    """Return the brightness of an image as a density; the longest side of its box has length 1.

    It reads the luminance of colours. A transparent pixel holds no mass, with or without `invert`.
    It takes the first frame of an animation, and applies the orientation that a camera recorded.

    Args:
        file: PNG, JPEG, GIF, BMP, TIFF, WEBP or PPM, with 8 or 16 bits per channel.
        invert: whether dark pixels hold the mass instead of bright ones.
        missing: treatment of pixels without data, see `Density`.
        nodata: the value that marks pixels without data, in the units of the file: 0 to 255 with
            8 bits, and in a colour image the value of all three colours.
    """
    path = _to_path(file)
    check_flag(invert, "invert")
    check_nodata(nodata)
    contents = FileContents(path, _read_image(path, invert, nodata), ("values",))
    return contents.density(missing=missing)


def read(
    file: str | os.PathLike[str],
    grid: Grid | None = None,
    kind: Kind | None = None,
    missing: Missing = "raise",
    nodata: float | None = None,
    outside: Outside = "raise",
) -> Density:
    """Read a density from a file, by its suffix. Every failure is a `FileError` with its name.

    * images: see `from_image`;
    * .npy: values (n_1, ..., n_d), one to three axes;
    * .npz: an array `values` with optional corners `lower` and `upper` of the box, or one array;
    * .csv with a header `x[,y[,z]][,weight]`: a point cloud, counted on `grid`, which it needs;
    * .csv without header: a table of values, rows along axis 0; one row or one column is 1D.

    A table of two or three columns and more rows than columns, in a csv without header or in an
    array without a name, may also be a list of points; it needs `kind`. Commas, semicolons, tabs or
    spaces separate the numbers of a csv.

    Args:
        file: the file to read.
        grid: where the values live; by default the file's box or, if it has none, a box with
            longest side 1.
        kind: "values" of cells, or "points", a row for each and a column for each coordinate.
        missing: treatment of cells without a value (NaN or `nodata`), see `Density`.
        nodata: the number that marks cells without a value. For images see `from_image`.
        outside: treatment of points outside the grid's box: "raise" an error, or "drop" them.
    """
    if grid is not None:
        check_grid(grid)
    contents = parse_file(_to_path(file), nodata=nodata).with_kind(kind)
    if contents.kind is None:
        raise FileError(f'{contents.ambiguity()}; give kind="points" or kind="values".')
    if nodata is not None and contents.kind == "points":
        raise FileError(f"{contents.file} holds points, and nodata is for cells; leave it out.")
    return contents.density(grid, outside, missing)


def parse_file(file: Path, invert: bool = False, nodata: float | None = None) -> FileContents:
    """Return the numbers of a file, by its suffix, before they are a density."""
    check_nodata(nodata)
    suffix = file.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return FileContents(file, _read_image(file, invert, nodata), ("values",))
    parsers = {".npy": _parse_npy, ".npz": _parse_npz, ".csv": _parse_csv}
    if suffix not in parsers:
        raise FileError(
            f"{file} has the unknown suffix {suffix!r}; "
            f"use one of {', '.join((*IMAGE_SUFFIXES, *parsers))}."
        )
    contents = parsers[suffix](file)
    numbers = contents.numbers
    if numbers.dtype.kind not in "biuf":
        raise FileError(f"{file} holds {numbers.dtype} values; save an array of real numbers.")
    if nodata is None:
        return contents
    return replace(contents, numbers=np.ma.masked_array(numbers, nodata_mask(numbers, nodata)))


@dataclass(frozen=True)
class FileContents:
    """The numbers of a file, before they are a density.

    Attributes:
        file: the file.
        numbers: values of cells (n_1, ..., n_d), masked if there are no data; or points, one a row.
        kinds: the possible meanings of the numbers, "points", "values" or both.
        names: names of the columns, for points.
        box: corners (lower, upper), or None if the file has none.
    """

    file: Path
    numbers: np.ndarray
    kinds: tuple[Kind, ...]
    names: tuple[str, ...] = COORDINATES
    box: tuple[Corner, Corner] | None = None

    @property
    def kind(self) -> Kind | None:
        """The meaning of the numbers, or None if it is ambiguous.

        Few densities have an axis of two or three cells, and most clouds have more points than
        coordinates. A row or a column is a histogram.
        """
        if len(self.kinds) == 1:
            return self.kinds[0]
        shape = self.numbers.shape
        return None if len(shape) == 2 and shape[0] > shape[1] > 1 else "values"

    def with_kind(self, kind: Kind | None) -> FileContents:
        """Return the contents with the kind that the user gave, if any."""
        if kind is None:
            return self
        check_choice(kind, get_args(Kind), "kind")
        if kind not in self.kinds:
            raise FileError(f"{self.file} holds {self.kinds[0]} and no {kind}; leave kind out.")
        return replace(self, kinds=(kind,))

    def ambiguity(self) -> str:
        """Return the reason why the kind is not known."""
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
                return self._count_points(grid, outside)
            values = self.values()
            return Density(values, grid or self._default_grid(values.shape), missing)
        except FileError:
            raise
        except InputError as error:
            raise FileError(f"{self.file} does not hold a density: {error}") from error

    def values(self) -> np.ndarray:
        """Return (n_1, ..., n_d), masked if there are no data; one row or column of a csv is 1D."""
        numbers = self.numbers
        if self.file.suffix.lower() == ".csv" and 1 in numbers.shape:
            return numbers.ravel()
        if not 1 <= numbers.ndim <= len(COORDINATES):
            raise FileError(
                f"{self.file} holds an array of shape {numbers.shape}; "
                f"a density has one to {len(COORDINATES)} axes, one per dimension."
            )
        return numbers

    def points(self) -> tuple[Tensor, Tensor | None]:
        """Return points (n, d) and weights (n,), or None."""
        table = as_tensor(np.ma.getdata(self.numbers)).double()
        table = table[:, None] if table.ndim == 1 else table
        if not len(table):
            raise FileError(f"{self.file} has no rows; write it again.")
        bad = int((~torch.isfinite(table)).any(-1).sum())
        if bad:
            raise FileError(
                f"{bad} of {len(table)} rows of {self.file} are NaN or infinite; remove them."
            )
        names = self.names[: table.shape[-1]]
        axes = [names.index(name) for name in COORDINATES if name in names]
        return table[:, axes], table[:, names.index("weight")] if "weight" in names else None

    def _count_points(self, grid: Grid | None, outside: Outside) -> Density:
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
        density = from_samples(points, grid, weights, outside)
        density.is_torch = False
        return density

    def _default_grid(self, shape: tuple[int, ...]) -> Grid:
        """Return equal cells on the file's box, or on a box whose longest side is 1."""
        if self.box is not None:
            return Grid(shape, *self.box)
        return Grid(shape, 0.0, [n / max(1, *shape) for n in shape])


def _infer_kinds(file: Path, numbers: np.ndarray) -> FileContents:
    """Return numbers without a name; points are (n,) or (n, d)."""
    shape = numbers.shape
    may_be_points = len(shape) == 1 or (len(shape) == 2 and 1 <= shape[1] <= len(COORDINATES))
    return FileContents(file, numbers, get_args(Kind) if may_be_points else ("values",))


def _to_path(file: str | os.PathLike[str]) -> Path:
    if not isinstance(file, str | os.PathLike):
        raise InputError(
            f"The file is {short_repr(file)}; give the name of a file, or use "
            "geonet.Density(values, grid) for an array."
        )
    return Path(file)


# ---- Images


def _read_image(file: Path, invert: bool, nodata: float | None) -> np.ndarray:
    """Return brightness (or darkness) in [0, 1] times opacity, (height, width)."""
    with (
        wrap_read_errors(file, "an image"),
        suppress_warnings(),  # about metadata
        Image.open(file, formats=IMAGE_FORMATS) as image,
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
    """Raise if there are more pixels than Pillow's limit, or than a PNG of `size` bytes can hold.

    Pillow raises only above twice its limit. It allocates by the header; a byte holds eight pixels
    at most before compression.
    """
    pixels, limit = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if limit is not None and pixels > limit:
        raise Image.DecompressionBombError(
            f"Image size ({pixels} pixels) exceeds Pillow's limit of {limit} pixels"
        )
    if image.format == "PNG" and pixels > 8 * MAX_COMPRESSION * size:
        raise ValueError(f"its header says {pixels} pixels, more than there are")


def _grey_and_opacity(
    image: Image.Image, nodata: float | None
) -> tuple[np.ndarray, np.ndarray | float]:
    """Return luminance (height, width) in [0, 1], masked at `nodata`, and alpha in [0, 1]."""
    if image.mode[0] in "IF":  # 16-bit or 32-bit integers, or floats: one channel, no alpha
        levels = as_tensor(np.asarray(image)).double().numpy()
        if nodata is not None:
            levels = np.ma.masked_array(levels, nodata_mask(np.asarray(image), nodata))
        white = 1.0 if image.mode == "F" else 65535.0
        brightest = 0.0 if np.ma.getmaskarray(levels).all() else levels.max()
        return levels / max(white, brightest), 1.0
    channels = np.asarray(image.convert("RGBA"))
    weights = (299, 587, 114)  # thousandths, ITU-R BT.601; integers keep white exactly 1
    grey = np.zeros(channels.shape[:2])
    for k, weight in enumerate(weights):  # one at a time, to save memory
        grey += np.float64(weight) * channels[..., k]
    if nodata is not None:
        if nodata not in range(256):
            raise InputError(
                f"nodata is {nodata:g} and a pixel of 8 bits is an integer from 0 to 255; "
                "give the value of pixels without data."
            )
        grey = np.ma.masked_array(grey, nodata_mask(channels[..., :3], nodata).all(-1))
    return grey / (255 * sum(weights)), channels[..., 3] / 255


# ---- NumPy files


def _parse_npy(file: Path) -> FileContents:
    with wrap_read_errors(file, "an npy array"), file.open("rb") as stream:
        numbers = _explain_pickle(file, lambda: read_npy(stream, file.stat().st_size))
    return _infer_kinds(file, numbers)


def _parse_npz(file: Path) -> FileContents:
    """Return the array `values` or the only one, with the box if its corners are given."""
    with open_npz(file, "an npz archive") as archive:
        names = list(archive)
        if "geonet" in names:
            raise FileError(
                f"{file} is a saved geodesic; open it with geonet.load({str(file)!r}) or with the "
                "command geonet report."
            )
        if "values" not in names and len(names) != 1:
            raise FileError(
                f"{file} holds the arrays {', '.join(names) or '(none)'}; "
                "name the one with the density 'values'."
            )
        if "values" not in names:
            return _infer_kinds(file, _explain_pickle(file, lambda: archive[names[0]]))
        values = _explain_pickle(file, lambda: archive["values"])
        if ("lower" in names) != ("upper" in names):
            raise FileError(f"{file} has only one of 'lower' and 'upper'; give both or none.")
        box = None
        if "lower" in names:
            box = _parse_corner(archive["lower"]), _parse_corner(archive["upper"])
        return FileContents(file, values, ("values",), box=box)


def _parse_corner(corner: np.ndarray) -> Corner:
    if np.iscomplexobj(corner):  # astype would only warn
        raise ValueError("a corner of its box is complex")
    numbers = corner.astype(np.float64).ravel().tolist()
    return numbers[0] if len(numbers) == 1 else numbers


def _explain_pickle(file: Path, load: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return load()
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise FileError(
            f"{file} holds pickled objects, which are never loaded because they can run code; "
            "save it as an array of numbers with numpy.save."
        ) from error


# ---- Tables and point clouds


def _parse_csv(file: Path) -> FileContents:
    names, lines = _split_header(file)
    if names is None:
        return _infer_kinds(file, _parse_rows(file, lines))
    axes = [name for name in COORDINATES if name in names]
    known = len(axes) + ("weight" in names)
    if not axes or tuple(axes) != COORDINATES[: len(axes)] or known != len(names):
        raise FileError(
            f"{file} has the columns {', '.join(names)}; a point cloud has x, then y and z "
            "as needed, and weight if points count differently."
        )
    table = _parse_rows(file, lines)
    if table.shape[-1] != len(names):
        raise FileError(
            f"{file} names {len(names)} columns but has {table.shape[-1]}; "
            "give every row as many numbers as the header has names."
        )
    return FileContents(file, table, ("points",), tuple(names))


def _split_header(file: Path) -> tuple[list[str] | None, list[str]]:
    """Return the names of the columns, or None without a header, and the lines of numbers."""
    with wrap_read_errors(file, "a csv table"):
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
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


def _parse_rows(file: Path, lines: list[str]) -> np.ndarray:
    """Return rows of numbers, (rows, columns), float64."""
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
        names = {",": "commas", ";": "semicolons", None: "spaces or tabs"}
        raise FileError(
            f"{file} has the row {next(broken, lines[0])[:40]!r}, not {width} numbers separated by "
            f"{names[separator]}; correct or remove it."
        ) from error


def _separator(lines: list[str]) -> str | None:
    """Return a comma or a semicolon if there is one, else None for white space."""
    return next((mark for mark in (",", ";") if any(mark in line for line in lines)), None)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# ---- Geodesics


def save_geodesic(path: Geodesic, file: Path, times: Times, grid: Grid | None, mass: Mass) -> Path:
    """Write frames (times, density, mass, lower, upper) for any reader, and the state to load."""
    if file.suffix.lower() != ".npz":
        raise FileError(f"{file} does not end in .npz; a geodesic is saved as an npz file.")
    if not isinstance(path.source, Density):
        raise InputError("A path without a grid cannot be saved; give both ends on a grid.")
    check_choice(mass, MASSES, "mass")
    frame_times, _ = check_times(times)
    frames = path.density(frame_times, grid)
    masses = frames.mass_tensor if mass == "given" else torch.ones_like(frames.mass_tensor)
    header = {
        "format": 1,
        "kind": path.kind,
        "solver": path.solver,
        "info": path.info,
        "orientation": path.grid.orientation,
    }
    arrays = {
        "times": frame_times.numpy(),
        "density": frames.numpy(mass),
        "mass": masses.numpy(),
        "lower": np.array(frames.grid.lower),
        "upper": np.array(frames.grid.upper),
        "geonet": np.array(json.dumps(header)),
        **_serialize_density("source", path.source),
        **_serialize_density("target", path.target),
        **{f"state/{key}": value for key, value in path._state().items()},
    }
    arrays["sha256"] = np.array(_digest(arrays))
    with atomic_write(file) as temporary:
        # Not compressed: that takes ten times as long as most paths, and saves a quarter.
        np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]  # of NumPy 2 alone
    return file


def load_geodesic(file: Path) -> Geodesic:
    """Read a path that `save_geodesic` wrote; its results are NumPy arrays."""
    arrays = read_arrays(file, "a saved geodesic")
    if "geonet" not in arrays:
        raise FileError(f"{file} is an npz but no saved geodesic; write one with path.save().")
    with wrap_read_errors(file, "a saved geodesic"):
        return _deserialize(file, arrays)


def _deserialize(file: Path, arrays: dict[str, np.ndarray]) -> Geodesic:
    header = json.loads(str(arrays["geonet"]))
    if header["format"] != 1 or header["kind"] not in Geodesic.kinds:
        raise FileError(
            f"{file} has format {header['format']!r} and kind {header['kind']!r}, which this "
            "version does not know; load it with the version that wrote it."
        )
    if str(arrays.get("sha256")) != _digest(arrays):
        raise FileError(f"{file} was changed after it was written; save the geodesic again.")
    box = (arrays["lower"].tolist(), arrays["upper"].tolist(), header["orientation"])
    source, target = (_deserialize_density(arrays, end, box) for end in ("source", "target"))
    state = {
        name.removeprefix("state/"): _copy_aligned(array)
        for name, array in arrays.items()
        if name.startswith("state/")
    }
    kind = Geodesic.kinds[header["kind"]]
    return kind._from_state(source, target, header["solver"], header["info"], state)


def _copy_aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy with the alignment of torch's tensors.

    The rounding of matrix products depends on the alignment of their factors; this way a loaded
    path gives the same bits as the saved one.
    """
    return torch.from_numpy(array).clone().numpy() if array.dtype.kind in "biuf" else array


def _digest(arrays: dict[str, np.ndarray]) -> str:
    """Return the checksum over all that `load_geodesic` needs, without the frames."""
    digest = hashlib.sha256()
    for name in sorted(arrays.keys() - {"times", "density", "mass", "sha256"}):
        value = arrays[name]
        digest.update(f"{name} {value.dtype.str} {value.shape} ".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _serialize_density(name: str, density: Density) -> dict[str, np.ndarray]:
    arrays = {name: density.numpy(), f"{name}/mass": density.mass_tensor.detach().numpy()}
    if density.mixture is not None:
        parameters = density.mixture.parameters().items()
        arrays |= {f"{name}/{key}": value.detach().numpy() for key, value in parameters}
    return arrays


def _deserialize_density(arrays: dict[str, np.ndarray], name: str, box: Any) -> Density:
    values, d = arrays[name], len(box[0])
    density = Density(values, Grid(values.shape[values.ndim - d :], *box))
    density.tensor = torch.from_numpy(_copy_aligned(values))  # normalising would round again
    density.mass_tensor = torch.from_numpy(_copy_aligned(arrays[f"{name}/mass"]))
    if f"{name}/means" in arrays:
        names = ("means", "covariances", "weights")
        density.mixture = GaussianMixture(*(arrays[f"{name}/{key}"] for key in names))
    return density
