"""`geonet geodesic A B`: the path between two files, or between the files of many pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geonet.errors import FileError, InputError, SolverError

if TYPE_CHECKING:
    from geonet.cli.batch import Tally
    from geonet.cli.job import Recipe, Rendering, Solved
    from geonet.density import Mass
    from geonet.io import Kind


# ---- Options of `geonet geodesic` that do not fit are refused here, before torch is imported.


# Number of times unless --times is given.
TIMES = {".png": 5, ".npz": 11, ".gif": 31, ".mp4": 61, ".html": 33}
ANIMATIONS = (".gif", ".mp4")
EVEN = (*ANIMATIONS, ".html")  # their times are
PLOTS = {  # whether they show the times that are asked for
    **{"frames": True, "velocity": True, "slices": True},
    **{"history": False, "tracks": False},
}
MOST_FRAMES = 100  # in a picture


def check_ends(source: Path | None, target: Path | None) -> tuple[Path, Path]:
    """Both files; refuses a single one."""
    if source is None or target is None:
        raise InputError("A geodesic has two ends; give two files, or --pairs CSV.")
    return source, target


def check_folder(extra: list[str], output: Path | None) -> Path:
    """Where the answers of many pairs go; refuses options for a single pair."""
    if extra:
        raise InputError(f"--pairs goes without {extra[0]}; the folder's summary.csv has it all.")
    if output is None or output.suffix.lower() in TIMES:
        raise InputError("--pairs writes a file for each pair; give a folder, -o FOLDER.")
    return output


def check_output(output: Path | None, *inputs: Path) -> None:
    """Refuse a file that could not be written, or is one of the inputs, before any work."""
    if output is None:
        return
    try:
        read = output.resolve() in [file.resolve() for file in inputs]  # links and .. too
    except (OSError, RuntimeError, ValueError):  # a loop of links: what reads it will say so
        read = False
    if read:
        raise FileError(f"{output} is one of the two files that are read; give another name.")
    if output.suffix.lower() not in TIMES:
        raise FileError(f"Cannot write {output}: give a name that ends in {', '.join(TIMES)}.")
    if output.suffix.lower() == ".mp4":
        from geonet.plotting.animation import check_ffmpeg

        check_ffmpeg(output)
    try:
        if not output.parent.is_dir():
            raise FileError(f"The folder {output.parent} does not exist; create it first.")
        if output.is_dir():
            raise FileError(f"{output} is a folder; give the name of a file.")
    except OSError as error:  # a name that is too long
        raise FileError(f"Cannot write {output}: {error.strerror}; give another name.") from error


def check_plot(plot: str | None, output: Path | None, times: str | None) -> None:
    """Refuse a kind of picture that does not exist or does not fit the other options."""
    if plot is None:
        return
    if output is None or output.suffix.lower() != ".png":
        raise InputError("--plot says what a png shows; give -o FILE.png.")
    if plot not in PLOTS:
        raise InputError(f"--plot is {plot!r}; choose from {', '.join(PLOTS)}.")
    if times is not None and not PLOTS[plot]:
        raise InputError(f"--plot {plot} shows all times; leave --times out.")


def check_look(look: dict[str, Any], stamp: bool, output: Path | None, plot: str | None) -> None:
    """Refuse colours and stamps for what has none; `look` holds the options that were given."""
    suffix = "" if output is None else output.suffix.lower()
    if not stamp and suffix not in ANIMATIONS:
        raise InputError("--no-stamp is for animations; give -o FILE.gif or FILE.mp4.")
    if look and suffix not in (".png", *EVEN):
        raise InputError(
            f"--{next(iter(look))} says what a picture looks like, and none is drawn; "
            "give -o FILE.png or FILE.gif, or --plot KIND with --pairs."
        )
    if look and plot == "tracks":
        raise InputError(f"--plot tracks has the colours of time; leave --{next(iter(look))} out.")


def kind_of_tables(points: bool, grid: bool) -> Kind | None:
    """What tables hold that do not say it, if anything was said."""
    if points and grid:
        raise InputError("--points and --grid exclude each other; give one of them.")
    return "points" if points else "values" if grid else None


def check_mass_of_frames(mass: str, output: Path | None) -> Mass:
    """Refuse another word, or no file that could have use for it."""
    if mass == "one":
        return mass
    if mass != "given":
        raise InputError(f"--mass is {mass!r}; give one or given.")
    if output is None:
        raise InputError("--mass says what to write, and nothing is; add -o FILE.")
    return mass


def parse_times(text: str | None, output: Path | None) -> list[float]:
    """Times in [0, 1] from a count ("5") or a list ("0,0.25,1")."""
    if text is None:
        text = str(TIMES[output.suffix.lower()] if output else 2)
    elif output is None:
        raise InputError("--times says what to write, and nothing is; add -o FILE.")
    remedy = "give a count of at least 2, or a list such as 0,0.5,1."
    if text.strip().isdecimal():
        count = int(text)
        most = MOST_FRAMES if output is not None and output.suffix.lower() == ".png" else 10_000
        if not 2 <= count <= most:
            raise InputError(f"--times is {count}; give a count of 2 to {most}, or a list.")
        return [k / (count - 1) for k in range(count)]
    if output is not None and output.suffix.lower() in EVEN:
        raise InputError("An animation runs evenly from t = 0 to t = 1; give --times as a count.")
    try:
        moments = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--times is {text!r}; {remedy}") from error
    outside = [t for t in moments if not 0 <= t <= 1]
    if outside or not moments:
        what = f"has t = {outside[0]:g} outside [0, 1]" if outside else "is empty"
        raise InputError(f"--times {what}; {remedy}")
    return moments


SOME_FAILED = 1


def geodesic(
    source: Annotated[
        Path | None, typer.Argument(help="Image, .npy, .npz or .csv: where the path starts.")
    ] = None,
    target: Annotated[Path | None, typer.Argument(help="Where the path ends.")] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Many pairs instead: a csv with columns source,target; -o is then a folder, which "
            "gets an .npz for each and summary.csv. A second run does what is missing.",
        ),
    ] = None,
    solver: Annotated[
        str, typer.Option(help="A name from `geonet solvers`, or a model's file.")
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="An option of the solver, e.g. floor=0.01; may be repeated."
        ),
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            metavar="N|T,T,…",
            help="A count or a list of times; by default 5 in a png, 11 in an npz, 31 in a gif, "
            "61 in an mp4; animations run forwards and back.",
        ),
    ] = None,
    resolution: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Cells along the longest side of the output; finer files are resampled first, by "
            "default to 1024, in 3D to 128.",
        ),
    ] = None,
    invert: Annotated[
        bool,
        typer.Option("--invert", help="For images: dark pixels hold the mass, not bright ones."),
    ] = False,
    points: Annotated[
        bool,
        typer.Option(
            "--points",
            help="Tables without header hold points: a row for each, a column for each coordinate.",
        ),
    ] = False,
    grid: Annotated[
        bool, typer.Option("--grid", help="Tables without header hold values on a grid.")
    ] = False,
    nodata: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE",
            help="The value of cells without data, such as 255 or nan; they count as empty.",
        ),
    ] = None,
    mass: Annotated[
        str,
        typer.Option(
            metavar="one|given",
            help="Mass of the densities that are written or drawn: one, or given, in the units of "
            "the files, which --vmin and --vmax then have too.",
        ),
    ] = "one",
    blur: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="CELLS",
            help="Blur both ends first, by so many cells: for counts and noise.",
        ),
    ] = 0.0,
    output: Annotated[
        Path | None,
        typer.Option(
            *("--output", "-o"),
            help="File to write: .npz, .png, .gif, .html, .mp4 (ffmpeg); a folder with --pairs.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="What a png shows: frames, velocity (2D), tracks of particles (2D), history (1D: "
            "space × time) or slices (3D). With --pairs: write a png for each pair too.",
        ),
    ] = None,
    cmap: Annotated[
        str | None, typer.Option(help="Colours of a picture: a colour map of matplotlib.")
    ] = None,
    norm: Annotated[
        str | None,
        typer.Option(metavar="NORM", help="How colours follow values: linear, sqrt or log."),
    ] = None,
    vmin: Annotated[float | None, typer.Option(help="Value of the first colour.")] = None,
    vmax: Annotated[float | None, typer.Option(help="Value of the last colour.")] = None,
    stamp: Annotated[
        bool, typer.Option(" /--no-stamp", help="Animations: leave out the times on the frames.")
    ] = True,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --pairs: let a Dask cluster solve them, tcp://host:8786; its workers must "
            "see the same files.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print how far the path can be trusted.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Compute the geodesic from SOURCE to TARGET, print its distance and write it to a file.

    For example: geonet geodesic a.png b.png -o morph.gif --report

    Many pairs: geonet geodesic --pairs pairs.csv -o answers
    """
    from geonet.cli.output import waited_for, working

    options = parse_options(option or [])
    kind = kind_of_tables(points, grid)

    def recipe(written: Path | None) -> Recipe:
        moments = parse_times(times, written)
        from geonet.cli.job import (
            Recipe,  # importing torch takes seconds; wrong input must not wait for it
        )

        unit = check_mass_of_frames(mass, written)
        made = Recipe(solver, options, moments, resolution, invert, kind, nodata, unit, blur)
        made.check()
        return made

    asked = {"cmap": cmap, "norm": norm, "vmin": vmin, "vmax": vmax}
    look = {name: value for name, value in asked.items() if value is not None}

    def rendering(moments: list[float], unit: Mass) -> Rendering:
        from geonet.cli.job import Rendering

        how = Rendering(moments, plot or "frames", **look, stamp=stamp, mass=unit)
        if look:  # importing matplotlib takes a while
            how.check()
        return how

    if pairs is not None:
        given = {"two files": source is not None, "--report": report}
        folder = check_folder([name for name, there in given.items() if there], output)
        picture = None if plot is None else Path("of-a-pair.png")
        check_plot(plot, picture, None)
        check_look(look, stamp, picture, plot)
        made = recipe(Path("of-a-pair.npz"))
        pictures = None if picture is None else rendering(parse_times(times, picture), made.mass)
        return _many(pairs, folder, made, pictures, scheduler, as_json)
    if scheduler is not None:
        raise InputError("--scheduler is for many pairs; give --pairs CSV, or leave it out.")
    first, second = check_ends(source, target)
    check_output(output, first, second)
    check_plot(plot, output, times)
    check_look(look, stamp, output, plot)
    made = recipe(output)
    how = rendering(made.times, made.mass)
    with working("solving") as show:
        solved = waited_for(lambda: made.solve(first, second).judged(), show)
    if output is not None:
        with working(f"writing {output}"):
            solved.write(output, how)
    if as_json:
        _print_json(solved, output)
    else:
        _print(solved, output, report)
    return 0


