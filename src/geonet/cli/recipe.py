"""How to solve the pair in two files, and what to write of its path."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from geonet.cli.changes import changes_in, gathered
from geonet.cli.pairs import densities_of, open_pair, output_grid, what_was_read
from geonet.progress import tell

if TYPE_CHECKING:
    from geonet.geodesics.base import Geodesic
    from geonet.geodesics.report import Report
    from geonet.measures.contents import Kind
    from geonet.measures.density import Mass
    from geonet.measures.grid import Grid

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
        from geonet.plotting.look import Look

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
        tell("measuring how far the path can be trusted")
        return self.path.report

    def judged(self) -> Solved:
        """The same, with its report made."""
        _ = self.report
        return self

    def write(self, output: Path, how: Rendering) -> None:
        """Write frames, a figure of some kind, an animation or a page; the suffix names which."""
        from geonet.files import written_atomically
        from geonet.plotting.kinds import OF_ALL_TIMES

        suffix = output.suffix.lower()
        if suffix == ".npz":
            self.path.save(output, how.times, self.grid, how.mass)
        elif suffix == ".png":
            times = None if how.kind in OF_ALL_TIMES else how.times
            figure = self.path.plot(times, self.grid, how.kind, **how.look)
            with written_atomically(output) as temporary:
                figure.savefig(temporary, format="png", metadata={SHOWN: how.shown})
        elif suffix == ".html":
            self.path.explore(output, len(how.times), self.grid, **how.look)
        else:
            look = {**how.look, "stamp": how.stamp}
            self.path.animate(output, len(how.times), self.grid, **look)
