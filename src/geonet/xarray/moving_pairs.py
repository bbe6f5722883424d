"""Pairs of frames that follow a motion, estimated or given, and totals between frames."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import xarray as xr

from geonet._utils import label_pair
from geonet._validation import is_number, short_repr
from geonet.api import geodesic
from geonet.errors import DensityError, GridError, InputError
from geonet.paths import Geodesic
from geonet.xarray.coordinates import (
    Space,
    TimeIndex,
    are_dates,
    format_time,
    pair_durations,
    to_numbers,
)
from geonet.xarray.motion import (
    BLEND,
    FLOW,
    CarriedFrame,
    Images,
    blend_carried,
    estimate_motion,
    extrapolate,
    share_lost,
)
from geonet.xarray.pairs import Pair, PairConfig
from geonet.xarray.units import LENGTHS, split_rate

Motion = Literal["estimate"] | xr.Dataset | None
COMPONENT = "_geonet_component"  # dimension of the displacements


@dataclass(frozen=True)
class MotionConfig(PairConfig):
    """Settings for pairs that follow a motion.

    Attributes:
        without_reach: see `PairConfig`.
        is_given: true if displacements accompany the frames; false if they are estimated.
        speed_units: units of velocities, or "" if they have none.
    """

    without_reach: ClassVar[str] = "leave it out for the motion alone"

    is_given: bool = False
    speed_units: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.growth != "hellinger":
            raise InputError(
                f"growth is {self.growth!r}, and with a motion only 'hellinger' is possible; give "
                "motion=None for the geodesic of Wasserstein–Fisher–Rao."
            )
        if self.reach is None and (self.solver != "auto" or self.options):
            given = "solver" if self.solver != "auto" else ", ".join(self.options)
            raise InputError(
                f"{given} is for transport, which a motion without reach does not need; give "
                "motion=None for the geodesic (--motion none on the command line), or reach=..., "
                "too."
            )


class MovingPair(Pair):
    """Two frames, and the displacements from one to the other.

    Args:
        frames: the frames and their neighbours, (n, *space), or, with given displacements, (n,
            1 + d, *space), where a pair's displacements in cells accompany its first frame.
        config: settings.
        describe: returns the label of a frame of the pair for error messages.
        durations: time between neighbouring frames, (n − 1,).
        position: number of the pair's first frame.
    """

    def __init__(
        self,
        frames: np.ndarray,
        config: MotionConfig,
        describe: Callable[[int], str],
        durations: np.ndarray,
        position: int = 0,
    ):
        self._given = frames[position, 1:] if config.is_given else None
        self._window = frames[:, 0] if config.is_given else frames
        self._durations, self._position = durations, position
        pair = self._window[position : position + 2]
        super().__init__(pair, config, describe, durations[position:])

    def velocity(self, fractions: np.ndarray) -> np.ndarray:
        """Return the velocity of the motion, (T, d, *space).

        It is NaN in the gaps of either frame, and everywhere if a frame is empty.
        """
        grid = self._space.grid
        result = np.full((len(fractions), grid.dimension, *grid.shape), np.nan)
        if not self.is_faded:
            for k, (step, speed) in enumerate(zip(grid.spacing, self._space.speeds, strict=True)):
                component = self.motion[k] * step * speed / self.duration
                component = np.where(self._filled_frames[1], np.nan, component)
                result[~np.isnan(fractions), k] = component
        return result

    def nowcast(self, fractions: np.ndarray) -> np.ndarray:
        """Return the last frame, carried to fractions above one, (T, *space)."""
        if self.is_faded:
            return np.repeat(self._last[None], len(fractions), axis=0)
        frames = [extrapolate(self._frame_splines[1], self.motion, float(t)) for t in fractions]
        return np.array(frames)

    @property
    def is_faded(self) -> bool:
        """True if a frame is empty, so that no motion can be estimated."""
        return self._given is None and super().is_faded

    @property
    def has_converged(self) -> bool:
        """False if the transport of the remainder did not reach its tolerance."""
        if self._config.reach is None or self.is_faded:
            return True
        return self._remainder is None or bool(self._remainder.info.get("converged", True))

    @cached_property
    def motion(self) -> np.ndarray:
        """Displacements from the first to the second frame, (d, *space), in cells."""
        if self._config.reach is None or self.is_faded:
            return self._flow
        return self._flow + self._match_remainder(self._flow)

    @cached_property
    def _flow(self) -> np.ndarray:
        """The estimated or given motion, (d, *space), in cells."""
        return self._estimate() if self._given is None else self._check_given()

    @property
    def steps(self) -> int:
        """Number of frames that resolve the motion in time."""
        longest = 0.0 if self.is_faded else float(np.abs(self.motion).max())
        return int(np.clip(np.ceil(2 * longest), 4, 48))

    @cached_property
    def _value_mask(self) -> np.ndarray:
        """Cells with a value, (2, *space)."""
        if is_number(self._config.missing):
            return np.ones(self._frames.shape, bool)
        return ~np.isnan(self._frames)

    @cached_property
    def _frame_splines(self) -> tuple[CarriedFrame, CarriedFrame]:
        periodic = self._space.grid.periodic
        frames = zip(self._values, self._value_mask, strict=True)
        first, second = (CarriedFrame(values, known, periodic) for values, known in frames)
        return first, second

    @cached_property
    def _values(self) -> np.ndarray:
        """Frames with zeros, or the number for missing cells, instead of NaN."""
        _ = self._filled_frames  # checks them
        frames = self._frames.astype(np.float64)
        return np.where(self._value_mask, self._fill_gaps(frames), 0.0)

    def _fill_gaps(self, frames: np.ndarray) -> np.ndarray:
        """Replace NaN if `missing` is a number."""
        missing = self._config.missing
        return np.where(np.isnan(frames), missing, frames) if is_number(missing) else frames

    @property
    def _last(self) -> np.ndarray:
        return np.where(self._value_mask[1], self._values[1], np.nan)

    def _move(self, fractions: np.ndarray) -> np.ndarray:
        if self.is_faded:
            return super()._move(fractions)
        gaps = self._filled_frames[1]
        last = np.where(gaps, np.nan, self._values[1])
        frames = np.array(
            [
                last
                if t == 1
                else blend_carried(*self._frame_splines, self.motion, float(t), self._space.areas)
                for t in fractions
            ]
        )
        if self._config.mass == "given":
            return frames
        totals = self._integrate(np.nan_to_num(frames))
        scale = np.divide(1.0, totals, out=np.zeros_like(totals), where=totals > 0)
        return frames * scale.reshape(-1, *(1,) * (frames.ndim - 1))

    def _estimate(self) -> np.ndarray:
        frames = self._values
        for k in range(2):
            values = frames[k][self._value_mask[k]]
            if values.min() == values.max():
                raise DensityError(
                    f"{self._describe(k)} has the same value in all cells, so no motion can be "
                    "seen; give a Dataset of velocities as motion, or motion=None."
                )
        pairs = [Images.from_frames(frames, self._value_mask, 1.0, 1.0)]
        for k in (self._position - 1, self._position + 1):
            window = self._window[k : k + 2].astype(np.float64) if k >= 0 else np.empty(0)
            if len(window) == 2:
                window = self._fill_gaps(window)
                known = np.isfinite(window) & (window >= 0)
                scale = float(self._durations[k] / self.duration)
                weight = FLOW.neighbour * min(1.0, 1 / scale)
                pairs.append(Images.from_frames(np.where(known, window, 0), known, scale, weight))
        return estimate_motion(pairs, self._space.grid.periodic)

    def _check_given(self) -> np.ndarray:
        motion = np.asarray(self._given, dtype=np.float64)
        if not np.isfinite(motion).all():
            raise InputError(
                f"The motion has {int((~np.isfinite(motion)).sum())} components without a finite "
                f"value between {self._describe(0)} and {self._describe(1)}; fill them first, such "
                "as by motion.fillna(0)."
            )
        lost = share_lost(motion, self._space.grid.periodic)
        if lost > BLEND.max_lost:
            raise InputError(self._describe_excess(motion, lost))
        return motion

    def _describe_excess(self, motion: np.ndarray, lost: float) -> str:
        """Return the message on a given motion that takes too many cells out of the map."""
        space = self._space
        longest = np.abs(motion).reshape(len(motion), -1).max(axis=1)
        is_open = ~np.array(space.grid.periodic)
        k = int(np.argmax(is_open * longest / motion.shape[1:]))
        speed = np.abs(motion[k] * space.grid.spacing[k] * space.speeds[k] / self.duration).max()
        units = f" {self._config.speed_units}" if self._config.speed_units else ""
        name = f"velocity_{space.dims[k]}"
        return (
            f"{name} of up to {speed:.3g}{units} moves {longest[k]:.3g} cells from "
            f"{self._describe(0)} to {self._describe(1)}, and the map has {motion.shape[k + 1]}: "
            f"{100 * lost:.0f} % of the cells come from outside of the map and leave it; check the "
            f"units of {name}, or give frames at shorter intervals."
        )

    @cached_property
    def _remainder(self) -> Geodesic | None:
        """Path between both frames carried to the middle; None if one of them left the box."""
        motion = self._flow
        cells, masses = np.indices(motion.shape[1:], dtype=np.float64), []
        for frame, sign in zip(self._frame_splines, (-0.5, 0.5), strict=True):
            places = cells + sign * motion
            masses.append(np.where(frame.lies_in_gap(places), 0.0, frame.evaluate(places)))
        if not all(mass.any() for mass in masses):
            return None
        first, second = (self._to_density(mass) for mass in masses)
        with label_pair(f"{self._describe(0)} to {self._describe(1)}"):
            return geodesic(first, second, self._config.solver, **self._config.options)

    def _match_remainder(self, motion: np.ndarray) -> np.ndarray:
        """Return the displacements between both frames carried to the middle, in cells.

        They are added to the motion, so that frames are interpolated once.
        """
        grid = self._space.grid
        if self._remainder is None:
            return np.zeros_like(motion)
        found = np.asarray(self._remainder.velocity(0.5, grid.points()))
        return np.moveaxis(found, -1, 0) / np.reshape(grid.spacing, (-1, *(1,) * grid.dimension))


# ---- Given velocities


def check_motion(motion: Any, can_be_none: bool = True) -> None:
    """Raise InputError unless it is "estimate", a Dataset or None."""
    if (motion is None and can_be_none) or isinstance(motion, xr.Dataset):
        return
    if not (isinstance(motion, str) and motion == "estimate"):
        last = ", or None for the geodesic" if can_be_none else ""
        raise InputError(
            f"motion is {short_repr(motion)}; give 'estimate' or a Dataset of velocities{last}."
        )


def displacements(motion: xr.Dataset, field: xr.DataArray, time: Any, space: Space) -> xr.DataArray:
    """Return the displacements in cells from each frame to the next, (time, component, *space).

    They may have further dimensions of the field, such as members. The last frame repeats those of
    the pair before it.

    Args:
        motion: velocities `velocity_x`, … as from `FieldAccessor.velocity`. With times they are
            interpolated linearly to the middle of each pair.
        field: frames in the order of their times.
        time: its time dimension.
        space: its spatial grid.
    """
    times = field[time].values
    seconds = pair_durations(times)
    has_units = bool(space.units) and are_dates(times)
    components = []
    for k, dim in enumerate(space.dims):
        name = f"velocity_{dim}"
        if name not in motion.data_vars:
            raise InputError(
                f"The motion has no variable {name!r} but {', '.join(map(str, motion.data_vars))}; "
                "rename its variables to velocity_ and the names of the spatial dimensions."
            )
        component = motion[name]
        _check_cells(component, field, space, time)
        factor = _speed_factor(component, space.units) if has_units else 1.0
        component = component.drop_vars([n for n in component.coords if n not in component.dims])
        component = _at_pairs(component.astype(float), times, time)
        speed = xr.DataArray(space.speeds[k], dims=space.dims)
        cells = factor / space.grid.spacing[k]
        duration = xr.DataArray(np.append(seconds, seconds[-1]), dims=time)
        spatial = {d: field[d] for d in space.dims if d in field.coords}
        scaled = component.assign_coords(spatial) * (cells * duration)
        components.append(scaled / (speed if speed.size > 1 else float(speed.values.item())))
    result = xr.concat(components, COMPONENT, coords="minimal", compat="override")
    return result.assign_coords({time: times})


def select_later(motion: xr.Dataset, times: np.ndarray, time: Any) -> xr.Dataset:
    """Return the first velocities if all are later than the middle of the last pair.

    Others are returned as they are.
    """
    if time not in motion.coords or time not in motion.dims:
        return motion
    motion = motion.sortby(time)
    own, frames = to_numbers(motion[time].values, times)
    return motion.isel({time: [0]}) if own[0] > (frames[-2] + frames[-1]) / 2 else motion


def _check_cells(component: xr.DataArray, field: xr.DataArray, space: Space, time: Any) -> None:
    """Raise an error if velocities do not lie on the cells of the field."""
    name = component.name
    if component.dtype.kind not in "iuf":
        raise InputError(
            f"{name} holds {component.dtype}, not numbers; convert it: .astype(float)."
        )
    for dim in space.dims:
        sizes = component.sizes.get(dim), field.sizes[dim]
        if sizes[0] != sizes[1]:
            raise GridError(
                f"{name} has {sizes[0] or 'no'} cells along {dim!r} and the field {sizes[1]}; "
                "interpolate it: motion.interp_like(field)."
            )
        if dim in component.coords and dim in field.coords:
            own, other = component[dim].values, field[dim].values
            step = abs(float(other[-1] - other[0])) / (len(other) - 1)
            if not np.allclose(own, other, rtol=0, atol=0.01 * step):
                raise GridError(
                    f"{name} and the field have different coordinates along {dim!r}; interpolate "
                    "it: motion.interp_like(field)."
                )
    if unknown := [d for d in component.dims if d not in field.dims]:
        raise InputError(
            f"{name} has the dimension {unknown[0]!r}, which the field lacks; select one of its "
            f"labels: motion.isel({unknown[0]}=0)."
        )
    if time in component.dims and time not in component.coords and component.sizes[time] > 1:
        raise InputError(
            f"{name} has several times and no coordinate {time!r}; assign it: "
            f".assign_coords({time}=...)."
        )


def _at_pairs(component: xr.DataArray, times: np.ndarray, time: Any) -> xr.DataArray:
    """Return velocities in the middle of each pair, and the last ones once more, along time."""
    if time not in component.dims:
        return component
    if component.sizes[time] == 1:
        return component.isel({time: 0}, drop=True)
    component = component.sortby(time)
    own, frames = to_numbers(component[time].values, times)
    middle = (frames[:-1] + frames[1:]) / 2
    outside = (middle < own[0]) | (middle > own[-1])
    if outside.any():
        raise InputError(
            f"The motion holds {format_time(component[time].values[0])} to "
            f"{format_time(component[time].values[-1])}, but {int(outside.sum())} of {len(middle)} "
            f"pairs of frames, the first one after {format_time(times[:-1][outside][0])}, lie "
            "outside of it; give velocities for all times, or one without time."
        )
    middle = np.append(middle, middle[-1])
    before = np.clip(np.searchsorted(own, middle, side="right") - 1, 0, len(own) - 2)
    weight = xr.DataArray((middle - own[before]) / (own[before + 1] - own[before]), dims=time)
    component = component.drop_vars(time)
    return (
        component.isel({time: before}) * (1 - weight) + component.isel({time: before + 1}) * weight
    )


def _speed_factor(component: xr.DataArray, length: str) -> float:
    """Return the factor from velocities to lengths of the coordinates per second."""
    given = component.attrs.get("units")
    amount, duration = split_rate(given) if isinstance(given, str) else ("", 0.0)
    lengths = (LENGTHS.get(amount), LENGTHS.get(length))
    if duration and amount == length:
        return 1 / duration
    if duration and lengths[0] and lengths[1]:
        return lengths[0] / lengths[1] / duration
    raise InputError(
        f"{component.name} has the units {given!r}, and the coordinates of the field are in "
        f"{length}; convert it to {length} s-1 and set its attribute units."
    )


# ---- Totals


@dataclass(frozen=True)
class Pieces:
    """Intervals of time, cut at the frames.

    Attributes:
        edges: the ends of all intervals, (n + 1,).
        index: positions of the start and the end of every piece, alternating.
        counts: number of pieces of each interval, (n,).
    """

    edges: np.ndarray
    index: TimeIndex
    counts: np.ndarray

    @classmethod
    def from_edges(cls, times: np.ndarray, edges: np.ndarray) -> Pieces:
        """Cut the intervals between ascending edges at the times of the frames."""
        if len(edges) < 2:
            raise InputError(
                f"The field covers {format_time(times[0])} to {format_time(times[-1])}, which is "
                "less than one interval; give a shorter one as every."
            )
        inner = times[(times > edges[0]) & (times < edges[-1])]
        cuts = np.unique(np.concatenate([edges, inner]))
        starts = TimeIndex.locate(times, cuts[:-1], "raise")
        ends = TimeIndex.locate(times, cuts[1:], "raise")
        at_frame = ends.fraction == 0
        until = np.where(at_frame, 1.0, ends.fraction)
        frame = np.repeat(starts.frame, 2)
        fraction = np.stack([starts.fraction, until], 1).reshape(-1)
        counts = np.diff(np.searchsorted(cuts[:-1], edges))
        return cls(edges, TimeIndex(frame, fraction), counts)

    def sum(self, values: Any, axis: int) -> Any:
        """Return the sum over the pieces of each interval of the differences of its values."""
        if hasattr(values, "dask"):
            sizes = tuple(int(2 * n) for n in self.counts)
            chunks = [(1,) * len(sizes) if k == axis else c for k, c in enumerate(values.chunks)]
            parts = values.rechunk({axis: sizes})
            return parts.map_blocks(_sum_piece, axis, dtype=values.dtype, chunks=tuple(chunks))
        stops = np.cumsum(2 * self.counts)
        parts = np.split(values, stops[:-1], axis)
        return np.concatenate([_sum_piece(part, axis) for part in parts], axis)


def _sum_piece(values: np.ndarray, axis: int) -> np.ndarray:
    starts = values.take(range(0, values.shape[axis], 2), axis)
    ends = values.take(range(1, values.shape[axis], 2), axis)
    return (ends - starts).sum(axis, keepdims=True)


def integrate(pair: Pair, fractions: np.ndarray, default_steps: int = 12) -> np.ndarray:
    """Return the integral over time from the first frame to each fraction, (T, *space).

    The midpoint rule with enough frames for the motion: about two for each cell of the way.
    """
    steps = pair.steps if isinstance(pair, MovingPair) else default_steps
    cuts = np.unique(np.concatenate([[0.0], fractions]))
    total = np.zeros(pair.shape)
    totals = {0.0: total}
    for start, stop in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        count = max(1, int(np.ceil((stop - start) * steps)))
        middles = start + (np.arange(count) + 0.5) * (stop - start) / count
        for middle in middles:
            frame = pair.interpolate(np.array([middle]))[0]
            total = total + frame * (pair.duration * (stop - start) / count)
        totals[stop] = total
    return np.array([totals[t] for t in fractions.tolist()])
