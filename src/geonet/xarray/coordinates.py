"""Which dimensions of a field are time and which are space, and the grid of its coordinates."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr

from geonet._advice import either
from geonet._validation import short_repr
from geonet.errors import GridError, InputError
from geonet.grid import Grid

METRES = 6371008.8 * np.pi / 180  # in a degree of latitude, on a sphere as large as the Earth
UNEVEN = 0.01  # of a cell by which coordinates may be off: many are rounded when they are stored
STRETCH = 2.0  # between the widest and the middle degree of longitude; beyond, a plane misleads
MOST = 3  # axes of space

METRE = ("m", "metre", "metres", "meter", "meters")
LATITUDE = ("lat", "latitude", "degrees_north", "degree_north")
LONGITUDE = ("lon", "longitude", "degrees_east", "degree_east")
PLANE = (
    *("x", "y", "xc", "yc", "easting", "northing", "rlon", "rlat"),
    *("projection_x_coordinate", "projection_y_coordinate", "grid_longitude", "grid_latitude"),
)


@dataclass(frozen=True)
class Space:
    """Where the frames of a field live.

    Attributes:
        dims: the names of its axes.
        grid: of the cells, in the units of the coordinates, or in metres if they are geographic.
        areas: of the cells relative to the grid's, (n_1 or 1, …).
        speeds: what velocities on the grid are multiplied by along each axis, (n_1 or 1, …) each.
        units: of lengths, as far as the coordinates tell.
    """

    dims: tuple[Hashable, ...]
    grid: Grid
    areas: np.ndarray
    speeds: tuple[np.ndarray, ...]
    units: str


def check_field(field: xr.DataArray) -> None:
    """Refuse a field without numbers, or of unknown size."""
    if field.dtype.kind not in "iuf":
        raise InputError(f"The field holds {field.dtype}, not numbers; convert it: .astype(float).")
    if any(np.isnan(n) for n in field.shape):
        raise InputError(
            "The field has chunks of unknown size; let Dask find them: "
            "field.data.compute_chunk_sizes()."
        )


def time_of(field: xr.DataArray, given: Hashable | None) -> Hashable:
    """The dimension along which the field changes: as given, or the only one that holds dates."""
    if given is not None:
        _check_dims(field, [given])
        return given
    dated = [
        dim for dim in field.dims if dim in field.coords and field[dim].dtype.kind in "mMO"
    ] or [dim for dim in field.dims if dim in ("time", "t")]
    if len(dated) != 1:
        raise InputError(
            f"Of {_listed(field.dims)} it is not clear which dimension is time; "
            + either("name it: dim='time'.", "name it with --time.")
        )
    return dated[0]


def space_of(
    field: xr.DataArray, time: Hashable | None, given: Iterable[Hashable] | Hashable | None
) -> tuple[Hashable, ...]:
    """The dimensions of space in the field's order: as given, or those with names of a plane."""
    if given is None:
        found = tuple(dim for dim in field.dims if dim != time and _says(field, dim, *_SPATIAL))
        if not found:
            others = [dim for dim in field.dims if dim != time]
            raise InputError(
                f"None of the dimensions {_listed(others)} is called like space (x, y, lat, lon); "
                + either("name them: space=('row', 'column').", "name them: --space row,column.")
            )
    else:
        named: list[Hashable] = [given] if isinstance(given, str) else []
        if not named:
            named = list(given) if isinstance(given, Iterable) else [given]
        _check_dims(field, named)
        found = tuple(dim for dim in field.dims if dim in named)
    if time in found:
        raise InputError(f"{time!r} is named as time and as space; name other dimensions as space.")
    if not 1 <= len(found) <= MOST:
        raise InputError(
            f"Space has the dimensions {_listed(found)}; give one to three of them as space."
        )
    return found


