"""Files of a command: reading two or more of them onto one grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from geonet._files import IMAGE_SUFFIXES
from geonet._format import format_number
from geonet._images import Picture
from geonet.cli.output import format_count, parse_files
from geonet.colours import ColourImage
from geonet.density import Density
from geonet.errors import FileError, GridError, InputError
from geonet.grid import Grid
from geonet.io import FileContents, Kind, parse_file

if TYPE_CHECKING:
    from geonet.density import Missing
    from geonet.samples import Outside


@dataclass(frozen=True)
class ResolutionLimits:
    """Numbers of cells that the command line chooses.

    Attributes:
        cloud: cells along the longest side of point clouds, in 1D, 2D and 3D.
        side: most cells along the longest side without --resolution, in 1D, 2D and 3D.
        total: most cells of a grid.
        margin: margin around point clouds, as a fraction of the longest side.
    """

    cloud: tuple[int, int, int] = (64, 64, 24)
    side: tuple[int, int, int] = (2**20, 1024, 128)
    total: int = 2**26
    margin: float = 0.05


LIMITS = ResolutionLimits()


@dataclass(frozen=True)
class ReadFiles:
    """Densities of files on one grid.

    Attributes:
        densities: one for each file.
        opened: the files.
        changes: sentences about changes to the problem.
        hints: sentences about options that are missing or have no effect.
    """

    densities: list[Density]
    opened: list[FileContents]
    changes: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def contents(self) -> list[dict[str, Any]]:
        """Contents of each file, as plain data."""
        return [describe_contents(one) for one in self.opened]

    @property
    def notices(self) -> tuple[str, ...]:
        """All sentences."""
        return self.changes + self.hints


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Options of commands for reading files.

    Attributes:
        resolution: cells along the longest side.
        invert: whether dark pixels of images hold the mass.
        invert_files: absolute names of the files for which this is so if it is not so for all.
        columns: names of the coordinates in tables with a header; None for the default.
        kind: contents of ambiguous tables, "points" or "values".
        periodic: axes whose ends are joined, instead of those of the files; None for the latter.
        missing: treatment of cells without a value.
        nodata: the value that marks cells without data.
        outside: treatment of points outside the box of the other files.
        blur: Gaussian blur of the densities, in cells.
    """

    resolution: int | None = None
    invert: bool = False
    invert_files: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    kind: Kind | None = None
    periodic: tuple[int, ...] | Literal["all"] | None = None
    missing: Missing = "raise"
    nodata: float | None = None
    outside: Outside = "raise"
    blur: float = 0.0

    def read(self, files: Sequence[Path]) -> ReadFiles:
        """Return the densities of two or more files on one grid, blurred if that is an option."""
        opened, notices = self.open_files(files), []
        densities = [
            density.gaussian_blur(self.blur) for density in self.read_densities(opened, notices)
        ]
        return ReadFiles(densities, opened, tuple(notices), tuple(self._list_hints(opened)))

    def _list_hints(self, opened: Sequence[FileContents]) -> Iterator[str]:
        """Yield sentences about options that are missing or have no effect."""
        yield from _list_ink_hints({one.file: one.picture for one in opened if one.picture})
        if self.nodata is not None:
            contents = [describe_contents(one) for one in opened]
            if not any(one.get("missing") for one in contents):
                yield f"Unused: no cell has the value of --nodata, {self.nodata:g}."

    def open_files(self, files: Sequence[Path]) -> list[FileContents]:
        """Parse the files; every option that describes files must apply to one of them."""
        opened = [self._parse(file) for file in files]
        if self.columns is not None and not any(contents.names for contents in opened):
            raise InputError(
                f"--columns is for tables with a header, and {files[0]} has none; leave --columns "
                "out."
            )
        if self.kind is not None:
            if not any(self.kind in contents.kinds for contents in opened):
                option = "--points" if self.kind == "points" else "--grid"
                raise InputError(
                    f"{option} fits neither {_join(files, 'nor')}, which contain "
                    f"{opened[0].kinds[0]}; leave {option} out."
                )
            opened = [
                contents.with_kind(self.kind) if self.kind in contents.kinds else contents
                for contents in opened
            ]
        for contents in opened:
            if contents.kind is None:
                raise FileError(f"{contents.ambiguity()}; give --points or --grid.")
        cells = [contents.file for contents in opened if contents.kind == "values"]
        if self.invert and not any(file.suffix.lower() in IMAGE_SUFFIXES for file in cells):
            raise InputError(
                f"--invert is for images, and {files[0]} is not an image; leave --invert out."
            )
        if self.nodata is not None and not cells:
            raise InputError(
                f"--nodata marks cells, and {files[0]} contains points; leave --nodata out."
            )
        if self.periodic is None:
            return opened
        if not cells:
            raise InputError(
                f"--periodic is for cells, and {files[0]} holds points, whose box is not known; "
                "give an npz with values, lower and upper."
            )
        return [self._join_axes(contents) for contents in opened]

    def _parse(self, file: Path) -> FileContents:
        is_inverted = bool(self.invert_files) and parse_files([file])[0] in self.invert_files
        if is_inverted and file.suffix.lower() not in IMAGE_SUFFIXES:
            raise InputError(
                f"--invert-file is for images, and {file} is not an image; leave it out."
            )
        columns = self.columns if file.suffix.lower() == ".csv" else None
        return parse_file(file, self.invert or is_inverted, self.nodata, columns)

    def _join_axes(self, contents: FileContents) -> FileContents:
        """Return the contents of a file with the axes of --periodic."""
        if contents.kind == "points":
            return contents
        count = contents.values().ndim
        axes = range(count) if self.periodic == "all" else self.periodic or ()
        wrong = [axis for axis in axes if not 0 <= axis < count]
        if wrong:
            known = "axis 0 only" if count == 1 else f"the axes {_join(range(count), 'and')}"
            raise InputError(f"--periodic names axis {wrong[0]}; {contents.file} has {known}.")
        return replace(contents, periodic=tuple(axis in axes for axis in range(count)))

    def read_densities(self, files: Sequence[FileContents], notices: list[str]) -> list[Density]:
        """Return densities on one grid, with at most `resolution` cells on its longest side.

        Point clouds are counted: if there are only clouds, on a box around all of them, else on the
        grid of the other files. Densities are resampled to the finest of their cells; images of
        different proportions are padded to squares. Solvers reject other combinations of boxes.

        Args:
            files: the contents of the files.
            notices: receives a sentence for every change.
        """
        if all(contents.kind == "points" for contents in files):
            grid = self.cloud_grid(files)
            notices.append(
                f"Counted: the points are counted in {format_shape(grid)} cells, "
                f"{format_number(max(grid.spacing), 2)} wide, between which W2 is computed "
                "(--resolution CELLS changes this)."
            )
            return [contents.density(grid) for contents in files]
        names = [contents.file for contents in files if contents.kind == "values"]
        cells = [
            contents.density(missing=self.missing)
            for contents in files
            if contents.kind == "values"
        ]
        for name, density in zip(names, cells, strict=True):
            if density.grid.dimension != cells[0].grid.dimension:
                raise FileError(
                    f"{names[0]} is {cells[0].grid.dimension}D and {name} is "
                    f"{density.grid.dimension}D; give files of one dimension."
                )
        cells = _resample_to_finest(self._share_box(files, cells, notices), notices)
        cells = [self._limit_resolution(density, notices) for density in cells]
        if len(cells) < len(files):
            grid = cells[0].grid
            notices.append(
                f"Counted: the points are counted in {format_shape(grid)} cells, as the other "
                f"files have, {format_number(max(grid.spacing), 2)} wide."
            )
        rest = iter(cells)
        return [
            self._histogram(contents, cells[0]) if contents.kind == "points" else next(rest)
            for contents in files
        ]

    def cloud_grid(self, files: Sequence[FileContents]) -> Grid:
        """Return square cells on a box around all clouds."""
        clouds = [contents.points()[0] for contents in files]
        for contents, cloud in zip(files, clouds, strict=True):
            if cloud.shape[-1] != clouds[0].shape[-1]:
                raise FileError(
                    f"{files[0].file} has points in {clouds[0].shape[-1]}D and {contents.file} in "
                    f"{cloud.shape[-1]}D; give clouds with the same coordinates."
                )
        points = torch.cat(clouds)
        lower, upper = points.amin(0), points.amax(0)
        longest = float((upper - lower).max())
        if longest == 0:
            names = _join([contents.file for contents in files], "and")
            raise InputError(f"All points of {names} coincide; there is nothing to move.")
        count = self.resolution or LIMITS.cloud[points.shape[-1] - 1]
        cell = longest * (1 + 2 * LIMITS.margin) / count
        counts = (upper - lower + 2 * LIMITS.margin * longest) / cell
        shape = (counts - 1e-9).ceil().clamp(min=2)  # rounding must not add a cell
        centre, half = (lower + upper) / 2, shape * cell / 2
        corners = (centre - half).tolist(), (centre + half).tolist()
        return _check_size(Grid(shape.long().tolist(), *corners, orientation="plane"))

    def _histogram(self, cloud: FileContents, other: Density) -> Density:
        """Count a cloud on the other file's grid: on an image with x to the right and y upwards.

        On the grid of a file with a box, the coordinates are in the order of the box's axes.
        """
        grid = other.grid
        if grid.dimension != 2 or not _is_image_grid(grid):
            return cloud.density(grid, self.outside)
        plane = Grid(grid.shape[::-1], 0.0, grid.upper[::-1], "plane", grid.periodic[::-1])
        density = cloud.density(plane, self.outside)
        values = density.tensor.T.flip(0).contiguous()
        return Density._from_parts(values, grid, density.mass_tensor, None, False)

    def _limit_resolution(self, density: Density, notices: list[str]) -> Density:
        """Resample a density that has too many cells along its longest side."""
        shape = density.grid.shape
        most = self.resolution or LIMITS.side[len(shape) - 1]
        if max(shape) <= most:
            return density
        coarser = _resize(density.grid, most)
        coarser = coarser.with_shape([*map(min, shape, coarser.shape)])
        notice = (
            f"Coarsened: {format_shape(density.grid)} cells are solved on "
            f"{format_shape(coarser)} (--resolution {max(shape)} keeps all)."
        )
        if notice not in notices:
            notices.append(notice)
        return density.resample(coarser)

    def _share_box(
        self, files: Sequence[FileContents], densities: list[Density], notices: list[str]
    ) -> list[Density]:
        """Centre pictures and stacks with voxel sizes in one box, if their boxes differ."""
        cells = [contents for contents in files if contents.kind == "values"]
        pictures = [contents.picture for contents in cells]
        sized = [one for one in pictures if one is not None and one.voxel is not None]
        first = densities[0].grid
        is_one_box = all(first.same_box(density.grid) for density in densities)
        names = [contents.file for contents in cells]
        units = list(dict.fromkeys(picture.unit for picture in sized))
        if len(units) > 1:
            listed = _join((unit or "(no unit)" for unit in units), "and")
            raise FileError(
                f"{_join(names, 'and')} have voxel sizes in {listed}; save them in one unit."
            )
        if not sized or is_one_box or any(density.grid.is_periodic for density in densities):
            return densities
        if len(sized) < len(pictures):
            has_size = [one is not None and one.voxel is not None for one in pictures]
            with_size, without = names[has_size.index(True)], names[has_size.index(False)]
            raise FileError(
                f"{with_size} has voxel sizes and {without} has none, so their boxes differ; save "
                "both with voxel sizes, or both without."
            )
        shared = _share_voxels(densities)
        grid = shared[0].grid
        notices.append(
            f"Padded: {_format_shapes(densities)} cells are centred in a box of "
            f"{format_shape(grid)} cells."
        )
        return shared

    def read_colours(self, files: Sequence[FileContents], grid: Grid) -> list[ColourImage] | None:
        """Return the pictures in colour on the grid of their densities.

        Returns:
            None if no file is a picture in colour, or one is no picture.
        """
        pictures = [contents.picture for contents in files]
        has_colour = [one is not None and one.rgba is not None for one in pictures]
        if not any(has_colour) or None in pictures or grid.dimension != 2:
            return None
        return [self._fit_colours(contents, grid) for contents in files]

    def _fit_colours(self, contents: FileContents, grid: Grid) -> ColourImage:
        """Bring the colours of a picture to a grid in the same way as its density."""
        picture, own = contents.picture, contents.density(missing=self.missing)
        assert picture is not None
        colours = torch.from_numpy(np.ma.filled(picture.colours(), 0.0).astype(np.float64))
        mask = np.ma.getmaskarray(contents.numbers)
        if mask.any():  # pixels without data are grey
            filling = torch.from_numpy(own.numpy("given")).double()
            colours = torch.where(torch.from_numpy(mask), filling, colours)
        channels = Density.from_unnormalized(colours, own.grid)
        if not own.grid.same_box(grid):
            channels = _pad_into(channels, grid)
        channels = channels.resample(grid).gaussian_blur(self.blur)
        return ColourImage(channels.tensor, grid, picture.is_inverted)

    def output_grid(self, grid: Grid) -> Grid:
        """Return the grid on which a result is written."""
        return _resize(grid, self.resolution) if self.resolution else grid


