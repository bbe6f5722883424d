"""How to solve the pair in two files, and what to write of its path."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from geonet.cli.pairs import output_grid, read_pair

if TYPE_CHECKING:
    from geonet.geodesics.base import Geodesic
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
    """

    solver: str
    options: dict[str, Any]
    times: list[float]
    resolution: int | None
    invert: bool

    def check(self) -> None:
        """Refuse a solver or an option that does not exist, before any file is read."""
        self._solver()

    def solve(self, source: Path, target: Path) -> Solved:
        """Read both files and solve the pair."""
        chosen = self._solver()
        first, second = read_pair(source, target, self.invert, self.resolution)
        began = perf_counter()
        path = chosen(first, second)
        seconds = perf_counter() - began
        return Solved(path, self.grid_for(path), seconds)

    def grid_for(self, path: Geodesic) -> Grid:
        """The grid on which a path is to be written."""
        return output_grid(path.grid, self.resolution) if self.resolution else path.grid

    def to_json(self) -> dict[str, Any]:
        """Plain data, by which two recipes are compared; a model's file with what is in it."""
        model = Path(self.solver)
        if not model.is_file():
            return asdict(self)
        return asdict(self) | {"model": sha256(model.read_bytes()).hexdigest()}

    def _solver(self):
        import geonet

        return geonet.solver(self.solver, **self.options)


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
    """

    times: list[float]
    kind: str = "frames"
    cmap: str = "magma"
    norm: str = "linear"
    vmin: float | None = None
    vmax: float | None = None
    stamp: bool = True

    @property
    def look(self) -> dict[str, Any]:
        """The arguments of `Look`, by which a path is drawn."""
        return {"cmap": self.cmap, "norm": self.norm, "vmin": self.vmin, "vmax": self.vmax}

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
    """A path, the grid on which it is to be written, and the seconds that solving took."""

    path: Geodesic
    grid: Grid
    seconds: float

    def write(self, output: Path, how: Rendering) -> None:
        """Write frames, a figure of some kind or an animation, whichever the suffix names."""
        from geonet.files import written_atomically
        from geonet.plotting.kinds import OF_ALL_TIMES

        suffix = output.suffix.lower()
        if suffix == ".npz":
            self.path.save(output, how.times, self.grid)
        elif suffix == ".png":
            times = None if how.kind in OF_ALL_TIMES else how.times
            figure = self.path.plot(times, self.grid, how.kind, **how.look)
            with written_atomically(output) as temporary:
                figure.savefig(temporary, format="png", metadata={SHOWN: how.shown})
        else:
            look = {**how.look, "stamp": how.stamp}
            self.path.animate(output, len(how.times), self.grid, **look)
