"""`geonet interp FILE`: a field in a NetCDF file or a Zarr store, at other times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geonet.errors import FileError, InputError

WRITTEN = (".nc", ".zarr")


def interp(
    file: Annotated[Path, typer.Argument(help="The field: a NetCDF file or a Zarr store.")],
    every: Annotated[
        str,
        typer.Option(
            metavar="STEP",
            help="Time between two frames: 2min, 30s, 6h; a number if times are numbers.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="What to write: .nc, or a store .zarr.")
    ],
    variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which field, if the file holds several.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="NAME", help="The dimension of time, if it is not clear.")
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…", help="The dimensions of space, if they are not x, y, lat, …."
        ),
    ] = None,
    plane: Annotated[
        bool,
        typer.Option(
            "--plane", help="Take latitudes and longitudes as they are, not as a globe's."
        ),
    ] = False,
    missing: Annotated[
        str,
        typer.Option(
            metavar="refuse|exclude|VALUE",
            help="Cells without a value: refuse them, leave them out, or fill them with a number.",
        ),
    ] = "refuse",
    solver: Annotated[
        str, typer.Option(help="A name from `geonet solvers`, or a model's file.")
    ] = "auto",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="An option of the solver; may be repeated."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Let a Dask cluster compute: tcp://host:8786; it must see FILE."
        ),
    ] = None,
) -> int:
    """Put frames between those of a field: mass moves where other tools fade it.

    For example: geonet interp rain.nc --every 2min -o fine.zarr

    A second run goes on where an interrupted one stopped.
    """
    from geonet.cli.output import working
    from geonet.cli.solver_options import parse_options

    options = parse_options(option or [])
    filling = _filling(missing)
    _check_output(output)
    settings = {
        "space": None if space is None else tuple(space.split(",")),
        "geographic": False if plane else None,
        "solver": solver,
        "options": options,
        "missing": filling,
    }
    with working("starting"):  # importing torch takes seconds
        from geonet.cli.finer import Asked, make_finer
    make_finer(Asked(file, variable, time, every, settings, output, scheduler))
    return 0


def _check_output(output: Path) -> None:
    """Refuse, before any work, what could not be written or is there."""
    if output.suffix not in WRITTEN:
        raise FileError(f"Cannot write {output}: give a name that ends in {' or '.join(WRITTEN)}.")
    if not output.parent.is_dir():
        raise FileError(f"The folder {output.parent} does not exist; create it first.")
    if output.exists():
        raise FileError(f"{output} is there already; remove it, or give another name.")


def _filling(missing: str) -> str | float:
    """A word as it is, else a number."""
    if missing in ("refuse", "exclude"):
        return missing
    try:
        return float(missing)
    except ValueError:
        raise InputError(
            f"--missing is {missing!r}; give refuse, exclude or a number to fill cells with."
        ) from None
