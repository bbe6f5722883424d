"""The accessor `da.geonet`.

All methods of the accessor compute (as in xarray) and take options of the solver as keywords (as
`geonet.geodesic` does). `geonet.geodesic` computes the values between two frames.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from geonet._validation import check_instance
from geonet.density import Mass, Missing
from geonet.errors import InputError
from geonet.solvers.barycenters import BarycenterOptions
from geonet.solvers.base import Solver
from geonet.xarray.coordinates import (
    Dims,
    Outside,
    Periodic,
    Space,
    Template,
    TimeIndex,
    are_dates,
    check_dims,
    check_field,
    spatial_dims,
    spatial_grid,
    time_dim,
    time_range,
)
from geonet.xarray.groups import Ensemble, EnsembleConfig, FrameQuery, member_weights
from geonet.xarray.moving_pairs import (
    Motion,
    MovingPair,
    Pieces,
    check_motion,
    integrate,
    select_later,
)
from geonet.xarray.pairs import (
    REPORT_FIELDS,
    Pair,
    PairConfig,
    check_length,
    flagged_values,
)
from geonet.xarray.series import FrameSeries, configure_pairs, evaluate_groups
from geonet.xarray.two_fields import pair_series
from geonet.xarray.units import split_rate


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
        motion: Motion = "estimate",
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        mass: Mass = "given",
        outside: Outside = "raise",
        flag: str | None = None,
        converged: str | None = None,
        reach: float | None = None,
        growth: str = "hellinger",
        periodic: Periodic = False,
        **times_and_options: Any,
    ) -> xr.DataArray:
        """Interpolate the field to other times, `interp(time=new_times)`, along its motion.

        Coordinates, dimensions and type are the same as from `da.interp`. Frames of the field are
        returned unchecked as they are, gaps included. The total varies linearly between frames.
        Between two frames of which one is empty nothing can move, and one fades into the other.

        Args:
            coords: {dimension: times}, instead of a keyword.
            motion: "estimate" for optical flow between neighbouring frames, which uses the frames
                before and after them, too; a Dataset of velocities, as from `velocity` (winds or a
                nowcasting model), on the cells of the field; or None for the geodesic, which moves
                all mass along the shortest ways. Along a motion both frames are carried to the new
                time, and rain rates are distributed as in the frames: peaks and dry areas remain.
            space: names of the spatial dimensions; by default those called x, y, lat, lon, ….
            geographic: whether space is latitude and longitude in degrees. Then cells are weighted
                by their areas and lengths are metres. By default names and units decide.
            solver: a name, a model file or a solver; see `geonet.geodesic`. With a motion, only
                together with a reach.
            missing: cells without a value: "raise" an error; "exclude" them from both frames and
                from all times between; or a number to fill them with. With a motion, values that
                would come from a missing cell are taken from the other frame alone.
            mass: "given" for the units of the field, "one" for frames whose total is one.
            outside: times before the first or after the last frame: "raise" an error, or "nan" for
                frames without values.
            flag: the name of a boolean coordinate to add, true at times that are faded.
            converged: the name of a boolean coordinate to add, false at times between two frames
                whose pair did not reach the tolerance of its solver.
            reach: length over which mass moves, in the units of the coordinates, or in metres if
                they are geographic. Mass without a partner within about this length grows or fades
                in place. None for balanced transport: all mass moves. With a motion, mass moves
                this far in addition to it; None for the motion alone, which is the most accurate
                choice for radar images.
            growth: with a reach, "hellinger": totals vary linearly between frames; or "wfr": the
                geodesic of Wasserstein–Fisher–Rao, whose totals are smaller between frames.
            periodic: names of the spatial dimensions whose ends meet, such as "lon", whose cells
                must cover 360 degrees; the period of others is the length of all their cells. True
                for the longitudes of a globe, or for all dimensions of a plane.
            **times_and_options: the time dimension with the new times, one or a list; every other
                keyword is an option of the named solver, such as `tolerance=1e-4`.
        """
        time, new_times, options = self._split_keywords(coords, times_and_options)
        series = FrameSeries.from_field(self._field, time)
        grid = self._space(time, space, geographic, periodic)
        series, config, kind = configure_pairs(
            series, motion, grid, missing, mass, solver, options, reach, growth
        )
        flags = {"faded": flag, "converged": converged}
        flags = {name: label for name, label in flags.items() if label is not None}
        self._check_new_names(list(flags.values()))
        template, index = series.locate(new_times, outside)
        shape, dims = config.space.grid.shape, config.space.dims
        query = FrameQuery(Pair.interpolate, config, shape, template.dtype, **kind)
        if not flags:
            return series.wrap(template, series.evaluate(index, query), dims)
        dtype = flagged_values(template.dtype, shape)
        query = FrameQuery(Pair.interpolate_with_flags, config, dtype=dtype, **kind)
        rows = series.evaluate(index, query)
        result = series.wrap(template, rows["values"], dims)
        cell = FrameSeries(series.field.isel(dict.fromkeys(dims, 0)), time)
        return result.assign_coords(
            {label: cell.wrap(template, rows[name], ()).variable for name, label in flags.items()}
        )

    def velocity(
        self,
        coords: Mapping[Any, Any] | None = None,
        *,
        motion: Motion = "estimate",
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        outside: Outside = "raise",
        reach: float | None = None,
        growth: str = "hellinger",
        periodic: Periodic = False,
        **times_and_options: Any,
    ) -> xr.Dataset:
        """Compute the velocity of the field: a variable velocity_x, … for each spatial axis.

        It is the velocity of the estimated or given motion, or of the mass along the geodesic if
        `motion` is None.

        Its units are the units of the coordinates, or metres if they are geographic, per second if
        times are dates, else per unit of time. At the time of a frame it belongs to the pair that
        starts there. It is NaN in cells that are missing in a frame of the pair, and everywhere if
        one is empty. For the arguments see `interp`; the solver must provide velocities.
        """
        time, new_times, options = self._split_keywords(coords, times_and_options)
        series = FrameSeries.from_field(self._field, time)
        box = self._space(time, space, geographic, periodic)
        series, config, kind = configure_pairs(
            series, motion, box, missing, "given", solver, options, reach, growth
        )
        template, index = series.locate(new_times, outside)
        dims, grid = config.space.dims, config.space.grid
        velocity = kind["group"].velocity
        query = FrameQuery(velocity, config, (grid.dimension, *grid.shape), **kind)
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

    def nowcast(
        self,
        coords: Mapping[Any, Any] | None = None,
        *,
        motion: Motion = "estimate",
        longest: float = 6.0,
        space: Dims = None,
        geographic: bool | None = None,
        missing: Missing = "raise",
        periodic: Periodic = False,
        **times: Any,
    ) -> xr.DataArray:
        """Extrapolate the last frame along the motion to later times, `nowcast(time=new_times)`.

        Rain keeps its rate on the way, and cells that it would reach from outside of the map are
        NaN. Nothing grows or decays, so forecasts are useful for a few frames only: errors of
        showers are large after half an hour, those of widespread rain after one or two hours.

        Args:
            coords: {dimension: times}, instead of a keyword.
            motion: "estimate", from the last three frames, or a Dataset of velocities:
                those in the middle between the last two frames or, if all are later, the first.
            longest: longest lead time, in intervals between the last two frames.
            space: names of the spatial dimensions; see `interp`, as for all other arguments.
            geographic: whether space is latitude and longitude in degrees.
            missing: cells without a value: "raise", "exclude" or a number.
            periodic: names of the spatial dimensions whose ends meet.
            **times: the time dimension with the new times, one or a list.
        """
        check_motion(motion, can_be_none=False)
        time, new_times, options = self._split_keywords(coords, times)
        if options:
            raise InputError(f"nowcast has no option {next(iter(options))!r}.")
        series = FrameSeries.from_field(self._field, time)
        grid = self._space(time, space, geographic, periodic)
        if isinstance(motion, xr.Dataset):
            series = series.select_last_pair()
            motion = select_later(motion, series.times, time)
        series, config, kind = configure_pairs(series, motion, grid, missing)
        template = Template.from_interp(series.field, time, new_times)
        index = TimeIndex.extrapolate(series.times, np.atleast_1d(template.times), longest)
        query = FrameQuery(MovingPair.nowcast, config, grid.grid.shape, template.dtype, **kind)
        return series.wrap(template, series.evaluate(index, query), grid.dims)

    def accumulate(
        self,
        every: str,
        *,
        motion: Motion = "estimate",
        dim: Hashable | None = None,
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        reach: float | None = None,
        growth: str = "hellinger",
        periodic: Periodic = False,
        **options: Any,
    ) -> xr.DataArray:
        """Integrate a rate over intervals of time along its motion, `accumulate("10min")`.

        The sum of the frames would leave a gap between the places of a shower in two frames; the
        integral of `interp` over time has none. Rates in mm h-1 give totals in mm. The time of a
        total is the start of its interval, the coordinate `until` is the end; the first interval
        starts at the first frame, and an incomplete last one is dropped.

        Args:
            every: length of an interval, such as "10min" or "1h"; a number if times are numbers.
            motion: see `interp`, as for all other arguments.
            dim: the time dimension if it is ambiguous.
            space: names of the spatial dimensions.
            geographic: whether space is latitude and longitude in degrees.
            solver: a name, a model file or a solver; with a motion, only together with a reach.
            missing: cells without a value: "raise", "exclude" or a number.
            reach: length over which mass moves, in addition to a motion.
            growth: with a reach, "hellinger" or "wfr".
            periodic: names of the spatial dimensions whose ends meet.
            **options: options of the named solver.
        """
        series = FrameSeries.from_field(self._field, time_dim(self._field, dim))
        grid = self._space(series.time, space, geographic, periodic)
        series, config, kind = configure_pairs(
            series, motion, grid, missing, "given", solver, options, reach, growth
        )
        units, seconds = split_rate(str(self._field.attrs.get("units", "")))
        if are_dates(series.times) and not seconds:
            raise InputError(
                f"The field has the units {units!r}, which are no rate; set its attribute units, "
                "such as mm h-1."
            )
        pieces = Pieces.from_edges(series.times, time_range(series.times, str(every), "every"))
        template = Template.from_interp(series.field, series.time, pieces.edges[:-1])
        query = FrameQuery(integrate, config, grid.grid.shape, **kind)
        values = series.evaluate(pieces.index, query)
        axis = values.ndim - 1 - len(grid.dims)
        totals = pieces.sum(values, axis) / (seconds if are_dates(series.times) else 1.0)
        result = series.wrap(template, totals.astype(template.dtype), grid.dims)
        result = result.assign_coords(until=(series.time, pieces.edges[1:]))
        result.attrs = {"units": units} if are_dates(series.times) else {}
        return result.rename("accumulation")

    def distance(
        self,
        other: xr.DataArray | None = None,
        *,
        dim: Hashable | None = None,
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        reach: float | None = None,
        growth: str = "hellinger",
        periodic: Periodic = False,
        **options: Any,
    ) -> xr.DataArray:
        """Compute W2 to another field, frame by frame, or from each frame to the next.

        Only shapes count, not totals. The units are the units of the spatial coordinates, or metres
        if they are geographic. The distance is NaN if a frame is empty. `other` has the same cells,
        and its further dimensions are matched by name. Without it, `dim` names the time dimension
        if that is ambiguous; with it, `dim` raises an error. For all other arguments see `interp`.

        With a reach it is √(2·cost) of `geonet.geodesic`, a length times the square root of a mass,
        which is the field times areas of the coordinates. Totals count: it tends to √mass·W2 for
        equal masses and a large reach, and is reach·√mass to an empty frame.
        """
        if other is not None and dim is not None:
            raise InputError(
                f"dim is {dim!r}, and two fields are matched along all dimensions, "
                f"{', '.join(map(str, self._field.dims))}; leave dim out."
            )
        if other is not None:
            series, grid = pair_series(self._field, other, space, geographic, periodic)
            name = "distance"
        else:
            series = FrameSeries.from_field(self._field, time_dim(self._field, dim))
            grid = self._space(series.time, space, geographic, periodic)
            name = "distance to the next frame"
        config = PairConfig(grid, missing, "given", solver, options, reach, growth)
        result = series.evaluate_pairs(FrameQuery(Pair.distance, config, group=Pair))
        if other is not None:
            result = result.isel({series.time: 0}, drop=True)
        if config.reach is None:
            result.attrs = grid.describe_length(f"Wasserstein-2 {name}")
        else:
            result.attrs = {"long_name": f"{name} √(2·cost) with a reach of {config.reach:g}"}
        return result.rename("distance")

    def mean(
        self,
        dim: Hashable = "member",
        *,
        weights: ArrayLike | xr.DataArray | None = None,
        reach: float | None = None,
        space: Dims = None,
        geographic: bool | None = None,
        periodic: Periodic = False,
        missing: Missing = "raise",
        mass: Mass = "given",
        tolerance: float = 1.5e-3,
        max_iterations: int = 20,
        time_limit: float | None = None,
    ) -> xr.DataArray:
        """Compute the Wasserstein mean (barycenter) of an ensemble, for each time, level, ….

        Coordinates and dimensions are the same as from `da.mean(dim)`, and attributes are kept. The
        total of the mean is the weighted mean of the members' totals. If all members are empty, so
        is the mean.

        Args:
            dim: the dimension of the members.
            weights: a list, or an array along `dim`, not negative, with sum one; uniform by
                default. An array with labels is matched by them.
            reach: length over which mass moves, see `interp`. An empty member then only lowers the
                total; without a reach it raises an error.
            space: names of the spatial dimensions; see `interp`, as for all arguments up to `mass`.
            geographic: whether space is latitude and longitude in degrees.
            periodic: names of the spatial dimensions whose ends meet.
            missing: cells without a value: "raise" an error, "exclude" cells that are missing in
                any member, or a number to fill them with.
            mass: "given" for the units of the field, or "one".
            tolerance: share of the mass that may remain unbalanced; see `geonet.barycenter`.
            max_iterations: largest number of Newton steps in one run on a level.
            time_limit: seconds for each mean; None for no limit.
        """
        field = self._field
        check_field(field)
        check_dims(field, [dim])
        grid = self._space(dim, space, geographic, periodic)
        if reach is not None:
            check_length(reach, grid, PairConfig.without_reach)
        config = EnsembleConfig(
            grid,
            missing,
            mass,
            member_weights(field, dim, weights),
            BarycenterOptions(reach, tolerance, max_iterations, time_limit),
        )
        shape, dims = grid.grid.shape, grid.dims
        dtype = field.dtype if field.dtype.kind == "f" else np.dtype(float)
        size = field.sizes[dim]
        query = FrameQuery(Ensemble.mean, config, shape, dtype, size, group=Ensemble)
        values = evaluate_groups(field, dim, TimeIndex.first(), query)
        others = [d for d in field.dims if d not in (dim, *dims)]
        variable = xr.Variable((*others, dim, *dims), values).isel({dim: 0})
        variable = variable.transpose(*(d for d in field.dims if d != dim))
        own = [name for name, coord in field.coords.items() if dim in coord.dims]
        coords = field.drop_vars(own).isel({dim: 0}).coords
        return xr.DataArray(variable.data, coords, variable.dims, field.name, field.attrs)

    def report(
        self,
        *,
        dim: Hashable | None = None,
        space: Dims = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        missing: Missing = "raise",
        reach: float | None = None,
        growth: str = "hellinger",
        periodic: Periodic = False,
        **options: Any,
    ) -> xr.Dataset:
        """Report on every pair of neighbouring frames; its time is the start of the pair.

        Its variables are `solver`, `distance` with its bounds, `error_estimate` (the expected L1
        error between the frames), `source_mass` and `target_mass` (the totals of both frames),
        `transported_share` (below one with a reach: the rest grows or fades in place), `converged`
        (false if the solver did not reach its tolerance), and `faded` (true if a frame is empty).
        `dim` names the time dimension if that is ambiguous; for the distance with a reach see
        `distance`, for all other arguments `interp`.
        """
        series = FrameSeries.from_field(self._field, time_dim(self._field, dim))
        grid = self._space(series.time, space, geographic, periodic)
        config = PairConfig(grid, missing, "given", solver, options, reach, growth)
        query = FrameQuery(Pair.report, config, dtype=REPORT_FIELDS, group=Pair)
        rows = series.evaluate_pairs(query)
        names = REPORT_FIELDS.names or ()
        return xr.Dataset({name: rows.copy(data=rows.data[name]) for name in names})

    def _space(
        self, frames: Hashable, space: Dims, geographic: bool | None, periodic: Periodic
    ) -> Space:
        """Return the grid of frames along a dimension."""
        dims = spatial_dims(self._field, frames, space)
        return spatial_grid(self._field, dims, geographic, periodic)

    def _check_new_names(self, names: list[str]) -> None:
        """Raise InputError if the field has a coordinate of one of the names, or two are equal."""
        taken = (*self._field.coords, *self._field.dims, self._field.name)
        for k, name in enumerate(names):
            if name in taken or name in names[:k]:
                raise InputError(f"The field has {name!r} already; give the flag another name.")

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