def describe_contents(contents: FileContents) -> dict[str, Any]:
    """Return the number of points, or the shape and the number of missing cells, as plain data."""
    if contents.kind == "points":
        columns = {"columns": list(contents.names)} if contents.names else {}
        return {"kind": "points", "points": len(contents.numbers), **columns}
    values = contents.values()
    missing = np.ma.getmaskarray(values) | np.isnan(np.ma.getdata(values))
    facts = {"kind": "values", "shape": list(values.shape), "missing": int(missing.sum())}
    picture = contents.picture
    if picture is not None and picture.is_inverted:
        facts["inverted"] = True
    if picture is not None and picture.voxel is not None:
        facts |= {"voxel": list(picture.voxel), "unit": picture.unit}
    return facts


def format_contents(contents: dict[str, Any]) -> str:
    """Return a text such as "read as 64×64 values"."""
    if contents["kind"] == "points":
        columns = contents.get("columns", ())
        names = f" ({', '.join(columns)})" if columns else ""
        return f"read as {format_count(contents['points'], 'point')}{names}"
    text = f"read as {'×'.join(map(str, contents['shape']))} values"
    if "voxel" in contents:
        sizes = "×".join(format_number(size) for size in contents["voxel"])
        text += f" of {sizes} {contents['unit']}".rstrip()
    if contents.get("inverted"):
        text += ", inverted"
    if contents["missing"]:
        share = 100 * contents["missing"] / math.prod(contents["shape"])
        text += f"; {share:.2g} % of its cells are missing"
    return text


