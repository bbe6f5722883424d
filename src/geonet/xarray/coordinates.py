"""Dimensions and coordinates of a field: its spatial grid, and times between its frames."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from geonet._format import strip_zeros
from geonet._validation import check_choice, short_repr
from geonet.errors import GridError, InputError
from geonet.grid import Grid

Outside = Literal["raise", "nan"]
Dims = Iterable[Hashable] | Hashable | None
Periodic = Dims | bool

METRES_PER_DEGREE = 6371008.8 * np.pi / 180  # of latitude, on a sphere with the Earth's volume
# Names of dimensions, and standard names and units of their coordinates (CF conventions).
LATITUDE = ("lat", "latitude", "degrees_north", "degree_north")
LONGITUDE = ("lon", "longitude", "degrees_east", "degree_east")
PLANE = ("x", "y", "xc", "yc", "easting", "northing", "rlon", "rlat", "grid_longitude")
PROJECTED = ("projection_x_coordinate", "projection_y_coordinate", "grid_latitude")


# ---- Space


@dataclass(frozen=True)
class Space:
    """Spatial grid of the frames of a field.

    Attributes:
        dims: names of its axes.
        grid: the cells, in the units of the coordinates, or in metres if they are geographic.
        areas: area of the cells relative to the grid's cells, (n_1 or 1, …).
        speeds: factors from velocities on the grid to the coordinates, (n_1 or 1, …) for each axis.
        units: units of lengths, or "" if the coordinates have none.
    """

    dims: tuple[Hashable, ...]
    grid: Grid
    areas: np.ndarray
    speeds: tuple[np.ndarray, ...]
    units: str

    def describe_length(self, name: str) -> dict[str, str]:
        """Return the attributes of a variable that holds lengths."""
        return {"long_name": name, **({"units": self.units} if self.units else {})}


def check_field(field: xr.DataArray) -> None:
    """Raise InputError if the values are not numbers or the size is unknown."""
    if field.dtype.kind not in "iuf":
        raise InputError(f"The field holds {field.dtype}, not numbers; convert it: .astype(float).")
    if any(np.isnan(n) for n in field.shape):
        raise InputError(
            "The field has chunks of unknown size; compute them: field.data.compute_chunk_sizes()."
        )


def time_dim(field: xr.DataArray, dim: Hashable | None) -> Hashable:
    """Return the time dimension: `dim`, or the only dimension with dates or named like time."""
    if dim is not None:
        check_dims(field, [dim])
        return dim
    candidates = [d for d in field.dims if d in field.coords and are_dates(field[d].values)]
    candidates = candidates or [d for d in field.dims if d in ("time", "t")]
    if len(candidates) != 1:
        raise InputError(
            f"The time dimension of {_join(field.dims)} is ambiguous; name it: dim='time' "
            "(--time on the command line)."
        )
    return candidates[0]


def spatial_dims(field: xr.DataArray, time: Hashable | None, space: Dims) -> tuple[Hashable, ...]:
    """Return the spatial dimensions in the field's order: `space`, or those with CF names."""
    if space is None:
        names = (*LATITUDE, *LONGITUDE, *PLANE, *PROJECTED)
        dims = tuple(d for d in field.dims if d != time and _matches_cf_name(field, d, names))
        if not dims:
            others = [dim for dim in field.dims if dim != time]
            raise InputError(
                f"No spatial dimension (x, y, lat, lon) among {_join(others)}; "
                "name them: space=('row', 'column') (--space row,column on the command line)."
            )
    else:
        named = _list_dims(space)
        check_dims(field, named)
        dims = tuple(dim for dim in field.dims if dim in named)
    if time in dims:
        raise InputError(f"{time!r} is named as time and as space; name other dimensions as space.")
    if not 1 <= len(dims) <= 3:
        raise InputError(f"space is {_join(dims)}; name one to three dimensions.")
    return dims


