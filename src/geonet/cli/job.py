"""One pair of files: reading both onto one grid, solving the pair and writing its path."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import geonet
from geonet._files import atomic_write
from geonet._format import format_number, format_percent
from geonet._progress import report_progress
from geonet.cli.output import format_count
from geonet.density import Density
from geonet.errors import FileError, GridError, InputError
from geonet.grid import Grid
from geonet.io import IMAGE_SUFFIXES, FileContents, Kind, parse_file

if TYPE_CHECKING:
    from geonet.density import Mass, Missing
    from geonet.paths import Geodesic
    from geonet.report import Report
    from geonet.samples import Outside


@dataclass(frozen=True)
class ResolutionLimits:
    """Numbers of cells that `geonet geodesic` chooses.

    Attributes:
        cloud: cells along the longest side of two point clouds, in 1D, 2D and 3D.
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
class Job:
    """Options of `geonet geodesic` for reading and solving pairs of files.

    Attributes:
        solver: a name or a model file.
        options: options of the solver.
        times: times to write; animations use their number only.
        resolution: cells along the longest side.
        invert: whether dark pixels of images hold the mass.
        kind: contents of ambiguous tables, "points" or "values".
        missing: treatment of cells without a value.
        nodata: the value that marks cells without data.
        outside: treatment of points outside the other file's box.
        mass: mass of the written frames, "one" or "given".
        blur: Gaussian blur of both densities before solving, in cells.
    """

    solver: str
    options: dict[str, Any]
    times: list[float]
    resolution: int | None = None
    invert: bool = False
    kind: Kind | None = None
    missing: Missing = "raise"
    nodata: float | None = None
    outside: Outside = "raise"
    mass: Mass = "one"
    blur: float = 0.0

    def __post_init__(self) -> None:
        geonet.solver(self.solver, **self.options)  # raises for unknown names and options

    def solve(self, source: Path, target: Path) -> SolvedPair:
        """Read both files, solve the pair and compute the report."""
        solver = geonet.solver(self.solver, **self.options)
        notices: list[str] = []
        files = self.open_pair(source, target)
        first, second = (
            end.gaussian_blur(self.blur) for end in self.read_densities(*files, notices)
        )
        start = perf_counter()
        path = solver(first, second)
        seconds = perf_counter() - start
        notices += _describe_changes(path, self.solver)
        contents = describe_contents(files[0]), describe_contents(files[1])
        if self.nodata is not None and not any(one.get("missing") for one in contents):
            notices.append(f"Unused: no cell has the value of --nodata, {self.nodata:g}.")
        solved = SolvedPair(path, self.output_grid(path), seconds, contents, tuple(notices))
        _ = solved.report
        return solved

    def open_pair(self, source: Path, target: Path) -> tuple[FileContents, FileContents]:
        """Parse both files; every option that describes files must apply to one of them."""
        first, second = (parse_file(file, self.invert, self.nodata) for file in (source, target))
        if self.kind is not None:
            if self.kind not in (*first.kinds, *second.kinds):
                option = "--points" if self.kind == "points" else "--grid"
                raise InputError(
                    f"{option} fits neither {source} nor {target}, which hold {first.kinds[0]}; "
                    "leave it out."
                )
            first, second = (
                contents.with_kind(self.kind) if self.kind in contents.kinds else contents
                for contents in (first, second)
            )
        for contents in (first, second):
            if contents.kind is None:
                raise FileError(f"{contents.ambiguity()}; give --points or --grid.")
        cells = [contents.file for contents in (first, second) if contents.kind == "values"]
        if self.invert and not any(file.suffix.lower() in IMAGE_SUFFIXES for file in cells):
            raise InputError(f"--invert is for images and {source} is none; leave it out.")
        if self.nodata is not None and not cells:
            raise InputError(f"--nodata is for cells, and {source} holds points; leave it out.")
        return first, second

    def read_densities(
        self, source: FileContents, target: FileContents, notices: list[str]
    ) -> tuple[Density, Density]:
        """Return both densities on one grid, with at most `resolution` cells on its longest side.

        Point clouds are counted: two of them on a box around both, one on the other file's grid.
        Two densities are resampled to the finer cells of the two; images of different proportions
        are padded to squares. The solver rejects other pairs of boxes.

        Args:
            source: the first file.
            target: the second file.
            notices: receives a sentence for every change.
        """
        clouds = [contents.kind == "points" for contents in (source, target)]
        if all(clouds):
            grid = self.cloud_grid(source, target)
            notices.append(
                f"Counted: W2 is computed from the points counted in {_format_shape(grid)} cells, "
                f"which are {format_number(max(grid.spacing), 2)} wide (see --resolution)."
            )
            return source.density(grid), target.density(grid)
        if clouds[0]:
            second = self._limit_resolution(target.density(missing=self.missing), notices)
            return self._histogram(source, second), second
        first = source.density(missing=self.missing)
        if clouds[1]:
            first = self._limit_resolution(first, notices)
            return first, self._histogram(target, first)
        second = target.density(missing=self.missing)
        if first.grid.dimension != second.grid.dimension:
            raise FileError(
                f"{source.file} is {first.grid.dimension}D and {target.file} is "
                f"{second.grid.dimension}D; give two files of one dimension."
            )
        first, second = _resample_to_finer(first, second, notices)
        return self._limit_resolution(first, notices), self._limit_resolution(second, notices)

    def cloud_grid(self, source: FileContents, target: FileContents) -> Grid:
        """Return square cells on a box around both clouds."""
        first, second = (contents.points()[0] for contents in (source, target))
        if first.shape[-1] != second.shape[-1]:
            raise FileError(
                f"{source.file} has points in {first.shape[-1]}D and {target.file} in "
                f"{second.shape[-1]}D; give two clouds with the same coordinates."
            )
        both = torch.cat([first, second])
        lower, upper = both.amin(0), both.amax(0)
        longest = float((upper - lower).max())
        if longest == 0:
            raise InputError(
                f"All points of {source.file} and {target.file} coincide; there is nothing to move."
            )
        count = self.resolution or LIMITS.cloud[first.shape[-1] - 1]
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
        plane = Grid(grid.shape[::-1], 0.0, grid.upper[::-1], orientation="plane")
        density = cloud.density(plane, self.outside)
        values = density.tensor.T.flip(0).contiguous()
        return Density._unchecked(values, grid, density.mass_tensor, None, False)

    def _limit_resolution(self, density: Density, notices: list[str]) -> Density:
        """Resample a density that has too many cells along its longest side."""
        shape = density.grid.shape
        most = self.resolution or LIMITS.side[len(shape) - 1]
        if max(shape) <= most:
            return density
        coarser = _resize(density.grid, most)
        notice = (
            f"Coarsened: {_format_shape(density.grid)} cells are solved on "
            f"{_format_shape(coarser)} (--resolution {max(shape)} keeps all)."
        )
        if notice not in notices:
            notices.append(notice)
        return density.resample(coarser)

    def output_grid(self, path: Geodesic) -> Grid:
        """Return the grid on which a path is written."""
        return _resize(path.grid, self.resolution) if self.resolution else path.grid

    def to_json(self) -> dict[str, Any]:
        """Return plain data by which two jobs are compared; it includes a model file's digest."""
        nodata = None if self.nodata is None else str(self.nodata)  # NaN differs from itself
        return asdict(self) | {"nodata": nodata} | model_digest(self.solver)


