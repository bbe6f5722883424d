"""Makes the file of `geonet interp`, and says what it did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
import xarray as xr

from geonet.cli.cluster import connected
from geonet.cli.output import Bar, counted, progress
from geonet.cli.waiting import InterruptedWorkError, waited_for
from geonet.xarray.axes import space_of, time_of
from geonet.xarray.finer_file import FinerFile
from geonet.xarray.steps import stepped

FLAG = "_faded"  # a coordinate of the parts, which is not written


@dataclass
class Finer:
    """What `geonet interp` was asked to do.

    Attributes:
        file: the input.
        field: in it.
        time: its dimension of time, if that was named.
        settings: of `da.geonet.interp`.
        output: the file to write.
    """

    file: Path
    field: xr.DataArray
    time: str | None
    settings: dict[str, Any]
    output: Path

    def make(self, every: str, scheduler: str | None) -> None:
        """Write the frames and say how many they are, how totals change and what was faded."""
        time = time_of(self.field, self.time)
        space = space_of(self.field, time, self.settings["space"])
        self.field = self.field.sortby(time)
        times = stepped(self.field[time].values, every)
        settings = {**self.settings, "space": space}
        finer = FinerFile(self.field, time, times, self.output, self._recipe(every, settings))
        faded, change = [], [0.0]
        with connected(scheduler) as client, progress("frames", len(times)) as bar:
            threads = sum(client.nthreads().values()) if client else 0

            def interp(part: xr.DataArray, asked: np.ndarray) -> xr.DataArray:
                part = _spread(part, time, threads) if threads else part.load()
                answer = waited_for(
                    lambda: part.geonet.interp({time: asked}, flag=FLAG, **settings).compute(),
                    bar.show,
                )
                faded.append(int(answer[FLAG].sum()))
                change.append(_largest_change(part, time, space))
                return answer.drop_vars(FLAG)

            before = self._written(finer, interp, bar)
        self._say(finer, before, sum(faded), max(change))

    def _written(self, finer: FinerFile, interp: Any, bar: Bar) -> int:
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

    def _recipe(self, every: str, settings: dict[str, Any]) -> dict[str, Any]:
        """By which another run tells whether what is there is its own."""
        stat = self.file.stat()
        source = [str(self.file.resolve()), stat.st_mtime_ns, str(self.field.name)]
        return {"source": source, "every": every, **settings, "output": self.output.suffix}

    def _say(self, finer: FinerFile, before: int, faded: int, change: float) -> None:
        frames = counted(len(finer.times), "frame")
        there = f", {before:,} were there already" if before else ""
        typer.echo(f"{self.output}: {frames} from {self.field.sizes[finer.time]:,}{there}")
        if change > 0.005:
            typer.echo(
                f"Totals differ from frame to frame by up to {100 * change:.2g} %: "
                "they go evenly from one to the next."
            )
        if faded:
            typer.echo(
                f"{counted(faded, 'frame')} faded: between two of which one is empty nothing moves."
            )


def _largest_change(part: xr.DataArray, time: Any, space: tuple[Any, ...]) -> float:
    """Of the total from a frame to the next, relative to the larger."""
    totals = part.sum(space).transpose(..., time).values
    first, last = totals[..., :-1], totals[..., 1:]
    larger = np.maximum(first, last)
    return float(np.max(np.abs(last - first) / np.where(larger > 0, larger, 1.0), initial=0.0))


def _spread(part: xr.DataArray, time: Any, threads: int) -> xr.DataArray:
    """As Dask's, in enough chunks for all threads of a cluster."""
    whole = {dim: -1 for dim in part.dims}
    return part.chunk({**whole, time: max(1, -(-part.sizes[time] // (2 * threads)))})