def _list_ink_hints(pictures: dict[Path, Picture]) -> Iterator[str]:
    """Yield a sentence if the bright ground of a picture probably counts as mass by mistake.

    If the dark pixels of one picture are or should be the mass, those of the others with a bright
    ground should be, too: ink would otherwise move into a ground.
    """
    inverted = [file for file, one in pictures.items() if one.is_inverted]
    ink = [file for file, one in pictures.items() if one.is_ink]
    is_dark_mass = bool(ink) or any(pictures[file].has_bright_ground for file in inverted)
    bright = [
        file
        for file, one in pictures.items()
        if is_dark_mass and one.has_bright_ground and not (one.is_inverted or one.is_ink)
    ]
    wrong = [file for file in pictures if file in ink or file in bright]
    if not wrong:
        return
    options = " ".join(f"--invert-file {file}" for file in wrong)
    remedy = "--invert" if len(wrong) + len(inverted) == len(pictures) else options
    look, their = ("looks", "its") if len(ink) == 1 else ("look", "their")
    have, its = ("has", "its") if len(bright) == 1 else ("have", "their")
    clauses = []
    if inverted:
        clauses.append(f"the dark pixels of {_join(inverted, 'and')} hold the mass")
    if ink:
        clauses.append(
            f"{_join(ink, 'and')} {look} like dark ink on a bright ground, and the ground is most "
            f"of {their} mass"
        )
    if bright:
        clauses.append(f"{_join(bright, 'and')} {have} a bright ground that is most of {its} mass")
    separator = ", but " if inverted else "; "
    which = "all of them" if len(wrong) + len(inverted) > 2 else "both"
    effect = f"moves the ink of {which}" if bright or inverted else "moves the ink"
    yield f"Hint: {separator.join(clauses)}; {remedy} {effect}."


