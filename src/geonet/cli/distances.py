"""`geonet distances A B C …`: the matrix of W2 between all pairs of files."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from geonet._files import READABLE_SUFFIXES, expand_files
from geonet._format import format_number, format_percent, format_seconds
from geonet.cli.output import (
    BlurOption,
    ColumnsOption,
    GridOption,
    GrowthOption,
    InvertFileOption,
    InvertOption,
    JsonOption,
    MissingOption,
    NodataOption,
    OutsideOption,
    PeriodicOption,
    PointsOption,
    ReachOption,
    ResolutionOption,
    SolverOption,
    SolverOptions,
    check_inverted,
    check_output_file,
    choose_exit_code,
    format_count,
    parse_columns,
    parse_files,
    parse_missing,
    parse_periodic,
    parse_solver_options,
    print_json,
    print_table,
    run_interruptibly,
    show_status,
)
from geonet.errors import InputError

if TYPE_CHECKING:
    from geonet.cli.reading import ReadFiles
    from geonet.distances import PairwiseDistances

FORMATS = (".csv", ".npz", ".npy")


def distances(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Two or more images, .npy, .npz or .csv files; a folder or a pattern stands for "
            "all files in it.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File for the matrix: .csv with the names of the files, .npy, or .npz with the "
            "bounds as well.",
        ),
    ] = None,
    bounds: Annotated[
        bool,
        typer.Option(
            "--bounds",
            help="Beside a .csv or .npy, write the bounds into files that end in -lower and "
            "-upper.",
        ),
    ] = False,
    solver: SolverOption = "auto",
    option: SolverOptions = None,
    reach: ReachOption = None,
    growth: GrowthOption = None,
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
    as_json: JsonOption = False,
) -> int:
    """Compute the Wasserstein distances between all pairs of FILES, with bounds.

    For example: geonet distances folder -o matrix.csv

    The exit code is 1 if distances did not converge and their bounds are not close.
    """
    start = perf_counter()
    named, files = files, expand_files(files, READABLE_SUFFIXES)
    if len(files) == 1 < len(named):
        raise InputError(
            f"{files[0]} is given more than once; distances need two or more different files."
        )
    _check_options(files, output, bounds, points, grid, outside)
    options = parse_solver_options(option, reach, growth)
    with show_status("starting"):  # importing torch takes seconds
        import geonet
        from geonet.cli.reading import Reader

        chosen = geonet.solver(solver, **options)
    reader = Reader(
        resolution=resolution,
        invert=invert,
        invert_files=parse_files(invert_file),
        columns=parse_columns(columns),
        kind="points" if points else "values" if grid else None,
        periodic=parse_periodic(periodic),
        missing=parse_missing(missing),  # pyright: ignore[reportArgumentType]
        nodata=nodata,
        outside=outside,  # pyright: ignore[reportArgumentType]
        blur=blur,
    )
    check_inverted(reader.invert_files, files)

    def solve() -> tuple[ReadFiles, PairwiseDistances]:
        read = reader.read(files)
        return read, geonet.pairwise_distances(read.densities, solver=chosen)

    with show_status("distances") as show:
        read, result = run_interruptibly(solve, show)
    names = [str(file) for file in files]
    written = [] if output is None else result.save(output, names, bounds)
    if as_json:
        _print_json(names, result, written)
    else:
        label = (
            "W2" if options.get("reach") is None else f"√(2·cost) with reach {options['reach']:g}"
        )
        _print(names, read, result, written, label, perf_counter() - start)
    return choose_exit_code(bool(result.converged.all()))


def _check_options(
    files: list[Path],
    output: Path | None,
    bounds: bool,
    points: bool,
    grid: bool,
    outside: str,
) -> None:
    """Raise InputError if options do not fit together or the output cannot be written."""
    if len(files) < 2:
        raise InputError("There is one file; distances need two or more.")
    if points and grid:
        raise InputError("--points and --grid exclude each other; give one of them.")
    if outside not in ("raise", "drop"):
        raise InputError(f"--outside is {outside!r}; give raise or drop.")
    if bounds and output is None:
        raise InputError("--bounds needs a file to write; give -o FILE.csv.")
    if output is not None:
        check_output_file(output, files, FORMATS)
        if bounds and output.suffix.lower() != ".npz":  # see `PairwiseDistances.save`
            for end in ("lower", "upper"):
                check_output_file(output.with_stem(f"{output.stem}-{end}"), files, FORMATS)


def _print_json(names: list[str], result: PairwiseDistances, written: list[Path]) -> None:
    print_json(
        {
            "files": names,
            "distances": result.distances.tolist(),
            "lower_bounds": result.lower_bounds.tolist(),
            "upper_bounds": result.upper_bounds.tolist(),
            "converged": result.converged.tolist(),
            "output": [str(file) for file in written],
        }
    )


def _print(
    names: list[str],
    read: ReadFiles,
    result: PairwiseDistances,
    written: list[Path],
    label: str,
    seconds: float,
    most: int = 8,
) -> None:
    """Print a summary, and the matrix if it is small or not written."""
    count = len(names)
    for sentence in read.notices:
        typer.echo(sentence)
    if count <= most or not written:
        labels = [str(k + 1) for k in range(count)]
        rows = [
            (label, name, *(format_number(value, 4) for value in row))
            for label, name, row in zip(labels, names, result.distances.tolist(), strict=True)
        ]
        print_table(rows, ("", "file", *labels))
        typer.echo()
    pairs = format_count(count * (count - 1) // 2, "distance")
    known = f"known within {format_percent(result.gap)} of the largest by their bounds"
    typer.echo(f"{pairs} between {count} files, {label}, {known}, {format_seconds(seconds)}")
    missed = [
        f"{names[i]} and {names[j]}"
        for i in range(count)
        for j in range(i)
        if not result.converged[i, j]
    ]
    if missed:
        more = f", and {len(missed) - most} more" if len(missed) > most else ""
        typer.echo(f"not converged: {'; '.join(missed[:most])}{more}")
    for file in written:
        typer.echo(f"written: {file}")
