"""`da.geonet`: what lies between the frames of a field."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from geonet.arguments import check_kind
from geonet.errors import InputError
from geonet.measures.density import Mass
from geonet.solvers.base import Solver
from geonet.xarray.axes import placed, space_of, time_of
from geonet.xarray.like_interp import Template
from geonet.xarray.moments import Outside, is_dated
from geonet.xarray.pair import REPORTED, Missing, Treatment
from geonet.xarray.questions import Distances, Faded, Frames, Reports, Velocities
from geonet.xarray.series import Series
from geonet.xarray.two_fields import common_space, distance, length_attributes


@xr.register_dataarray_accessor("geonet")
class FieldAccessor:
    """Geodesics between the neighbouring frames of a field that changes in time.

    A field has a dimension of time, one to three of space, and any others, such as members or
    levels, of which each is a field by itself. Where Dask holds the values, answers are lazy.
    """

    def __init__(self, field: xr.DataArray):
        self._field = field

    def interp(
        self,
        coords: Mapping[Any, Any] | None = None,
        *,
        space: Iterable[Hashable] | Hashable | None = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        options: dict[str, Any] | None = None,
        missing: Missing = "refuse",
        mass: Mass = "given",
        outside: Outside = "refuse",
        flag: str | None = None,
        **times: Any,
    ) -> xr.DataArray:
        """The field at other times, `interp(time=new_times)`: mass moves from frame to frame.

        Coordinates, dimensions and type are those that `da.interp` gives. Frames of the field come
        back as they are, gaps included, and are not checked. The total goes evenly from one frame's
        to the next. Between two frames of which one is empty nothing can move, and one is faded
        into the other.

        Args:
            coords: {dimension: times}, instead of a keyword.
            space: names of the dimensions of space; by default those called x, y, lat, lon, ….
            geographic: whether space is latitude and longitude in degrees. Then cells count by
                their areas and lengths are metres. By default names and units tell.
            solver: a name, a model's file or a solver; see `geonet.geodesic`.
            options: of the named solver.
            missing: cells without a value: "refuse" them; "exclude" them, which takes them out of
                both frames and of all between; or a number to fill them with.
            mass: "given" for the units of the field, "one" for frames whose total is one.
            outside: times before the first or after the last frame: "refuse" them, or "nan" for
                frames without values.
            flag: the name of a further coordinate that says which moments are faded.
            **times: the dimension of time and the new times, a single one or a list.
        """
        time, asked = _one_dimension(coords, times)
        series = Series.of(self._field, time)
        how = self._treatment(time, space, geographic, solver, options, missing, mass)
        _check_flag(flag, self._field)
        template, moments = series.moments(asked, outside)
        values = series.ask(moments, Frames(how, template.dtype))
        answer = _shaped(template, values, series, how.space.dims)
        if flag is not None:
            corner = Series(series.field.isel(dict.fromkeys(how.space.dims, 0)), time)
            faded = _shaped(template, series.ask(moments, Faded(how)), corner, ())
            answer = answer.assign_coords({flag: faded.variable})
        return answer

    def velocity(
        self,
        coords: Mapping[Any, Any] | None = None,
        *,
        space: Iterable[Hashable] | Hashable | None = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        options: dict[str, Any] | None = None,
        missing: Missing = "refuse",
        outside: Outside = "refuse",
        **times: Any,
    ) -> xr.Dataset:
        """How fast mass moves at these times: a variable velocity_x, … for each axis of space.

        It is in units of the coordinates, in metres if they are geographic, per second where times
        are dates, else per unit of time. At the time of a frame it is that of the pair that begins
        there; between two frames of which one is empty it is unknown, NaN.

        Args:
            coords: {dimension: times}, instead of a keyword; see `interp`, like all that follows.
            space: see there.
            geographic: see there.
            solver: see there; it must give velocities.
            options: see there.
            missing: see there.
            outside: see there.
            **times: see there.
        """
        time, asked = _one_dimension(coords, times)
        series = Series.of(self._field, time)
        how = self._treatment(time, space, geographic, solver, options, missing)
        template, moments = series.moments(asked, outside)
        values = series.ask(moments.with_next(len(series.times)), Velocities(how))
        known = how.space.units and is_dated(series.times)
        units = {"units": f"{how.space.units} s-1"} if known else {}
        found = {}
        for k, dim in enumerate(how.space.dims):
            part = values[(..., k, *(slice(None),) * len(how.space.dims))]
            along = _shaped(template, part, series, how.space.dims)
            along.attrs = {"long_name": f"velocity along {dim}", **units}
            found[f"velocity_{dim}"] = along
        return xr.Dataset(found)

    def distance(
        self,
        other: xr.DataArray | None = None,
        *,
        dim: Hashable | None = None,
        space: Iterable[Hashable] | Hashable | None = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        options: dict[str, Any] | None = None,
        missing: Missing = "refuse",
    ) -> xr.DataArray:
        """W2 to another field, frame by frame; without one, from each frame to the next.

        Only shapes count, not totals. It is in units of the coordinates of space, in metres if they
        are geographic, and NaN where a frame is empty.

        Args:
            other: a field on the same cells; its further dimensions are matched by name.
            dim: the dimension of time, where there is no other field and names do not tell.
            space: see `interp`, like all that follows.
            geographic: see there.
            solver: see there.
            options: see there.
            missing: see there.
        """
        if other is not None:
            where, other = common_space(self._field, other, space, geographic)
            how = Treatment(where, solver, options or {}, missing)
            how.check()
            return distance(self._field, other, how)
        series = Series.of(self._field, time_of(self._field, dim))
        how = self._treatment(series.time, space, geographic, solver, options, missing)
        found = series.of_pairs(Distances(how))
        found.attrs = length_attributes("Wasserstein-2 distance to the next frame", how.space)
        return found.rename("distance")

    def report(
        self,
        *,
        dim: Hashable | None = None,
        space: Iterable[Hashable] | Hashable | None = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        options: dict[str, Any] | None = None,
        missing: Missing = "refuse",
    ) -> xr.Dataset:
        """What can be said of every pair of neighbouring frames; time says when a pair begins.

        Its variables are `solver`, `distance` with its bounds, `error_estimate` (the L1 error to
        expect between the frames), `source_mass` and `target_mass` (the totals of both frames),
        `converged` (false where a solver says that it did not reach its tolerance), and `faded` for
        pairs of which a frame is empty.

        Args:
            dim: the dimension of time, where names do not tell.
            space: see `interp`, like all that follows.
            geographic: see there.
            solver: see there.
            options: see there.
            missing: see there.
        """
        series = Series.of(self._field, time_of(self._field, dim))
        how = self._treatment(series.time, space, geographic, solver, options, missing)
        lines = series.of_pairs(Reports(how))
        names: Sequence[str] = REPORTED.names or ()
        return xr.Dataset({name: lines.copy(data=lines.data[name]) for name in names})

    def _treatment(
        self,
        time: Hashable,
        space: Iterable[Hashable] | Hashable | None,
        geographic: bool | None,
        solver: str | Path | Solver,
        options: dict[str, Any] | None,
        missing: Missing,
        mass: Mass = "given",
    ) -> Treatment:
        """What was asked for, checked."""
        where = placed(self._field, space_of(self._field, time, space), geographic)
        how = Treatment(where, solver, options or {}, missing, mass)
        how.check()
        return how


def _one_dimension(coords: Mapping[Any, Any] | None, times: dict[str, Any]) -> tuple[Hashable, Any]:
    """The dimension of time and the new times, however they were given."""
    if coords is not None:
        check_kind(coords, Mapping, "coords", "give interp(time=new_times)")
    given = {**(coords or {}), **times}
    if len(given) != 1:
        raise InputError(
            f"The new times are given along {len(given)} dimensions; give one, the field's time: "
            "interp(time=new_times). Other dimensions are for da.interp."
        )
    return next(iter(given.items()))


def _check_flag(flag: str | None, field: xr.DataArray) -> None:
    """Refuse a name for a coordinate that is taken."""
    if flag is None:
        return
    check_kind(flag, str, "flag", "give the name of a coordinate to add")
    if flag in (*field.coords, *field.dims, field.name):
        raise InputError(f"The field has {flag!r} already; give the flag another name.")


def _shaped(
    template: Template, values: Any, series: Series, space: tuple[Hashable, ...]
) -> xr.DataArray:
    """Values (*others, T, *space) with the dimensions in the field's order, and coordinates."""
    field, time = series.field, series.time
    others = [dim for dim in field.dims if dim not in (time, *space)]
    if not template.dims:
        values = values[(slice(None),) * len(others) + (0,)]
    arranged = xr.Variable((*others, *template.dims, *space), values)
    order = [d for dim in field.dims for d in (template.dims if dim == time else (dim,))]
    arranged = arranged.transpose(*order)
    return template.around(arranged.data, arranged.dims, field)