def _share_voxels(densities: list[Density]) -> list[Density]:
    """Centre densities with voxel sizes in one box, in voxels of the smallest sizes."""
    sizes = [min(each) for each in zip(*(d.grid.spacing for d in densities), strict=True)]
    fine = []
    for density in densities:
        sides = zip(density.grid.lengths, sizes, strict=True)
        shape = [max(2, round(length / size)) for length, size in sides]
        values = density.resample(density.grid.with_shape(shape)).tensor
        upper = [n * size for n, size in zip(shape, sizes, strict=True)]
        grid = Grid(shape, 0.0, upper)
        fine.append(Density._from_parts(values, grid, density.mass_tensor, None, False))
    shape = [max(each) for each in zip(*(d.grid.shape for d in fine), strict=True)]
    upper = [n * size for n, size in zip(shape, sizes, strict=True)]
    return [_pad(density, Grid(shape, 0.0, upper)) for density in fine]


def _resample_to_finest(densities: list[Density], notices: list[str]) -> list[Density]:
    """Bring all to the same box and the finest of their cells, if possible."""
    first = densities[0].grid
    is_one_box = all(first.same_box(density.grid) for density in densities)
    can_pad = all(_is_image_grid(d.grid) and not d.grid.is_periodic for d in densities)
    if not is_one_box and can_pad:
        notices.append(f"Padded: {_format_shapes(densities)} cells are centred in empty squares.")
        squares = [Grid([max(d.grid.shape)] * d.grid.dimension) for d in densities]
        densities = [_pad(*each) for each in zip(densities, squares, strict=True)]
        first, is_one_box = densities[0].grid, True
    if not is_one_box or all(density.grid.shape == first.shape for density in densities):
        return densities
    finest = [max(sizes) for sizes in zip(*(d.grid.shape for d in densities), strict=True)]
    grid = first.with_shape(finest)
    every = "both" if len(densities) == 2 else "all"
    notices.append(
        f"Resampled: {_format_shapes(densities)} cells are {every} brought to {format_shape(grid)}."
    )
    return [density.resample(grid) for density in densities]


