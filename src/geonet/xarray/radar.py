"""Radar images as rain rates: PGM of the Finnish Meteorological Institute, HDF5, NetCDF and Zarr.

HDF5 files follow ODIM_H5 (OPERA and most weather services) or the format of KNMI. Headers are read
at once and values when they are used, one file after the other. Cells without a measurement are
NaN, cells in which the radar detected nothing are zero.

Reflectivity Z = 10^(dBZ/10) becomes a rain rate R in mm/h by Z = a·R^b.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xarray as xr

from geonet._files import wrap_read_errors
from geonet._utils import check_installed
from geonet._validation import as_number
from geonet.errors import FileError, InputError
from geonet.xarray.coordinates import format_time, time_dim
from geonet.xarray.files import HDF5_SUFFIXES, PGM_SUFFIXES, Files, find_files, open_fields
from geonet.xarray.units import convert_rain_rate

Quantity = Literal["rate", "reflectivity", "accumulation"]

FIELD = "rain_rate"  # name of the result

FINNISH_ZR = (223.0, 1.53)
MARSHALL_PALMER_ZR = (200.0, 1.6)
ODIM_QUANTITIES: dict[str, Quantity] = {
    "RATE": "rate",
    "ACRR": "accumulation",
    "DBZH": "reflectivity",
    "TH": "reflectivity",
}
ODIM_IMAGES = ("COMP", "IMAGE")  # objects on a plane; others are in polar coordinates


def open_radar(
    files: Files,
    *,
    variable: str | None = None,
    zr: tuple[float, float] | None = None,
    threshold: float = 0.1,
) -> xr.DataArray:
    """Return rain rates in mm/h, (time, y, x), from radar images, sorted by time.

    Values are Dask arrays with one chunk for each image. Coordinates are in metres, from the lower
    left corner of the map if the file gives no others.

    Args:
        files: a file, a folder, a pattern such as "radar/*.h5", or a list of these. PGM files may
            be compressed (.pgm.gz).
        variable: the quantity in an ODIM file, such as "DBZH", or the variable in a NetCDF file;
            by default the first of RATE, ACRR, DBZH and TH, or the only variable. Other files hold
            one field, whose name is rain_rate.
        zr: a and b of Z = a·R^b; by default those of the file, 223 and 1.53 for the Finnish
            Meteorological Institute, else 200 and 1.6 (Marshall and Palmer).
        threshold: rates below are zero.
    """
    relation = None if zr is None else _check_zr(zr)
    threshold = as_number(threshold, "threshold", "give a rain rate in mm/h")
    if not 0 <= threshold < np.inf:
        raise InputError(f"threshold is {threshold:g}; give a rain rate of at least 0 mm/h.")
    found = find_files(files)
    if not is_radar_image(found[0]):
        return _open_grids(found, variable, relation, threshold)
    images = [_read_header(file, variable) for file in found]
    if relation is not None:
        images = [replace(image, zr=relation) for image in images]
    images.sort(key=lambda image: image.time)
    _check_images(images)
    return _stack_images(images, threshold)


def is_radar_image(file: Path) -> bool:
    """Return whether the name is that of a PGM or HDF5 file."""
    return file.name.lower().endswith((*PGM_SUFFIXES, *HDF5_SUFFIXES))


def _check_zr(zr: Any) -> tuple[float, float]:
    numbers = np.asarray(zr, dtype=float).ravel() if np.ndim(zr) == 1 else np.empty(0)
    if numbers.shape != (2,) or not (np.isfinite(numbers) & (numbers > 0)).all():
        raise InputError(f"zr is {zr!r}; give two numbers above zero, such as (200, 1.6).")
    return float(numbers[0]), float(numbers[1])


@dataclass(frozen=True)
class RadarImage:
    """Header of one radar image.

    Attributes:
        file: the file.
        time: its time.
        shape: rows, the northernmost first, and columns.
        steps: height and width of a cell in metres.
        corner: coordinates of the lower left corner.
        attrs: attributes of the field, such as the projection.
        quantity: physical quantity of the values.
        zr: a and b of Z = a·R^b.
        hours: duration of an accumulation.
        dataset: path of the values in an HDF5 file.
        scale: gain and offset from stored to physical values.
        missing: stored values of cells without a measurement.
        undetected: stored value of cells in which nothing was detected.
    """

    file: Path
    time: np.datetime64
    shape: tuple[int, int]
    steps: tuple[float, float]
    corner: tuple[float, float] = (0.0, 0.0)
    attrs: dict[str, Any] = field(default_factory=dict)
    quantity: Quantity = "reflectivity"
    zr: tuple[float, float] = MARSHALL_PALMER_ZR
    hours: float = 1.0
    dataset: str = ""
    scale: tuple[float, float] = (1.0, 0.0)
    missing: tuple[float, ...] = ()
    undetected: float | None = None

    @property
    def coords(self) -> dict[str, xr.Variable]:
        """Coordinates of the cells."""
        axes = {}
        for name, count, step, start in zip("yx", self.shape, self.steps, self.corner, strict=True):
            values = start + (np.arange(count) + 0.5) * step
            axes[name] = xr.Variable(name, values, {"units": "m"})
        axes["y"] = axes["y"][::-1]
        return axes

    def read_rates(self, threshold: float) -> np.ndarray:
        """Read the rain rates in mm/h, (rows, columns)."""
        stored = self._read_values()
        gain, offset = self.scale
        values = stored * np.float64(gain) + offset
        dry = -np.inf if self.quantity == "reflectivity" else 0.0
        if self.undetected is not None:
            values[stored == self.undetected] = dry
        for code in self.missing:
            values[stored == code] = np.nan
        return to_rates(values, self.quantity, self.zr, self.hours, threshold)

    def _read_values(self) -> np.ndarray:
        """Read the stored values."""
        if not self.dataset:
            with wrap_read_errors(self.file, "PGM"), _open_binary(self.file) as stream:
                rows, columns = self.shape
                _read_pgm_header(stream)
                data = stream.read(rows * columns)
            if len(data) < rows * columns:
                raise FileError(
                    f"{self.file} has {len(data):,} of {rows * columns:,} cells; it is cut off, "
                    "so copy it again, or leave it out."
                )
            return np.frombuffer(data, np.uint8).reshape(self.shape)
        import h5py

        with wrap_read_errors(self.file, "HDF5"), h5py.File(self.file, "r") as data:
            return np.asarray(data[self.dataset])


def to_rates(
    values: Any, quantity: Quantity, zr: tuple[float, float], hours: float, threshold: float
) -> Any:
    """Return rain rates in mm/h, single precision, from rates, dBZ or accumulations in mm."""
    if quantity == "reflectivity":
        a, b = zr
        values = (10.0 ** (values / 10) / a) ** (1 / b)
    elif quantity == "accumulation":
        values = values / hours
    return np.where(values < threshold, 0.0, values).astype(np.float32)


def _check_images(images: Sequence[RadarImage]) -> None:
    """Raise InputError if two images have the same time or different cells."""
    first = images[0]
    for before, image in pairwise(images):
        if before.time == image.time:
            raise InputError(
                f"{before.file} and {image.file} both hold the time {format_time(image.time)}; "
                "leave one out."
            )
        same_cells = np.allclose([*image.steps, *image.corner], [*first.steps, *first.corner])
        if image.shape != first.shape or not same_cells:
            raise InputError(
                f"{image.file} has {image.shape[0]}×{image.shape[1]} cells of "
                f"{image.steps[0]:g}×{image.steps[1]:g} m and {first.file} "
                f"{first.shape[0]}×{first.shape[1]} cells of {first.steps[0]:g}×"
                f"{first.steps[1]:g} m; give images of one map."
            )
        if image.attrs.get("projection") != first.attrs.get("projection"):
            raise InputError(
                f"{image.file} and {first.file} have different projections; give images of one map."
            )


def _stack_images(images: Sequence[RadarImage], threshold: float) -> xr.DataArray:
    """Return the field of all images, with one chunk for each."""
    import dask.array
    from dask.delayed import delayed

    first = images[0]
    read = delayed(RadarImage.read_rates, pure=False)
    frames = [
        dask.array.from_delayed(read(image, threshold), first.shape, np.float32) for image in images
    ]
    times = np.array([image.time for image in images])
    return _describe_rates(
        xr.DataArray(
            dask.array.stack(frames),
            {"time": times, **first.coords},
            ("time", "y", "x"),
            attrs=first.attrs,
        )
    )


def _describe_rates(rates: xr.DataArray) -> xr.DataArray:
    labels = {"units": "mm h-1", "long_name": "rain rate"}
    return rates.rename(FIELD).assign_attrs(labels)


def _read_header(file: Path, variable: str | None) -> RadarImage:
    if file.name.lower().endswith(PGM_SUFFIXES):
        _check_name(file, variable)
        return _read_finnish_pgm(file)
    check_installed(f"{file.name}: HDF5", ["h5py"], "xarray")
    import h5py

    with wrap_read_errors(file, "HDF5"), h5py.File(file, "r") as data:
        if "image1" in data and "overview" in data:
            _check_name(file, variable)
            return _read_knmi(file, data)
        if "what" in data and "dataset1" in data:
            return _read_odim(file, data, variable)
    raise FileError(
        f"{file} is HDF5, but follows neither ODIM nor KNMI; convert it to NetCDF with a rain rate."
    )


def _check_name(file: Path, variable: str | None) -> None:
    """Raise FileError for a variable of a format that holds one field only."""
    if variable not in (None, FIELD):
        raise FileError(
            f"{file} holds one field, {FIELD}, and {variable!r} is asked for; leave the variable "
            "out."
        )


# ---- PGM


def _open_binary(file: Path) -> Any:
    return gzip.open(file, "rb") if file.name.lower().endswith(".gz") else file.open("rb")


def _read_pgm_header(stream: Any) -> tuple[list[str], dict[str, str]]:
    """Return magic number, width, height and largest value, and the comments by first word."""
    words: list[str] = []
    comments: dict[str, str] = {}
    while len(words) < 4:
        line = stream.readline(10_000)
        if not line:
            raise ValueError("the header ends early")
        text, _, comment = line.decode("latin-1").partition("#")
        words += text.split()
        name, _, value = comment.strip().partition(" ")
        comments.setdefault(name, value.strip())
    return words, comments


def _read_finnish_pgm(file: Path) -> RadarImage:
    """Read the header of an image of reflectivity: dBZ = value/2 − 32, the largest is no data."""
    with wrap_read_errors(file, "PGM"), _open_binary(file) as stream:
        words, comments = _read_pgm_header(stream)
        if words[0] != "P5":
            raise ValueError(f"it starts with {words[0][:10]!r} instead of 'P5'")
        columns, rows, largest = (int(word) for word in words[1:4])
        for name in ("obstime", "metersperpixel_x", "metersperpixel_y"):
            if not comments.get(name):
                raise FileError(
                    f"{file} has no line '# {name} …' in its header; give radar images as "
                    "published by the Finnish Meteorological Institute, or NetCDF files."
                )
        time = np.datetime64(datetime.strptime(comments["obstime"], "%Y%m%d%H%M"), "ns")
        steps = float(comments["metersperpixel_y"]), float(comments["metersperpixel_x"])
    if largest != 255 or min(rows, columns) < 2:
        raise FileError(
            f"{file} has {columns}×{rows} cells with values up to {largest}; give images of bytes."
        )
    parameter = comments.get("param", "reflectivity")
    if "reflectivity" not in parameter.lower():
        raise FileError(f"{file} holds {parameter}; give images of reflectivity.")
    kept = ("type", "centrallongitude", "centrallatitude", "truelatitude", "bottomleft", "topright")
    projection = ", ".join(f"{name} {comments[name]}" for name in kept if comments.get(name))
    attrs = {"projection": projection} if projection else {}
    return RadarImage(
        file,
        time,
        (rows, columns),
        steps,
        attrs=attrs,
        zr=FINNISH_ZR,
        scale=(0.5, -32.0),
        missing=(255.0,),
    )


# ---- HDF5


def _attribute(groups: Sequence[Any], name: str, default: Any = ...) -> Any:
    """Return an attribute of the first group that has it, as text or as a number."""
    for group in groups:
        if group is not None and name in group.attrs:
            value = group.attrs[name]
            if isinstance(value, np.ndarray) and value.size == 1:
                value = value.flat[0]
            return value.decode() if isinstance(value, bytes) else value
    if default is ...:
        raise ValueError(f"it has no attribute {name!r}")
    return default


def _read_odim(file: Path, data: Any, variable: str | None) -> RadarImage:
    """Read the header of an image that follows ODIM_H5."""
    kind = str(_attribute([data["what"]], "object", "COMP"))
    if kind not in ODIM_IMAGES:
        raise FileError(
            f"{file} holds the ODIM object {kind}, which is not an image on a plane; give "
            f"{' or '.join(ODIM_IMAGES)} files, or grid it first, for example with wradlib."
        )
    dataset, quantity = _find_odim_data(file, data, variable)
    parent = data[dataset].parent.parent
    what = [data[dataset].parent.get("what"), parent.get("what")]
    where, how = [parent.get("where"), data.get("where")], [parent.get("how"), data.get("how")]
    shape = data[dataset].shape
    named = {name: _attribute(where, name, None) for name in ("LL_lon", "LL_lat", "projdef")}
    attrs = {"projection": named["projdef"]} if named["projdef"] else {}
    if named["LL_lon"] is not None and named["LL_lat"] is not None:
        attrs["lower_left"] = [float(named["LL_lon"]), float(named["LL_lat"])]
    kind = ODIM_QUANTITIES[quantity]
    a, b = MARSHALL_PALMER_ZR
    missing = _attribute(what, "nodata", None)
    undetected = _attribute(what, "undetect", None)
    return RadarImage(
        file,
        _odim_time([data["what"]], "date", "time"),
        (int(shape[0]), int(shape[1])),
        (float(_attribute(where, "yscale")), float(_attribute(where, "xscale"))),
        attrs=attrs,
        quantity=kind,
        zr=(float(_attribute(how, "zr_a", a)), float(_attribute(how, "zr_b", b))),
        hours=_odim_hours(file, what) if kind == "accumulation" else 1.0,
        dataset=dataset,
        scale=(float(_attribute(what, "gain", 1.0)), float(_attribute(what, "offset", 0.0))),
        missing=() if missing is None else (float(missing),),
        undetected=None if undetected is None else float(undetected),
    )


def _find_odim_data(file: Path, data: Any, variable: str | None) -> tuple[str, str]:
    """Return the path of the values and their quantity."""
    found: dict[str, str] = {}
    for name in _list_numbered(data, "dataset"):
        for part in _list_numbered(data[name], "data"):
            group = data[name][part]
            groups = [group.get("what"), data[name].get("what")]
            found.setdefault(str(_attribute(groups, "quantity")), f"{name}/{part}/data")
    wanted = ODIM_QUANTITIES if variable is None else (variable,)
    quantity = next((name for name in wanted if name in found), None)
    if quantity is None or quantity not in ODIM_QUANTITIES:
        listed = ", ".join(found) or "(none)"
        asked = "" if variable is None else f", and {variable!r} is asked for"
        raise FileError(
            f"{file} holds the quantities {listed}{asked}; rain is computed from one of "
            f"{', '.join(ODIM_QUANTITIES)}."
        )
    if data[found[quantity]].ndim != 2:
        raise FileError(f"{file} has {data[found[quantity]].ndim} axes of cells; give images.")
    return found[quantity], quantity


def _list_numbered(group: Any, prefix: str) -> list[str]:
    """Return the names of subgroups such as data1, data2, … in the order of their numbers."""
    names = [name for name in group if re.fullmatch(rf"{prefix}\d+", name)]
    return sorted(names, key=lambda name: int(name.removeprefix(prefix)))


def _odim_time(groups: Sequence[Any], date: str, time: str) -> np.datetime64:
    text = f"{_attribute(groups, date)}{_attribute(groups, time)}"
    return np.datetime64(datetime.strptime(text, "%Y%m%d%H%M%S"), "ns")


def _odim_hours(file: Path, what: Sequence[Any]) -> float:
    """Return the duration of an accumulation."""
    start = _odim_time(what, "startdate", "starttime")
    return _hours(file, start, _odim_time(what, "enddate", "endtime"))


def _hours(file: Path, start: np.datetime64, end: np.datetime64) -> float:
    hours = float((end - start) / np.timedelta64(1, "h"))
    if not hours > 0:
        raise FileError(
            f"{file} holds an accumulation from {start} to {end}; give files whose end is later "
            "than the start."
        )
    return hours


def _read_knmi(file: Path, data: Any) -> RadarImage:
    """Read the header of a file of KNMI; its formula is "GEO = gain * PV + offset"."""
    image, place = data["image1"], data["geographic"]
    calibration = image["calibration"]
    formula = str(_attribute([calibration], "calibration_formulas"))
    match = re.fullmatch(r"\s*GEO\s*=\s*(\S+?)\s*\*\s*PV\s*\+\s*(\S+)\s*", formula)
    if match is None:
        raise FileError(
            f"{file} has the calibration {formula!r}; a formula GEO=gain*PV+offset is supported."
        )
    start, end = (
        np.datetime64(
            datetime.strptime(
                str(_attribute([data["overview"]], f"product_datetime_{name}")),
                "%d-%b-%Y;%H:%M:%S.%f",
            ),
            "ns",
        )
        for name in ("start", "end")
    )
    parameter = str(_attribute([image], "image_geo_parameter", "PRECIP")).upper()
    if not ("REFLECTIVITY" in parameter or "PRECIP" in parameter):
        raise FileError(f"{file} holds {parameter}; give images of rain or of reflectivity.")
    quantity: Quantity = "reflectivity" if "REFLECTIVITY" in parameter else "accumulation"
    height, width = (  # in kilometres; the height is negative, because rows start in the north
        abs(float(_attribute([place], f"geo_pixel_size_{axis}"))) * 1000 for axis in "yx"
    )
    rows, columns = (int(n) for n in image["image_data"].shape)
    first_row = float(_attribute([place], "geo_row_offset", -rows))
    first_column = float(_attribute([place], "geo_column_offset", 0.0))
    codes = [
        _attribute([calibration], f"calibration_{name}", None)
        for name in ("missing_data", "out_of_image")
    ]
    projection = _attribute([place.get("map_projection")], "projection_proj4_params", None)
    return RadarImage(
        file,
        end,
        (rows, columns),
        (height, width),
        (-(first_row + rows) * height, first_column * width),
        attrs={"projection": projection} if projection else {},
        quantity=quantity,
        hours=_hours(file, start, end) if quantity == "accumulation" else 1.0,
        dataset="image1/image_data",
        scale=(float(match[1]), float(match[2])),
        missing=tuple(float(code) for code in codes if code is not None),
    )


# ---- NetCDF and Zarr


def _open_grids(
    files: Sequence[Path],
    variable: str | None,
    zr: tuple[float, float] | None,
    threshold: float,
) -> xr.DataArray:
    """Return the rain rates of NetCDF files or Zarr stores."""
    found, _ = open_fields(files, variable)
    time = time_dim(found, None)
    units = " ".join(str(found.attrs.get("units", "")).split())
    quantity: Quantity = "reflectivity" if units.lower() == "dbz" else "rate"
    factor = 1.0 if quantity == "reflectivity" else convert_rain_rate(units)
    if factor is None:
        raise InputError(
            f"{files[0]} holds {found.name} in {units or 'unknown units'}; set the attribute units "
            f"to mm h-1, kg m-2 s-1, m s-1 or dBZ, or convert it first."
        )
    relation = zr or MARSHALL_PALMER_ZR
    rates = xr.apply_ufunc(
        lambda values: to_rates(values * factor, quantity, relation, 1.0, threshold),
        found.chunk({time: 1}),
        dask="parallelized",
        output_dtypes=[np.float32],
        keep_attrs=True,
    )
    rates = rates.drop_encoding()
    return _describe_rates(rates if time == "time" else rates.rename({time: "time"}))
