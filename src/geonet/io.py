"""Files: densities from images, arrays, tables and point clouds; geodesics from and to npz.

Orientation: the pixels of a picture, whether an image, an array or a table, are read as they are:
axis 0 runs down the rows and axis 1 to the right. Points have their coordinates in the order of the
axes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from geonet._files import (
    IMAGE_SUFFIXES,
    READABLE_SUFFIXES,
    atomic_write,
    open_npz,
    read_arrays,
    read_npy,
    wrap_read_errors,
)
from geonet._format import choose_verb
from geonet._images import Picture, read_picture
from geonet._validation import check_choice, check_flag, short_repr
from geonet.density import MASSES, Density, Mass, Missing, as_tensor, check_nodata, nodata_mask
from geonet.errors import FileError, InputError
from geonet.grid import Grid, check_grid
from geonet.mixture import GaussianMixture
from geonet.paths import Geodesic, Times, check_times
from geonet.samples import Outside, from_samples

COORDINATES = ("x", "y", "z")
LATITUDES, LONGITUDES = ("lat", "latitude"), ("lon", "longitude")
ROW_NUMBERS = ("", "id", "index", "fid", "unnamed: 0")  # pandas writes the first and the last
WEIGHT = "weight"  # name of a column of a point cloud

Corner = float | list[float]
Kind = Literal["points", "values"]
Restore = Callable[[dict[str, Any], dict[str, np.ndarray]], Any]


def from_image(
    file: str | os.PathLike[str],
    invert: bool = False,
    missing: Missing = "raise",
    nodata: float | None = None,
) -> Density:
    """Return the brightness of an image as a density; the longest side of its box has length 1.

    It reads the luminance of colours. A transparent pixel holds no mass, with or without `invert`.
    It takes the first frame of an animation, and applies the orientation that a camera recorded.
    A TIFF with several pages is a volume (pages, height, width). If a TIFF of ImageJ or OME has
    voxel sizes, they give the box. Both need the extra `tiff`.

    Args:
        file: PNG, JPEG, GIF, BMP, TIFF, WEBP or PPM, with 8 or 16 bits per channel.
        invert: whether dark pixels hold the mass instead of bright ones.
        missing: treatment of pixels without data, see `Density`.
        nodata: the value that marks pixels without data, in the units of the file: 0 to 255 with
            8 bits, and in a colour image the value of all three colours.
    """
    path = to_path(file)
    check_flag(invert, "invert")
    check_nodata(nodata)
    return _parse_image(path, invert, nodata).density(missing=missing)


def read(
    file: str | os.PathLike[str],
    grid: Grid | None = None,
    kind: Kind | None = None,
    missing: Missing = "raise",
    nodata: float | None = None,
    outside: Outside = "raise",
    columns: Sequence[str] | None = None,
) -> Density:
    """Read a density from a file, by its suffix. Every failure is a `FileError` with its name.

    * images: see `from_image`;
    * .npy: values (n_1, ..., n_d), one to three axes;
    * .npz: an array `values` with optional corners `lower` and `upper` of the box and flags
      `periodic` of its axes, or one array;
    * .csv with a header: a point cloud, counted on `grid`, which it needs. Its coordinates are the
      columns x, y and z or, if there is no x, up to three columns of any names, unless one of them
      numbers the rows; a column `weight` has the weights of the points;
    * .csv without header: a table of values, rows along axis 0; one row or one column is 1D.

    A table of two or three columns and more rows than columns, in a csv without header or in an
    array without a name, may also be a list of points; it needs `kind`. Commas, semicolons, tabs or
    spaces separate the numbers of a csv.

    Args:
        file: the file to read.
        grid: the cells of the values; by default the file's box or, if it has none, a box with
            longest side 1.
        kind: "values" of cells, or "points", a row for each and a column for each coordinate.
        missing: treatment of cells without a value (NaN or `nodata`), see `Density`.
        nodata: the number that marks cells without a value. For images see `from_image`.
        outside: treatment of points outside the grid's box: "raise" an error, or "drop" them.
        columns: names of the coordinates of a csv with a header, in the order of the axes.
    """
    if grid is not None:
        check_grid(grid)
    contents = parse_file(to_path(file), nodata=nodata, columns=columns).with_kind(kind)
    if contents.kind is None:
        raise FileError(f'{contents.ambiguity()}; give kind="points" or kind="values".')
    if nodata is not None and contents.kind == "points":
        raise FileError(
            f"{contents.file} contains points, and nodata marks cells; leave nodata out."
        )
    return contents.density(grid, outside, missing)


def parse_file(
    file: Path,
    invert: bool = False,
    nodata: float | None = None,
    columns: Sequence[str] | None = None,
) -> FileContents:
    """Return the numbers of a file, by its suffix, before they are a density."""
    check_nodata(nodata)
    suffix = file.suffix.lower()
    if columns is not None and suffix != ".csv":
        raise FileError(f"{file} has no named columns, as a csv may have; leave columns out.")
    if suffix in IMAGE_SUFFIXES:
        return _parse_image(file, invert, nodata)
    parsers = {".npy": _parse_npy, ".npz": _parse_npz, ".csv": partial(_parse_csv, columns=columns)}
    if suffix not in parsers:
        if file.is_dir():
            raise FileError(f"{file} is a folder; give the name of a file in it.")
        raise FileError(
            f"{file} has the unknown suffix {suffix!r}; use one of {', '.join(READABLE_SUFFIXES)}."
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
        names: names of the coordinates, for points of a csv with a header.
        has_weights: whether the last column holds weights of points.
        box: corners (lower, upper), or None if the file has none.
        periodic: flags of the periodic axes, or one for all.
        picture: the picture that gave the values, or None.
    """

    file: Path
    numbers: np.ndarray
    kinds: tuple[Kind, ...]
    names: tuple[str, ...] = ()
    has_weights: bool = False
    box: tuple[Corner, Corner] | None = None
    periodic: bool | tuple[bool, ...] = False
    picture: Picture | None = None

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
            hint = ""
            if self.picture is not None and self.picture.is_ink and not self.numbers.any():
                hint = (
                    " Its visible pixels are black; invert=True (--invert on the command line) "
                    "makes dark pixels hold the mass."
                )
            raise FileError(f"{self.file} does not hold a density: {error}{hint}") from error

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
            raise FileError(f"{self.file} has no rows; give one row for each point.")
        bad = int((~torch.isfinite(table)).any(-1).sum())
        if bad:
            raise FileError(
                f"{bad} of {len(table)} rows of {self.file} {choose_verb(bad, 'has', 'have')} NaN "
                "or infinite numbers; remove such rows."
            )
        return (table[:, :-1], table[:, -1]) if self.has_weights else (table, None)

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
            return Grid(shape, *self.box, periodic=self.periodic)
        return Grid(shape, 0.0, [n / max(1, *shape) for n in shape], periodic=self.periodic)


