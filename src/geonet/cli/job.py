"""One pair of files: solving it and writing its path."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import geonet
from geonet._files import atomic_write
from geonet._format import format_number, format_percent
from geonet._progress import progress_stage, report_progress
from geonet.cli.reading import Reader, ReadFiles, format_shape
from geonet.colours import ColourImage, check_colours
from geonet.errors import InputError, UnavailableError
from geonet.grid import Grid
from geonet.paths import BatchedGeodesic

if TYPE_CHECKING:
    from geonet.density import Mass
    from geonet.paths import Geodesic
    from geonet.report import Report


@dataclass(frozen=True)
class Job(Reader):
    """Options of `geonet geodesic` for reading and solving pairs of files.

    Attributes:
        solver: a name or a model file.
        options: options of the solver.
        times: times to write; animations use their number only.
        mass: mass of the written frames, "one" or "given".
    """

    solver: str
    options: dict[str, Any]
    times: list[float]
    mass: Mass = "one"

    def __post_init__(self) -> None:
        geonet.solver(self.solver, **self.options)  # raises for unknown names and options

    def solve(self, source: Path, target: Path) -> SolvedPair:
        """Read both files, solve the pair and compute the report."""
        (pair,) = self.solve_sequence([source, target], has_colours=False).legs
        return pair

    def solve_sequence(self, files: Sequence[Path], has_colours: bool = True) -> SolvedSequence:
        """Read the files, solve all pairs of neighbours and compute the reports.

        Args:
            files: two or more files.
            has_colours: whether to keep the colours of pictures.
        """
        solver = geonet.solver(self.solver, **self.options)
        read, legs = self.read(files), []
        for k, ends in enumerate(pairwise(read.densities)):
            stage = f"pair {k + 1} of {len(files) - 1}" if len(files) > 2 else ""
            with progress_stage(stage) if stage else nullcontext():
                start = perf_counter()
                path = solver(*ends)
                seconds = perf_counter() - start
                changes = _describe_changes(path, self.solver)
                notices = (*read.changes, *changes, *read.hints)
                contents = read.contents[k : k + 2]
                legs.append(
                    SolvedPair(path, self.output_grid(path.grid), seconds, contents, notices)
                )
                _ = legs[-1].report
        colours, note = None, ""
        if has_colours:
            colours, note = self._keep_colours(read, [leg.path for leg in legs])
        return SolvedSequence(legs, colours, note)

    def _keep_colours(
        self, read: ReadFiles, paths: Sequence[Geodesic]
    ) -> tuple[list[ColourImage] | None, str]:
        """Return the pictures in colour, or None and the reason why they are not kept."""
        colours = self.read_colours(read.opened, read.densities[0].grid)
        if colours is None:
            return None, ""
        try:
            for path, ends in zip(paths, pairwise(colours), strict=True):
                check_colours(path, *ends)
                path.velocity(0.5, path.grid.points()[:1, :1])
        except (InputError, UnavailableError):
            has_reach = not all(path.is_balanced for path in paths)
            reason = "with --reach" if has_reach else "with this solver"
            return None, f"Colours are not kept {reason}; the densities are drawn."
        return colours, ""

    def to_json(self) -> dict[str, Any]:
        """Return plain data by which two jobs are compared; it includes a model file's digest."""
        nodata = None if self.nodata is None else str(self.nodata)  # NaN differs from itself
        return asdict(self) | {"nodata": nodata} | model_digest(self.solver)


def model_digest(solver: str) -> dict[str, str]:
    """Return the digest of a model file; nothing for the name of a solver."""
    model = Path(solver)
    return {"model": sha256(model.read_bytes()).hexdigest()} if model.is_file() else {}


def _describe_changes(path: Geodesic, solver: str) -> list[str]:
    """Return sentences about changes that the solver made to the problem."""
    info, sentences = path.info, []
    if "solved on" in info:
        coarser = str(info["solved on"]).partition(" cells")[0]
        sentences.append(
            f"Coarsened: solved on {coarser} cells, not on {format_shape(path.grid)} "
            "(--option max_cells=… allows more)."
        )
    if info.get("floor"):
        sentences.append(
            f"Changed: {format_percent(info['floor'])} of the mass of both densities is spread "
            "evenly (--option floor=0 for none)."
        )
    if info.get("epsilon raised from"):
        sentences.append(
            f"Changed: epsilon is {format_number(info['epsilon'])}, the smallest value that these "
            f"cells resolve, instead of {format_number(info['epsilon raised from'])}."
        )
    if solver != path.solver and "plan entries" in info:
        sentences.append(
            "Chosen: linear-program, since few cells have mass; it moves them as points "
            "(--solver midpoint gives smooth frames)."
        )
    return sentences


@dataclass(frozen=True)
class Rendering:
    """Options for writing a path.

    Attributes:
        times: times of the frames; animations use their number only.
        kind: kind of figure.
        stamp: whether the frames of an animation show their times.
        size: longest side of the frames of an animation in pixels, None for the default.
        style: arguments of `geonet.plotting.Style`.
    """

    times: list[float]
    kind: str | None = None
    stamp: bool = True
    size: int | None = None
    style: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if set(self.style) - {"mass"}:  # importing matplotlib takes a while
            from geonet.plotting.style import Style

            Style(**self.style)

    @property
    def is_default(self) -> bool:
        """True if no option of the colours of densities was given."""
        return not set(self.style) - {"mass"}

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

    @property
    def is_converged(self) -> bool:
        """True if the solver reached its tolerance, or has none."""
        return self.report.info.get("converged") is not False

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
            SolvedSequence([self]).write(output, rendering)


@dataclass(frozen=True)
class SolvedSequence:
    """Paths between neighbours in a list of files.

    Attributes:
        legs: the paths.
        colours: the files as pictures in colour, to draw instead of their densities; or None.
        note: the reason why colours are not kept, if any.
    """

    legs: list[SolvedPair]
    colours: list[ColourImage] | None = None
    note: str = ""

    @property
    def notices(self) -> list[str]:
        """All sentences about changes, once."""
        sentences = [sentence for leg in self.legs for sentence in leg.notices]
        return list(dict.fromkeys([*sentences, *([self.note] if self.note else [])]))

    def write(self, output: Path, rendering: Rendering) -> None:
        """Write frames, a figure, an animation or a page, depending on the suffix."""
        first, suffix = self.legs[0], output.suffix.lower()
        paths = [leg.path for leg in self.legs]
        colours = self.colours if rendering.is_default else None
        if suffix in (".gif", ".mp4"):
            from geonet.plotting.animation import animate_geodesics
            from geonet.plotting.style import Style

            animate_geodesics(
                paths,
                output,
                len(rendering.times),
                first.grid,
                Style(**rendering.style),
                rendering.stamp,
                rendering.size,
                colours,
            )
        elif len(paths) > 1 and suffix == ".npz":
            mass = rendering.style.get("mass", "one")
            BatchedGeodesic(paths).save(output, rendering.times, first.grid, mass)
        elif len(paths) > 1 or (
            suffix == ".png" and colours is not None and rendering.kind in (None, "frames")
        ):
            from geonet.plotting.animation import write_sheet
            from geonet.plotting.style import Style

            style = Style(**rendering.style)
            write_sheet(paths, output, rendering.times, first.grid, style, colours)
        else:
            first.write(output, rendering)
