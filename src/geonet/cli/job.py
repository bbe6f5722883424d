"""How to solve the pair in two files, and what to write of its path."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from geonet._format import format_number, format_percent
from geonet._progress import report_progress
from geonet.cli.output import counted
from geonet.density import Density
from geonet.errors import FileError, GridError, InputError
from geonet.grid import Grid
from geonet.io import IMAGE_SUFFIXES, Contents, Kind, opened

if TYPE_CHECKING:
    from geonet.density import Mass
    from geonet.paths import Geodesic
    from geonet.report import Report


# ---- What was coarsened, padded or replaced on the way to an answer: its first line.
#
# Whoever changes what was given calls `changed` with a sentence. What solvers did is in the notes of
# their paths.


_sentences: ContextVar[list[str] | None] = ContextVar("sentences", default=None)


@contextmanager
def gathered() -> Iterator[list[str]]:
    """The sentences of all that is changed meanwhile, each once."""
    sentences: list[str] = []
    token = _sentences.set(sentences)
    try:
        yield sentences
    finally:
        _sentences.reset(token)


def changed(sentence: str) -> None:
    """Say that something was changed."""
    sentences = _sentences.get()
    if sentences is not None and sentence not in sentences:
        sentences.append(sentence)


def cells(grid: Grid) -> str:
    """64×64, without the box."""
    return "×".join(map(str, grid.shape))


def changes_in(path: Geodesic, asked: str) -> list[str]:
    """What the solver of a path changed, if `asked` was the solver that was asked for."""
    notes, found = path.notes, []
    if "solved on" in notes:
        coarser = str(notes["solved on"]).partition(" cells")[0]
        found.append(
            f"Coarsened: solved on {coarser} cells, not on {cells(path.grid)} "
            "(--option max_cells=… takes more)."
        )
    if notes.get("floor"):
        found.append(
            f"Changed: {format_percent(notes['floor'])} of the mass of both ends is spread evenly "
            "(--option floor=0 for none)."
        )
    if notes.get("epsilon raised from"):
        found.append(
            f"Changed: epsilon is {format_number(notes['epsilon'])}, the least that these cells resolve, "
            f"and not {format_number(notes['epsilon raised from'])}."
        )
    if asked == "auto" and path.solver == "linear-program":
        found.append(
            "Chosen: the mass stands in separate cells, so linear-program moves these one by one "
            "(--solver midpoint spreads them)."
        )
    return found


# ---- Two files as two densities on one grid.


FLAGS: dict[Kind, str] = {"points": "--points", "values": "--grid"}
CLOUD_CELLS = {1: 64, 2: 64, 3: 24}  # along the longest side, where no resolution is given
# Cells along the longest side of what is solved, where no resolution is given.
LARGEST = {1: 2**20, 2: 1024, 3: 128}
MAX_CELLS = 2**26
MARGIN = 0.05  # of the longest side, around point clouds


def read_pair(
    source: Path,
    target: Path,
    invert: bool,
    resolution: int | None,
    kind: Kind | None = None,
    nodata: float | None = None,
) -> tuple[Density, Density]:
    """Read both files onto one grid: see `open_pair` and `densities_of`."""
    return densities_of(*open_pair(source, target, invert, kind, nodata), resolution)


def open_pair(
    source: Path, target: Path, invert: bool, kind: Kind | None, nodata: float | None
) -> tuple[Contents, Contents]:
    """Both files, each with what it holds.

    `kind` is for files that do not say what they hold, `nodata` for values and `invert` for images;
    each of them must concern one of the files.
    """
    first, second = (opened(file, invert, nodata) for file in (source, target))
    if kind is not None:
        if kind not in (*first.kinds, *second.kinds):
            raise InputError(
                f"{FLAGS[kind]} fits neither {source} nor {target}, which hold {first.kinds[0]}; "
                "leave it out."
            )
        first, second = (c.told(kind) if kind in c.kinds else c for c in (first, second))
    for contents in (first, second):
        _check_contents(contents)
    values = [contents.file for contents in (first, second) if contents.kind == "values"]
    pictures = [file for file in values if file.suffix.lower() in IMAGE_SUFFIXES]
    if invert and not pictures:
        raise InputError(f"--invert is for images and {source} is none; leave it out.")
    if nodata is not None and not values:
        raise InputError(f"--nodata is for cells, and {source} holds points; leave it out.")
    return first, second


def _check_contents(contents: Contents) -> None:
    """Refuse what only an option can settle."""
    if contents.kind is None:
        raise FileError(f"{contents.doubt()}; give --points or --grid.")
    if contents.kind == "values":
        bad = int(np.ma.filled(np.isnan(contents.numbers), False).sum())
        if bad:
            raise FileError(
                f"{contents.file} does not hold a density: {bad} of {contents.numbers.size} values "
                "are NaN; fill them, or give --nodata nan to count them as empty."
            )


def what_was_read(contents: Contents) -> dict[str, Any]:
    """Plain data: how many points, or how many cells along each axis and how many without data."""
    if contents.kind == "points":
        return {"kind": "points", "points": len(contents.numbers)}
    shape, missing = contents.values().shape, int(np.ma.count_masked(contents.numbers))
    return {"kind": "values", "shape": list(shape), "without_data": missing}


def as_text(read: dict[str, Any]) -> str:
    """What was read, for people."""
    if read["kind"] == "points":
        return f"read as {counted(read['points'], 'point')}"
    text = f"read as {'×'.join(map(str, read['shape']))} values"
    if read["without_data"]:
        share = 100 * read["without_data"] / math.prod(read["shape"])
        text += f"; {share:.2g} % of its cells have no data and count as empty"
    return text


def densities_of(
    source: Contents, target: Contents, resolution: int | None
) -> tuple[Density, Density]:
    """Both files on one grid, with at most `resolution` cells along its longest side.

    Point clouds are counted: two of them on a box around both, one on the other file's grid. Two
    densities come to the finer cells of the two; pictures of different proportions are padded to
    squares. Boxes that differ otherwise are left to the solver, which refuses them.
    """
    clouds = [contents.kind == "points" for contents in (source, target)]
    if all(clouds):
        grid = common_grid(source, target, resolution)
        changed(
            f"Counted: W2 is that of the points counted in {cells(grid)} cells, which are "
            f"{format_number(max(grid.spacing), 2)} wide (see --resolution)."
        )
        return source.density(grid), target.density(grid)
    if clouds[0]:
        second = _no_finer(target.density(), resolution)
        return _counted(source, second), second
    first = source.density()
    if clouds[1]:
        first = _no_finer(first, resolution)
        return first, _counted(target, first)
    second = target.density()
    if first.grid.dimension != second.grid.dimension:
        raise FileError(
            f"{source.file} is {first.grid.dimension}D and {target.file} is "
            f"{second.grid.dimension}D; give two files of one dimension."
        )
    first, second = _on_one_grid(first, second)
    return _no_finer(first, resolution), _no_finer(second, resolution)


def _counted(cloud: Contents, other: Density) -> Density:
    """A cloud on the other file's grid: beside a picture, x to the right and y upwards.

    Beside a file with a box of its own, the coordinates are in the order of that box's axes.
    """
    grid = other.grid
    if grid.dimension != 2 or not _is_picture(other):
        return cloud.density(grid)
    plane = Grid(grid.shape[::-1], 0.0, grid.upper[::-1], drawn="plane")
    counted = cloud.density(plane)
    return Density._of(counted.tensor.T.flip(0).contiguous(), grid, counted.mass, None)


def common_grid(source: Contents, target: Contents, resolution: int | None) -> Grid:
    """Square cells on a box around both clouds, `resolution` of them along its longest side."""
    first, second = (contents.points()[0] for contents in (source, target))
    if first.shape[-1] != second.shape[-1]:
        raise FileError(
            f"{source.file} has points in {first.shape[-1]}D and {target.file} in "
            f"{second.shape[-1]}D; "
            "give two clouds with the same coordinates."
        )
    both = torch.cat([first, second])
    lower, upper = both.amin(0), both.amax(0)
    longest = float((upper - lower).max())
    if longest == 0:
        raise InputError(
            f"All points of {source.file} and {target.file} coincide; there is nothing to move."
        )
    along = resolution or CLOUD_CELLS.get(first.shape[-1], min(CLOUD_CELLS.values()))
    cell = longest * (1 + 2 * MARGIN) / along
    counts = (upper - lower + 2 * MARGIN * longest) / cell
    shape = (counts - 1e-9).ceil().clamp(min=2)  # rounding must not add a cell
    centre, half = (lower + upper) / 2, shape * cell / 2
    corners = (centre - half).tolist(), (centre + half).tolist()
    grid = Grid(shape.long().tolist(), *corners, drawn="plane")
    check_size(grid)
    return grid


def output_grid(grid: Grid, resolution: int) -> Grid:
    """`resolution` cells along the longest side of the same box, the others in proportion."""
    resized = grid.with_shape([max(2, round(resolution * n / grid.longest)) for n in grid.lengths])
    check_size(resized)
    return resized


def check_size(grid: Grid) -> None:
    """Refuse a grid that would fill the memory."""
    if grid.size > MAX_CELLS:
        raise GridError(f"{grid} are {grid.size:,} in all; give a smaller --resolution.")


def _on_one_grid(first: Density, second: Density) -> tuple[Density, Density]:
    """Both on the same box and on the finer of the two grids, where that is possible."""
    if not first.grid.same_box(second.grid) and _is_picture(first) and _is_picture(second):
        ends = cells(first.grid), cells(second.grid)
        first, second = _padded(first), _padded(second)
        changed(f"Padded: {ends[0]} and {ends[1]} cells are set in the middle of empty squares.")
    if not first.grid.same_box(second.grid) or first.grid.shape == second.grid.shape:
        return first, second
    finer = [max(pair) for pair in zip(first.grid.shape, second.grid.shape, strict=True)]
    grid = first.grid.with_shape(finer)
    ends = cells(first.grid), cells(second.grid)
    changed(f"Resampled: {ends[0]} and {ends[1]} cells are both brought to {cells(grid)}.")
    return first.resample(grid), second.resample(grid)


def _is_picture(density: Density) -> bool:
    """Equal cells in a box at zero whose longest side is one, for a file without a box."""
    grid = density.grid
    return grid == Grid(grid.shape, 0.0, [n / max(grid.shape) for n in grid.shape])


def _padded(density: Density) -> Density:
    """In the middle of a cube, with empty cells around."""
    shape = density.grid.shape
    margins = [(max(shape) - n) // 2 for n in shape]
    values = torch.zeros((max(shape),) * len(shape), dtype=density.tensor.dtype)
    inside = tuple(slice(m, m + n) for m, n in zip(margins, shape, strict=True))
    values[inside] = density.tensor
    grid = Grid(values.shape, 0.0, 1.0, density.grid.drawn)
    return Density._of(values, grid, density.mass, None)


def _no_finer(density: Density, resolution: int | None) -> Density:
    """Resampled if it has more cells along its longest side, which it says."""
    most = resolution or LARGEST.get(density.grid.dimension, max(density.grid.shape))
    if max(density.grid.shape) <= most:
        return density
    coarser = output_grid(density.grid, most)
    changed(
        f"Coarsened: {cells(density.grid)} cells are solved on {cells(coarser)} "
        f"(--resolution {max(density.grid.shape)} solves them all)."
    )
    return density.resample(coarser)


SHOWN = "geonet"  # the text of a png that says how it was drawn


@dataclass(frozen=True)
class Recipe:
    """What `geonet geodesic` was asked to do with a pair.

    Attributes:
        solver: a name or a model's file.
        options: of the solver.
        times: to write, or how many of them: an animation runs evenly.
        resolution: cells along the longest side.
        invert: whether dark ink is the mass of images.
        kind: what files hold that do not say it, "points" or "values".
        nodata: the value of cells without data.
        mass: of the frames, "one" or "given".
        blur: of both ends before they are solved, in cells.
    """

    solver: str
    options: dict[str, Any]
    times: list[float]
    resolution: int | None
    invert: bool
    kind: Kind | None = None
    nodata: float | None = None
    mass: Mass = "one"
    blur: float = 0.0

    def check(self) -> None:
        """Refuse a solver or an option that does not exist, before any file is read."""
        self._solver()

    def solve(self, source: Path, target: Path) -> Solved:
        """Read both files and solve the pair."""
        chosen = self._solver()
        files = open_pair(source, target, self.invert, self.kind, self.nodata)
        with gathered() as changes:
            ends = densities_of(*files, self.resolution)
        first, second = (end.blurred(self.blur) for end in ends)
        began = perf_counter()
        path = chosen(first, second)
        seconds = perf_counter() - began
        changes += changes_in(path, self.solver)
        read = what_was_read(files[0]), what_was_read(files[1])
        if self.nodata is not None and not any(one.get("without_data") for one in read):
            changes.append(f"Unused: no cell has the value of --nodata, {self.nodata:g}.")
        return Solved(path, self.grid_for(path), seconds, read, tuple(changes))

    def grid_for(self, path: Geodesic) -> Grid:
        """The grid on which a path is to be written."""
        return output_grid(path.grid, self.resolution) if self.resolution else path.grid

    def to_json(self) -> dict[str, Any]:
        """Plain data, by which two recipes are compared; a model's file with what is in it."""
        plain = asdict(self) | {"nodata": None if self.nodata is None else str(self.nodata)}  # NaN
        return plain | model_digest(self.solver)

    def _solver(self):
        import geonet

        return geonet.solver(self.solver, **self.options)


