"""`geonet geodesic A B`: the path between two files."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geonet.errors import FileError, InputError

if TYPE_CHECKING:
    from geonet.geodesic import Geodesic
    from geonet.measures.grid import Grid

TIMES = {".png": 5, ".npz": 11, ".gif": 31}  # how many, where --times is not given


def geodesic(
    source: Annotated[
        Path, typer.Argument(help="Image, .npy, .npz or .csv: where the path starts.")
    ],
    target: Annotated[Path, typer.Argument(help="Where it ends.")],
    solver: Annotated[str, typer.Option(help="A name from `geonet solvers`.")] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="An option of the solver, e.g. floor=0.01; repeat."
        ),
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            metavar="N|T,T,…",
            help="A count or a list of times; by default 5 in a png, 11 in an npz, 31 in a gif.",
        ),
    ] = None,
    resolution: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Cells along the longest side, of what is written; files that are finer are "
            "resampled first, by default to 256.",
        ),
    ] = None,
    invert: Annotated[
        bool, typer.Option("--invert", help="Images: dark ink is the mass, not light.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write: .npz, .png or .gif.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The Wasserstein geodesic from SOURCE to TARGET: its distance, a report, and a file."""
    check_output(output)
    moments = parse_times(times, output)  # both before torch is imported and any work is done
    import geonet
    from geonet.cli.output import working
    from geonet.cli.pairs import output_grid, read_pair
    from geonet.cli.solver_options import parse_options

    chosen = geonet.solver(solver, **parse_options(option or []))
    first, second = read_pair(source, target, invert, resolution)
    grid = output_grid(first.grid, resolution) if resolution else first.grid
    with working(f"solving on {first.grid}"):
        began = perf_counter()
        path = geonet.geodesic(first, second, chosen)
        seconds = perf_counter() - began
    if output is not None:
        with working(f"writing {output}"):
            write(path, output, moments, grid)
    _print(path, seconds, output, as_json)


def check_output(output: Path | None) -> None:
    """Refuse a file that could not be written, before any work."""
    if output is None:
        return
    if output.suffix.lower() not in TIMES:
        raise FileError(f"Cannot write {output}: give a name that ends in {', '.join(TIMES)}.")
    try:
        if not output.parent.is_dir():
            raise FileError(f"The folder {output.parent} does not exist; create it first.")
        if output.is_dir():
            raise FileError(f"{output} is a folder; give the name of a file.")
    except OSError as error:  # a name that is too long
        raise FileError(f"Cannot write {output}: {error.strerror}; give another name.") from error


def parse_times(text: str | None, output: Path | None) -> list[float]:
    """Times in [0, 1] from a count ("5") or a list ("0,0.25,1")."""
    if text is None:
        text = str(TIMES[output.suffix.lower()] if output else 2)
    elif output is None:
        raise InputError("--times says what to write, and nothing is; add -o FILE.")
    remedy = "give a count of at least 2, or a list such as 0,0.5,1."
    if text.strip().isdecimal():
        count = int(text)
        if not 2 <= count <= 10_000:
            raise InputError(f"--times is {count}; {remedy}")
        return [k / (count - 1) for k in range(count)]
    if output is not None and output.suffix.lower() == ".gif":
        raise InputError("A gif runs evenly from t = 0 to t = 1; give --times as a count.")
    try:
        moments = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--times is {text!r}; {remedy}") from error
    outside = [t for t in moments if not 0 <= t <= 1]
    if outside or not moments:
        what = f"has t = {outside[0]:g} outside [0, 1]" if outside else "is empty"
        raise InputError(f"--times {what}; {remedy}")
    return moments


def write(path: Geodesic, output: Path, moments: list[float], grid: Grid) -> None:
    """Write frames, a figure or an animation, whichever the suffix names."""
    from geonet.files import written_atomically

    suffix = output.suffix.lower()
    if suffix == ".npz":
        path.save(output, moments, grid)
    elif suffix == ".gif":
        path.animate(output, len(moments), grid)
    else:
        figure = path.plot(moments, grid)
        with written_atomically(output) as temporary:
            figure.savefig(temporary, format="png")


def _print(path: Geodesic, seconds: float, output: Path | None, as_json: bool) -> None:
    from geonet.cli.output import print_json, print_table

    report = path.report
    if as_json:
        answer: dict[str, Any] = {
            "distance": report.distance,
            "solver": report.solver,
            "seconds": round(seconds, 4),
            "grid": {name: getattr(path.grid, name) for name in ("shape", "lower", "upper")},
            "report": report.to_dict(),
            "output": None if output is None else str(output),
        }
        print_json(answer)
        return
    rows = [("grid", str(path.grid)), ("solved in", f"{seconds:.2g} s"), *report.rows()]
    if report.distance is None:
        rows.append(("W2 distance", "not given by this solver"))
    if output is not None:
        rows.append(("written", str(output)))
    print_table(rows)