def model_digest(solver: str) -> dict[str, str]:
    """Return the digest of a model file; nothing for the name of a solver."""
    model = Path(solver)
    return {"model": sha256(model.read_bytes()).hexdigest()} if model.is_file() else {}


def describe_contents(contents: FileContents) -> dict[str, Any]:
    """Return the number of points, or the shape and the number of missing cells, as plain data."""
    if contents.kind == "points":
        return {"kind": "points", "points": len(contents.numbers)}
    values = contents.values()
    missing = np.ma.getmaskarray(values) | np.isnan(np.ma.getdata(values))
    return {"kind": "values", "shape": list(values.shape), "missing": int(missing.sum())}


def format_contents(contents: dict[str, Any]) -> str:
    """Return a text such as "read as 64×64 values"."""
    if contents["kind"] == "points":
        return f"read as {format_count(contents['points'], 'point')}"
    text = f"read as {'×'.join(map(str, contents['shape']))} values"
    if contents["missing"]:
        share = 100 * contents["missing"] / math.prod(contents["shape"])
        text += f"; {share:.2g} % of its cells are missing"
    return text


def _describe_changes(path: Geodesic, solver: str) -> list[str]:
    """Return sentences about changes that the solver made to the problem."""
    info, sentences = path.info, []
    if "solved on" in info:
        coarser = str(info["solved on"]).partition(" cells")[0]
        sentences.append(
            f"Coarsened: solved on {coarser} cells, not on {_format_shape(path.grid)} "
            "(--option max_cells=… allows more)."
        )
    if info.get("floor"):
        sentences.append(
            f"Changed: {format_percent(info['floor'])} of the mass of both densities is spread "
            "evenly (--option floor=0 for none)."
        )
    if info.get("epsilon raised from"):
        sentences.append(
            f"Changed: epsilon is {format_number(info['epsilon'])}, the least that these cells "
            f"resolve, and not {format_number(info['epsilon raised from'])}."
        )
    if solver != path.solver and "plan entries" in info:
        sentences.append(
            "Chosen: linear-program, which moves separate cells one by one "
            "(--solver midpoint spreads them)."
        )
    return sentences