def model_digest(solver: str) -> dict[str, str]:
    """What tells a model's file from others of its name; nothing for a solver's name."""
    model = Path(solver)
    return {"model": sha256(model.read_bytes()).hexdigest()} if model.is_file() else {}


@dataclass(frozen=True)
class Rendering:
    """How a path is written: at which times, and what pictures look like.

    Attributes:
        times: of frames, or how many of them: an animation runs evenly.
        kind: of a figure.
        cmap: the colours; for these see `Look`.
        norm: how they follow values.
        vmin: the value of the first.
        vmax: the value of the last.
        stamp: whether the frames of an animation say their times.
        mass: of the frames, "one" or "given".
    """

    times: list[float]
    kind: str = "frames"
    cmap: str = "magma"
    norm: str = "linear"
    vmin: float | None = None
    vmax: float | None = None
    stamp: bool = True
    mass: Mass = "one"

    @property
    def look(self) -> dict[str, Any]:
        """The arguments of `Look`, by which a path is drawn."""
        names = ("cmap", "norm", "vmin", "vmax", "mass")
        return {name: getattr(self, name) for name in names}

    @property
    def shown(self) -> str:
        """What a picture says of itself, by which one that shows something else is told."""
        return json.dumps(asdict(self))

    def check(self) -> None:
        """Refuse colours that do not exist, before any file is read."""
        from geonet.plotting.style import Look

        Look(**self.look)


