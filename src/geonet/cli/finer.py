"""Makes the file of `geonet interp`, and says what it did."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import typer
import xarray as xr

from geonet.cli.cluster import connected
from geonet.cli.output import Bar, counted, progress
from geonet.cli.recipe import model_digest
from geonet.cli.waiting import InterruptedWorkError, waited_for
from geonet.xarray.axes import Space, placed, space_of, time_of
from geonet.xarray.field_file import open_field
from geonet.xarray.finer_file import FinerFile
from geonet.xarray.series import Series
from geonet.xarray.steps import stepped

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
            faded = answer[flag].transpose(..., series.time).values.reshape(-1, len(at)).any(0)
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
    times = field[time].values
    first = int(np.searchsorted(times, at[0], side="right")) - 1
    last = int(np.searchsorted(times, at[-1], side="left"))
    first = min(first, len(times) - 2)
    return field.isel({time: slice(first, max(last, first + 1) + 1)})


def _largest_change(part: xr.DataArray, time: Any, space: Space) -> float:
    """Of the total from a frame to the next, relative to the larger."""
    areas = xr.DataArray(np.broadcast_to(space.areas, space.grid.shape), dims=space.dims)
    totals = (part * areas).sum(space.dims, dtype=float).transpose(..., time).values
    first, last = totals[..., :-1], totals[..., 1:]
    larger = np.maximum(first, last)
    return float(np.max(np.abs(last - first) / np.where(larger > 0, larger, 1.0), initial=0.0))


def _spread(part: xr.DataArray, time: Any, threads: int) -> xr.DataArray:
    """As Dask's, in enough chunks for all threads of a cluster."""
    whole = {dim: -1 for dim in part.dims}
    return part.chunk({**whole, time: max(1, -(-part.sizes[time] // (2 * threads)))})