def spatial_grid(
    field: xr.DataArray,
    dims: tuple[Hashable, ...],
    geographic: bool | None,
    periodic: Periodic = False,
) -> Space:
    """Return the grid of the cells around the coordinates; cells have length one without them.

    On geographic coordinates a degree of longitude has its length on the middle latitude, and the
    cells of latitude φ have the relative area cos φ / cos φ_middle.

    Args:
        field: the field.
        dims: its spatial dimensions.
        geographic: whether they are degrees on the globe; by default names and units decide.
        periodic: spatial dimensions whose ends meet; True for the longitudes of a globe, or for all
            dimensions of a plane.
    """
    latitude, longitude = (
        [k for k, dim in enumerate(dims) if _matches_cf_name(field, dim, names)]
        for names in (LATITUDE, LONGITUDE)
    )
    on_globe = bool(latitude and longitude) if geographic is None else geographic
    if periodic is True:
        periodic = tuple(dims[k] for k in longitude) if on_globe else dims
    closed = _closed_dims(field, dims, periodic)
    axes = [_axis(field, dim, dim in closed) for dim in dims]
    if not on_globe:
        _check_equal_units(field, dims)
        signs = tuple(np.full((1,) * len(dims), axis.sign) for axis in axes)
        units = str(field[dims[0]].attrs.get("units", "")) if dims[0] in field.coords else ""
        return Space(dims, _build_grid(axes), np.ones((1,) * len(dims)), signs, units)
    if len(latitude) != 1 or len(longitude) != 1:
        raise GridError(
            f"geographic needs one latitude and one longitude among {_join(dims)}; "
            "set the attribute units of the coordinates to degrees_north and degrees_east."
        )
    for k, dim in enumerate(dims):
        units = field[dim].attrs.get("units", "m") if dim in field.coords else "m"
        is_height = k not in (*latitude, *longitude)
        if is_height and units not in ("m", "metre", "metres", "meter", "meters"):
            raise GridError(
                f"Lengths on the globe are in metres and {dim!r} is in {units}; convert it to m."
            )
    return _tangent_plane(dims, axes, latitude[0], longitude[0])


@dataclass(frozen=True)
class _Axis:
    """Evenly spaced cell centres (n,), with a negative step if they descend."""

    centres: np.ndarray
    step: float
    is_periodic: bool = False

    @property
    def sign(self) -> float:
        return np.sign(self.step)

    def ends(self, scale: float = 1.0) -> tuple[float, float]:
        """Return both ends of the interval of the cells, times `scale`."""
        half = abs(self.step) / 2
        low, high = sorted((self.centres[0], self.centres[-1]))
        return scale * (low - half), scale * (high + half)


def _closed_dims(
    field: xr.DataArray, dims: tuple[Hashable, ...], periodic: Periodic
) -> list[Hashable]:
    """Return the spatial dimensions whose ends meet."""
    if periodic is None or periodic is False:
        return []
    closed = _list_dims(periodic)
    check_dims(field, closed)
    for dim in closed:
        if dim not in dims:
            raise InputError(
                f"periodic names {dim!r}, which is not a dimension of space; "
                f"name some of {_join(dims)}."
            )
        if _matches_cf_name(field, dim, LATITUDE):
            raise GridError(
                f"periodic names {dim!r}, but latitudes end at the poles; name the longitude only."
            )
    return closed


def _axis(
    field: xr.DataArray, dim: Hashable, is_periodic: bool = False, tolerance: float = 0.01
) -> _Axis:
    """Return the cells along a dimension.

    Coordinates may deviate from even spacing by `tolerance` of a cell, since many are rounded when
    they are stored. Periodic longitudes may start anywhere, and jump by 360 degrees.
    """
    is_longitude = _matches_cf_name(field, dim, LONGITUDE)
    axis = _even_axis(field, dim, is_periodic and is_longitude, tolerance)
    if not is_periodic:
        return axis
    count, step = len(axis.centres), abs(axis.step)
    if is_longitude and abs(count * step - 360) > tolerance * step:
        repeated = abs((count - 1) * step - 360) <= tolerance * step
        remedy = f"drop the last one, which repeats the first: .isel({dim}=slice(-1))"
        raise GridError(
            f"The {count} cells of {dim!r} cover {count * step:g} degrees, and a full circle has "
            f"360; {remedy if repeated else 'do not name it as periodic'}."
        )
    return replace(axis, is_periodic=True)


