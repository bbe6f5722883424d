"""`geonet interp FILE`: a field in a NetCDF file or a Zarr store, interpolated to other times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geonet.cli.output import (
    InterruptedWorkError,
    MissingOption,
    SolverOption,
    SolverOptions,
    connect_dask,
    format_count,
    parse_missing,
    parse_options,
    run_interruptibly,
    show_progress,
    show_status,
)
from geonet.errors import FileError

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from geonet.xarray.coordinates import Space


def interp(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The field: a NetCDF file or a Zarr store.")
    ],
    every: Annotated[
        str,
        typer.Option(
            metavar="STEP",
            help="Time between two frames: 2min, 30s, 6h; a number if times are numbers.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write: .nc or .zarr.")
    ],
    variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="The field, if the file holds several.")
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="NAME", help="The time dimension, if it is ambiguous.")
    ] = None,
    space: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help="The spatial dimensions, if not x, y, lat, lon, …."),
    ] = None,
    plane: Annotated[
        bool,
        typer.Option("--plane", help="Treat latitude and longitude as a plane, not as a globe."),
    ] = False,
    missing: MissingOption = "raise",
    solver: SolverOption = "auto",
    option: SolverOptions = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Compute on a Dask cluster, tcp://host:8786, that can read FILE.",
        ),
    ] = None,
) -> int:
    """Interpolate a field in time: mass moves from frame to frame instead of fading.

    For example: geonet interp rain.nc --every 2min -o fine.zarr

    The same command resumes an interrupted run.
    """
    config = {
        "space": None if space is None else tuple(space.split(",")),
        "geographic": False if plane else None,
        "solver": solver,
        "missing": parse_missing(missing),
    }
    job = InterpJob(
        file, variable, time, every, config, parse_options(option or []), output, scheduler
    )
    if output.suffix not in (".nc", ".zarr"):
        raise FileError(f"Cannot write {output}: give a name that ends in .nc or .zarr.")
    if not output.parent.is_dir():
        raise FileError(f"The folder {output.parent} does not exist; create it first.")
    if output.exists():
        raise FileError(f"{output} exists; remove it, or give another name.")
    with show_status("starting"):  # importing torch takes seconds
        import geonet.xarray

        geonet.solver(solver, **job.options)  # raises for unknown names and options
    job.run()
    return 0


@dataclass(frozen=True)
class InterpJob:
    """One call of `geonet interp`.

    Attributes:
        file: the input.
        variable: the field in it; None for the only one.
        time: its time dimension; None if names decide.
        every: the step.
        config: arguments of `da.geonet.interp`.
        options: options of the solver.
        output: the file to write.
        scheduler: address of a Dask scheduler, if a cluster computes.
    """

    file: Path
    variable: str | None
    time: str | None
    every: str
    config: dict[str, Any]
    options: dict[str, Any]
    output: Path
    scheduler: str | None

    def run(self) -> None:
        """Write the frames, and print how many there are, how totals change and which are faded."""
        from geonet.xarray.accessor import FrameSeries
        from geonet.xarray.coordinates import spatial_dims, spatial_grid, time_dim, time_range
        from geonet.xarray.files import ResumableWriter, open_field

        field, attrs = open_field(self.file, self.variable)
        series = FrameSeries.from_field(field, time_dim(field, self.time))
        dims = spatial_dims(field, series.time, self.config["space"])
        space = spatial_grid(field, dims, self.config["geographic"])
        config = {**self.config, "space": dims}
        flag = next(name for name in ("faded", "faded_by_geonet") if name not in field.coords)
        times = time_range(series.times, self.every)
        state = {**self.to_json(), **config}
        writer = ResumableWriter(series.field, series.time, times, flag, attrs, self.output, state)
        time, done = series.time, 0
        with (
            connect_dask(self.scheduler) as client,
            show_progress("frames", len(times)) as bar,
        ):
            threads = sum(client.nthreads().values()) if client else 0

            def interpolate(
                field: xr.DataArray, at: np.ndarray
            ) -> tuple[xr.DataArray, dict[str, float]]:
                part = _select_frames(field, time, at)
                part = _chunk_for(part, time, threads) if threads else part.load()
                call: Callable[[], xr.DataArray] = lambda: part.geonet.interp(  # noqa: E731
                    {time: at}, flag=flag, **config, **self.options
                ).compute()
                frames = run_interruptibly(call, bar.show)
                faded = frames[flag].transpose(..., time).values.reshape(-1, len(at)).any(0)
                change = _largest_change(part, time, space)
                return frames, {"faded": float(faded.sum()), "change": change}

            def advance(frames: int) -> None:
                nonlocal done
                done += frames
                bar.advance(frames)

            try:
                before, statistics = writer.write(interpolate, advance)
            except KeyboardInterrupt:
                state = f"{done:,} of {format_count(len(times), 'frame')} are done"
                raise InterruptedWorkError(
                    f"Interrupted: {state}; the same command resumes."
                ) from None
        found = f", {before:,} existed already" if before else ""
        frames = format_count(len(times), "frame")
        typer.echo(f"{self.output}: {frames} from {len(series.times):,}{found}")
        if statistics["change"] > 0.005:
            typer.echo(
                f"Totals differ between frames by up to {100 * statistics['change']:.2g} %; "
                "they are interpolated linearly."
            )
        if statistics["faded"]:
            typer.echo(f"Frames next to an empty frame are faded; see the coordinate {flag}.")

    def to_json(self) -> dict[str, Any]:
        """Return plain data that identifies the job and the state of its input."""
        from geonet.cli.job import model_digest

        files = [self.file, *self.file.rglob("*")]  # all files of a store
        state = [(entry.stat().st_mtime_ns, entry.stat().st_size) for entry in files]
        return {
            "source": [str(self.file.resolve()), max(state)[0], sum(size for _, size in state)],
            "variable": self.variable,
            "time": self.time,
            "every": self.every,
            "options": self.options,
            **model_digest(self.config["solver"]),
        }


def _select_frames(field: xr.DataArray, time: Any, at: np.ndarray) -> xr.DataArray:
    """Return the frames of the field around some times, two or more."""
    times = field[time].values
    first = min(int(times.searchsorted(at[0], side="right")) - 1, len(times) - 2)
    last = int(times.searchsorted(at[-1], side="left"))
    return field.isel({time: slice(first, max(last, first + 1) + 1)})


def _largest_change(part: xr.DataArray, time: Any, space: Space) -> float:
    """Return the largest change of the total between two frames, relative to the larger total."""
    import numpy as np
    import xarray as xr

    areas = xr.DataArray(np.broadcast_to(space.areas, space.grid.shape), dims=space.dims)
    totals = (part * areas).sum(space.dims, dtype=float).transpose(..., time).values
    first, last = totals[..., :-1], totals[..., 1:]
    larger = np.maximum(first, last)
    return float(np.max(np.abs(last - first) / np.where(larger > 0, larger, 1.0), initial=0.0))


def _chunk_for(part: xr.DataArray, time: Any, threads: int) -> xr.DataArray:
    """Split the frames into enough chunks for all threads of a cluster."""
    whole = {dim: -1 for dim in part.dims}
    return part.chunk({**whole, time: max(1, -(-part.sizes[time] // (2 * threads)))})
