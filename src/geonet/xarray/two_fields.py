"""Two fields without time: the geodesic and the distance between them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from geonet.arguments import check_kind
from geonet.errors import GridError, InputError
from geonet.geodesics.base import check_times
from geonet.measures.density import Mass
from geonet.solvers.base import Solver
from geonet.threads import one_thread
from geonet.xarray.axes import Space, check_field, placed, space_of
from geonet.xarray.pair import Missing, Pair, Treatment
from geonet.xarray.questions import Frames

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
        check_kind(field, xr.DataArray, name, "give an xarray.DataArray")
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
