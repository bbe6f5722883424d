"""A field as frames in the order of their times, of which questions are asked."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from geonet.arguments import check_word
from geonet.errors import InputError
from geonet.xarray.all_pairs import Labels, answered
from geonet.xarray.axes import check_field, time_of
from geonet.xarray.like_interp import Template, like_interp
from geonet.xarray.moments import Moments, Outside, comparable, durations, located, starts
from geonet.xarray.questions import Question

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
        check_word(outside, ("refuse", "nan"), "outside")
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
