"""Frames in the order of their times, and quantities of groups of them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from geonet._progress import report_progress
from geonet.density import Mass, Missing
from geonet.errors import InputError
from geonet.solvers.base import Solver
from geonet.xarray.coordinates import (
    Outside,
    Space,
    Template,
    TimeIndex,
    are_dates,
    check_field,
    format_time,
    pair_durations,
    time_dim,
    to_numbers,
)
from geonet.xarray.groups import FrameConfig, FrameGroup, FrameLabels, FrameQuery, map_groups
from geonet.xarray.moving_pairs import (
    COMPONENT,
    Motion,
    MotionConfig,
    MovingPair,
    check_motion,
    displacements,
)
from geonet.xarray.pairs import Pair, PairConfig


@dataclass(frozen=True)
class FrameSeries:
    """Frames in the order of their times.

    Attributes:
        field: two or more frames.
        time: its time dimension, which has a coordinate.
        names: labels of the frames in messages, instead of the field's name and time.
        motion: displacements from each frame to the next, if they are given.
    """

    field: xr.DataArray
    time: Hashable
    names: tuple[str, ...] = ()
    motion: xr.DataArray | None = None

    @classmethod
    def from_field(cls, field: xr.DataArray, time: Hashable) -> FrameSeries:
        """Sort the frames by time; a dimension without coordinate is numbered from zero."""
        check_field(field)
        time_dim(field, time)
        count = field.sizes[time]
        if count < 2:
            raise InputError(
                f"The field has {count} frame{'' if count == 1 else 's'} along {time!r}; "
                "give two or more."
            )
        if time not in field.coords:
            field = field.assign_coords({time: ((time,), np.arange(count))})
        times = field[time].values
        if times.dtype.kind not in "mMOiuf":
            raise InputError(
                f"The coordinate {time!r} holds {times.dtype}, neither dates nor numbers; "
                "decode it first: xr.decode_cf(dataset)."
            )
        numbers, _ = to_numbers(times, times)
        order = np.argsort(numbers, kind="stable")
        is_repeated = np.diff(numbers[order]) == 0
        if is_repeated.any():
            raise InputError(
                f"The time {format_time(times[order][1:][is_repeated][0])} occurs twice along "
                f"{time!r}; keep one of them: .drop_duplicates({time!r})."
            )
        return cls(field if (np.diff(order) == 1).all() else field.isel({time: order}), time)

    @property
    def times(self) -> np.ndarray:
        """Times of the frames, (n,)."""
        return self.field[self.time].values

    def select_last_pair(self) -> FrameSeries:
        """Return the last two frames."""
        return replace(self, field=self.field.isel({self.time: slice(-2, None)}))

    def check_frames(self, space: Space, missing: Missing, max_values: int = 2**24) -> None:
        """Raise DensityError for the first frame that cannot be interpolated.

        Args:
            space: the spatial grid.
            missing: see `FieldAccessor.interp`.
            max_values: most values in memory.
        """
        query = FrameQuery(
            FrameGroup.check, FrameConfig(space, missing), (), group=FrameGroup, size=1
        )
        count = self.field.sizes[self.time]
        step = max(1, max_values * count // max(1, self.field.size))
        for start in range(0, count, step):
            report_progress(f"{start:,} of {count:,} done")
            part = self.field.isel({self.time: slice(start, start + step)}).load()
            index = TimeIndex.all_frames(part.sizes[self.time])
            evaluate_groups(part, self.time, index, query, self.names)

    def locate(self, new_times: Any, outside: Outside) -> tuple[Template, TimeIndex]:
        """Return the coordinates of a result at new times, and the positions of these times."""
        template = Template.from_interp(self.field, self.time, new_times)
        return template, TimeIndex.locate(self.times, np.atleast_1d(template.times), outside)

    def wrap(self, template: Template, values: Any, space: tuple[Hashable, ...]) -> xr.DataArray:
        """Return values (*others, T, *space) as an array with the field's order of dimensions."""
        others = [dim for dim in self.field.dims if dim not in (self.time, *space)]
        if not template.dims:
            values = values[(slice(None),) * len(others) + (0,)]
        variable = xr.Variable((*others, *template.dims, *space), values)
        order = [
            d for dim in self.field.dims for d in (template.dims if dim == self.time else (dim,))
        ]
        variable = variable.transpose(*order)
        return template.wrap(variable.data, variable.dims, self.field)

    def evaluate(self, index: TimeIndex, query: FrameQuery) -> Any:
        """Evaluate a query, (*others, T, *query.shape); reads only the frames that it needs.

        The result of a Dask array is a Dask array of which nothing is computed yet.
        """
        return evaluate_groups(self.field, self.time, index, query, self.names, self.motion)

    def evaluate_pairs(self, query: FrameQuery) -> xr.DataArray:
        """Evaluate a query for each pair; its time is the start, the coordinate `until` the end."""
        time, space = self.time, query.config.space.dims
        values = self.evaluate(TimeIndex.pair_starts(self.field.sizes[time]), query)
        starts = self.field.isel({**dict.fromkeys(space, 0), time: slice(None, -1)}, drop=True)
        others = [dim for dim in starts.dims if dim != time]
        result = xr.DataArray(values, dims=[*others, time]).transpose(*starts.dims)
        return result.assign_coords(starts.coords).assign_coords(until=(time, self.times[1:]))


