"""Opens a field in a NetCDF file or a Zarr store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import numpy as np
import xarray as xr

from geonet._files import atomic_write
from geonet.errors import FileError
from geonet.xarray.accessor import like_interp
from geonet.xarray.coordinates import located

ZARR = ".zarr"


def open_field(file: Path, variable: str | None) -> tuple[xr.DataArray, dict[str, Any]]:
    """A field, read when it is used, and the attributes of its file.

    Args:
        file: NetCDF, or Zarr if its name ends so.
        variable: the name of the field; None for the only one.
    """
    if not file.exists():
        raise FileError(f"There is no file {file}; check the path.")
    try:
        data = opened(file)
    except Exception as error:  # broken files make its backends raise almost anything
        said = " ".join(str(error).split())[:200].rstrip(".")
        raise FileError(
            f"Cannot read {file} as NetCDF or Zarr: {said}; check that it is whole."
        ) from error
    names = [str(name) for name in data.data_vars if data[name].ndim > 1]
    if variable is None:
        if len(names) != 1:
            told = ", ".join(names) or "none"
            raise FileError(f"{file} holds the fields {told}; choose one with --variable.")
        variable = names[0]
    if variable not in data.data_vars:
        raise FileError(f"{file} holds no {variable!r}; it holds {', '.join(names) or 'no field'}.")
    return data[variable], data.attrs


def opened(file: Path) -> xr.Dataset:
    """What is in a file; bounds of cells and mappings of grids count as coordinates."""
    with undisturbed():
        if file.suffix == ZARR or file.is_dir():
            return xr.open_zarr(file, chunks=None, decode_coords="all")
        return xr.open_dataset(file, decode_coords="all")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without warnings about stores that xarray writes and reads all the same.

    Those with and without metadata in one place, and those with words in them.
    """
    with catch_warnings():
        filterwarnings("ignore", ".*(onsolidated metadata|Zarr (V3|format 3) specification)")
        yield


# ---- A file of frames at other times: made part by part, and gone on with after an interruption.
#
# The parts are written into a hidden Zarr store beside the output. When all are there, the store gets
# the output's name, or is copied into a NetCDF file which gets it. Values are written as floats: what
# lies between two frames may not fit the whole numbers that a file packs them into.


STORE, DONE = "store.zarr", "done.json"  # in the hidden folder: the parts, and how many they are
AT_ONCE = 2**24  # values of the frames of one part
PAIRS = 32  # of frames of the field in one part, at most
LINKED = "grid_mapping"  # the only encoding that is kept: which coordinate is the map's projection

Tally = dict[str, float]  # what is known of the frames so far
Interp = Callable[[xr.DataArray, np.ndarray], tuple[xr.DataArray, Tally]]


