"""Densities from files: images, arrays, tables and point clouds.

Orientation: what holds the pixels of a picture, be it an image, an array or a table, is read as it
is: axis 0 runs down the rows and axis 1 to the right. Points have their coordinates in the order of
the axes.
"""

from __future__ import annotations

import os
from pathlib import Path

from torch import Tensor

from geonet.arguments import check_flag
from geonet.errors import FileError, InputError
from geonet.measures.contents import Contents, Kind, check_kind_of_file, opened
from geonet.measures.density import Density
from geonet.measures.grid import Grid, check_grid
from geonet.measures.images import image_values
from geonet.measures.nodata import check_nodata
from geonet.measures.samples import Outside


def from_image(
    file: str | os.PathLike[str], invert: bool = False, nodata: float | None = None
) -> Density:
    """The brightness of an image as a density; the longest side of its box has length 1.

    It reads the luminance of colours. A transparent pixel holds no mass, with or without `invert`.
    It takes the first frame of an animation, and applies the orientation that a camera recorded.

    Args:
        file: PNG, JPEG, GIF, BMP, TIFF, WEBP or PPM, with 8 or 16 bits per channel.
        invert: whether dark pixels hold the mass instead of bright ones.
        nodata: the value of pixels without data, as it is in the file: 0 to 255 with 8 bits, and
            in a colour image that of all three colours. They count as empty.
    """
    path = _named(file, "from_image")
    check_flag(invert, "invert")
    check_nodata(nodata)
    return Contents(path, image_values(path, invert, nodata), ("values",)).density()


def read(
    file: str | os.PathLike[str],
    grid: Grid | None = None,
    kind: Kind | None = None,
    nodata: float | None = None,
    outside: Outside = "error",
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
        nodata: the value of cells without data, which count as empty; NaN may be one. For images
            see `from_image`.
        outside: what to do with points outside the grid's box: "error" or "drop".
    """
    if grid is not None:
        check_grid(grid)
    check_kind_of_file(kind)
    contents = opened(_named(file, "read"), nodata=nodata).told(kind)
    if contents.kind is None:
        raise FileError(f'{contents.doubt()}; give kind="points" or kind="values".')
    if nodata is not None and contents.kind == "points":
        raise FileError(f"{contents.file} holds points, and nodata is for cells; leave it out.")
    return contents.density(grid, outside)


def read_points(
    file: str | os.PathLike[str], kind: Kind | None = None
) -> tuple[Tensor, Tensor | None]:
    """Points (n, d) and weights (n,), or None, from a csv with a header `x[,y[,z]][,weight]`.

    With `kind="points"` also from one without header, or from an array (n, d) in an npy.
    """
    check_kind_of_file(kind)
    contents = opened(_named(file, "read_points")).told(kind)
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
