"""`geonet barycenter A B C …`: the barycenter of files, or a table of barycenters between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geonet._format import format_number, format_percent, format_seconds
from geonet._progress import progress_callback
from geonet.cli.output import (
    BlurOption,
    ColumnsOption,
    GridOption,
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
    SolverOptions,
    VmaxOption,
    VminOption,
    check_inverted,
    check_output_file,
    choose_exit_code,
    describe_file,
    format_count,
    format_summary,
    parse_columns,
    parse_files,
    parse_missing,
    parse_options,
    parse_periodic,
    print_json,
    print_report,
    print_table,
    run_interruptibly,
    show_status,
)
from geonet.errors import InputError, SolverError

if TYPE_CHECKING:
    from geonet.barycenters import Barycenter, Barycenters
    from geonet.cli.reading import Reader, ReadFiles

FORMATS = (".png", ".pdf", ".svg", ".npz", ".html", ".gif", ".mp4")
OPTIONS = ("tolerance", "max_iterations", "time_limit")


def barycenter(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="Two or more images, .npy, .npz or .csv files."),
    ],
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W,W,…",
            help="Weights of the files, with sum one, such as 0.5,0.3,0.2 or 1/3,1/3,1/3; equal by "
            "default.",
        ),
    ] = None,
    table: Annotated[
        int | None,
        typer.Option(
            min=2,
            metavar="K",
            help="Many barycenters: K in a row between two files, a triangle with K along a side "
            "between three, K×K between four, the first two above the other two.",
        ),
    ] = None,
    reach: ReachOption = None,
    option: SolverOptions = None,
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
    blur: BlurOption = 0.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write: .png, .pdf, .svg, .npz, .gif, .mp4 (ffmpeg), or .html, a page "
            "with a point to drag.",
        ),
    ] = None,
    cmap: Annotated[
        str | None, typer.Option(metavar="CMAP", help="A colour map of matplotlib.")
    ] = None,
    norm: NormOption = None,
    vmin: VminOption = None,
    vmax: VmaxOption = None,
    mass: MassOption = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print the report on bounds and convergence.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Compute the Wasserstein barycenter of FILES, print its objective and write it to a file.

    For example: geonet barycenter a.png b.png c.png --weights 0.5,0.3,0.2 -o mean.png

    A table between four corners: geonet barycenter a.png b.png c.png d.png --table 5 -o table.png
    """
    style: dict[str, Any] = {"cmap": cmap, "norm": norm, "vmin": vmin, "vmax": vmax, "mass": mass}
    style = {name: value for name, value in style.items() if value is not None}
    _check_options(files, weights, table, output, points, grid, outside, style)
    numbers, options = _parse_weights(weights, len(files)), _parse_solver_options(option or [])
    filling: Any = parse_missing(missing)
    axes = parse_periodic(periodic)
    with show_status("starting"):  # importing torch takes seconds
        from geonet.cli.reading import Reader
        from geonet.solvers.barycenters import BarycenterOptions
        from geonet.weights import check_weights

        if style:
            from geonet.plotting.style import Style

            Style(**style)
        style.setdefault("mass", "one" if reach is None else "given")
        BarycenterOptions(reach, **options)
        check_weights(numbers, len(files))
    reader = Reader(
        resolution=resolution,
        invert=invert,
        invert_files=parse_files(invert_file),
        columns=parse_columns(columns),
        kind="points" if points else "values" if grid else None,
        periodic=axes,
        missing=filling,
        nodata=nodata,
        outside=outside,  # pyright: ignore[reportArgumentType]
        blur=blur,
    )
    check_inverted(reader.invert_files, files)
    job = BarycenterJob(reader, numbers, table, reach, options)
    with show_status("solving") as show:
        solved = run_interruptibly(lambda: job.solve(files), show)
    if output is not None:
        if output.suffix.lower() != ".npz" and "cmap" not in style:
            solved = _note_lost_colours(solved)
        # In this thread, in which Ctrl-C removes the unfinished file.
        with show_status(f"writing {output}") as show, progress_callback(show):
            solved.write(output, table, style)
    if as_json:
        _print_json(solved, output)
    else:
        _print(solved, files, output, report)
    return choose_exit_code(solved.count_missed() == 0)


# ---- Checks before torch is imported


def _check_options(
    files: list[Path],
    weights: str | None,
    table: int | None,
    output: Path | None,
    points: bool,
    grid: bool,
    outside: str,
    style: dict[str, Any],
) -> None:
    """Raise InputError if options do not fit together or the output cannot be written."""
    suffix = "" if output is None else output.suffix.lower()
    rules = [
        (points and grid, "--points and --grid exclude each other; give one of them."),
        (outside not in ("raise", "drop"), f"--outside is {outside!r}; give raise or drop."),
        (len(files) < 2, "There is one file; a barycenter needs two or more."),
        (
            weights is not None and table is not None and suffix != ".html",
            "--table has weights of its own; leave out --weights or --table.",
        ),
        (
            table is not None and len(files) > 4 and suffix != ".html",
            f"--table has two to four corners and there are {len(files)} files; "
            "give --weights, or -o FILE.html for a polygon.",
        ),
        (
            bool(style) and suffix in ("", ".npz"),
            f"--{next(iter(style), '')} applies to pictures, and none is drawn; give -o FILE.png.",
        ),
    ]
    for is_wrong, message in rules:
        if is_wrong:
            raise InputError(message)
    if output is not None:
        check_output_file(output, files, FORMATS)


