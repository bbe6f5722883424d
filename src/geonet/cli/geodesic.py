"""`geonet geodesic A B …`: the path between files in order, or between the files of many pairs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geonet._format import format_number, format_seconds
from geonet._progress import progress_callback
from geonet.cli.output import (
    BlurOption,
    ColumnsOption,
    GridOption,
    GrowthOption,
    InvertFileOption,
    InvertOption,
    JsonOption,
    MassOption,
    MissingOption,
    NodataOption,
    NormOption,
    OutsideOption,
    PeriodicOption,
    PointsOption,
    ReachOption,
    ResolutionOption,
    SolverOption,
    SolverOptions,
    VmaxOption,
    VminOption,
    check_inverted,
    check_output_file,
    choose_exit_code,
    connect_dask,
    describe_file,
    format_count,
    format_summary,
    parse_columns,
    parse_files,
    parse_missing,
    parse_periodic,
    parse_solver_options,
    print_json,
    print_report,
    print_table,
    run_interruptibly,
    show_progress,
    show_status,
)
from geonet.errors import InputError

if TYPE_CHECKING:
    from geonet.cli.job import Job, Rendering, SolvedPair, SolvedSequence

# Formats of the output, with the number of times unless --times is given.
FORMATS = {".png": 5, ".npz": 11, ".gif": 31, ".mp4": 61, ".html": 33}
LARGEST_SIZE = 4096  # pixels of --size; `geonet.plotting` has the same limit


def geodesic(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SOURCE TARGET …",
            help="Images, TIFF stacks, .npy, .npz or .csv: start and end of the path. More files "
            "make one path from each to the next.",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Many pairs instead: a csv with the columns source,target. -o is then a folder "
            "for an .npz of each pair and summary.csv; the same command resumes.",
        ),
    ] = None,
    solver: SolverOption = "auto",
    option: SolverOptions = None,
    reach: ReachOption = None,
    growth: GrowthOption = None,
    times: Annotated[
        str | None,
        typer.Option(
            metavar="N|T,T,…",
            help="A count or a list of times; by default 5 in a png, 11 in an npz, and in an "
            "animation, which runs forwards and back, 31 (.gif) or 61 (.mp4). With more than two "
            "files an animation shares its times out evenly, by default 16 or 31 for each pair.",
        ),
    ] = None,
    resolution: ResolutionOption = None,
    invert: InvertOption = False,
    invert_file: InvertFileOption = None,
    columns: ColumnsOption = None,
    points: PointsOption = False,
    grid: GridOption = False,
    periodic: PeriodicOption = None,
    missing: MissingOption = "raise",
    nodata: NodataOption = None,
    outside: OutsideOption = "raise",
    mass: MassOption = None,
    blur: BlurOption = 0.0,
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
        str | None,
        typer.Option(
            metavar="CMAP",
            help="A colour map of matplotlib, also for pictures in colour, which otherwise keep "
            "their colours.",
        ),
    ] = None,
    norm: NormOption = None,
    vmin: VminOption = None,
    vmax: VmaxOption = None,
    no_stamp: Annotated[
        bool, typer.Option("--no-stamp", help="Animations: omit the times on the frames.")
    ] = False,
    size: Annotated[
        int | None,
        typer.Option(
            min=16,
            metavar="PIXELS",
            help="Animations: longest side of the frames; by default 256 or more, in a gif at most "
            "512, or less if there are many frames. At most 4096.",
        ),
    ] = None,
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

    A sequence: geonet geodesic a.png b.png c.png a.png -o morph.gif

    Many pairs: geonet geodesic --pairs pairs.csv -o results

    The exit code is 1 if pairs did not converge, or if some of many pairs failed.
    """
    colours = {"cmap": cmap, "norm": norm, "vmin": vmin, "vmax": vmax}
    colours = {name: value for name, value in colours.items() if value is not None}
    check_options(
        files=files or [],
        pairs=pairs,
        output=output,
        plot=plot,
        times=times,
        colours=colours,
        no_stamp=no_stamp,
        size=size,
        mass=mass,
        outside=outside,
        points=points,
        grid=grid,
        scheduler=scheduler,
        report=report,
    )
    suffix = ".npz" if pairs else "" if output is None else output.suffix.lower()
    moments = parse_times(times, suffix, max(1, len(files or []) - 1))
    options = parse_solver_options(option, reach, growth)
    axes, mass = parse_periodic(periodic), mass or ("one" if reach is None else "given")
    filling: Any = parse_missing(missing)
    with show_status("starting"):  # importing torch takes seconds
        from geonet.cli.job import Job, Rendering

    job = Job(
        solver=solver,
        options=options,
        times=moments,
        resolution=resolution,
        invert=invert,
        invert_files=parse_files(invert_file),
        columns=parse_columns(columns),
        kind="points" if points else "values" if grid else None,
        periodic=axes,
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
    assert files is not None
    check_inverted(job.invert_files, files)
    rendering = Rendering(moments, plot, not no_stamp, size, style)
    has_colours = suffix in (".png", ".gif", ".mp4", ".html") and rendering.is_default
    with show_status("solving") as show:
        solved = run_interruptibly(lambda: job.solve_sequence(files, has_colours), show)
    if suffix == ".html" and solved.colours is not None:
        note = "Colours are not kept in html pages; the densities are drawn."
        solved = replace(solved, colours=None, note=note)
    if output is not None:
        # In this thread, in which Ctrl-C removes the unfinished file.
        with show_status(f"writing {output}") as show, progress_callback(show):
            _write(solved, output, rendering)
    if as_json:
        _print_json(solved, output)
    else:
        _print(solved, files, output, report)
    return choose_exit_code(all(pair.is_converged for pair in solved.legs))


# ---- Checks before torch is imported


def check_options(
    *,
    files: list[Path],
    pairs: Path | None,
    output: Path | None,
    plot: str | None,
    times: str | None,
    colours: dict[str, Any],
    no_stamp: bool,
    size: int | None,
    mass: str | None,
    outside: str,
    points: bool,
    grid: bool,
    scheduler: str | None,
    report: bool,
) -> None:
    """Raise InputError if options do not fit together or the output cannot be written."""
    suffix = "" if output is None else output.suffix.lower()
    many = pairs is not None
    rules = [
        (points and grid, "--points and --grid exclude each other; give one of them."),
        (mass not in (None, "one", "given"), f"--mass is {mass!r}; give one or given."),
        (outside not in ("raise", "drop"), f"--outside is {outside!r}; give raise or drop."),
        (many and bool(files), "--pairs replaces the files; leave one of them out."),
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
            not many and len(files) < 2,
            "A geodesic has two ends; give two or more files, or --pairs CSV.",
        ),
        *_list_output_rules(files, output, many, plot, times, colours, no_stamp, size, mass),
    ]
    for is_wrong, message in rules:
        if is_wrong:
            raise InputError(message)
    if output is not None and not many:
        check_output_file(output, files, FORMATS)


