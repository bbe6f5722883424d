"""A file of frames at other times: made part by part, and gone on with after an interruption.

The parts are written into a hidden Zarr store beside the output. When all are there, the store gets
the output's name, or is copied into a NetCDF file which gets it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from geonet.files import written_atomically
from geonet.xarray.field_file import ZARR, undisturbed
from geonet.xarray.like_interp import like_interp
from geonet.xarray.moments import located

FIELD, DONE = "field", "done.json"  # in the hidden folder: the store, and how far it is
AT_ONCE = 2**24  # values of frames that are read for one part
PAIRS = 32  # of frames in one part, at most
PACKED = ("dtype", "scale_factor", "add_offset", "_FillValue")

Interp = Callable[[xr.DataArray, np.ndarray], xr.DataArray]


@dataclass(frozen=True)
class FinerFile:
    """A field's frames at other times, on their way into a file.

    Attributes:
        field: as it was opened; read part by part.
        time: its dimension of time.
        times: to write, (T,), ascending.
        output: the file, .nc or .zarr.
        recipe: plain data; another run goes on with a store of the same recipe only.
    """

    field: xr.DataArray
    time: Hashable
    times: np.ndarray
    output: Path
    recipe: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where the parts are collected."""
        return self.output.with_name(f".{self.output.name}.partial")

    def parts(self) -> list[tuple[slice, slice]]:
        """Frames of the field, two or more, and the numbers of the times between them."""
        frames = self.field.sizes[self.time]
        size = self.field.size // frames
        pairs = max(1, min(PAIRS, AT_ONCE // size))
        frame = located(self.field[self.time].values, self.times, "refuse").frame
        ends = np.searchsorted(frame, np.arange(0, frames + pairs, pairs))
        found = []
        for k, (start, stop) in enumerate(pairwise(ends)):
            if start < stop:
                needed = slice(min(k * pairs, frames - 2), min((k + 1) * pairs + 1, frames))
                found.append((needed, slice(int(start), int(stop))))
        return found

    def write(self, interp: Interp, tick: Callable[[int], None]) -> int:
        """Write all parts that are not there yet; gives the number of frames that were.

        Args:
            interp: gives the frames of a part of the field at some times.
            tick: is told of every part how many frames it has, those that were there included.
        """
        before = self._begun()
        for number, (frames, times) in enumerate(self.parts()):
            if number >= before:
                part = interp(self.field.isel({self.time: frames}), self.times[times])
                self._append(part, times)
                self._note(number + 1)
            tick(times.stop - times.start)
        self._finish()
        return sum(times.stop - times.start for _, times in self.parts()[:before])

    def _begun(self) -> int:
        """How many parts are there; begins a store where there is none of this recipe."""
        done = self.folder / DONE
        try:
            known = json.loads(done.read_text(encoding="utf-8"))
            if known["recipe"] == json.loads(json.dumps(self.recipe)):
                return int(known["parts"])
        except (OSError, ValueError, KeyError, TypeError):
            pass  # there is none, or none that can be read
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        with undisturbed():
            self._empty().to_zarr(self.folder / FIELD, mode="w", compute=False)
        self._note(0)
        return 0

    def _note(self, parts: int) -> None:
        with written_atomically(self.folder / DONE) as temporary:
            text = json.dumps({"parts": parts, "recipe": self.recipe})
            temporary.write_text(text, encoding="utf-8")

    def _empty(self) -> xr.Dataset:
        """All that surrounds the values, and room for these."""
        import dask.array

        template = like_interp(self.field, self.time, self.times)
        shape = [len(self.times) if d == self.time else n for d, n in self.field.sizes.items()]
        chunks = [self._chunk() if d == self.time else n for d, n in self.field.sizes.items()]
        room = dask.array.zeros(shape, chunks=chunks, dtype=self._dtype())
        made = template.around(room, self.field.dims, self.field).rename(self._name)
        packing = self.field.encoding
        kept = PACKED if "scale_factor" in packing or "add_offset" in packing else PACKED[3:]
        if self._dtype().kind == "f" and self.field.dtype.kind == "f":
            made.encoding = {name: packing[name] for name in kept if name in packing}
        return made.to_dataset()

    @property
    def _name(self) -> str:
        return str(self.field.name or "field")

    def _dtype(self) -> np.dtype:
        """The field's own, if it can hold what lies between whole numbers."""
        return self.field.dtype if self.field.dtype.kind == "f" else np.dtype(float)

    def _chunk(self) -> int:
        """Frames of a chunk: those of a part, if all parts have as many, else one."""
        sizes = [times.stop - times.start for _, times in self.parts()]
        even = all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
        return sizes[0] if even else 1

    def _append(self, part: xr.DataArray, times: slice) -> None:
        values = part.astype(self._dtype()).rename(self._name).reset_coords(drop=True)
        values = values.drop_vars(list(values.coords)).to_dataset()
        with undisturbed():
            values.to_zarr(self.folder / FIELD, region={str(self.time): times})

    def _finish(self) -> None:
        """Give the whole its name."""
        store = self.folder / FIELD
        if self.output.suffix == ZARR:
            store.rename(self.output)
        else:
            with (
                written_atomically(self.output) as temporary,
                undisturbed(),
                xr.open_zarr(store) as whole,
            ):
                for variable in whole.variables.values():  # chunks and filters are Zarr's own
                    packing = variable.encoding
                    variable.encoding = {name: packing[name] for name in PACKED if name in packing}
                    if "dtype" in packing:  # in this machine's order of bytes
                        variable.encoding["dtype"] = np.dtype(packing["dtype"]).name
                whole.to_netcdf(temporary)
        shutil.rmtree(self.folder, ignore_errors=True)
