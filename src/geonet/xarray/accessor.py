"""`da.geonet`: what lies between the frames of a field."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from geonet._threads import one_thread
from geonet._validation import check_choice, check_instance
from geonet.density import Mass
from geonet.errors import GridError, InputError
from geonet.paths import check_times
from geonet.solvers.base import Solver
from geonet.xarray.coordinates import (
    Moments,
    Outside,
    Space,
    check_field,
    check_known,
    comparable,
    durations,
    is_dated,
    located,
    placed,
    space_of,
    starts,
    time_of,
)
from geonet.xarray.pairs import (
    REPORTED,
    Distances,
    Faded,
    Frames,
    Labels,
    Missing,
    Pair,
    Question,
    Reports,
    Treatment,
    Velocities,
    answered,
)

# ---- Coordinates, dimensions and type of an answer: those that `da.interp` itself would give.


STAND_IN = "_values of geonet"  # a variable along time alone, in place of the field


@dataclass(frozen=True)
class Template:
    """What surrounds the values of an answer.

    Attributes:
        times: the moments, (T,) or ().
        dims: of the moments, () or one name.
        coords: of the answer.
        dtype: of the answer.
    """

    times: np.ndarray
    dims: tuple[Hashable, ...]
    coords: Any
    dtype: np.dtype

    def around(self, values: Any, dims: tuple[Hashable, ...], like: xr.DataArray) -> xr.DataArray:
        """The answer, with the field's name and attributes."""
        coords = {
            name: coord for name, coord in self.coords.items() if set(coord.dims) <= set(dims)
        }
        return xr.DataArray(values, coords, dims, like.name, like.attrs)


def like_interp(field: xr.DataArray, time: Hashable, asked: Any) -> Template:
    """Let xarray interpolate everything but the field, which `STAND_IN` replaces."""
    _check_times(asked, time)
    around = field.coords.to_dataset()
    around[STAND_IN] = (time, np.zeros(field.sizes[time], field.dtype))
    try:
        answer = around.interp({time: asked})
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        said = " ".join(str(error).split())
        raise InputError(
            f"The times asked for do not fit the field's, {field[time].dtype}: {said.rstrip('.')}; "
            "give dates where the field has dates, and numbers where it has numbers."
        ) from error
    stand_in = answer[STAND_IN]
    if taken := [dim for dim in stand_in.dims if dim != time and dim in field.dims]:
        raise InputError(
            f"The times asked for lie along {taken[0]!r}, which is a dimension of the field; "
            "give them another dimension, or none: times.values."
        )
    # An array of times keeps its own coordinate of that name, whatever its values are.
    own = isinstance(asked, xr.DataArray | xr.Variable)
    return Template(
        asked.values if own else answer[time].values, stand_in.dims, answer.coords, stand_in.dtype
    )


def _check_times(asked: Any, time: Hashable) -> None:
    """Refuse what are not times, or tables of them."""
    try:
        given = np.asarray(asked)
    except ValueError as error:  # lists of lists of different lengths
        raise InputError(f"{time} is no list of times; give one time or a list.") from error
    if given.ndim > 1 or given.size == 0:
        raise InputError(f"{time} has the shape {given.shape}; give one time or a list of them.")
    if given.dtype.kind in "mMf":
        check_known(given, "The times asked for")


# ---- A field as frames in the order of their times, of which questions are asked.


UNTIL = "until"  # the coordinate that says when a pair ends