def _list_output_rules(
    files: list[Path],
    output: Path | None,
    many: bool,
    plot: str | None,
    times: str | None,
    colours: dict[str, Any],
    no_stamp: bool,
    size: int | None,
    mass: str | None,
) -> list[tuple[bool, str]]:
    """Return conditions under which options of the output are wrong, with their messages."""
    kinds = "frames", "velocity", "slices", "history", "tracks"
    suffix = "" if output is None else output.suffix.lower()
    picture = suffix if not many else ".png" if plot else ""  # suffix of the drawn file
    colour = next(iter(colours), "")
    no_file = "applies to the output, and there is none; add -o FILE."
    return [
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
            (no_stamp or size is not None) and picture not in (".gif", ".mp4"),
            f"--{'no-stamp' if no_stamp else 'size'} is for animations; give -o FILE.gif or "
            "FILE.mp4.",
        ),
        (
            size is not None and size > LARGEST_SIZE,
            f"--size is {size}; give at most {LARGEST_SIZE} pixels.",
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
        (
            len(files) > 2 and suffix == ".html",
            "An html page shows one path; give two files, or -o FILE.gif for a sequence.",
        ),
        (
            len(files) > 2 and plot not in (None, "frames"),
            f"--plot {plot} shows one path; give two files, or leave it out.",
        ),
    ]