def _resample_to_finer(
    first: Density, second: Density, notices: list[str]
) -> tuple[Density, Density]:
    """Bring both to the same box and the finer cells of the two, if possible."""
    shapes = f"{_format_shape(first.grid)} and {_format_shape(second.grid)}"
    is_same_box = first.grid.same_box(second.grid)
    if not is_same_box and _is_image_grid(first.grid) and _is_image_grid(second.grid):
        first, second = _pad(first), _pad(second)
        notices.append(f"Padded: {shapes} cells are centred in empty squares.")
        shapes = f"{_format_shape(first.grid)} and {_format_shape(second.grid)}"
    if not first.grid.same_box(second.grid) or first.grid.shape == second.grid.shape:
        return first, second
    finer = [max(pair) for pair in zip(first.grid.shape, second.grid.shape, strict=True)]
    grid = first.grid.with_shape(finer)
    notices.append(f"Resampled: {shapes} cells are both brought to {_format_shape(grid)}.")
    return first.resample(grid), second.resample(grid)


def _is_image_grid(grid: Grid) -> bool:
    """Return whether a grid is the default of a file without a box."""
    return grid == Grid(grid.shape, 0.0, [n / max(grid.shape) for n in grid.shape])


def _pad(density: Density) -> Density:
    """Centre a density in a square or cube of empty cells."""
    shape = density.grid.shape
    margins = [(max(shape) - n) // 2 for n in shape]
    values = torch.zeros((max(shape),) * len(shape), dtype=density.tensor.dtype)
    inside = tuple(slice(m, m + n) for m, n in zip(margins, shape, strict=True))
    values[inside] = density.tensor
    grid = Grid(values.shape, 0.0, 1.0, density.grid.orientation)
    return Density._unchecked(values, grid, density.mass_tensor, None, False)


def _resize(grid: Grid, resolution: int) -> Grid:
    """Return `resolution` cells along the longest side of the box, the others in proportion."""
    shape = [max(2, round(resolution * length / grid.max_side)) for length in grid.lengths]
    return _check_size(grid.with_shape(shape))


def _check_size(grid: Grid) -> Grid:
    """Raise GridError if a grid would exhaust the memory."""
    if grid.size > LIMITS.total:
        raise GridError(f"{grid} are {grid.size:,} in all; give a smaller --resolution.")
    return grid


def _format_shape(grid: Grid) -> str:
    return "×".join(map(str, grid.shape))


@dataclass(frozen=True)
class Rendering:
    """Options for writing a path.

    Attributes:
        times: times of the frames; animations use their number only.
        kind: kind of figure.
        stamp: whether the frames of an animation show their times.
        style: arguments of `geonet.plotting.Style`.
    """

    times: list[float]
    kind: str | None = None
    stamp: bool = True
    style: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.style) - {"mass"}:  # importing matplotlib takes a while
            from geonet.plotting.style import Style

            Style(**self.style)

    def to_json(self) -> str:
        """Return the text that a PNG file carries to identify its rendering."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class SolvedPair:
    """A path, and facts about its computation.

    Attributes:
        path: the path.
        grid: the grid on which to write it.
        seconds: time of the solver.
        contents: contents of the two files.
        notices: sentences about changes to the problem.
    """

    path: Geodesic
    grid: Grid
    seconds: float = 0.0
    contents: Sequence[dict[str, Any]] = ()
    notices: tuple[str, ...] = ()

    @cached_property
    def report(self) -> Report:
        """Report on the path; measuring it may take as long as solving."""
        report_progress("measuring the error of the path")
        return self.path.report

    def write(self, output: Path, rendering: Rendering) -> None:
        """Write frames, a figure, an animation or an interactive page, depending on the suffix."""
        times, style, suffix = rendering.times, rendering.style, output.suffix.lower()
        if suffix == ".npz":
            self.path.save(output, times, self.grid, style.get("mass", "one"))
        elif suffix == ".png":
            shows_all_times = rendering.kind in ("history", "tracks")
            figure = self.path.plot(
                None if shows_all_times else times, self.grid, rendering.kind or "frames", **style
            )
            with atomic_write(output) as temporary:
                figure.savefig(temporary, format="png", metadata={"geonet": rendering.to_json()})
        elif suffix == ".html":
            self.path.explore(output, len(times), self.grid, **style)
        else:
            self.path.animate(output, len(times), self.grid, stamp=rendering.stamp, **style)
