"""The accessor `da.geonet` and the geodesic between two fields.

All methods of the accessor compute (as in xarray) and take options of the solver as keywords (as
`geonet.geodesic` does). `geonet.geodesic` computes the values between two frames.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from geonet._validation import check_instance
from geonet.density import Mass, Missing
from geonet.errors import GridError, InputError
from geonet.paths import check_times
from geonet.solvers.base import Solver
from geonet.xarray.coordinates import (
    Dims,
    Outside,
    Space,
    Template,
    TimeIndex,
    are_dates,
    check_field,
    pair_durations,
    spatial_dims,
    spatial_grid,
    time_dim,
    to_numbers,
)
from geonet.xarray.pairs import (
    REPORT_FIELDS,
    FrameLabels,
    Pair,
    PairConfig,
    PairQuery,
    map_pairs,
)


@xr.register_dataarray_accessor("geonet")
class FieldAccessor:
    """Geodesics between the neighbouring frames of a field that changes in time.

    A field has a time dimension, one to three spatial dimensions, and any others, such as members
    or levels, each of which is a field by itself. If Dask holds the values, results are lazy.
    """

    def __init__(self, field: xr.DataArray):
        self._field = field

    def interp(
        self,
        coords: Mapping[Any, Any] | None = None,
        *,
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        mass: Mass = "given",
        outside: Outside = "raise",
        flag: str | None = None,
        **times_and_options: Any,
    ) -> xr.DataArray:
        """Interpolate the field to other times, `interp(time=new_times)`, by moving its mass.

        Coordinates, dimensions and type are the same as from `da.interp`. Frames of the field are
        returned unchecked as they are, gaps included. The total varies linearly between frames.
        Between two frames of which one is empty nothing can move, and one fades into the other.

        Args:
            coords: {dimension: times}, instead of a keyword.
            space: names of the spatial dimensions; by default those called x, y, lat, lon, ….
            geographic: whether space is latitude and longitude in degrees. Then cells are weighted
                by their areas and lengths are metres. By default names and units decide.
            solver: a name, a model file or a solver; see `geonet.geodesic`.
            missing: cells without a value: "raise" an error; "exclude" them from both frames and
                from all times between; or a number to fill them with.
            mass: "given" for the units of the field, "one" for frames whose total is one.
            outside: times before the first or after the last frame: "raise" an error, or "nan" for
                frames without values.
            flag: the name of a boolean coordinate to add, true at times that are faded.
            **times_and_options: the time dimension with the new times, one or a list; every other
                keyword is an option of the named solver, such as `tolerance=1e-4`.
        """
        time, new_times, options = self._split_keywords(coords, times_and_options)
        series = FrameSeries.from_field(self._field, time)
        config = self._config(time, space, geographic, solver, options, missing, mass)
        if flag is not None and flag in (*self._field.coords, *self._field.dims, self._field.name):
            raise InputError(f"The field has {flag!r} already; give the flag another name.")
        template, index = series.locate(new_times, outside)
        grid = config.space.grid
        values = series.evaluate(
            index, PairQuery(Pair.interpolate, config, grid.shape, template.dtype)
        )
        result = series.wrap(template, values, config.space.dims)
        if flag is not None:
            values = series.evaluate(
                index, PairQuery(Pair.flag_faded, config, dtype=np.dtype(bool))
            )
            cell = FrameSeries(series.field.isel(dict.fromkeys(config.space.dims, 0)), time)
            result = result.assign_coords({flag: cell.wrap(template, values, ()).variable})
        return result

    def velocity(
        self,
        coords: Mapping[Any, Any] | None = None,
        *,
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        outside: Outside = "raise",
        **times_and_options: Any,
    ) -> xr.Dataset:
        """Compute the velocity of the mass: a variable velocity_x, … for each spatial axis.

        Its units are the units of the coordinates, or metres if they are geographic, per second if
        times are dates, else per unit of time. At the time of a frame it belongs to the pair that
        starts there. Between two frames of which one is empty it is NaN. For the
        arguments see `interp`; the solver must provide velocities.
        """
        time, new_times, options = self._split_keywords(coords, times_and_options)
        series = FrameSeries.from_field(self._field, time)
        config = self._config(time, space, geographic, solver, options, missing)
        template, index = series.locate(new_times, outside)
        dims, grid = config.space.dims, config.space.grid
        query = PairQuery(Pair.velocity, config, (grid.dimension, *grid.shape))
        values = series.evaluate(index.clamp_to_pairs(len(series.times)), query)
        has_units = config.space.units and are_dates(series.times)
        units = {"units": f"{config.space.units} s-1"} if has_units else {}
        components = {}
        for k, dim in enumerate(dims):
            component = values[(..., k, *(slice(None),) * len(dims))]
            result = series.wrap(template, component, dims)
            result.attrs = {"long_name": f"velocity along {dim}", **units}
            components[f"velocity_{dim}"] = result
        return xr.Dataset(components)

    def distance(
        self,
        other: xr.DataArray | None = None,
        *,
        dim: Hashable | None = None,
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        **options: Any,
    ) -> xr.DataArray:
        """Compute W2 to another field, frame by frame, or from each frame to the next.

        Only shapes count, not totals. The units are the units of the spatial coordinates, or metres
        if they are geographic. The distance is NaN if a frame is empty. `other` has the same cells,
        and its further dimensions are matched by name. Without it, `dim` names the time dimension
        if that is ambiguous. For all other arguments see `interp`.
        """
        if other is not None:
            series, grid = _pair_series(self._field, other, space, geographic)
            config = PairConfig(grid, solver, options, missing)
            result = series.evaluate_pairs(PairQuery(Pair.distance, config))
            result = result.isel({series.time: 0}, drop=True)
            result.attrs = grid.describe_length("Wasserstein-2 distance")
            return result.rename("distance")
        series = FrameSeries.from_field(self._field, time_dim(self._field, dim))
        config = self._config(series.time, space, geographic, solver, options, missing)
        result = series.evaluate_pairs(PairQuery(Pair.distance, config))
        result.attrs = config.space.describe_length("Wasserstein-2 distance to the next frame")
        return result.rename("distance")

    def report(
        self,
        *,
        dim: Hashable | None = None,
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        **options: Any,
    ) -> xr.Dataset:
        """Report on every pair of neighbouring frames; its time is the start of the pair.

        Its variables are `solver`, `distance` with its bounds, `error_estimate` (the expected L1
        error between the frames), `source_mass` and `target_mass` (the totals of both frames),
        `converged` (false if the solver did not reach its tolerance), and `faded` (true if a frame
        is empty). `dim` names the time dimension if that is ambiguous; for all other
        arguments see `interp`.
        """
        series = FrameSeries.from_field(self._field, time_dim(self._field, dim))
        config = self._config(series.time, space, geographic, solver, options, missing)
        rows = series.evaluate_pairs(PairQuery(Pair.report, config, dtype=REPORT_FIELDS))
        names = REPORT_FIELDS.names or ()
        return xr.Dataset({name: rows.copy(data=rows.data[name]) for name in names})

    def _config(
        self,
        time: Hashable,
        space: Dims,
        geographic: bool | None,
        solver: str | Path | Solver,
        options: dict[str, Any],
        missing: Missing,
        mass: Mass = "given",
    ) -> PairConfig:
        grid = spatial_grid(self._field, spatial_dims(self._field, time, space), geographic)
        return PairConfig(grid, solver, options, missing, mass)

    def _split_keywords(
        self, coords: Mapping[Any, Any] | None, keywords: dict[str, Any]
    ) -> tuple[Hashable, Any, dict[str, Any]]:
        """Return the time dimension, the new times and the options of the solver."""
        if coords is not None:
            check_instance(coords, Mapping, "coords", "give interp(time=new_times)")
        times = {name: keywords[name] for name in keywords if name in self._field.dims}
        times |= coords or {}
        if len(times) != 1:
            raise InputError(
                f"New times are given along {len(times)} of the field's dimensions "
                f"{', '.join(map(str, self._field.dims))}; give them along time: "
                "interp(time=new_times)."
            )
        options = {name: value for name, value in keywords.items() if name not in times}
        return *next(iter(times.items())), options


def geodesic(
    first: xr.DataArray,
    second: xr.DataArray,
    times: ArrayLike,
    *,
    dim: str = "t",
    space: Dims = None,
    geographic: bool | None = None,
    solver: str | Path | Solver = "auto",
    missing: Missing = "raise",
    mass: Mass = "given",
    **options: Any,
) -> xr.DataArray:
    """Compute the geodesic from one field to another, (t, …), for each member, level, ….

    The first field is at t = 0, the second, with the same spatial coordinates, at t = 1. `times` is
    a number in [0, 1] or a list, along the new dimension `dim` of the result. For all other
    arguments see `FieldAccessor.interp`.
    """
    for field in (first, second):
        if dim in getattr(field, "dims", ()):
            raise InputError(f"The fields have a dimension {dim!r}; give another name: dim='s'.")
    series, grid = _pair_series(first, second, space, geographic)
    config = PairConfig(grid, solver, options, missing, mass)
    t = check_times(times)[0].numpy()  # pyright: ignore[reportArgumentType]
    query = PairQuery(Pair.interpolate, config, grid.grid.shape)
    values = series.evaluate(TimeIndex.locate(series.times, t, "raise"), query)
    others = [d for d in series.field.dims if d not in (series.time, *grid.dims)]
    result = xr.DataArray(values, dims=[*others, dim, *grid.dims], attrs=first.attrs)
    order = [dim, *(d for d in first.dims if d in result.dims)]
    coords = series.field.isel({series.time: 0}, drop=True).coords
    result = result.transpose(*order, ...).assign_coords(coords).assign_coords({dim: t})
    result = result.rename(first.name)
    return result.isel({dim: 0}) if np.ndim(times) == 0 else result


def _pair_series(
    first: xr.DataArray, second: xr.DataArray, space: Dims, geographic: bool | None
) -> tuple[FrameSeries, Space]:
    """Return two fields as a series of two frames at times 0 and 1, and their common grid.

    The second field gets the first one's order of spatial coordinates.
    """
    for field, name in ((first, "first"), (second, "second")):
        check_instance(field, xr.DataArray, name, "give an xarray.DataArray")
        check_field(field)
    dims = spatial_dims(first, None, space)
    remedy = "interpolate one to the other's cells: second.interp_like(first)"
    for dim in dims:
        if dim not in second.dims or first.sizes[dim] != second.sizes[dim]:
            raise GridError(
                f"The fields differ along {dim!r}: {dict(first.sizes)} and {dict(second.sizes)}; "
                f"{remedy}."
            )
    here, there = (spatial_grid(field, dims, geographic) for field in (first, second))
    if not here.grid.same_box(there.grid):
        raise GridError(
            f"The fields lie on different boxes: {here.grid} and {there.grid}; {remedy}."
        )
    both = [d for d in dims if d in first.coords and d in second.coords]
    is_reversed = {d: (first[d][-1] > first[d][0]) != (second[d][-1] > second[d][0]) for d in both}
    second = second.isel({d: slice(None, None, -1) for d in both if is_reversed[d]})
    second = second.drop_vars([name for name in second.coords if name not in second.dims])
    second = second.assign_coords({d: first[d] for d in dims if d in first.coords})
    second = second.drop_vars([d for d in dims if d in second.coords and d not in first.coords])
    bare = first.drop_vars([name for name in first.coords if name not in first.dims])
    time = "_geonet_time"
    try:
        pair = xr.broadcast(*xr.align(bare, second, join="exact", copy=False))
    except ValueError as error:
        cause = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"The fields do not match: {cause}; give both the same labels, or none."
        ) from error
    frames = xr.concat(pair, time, coords="minimal", compat="override", join="override")
    kept = {name: coord for name, coord in first.coords.items() if name not in first.dims}
    frames = frames.assign_coords(kept).assign_coords({time: [0.0, 1.0]})
    return FrameSeries(frames, time, ("the first field", "the second field")), here


@dataclass(frozen=True)
class FrameSeries:
    """Frames in the order of their times.

    Attributes:
        field: two or more frames.
        time: its time dimension, which has a coordinate.
        names: labels of the frames in messages, instead of the field's name and time.
    """

    field: xr.DataArray
    time: Hashable
    names: tuple[str, ...] = ()

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
                f"The time {times[order][1:][is_repeated][0]} occurs twice along {time!r}; "
                f"keep one of them: .drop_duplicates({time!r})."
            )
        return cls(field if (np.diff(order) == 1).all() else field.isel({time: order}), time)

    @property
    def times(self) -> np.ndarray:
        """Times of the frames, (n,)."""
        return self.field[self.time].values

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

    def evaluate(self, index: TimeIndex, query: PairQuery) -> Any:
        """Evaluate a query, (*others, T, *query.shape); reads only the frames that it needs.

        The result of a Dask array is a Dask array of which nothing is computed yet.
        """
        first, last = int(index.frame.min()), int(index.frame.max()) + 1
        part = self.field.isel({self.time: slice(first, last + 1)})
        space = query.config.space.dims
        others = [dim for dim in part.dims if dim not in (self.time, *space)]
        labels = FrameLabels(
            str(part.name or "The field"),
            (
                (str(self.time), part[self.time].values),
                *((str(d), _labels(part, d)) for d in others),
            ),
            self.names,
        )
        values = part.transpose(*others, self.time, *space).data
        durations = pair_durations(part[self.time].values)
        return map_pairs(values, index.select(..., first), query, durations, labels)

    def evaluate_pairs(self, query: PairQuery) -> xr.DataArray:
        """Evaluate a query for each pair; its time is the start, the coordinate `until` the end."""
        time, space = self.time, query.config.space.dims
        values = self.evaluate(TimeIndex.pair_starts(self.field.sizes[time]), query)
        starts = self.field.isel({**dict.fromkeys(space, 0), time: slice(None, -1)}, drop=True)
        others = [dim for dim in starts.dims if dim != time]
        result = xr.DataArray(values, dims=[*others, time]).transpose(*starts.dims)
        return result.assign_coords(starts.coords).assign_coords(until=(time, self.times[1:]))


def _labels(field: xr.DataArray, dim: Hashable) -> np.ndarray:
    return field[dim].values if dim in field.coords else np.arange(field.sizes[dim])