# ---- one pair


def _print_json(solved: Solved, output: Path | None) -> None:
    from geonet.cli.output import print_json

    path, found = solved.path, solved.report
    answer: dict[str, Any] = {
        "changed": list(solved.changes),
        "distance": found.distance,
        "solver": found.solver,
        "seconds": round(solved.seconds, 4),
        "read": solved.read,
        "grid": {name: getattr(path.grid, name) for name in ("shape", "lower", "upper")},
        "report": found.to_dict(),
        "output": None if output is None else str(output),
    }
    print_json(answer)


def _print(solved: Solved, output: Path | None, in_full: bool) -> None:
    from geonet._format import format_seconds
    from geonet.cli.job import as_text
    from geonet.cli.output import print_report, print_table

    found = solved.report
    for sentence in solved.changes:
        typer.echo(sentence)
    ends = zip(("source", "target"), map(as_text, solved.read), strict=True)
    where = [*ends, ("grid", str(solved.path.grid)), ("solved in", format_seconds(solved.seconds))]
    written = [] if output is None else [("written", str(output))]
    if in_full:
        print_report(found, [*where, *written])
        return
    rows = dict(found.rows())
    rows.setdefault("W2 distance", "not given by this solver")
    shown = [(label, rows[label]) for label in ("solver", "W2 distance")]
    print_table([*where, *shown, ("trust", found.verdict()), *written])