def _parse_weights(text: str | None, count: int) -> list[float] | None:
    if text is None:
        return None
    try:
        weights = [_parse_weight(part) for part in text.split(",")]
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"--weights is {text!r}; give a number for each file, such as 0.5,0.3,0.2 or "
            "1/2,1/4,1/4."
        ) from error
    if len(weights) != count:
        given = format_count(len(weights), "number")
        raise InputError(f"--weights has {given} for {count} files; give {count}.")
    return weights


def _parse_weight(text: str) -> float:
    """Return a number or a fraction such as 1/3."""
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def _parse_solver_options(pairs: list[str]) -> dict[str, Any]:
    options = parse_options(pairs)
    for name in options:
        if name not in OPTIONS:
            raise SolverError(
                f"A barycenter has no option {name!r}; its options are {', '.join(OPTIONS)}."
            )
    return options


# ---- Work


@dataclass(frozen=True)
class BarycenterJob:
    """The problem of one command.

    Attributes:
        reader: options for reading files.
        weights: weights of the files; None for equal ones.
        table: size of a table; None for one barycenter.
        reach: length over which mass moves; None for balanced transport.
        options: options of the solver.
    """

    reader: Reader
    weights: list[float] | None
    table: int | None
    reach: float | None
    options: dict[str, Any]

    def solve(self, files: list[Path]) -> SolvedFiles:
        """Read the files, solve, and compute the bounds, which take a tenth as long."""
        import geonet
        from geonet.weights import make_table

        read = self.reader.read(files)
        weights: Any = self.weights
        if self.table is not None and weights is None and len(files) <= 4:
            weights = make_table(len(files), self.table)
        start = perf_counter()
        result = geonet.barycenter(read.densities, weights, reach=self.reach, **self.options)
        seconds = perf_counter() - start
        _ = result.report
        return SolvedFiles(result, read, seconds)


@dataclass(frozen=True)
class SolvedFiles:
    """One or many barycenters, and facts about their computation.

    Attributes:
        result: the barycenter or barycenters.
        read: the files.
        seconds: time of the solver.
    """

    result: Barycenter | Barycenters
    read: ReadFiles
    seconds: float

    def count_missed(self) -> int:
        """Return the number of barycenters that did not converge."""
        import geonet

        result = self.result
        each = [result] if isinstance(result, geonet.Barycenter) else result.flat
        return sum(not one.converged for one in each)

    def write(self, output: Path, table: int | None, style: dict[str, Any]) -> None:
        """Write the numbers, a figure, an animation or a page, depending on the suffix."""
        from geonet._files import atomic_write

        suffix = output.suffix.lower()
        if suffix == ".npz":
            self.result.save(output)
        elif suffix == ".html":
            self.result.explore(output, **({} if table is None else {"table": table}), **style)
        elif suffix in (".gif", ".mp4"):
            self.result.animate(output, **style)
        else:
            figure = self.result.plot(**style)
            with atomic_write(output) as temporary:
                figure.savefig(temporary, format=suffix[1:])


# ---- Output


def _note_lost_colours(solved: SolvedFiles) -> SolvedFiles:
    """Add a sentence to the notices if one of the files is a picture in colour."""
    read, pictures = solved.read, [one.picture for one in solved.read.opened]
    if all(picture is None or picture.rgba is None for picture in pictures):
        return solved
    note = "Colours are not kept in barycenters; the densities are drawn."
    return replace(solved, read=replace(read, hints=(*read.hints, note)))


def _print_json(solved: SolvedFiles, output: Path | None) -> None:
    result, report = solved.result, solved.result.report
    print_json(
        {
            "changed": list(solved.read.notices),
            "weights": result.weights.tolist(),
            "objective": report.objective,
            "lower_bound": report.lower_bound,
            "upper_bound": report.upper_bound,
            "gap": report.gap,
            "converged": report.converged,
            "seconds": round(solved.seconds, 4),
            "read": solved.read.contents,
            "grid": {n: getattr(result.grid, n) for n in ("shape", "lower", "upper", "periodic")},
            "report": report.to_dict(),
            "output": None if output is None else str(output),
        }
    )


def _print(solved: SolvedFiles, files: list[Path], output: Path | None, in_full: bool) -> None:
    import geonet
    from geonet.cli.reading import format_contents

    result = solved.result
    for sentence in solved.read.notices:
        typer.echo(sentence)
    contents = map(format_contents, solved.read.contents)
    rows = [(str(file), text) for file, text in zip(files, contents, strict=True)]
    rows += [("grid", str(result.grid)), ("solved in", format_seconds(solved.seconds))]
    written = [] if output is None else [("written", describe_file(output))]
    if in_full:
        print_report(result.report, [*rows, *written])
        return
    if isinstance(result, geonet.Barycenter):
        rows += [
            ("weights", ", ".join(format_number(w, 3) for w in result.weights.tolist())),
            (result.report.objective_label, format_number(result.report.objective)),
            ("trust", format_summary(result.report)),
        ]
    else:
        missed = solved.count_missed()
        text = format_count(len(result.flat), "barycenter")
        rows.append(("table", f"{text}, {missed} not converged" if missed else text))
        report = result.report
        if report.gap is not None:
            rows.append(("largest gap", format_percent(max(report.gap))))
        rows.append(("trust", format_summary(report)))
    print_table([*rows, *written])
