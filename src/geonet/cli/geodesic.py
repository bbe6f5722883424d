"""`geonet geodesic A B`: the path between two files, or between the files of many pairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geonet._format import format_seconds
from geonet.cli.output import (
    JsonOption,
    MissingOption,
    SolverOption,
    SolverOptions,
    connect_dask,
    format_count,
    parse_missing,
    parse_options,
    print_json,
    print_report,
    print_table,
    run_interruptibly,
    show_progress,
    show_status,
)
from geonet.errors import FileError, InputError

if TYPE_CHECKING:
    from geonet.cli.job import Job, Rendering, SolvedPair

# Formats of the output, with the number of times unless --times is given.
FORMATS = {".png": 5, ".npz": 11, ".gif": 31, ".mp4": 61, ".html": 33}


def geodesic(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="SOURCE", help="Image, .npy, .npz or .csv: start of the path."),
    ] = None,
    target: Annotated[
        Path | None, typer.Argument(metavar="TARGET", help="End of the path.")
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Many pairs instead: a csv with columns source,target; -o is then a folder for an "
            ".npz of each pair and summary.csv. A second run computes missing pairs only.",
        ),
    ] = None,
    solver: SolverOption = "auto",
    option: SolverOptions = None,
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
            metavar="CELLS",
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
    missing: MissingOption = "raise",
    nodata: Annotated[
        float | None,
        typer.Option(
            metavar="VALUE", help="The value that marks missing cells, beside NaN, such as 255."
        ),
    ] = None,
    outside: Annotated[
        str,
        typer.Option(
            metavar="raise|drop",
            help="Points outside the other file's box: raise an error or drop.",
        ),
    ] = "raise",
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
            min=0.0, metavar="CELLS", help="Blur both densities first: for counts and noise."
        ),
    ] = 0.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write: .npz, .png, .gif, .html, .mp4 (ffmpeg); a folder with --pairs.",
        ),
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Kind of a png: frames, velocity (2D), tracks of particles (2D), history (1D: "
            "space × time) or slices (3D). With --pairs: write a png for each pair too.",
        ),
    ] = None,
    cmap: Annotated[
        str | None, typer.Option(metavar="CMAP", help="A colour map of matplotlib.")
    ] = None,
    norm: Annotated[
        str | None, typer.Option(metavar="NORM", help="Scale of colours: linear, sqrt or log.")
    ] = None,
    vmin: Annotated[
        float | None, typer.Option(metavar="VALUE", help="Value of the first colour.")
    ] = None,
    vmax: Annotated[
        float | None, typer.Option(metavar="VALUE", help="Value of the last colour.")
    ] = None,
    stamp: Annotated[
        bool,
        typer.Option(
            " /--no-stamp", show_default=False, help="Animations: omit the times on the frames."
        ),
    ] = True,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --pairs: compute on a Dask cluster, tcp://host:8786, whose workers can read "
            "and write the same files.",
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print the report on the error of the path.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Compute the geodesic from SOURCE to TARGET, print its distance and write it to a file.

    For example: geonet geodesic a.png b.png -o morph.gif --report

    Many pairs: geonet geodesic --pairs pairs.csv -o results
    """
    colours = {"cmap": cmap, "norm": norm, "vmin": vmin, "vmax": vmax}
    colours = {name: value for name, value in colours.items() if value is not None}
    check_options(
        source=source,
        target=target,
        pairs=pairs,
        output=output,
        plot=plot,
        times=times,
        colours=colours,
        stamp=stamp,
        mass=mass,
        outside=outside,
        points=points,
        grid=grid,
        scheduler=scheduler,
        report=report,
    )
    suffix = ".npz" if pairs else "" if output is None else output.suffix.lower()
    options, moments = parse_options(option or []), parse_times(times, suffix)
    filling: Any = parse_missing(missing)
    with show_status("starting"):  # importing torch takes seconds
        from geonet.cli.job import Job, Rendering

    job = Job(
        solver=solver,
        options=options,
        times=moments,
        resolution=resolution,
        invert=invert,
        kind="points" if points else "values" if grid else None,
        missing=filling,
        nodata=nodata,
        outside=outside,  # pyright: ignore[reportArgumentType]
        mass=mass,  # pyright: ignore[reportArgumentType]
        blur=blur,
    )
    style = {**colours, "mass": mass}
    if pairs is not None:
        assert output is not None
        pictures = None
        if plot is not None:
            pictures = Rendering(parse_times(times, ".png"), plot, style=style)
        return _solve_many(pairs, output, job, pictures, scheduler, as_json)
    assert source is not None and target is not None
    rendering = Rendering(moments, plot, stamp, style)
    with show_status("solving") as show:
        solved = run_interruptibly(lambda: job.solve(source, target), show)
    if output is not None:
        with show_status(f"writing {output}"):
            solved.write(output, rendering)
    if as_json:
        _print_json(solved, output)
    else:
        _print(solved, output, report)
    return 0