def placed(field: xr.DataArray, dims: tuple[Hashable, ...], geographic: bool | None) -> Space:
    """The grid of the cells around the coordinates; cells of no coordinate have the length one.

    On geographic coordinates a degree of longitude is as long as it is on the middle latitude, and
    the cells of a latitude φ hold cos φ / cos φ_middle of what their density says.
    """
    axes = [_axis(field, dim) for dim in dims]
    latitude, longitude = (
        [k for k, dim in enumerate(dims) if _says(field, dim, *words)]
        for words in (LATITUDE, LONGITUDE)
    )
    on_globe = bool(latitude and longitude) if geographic is None else geographic
    if not on_globe:
        _check_units(field, dims)
        signs = tuple(np.full((1,) * len(dims), axis.sign) for axis in axes)
        units = str(field[dims[0]].attrs.get("units", "")) if dims[0] in field.coords else ""
        return Space(dims, _grid(axes), np.ones((1,) * len(dims)), signs, units)
    if len(latitude) != 1 or len(longitude) != 1:
        raise GridError(
            f"geographic needs one latitude and one longitude among {_listed(dims)}; "
            "set the attribute units of the coordinates to degrees_north and degrees_east."
        )
    for k, dim in enumerate(dims):
        units = field[dim].attrs.get("units", "m") if dim in field.coords else "m"
        if k not in (*latitude, *longitude) and units not in METRE:
            raise GridError(
                f"On the globe lengths are metres, and {dim!r} is in {units}; convert it to m."
            )
    return _on_globe(dims, axes, latitude[0], longitude[0])


@dataclass(frozen=True)
class _Axis:
    """Centres of cells that lie evenly."""

    centres: np.ndarray  # (n,)
    step: float  # negative where they descend

    @property
    def sign(self) -> float:
        return np.sign(self.step)

    def ends(self, scale: float = 1.0) -> tuple[float, float]:
        """Of the box around the cells."""
        half = abs(self.step) / 2
        low, high = sorted((self.centres[0], self.centres[-1]))
        return scale * (low - half), scale * (high + half)


def _axis(field: xr.DataArray, dim: Hashable) -> _Axis:
    """The cells along a dimension; refuses those that are not even."""
    count = field.sizes[dim]
    if count < 2:
        raise GridError(
            f"{dim!r} has {count} cell; space needs two cells or more along every axis."
        )
    if dim not in field.coords:
        return _Axis(np.arange(count, dtype=float), 1.0)
    values = field[dim].values
    if values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise GridError(
            f"The coordinate {dim!r} does not hold finite numbers; "
            f"assign some: .assign_coords({dim}=...), or leave the dimension without coordinate."
        )
    centres = values.astype(float)
    step = float(centres[-1] - centres[0]) / (count - 1)
    even = centres[0] + step * np.arange(count)
    rounding = 4 * np.finfo(values.dtype).eps if values.dtype.kind == "f" else 0.0
    allowed = UNEVEN * abs(step) + rounding * np.abs(centres).max()
    worst = int(np.abs(centres - even).argmax())
    if step == 0 or abs(centres[worst] - even[worst]) > allowed:
        if _says(field, dim, *LONGITUDE) and (np.diff(centres) < 0).sum() == 1:
            raise GridError(
                f"The coordinate {dim!r} jumps from {centres.max():g} to {centres.min():g}; count "
                f"it from the other side: .assign_coords({dim}=(field.{dim} + 180) % 360 - 180)."
            )
        raise GridError(
            f"The coordinate {dim!r} is not evenly spaced: {centres[worst]:g} stands where "
            f"{even[worst]:g} is due; bring the field to even cells first, such as .interp({dim}="
            f"np.linspace({centres[0]:g}, {centres[-1]:g}, {count}))."
        )
    return _Axis(centres, step)


def _grid(axes: list[_Axis], scales: Sequence[float] | None = None) -> Grid:
    scales = scales or [1.0] * len(axes)
    ends = [axis.ends(scale) for axis, scale in zip(axes, scales, strict=True)]
    shape = [len(axis.centres) for axis in axes]
    return Grid(shape, [low for low, _ in ends], [high for _, high in ends])


def _on_globe(
    dims: tuple[Hashable, ...], axes: list[_Axis], latitude: int, longitude: int
) -> Space:
    """A plane in metres that touches the globe along the middle latitude."""
    low, high = axes[latitude].ends()
    middle = np.cos(np.radians((low + high) / 2))
    widths = np.cos(np.radians(axes[latitude].centres)) / middle
    if low < -90 or high > 90 or not 1 / STRETCH <= widths.min() <= widths.max() <= STRETCH:
        raise GridError(
            f"The latitudes {low:g} to {high:g} do not fit a plane: a degree of longitude is "
            f"{widths.min():.2g} to {widths.max():.2g} times as long as in the middle; take a "
            "smaller region, reproject it, or give "
            + either("geographic=False for a plane of degrees.", "--plane for a plane of degrees.")
        )
    along = tuple(-1 if k == latitude else 1 for k in range(len(dims)))
    areas = widths.reshape(along)
    scales = [1.0] * len(dims)
    scales[latitude], scales[longitude] = METRES, METRES * middle
    speeds = [np.full((1,) * len(dims), axis.sign) for axis in axes]
    speeds[longitude] = speeds[longitude] * areas
    return Space(dims, _grid(axes, scales), areas, tuple(speeds), "m")