@dataclass(frozen=True)
class Solved:
    """A path, and what else is to be told of it.

    Attributes:
        path: the answer.
        grid: on which to write it.
        seconds: that solving took.
        read: what the two files held.
        changes: sentences on what was coarsened or replaced on the way.
    """

    path: Geodesic
    grid: Grid
    seconds: float
    read: Sequence[dict[str, Any]] = ()
    changes: tuple[str, ...] = ()

    @cached_property
    def report(self) -> Report:
        """How far the path can be trusted; measuring it may take as long as solving."""
        report_progress("measuring how far the path can be trusted")
        return self.path.report

    def judged(self) -> Solved:
        """The same, with its report made."""
        _ = self.report
        return self

    def write(self, output: Path, how: Rendering) -> None:
        """Write frames, a figure of some kind, an animation or a page; the suffix names which."""
        from geonet._files import atomic_write
        from geonet.plotting.figures import OF_ALL_TIMES

        suffix = output.suffix.lower()
        if suffix == ".npz":
            self.path.save(output, how.times, self.grid, how.mass)
        elif suffix == ".png":
            times = None if how.kind in OF_ALL_TIMES else how.times
            figure = self.path.plot(times, self.grid, how.kind, **how.look)
            with atomic_write(output) as temporary:
                figure.savefig(temporary, format="png", metadata={SHOWN: how.shown})
        elif suffix == ".html":
            self.path.explore(output, len(how.times), self.grid, **how.look)
        else:
            look = {**how.look, "stamp": how.stamp}
            self.path.animate(output, len(how.times), self.grid, **look)
