"""Coordinates, dimensions and type of an answer: those that `da.interp` itself would give."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from geonet.errors import InputError
from geonet.xarray.moments import check_known

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