@dataclass(frozen=True)
class Series:
    """Frames with ascending times.

    Attributes:
        field: two frames or more.
        time: its dimension of time, which has a coordinate.
    """

    field: xr.DataArray
    time: Hashable

    @classmethod
    def of(cls, field: xr.DataArray, time: Hashable) -> Series:
        """The frames of a field in order; a dimension without coordinate counts them."""
        check_field(field)
        time_of(field, time)
        if field.sizes[time] < 2:
            count = field.sizes[time]
            raise InputError(
                f"The field has {count} frame{'' if count == 1 else 's'} along {time!r}; "
                "give two or more."
            )
        if time not in field.coords:
            field = field.assign_coords({time: ((time,), np.arange(field.sizes[time]))})
        times = field[time].values
        if times.dtype.kind not in "mMOiuf":
            raise InputError(
                f"The coordinate {time!r} holds {times.dtype}, neither dates nor numbers; "
                "decode it first: xr.decode_cf(dataset)."
            )
        numbers, _ = comparable(times, times)
        order = np.argsort(numbers, kind="stable")
        twice = np.diff(numbers[order]) == 0
        if twice.any():
            raise InputError(
                f"The time {times[order][1:][twice][0]} stands twice along {time!r}; "
                f"keep one of them: .drop_duplicates({time!r})."
            )
        return cls(field if (np.diff(order) == 1).all() else field.isel({time: order}), time)

    @property
    def times(self) -> np.ndarray:
        """Of the frames, (n,)."""
        return self.field[self.time].values

    def moments(self, asked: Any, outside: Outside) -> tuple[Template, Moments]:
        """What surrounds an answer at the times that are asked for, and where these lie."""
        check_choice(outside, ("refuse", "nan"), "outside")
        template = like_interp(self.field, self.time, asked)
        return template, located(self.times, np.atleast_1d(template.times), outside)

    def ask(self, moments: Moments, question: Question) -> Any:
        """(*others, T, *question.shape); of a field in a file it reads the frames it needs."""
        first, last = int(moments.frame.min()), int(moments.frame.max()) + 1
        part = self.field.isel({self.time: slice(first, last + 1)})
        space = question.how.space.dims
        others = [dim for dim in part.dims if dim not in (self.time, *space)]
        times = part[self.time].values
        return answered(
            part.transpose(*others, self.time, *space).data,
            moments.chosen(..., first),
            question,
            durations(times),
            Labels(
                str(part.name or "The field"),
                str(self.time),
                times,
                tuple((str(dim), _labels(part, dim)) for dim in others),
            ),
        )

    def of_pairs(self, question: Question) -> xr.DataArray:
        """An answer for each pair of neighbouring frames; its time is when the pair begins."""
        time, space = self.time, question.how.space.dims
        values = self.ask(starts(self.field.sizes[time]), question)
        begins = self.field.isel({**dict.fromkeys(space, 0), time: slice(None, -1)}, drop=True)
        others = [dim for dim in begins.dims if dim != time]
        answer = xr.DataArray(values, dims=[*others, time]).transpose(*begins.dims)
        answer = answer.assign_coords(begins.coords)
        return answer.assign_coords({UNTIL: (time, self.times[1:])})


def _labels(field: xr.DataArray, dim: Hashable) -> np.ndarray:
    """Of a dimension, for messages."""
    return field[dim].values if dim in field.coords else np.arange(field.sizes[dim])


# ---- Two fields without time: the geodesic and the distance between them.


ENDS = ("the first field", "the second field")


def geodesic(
    first: xr.DataArray,
    second: xr.DataArray,
    times: ArrayLike,
    *,
    dim: str = "t",
    space: Iterable[Hashable] | Hashable | None = None,
    geographic: bool | None = None,
    solver: str | Path | Solver = "auto",
    options: dict[str, Any] | None = None,
    missing: Missing = "refuse",
    mass: Mass = "given",
) -> xr.DataArray:
    """The geodesic from one field to another, (t, …): for each member, level, … that they have.

    Args:
        first: the field at t = 0.
        second: the field at t = 1, with the same coordinates of space.
        times: from 0 to 1, a number or a list; the answer has them along `dim`.
        dim: the name of the new dimension.
        space: see `FieldAccessor.interp`, like all that follows.
        geographic: see there.
        solver: see there.
        options: see there.
        missing: see there.
        mass: see there.
    """
    where, second = common_space(first, second, space, geographic)
    if dim in (*first.dims, *second.dims):
        raise InputError(f"The fields have a dimension {dim!r}; give another name: dim='s'.")
    how = Treatment(where, solver, options or {}, missing, mass)
    how.check()
    moments, single = check_times(times)  # pyright: ignore
    shares = moments.numpy()
    question = Frames(how, np.result_type(first.dtype, second.dtype, np.float64))

    def solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        frames = question.answer(a, b, shares, 1.0, ENDS.__getitem__)
        if how.mass == "given":
            frames[shares == 1] = b
        return frames

    answer = _for_each(solve, first, second, where.dims, [dim, *where.dims], {dim: len(shares)})
    answer = answer.transpose(dim, *[d for d in first.dims if d in answer.dims], ...)
    answer = answer.assign_coords({dim: shares}).rename(first.name)
    answer.attrs = dict(first.attrs)
    return answer.isel({dim: 0}) if single else answer