def _check_units(field: xr.DataArray, dims: tuple[Hashable, ...]) -> None:
    """Refuse lengths that cannot be compared."""
    known = {dim: field[dim].attrs.get("units") for dim in dims if dim in field.coords}
    known = {dim: units for dim, units in known.items() if units is not None}
    degrees = {"degrees_north", "degrees_east", "degree_north", "degree_east"}
    if len({"degrees" if units in degrees else units for units in known.values()}) > 1:
        told = ", ".join(f"{dim!r} in {units}" for dim, units in known.items())
        raise GridError(
            f"The axes of space have different units, {told}; convert them to one: transport "
            "compares lengths along all axes."
        )


_SPATIAL = (*LATITUDE, *LONGITUDE, *PLANE)


def _says(field: xr.DataArray, dim: Hashable, *words: str) -> bool:
    """Whether a dimension's name, or an attribute of its coordinate, is one of these words."""
    attributes = field[dim].attrs if dim in field.coords else {}
    told = (dim, attributes.get("standard_name"), attributes.get("units"))
    return any(isinstance(word, str) and word.lower() in words for word in told)


def _check_dims(field: xr.DataArray, named: Sequence[Hashable]) -> None:
    for dim in named:
        if dim not in field.dims:
            raise InputError(
                f"The field has no dimension {short_repr(dim)}; its dimensions are "
                f"{_listed(field.dims)}."
            )


def _listed(dims: Sequence[Hashable]) -> str:
    return ", ".join(map(str, dims)) or "(none)"


# ---- Moments in time: between which frames they lie, and how far on the way.


Outside = Literal["refuse", "nan"]
SECOND = np.timedelta64(1, "s")


@dataclass(frozen=True)
class Moments:
    """Moments as places between frames.

    Attributes:
        frame: the last frame that is not later, (T,).
        share: of the way from there to the next frame, (T,), 0 ≤ share ≤ 1; NaN for a moment
            outside of all frames.
    """

    frame: np.ndarray
    share: np.ndarray

    def __len__(self) -> int:
        return len(self.frame)

    def chosen(self, which: Any, first: int) -> Moments:
        """Some of them, among frames that begin with number `first`."""
        return Moments(self.frame[which] - first, self.share[which])

    def with_next(self, frames: int) -> Moments:
        """The same with a next frame for each: the last frame is the end of the pair before it."""
        last = self.frame == frames - 1
        return Moments(self.frame - last, np.where(last, 1.0, self.share))


def starts(frames: int) -> Moments:
    """One moment for every pair of neighbouring frames."""
    return Moments(np.arange(frames - 1), np.zeros(frames - 1))


def located(times: np.ndarray, asked: np.ndarray, outside: Outside) -> Moments:
    """Where the moments `asked` (T,) lie between `times` (n,), which ascend.

    A moment that is one of the times has share 0, exactly: dates are compared as whole numbers.
    """
    old, new = comparable(times, asked)
    frame = np.searchsorted(old, new, side="right") - 1
    beyond = (new < old[0]) | (new > old[-1])
    if beyond.any() and outside == "refuse":
        raise InputError(
            f"The time {asked[beyond][0]} is outside of the field's, {times[0]} to {times[-1]}; "
            "leave it out, or give outside='nan' for a frame without values."
        )
    share = np.where(beyond, np.nan, 0.0)
    between = ~beyond & (frame < len(old) - 1)
    here = frame[between]
    share[between] = (new[between] - old[here]) / (old[here + 1] - old[here])
    return Moments(np.where(beyond, 0, frame), share)


