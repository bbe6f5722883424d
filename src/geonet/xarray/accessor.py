"""`da.geonet`: what lies between the frames of a field."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from geonet.arguments import check_word
from geonet.errors import InputError
from geonet.measures.density import Mass
from geonet.solvers.base import Solver
from geonet.xarray.all_pairs import Labels, answered
from geonet.xarray.axes import placed, space_of, time_of
from geonet.xarray.like_interp import Template, like_interp
from geonet.xarray.moments import Moments, Outside, comparable, durations, is_dated, located, starts
from geonet.xarray.pair import REPORTED, Missing, Treatment
from geonet.xarray.questions import Distances, Faded, Frames, Question, Reports, Velocities
from geonet.xarray.two_fields import common_space, distance, length_attributes

UNTIL = "until"  # the coordinate that says when a pair ends


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
        space: Hashable | Sequence[Hashable] | None = None,
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
        back as they are. The total goes evenly from one frame's to the next. Between two frames of
        which one is empty nothing can move, and one is faded into the other.

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
        check_word(outside, ("refuse", "nan"), "outside")
        time, asked = _one_dimension(coords, times)
        how = self._treatment(time, space, geographic, solver, options, missing, mass)
        field = self._in_order(time)
        template = like_interp(field, time, asked)
        moments = located(field[time].values, np.atleast_1d(template.times), outside)
        values = self._ask(field, time, moments, Frames(how, template.dtype))
        answer = _shaped(template, values, field, time, how.space.dims)
        if flag is not None:
            faded = self._ask(field, time, moments, Faded(how))
            told = _shaped(template, faded, field.isel(dict.fromkeys(how.space.dims, 0)), time, ())
            answer = answer.assign_coords({flag: told.variable})
        return answer

    def velocity(
        self,
        coords: Mapping[Any, Any] | None = None,
        *,
        space: Hashable | Sequence[Hashable] | None = None,
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
        check_word(outside, ("refuse", "nan"), "outside")
        time, asked = _one_dimension(coords, times)
        how = self._treatment(time, space, geographic, solver, options, missing)
        field = self._in_order(time)
        template = like_interp(field, time, asked)
        moments = located(field[time].values, np.atleast_1d(template.times), outside)
        moments = moments.with_next(field.sizes[time])
        values = self._ask(field, time, moments, Velocities(how))
        known = how.space.units and is_dated(field[time].values)
        units = {"units": f"{how.space.units} s-1"} if known else {}
        found = {}
        for k, dim in enumerate(how.space.dims):
            part = values[(..., k, *(slice(None),) * len(how.space.dims))]
            along = _shaped(template, part, field, time, how.space.dims)
            along.attrs = {"long_name": f"velocity along {dim}", **units}
            found[f"velocity_{dim}"] = along
        return xr.Dataset(found)

    def distance(
        self,
        other: xr.DataArray | None = None,
        *,
        dim: Hashable | None = None,
        space: Hashable | Sequence[Hashable] | None = None,
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
            where = common_space(self._field, other, space, geographic)
            how = Treatment(where, solver, options or {}, missing)
            how.check()
            return distance(self._field, other, how)
        time = time_of(self._field, dim)
        how = self._treatment(time, space, geographic, solver, options, missing)
        found = self._of_pairs(time, Distances(how))
        found.attrs = length_attributes("Wasserstein-2 distance to the next frame", how.space)
        return found.rename("distance")

    def report(
        self,
        *,
        dim: Hashable | None = None,
        space: Hashable | Sequence[Hashable] | None = None,
        geographic: bool | None = None,
        solver: str | Path | Solver = "auto",
        options: dict[str, Any] | None = None,
        missing: Missing = "refuse",
    ) -> xr.Dataset:
        """What can be said of every pair of neighbouring frames; time says when a pair begins.

        Its variables are `solver`, `distance` with its bounds, `error_estimate` (the L1 error to
        expect between the frames), `source_mass` and `target_mass` (the totals of both frames),
        `converged`, and `faded` for pairs of which a frame is empty.

        Args:
            dim: the dimension of time, where names do not tell.
            space: see `interp`, like all that follows.
            geographic: see there.
            solver: see there.
            options: see there.
            missing: see there.
        """
        time = time_of(self._field, dim)
        how = self._treatment(time, space, geographic, solver, options, missing)
        lines = self._of_pairs(time, Reports(how))
        names: Sequence[str] = REPORTED.names or ()
        return xr.Dataset({name: lines.copy(data=lines.data[name]) for name in names})

    # ---- shared plumbing

    def _treatment(
        self,
        time: Hashable,
        space: Hashable | Sequence[Hashable] | None,
        geographic: bool | None,
        solver: str | Path | Solver,
        options: dict[str, Any] | None,
        missing: Missing,
        mass: Mass = "given",
    ) -> Treatment:
        """What was asked for, checked."""
        field = self._field
        if field.dtype.kind not in "iuf":
            raise InputError(
                f"The field holds {field.dtype}, not numbers; convert it: .astype(float)."
            )
        time_of(field, time)
        where = placed(field, space_of(field, time, space), geographic)
        how = Treatment(where, solver, options or {}, missing, mass)
        how.check()
        return how

    def _in_order(self, time: Hashable) -> xr.DataArray:
        """The field with ascending times; a dimension without coordinate counts its frames."""
        field = self._field
        if field.sizes[time] < 2:
            raise InputError(f"The field has one frame along {time!r}; give two or more.")
        if time not in field.coords:
            field = field.assign_coords({time: np.arange(field.sizes[time])})
        numbers, _ = comparable(field[time].values, field[time].values)
        if (np.diff(numbers) > 0).all():
            return field
        order = np.argsort(numbers, kind="stable")
        twice = np.diff(numbers[order]) == 0
        if twice.any():
            raise InputError(
                f"The time {field[time].values[order][1:][twice][0]} stands twice along {time!r}; "
                f"keep one of them: .drop_duplicates({time!r})."
            )
        return field.isel({time: order})

    def _of_pairs(self, time: Hashable, question: Question) -> xr.DataArray:
        """An answer for each pair of neighbouring frames, which begins at `time`."""
        field = self._in_order(time)
        values = self._ask(field, time, starts(field.sizes[time]), question)
        corner = field.isel(dict.fromkeys(question.how.space.dims, 0), drop=True)
        begins = corner.isel({time: slice(None, -1)})
        others = [dim for dim in begins.dims if dim != time]
        answer = xr.DataArray(values, dims=[*others, time]).transpose(*begins.dims)
        answer = answer.assign_coords(begins.coords)
        return answer.assign_coords({UNTIL: (time, field[time].values[1:])})

    def _ask(
        self, field: xr.DataArray, time: Hashable, moments: Moments, question: Question
    ) -> Any:
        """(*others, T, *question.shape); of a field in a file it reads the frames it needs."""
        first, last = int(moments.frame.min()), int(moments.frame.max()) + 1
        field, moments = field.isel({time: slice(first, last + 1)}), moments.chosen(..., first)
        space = question.how.space.dims
        others = [dim for dim in field.dims if dim not in (time, *space)]
        times = field[time].values
        named = ((dim, field[dim].values if dim in field.coords else None) for dim in others)
        labels = tuple(
            (str(dim), np.arange(field.sizes[dim]) if values is None else values)
            for dim, values in named
        )
        return answered(
            field.transpose(*others, time, *space).data,
            moments,
            question,
            durations(times),
            Labels(str(field.name or "The field"), str(time), times, labels),
        )


def _one_dimension(coords: Mapping[Any, Any] | None, times: dict[str, Any]) -> tuple[Hashable, Any]:
    """The dimension of time and the new times, however they were given."""
    given = {**(coords or {}), **times}
    if len(given) != 1:
        raise InputError(
            f"The new times are given along {len(given)} dimensions; give one, the field's time: "
            "interp(time=new_times). Other dimensions are for da.interp."
        )
    return next(iter(given.items()))


def _shaped(
    template: Template,
    values: Any,
    field: xr.DataArray,
    time: Hashable,
    space: tuple[Hashable, ...],
) -> xr.DataArray:
    """Values (*others, T, *space) with the dimensions in the field's order, and coordinates."""
    others = [dim for dim in field.dims if dim not in (time, *space)]
    if not template.dims:
        values = values[(slice(None),) * len(others) + (0,)]
    arranged = xr.Variable((*others, *template.dims, *space), values)
    order = [d for dim in field.dims for d in (template.dims if dim == time else (dim,))]
    arranged = arranged.transpose(*order)
    return template.around(arranged.data, arranged.dims, field)