def _even_axis(field: xr.DataArray, dim: Hashable, unwrap: bool, tolerance: float) -> _Axis:
    """Return the cells along a dimension; `unwrap` removes jumps by 360 degrees."""
    count = field.sizes[dim]
    if count < 2:
        raise GridError(f"{dim!r} has {count} cell; space needs two or more cells on every axis.")
    if dim not in field.coords:
        return _Axis(np.arange(count, dtype=float), 1.0)
    values = field[dim].values
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise GridError(
            f"The coordinate {dim!r} does not hold finite numbers; "
            f"assign some: .assign_coords({dim}=...), or drop the coordinate."
        )
    centres = values.astype(float)
    if unwrap:
        centres = np.unwrap(centres, period=360.0)
    step = float(centres[-1] - centres[0]) / (count - 1)
    even = centres[0] + step * np.arange(count)
    rounding = 4 * np.finfo(values.dtype).eps if values.dtype.kind == "f" else 0.0
    allowed = tolerance * abs(step) + rounding * np.abs(centres).max()
    worst = int(np.abs(centres - even).argmax())
    if step == 0 or abs(centres[worst] - even[worst]) > allowed:
        if _matches_cf_name(field, dim, LONGITUDE) and (np.diff(centres) < 0).sum() == 1:
            raise GridError(
                f"The coordinate {dim!r} jumps from {centres.max():g} to {centres.min():g}; shift "
                f"it: .assign_coords({dim}=(field.{dim} + 180) % 360 - 180), or give "
                f"periodic={dim!r} if it covers the full circle."
            )
        raise GridError(
            f"The coordinate {dim!r} is not evenly spaced: {centres[worst]:g} instead of "
            f"{even[worst]:g}; interpolate to even cells first, such as .interp({dim}="
            f"np.linspace({centres[0]:g}, {centres[-1]:g}, {count}))."
        )
    return _Axis(centres, step)


def _build_grid(axes: list[_Axis], scales: Sequence[float] | None = None) -> Grid:
    scales = scales or [1.0] * len(axes)
    ends = [axis.ends(scale) for axis, scale in zip(axes, scales, strict=True)]
    shape = [len(axis.centres) for axis in axes]
    periodic = [axis.is_periodic for axis in axes]
    lower, upper = [low for low, _ in ends], [high for _, high in ends]
    return Grid(shape, lower, upper, periodic=periodic)


def _tangent_plane(
    dims: tuple[Hashable, ...],
    axes: list[_Axis],
    latitude: int,
    longitude: int,
    max_stretch: float = 2.0,
) -> Space:
    """Return a plane in metres that touches the globe along the middle latitude.

    Regions in which a degree of longitude varies by more than `max_stretch` are rejected.
    """
    low, high = axes[latitude].ends()
    middle = np.cos(np.radians((low + high) / 2))
    widths = np.cos(np.radians(axes[latitude].centres)) / middle
    is_flat = 1 / max_stretch <= widths.min() <= widths.max() <= max_stretch
    if low < -90 or high > 90 or not is_flat:
        raise GridError(
            f"The latitudes {low:g} to {high:g} do not fit a plane: a degree of longitude is "
            f"{widths.min():.2g} to {widths.max():.2g} times as long as in the middle; choose a "
            "smaller region, reproject it, or set geographic=False (--plane on the command line)."
        )
    areas = widths.reshape(tuple(-1 if k == latitude else 1 for k in range(len(dims))))
    scales = [1.0] * len(dims)
    scales[latitude], scales[longitude] = METRES_PER_DEGREE, METRES_PER_DEGREE * middle
    speeds = [np.full((1,) * len(dims), axis.sign) for axis in axes]
    speeds[longitude] = speeds[longitude] * areas
    return Space(dims, _build_grid(axes, scales), areas, tuple(speeds), "m")