def durations(times: np.ndarray) -> np.ndarray:
    """From each time to the next, (n − 1,): in seconds for dates, else in the times' own units."""
    steps = np.diff(times)
    if steps.dtype.kind == "m":
        return steps / SECOND
    if steps.dtype.kind == "O":  # of calendars that NumPy does not know
        return np.array([step.total_seconds() for step in steps])
    return steps.astype(float)


def is_dated(times: np.ndarray) -> bool:
    """Whether times are dates or durations, and not plain numbers."""
    return times.dtype.kind in "mMO"


def comparable(times: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as numbers of one unit; whole ones for dates."""
    kinds = {array.dtype.kind for array in (times, asked)}
    if kinds <= {"m"} or kinds <= {"M"}:
        common = np.promote_types(times.dtype, asked.dtype)
        old, new = (array.astype(common) for array in (times, asked))
        check_known(old, "The field's times")
        check_known(new, "The times asked for")
        return old.astype(np.int64), new.astype(np.int64)
    if kinds == {"O"}:
        old, new = (_microseconds(array, times[0]) for array in (times, asked))
        return old, new
    if kinds <= set("iuf"):
        old, new = times.astype(float), asked.astype(float)
        check_known(old, "The field's times")
        check_known(new, "The times asked for")
        return old, new
    raise InputError(
        f"The field's times are {times.dtype} and those asked for {asked.dtype}; "
        "give dates where the field has dates, and numbers where it has numbers."
    )


def check_known(times: np.ndarray, whose: str) -> None:
    """Refuse dates and numbers that are none."""
    unknown = np.isnat(times) if times.dtype.kind in "mM" else ~np.isfinite(times)
    if unknown.any():
        raise InputError(f"{whose} hold {int(unknown.sum())} without a value; leave these out.")


def _microseconds(array: np.ndarray, origin: object) -> np.ndarray:
    """Since the origin, as whole numbers."""
    try:
        steps = (array - origin).tolist()
        return np.array([(s.days * 86400 + s.seconds) * 10**6 + s.microseconds for s in steps])
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(
            "The times are neither numbers nor dates of one calendar; decode them first: "
            "xr.decode_cf(dataset)."
        ) from error


# ---- Times at even steps, from the first frame to the last.


MOST_STEPS = 10**7  # times
ROUNDING = 1e-6  # of a step: numbers that are no further from a frame's time stand for it


def stepped(times: np.ndarray, every: str) -> np.ndarray:
    """From the first of `times` to the last, which they may not hit.

    Args:
        times: that ascend, (n,): dates, durations or numbers.
        every: the step, such as "2min", or a number where times are numbers.
    """
    kind = times.dtype.kind
    step: Any = _number(every) if kind in "iuf" else _duration(every)
    if kind in "mM":
        step = step.to_timedelta64()
        times = times.astype(np.promote_types(times.dtype, f"{kind}8[{np.datetime_data(step)[0]}]"))
    elif kind == "O":
        step = max(step.to_pytimedelta(), timedelta.resolution)
    count = float((times[-1] - times[0]) / step)
    if not count < MOST_STEPS:
        raise InputError(f"--every {every} makes {count:.3g} frames; give a longer step.")
    found = times[0] + np.arange(int(count + ROUNDING) + 1) * step
    return _on_frames(found, times.astype(float), step) if kind in "iuf" else found


def _on_frames(found: np.ndarray, times: np.ndarray, step: float) -> np.ndarray:
    """Numbers (T,) moved onto times of frames from which only rounding keeps them."""
    after = np.searchsorted(times, found).clip(max=len(times) - 1)
    nearest = np.where(
        np.abs(times[after] - found) < np.abs(times[after - 1] - found),
        times[after],
        times[after - 1],
    )
    return np.where(np.abs(nearest - found) <= ROUNDING * step, nearest, found)


def _number(every: str) -> float:
    try:
        step = float(every)
    except ValueError:
        step = np.nan
    if not 0 < step < np.inf:
        raise InputError(f"--every is {every!r} and times are numbers; give one above zero.")
    return step


def _duration(every: str) -> pd.Timedelta:
    try:
        step = pd.Timedelta(every)
        if isinstance(step, pd.Timedelta) and step > pd.Timedelta(0):
            return step
    except (ValueError, TypeError, OverflowError):
        pass
    raise InputError(f"--every is {every!r}; give a duration above zero, such as 2min or 6h.")