# ---- Checks before torch is imported


def check_options(
    *,
    source: Path | None,
    target: Path | None,
    pairs: Path | None,
    output: Path | None,
    plot: str | None,
    times: str | None,
    colours: dict[str, Any],
    stamp: bool,
    mass: str,
    outside: str,
    points: bool,
    grid: bool,
    scheduler: str | None,
    report: bool,
) -> None:
    """Raise InputError if options do not fit together or the output cannot be written."""
    suffix = "" if output is None else output.suffix.lower()
    many, kinds = pairs is not None, ("frames", "velocity", "slices", "history", "tracks")
    picture = suffix if not many else ".png" if plot else ""  # suffix of the drawn file
    colour = next(iter(colours), "")
    no_file = "applies to the output, and there is none; add -o FILE."
    rules = [
        (points and grid, "--points and --grid exclude each other; give one of them."),
        (mass not in ("one", "given"), f"--mass is {mass!r}; give one or given."),
        (outside not in ("raise", "drop"), f"--outside is {outside!r}; give raise or drop."),
        (many and source is not None, "--pairs replaces the two files; leave one of them out."),
        (many and report, "--report is for one pair; summary.csv has the reports of --pairs."),
        (
            many and (output is None or suffix in FORMATS),
            "--pairs writes a file for each pair; give a folder, -o FOLDER.",
        ),
        (
            scheduler is not None and not many,
            "--scheduler is for many pairs; give --pairs CSV, or leave it out.",
        ),
        (
            not many and target is None,
            "A geodesic has two ends; give two files, or --pairs CSV.",
        ),
        (times is not None and output is None, f"--times {no_file}"),
        (mass == "given" and output is None, f"--mass {no_file}"),
        (
            plot is not None and picture != ".png",
            "--plot is the kind of a png; give -o FILE.png.",
        ),
        (
            plot is not None and plot not in kinds,
            f"--plot is {plot!r}; choose from {', '.join(kinds)}.",
        ),
        (
            plot in ("history", "tracks") and times is not None and not many,
            f"--plot {plot} shows all times; leave --times out.",
        ),
        (
            not stamp and picture not in (".gif", ".mp4"),
            "--no-stamp is for animations; give -o FILE.gif or FILE.mp4.",
        ),
        (
            bool(colours) and picture not in (".png", ".gif", ".mp4", ".html"),
            f"--{colour} applies to pictures, and none is drawn; give -o FILE.png or FILE.gif, or "
            "--plot KIND with --pairs.",
        ),
        (
            bool(colours) and plot == "tracks",
            f"--plot tracks uses colours for time; leave --{colour} out.",
        ),
    ]
    for is_wrong, message in rules:
        if is_wrong:
            raise InputError(message)
    if output is not None and not many:
        _check_output(output, [file for file in (source, target) if file is not None])


def _check_output(output: Path, inputs: list[Path]) -> None:
    """Raise FileError if a file cannot be written, or is one of the inputs."""
    try:
        is_input = output.resolve() in [file.resolve() for file in inputs]  # also through links
    except (OSError, RuntimeError, ValueError):  # a loop of links, which the reader reports
        is_input = False
    if is_input:
        raise FileError(f"{output} is one of the two input files; give another name.")
    if output.suffix.lower() not in FORMATS:
        raise FileError(f"Cannot write {output}: give a name that ends in {', '.join(FORMATS)}.")
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