def _check_equal_units(field: xr.DataArray, dims: tuple[Hashable, ...]) -> None:
    """Raise GridError if lengths along two axes cannot be compared."""
    units = {dim: field[dim].attrs.get("units") for dim in dims if dim in field.coords}
    units = {dim: unit for dim, unit in units.items() if unit is not None}
    degrees = {"degrees_north", "degrees_east", "degree_north", "degree_east"}
    if len({"degrees" if unit in degrees else unit for unit in units.values()}) > 1:
        listed = ", ".join(f"{dim!r} in {unit}" for dim, unit in units.items())
        raise GridError(
            f"The axes of space have different units, {listed}; convert them to one, because "
            "transport compares lengths along all axes."
        )


def _matches_cf_name(field: xr.DataArray, dim: Hashable, names: Sequence[str]) -> bool:
    """Return whether a dimension, or the CF attributes of its coordinate, has one of the names."""
    attributes = field[dim].attrs if dim in field.coords else {}
    labels = (dim, attributes.get("standard_name"), attributes.get("units"))
    return any(isinstance(label, str) and label.lower() in names for label in labels)


def _list_dims(dims: Dims) -> list[Hashable]:
    several = isinstance(dims, Iterable) and not isinstance(dims, str)
    return list(dims) if several else [dims]  # pyright: ignore


def check_dims(field: xr.DataArray, dims: Sequence[Hashable]) -> None:
    """Raise InputError if the field lacks one of the dimensions."""
    for dim in dims:
        if dim not in field.dims:
            raise InputError(
                f"The field has no dimension {short_repr(dim)}; its dimensions are "
                f"{_join(field.dims)}."
            )


def _join(dims: Sequence[Hashable]) -> str:
    return ", ".join(map(str, dims)) or "(none)"


# ---- Time


@dataclass(frozen=True)
class TimeIndex:
    """Positions of T times between frames.

    Attributes:
        frame: the last frame that is not later, (T,).
        fraction: fraction of the interval to the next frame, (T,), in [0, 1]; NaN for a time
            outside of all frames.
    """

    frame: np.ndarray
    fraction: np.ndarray

    @classmethod
    def locate(cls, times: np.ndarray, new_times: np.ndarray, outside: Outside) -> TimeIndex:
        """Return the positions of `new_times` (T,) between the ascending `times` (n,).

        A time of a frame has the fraction 0 exactly, because dates are compared as integers.
        """
        check_choice(outside, ("raise", "nan"), "outside")
        old, new = to_numbers(times, new_times)
        frame = np.searchsorted(old, new, side="right") - 1
        is_outside = (new < old[0]) | (new > old[-1])
        if is_outside.any() and outside == "raise":
            raise InputError(
                f"The time {format_time(new_times[is_outside][0])} is outside of the field's "
                f"times, {format_time(times[0])} to {format_time(times[-1])}; leave it out, or set "
                "outside='nan' for a frame without values."
            )
        fraction = np.where(is_outside, np.nan, 0.0)
        between = ~is_outside & (frame < len(old) - 1)
        start = frame[between]
        fraction[between] = (new[between] - old[start]) / (old[start + 1] - old[start])
        return cls(np.where(is_outside, 0, frame), fraction)

    @classmethod
    def extrapolate(cls, times: np.ndarray, new_times: np.ndarray, longest: float) -> TimeIndex:
        """Return the positions of times after the last frame, with fractions above one.

        Raise InputError for earlier times, and beyond `longest` intervals after the last frame.
        """
        old, new = to_numbers(times, new_times)
        step = old[-1] - old[-2]
        lead = (new - old[-1]) / step
        if (lead <= 0).any():
            raise InputError(
                f"The time {format_time(new_times[lead <= 0][0])} is not after the last frame, "
                f"{format_time(times[-1])}; use interp for times between frames."
            )
        if not longest > 0 or (lead > longest).any():
            raise InputError(
                f"The time {format_time(new_times[np.argmax(lead)])} is {lead.max():g} intervals "
                f"after the last frame, and longest is {longest:g}; give earlier times, or another "
                "longest."
            )
        return cls(np.full(len(new), len(old) - 2), 1 + lead)

    @classmethod
    def pair_starts(cls, frames: int) -> TimeIndex:
        """Return the start of every pair of neighbouring frames."""
        return cls(np.arange(frames - 1), np.zeros(frames - 1))

    @classmethod
    def all_frames(cls, frames: int) -> TimeIndex:
        """Return the positions of all frames."""
        return cls(np.arange(frames), np.zeros(frames))

    @classmethod
    def first(cls) -> TimeIndex:
        """Return the position of the first frame."""
        return cls(np.zeros(1, dtype=int), np.zeros(1))

    def __len__(self) -> int:
        return len(self.frame)

    def select(self, which: Any, first: int) -> TimeIndex:
        """Return some of the positions, among frames that start with number `first`."""
        return TimeIndex(self.frame[which] - first, self.fraction[which])

    def clamp_to_pairs(self, frames: int) -> TimeIndex:
        """Replace the start of the last frame by the end of the pair before it."""
        is_last = self.frame == frames - 1
        return TimeIndex(self.frame - is_last, np.where(is_last, 1.0, self.fraction))


