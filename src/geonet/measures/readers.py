"""Densities from images, arrays, tables, point clouds and functions.

Orientation: `values[i, j]` has axis 0 = x to the right and axis 1 = y upwards, so the pixels of an
image (rows from the top) become `pixels[::-1].T`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image, ImageOps
from torch import Tensor

from geonet.arguments import as_path, shown
from geonet.errors import DensityError, FileError, InputError
from geonet.files import open_npz, read_npy, reading
from geonet.measures.density import Density, as_points, as_tensor
from geonet.measures.grid import Grid, check_grid
from geonet.quiet import quiet

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp"),
    *(".pgm", ".ppm"),
)
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")  # no other, such as EPS, is run
SUFFIXES = (*IMAGE_SUFFIXES, ".npy", ".npz", ".csv")
LUMA = (299, 587, 114)  # thousandths, ITU-R BT.601; whole numbers keep white exactly 1
COORDINATES = ("x", "y", "z")
WEIGHT = "weight"
MAX_AXES = 3

Corner = float | list[float]


def from_function(function: Callable[[Tensor], ArrayLike | Tensor], grid: Grid) -> Density:
    """The density with values function(x) at the cell centres.

    Args:
        function: takes points `(*shape, d)`, a float64 tensor, and gives values `(*shape)`,
            NumPy or torch.
        grid: where to evaluate it.
    """
    check_grid(grid)
    if not callable(function):
        raise InputError(
            f"function is {shown(function)}; give a function of points, "
            "or geonet.Density(values, grid) for values."
        )
    values = as_tensor(function(grid.points()))
    if tuple(values.shape) != grid.shape:
        raise DensityError(
            f"The function gave values of shape {tuple(values.shape)} for points of shape "
            f"{(*grid.shape, grid.dimension)}; it must give one value per point, {grid.shape}."
        )
    return Density(values, grid)


def from_samples(
    points: ArrayLike | Tensor,
    grid: Grid,
    weights: ArrayLike | Tensor | None = None,
    outside: Literal["error", "drop"] = "error",
) -> Density:
    """The histogram of a point cloud: each cell gets the weight of the points in it.

    Args:
        points: (n, d); in 1D also (n,).
        grid: the cells. A point on the upper face of the box belongs to the last cell.
        weights: (n,), non-negative; every point counts the same if not given.
        outside: what to do with points outside the box: "error" or "drop".
    """
    if outside not in ("error", "drop"):
        raise InputError(f"outside is {outside!r}; give 'error' or 'drop'.")
    check_grid(grid)
    where = as_points(points, grid.dimension)
    if where.ndim > 2:
        raise InputError(f"Samples have shape {tuple(where.shape)}; give one cloud, (n, d).")
    where = where.reshape(-1, grid.dimension)
    amounts = _check_weights(weights, len(where))
    lower, upper = grid.corner("lower"), grid.corner("upper")
    inside = ((where >= lower) & (where <= upper)).all(-1)
    _check_inside(int(inside.sum()), len(where), grid, outside)
    last = torch.tensor(grid.shape) - 1
    cells = ((where[inside] - lower) / torch.tensor(grid.spacing, dtype=torch.float64)).long()
    flat = np.ravel_multi_index(tuple(torch.minimum(cells, last).T.numpy()), grid.shape)
    counts = np.bincount(flat, weights=amounts[inside].numpy(), minlength=grid.size)
    return Density(counts.reshape(grid.shape), grid)


def from_image(file: str | Path, invert: bool = False) -> Density:
    """The brightness of an image as a density; the longest side of its box has length 1.

    It reads the luminance of colours. A transparent pixel holds no mass, with or without `invert`.
    It takes the first frame of an animation, and applies the orientation that a camera recorded.

    Args:
        file: PNG, JPEG, GIF, BMP, TIFF, WEBP or PPM, with 8 or 16 bits per channel.
        invert: whether dark pixels hold the mass instead of bright ones.
    """
    if hasattr(file, "shape"):
        raise InputError(
            "geonet.from_image takes the name of a file, and this is an array; "
            "use geonet.Density(values, grid)."
        )
    path = as_path(file)
    return _density_from(path, _image_values(path, invert), None)


def read(file: str | Path, grid: Grid | None = None) -> Density:
    """A density from a file, by its suffix. Every failure is a `FileError` that names the file.

    * images: see `from_image`;
    * .npy: values (n_1, ..., n_d), one to three axes;
    * .npz: an array `values` with optional corners `lower` and `upper` of the box, or one array;
    * .csv with a header `x[,y[,z]][,weight]`: a point cloud, counted on `grid`, which it needs;
    * .csv without header: a table of values, rows along axis 0; one row or one column is 1D.

    Args:
        file: what to read.
        grid: where the values live; by default the file's box or, if it has none, a box with
            longest side 1.
    """
    file = as_path(file)
    if grid is not None:
        check_grid(grid)
    suffix = file.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        return _density_from(file, _image_values(file, invert=False), grid)
    if suffix == ".npy":
        return _density_from(file, _npy_array(file), grid)
    if suffix == ".npz":
        values, box = _npz_arrays(file)
        return _density_from(file, values, grid, box)
    if suffix == ".csv":
        return _density_from_csv(file, grid)
    raise FileError(
        f"Cannot tell from its suffix {suffix!r} what {file} holds; "
        f"use one of {', '.join(SUFFIXES)}."
    )


def read_points(file: str | Path) -> tuple[Tensor, Tensor | None]:
    """Points (n, d) and weights (n,), or None, from a csv with a header `x[,y[,z]][,weight]`."""
    file = as_path(file)
    names, lines = _csv_lines(file)
    if names is None:
        raise FileError(
            f"{file} has no header, so it is a table of values and not a point cloud; "
            "begin a cloud with a line such as x,y,weight."
        )
    axes = [name for name in COORDINATES if name in names]
    known = len(axes) + (WEIGHT in names)
    if not axes or tuple(axes) != COORDINATES[: len(axes)] or known != len(names):
        raise FileError(
            f"{file} has the columns {', '.join(names)}; a point cloud has x, then y and z "
            "as needed, and weight if points count differently."
        )
    table = torch.from_numpy(_csv_numbers(file, lines))
    if table.shape[-1] != len(names):
        raise FileError(
            f"{file} names {len(names)} columns but has {table.shape[-1]}; "
            "give every row as many numbers as the header has names."
        )
    points = table[:, [names.index(name) for name in axes]]
    bad = int((~torch.isfinite(table)).any(-1).sum())
    if bad:
        raise FileError(f"{bad} of {len(table)} rows of {file} are NaN or infinite; remove them.")
    return points, table[:, names.index(WEIGHT)] if WEIGHT in names else None


def is_cloud(file: str | Path) -> bool:
    """Whether the file is a csv with a header, that is a point cloud."""
    file = as_path(file)
    return file.suffix.lower() == ".csv" and _csv_lines(file)[0] is not None


# ---- samples


def _check_weights(weights: ArrayLike | Tensor | None, count: int) -> Tensor:
    if weights is None:
        return torch.ones(count, dtype=torch.float64)
    amounts = as_tensor(weights).to(torch.float64)
    if tuple(amounts.shape) != (count,):
        raise DensityError(
            f"Weights of shape {tuple(amounts.shape)} do not fit {count} points; "
            "give one weight per point."
        )
    bad = ~(torch.isfinite(amounts) & (amounts >= 0))
    if bool(bad.any()):
        raise DensityError(
            f"{int(bad.sum())} of {count} weights are negative, infinite or NaN; remove them first."
        )
    return amounts


def _check_inside(inside: int, count: int, grid: Grid, outside: str) -> None:
    if outside == "error" and inside < count:
        raise DensityError(
            f"{count - inside} of {count} points lie outside the box of {grid}; "
            "give a larger box, or outside='drop' to leave them out."
        )
    if inside == 0:
        raise DensityError(
            f"None of {count} points lies in the box of {grid}; give a box that covers them."
        )


# ---- any file


def _density_from(
    file: Path, values: np.ndarray, grid: Grid | None, box: tuple[Corner, Corner] | None = None
) -> Density:
    """The density with these values; an error about them names the file."""
    if values.dtype.kind not in "biuf":
        raise FileError(f"{file} holds {values.dtype} values; save an array of real numbers.")
    if not 1 <= values.ndim <= MAX_AXES:
        raise FileError(
            f"{file} holds an array of shape {values.shape}; "
            f"a density has one to {MAX_AXES} axes, one per dimension."
        )
    try:
        return Density(values, grid or _default_grid(values.shape, box))
    except InputError as error:
        raise FileError(f"{file} does not hold a density: {error}") from error


def _default_grid(shape: tuple[int, ...], box: tuple[Corner, Corner] | None) -> Grid:
    """Equal cells in a box whose longest side is 1, unless the box is known."""
    if box is not None:
        return Grid(shape, *box)
    return Grid(shape, 0.0, [n / max(1, *shape) for n in shape])


# ---- images


def _image_values(file: Path, invert: bool) -> np.ndarray:
    """Brightness (or darkness) in [0, 1] times opacity, (width, height), y upwards."""
    with (
        reading(file, "an image"),
        quiet(),  # about metadata
        Image.open(file, formats=FORMATS) as image,
    ):
        _check_pixels(image)
        grey, opacity = _grey_and_opacity(ImageOps.exif_transpose(image))
    height, width = grey.shape
    if min(width, height) < 2:
        raise FileError(
            f"{file} is {width}×{height} pixels; a density needs at least 2 pixels along each side."
        )
    mass = (1 - grey if invert else grey) * opacity
    return np.ascontiguousarray(mass[::-1].T)


def _check_pixels(image: Image.Image) -> None:
    """Pillow refuses twice its limit by itself, and only warns of what is above it."""
    pixels, most = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if most is not None and pixels > most:
        raise Image.DecompressionBombError(
            f"Image size ({pixels} pixels) exceeds Pillow's limit of {most} pixels"
        )


def _grey_and_opacity(image: Image.Image) -> tuple[np.ndarray, np.ndarray | float]:
    """Luminance (height, width) in [0, 1], and alpha in [0, 1]."""
    if image.mode[0] in "IF":  # 16-bit or 32-bit integers, or floats: one channel, no alpha
        levels = as_tensor(np.asarray(image)).double().numpy()
        white = 1.0 if image.mode == "F" else 65535.0
        return levels / max(white, levels.max()), 1.0
    channels = np.asarray(image.convert("RGBA"))
    grey = np.zeros(channels.shape[:2])
    for k, weight in enumerate(LUMA):  # one at a time: all would take four times the memory
        grey += np.float64(weight) * channels[..., k]
    return grey / (255 * sum(LUMA)), channels[..., 3] / 255


# ---- NumPy files


def _npy_array(file: Path) -> np.ndarray:
    with reading(file, "an npy array"), file.open("rb") as stream:
        return _without_pickle(file, lambda: read_npy(stream, file.stat().st_size))


def _npz_arrays(file: Path) -> tuple[np.ndarray, tuple[Corner, Corner] | None]:
    """The values, and the corners (lower, upper) where they are given."""
    with open_npz(file, "an npz archive") as archive:
        names = list(archive)
        if "geonet" in names:
            raise FileError(f"{file} is a saved geodesic; open it with geonet.load({str(file)!r}).")
        if "values" not in names and len(names) != 1:
            raise FileError(
                f"{file} holds the arrays {', '.join(names) or '(none)'}; "
                "name the one with the density 'values'."
            )
        name = "values" if "values" in names else names[0]
        values = _without_pickle(file, lambda: archive[name])
        if ("lower" in names) != ("upper" in names):
            raise FileError(f"{file} has only one of 'lower' and 'upper'; give both or none.")
        if "lower" not in names:
            return values, None
        return values, (_corner(archive["lower"]), _corner(archive["upper"]))


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


def _density_from_csv(file: Path, grid: Grid | None) -> Density:
    names, lines = _csv_lines(file)
    if names is None:
        table = _csv_numbers(file, lines)
        return _density_from(file, table.ravel() if 1 in table.shape else table, grid)
    points, weights = read_points(file)
    if grid is None:
        raise FileError(
            f"{file} is a point cloud and needs a grid to be counted on; "
            "give grid=geonet.Grid(shape, lower, upper)."
        )
    if points.shape[-1] != grid.dimension:
        raise FileError(
            f"{file} has points in {points.shape[-1]}D but the grid is {grid.dimension}D; "
            "give a grid with one axis per coordinate."
        )
    try:
        return from_samples(points, grid, weights)
    except InputError as error:
        raise FileError(f"{file} does not hold a density: {error}") from error


def _csv_lines(file: Path) -> tuple[list[str] | None, list[str]]:
    """Names of the columns if there is a header, and the lines of numbers."""
    with reading(file, "a csv table"):
        text = file.read_text(encoding="utf-8-sig")  # spreadsheets begin a file with a mark
    lines = [line for line in text.splitlines() if line.strip()]
    names = None
    if lines and not any(_is_row(cell) for cell in lines[0].split(",")):
        names = [name.strip().strip('"').lower() for name in lines[0].lstrip("# ").split(",")]
        lines = lines[1:]
    if not lines:
        raise FileError(f"{file} has no rows of numbers; write it again.")
    return names, lines


def _csv_numbers(file: Path, lines: list[str]) -> np.ndarray:
    """Rows of numbers, (rows, columns), float64."""
    try:
        return np.loadtxt(lines, delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        width = lines[0].count(",")
        broken = (line for line in lines if not _is_row(line) or line.count(",") != width)
        bad = next(broken, lines[0])
        raise FileError(
            f"{file} has the row {bad[:40]!r}, not {width + 1} numbers separated by commas; "
            "correct or remove it."
        ) from error


def _is_row(line: str) -> bool:
    try:
        [float(cell) for cell in line.split(",")]
    except ValueError:
        return False
    return True