@dataclass(frozen=True)
class FinerFile:
    """A field's frames at other times, on their way into a file.

    Attributes:
        field: as it was opened; read part by part.
        time: its dimension of time.
        times: to write, (T,), ascending.
        flag: the name of a coordinate of truths, beside the field, that `interp` gives.
        attrs: of the file.
        output: the file, .nc or .zarr.
        recipe: plain data; another run goes on with a store of the same recipe only.
    """

    field: xr.DataArray
    time: Hashable
    times: np.ndarray
    flag: str
    attrs: dict[str, Any]
    output: Path
    recipe: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where the parts are collected."""
        return self.output.with_name(f".{self.output.name}.partial")

    @cached_property
    def parts(self) -> list[slice]:
        """The numbers of the times of each part: those of some pairs, or some of one pair's."""
        most = max(1, AT_ONCE * self.field.sizes[self.time] // self.field.size)
        frame = located(self.field[self.time].values, self.times, "refuse").frame
        found, start, end, first = [], 0, 0, 0
        for pair, count in zip(*np.unique(frame, return_counts=True), strict=True):
            if end > start and (pair - first >= PAIRS or end + count - start > most):
                found.append(slice(start, end))
                start = end
            first = pair if start == end else first
            end += int(count)
            while end - start > most:
                found.append(slice(start, start + most))
                start += most
        return [*found, slice(start, end)]

    def write(self, interp: Interp, tick: Callable[[int], None]) -> tuple[int, Tally]:
        """Write all parts that are not there yet.

        Args:
            interp: gives the frames of the field at some times, with the flag, and what is known
                of them.
            tick: is told of every part how many frames it has, those that were there included.

        Returns:
            How many frames were there before, and the largest of everything known of all parts.
        """
        before, tally = self._begun()
        done = before
        try:
            for number, times in enumerate(self.parts):
                if number >= before:
                    part, known = interp(self.field, self.times[times])
                    tally = {name: max(value, tally.get(name, 0)) for name, value in known.items()}
                    self._put(part, times)
                    done = number + 1
                    self._note(done, tally)
                tick(times.stop - times.start)
            self._finish()
        finally:
            if done == 0:  # nothing to go on with
                shutil.rmtree(self.folder, ignore_errors=True)
        return sum(times.stop - times.start for times in self.parts[:before]), tally

    def _begun(self) -> tuple[int, Tally]:
        """How many parts are there; begins a store where there is none of this recipe."""
        try:
            known = json.loads((self.folder / DONE).read_text(encoding="utf-8"))
            same = known["recipe"] == json.loads(json.dumps(self.recipe))
            if same and (self.folder / STORE).is_dir():
                return int(known["parts"]), dict(known["tally"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # there is none, or none that can be read
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with undisturbed():
            self._empty().to_zarr(self.folder / STORE, mode="w", compute=False)
        self._note(0, {})
        return 0, {}

    def _note(self, parts: int, tally: Tally) -> None:
        with atomic_write(self.folder / DONE) as temporary:
            text = json.dumps({"parts": parts, "tally": tally, "recipe": self.recipe})
            temporary.write_text(text, encoding="utf-8")

    def _empty(self) -> xr.Dataset:
        """All that surrounds the values, and room for these."""
        import dask.array

        template = like_interp(self.field, self.time, self.times)

        def room(field: xr.DataArray, dtype: Any) -> xr.DataArray:
            sizes = {**field.sizes, self.time: len(self.times)}
            chunks = tuple(self._chunk() if d == self.time else n for d, n in sizes.items())
            zeros = dask.array.zeros(tuple(sizes.values()), chunks=chunks, dtype=dtype)
            return template.around(zeros, field.dims, field)

        made = room(self.field, self._dtype()).rename(self._name).to_dataset()
        others = [d for d in self.recipe["space"] if d in self.field.dims]
        flag = room(self.field.isel(dict.fromkeys(others, 0), drop=True), bool)
        made = made.assign_coords({self.flag: flag.variable}).assign_attrs(self.attrs)
        for name, variable in made.variables.items():  # chunks and codecs are the old file's
            kept = LINKED in self.field.encoding and name == self._name
            variable.encoding = {LINKED: self.field.encoding[LINKED]} if kept else {}
        made[self.flag].attrs = {"long_name": "whether one of the neighbouring frames is empty"}
        return made

    @property
    def _name(self) -> str:
        return str(self.field.name or "field")

    def _dtype(self) -> np.dtype:
        """Single precision where the field has no more, else double."""
        return np.dtype("f4" if self.field.dtype in ("f2", "f4") else "f8")

    def _chunk(self) -> int:
        """Frames of a chunk: those of a part, if all parts have as many, else one."""
        sizes = [times.stop - times.start for times in self.parts]
        even = all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
        return sizes[0] if even else 1

    def _put(self, part: xr.DataArray, times: slice) -> None:
        """Write a part where it belongs."""
        values = part.astype(self._dtype()).rename(self._name)
        both = xr.Dataset({self._name: values.variable, self.flag: values[self.flag].variable})
        with undisturbed():
            both.to_zarr(self.folder / STORE, region={str(self.time): times})

    def _finish(self) -> None:
        """Give the whole its name."""
        store = self.folder / STORE
        if self.output.suffix == ZARR:
            store.rename(self.output)
        else:
            whole = opened(store)
            part = {self.time: self._chunk()}  # at a time goes through memory
            whole = whole.assign({self._name: whole[self._name].variable.chunk(part)})
            for name, variable in whole.variables.items():
                kept = LINKED in variable.encoding and name == self._name
                variable.encoding = {LINKED: variable.encoding[LINKED]} if kept else {}
            with atomic_write(self.output) as temporary, undisturbed():
                whole.to_netcdf(temporary)
        shutil.rmtree(self.folder, ignore_errors=True)
