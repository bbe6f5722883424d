"""Opens a field in a NetCDF file or a Zarr store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from warnings import catch_warnings, filterwarnings

import xarray as xr

from geonet.errors import FileError

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
