"""`geonet interp FILE`: a field in a NetCDF file or a Zarr store, at other times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import xarray as xr

from geonet.cli.job import model_digest
from geonet.cli.output import Bar, InterruptedWorkError, counted, progress, waited_for
from geonet.errors import FileError, InputError
from geonet.xarray.accessor import Series
from geonet.xarray.coordinates import Space, placed, space_of, stepped, time_of
from geonet.xarray.files import FinerFile, open_field

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
    from geonet.cli.geodesic import parse_options
    from geonet.cli.output import working

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
        pass
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


# ---- A Dask cluster that somebody else runs.


PATIENCE = 10  # seconds until a scheduler has to answer


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Dask's client for the scheduler at this address; None for no address."""
    if address is None:
        yield None
        return
    try:
        from distributed import CancelledError, Client, KilledWorker
    except ModuleNotFoundError as error:
        raise InputError(
            "--scheduler needs distributed, which is not installed; "
            "install it: pip install 'geonet[xarray]'."
        ) from error
    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"No scheduler answers at {address}; start one, `dask scheduler`, and workers, "
            f"`dask worker {address}`."
        ) from error
    with client:
        if not client.nthreads():
            raise InputError(
                f"The scheduler at {address} has no workers; start some: dask worker {address}."
            )
        try:
            yield client
        except (ImportError, KilledWorker, CancelledError) as error:
            said = " ".join(str(error).split())[:200].rstrip(".")
            raise InputError(
                f"The cluster failed: {said}; check that its workers have the same geonet and "
                "enough memory. The same command goes on."
            ) from error


# ---- Makes the file of `geonet interp`, and says what it did.


FLAGS = ("faded", "faded_by_geonet")  # the first of these that is not taken
TOLD = 0.005  # of the total: changes up to this are not worth a line


@dataclass(frozen=True)
class Asked:
    """What `geonet interp` was asked to do.

    Attributes:
        file: the input.
        variable: the field in it; None for the only one.
        time: its dimension of time; None where names tell.
        every: the step.
        settings: of `da.geonet.interp`.
        output: the file to write.
        scheduler: the address of Dask's, if a cluster computes.
    """

    file: Path
    variable: str | None
    time: str | None
    every: str
    settings: dict[str, Any]
    output: Path
    scheduler: str | None


def make_finer(asked: Asked) -> None:
    """Write the frames and say how many they are, how totals change and what was faded."""
    field, attrs = open_field(asked.file, asked.variable)
    series = Series.of(field, time_of(field, asked.time))
    space = placed(
        field,
        space_of(field, series.time, asked.settings["space"]),
        asked.settings["geographic"],
    )
    settings = {**asked.settings, "space": space.dims}
    flag = next(name for name in FLAGS if name not in field.coords)
    times = stepped(series.times, asked.every)
    recipe = {**_recipe(asked), **settings}
    finer = FinerFile(series.field, series.time, times, flag, attrs, asked.output, recipe)
    with connected(asked.scheduler) as client, progress("frames", len(times)) as bar:
        threads = sum(client.nthreads().values()) if client else 0

        def interp(field: xr.DataArray, at: np.ndarray) -> tuple[xr.DataArray, dict[str, float]]:
            part = _needed(field, series.time, at)
            part = _spread(part, series.time, threads) if threads else part.load()
            ask = partial(part.geonet.interp, {series.time: at}, flag=flag, **settings)
            answer = waited_for(lambda: ask().compute(), bar.show)
            faded = answer[flag].transpose(..., series.time).tensor.reshape(-1, len(at)).any(0)
            change = _largest_change(part, series.time, space)
            return answer, {"faded": float(faded.sum()), "change": change}

        before, tally = _written(finer, interp, bar)
    _say(asked, series, finer, before, tally)


def _written(finer: FinerFile, interp: Any, bar: Bar) -> tuple[int, dict[str, float]]:
    done = 0

    def tick(frames: int) -> None:
        nonlocal done
        done += frames
        for _ in range(frames):
            bar.tick()

    try:
        return finer.write(interp, tick)
    except KeyboardInterrupt:
        told = f"{done:,} of {counted(len(finer.times), 'frame')} are done"
        raise InterruptedWorkError(f"Interrupted: {told}; the same command goes on.") from None


def _recipe(asked: Asked) -> dict[str, Any]:
    """By which another run tells whether what is there is its own."""
    files = [asked.file, *asked.file.rglob("*")]  # of a store every file counts
    state = [(entry.stat().st_mtime_ns, entry.stat().st_size) for entry in files]
    return {
        "source": [str(asked.file.resolve()), max(state)[0], sum(size for _, size in state)],
        "variable": asked.variable,
        "time": asked.time,
        "every": asked.every,
        **model_digest(asked.settings["solver"]),
    }


def _say(
    asked: Asked, series: Series, finer: FinerFile, before: int, tally: dict[str, float]
) -> None:
    frames = counted(len(finer.times), "frame")
    there = f", {before:,} were there already" if before else ""
    typer.echo(f"{asked.output}: {frames} from {len(series.times):,}{there}")
    if tally["change"] > TOLD:
        typer.echo(
            f"Totals differ from frame to frame by up to {100 * tally['change']:.2g} %: "
            "they go evenly from one to the next."
        )
    if tally["faded"]:
        typer.echo(
            f"Some frames were faded, where a neighbour is empty: {finer.flag} in the file says "
            "which."
        )


def _needed(field: xr.DataArray, time: Any, at: np.ndarray) -> xr.DataArray:
    """The frames of the field around some times, two or more."""
    times = field[time].tensor
    first = int(np.searchsorted(times, at[0], side="right")) - 1
    last = int(np.searchsorted(times, at[-1], side="left"))
    first = min(first, len(times) - 2)
    return field.isel({time: slice(first, max(last, first + 1) + 1)})


def _largest_change(part: xr.DataArray, time: Any, space: Space) -> float:
    """Of the total from a frame to the next, relative to the larger."""
    areas = xr.DataArray(np.broadcast_to(space.areas, space.grid.shape), dims=space.dims)
    totals = (part * areas).sum(space.dims, dtype=float).transpose(..., time).tensor
    first, last = totals[..., :-1], totals[..., 1:]
    larger = np.maximum(first, last)
    return float(np.max(np.abs(last - first) / np.where(larger > 0, larger, 1.0), initial=0.0))


def _spread(part: xr.DataArray, time: Any, threads: int) -> xr.DataArray:
    """As Dask's, in enough chunks for all threads of a cluster."""
    whole = {dim: -1 for dim in part.dims}
    return part.chunk({**whole, time: max(1, -(-part.sizes[time] // (2 * threads)))})