def parse_times(text: str | None, suffix: str) -> list[float]:
    """Parse times in [0, 1] from a count ("5") or a list ("0,0.25,1")."""
    text = str(FORMATS.get(suffix, 2)) if text is None else text
    remedy = "give a count of at least 2, or a list such as 0,0.5,1."
    if text.strip().isdecimal():
        count, most = int(text), 100 if suffix == ".png" else 10_000
        if not 2 <= count <= most:
            raise InputError(f"--times is {count}; give a count of 2 to {most}, or a list.")
        return [k / (count - 1) for k in range(count)]
    if suffix in (".gif", ".mp4", ".html"):
        raise InputError("An animation runs evenly from t = 0 to t = 1; give --times as a count.")
    try:
        times = [float(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise InputError(f"--times is {text!r}; {remedy}") from error
    outside = [t for t in times if not 0 <= t <= 1]
    if outside or not times:
        cause = f"has t = {outside[0]:g} outside [0, 1]" if outside else "is empty"
        raise InputError(f"--times {cause}; {remedy}")
    return times


# ---- Output


def _print_json(solved: SolvedPair, output: Path | None) -> None:
    path, report = solved.path, solved.report
    print_json(
        {
            "changed": list(solved.notices),
            "distance": report.distance,
            "solver": report.solver,
            "seconds": round(solved.seconds, 4),
            "read": solved.contents,
            "grid": {name: getattr(path.grid, name) for name in ("shape", "lower", "upper")},
            "report": report.to_dict(),
            "output": None if output is None else str(output),
        }
    )


def _print(solved: SolvedPair, output: Path | None, in_full: bool) -> None:
    from geonet.cli.job import format_contents

    report = solved.report
    for sentence in solved.notices:
        typer.echo(sentence)
    ends = zip(("source", "target"), map(format_contents, solved.contents), strict=True)
    rows = [*ends, ("grid", str(solved.path.grid)), ("solved in", format_seconds(solved.seconds))]
    written = [] if output is None else [("written", str(output))]
    if in_full:
        print_report(report, [*rows, *written])
        return
    entries = {"W2 distance": "not given by this solver", **dict(report.rows())}
    rows += [(label, entries[label]) for label in ("solver", "W2 distance")]
    print_table([*rows, ("trust", str(report.summary())), *written])


def _solve_many(
    pairs: Path,
    folder: Path,
    job: Job,
    pictures: Rendering | None,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Solve the pairs of a list and print a summary; return 1 if some failed."""
    from geonet.cli.batch import SUMMARY, BatchJob, read_pair_list, solve_batch

    rows = read_pair_list(pairs)
    batch = BatchJob(pairs.parent, folder, job, pictures)
    with connect_dask(scheduler) as client, show_progress("pairs", len(rows)) as bar:
        summary = solve_batch(rows, batch, bar, client)
    if as_json:
        failures = [
            {
                "line": failure.pair.line,
                "source": failure.pair.source,
                "target": failure.pair.target,
                "error": failure.message,
            }
            for failure in summary.failures
        ]
        print_json(
            {
                "solved": summary.solved,
                "before": summary.before,
                "changed": summary.changed,
                "not_converged": summary.not_converged,
                "failures": failures,
                "output": str(folder),
            }
        )
    else:
        before = f", {summary.before} existed already" if summary.before else ""
        typer.echo(f"{format_count(summary.solved, 'pair')} solved{before}: {folder / SUMMARY}")
        if summary.not_converged:
            count = format_count(summary.not_converged, "pair")
            typer.echo(f"{count} not converged; see the column converged of the summary.")
        if summary.changed:
            count = format_count(summary.changed, "pair")
            typer.echo(f"{count} coarsened or changed; see the column changed of the summary.")
        if summary.failures:
            typer.echo(f"{format_count(len(summary.failures), 'pair')} failed:")
        for failure in summary.failures:
            pair = failure.pair
            typer.echo(f"  line {pair.line}, {pair.source} → {pair.target}: {failure.message}")
    return 1 if summary.failures else 0