# ---- many pairs


def _many(
    pairs: Path,
    folder: Path,
    recipe: Recipe,
    pictures: Rendering | None,
    scheduler: str | None,
    as_json: bool,
) -> int:
    from geonet.cli.batch import SUMMARY, read_pair_list, solve_many
    from geonet.cli.interp import connected
    from geonet.cli.output import counted, one_thread, progress

    rows = read_pair_list(pairs)
    with one_thread(), connected(scheduler) as client, progress("pairs", len(rows)) as bar:
        tally = solve_many(rows, pairs.parent, folder, recipe, bar, pictures, client)
    if as_json:
        _print_tally_json(tally, folder)
    else:
        already = f", {tally.before} were there already" if tally.before else ""
        typer.echo(f"{counted(tally.solved, 'pair')} solved{already}: {folder / SUMMARY}")
        if tally.missed:
            what = counted(tally.missed, "pair")
            typer.echo(f"{what} not converged; the column converged of the summary says which.")
        if tally.changed:
            what = counted(tally.changed, "pair")
            typer.echo(f"{what} coarsened or changed; the column changed of the summary says how.")
        if tally.failures:
            typer.echo(f"{counted(len(tally.failures), 'pair')} without an answer:")
        for failure in tally.failures:
            pair = failure.pair
            typer.echo(f"  line {pair.line}, {pair.source} → {pair.target}: {failure.message}")
    return SOME_FAILED if tally.failures else 0


def _print_tally_json(tally: Tally, folder: Path) -> None:
    from geonet.cli.output import print_json

    failures = [
        {
            "line": failure.pair.line,
            "source": failure.pair.source,
            "target": failure.pair.target,
            "error": failure.message,
        }
        for failure in tally.failures
    ]
    print_json(
        {
            "solved": tally.solved,
            "before": tally.before,
            "changed": tally.changed,
            "not_converged": tally.missed,
            "failures": failures,
            "output": str(folder),
        }
    )


# ---- `--option name=value` as keyword arguments of a solver.


WORDS = {"true": True, "false": False, "none": None}


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Values by name; the solver checks whether they fit."""
    options: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = (part.strip() for part in pair.partition("="))
        if not separator or not name or not text:
            raise SolverError(f"--option {pair!r} is not NAME=VALUE; write e.g. floor=0.01.")
        options[name] = _value(text)
    return options


def _value(text: str) -> int | float | bool | str | None:
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