def _is_image_grid(grid: Grid) -> bool:
    """Return whether a grid is the default of a file without a box."""
    upper = [n / max(grid.shape) for n in grid.shape]
    return grid == Grid(grid.shape, 0.0, upper, periodic=grid.periodic)


def _pad(density: Density, grid: Grid) -> Density:
    """Centre a density in the empty cells of a grid, whose cells have the same size."""
    shape = density.grid.shape
    margins = [(m - n) // 2 for m, n in zip(grid.shape, shape, strict=True)]
    values = density.tensor.new_zeros((*density.batch_shape, *grid.shape))
    inside = tuple(slice(m, m + n) for m, n in zip(margins, shape, strict=True))
    values[(..., *inside)] = density.tensor
    return Density._from_parts(values, grid, density.mass_tensor, None, False)


def _pad_into(density: Density, box: Grid) -> Density:
    """Centre a density in the box of another grid, in cells of about its own size."""
    own = density.grid
    if _is_image_grid(own):
        return _pad(density, Grid([max(own.shape)] * own.dimension))
    sizes = box.spacing
    shape = [max(2, round(length / size)) for length, size in zip(own.lengths, sizes, strict=True)]
    return _pad(density.resample(own.with_shape(shape)), box)


def _resize(grid: Grid, resolution: int) -> Grid:
    """Return `resolution` cells along the longest side of the box, the others in proportion."""
    shape = [max(2, round(resolution * length / grid.max_side)) for length in grid.lengths]
    return _check_size(grid.with_shape(shape))


def _check_size(grid: Grid) -> Grid:
    """Raise GridError if a grid would exhaust the memory."""
    if grid.size > LIMITS.total:
        raise GridError(
            f"{format_shape(grid)} cells are more than the limit of {LIMITS.total:,}; give a "
            "smaller --resolution."
        )
    return grid


def format_shape(grid: Grid) -> str:
    """Return the numbers of cells: "64×64"."""
    return "×".join(map(str, grid.shape))


def _format_shapes(densities: Sequence[Density]) -> str:
    return _join(dict.fromkeys(format_shape(density.grid) for density in densities), "and")


def _join(names: Iterable[object], conjunction: str) -> str:
    """Return "a, b and c"."""
    *first, last = map(str, names)
    return f"{', '.join(first)} {conjunction} {last}" if first else last