def _parse_image(file: Path, invert: bool, nodata: float | None) -> FileContents:
    picture = read_picture(file, invert, nodata)
    box: tuple[Corner, Corner] | None = None
    if picture.voxel is not None:
        shape = picture.brightness.shape
        box = 0.0, [n * size for n, size in zip(shape, picture.voxel, strict=True)]
    return FileContents(file, picture.brightness, ("values",), box=box, picture=picture)


def _infer_kinds(file: Path, numbers: np.ndarray) -> FileContents:
    """Return numbers without a name; points are (n,) or (n, d)."""
    shape = numbers.shape
    may_be_points = len(shape) == 1 or (len(shape) == 2 and 1 <= shape[1] <= len(COORDINATES))
    return FileContents(file, numbers, get_args(Kind) if may_be_points else ("values",))


def to_path(file: str | os.PathLike[str]) -> Path:
    """Return a file name as a path; raise InputError for anything else."""
    if not isinstance(file, str | os.PathLike):
        raise InputError(
            f"The file is {short_repr(file)}; give the name of a file, or use "
            "geonet.Density(values, grid) for an array."
        )
    return Path(file)


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
            raise FileError(f"{file} has only one of 'lower' and 'upper'; give both or neither.")
        box = None
        if "lower" in names:
            box = _parse_corner(archive["lower"]), _parse_corner(archive["upper"])
        periodic = _parse_flags(archive["periodic"]) if "periodic" in names else False
        return FileContents(file, values, ("values",), box=box, periodic=periodic)


