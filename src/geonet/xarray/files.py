"""NetCDF files and Zarr stores: opening fields, and writing interpolated frames resumably."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from warnings import catch_warnings, filterwarnings

import numpy as np
import xarray as xr

from geonet._files import atomic_write
from geonet.errors import FileError
from geonet.xarray.coordinates import Template, TimeIndex

Statistics = dict[str, float]  # largest values over all frames so far
Interp = Callable[[xr.DataArray, np.ndarray], tuple[xr.DataArray, Statistics]]


def open_field(file: Path, variable: str | None) -> tuple[xr.DataArray, dict[str, Any]]:
    """Return a field, which is read when it is used, and the attributes of its file.

    Args:
        file: a NetCDF file or a Zarr store.
        variable: the name of the field; None for the only one.
    """
    if not file.exists():
        raise FileError(f"There is no file {file}; check the path.")
    try:
        data = open_dataset(file)
    except Exception as error:  # broken files make the backends raise almost anything
        cause = " ".join(str(error).split())[:200].rstrip(".")
        raise FileError(
            f"Cannot read {file} as NetCDF or Zarr: {cause}; check that it is complete."
        ) from error
    names = [str(name) for name in data.data_vars if data[name].ndim > 1]
    if variable is None:
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise FileError(f"{file} holds the fields {listed}; choose one with --variable.")
        variable = names[0]
    if variable not in data.data_vars:
        raise FileError(f"{file} holds no {variable!r}; it holds {', '.join(names) or 'no field'}.")
    return data[variable], data.attrs


def open_dataset(file: Path) -> xr.Dataset:
    """Open a file with the bounds of cells and the grid mapping as coordinates."""
    with ignore_zarr_warnings():
        if file.suffix == ".zarr" or file.is_dir():
            return xr.open_zarr(file, chunks=None, decode_coords="all")
        return xr.open_dataset(file, decode_coords="all")


@contextmanager
def ignore_zarr_warnings() -> Iterator[None]:
    """Suppress warnings about unconsolidated metadata and about strings in stores."""
    with catch_warnings():
        filterwarnings("ignore", ".*(onsolidated metadata|Zarr (V3|format 3) specification)")
        yield


@dataclass(frozen=True)
class ResumableWriter:
    """Writer of a field's frames at other times, part by part; interrupted runs resume.

    The parts are written to a hidden Zarr store beside the output. The complete store is renamed to
    the output or copied to a NetCDF file. Values are written as floats, because values
    between two frames may not fit the integers into which a file packs them.

    Attributes:
        field: the opened field, which is read part by part.
        time: its time dimension.
        times: times to write, (T,), ascending.
        flag: the name of the boolean coordinate that `interp` adds.
        attrs: attributes of the file.
        output: the file, .nc or .zarr.
        job: plain data that identifies the job; only a store of the same job is resumed.
        max_values: most values in one part.
        max_pairs: most pairs of frames in one part.
    """

    field: xr.DataArray
    time: Hashable
    times: np.ndarray
    flag: str
    attrs: dict[str, Any]
    output: Path
    job: dict[str, Any]
    max_values: ClassVar[int] = 2**24
    max_pairs: ClassVar[int] = 32

    @property
    def folder(self) -> Path:
        """Hidden folder of the store and of its progress file."""
        return self.output.with_name(f".{self.output.name}.partial")

    @property
    def _store(self) -> Path:
        return self.folder / "store.zarr"

    @cached_property
    def parts(self) -> list[slice]:
        """Indices of the times of each part: all times of some pairs, or some of one pair."""
        most = max(1, self.max_values * self.field.sizes[self.time] // self.field.size)
        frame = TimeIndex.locate(self.field[self.time].values, self.times, "raise").frame
        parts, start, end, first = [], 0, 0, 0
        for pair, count in zip(*np.unique(frame, return_counts=True), strict=True):
            if end > start and (pair - first >= self.max_pairs or end + count - start > most):
                parts.append(slice(start, end))
                start = end
            first = pair if start == end else first
            end += int(count)
            while end - start > most:
                parts.append(slice(start, start + most))
                start += most
        return [*parts, slice(start, end)]

    def write(self, interp: Interp, advance: Callable[[int], None]) -> tuple[int, Statistics]:
        """Write all parts that are missing.

        Args:
            interp: returns the frames of the field at some times, with the flag, and statistics.
            advance: called with the number of frames of every part, also of those found in the
                store.

        Returns:
            The number of frames found in the store, and the largest of all statistics.
        """
        before, statistics = self._resume_or_create()
        done = before
        try:
            for number, part in enumerate(self.parts):
                if number >= before:
                    frames, new = interp(self.field, self.times[part])
                    statistics = {k: max(v, statistics.get(k, 0)) for k, v in new.items()}
                    self._write_part(frames, part)
                    done = number + 1
                    self._write_progress(done, statistics)
                advance(part.stop - part.start)
            self._finish()
        finally:
            if done == 0:  # nothing to resume
                shutil.rmtree(self.folder, ignore_errors=True)
        return sum(part.stop - part.start for part in self.parts[:before]), statistics

    def _resume_or_create(self) -> tuple[int, Statistics]:
        """Return the number of finished parts; creates a store if there is none of this job."""
        try:
            state = json.loads((self.folder / "done.json").read_text(encoding="utf-8"))
            is_same = state["job"] == json.loads(json.dumps(self.job))
            if is_same and self._store.is_dir():
                return int(state["parts"]), dict(state["statistics"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # there is none, or it is unreadable
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with ignore_zarr_warnings():
            self._build_template().to_zarr(self._store, mode="w", compute=False)
        self._write_progress(0, {})
        return 0, {}

    def _write_progress(self, parts: int, statistics: Statistics) -> None:
        with atomic_write(self.folder / "done.json") as temporary:
            state = {"parts": parts, "statistics": statistics, "job": self.job}
            temporary.write_text(json.dumps(state), encoding="utf-8")

    def _build_template(self) -> xr.Dataset:
        """Return the dataset with all coordinates and lazy zeros as values."""
        import dask.array

        template = Template.from_interp(self.field, self.time, self.times)

        def zeros(field: xr.DataArray, dtype: Any) -> xr.DataArray:
            sizes = {**field.sizes, self.time: len(self.times)}
            chunks = tuple(self._chunk() if d == self.time else n for d, n in sizes.items())
            values = dask.array.zeros(tuple(sizes.values()), chunks=chunks, dtype=dtype)
            return template.wrap(values, field.dims, field)

        data = zeros(self.field, self._dtype).rename(self._name).to_dataset()
        space = [d for d in self.job["space"] if d in self.field.dims]
        flag = zeros(self.field.isel(dict.fromkeys(space, 0), drop=True), bool)
        data = data.assign_coords({self.flag: flag.variable}).assign_attrs(self.attrs)
        data[self._name].encoding = dict(self.field.encoding)
        self._reset_encoding(data)
        data[self.flag].attrs = {"long_name": "whether one of the neighbouring frames is empty"}
        return data

    def _reset_encoding(self, data: xr.Dataset) -> None:
        """Drop chunks and codecs of the input; only the field's link to its projection stays."""
        for name, variable in data.variables.items():
            link = variable.encoding.get("grid_mapping") if name == self._name else None
            variable.encoding = {} if link is None else {"grid_mapping": link}

    @property
    def _name(self) -> str:
        return str(self.field.name or "field")

    @property
    def _dtype(self) -> np.dtype:
        """Single precision for single and half precision, else double."""
        return np.dtype("f4" if self.field.dtype in ("f2", "f4") else "f8")

    def _chunk(self) -> int:
        """Return the frames of a chunk: one part if all parts have equal length, else one frame."""
        sizes = [part.stop - part.start for part in self.parts]
        is_even = all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
        return sizes[0] if is_even else 1

    def _write_part(self, frames: xr.DataArray, part: slice) -> None:
        values = frames.astype(self._dtype).rename(self._name)
        data = xr.Dataset({self._name: values.variable, self.flag: values[self.flag].variable})
        with ignore_zarr_warnings():
            data.to_zarr(self._store, region={str(self.time): part})

    def _finish(self) -> None:
        """Rename the store to the output, or copy it to a NetCDF file."""
        if self.output.suffix == ".zarr":
            self._store.rename(self.output)
        else:
            data = open_dataset(self._store)
            chunks = {self.time: self._chunk()}  # only these are in memory at a time
            data = data.assign({self._name: data[self._name].variable.chunk(chunks)})
            self._reset_encoding(data)
            with atomic_write(self.output) as temporary, ignore_zarr_warnings():
                data.to_netcdf(temporary)
        shutil.rmtree(self.folder, ignore_errors=True)
