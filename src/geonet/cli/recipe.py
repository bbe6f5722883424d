"""How to solve the pair in two files, and what to write of its path."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from geonet.cli.changes import changes_in, gathered
from geonet.cli.pairs import output_grid, read_pair
from geonet.progress import tell

if TYPE_CHECKING:
    from geonet.geodesics.base import Geodesic
    from geonet.geodesics.report import Report
    from geonet.measures.grid import Grid


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
        with gathered() as changes:
            first, second = read_pair(source, target, self.invert, self.resolution)
        began = perf_counter()
        path = chosen(first, second)
        seconds = perf_counter() - began
        grid = output_grid(first.grid, self.resolution) if self.resolution else first.grid
        changes += changes_in(path, self.solver)
        return Solved(path, grid, seconds, tuple(changes))

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
class Solved:
    """A path, the grid on which it is to be written, and the seconds that solving took.

    `changes` are sentences on what was coarsened or replaced on the way.
    """

    path: Geodesic
    grid: Grid
    seconds: float
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

    def write(self, output: Path, times: list[float], kind: str = "frames") -> None:
        """Write frames, a figure of some kind or an animation, whichever the suffix names."""
        from geonet.files import written_atomically
        from geonet.plotting.kinds import OF_ALL_TIMES

        suffix = output.suffix.lower()
        if suffix == ".npz":
            self.path.save(output, times, self.grid)
        elif suffix == ".png":
            figure = self.path.plot(None if kind in OF_ALL_TIMES else times, self.grid, kind)
            with written_atomically(output) as temporary:
                figure.savefig(temporary, format="png")
        else:
            self.path.animate(output, len(times), self.grid)
