"""NetCDF files and Zarr stores: opening fields, and writing interpolated frames resumably."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from warnings import catch_warnings, filterwarnings

import numpy as np
import xarray as xr

from geonet._files import atomic_write, expand_files
from geonet.errors import FileError, InputError
from geonet.xarray.coordinates import Template, TimeIndex, format_time, time_dim

Statistics = dict[str, float]  # largest values over all frames so far
Interp = Callable[[xr.DataArray, np.ndarray], tuple[xr.DataArray, Statistics]]


PGM_SUFFIXES = (".pgm", ".pgm.gz")
HDF5_SUFFIXES = (".h5", ".hdf", ".hdf5")
NETCDF_SUFFIXES = (".nc", ".nc4", ".cdf", ".zarr")

Files = str | Path | Iterable[str | Path]


def find_files(files: Files) -> list[Path]:
    """Return the files of a list of files, folders and patterns, each of them once.

    A folder stands for the NetCDF, HDF5 and PGM files and the Zarr stores in it.
    """
    names = [files] if isinstance(files, str | Path) else files
    unique = expand_files(names, (*PGM_SUFFIXES, *HDF5_SUFFIXES, *NETCDF_SUFFIXES), _is_store)
    groups = [
        [file.name for file in unique if file.name.lower().endswith(suffixes)]
        for suffixes in (PGM_SUFFIXES, HDF5_SUFFIXES)
    ]
    groups.append([file.name for file in unique if file.name not in groups[0] + groups[1]])
    several = [group[0] for group in groups if group]
    if len(several) > 1:
        raise FileError(
            f"{' and '.join(several)} have different formats; give files of one format, or a "
            "pattern such as 'radar/*.h5'."
        )
    return unique


def _is_store(path: Path) -> bool:
    markers = ("zarr.json", ".zgroup", ".zmetadata")
    return path.suffix == ".zarr" or any((path / marker).exists() for marker in markers)


def open_fields(
    files: Sequence[Path], variable: str | None, time: str | None = None
) -> tuple[xr.DataArray, dict[str, Any]]:
    """Return the field of NetCDF files or Zarr stores, and the attributes of the first file.

    The frames of several files are joined in the order of time and are Dask arrays. A single file
    is read when its values are used.

    Args:
        files: the files; all have the same cells.
        variable: the name of the field; None for the only one.
        time: its time dimension; None if names decide.
    """
    first, attrs = _open_field(files[0], variable)
    if len(files) == 1:
        return _expand_time(first, time), attrs
    name = str(first.name)
    parts = [first, *(_open_field(file, name)[0] for file in files[1:])]
    parts = [_expand_time(part, time) for part in parts]
    dim = time_dim(parts[0], time)
    for part, file in zip(parts, files, strict=True):
        if dim not in part.coords:
            raise InputError(f"{file} has no coordinate {dim!r}; add the times of its frames.")
        _check_same_cells(parts[0], part, dim, (files[0], file))
    _check_times(parts, dim, files)
    joined = xr.concat(
        [part.chunk({dim: 1}) for part in parts],
        dim,
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="override",
    )
    return joined.isel({dim: np.argsort(joined[dim].values, kind="stable")}), attrs


def _open_field(file: Path, variable: str | None) -> tuple[xr.DataArray, dict[str, Any]]:
    """Return a field, which is read when it is used, and the attributes of its file."""
    data = open_input(file)
    names = [str(name) for name in data.data_vars if data[name].ndim > 1]
    if variable is None:
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise FileError(f"{file} holds the fields {listed}; choose one with --variable.")
        variable = names[0]
    if variable not in data.data_vars:
        raise FileError(f"{file} holds no {variable!r}; it holds {', '.join(names) or 'no field'}.")
    return data[variable], data.attrs


def _expand_time(field: xr.DataArray, time: str | None) -> xr.DataArray:
    """Return a field with a time dimension if its time is a scalar."""
    for name in (time,) if time is not None else ("time", "t"):
        if name in field.coords and not field[name].dims:
            return field.expand_dims(name)
    return field


def _check_same_cells(
    first: xr.DataArray, other: xr.DataArray, time: Hashable, files: tuple[Path, Path]
) -> None:
    """Raise InputError unless two fields have the same dimensions and coordinates beside time."""
    here, there = ({d: n for d, n in f.sizes.items() if d != time} for f in (first, other))
    if here != there or first.dims != other.dims:
        raise InputError(
            f"{files[1]} has the shape {dict(other.sizes)} and {files[0]} {dict(first.sizes)}; "
            "give files with the same cells."
        )
    for dim in here:
        known = [f[dim].values for f in (first, other) if dim in f.coords]
        if len(known) == 1 or (known and not _equal_labels(*known)):
            raise InputError(
                f"{files[1]} and {files[0]} have different coordinates {dim!r}; give files with "
                "the same cells."
            )


def _equal_labels(first: np.ndarray, other: np.ndarray) -> bool:
    numbers = all(labels.dtype.kind in "iuf" for labels in (first, other))
    return np.allclose(first, other) if numbers else bool((first == other).all())


def _check_times(parts: Sequence[xr.DataArray], time: Hashable, files: Sequence[Path]) -> None:
    """Raise InputError if two files hold the same time."""
    seen: dict[Any, Path] = {}
    for part, file in zip(parts, files, strict=True):
        for moment in part[time].values.tolist():
            if moment in seen:
                label = part[time].values[part[time].values.tolist().index(moment)]
                raise InputError(
                    f"{seen[moment]} and {file} both hold the time {format_time(label)}; "
                    "leave one out."
                )
            seen[moment] = file


def open_dataset(file: Path) -> xr.Dataset:
    """Open a file with the bounds of cells and the grid mapping as coordinates."""
    with ignore_zarr_warnings():
        if file.suffix == ".zarr" or file.is_dir():
            return xr.open_zarr(file, chunks=None, decode_coords="all")
        return xr.open_dataset(file, decode_coords="all")


def open_input(file: Path) -> xr.Dataset:
    """Open a file of the user; raise FileError if it cannot be read."""
    try:
        return open_dataset(file)
    except Exception as error:  # broken files make the backends raise almost anything
        suffixes = (*NETCDF_SUFFIXES, *HDF5_SUFFIXES, *PGM_SUFFIXES)
        if not file.name.lower().endswith(suffixes):
            raise FileError(
                f"{file} is no NetCDF, Zarr or radar file; give a file whose name ends in "
                f"{', '.join(suffixes)}."
            ) from error
        cause = " ".join(str(error).split())[:200].rstrip(".")
        raise FileError(
            f"Cannot read {file} as NetCDF or Zarr: {cause}; check that it is complete."
        ) from error


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
        flags: the names of the boolean coordinates that `interp` adds, with their descriptions.
        attrs: attributes of the file.
        output: the file, .nc or .zarr.
        job: plain data that identifies the job; only a store of the same job is resumed.
        max_values: most values in one part.
        max_pairs: most pairs of frames in one part.
    """

    field: xr.DataArray
    time: Hashable
    times: np.ndarray
    flags: dict[str, str]
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

    def write(self, interp: Interp, skip: Callable[[int], None]) -> tuple[int, Statistics]:
        """Write all parts that are missing.

        Args:
            interp: returns the frames of the field at some times, with the flags, and statistics.
            skip: called with the number of frames found in the store.

        Returns:
            The number of frames found in the store, and the largest of all statistics.
        """
        before, statistics = self._resume_or_create()
        done, found = before, sum(part.stop - part.start for part in self.parts[:before])
        skip(found)
        try:
            for number, part in enumerate(self.parts[before:], before):
                frames, new = interp(self.field, self.times[part])
                statistics = {k: max(v, statistics.get(k, 0)) for k, v in new.items()}
                self._write_part(frames, part)
                done = number + 1
                self._write_progress(done, statistics)
            self._finish()
        finally:
            if done == 0:  # nothing to resume
                shutil.rmtree(self.folder, ignore_errors=True)
        return found, statistics

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
        flag = zeros(self.field.isel(dict.fromkeys(space, 0), drop=True), bool).variable
        data = data.assign_coords(dict.fromkeys(self.flags, flag)).assign_attrs(self.attrs)
        data[self._name].encoding = dict(self.field.encoding)
        self._reset_encoding(data)
        for name, text in self.flags.items():
            data[name].attrs = {"long_name": text}
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
        data = xr.Dataset({name: values[name].variable for name in self.flags})
        data[self._name] = values.variable
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
            data[self._name].encoding |= {"zlib": True, "shuffle": True, "complevel": 4}
            with atomic_write(self.output) as temporary, ignore_zarr_warnings():
                data.to_netcdf(temporary)
        shutil.rmtree(self.folder, ignore_errors=True)