def _parse_flags(flags: np.ndarray) -> bool | tuple[bool, ...]:
    if flags.dtype.kind != "b" or flags.ndim > 1:
        raise ValueError("its array 'periodic' does not hold one flag, or one per axis")
    return tuple(flags.tolist()) if flags.ndim else bool(flags)


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


def _parse_csv(file: Path, columns: Sequence[str] | None = None) -> FileContents:
    names, lines = _split_header(file)
    if names is None:
        if columns is not None:
            raise FileError(f"{file} has no header with names; leave columns out.")
        return _infer_kinds(file, _parse_rows(file, lines))
    axes = _choose_columns(file, names, columns)
    has_weights = WEIGHT in names
    chosen = [names.index(name) for name in (*axes, *((WEIGHT,) if has_weights else ()))]
    width = len(_split_row(lines[0], _separator(lines)))
    if width != len(names):
        raise FileError(
            f"{file} names {len(names)} columns but has {width}; "
            "give every row as many entries as the header has names."
        )
    numbers = _parse_rows(file, lines, chosen)
    if columns is None:
        _check_row_numbers(file, axes, numbers)
    return FileContents(file, numbers, ("points",), axes, has_weights)


def _choose_columns(file: Path, names: list[str], columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the coordinates in the order of the axes."""
    listed = ", ".join(names)
    if len(set(names)) < len(names):
        raise FileError(f"{file} has the columns {listed}; give every column its own name.")
    if columns is not None:
        axes = tuple(check_columns(columns))
        unknown = [name for name in axes if name not in names]
        if unknown:
            raise FileError(f"{file} has no column {unknown[0]!r}; its columns are {listed}.")
        return axes
    others = [name for name in names if name != WEIGHT]
    axes = tuple(name for name in COORDINATES if name in others)
    if axes == COORDINATES[: len(axes)] and len(axes) == len(others) > 0:
        return axes
    if "x" in others or not 1 <= len(others) <= len(COORDINATES):
        raise FileError(
            f"{file} has the columns {listed}; choose one to three coordinates with columns, on "
            "the command line --columns, such as x,y. A column named weight has the weights."
        )
    # latitude is the vertical axis, also in the files that name it first
    return tuple(sorted(others, key=lambda name: name in LATITUDES))


def _check_row_numbers(file: Path, axes: tuple[str, ...], numbers: np.ndarray) -> None:
    """Raise FileError if a column numbers the rows by its name, or counts 0, 1, 2 or 1, 2, 3."""
    count = np.arange(len(numbers))
    for name, column in zip(axes, numbers.T, strict=False):  # the weights are the last column
        if name in (*COORDINATES, *LATITUDES, *LONGITUDES):
            continue
        is_count = len(count) > 2 and any(np.array_equal(column, count + k) for k in (0, 1))
        if is_count or name in ROW_NUMBERS:
            raise FileError(
                f"The column {name!r} of {file} seems to number the rows; choose the coordinates "
                "with columns, on the command line --columns, such as lon,lat."
            )


def check_columns(columns: Sequence[str]) -> list[str]:
    """Return names of coordinates in lower case; raise InputError for anything else."""
    is_list = isinstance(columns, Sequence) and not isinstance(columns, str)
    if not is_list or not all(isinstance(name, str) for name in columns):
        raise InputError(f"columns is {short_repr(columns)}; give names such as ('lon', 'lat').")
    axes = [name.strip().lower() for name in columns]
    if not 1 <= len(set(axes)) == len(axes) <= len(COORDINATES) or WEIGHT in axes:
        raise InputError(
            f"columns are {', '.join(axes) or 'empty'}; give one to three different names of "
            "coordinates. A column named weight has the weights."
        )
    return axes


def _split_header(file: Path) -> tuple[list[str] | None, list[str]]:
    """Return the names of the columns, or None without a header, and the lines of numbers."""
    with wrap_read_errors(file, "a csv table"):
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    lines = [line for line in text.splitlines() if line.strip()]
    names = None
    if lines:
        cells = _split_row(lines[0].strip().lstrip("# "), _separator(lines[:1]))
        if not any(map(_is_number, cells)):
            names = [name.strip().strip('"').lower() for name in cells]
            lines = lines[1:]
    if not lines:
        raise FileError(f"{file} has no rows of numbers; give another file.")
    if any("," in line for line in lines) and any(";" in line for line in lines):
        raise FileError(
            f"{file} has both commas and semicolons; "
            "separate numbers by one of them, and write decimals with a point."
        )
    return names, lines


def _parse_rows(file: Path, lines: list[str], columns: list[int] | None = None) -> np.ndarray:
    """Return rows of numbers, (rows, columns), float64; by default of all columns."""
    separator = _separator(lines)
    try:
        return np.loadtxt(
            lines, delimiter=separator, ndmin=2, comments=None, usecols=columns, quotechar='"'
        )
    except ValueError as error:
        width = len(_split_row(lines[0], separator))
        wanted = range(width) if columns is None else columns
        rows = ((line, _split_row(line, separator)) for line in lines)
        broken = (
            r for r, c in rows if len(c) != width or not all(_is_number(c[k]) for k in wanted)
        )
        names = {",": "commas", ";": "semicolons", None: "spaces or tabs"}
        other = ", or choose the coordinates with columns, on the command line --columns, such as "
        other = f"{other}lon,lat" if columns else ""
        raise FileError(
            f"{file} has the row {next(broken, lines[0])[:40]!r}, not {width} numbers separated by "
            f"{names[separator]}; correct or remove it{other}."
        ) from error


def _split_row(line: str, separator: str | None) -> list[str]:
    """Return the cells of a row; quoted cells may contain the separator."""
    if separator is None:
        return line.split()
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])


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
    """Write frames and their grid as arrays for any reader, and the state to load.

    The arrays for any reader are times, density, mass, lower, upper and periodic.
    """
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
        "periodic": np.array(frames.grid.periodic),
        "geonet": np.array(json.dumps(header, default=np.generic.item)),  # NumPy's numbers
        **_serialize_density("source", path.source),
        **_serialize_density("target", path.target),
        **{f"state/{key}": value for key, value in path._state().items()},
    }
    arrays["sha256"] = np.array(compute_digest(arrays))
    with atomic_write(file) as temporary:
        # Not compressed: that takes ten times as long as most paths, and saves a quarter.
        np.savez(temporary, **arrays)  # pyright: ignore[reportArgumentType]  # of NumPy 2 alone
    return file


def load_saved(file: Path, others: Mapping[str, Restore]) -> Any:
    """Read a path that `save_geodesic` wrote, or another saved result.

    Args:
        file: an npz.
        others: functions of header and arrays that restore results of other kinds, by their kind.
    """
    if file.is_file() and file.suffix.lower() in (*IMAGE_SUFFIXES, ".npy", ".csv"):
        raise FileError(f"{file} is not a saved geodesic, which is an .npz file that save() wrote.")
    arrays = read_arrays(file, "a saved geodesic")
    if "geonet" not in arrays:
        raise FileError(
            f"{file} is an npz file but not a saved geodesic; write one with path.save()."
        )
    with wrap_read_errors(file, "a saved geodesic"):
        return _deserialize(file, arrays, others)


def _deserialize(file: Path, arrays: dict[str, np.ndarray], others: Mapping[str, Restore]) -> Any:
    header = json.loads(str(arrays["geonet"]))
    if header["format"] != 1 or header["kind"] not in (*Geodesic.kinds, *others):
        raise FileError(
            f"{file} has format {header['format']!r} and kind {header['kind']!r}, which this "
            "version does not support; load it with the version that wrote it."
        )
    if str(arrays.get("sha256")) != compute_digest(arrays):
        raise FileError(f"{file} was changed after it was written; save the geodesic again.")
    if header["kind"] in others:
        return others[header["kind"]](header, arrays)
    periodic = arrays["periodic"].tolist() if "periodic" in arrays else False  # older files
    box = (arrays["lower"].tolist(), arrays["upper"].tolist(), header["orientation"], periodic)
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


def compute_digest(arrays: dict[str, np.ndarray]) -> str:
    """Return the checksum over the state of a saved result, without the frames for readers."""
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