def distance(first: xr.DataArray, second: xr.DataArray, how: Treatment) -> xr.DataArray:
    """W2 between two fields, for each member, level, … that they have; NaN where one is empty."""

    def solve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.array(Pair(a, b, how, ENDS.__getitem__).distance())

    answer = _for_each(solve, first, second, how.space.dims, [], {})
    answer.attrs = length_attributes("Wasserstein-2 distance", how.space)
    return answer.rename("distance")


def length_attributes(name: str, space: Space) -> dict[str, str]:
    """Attributes of a variable that holds lengths."""
    return {"long_name": name, **({"units": space.units} if space.units else {})}


def common_space(
    first: xr.DataArray,
    second: xr.DataArray,
    space: Iterable[Hashable] | Hashable | None,
    geographic: bool | None,
) -> tuple[Space, xr.DataArray]:
    """The space of two fields, and the second in the first one's order of coordinates.

    Refuses those that lie elsewhere.
    """
    for field, name in ((first, "first"), (second, "second")):
        check_instance(field, xr.DataArray, name, "give an xarray.DataArray")
        check_field(field)
    dims = space_of(first, None, space)
    for dim in dims:
        if dim not in second.dims or first.sizes[dim] != second.sizes[dim]:
            raise GridError(
                f"The fields differ along {dim!r}: {dict(first.sizes)} and {dict(second.sizes)}; "
                "bring one to the other's cells: second.interp_like(first)."
            )
    here, there = (placed(field, dims, geographic) for field in (first, second))
    if not here.grid.same_box(there.grid):
        raise GridError(
            f"The fields lie in different places: {here.grid} and {there.grid}; "
            "bring one to the other's cells: second.interp_like(first)."
        )
    backwards = [
        dim
        for dim in dims
        if dim in first.coords
        and dim in second.coords
        and (first[dim][-1] > first[dim][0]) != (second[dim][-1] > second[dim][0])
    ]
    return here, second.isel(dict.fromkeys(backwards, slice(None, None, -1)))


def _for_each(
    solve: Any,
    first: xr.DataArray,
    second: xr.DataArray,
    space: Sequence[Hashable],
    gives: list[Any],
    sizes: dict[Any, int],
) -> xr.DataArray:
    """What `solve` gives for every two frames; lazy where a field is."""

    def by_one_thread(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        with one_thread():
            return solve(a, b)

    whole = {dim: -1 for dim in space}
    pair = [field.chunk(whole) if field.chunks else field for field in (first, second)]
    second = pair[1].drop_vars([name for name in pair[1].coords if name not in pair[1].dims])
    second = second.assign_coords({dim: pair[0][dim] for dim in space if dim in pair[0].coords})
    try:
        xr.align(pair[0], second, join="exact", copy=False)
    except ValueError as error:
        said = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"The fields do not match: {said}; give both the same labels, or none."
        ) from error
    return xr.apply_ufunc(
        by_one_thread,
        pair[0],
        second,
        input_core_dims=[list(space), list(space)],
        output_core_dims=[gives],
        vectorize=True,
        dask="parallelized",
        output_dtypes=[float],
        dask_gufunc_kwargs={"output_sizes": sizes} if sizes else {},
        join="exact",
    )


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
        check_instance(coords, Mapping, "coords", "give interp(time=new_times)")
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
    check_instance(flag, str, "flag", "give the name of a coordinate to add")
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