def parse_times(text: str | None, suffix: str, paths: int = 1) -> list[float]:
    """Parse times in [0, 1] from a count ("5") or a list ("0,0.25,1").

    An animation shares its count out to `paths` paths.
    """
    is_film = suffix in (".gif", ".mp4", ".html")
    if text is None:
        count = FORMATS.get(suffix, 2)
        text = str(paths * (count // 2) + 1 if is_film and paths > 1 else count)
    remedy = "give a count of at least 2, or a list such as 0,0.5,1."
    if text.strip().isdecimal():
        count, most = int(text), 100 if suffix == ".png" else 10_000
        least = paths + 1 if is_film else 2
        if not least <= count <= most:
            raise InputError(f"--times is {count}; give a count of {least} to {most}, or a list.")
        return [k / (count - 1) for k in range(count)]
    if is_film:
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


def _write(solved: SolvedSequence, output: Path, rendering: Rendering) -> None:
    """Write the output; name --size if the frames of an animation do not fit into memory."""
    try:
        solved.write(output, rendering)
    except MemoryError as error:
        if output.suffix.lower() not in (".gif", ".mp4"):
            raise
        raise InputError(
            f"The frames of {output} need more memory than there is; give a smaller --size."
        ) from error


def _describe(pair: SolvedPair) -> dict[str, Any]:
    """Return plain data about one path."""
    report = pair.report
    return {
        "distance": report.distance,
        "cost": report.cost,
        "solver": report.solver,
        "seconds": round(pair.seconds, 4),
        "read": pair.contents,
        "report": report.to_dict(),
    }


def _print_json(solved: SolvedSequence, output: Path | None) -> None:
    grid = solved.legs[0].path.grid
    legs = [_describe(pair) for pair in solved.legs]
    print_json(
        {
            "changed": solved.notices,
            **(legs[0] if len(legs) == 1 else {"paths": legs}),
            "grid": {n: getattr(grid, n) for n in ("shape", "lower", "upper", "periodic")},
            "output": None if output is None else str(output),
        }
    )


def _print(solved: SolvedSequence, files: list[Path], output: Path | None, in_full: bool) -> None:
    from geonet.cli.reading import format_contents

    for sentence in solved.notices:
        typer.echo(sentence)
    written = [] if output is None else [("written", describe_file(output))]
    grid = ("grid", str(solved.legs[0].path.grid))
    if len(solved.legs) == 1:
        (pair,) = solved.legs
        ends = zip(("source", "target"), map(format_contents, pair.contents), strict=True)
        _print_pair(pair, [*ends, grid], written, in_full)
        return
    contents = [solved.legs[0].contents[0], *(pair.contents[1] for pair in solved.legs)]
    read = [(str(f), format_contents(c)) for f, c in zip(files, contents, strict=True)]
    print_table([*read, grid])
    for pair, ends in zip(solved.legs, pairwise(files), strict=True):
        typer.echo(f"\n{ends[0]} → {ends[1]}")
        _print_pair(pair, [], [], in_full)
    # With a reach, paths have a cost instead of W2.
    distances: list[Any] = [p.report.distance for p in solved.legs if p.report.cost is None]
    total = (
        [("W2, sum", format_number(sum(distances)) + _read_unit(solved.legs[0]))]
        if distances and None not in distances
        else []
    )
    if total or written:
        typer.echo()
        print_table([*total, *written])


def _print_pair(
    pair: SolvedPair, rows: list[tuple[str, str]], written: list[tuple[str, str]], in_full: bool
) -> None:
    """Print one path as a table, or its report as a panel."""
    report = pair.report
    rows = [*rows, ("solved in", format_seconds(pair.seconds))]
    if in_full:
        print_report(report, [*rows, *written])
        return
    entries = {"W2 distance": "not given by this solver", **dict(report.rows())}
    labels = ("solver", "W2 distance")
    if report.cost is not None:
        labels = ("solver", "cost", "cost at least", "cost at most", "transported share")
    if report.distance is not None:
        entries["W2 distance"] += _read_unit(pair)
    rows += [(label, entries[label]) for label in labels]
    print_table([*rows, ("trust", format_summary(report)), *written])


def _read_unit(pair: SolvedPair) -> str:
    """Return the unit of the voxel sizes of the files after a space, or nothing."""
    return next((f" {one['unit']}" for one in pair.contents if one.get("unit")), "")


def _solve_many(
    pairs: Path,
    folder: Path,
    job: Job,
    pictures: Rendering | None,
    scheduler: str | None,
    as_json: bool,
) -> int:
    """Solve the pairs of a list and print a summary; return the exit code."""
    from geonet.cli.batch import SUMMARY, BatchJob, read_pair_list, solve_batch

    rows = read_pair_list(pairs)
    listed = {end for row in rows for end in (row.source, row.target)}
    check_inverted(job.invert_files, [pairs.parent / name for name in listed])
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
    return choose_exit_code(not summary.failures and not summary.not_converged)