def configure_pairs(
    series: FrameSeries,
    motion: Motion,
    space: Space,
    missing: Missing,
    mass: Mass = "given",
    solver: str | Path | Solver = "auto",
    options: dict[str, Any] | None = None,
    reach: float | None = None,
    growth: str = "hellinger",
) -> tuple[FrameSeries, PairConfig, dict[str, Any]]:
    """Return a series with its displacements, and the settings and arguments of its queries."""
    check_motion(motion)
    shared = (space, missing, mass, solver, options or {}, reach, growth)
    if motion is None:
        return series, PairConfig(*shared), {"group": Pair}
    if isinstance(motion, str):
        return series, MotionConfig(*shared), {"group": MovingPair, "size": 3, "before": 1}
    has_units = bool(space.units) and are_dates(series.times)
    config = MotionConfig(*shared, True, f"{space.units} s-1" if has_units else "")
    series = replace(series, motion=displacements(motion, series.field, series.time, space))
    return series, config, {"group": MovingPair, "components": len(space.dims)}


def evaluate_groups(
    field: xr.DataArray,
    dim: Hashable,
    index: TimeIndex,
    query: FrameQuery,
    names: tuple[str, ...] = (),
    motion: xr.DataArray | None = None,
) -> Any:
    """Evaluate a query for the groups of frames along a dimension, (*others, T, *query.shape)."""
    first, last = int(index.frame.min()), int(index.frame.max())
    first = max(first - query.before, 0)
    frames = {dim: slice(first, last + query.size)}
    part = field.isel(frames)
    space = query.config.space.dims
    others = [d for d in part.dims if d not in (dim, *space)]
    labels = FrameLabels(
        str(part.name or "The field"),
        tuple((str(d), _labels(part, d)) for d in (dim, *others)),
        names,
    )
    order = (*others, dim, *space)
    if motion is not None:
        part, order = _join_motion(part, motion, frames), (*others, dim, COMPONENT, *space)
    values = part.transpose(*order).data
    is_series = issubclass(query.group, Pair)
    durations = pair_durations(part[dim].values) if is_series else np.empty(0)
    return map_groups(values, index.select(..., first), query, durations, labels)


def _labels(field: xr.DataArray, dim: Hashable) -> np.ndarray:
    return field[dim].values if dim in field.coords else np.arange(field.sizes[dim])


def _join_motion(
    part: xr.DataArray, motion: xr.DataArray, frames: dict[Hashable, slice]
) -> xr.DataArray:
    """Return frames with their displacements as further components."""
    bare = part.drop_vars([name for name in part.coords if name not in part.dims])
    moved = motion.isel({dim: s for dim, s in frames.items() if dim in motion.dims})
    if hasattr(bare.data, "dask") and not hasattr(moved.data, "dask"):
        moved = moved.chunk()
    try:
        both = xr.broadcast(*xr.align(bare, moved, join="exact", copy=False), exclude=[COMPONENT])
    except ValueError as error:
        cause = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"The motion does not match the field: {cause}; give both the same labels."
        ) from error
    first = both[0].expand_dims(COMPONENT)
    return xr.concat([first, both[1]], COMPONENT, coords="minimal", compat="override")