def format_time(time: Any) -> str:
    """Return a time as text; a date without the zeros after its last significant digit."""
    is_date = isinstance(time, np.datetime64)
    return strip_zeros(str(time)) if is_date else str(time)


def pair_durations(times: np.ndarray) -> np.ndarray:
    """Return the time from each frame to the next, (n − 1,), in seconds for dates."""
    steps = np.diff(times)
    if steps.dtype.kind == "m":
        return steps / np.timedelta64(1, "s")
    if steps.dtype.kind == "O":  # calendars that NumPy does not know
        return np.array([step.total_seconds() for step in steps])
    return steps.astype(float)


def are_dates(times: np.ndarray) -> bool:
    """Return whether times are dates or durations, not plain numbers."""
    return times.dtype.kind in "mMO"


def to_numbers(times: np.ndarray, new_times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both as numbers of one unit; integers for dates."""
    kinds = {array.dtype.kind for array in (times, new_times)}
    if kinds == {"O"}:
        return _microseconds(times, times[0]), _microseconds(new_times, times[0])
    if kinds <= {"m"} or kinds <= {"M"} or kinds <= set("iuf"):
        is_date = bool(kinds & {"m", "M"})
        common = np.promote_types(times.dtype, new_times.dtype) if is_date else np.dtype(float)
        old, new = times.astype(common), new_times.astype(common)
        _check_known(old, "The field's times")
        _check_known(new, "The new times")
        return (old.astype(np.int64), new.astype(np.int64)) if is_date else (old, new)
    raise InputError(
        f"The field's times are {times.dtype} and the new times {new_times.dtype}; "
        "give dates if the field has dates, and numbers if it has numbers."
    )


def _check_known(times: np.ndarray, name: str) -> None:
    """Raise InputError for NaT, NaN and infinite times."""
    unknown = np.isnat(times) if times.dtype.kind in "mM" else ~np.isfinite(times)
    if unknown.any():
        raise InputError(f"{name} hold {int(unknown.sum())} without a value; leave these out.")


def _microseconds(times: np.ndarray, origin: object) -> np.ndarray:
    """Return integer microseconds since the origin, for dates as Python objects."""
    try:
        steps = (times - origin).tolist()
        return np.array([(s.days * 86400 + s.seconds) * 10**6 + s.microseconds for s in steps])
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(
            "The times are neither numbers nor dates of one calendar; decode them first: "
            "xr.decode_cf(dataset)."
        ) from error


def time_range(
    times: np.ndarray,
    every: str,
    name: str = "--every",
    max_count: int = 10**7,
    rounding: float = 1e-6,
) -> np.ndarray:
    """Return times at even steps from the first of `times` to at most the last.

    Args:
        times: ascending dates, durations or numbers, (n,).
        every: the step, such as "2min", or a number if times are numbers.
        name: name of the step in messages.
        max_count: largest number of times.
        rounding: numbers this close to a frame's time, as a fraction of a step, are replaced by it.
    """
    kind = times.dtype.kind
    step: Any = _parse_step(every, name, is_number=kind in "iuf")
    if kind in "mM":
        step = step.to_timedelta64()
        times = times.astype(np.promote_types(times.dtype, f"{kind}8[{np.datetime_data(step)[0]}]"))
    elif kind == "O":
        step = max(step.to_pytimedelta(), timedelta.resolution)
    count = float((times[-1] - times[0]) / step)
    if not count < max_count:
        raise InputError(f"{name} {every} gives {count:.3g} frames; give a longer step.")
    result = times[0] + np.arange(int(count + rounding) + 1) * step
    if kind not in "iuf":
        return result
    numbers = times.astype(float)
    after = np.searchsorted(numbers, result).clip(max=len(numbers) - 1)
    earlier, later = numbers[after - 1], numbers[after]
    nearest = np.where(np.abs(later - result) < np.abs(earlier - result), later, earlier)
    return np.where(np.abs(nearest - result) <= rounding * step, nearest, result)


def _parse_step(every: str, name: str, is_number: bool) -> Any:
    """Return a positive float or pandas Timedelta."""
    if not is_number and _is_plain_number(every):  # which pandas takes as nanoseconds
        raise InputError(
            f"{name} is {every} without a unit, and the times are dates; give {every}s or "
            f"{every}min."
        )
    try:
        step: Any = float(every) if is_number else pd.Timedelta(every)
        if step > type(step)(0) and step != float("inf"):  # not NaN, NaT
            return step
    except (ValueError, TypeError, OverflowError):
        pass
    remedy = "number above zero" if is_number else "duration above zero, such as 2min or 6h"
    raise InputError(f"{name} is {every!r}; give a {remedy}.")


def _is_plain_number(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


# ---- Coordinates of results, as from `da.interp`


@dataclass(frozen=True)
class Template:
    """Everything but the values of a result.

    Attributes:
        times: the new times, (T,) or ().
        dims: their dimension, or () for a single time.
        coords: coordinates of the result.
        dtype: type of the result.
    """

    times: np.ndarray
    dims: tuple[Hashable, ...]
    coords: Any
    dtype: np.dtype

    @classmethod
    def from_interp(cls, field: xr.DataArray, time: Hashable, new_times: Any) -> Template:
        """Let xarray interpolate the coordinates, with a placeholder for the field itself."""
        _check_time_list(new_times, time)
        placeholder = "_geonet_placeholder"
        coords = field.coords.to_dataset()
        coords[placeholder] = (time, np.zeros(field.sizes[time], field.dtype))
        try:
            result = coords.interp({time: new_times})
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            cause = " ".join(str(error).split()).rstrip(".")
            raise InputError(
                f"The new times do not fit the field's, {field[time].dtype}: {cause}; "
                "give dates if the field has dates, and numbers if it has numbers."
            ) from error
        values = result[placeholder]
        if taken := [dim for dim in values.dims if dim != time and dim in field.dims]:
            raise InputError(
                f"The new times lie along {taken[0]!r}, which is a dimension of the field; "
                "give them another dimension, or none: times.values."
            )
        # An array of times keeps its own coordinate of that name, whose values may differ.
        is_array = isinstance(new_times, xr.DataArray | xr.Variable)
        times = new_times.values if is_array else result[time].values
        return cls(times, values.dims, result.coords, values.dtype)

    def wrap(self, values: Any, dims: tuple[Hashable, ...], field: xr.DataArray) -> xr.DataArray:
        """Return the values with coordinates and with the field's name and attributes."""
        coords = {
            name: coord for name, coord in self.coords.items() if set(coord.dims) <= set(dims)
        }
        return xr.DataArray(values, coords, dims, field.name, field.attrs)


def _check_time_list(new_times: Any, time: Hashable) -> None:
    """Raise InputError for nested, empty or unknown times."""
    try:
        values = np.asarray(new_times)
    except ValueError as error:  # nested lists of different lengths
        raise InputError(f"{time} is not a list of times; give one time or a list.") from error
    if values.ndim > 1 or values.size == 0:
        raise InputError(f"{time} has the shape {values.shape}; give one time or a list of them.")
    if values.dtype.kind in "mMf":
        _check_known(values, "The new times")
