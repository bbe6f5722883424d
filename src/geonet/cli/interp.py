"""`geonet interp FILE…`: a field in NetCDF, Zarr or radar files, interpolated to other times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geonet._utils import check_installed
from geonet.cli.output import (
    Bar,
    GrowthOption,
    InterruptedWorkError,
    MissingOption,
    SolverOption,
    SolverOptions,
    choose_exit_code,
    connect_dask,
    format_count,
    parse_missing,
    parse_solver_options,
    run_interruptibly,
    show_progress,
    show_status,
)
from geonet.errors import FileError, InputError

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from geonet.xarray.coordinates import Space
    from geonet.xarray.files import ResumableWriter
    from geonet.xarray.moving_pairs import Motion
    from geonet.xarray.series import FrameSeries


def interp(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="NetCDF files, Zarr stores, or radar images in PGM or HDF5 (ODIM, KNMI); a folder "
            "or a pattern stands for all files in it.",
        ),
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
    clip: Annotated[bool, typer.Option("--clip", help="Set negative values to zero.")] = False,
    motion: Annotated[
        str,
        typer.Option(
            metavar="estimate|none|FILE",
            help="Follow the estimated motion, the geodesic, or a file of velocities.",
        ),
    ] = "estimate",
    reach: Annotated[
        float | None,
        typer.Option(
            metavar="LENGTH",
            help="Length over which mass moves in addition to the motion, or with none of it.",
        ),
    ] = None,
    growth: GrowthOption = None,
    solver: SolverOption = "auto",
    option: SolverOptions = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Compute on a Dask cluster, tcp://host:8786, that can read the files.",
        ),
    ] = None,
) -> int:
    """Interpolate a field in time: it moves from frame to frame instead of fading.

    For example: geonet interp rain.nc --every 2min -o fine.zarr

    Frames of several files are sorted by time. All frames are checked first. The same command
    resumes an interrupted run. The exit code is 1 if pairs of frames did not converge.
    """
    options = parse_solver_options(option, reach, growth)
    config = {
        "space": None if space is None else tuple(name.strip() for name in space.split(",")),
        "geographic": False if plane else None,
        "solver": solver,
        "missing": parse_missing(missing),
        "reach": options.pop("reach", None),
        "growth": options.pop("growth", "hellinger"),
    }
    if output.suffix not in (".nc", ".zarr"):
        raise FileError(f"Cannot write {output}: give a name that ends in .nc or .zarr.")
    if not output.parent.is_dir():
        raise FileError(f"The folder {output.parent} does not exist; create it first.")
    if output.exists():
        raise FileError(f"{output} exists; remove it, or give another name.")
    with show_status("starting"):  # importing torch takes seconds
        check_installed("geonet interp", ["xarray", "pandas", "dask", "zarr", "netCDF4"], "xarray")
        from geonet.xarray.files import find_files

        found = find_files(files)
    job = InterpJob(found, variable, time, every, config, options, output, scheduler, clip, motion)
    return choose_exit_code(job.run())


@dataclass(frozen=True)
class InterpJob:
    """One call of `geonet interp`.

    Attributes:
        files: the input.
        variable: the field in it; None for the only one.
        time: its time dimension; None if names decide.
        every: the step.
        config: arguments of `da.geonet.interp`.
        options: options of the solver.
        output: the file to write.
        scheduler: address of a Dask scheduler, if a cluster computes.
        clip: whether negative values are set to zero.
        motion: "estimate", "none" or a file of velocities.
    """

    files: list[Path]
    variable: str | None
    time: str | None
    every: str
    config: dict[str, Any]
    options: dict[str, Any]
    output: Path
    scheduler: str | None
    clip: bool = False
    motion: str = "estimate"

    def run(self) -> bool:
        """Write the frames and print a summary; return whether all pairs converged."""
        from geonet.xarray.coordinates import spatial_dims, spatial_grid, time_dim, time_range
        from geonet.xarray.files import ResumableWriter
        from geonet.xarray.series import FrameSeries, configure_pairs

        field, attrs = self._open()
        time = time_dim(field, self.time)
        series = FrameSeries.from_field(_clip(field, time) if self.clip else field, time)
        dims = spatial_dims(field, series.time, self.config["space"])
        space = spatial_grid(field, dims, self.config["geographic"])
        times = time_range(series.times, self.every)
        motion = self._open_motion()
        own = {name: self.config[name] for name in ("missing", "solver", "reach", "growth")}
        # Raise for options that do not fit.
        configure_pairs(series, motion, space, options=self.options, **own)
        state = {**self.to_json(), **self.config, "space": dims}
        writer = ResumableWriter(
            series.field, series.time, times, _choose_flags(field), attrs, self.output, state
        )
        with show_status("checking frames") as show:
            run_interruptibly(lambda: series.check_frames(space, self.config["missing"]), show)
        with (
            connect_dask(self.scheduler) as client,
            show_progress("frames", len(times)) as bar,
        ):
            threads = sum(client.nthreads().values()) if client else 0
            options = {**self.config, "space": dims, "motion": motion, **self.options}
            work = _Interpolation(series, space, options, tuple(writer.flags), threads, bar)
            try:
                before, statistics = writer.write(work.interpolate, work.skip)
            except KeyboardInterrupt:
                done = f"{work.done:,} of {format_count(len(times), 'frame')}"
                raise InterruptedWorkError(
                    f"Interrupted: {done} are done; the same command resumes."
                ) from None
        self._print_summary(writer, before, statistics)
        return self._print_unconverged(writer, series)

    def _open(self) -> tuple[xr.DataArray, dict[str, Any]]:
        """Return the field and the attributes of its file."""
        from geonet.xarray.files import open_fields
        from geonet.xarray.radar import is_radar_image, open_radar

        if is_radar_image(self.files[0]):
            return open_radar(self.files, variable=self.variable), {}
        return open_fields(self.files, self.variable, self.time)

    def _open_motion(self) -> Motion:
        """Return the argument `motion` of `da.geonet.interp`."""
        from geonet.xarray.files import open_input

        if self.motion == "none":
            return None
        if self.motion == "estimate":
            return "estimate"
        if not Path(self.motion).exists():
            raise InputError(
                f"--motion is {self.motion!r}; give estimate, none or a file of velocities."
            )
        return open_input(Path(self.motion))

    def _print_summary(
        self, writer: ResumableWriter, before: int, statistics: dict[str, float]
    ) -> None:
        """Print how many frames there are, how totals change and whether frames are faded."""
        found = f", {before:,} existed already" if before else ""
        frames = format_count(len(writer.times), "frame")
        typer.echo(f"{self.output}: {frames} from {writer.field.sizes[writer.time]:,}{found}")
        if statistics["change"] > 0.005:
            typer.echo(
                f"Totals differ between frames by up to {100 * statistics['change']:.2g} %; "
                "they are interpolated linearly."
            )
        if statistics["faded"]:
            faded, _ = writer.flags
            typer.echo(f"Frames next to an empty frame are faded; see the coordinate {faded}.")

    def _print_unconverged(self, writer: ResumableWriter, series: FrameSeries) -> bool:
        """Print the pairs that did not converge; return whether there are none."""
        from geonet.xarray.coordinates import TimeIndex, format_time
        from geonet.xarray.files import open_dataset

        _, name = writer.flags
        with open_dataset(self.output) as data:
            flags = data[name].transpose(..., series.time).values.reshape(-1, len(writer.times))
        bad = ~flags.all(0)
        if not bad.any():
            return True
        pairs = sorted(set(TimeIndex.locate(series.times, writer.times[bad], "raise").frame))
        typer.echo(
            f"Not converged: {len(pairs):,} of {format_count(len(series.times) - 1, 'pair')}, "
            f"{format_count(int(bad.sum()), 'frame')} with {name} = false:"
        )
        for k in pairs:
            typer.echo(f"  {format_time(series.times[k])} to {format_time(series.times[k + 1])}")
        return False

    def to_json(self) -> dict[str, Any]:
        """Return plain data that identifies the job and the state of its input."""
        from geonet.cli.job import model_digest

        own = [Path(self.motion)] if self.motion not in ("estimate", "none") else []
        entries = [
            entry for file in [*self.files, *own] for entry in (file, *file.rglob("*"))
        ]  # of stores
        state = [(entry.stat().st_mtime_ns, entry.stat().st_size) for entry in entries]
        names = [str(file.resolve()) for file in self.files]
        return {
            "source": [names, max(state)[0], sum(size for _, size in state)],
            "variable": self.variable,
            "time": self.time,
            "every": self.every,
            "clip": self.clip,
            "motion": self.motion,
            "options": self.options,
            **model_digest(self.config["solver"]),
        }


class _Interpolation:
    """Interpolation of the parts of a field, with progress in frames.

    Args:
        series: the field.
        space: its spatial grid.
        options: keywords of `da.geonet.interp`.
        flags: names of the coordinates that mark faded frames, and frames of converged pairs.
        threads: threads of the cluster; 0 without one.
        bar: shows the progress.

    Attributes:
        done: frames in finished parts.
    """

    def __init__(
        self,
        series: FrameSeries,
        space: Space,
        options: dict[str, Any],
        flags: tuple[str, ...],
        threads: int,
        bar: Bar,
    ):
        self._time, self._space, self._options = series.time, space, options
        self._flags, self._threads, self._bar = flags, threads, bar
        self.done = 0

    def skip(self, frames: int) -> None:
        """Count frames that exist already."""
        self.done += frames
        self._bar.skip(frames)

    def interpolate(
        self, field: xr.DataArray, at: np.ndarray
    ) -> tuple[xr.DataArray, dict[str, float]]:
        """Return the frames at some times and statistics; some pairs are solved at a time."""
        import xarray as xr

        frames: list[xr.DataArray] = []
        statistics = {"faded": 0.0, "change": 0.0}
        for times in self._split(field, at):
            part = _select_frames(field, self._time, times)
            part = _chunk_for(part, self._time, self._threads) if self._threads else part.load()
            frames.append(self._solve(part, times))
            faded = float(frames[-1][self._flags[0]].any())
            change = _largest_change(part, self._time, self._space)
            statistics = {
                "faded": max(faded, statistics["faded"]),
                "change": max(change, statistics["change"]),
            }
            self._bar.advance(len(times))
        self.done += len(at)
        joined = frames[0] if len(frames) == 1 else xr.concat(frames, self._time)
        return joined, statistics

    def _split(self, field: xr.DataArray, at: np.ndarray) -> list[np.ndarray]:
        """Split times into groups of some pairs; a cluster gets all of them at once."""
        import numpy as np
        import torch

        from geonet.xarray.coordinates import TimeIndex

        if self._threads:
            return [at]
        frame = TimeIndex.locate(field[self._time].values, at, "raise").frame
        group = np.unique(frame, return_inverse=True)[1] // (2 * torch.get_num_threads())
        return [at[group == k] for k in range(group.max() + 1)]

    def _solve(self, part: xr.DataArray, at: np.ndarray) -> xr.DataArray:
        faded, converged = self._flags
        call: Callable[[], xr.DataArray] = lambda: part.geonet.interp(  # noqa: E731
            {self._time: at}, flag=faded, converged=converged, **self._options
        ).compute()
        return run_interruptibly(call, self._bar.show)


def _choose_flags(field: xr.DataArray) -> dict[str, str]:
    """Return names of coordinates that the field does not have, with descriptions."""
    texts = {
        "faded": "whether one of the neighbouring frames is empty",
        "converged": "whether the pair of neighbouring frames reached the tolerance of its solver",
    }
    taken = (*field.coords, field.name)
    return {
        name if name not in taken else f"{name}_by_geonet": text for name, text in texts.items()
    }


def _clip(field: xr.DataArray, time: Any) -> xr.DataArray:
    """Return the field with zero instead of negative values, which is still read when used."""
    clipped = field.chunk({time: 1}).clip(min=0, keep_attrs=True)
    clipped.encoding = field.encoding
    return clipped


def _select_frames(field: xr.DataArray, time: Any, at: np.ndarray) -> xr.DataArray:
    """Return the frames of the field around some times, with those before and after them.

    The motion between two frames is estimated from their neighbours, too.
    """
    times = field[time].values
    first = min(int(times.searchsorted(at[0], side="right")) - 1, len(times) - 2)
    last = int(times.searchsorted(at[-1], side="left"))
    return field.isel({time: slice(max(first - 1, 0), max(last, first + 1) + 2)})


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
