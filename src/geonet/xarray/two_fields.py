"""Two fields with the same spatial coordinates: their geodesic, and the score of a forecast."""

from __future__ import annotations

from collections.abc import Hashable
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
    Periodic,
    Space,
    TimeIndex,
    check_field,
    spatial_dims,
    spatial_grid,
)
from geonet.xarray.groups import FrameQuery
from geonet.xarray.pairs import SCORE_FIELDS, Pair, PairConfig, ScoreConfig
from geonet.xarray.series import FrameSeries


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
    reach: float | None = None,
    growth: str = "hellinger",
    periodic: Periodic = False,
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
    series, grid = pair_series(first, second, space, geographic, periodic)
    config = PairConfig(grid, missing, mass, solver, options, reach, growth)
    t = check_times(times)[0].numpy()  # pyright: ignore[reportArgumentType]
    query = FrameQuery(Pair.interpolate, config, grid.grid.shape, group=Pair)
    values = series.evaluate(TimeIndex.locate(series.times, t, "raise"), query)
    others = [d for d in series.field.dims if d not in (series.time, *grid.dims)]
    result = xr.DataArray(values, dims=[*others, dim, *grid.dims], attrs=first.attrs)
    order = [dim, *(d for d in first.dims if d in result.dims)]
    coords = series.field.isel({series.time: 0}, drop=True).coords
    result = result.transpose(*order, ...).assign_coords(coords).assign_coords({dim: t})
    result = result.rename(first.name)
    return result.isel({dim: 0}) if np.ndim(times) == 0 else result


def displacement_score(
    forecast: xr.DataArray,
    observed: xr.DataArray,
    *,
    reach: float,
    space: Dims = None,
    geographic: bool | None = None,
    missing: Missing = "raise",
    periodic: Periodic = False,
    **options: Any,
) -> xr.Dataset:
    """Score a forecast by how far its mass is displaced, and how much of it is wrong.

    The forecast μ_0 and the observation μ_1 are matched by the plan π of least cost

        ∫½|x − y|²dπ + λ·KL(π_0|μ_0) + λ·KL(π_1|μ_1)        λ = reach²/2

    for each time, member, …. Mass moves if its partner is within about the reach. The result has
    the variables

    - `displacement`, the integral, `amplitude`, both other terms, and `cost`, their sum, in units
      of mass times length squared;
    - `transported_share`, the mass of π relative to the mean of both masses; one minus this is the
      cost divided by λ and by both masses, which is zero for a perfect forecast and one if nothing
      is matched;
    - `mean_displacement`, the mean of |x − y| over π, in the units of the coordinates, or in metres
      if they are geographic; NaN if one of both is empty;
    - `missed_mass`, which is observed, but not forecast where π matches it, and `false_mass`, which
      is forecast only. Their difference is the difference of both totals;
    - `converged`, false if the solver did not reach its tolerance.

    Args:
        forecast: the forecast.
        observed: the observation with the same spatial coordinates. Further dimensions are matched
            by name, so that one observation may be compared with all members of an ensemble.
        reach: length over which a displaced forecast counts as displaced, in the units of the
            coordinates, or in metres if they are geographic.
        space: see `FieldAccessor.interp`, as for all further arguments.
        geographic: whether space is latitude and longitude in degrees.
        missing: cells without a value: "raise" an error; "exclude" cells that are missing in either
            field from both; or a number to fill them with.
        periodic: names of the spatial dimensions whose ends meet.
        **options: options of the solver `midpoint`, such as `tolerance=1e-4`.
    """
    if reach is None:
        raise InputError("reach is None; give the length over which displaced mass is matched.")
    if "growth" in options:
        raise InputError(
            "displacement_score uses Gaussian–Hellinger transport, whose cost has a part for "
            "displacement and one for amplitude; leave growth out."
        )
    series, grid = pair_series(
        forecast, observed, space, geographic, periodic, ("the forecast", "the observation")
    )
    config = ScoreConfig(grid, missing, "given", "midpoint", options, reach)
    rows = series.evaluate_pairs(FrameQuery(Pair.score, config, dtype=SCORE_FIELDS, group=Pair))
    rows = rows.isel({series.time: 0}, drop=True)
    names = SCORE_FIELDS.names or ()
    result = xr.Dataset({name: rows.copy(data=rows.data[name]) for name in names})
    result["mean_displacement"].attrs = grid.describe_length("mean displacement")
    return result.assign_attrs(reach=float(reach))


def pair_series(
    first: xr.DataArray,
    second: xr.DataArray,
    space: Dims,
    geographic: bool | None,
    periodic: Periodic,
    names: tuple[str, str] = ("the first field", "the second field"),
) -> tuple[FrameSeries, Space]:
    """Return two fields as a series of two frames at times 0 and 1, and their common grid.

    The second field gets the first one's order of spatial coordinates.
    """
    for field, name in zip((first, second), names, strict=True):
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
    here, there = (spatial_grid(field, dims, geographic, periodic) for field in (first, second))
    if not here.grid.same_box(there.grid):
        raise GridError(
            f"The fields lie on different boxes: {here.grid} and {there.grid}; {remedy}."
        )
    kept = _common_coords(first, second)
    both = [d for d in dims if d in first.coords and d in second.coords]
    is_reversed = {d: (first[d][-1] > first[d][0]) != (second[d][-1] > second[d][0]) for d in both}
    second = second.isel({d: slice(None, None, -1) for d in both if is_reversed[d]})
    second = second.drop_vars([name for name in second.coords if name not in second.dims])
    second = second.assign_coords({d: first[d].variable for d in dims if d in first.coords})
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
    frames = frames.assign_coords(kept).assign_coords({time: [0.0, 1.0]})
    return FrameSeries(frames, time, names), here


def _common_coords(first: xr.DataArray, second: xr.DataArray) -> dict[Hashable, xr.Variable]:
    """Return the coordinates without a dimension of their own that hold for both fields.

    A coordinate of only one of them is kept unless it is a time.
    """

    def is_common(name: Hashable, coord: xr.DataArray) -> bool:
        if name in second.coords or name in second.dims:
            return name in second.coords and coord.variable.equals(second[name].variable)
        is_calendar = any(hasattr(value, "timetuple") for value in coord.values.flat)
        return coord.dtype.kind not in "mM" and not is_calendar

    own = {name: coord for name, coord in first.coords.items() if name not in first.dims}
    return {name: coord.variable for name, coord in own.items() if is_common(name, coord)}
