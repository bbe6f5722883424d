"""Radar files: PGM, ODIM HDF5, HDF5 of KNMI and NetCDF as rain rates; made-up images only."""

from __future__ import annotations

import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from geonet.errors import FileError, GeonetError, InputError
from geonet.xarray import open_radar, synthetic_rain

TIMES = ("202607011200", "202607011205", "202607011210")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def dbz(rates: np.ndarray, a: float = 223.0, b: float = 1.53) -> np.ndarray:
    """Return the reflectivity of rain rates; −32 dBZ where it is dry."""
    with np.errstate(divide="ignore"):
        return np.maximum(10 * np.log10(a * rates**b), -32.0)


def stored_bytes(seed: int = 0) -> np.ndarray:
    """Return an image of 6×8 bytes with dry cells, rain and cells without data."""
    values = np.random.default_rng(seed).integers(70, 160, (6, 8)).astype(np.uint8)
    values[0, :3], values[2, 5] = 255, 0
    return values


def write_pgm(
    name: str,
    time: str = TIMES[0],
    values: np.ndarray | None = None,
    largest: int = 255,
    param: str = "CorrectedReflectivity",
    lost_bytes: int = 0,
) -> None:
    values = stored_bytes() if values is None else values
    lines = ["P5", "# composite_area FIN", f"# obstime {time}", f"# param {param}"]
    lines += ["# metersperpixel_x 999.7", "# metersperpixel_y 1000.2", "# projection radar {"]
    lines += ["# type stereographic", "# bottomleft 18.6 57.93", "# }"]
    lines += [f"{values.shape[1]} {values.shape[0]}", str(largest)]
    content = "\n".join(lines).encode() + b"\n" + values.tobytes()
    content = content[: len(content) - lost_bytes]
    Path(name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)


def write_odim(
    name: str,
    time: str = TIMES[0],
    values: np.ndarray | None = None,
    quantity: str = "RATE",
    kind: str = "COMP",
    scale: float = 1000.0,
    what: dict | None = None,
    how: dict | None = None,
) -> None:
    """Write a file whose first dataset is a quality index, as many weather services do."""
    values = stored_bytes() if values is None else values
    with h5py.File(name, "w") as file:
        file.attrs["Conventions"] = np.bytes_("ODIM_H5/V2_3")
        text = {"object": kind, "date": time[:8], "time": f"{time[8:]}00", "source": "ORG:247"}
        file.create_group("what").attrs.update({k: np.bytes_(v) for k, v in text.items()})
        where = {"projdef": np.bytes_("+proj=laea"), "xscale": scale, "yscale": scale}
        where |= {"LL_lon": -10.4, "LL_lat": 31.7, "xsize": 8, "ysize": 6}
        file.create_group("where").attrs.update(where)
        if how:
            file.create_group("how").attrs.update(how)
        part = file.create_group("dataset1")
        period = {"startdate": time[:8], "starttime": "115000"}
        period |= {"enddate": time[:8], "endtime": "120000"}
        part.create_group("what").attrs.update({k: np.bytes_(v) for k, v in period.items()})
        for k, own in ((1, "QIND"), (2, quantity)):
            data = part.create_group(f"data{k}")
            data["data"] = values
            own_what = {"quantity": np.bytes_(own), "gain": 0.5, "offset": -32.0}
            own_what |= {"nodata": 255.0, "undetect": 0.0}
            data.create_group("what").attrs.update(own_what | (what or {}))


def write_knmi(name: str, parameter: str = "PRECIP_[MM]", formula: str = "GEO=0.01*PV+0.0"):
    values = np.arange(48, dtype=np.uint16).reshape(6, 8)
    values[0, :2] = 65535, 65534
    with h5py.File(name, "w") as file:
        overview = file.create_group("overview")
        overview.attrs["product_datetime_start"] = np.bytes_("26-AUG-2010;00:00:00.000")
        overview.attrs["product_datetime_end"] = np.bytes_("26-AUG-2010;00:05:00.000")
        image = file.create_group("image1")
        image.attrs["image_geo_parameter"] = np.bytes_(parameter)
        image["image_data"] = values
        calibration = image.create_group("calibration")
        calibration.attrs["calibration_formulas"] = np.bytes_(formula)
        calibration.attrs["calibration_missing_data"] = np.array([65534])
        calibration.attrs["calibration_out_of_image"] = np.array([65535])
        place = file.create_group("geographic")
        place.attrs.update({"geo_pixel_size_x": 1.0, "geo_pixel_size_y": -1.0})
        place.attrs.update({"geo_row_offset": 3650.0, "geo_column_offset": 0.0})
        projection = {"projection_proj4_params": np.bytes_("+p=stere")}
        place.create_group("map_projection").attrs.update(projection)


# ---- Values, times and coordinates


@pytest.mark.parametrize("suffix", [".pgm", ".pgm.gz"])
def test_finnish_images(suffix):
    for k in (2, 0, 1):  # named in another order than that of time
        write_pgm(f"image{2 - k}{suffix}", TIMES[k], stored_bytes(k))
    rain = open_radar(Path())
    assert rain.dims == ("time", "y", "x") and rain.dtype == np.float32
    assert rain.time.values.astype("datetime64[m]").astype(str).tolist() == [
        f"2026-07-01T12:{minute}" for minute in ("00", "05", "10")
    ]
    assert rain.attrs["units"] == "mm h-1" and "stereographic" in rain.attrs["projection"]
    np.testing.assert_allclose(rain.x[:2], [499.85, 1499.55])
    np.testing.assert_allclose(rain.y[[0, -1]], [5.5 * 1000.2, 500.1])
    for k in range(3):
        stored = stored_bytes(k)
        expected = (10 ** ((stored / 2 - 32) / 10) / 223) ** (1 / 1.53)
        expected = np.where(stored == 255, np.nan, np.where(expected < 0.1, 0, expected))
        np.testing.assert_allclose(rain[k], expected, rtol=1e-6)


def test_files_are_read_when_they_are_used():
    write_pgm("a.pgm")
    write_pgm("b.pgm", TIMES[1], lost_bytes=5)
    rain = open_radar("*.pgm")
    assert rain.chunks[0] == (1, 1) and rain[0].load().max() > 0
    with pytest.raises(FileError, match=r"b\.pgm has 43 of 48 cells; it is cut off"):
        rain[1].load()


@pytest.mark.parametrize(
    "quantity, expected",
    [
        ("RATE", lambda stored: stored / 2 - 32),
        ("ACRR", lambda stored: 6 * (stored / 2 - 32)),  # ten minutes
        ("DBZH", lambda stored: (10 ** ((stored / 2 - 32) / 10) / 200) ** (1 / 1.6)),
    ],
)
def test_quantities_of_odim(quantity, expected):
    write_odim("a.h5", quantity=quantity)
    rain, stored = open_radar("a.h5"), stored_bytes()
    rates = expected(stored.astype(float))
    rates = np.where(rates < 0.1, 0, rates)
    rates = np.where(stored == 255, np.nan, np.where(stored == 0, 0, rates))
    np.testing.assert_allclose(rain[0], rates, rtol=1e-6)
    assert str(rain.time.values[0]).startswith("2026-07-01T12:00")
    assert rain.x.values[0] == 500 and rain.y.values[0] == 5500
    assert rain.attrs["projection"] == "+proj=laea" and rain.attrs["lower_left"] == [-10.4, 31.7]


def test_relations_of_reflectivity_and_rain():
    rates = np.full((6, 8), 4.0)
    stored = np.round(2 * dbz(rates, 300, 1.4) + 64).astype(np.uint8)
    write_odim("a.h5", values=stored, quantity="TH", how={"zr_a": 300.0, "zr_b": 1.4})
    assert abs(open_radar("a.h5") - 4).max() < 0.2
    other = (300 * 4**1.4 / 100) ** (1 / 1.6)
    assert abs(open_radar("a.h5", zr=(100, 1.6)) - other).max() < 0.05 * other
    assert (open_radar("a.h5", threshold=5) == 0).all()


def test_quantity_is_chosen():
    write_odim("a.h5", quantity="DBZH")
    assert (open_radar("a.h5", variable="DBZH") == open_radar("a.h5")).any()
    with pytest.raises(FileError, match="QIND, DBZH, and 'RATE' is asked for"):
        open_radar("a.h5", variable="RATE")


def test_attributes_may_belong_to_the_dataset():
    write_odim("a.h5")
    with h5py.File("a.h5", "a") as file:
        del file["dataset1/data1"]
        own = dict(file["dataset1/data2/what"].attrs)
        del file["dataset1/data2/what"]
        file["dataset1/what"].attrs.update(own)
        file.move("where", "dataset1/where")
    assert float(open_radar("a.h5").max()) == stored_bytes()[1:].max() / 2 - 32


def test_images_of_knmi():
    write_knmi("a.h5")
    rain = open_radar("a.h5")
    assert str(rain.time.values[0]).startswith("2010-08-26T00:05")
    stored = np.arange(48.0).reshape(6, 8)
    expected = np.where(stored < 1, 0, stored * 0.12)  # hundredths of a millimetre in 5 minutes
    expected[0, :2] = np.nan
    np.testing.assert_allclose(rain[0], expected, rtol=1e-6)
    assert rain.y.values[0] == -3650500 and rain.y.values[-1] == -3655500
    assert rain.attrs["projection"] == "+p=stere"
    write_knmi("b.h5", "REFLECTIVITY_[DBZ]", "GEO = 0.5 * PV + -32.0")
    expected = (10 ** ((47 / 2 - 32) / 10) / 200) ** (1 / 1.6)
    assert float(open_radar("b.h5", threshold=0)[0, -1, -1]) == pytest.approx(expected)


@pytest.mark.parametrize(
    "units, factor",
    [("mm/h", 1), ("kg m-2 s-1", 3600), ("m s-1", 3.6e6), ("mm day-1", 1 / 24), ("mm/hour", 1)],
)
def test_netcdf_files_in_several_units(units, factor):
    rain = synthetic_rain([0, 5, 10], cells=12)
    for k in (1, 0, 2):
        field = (rain[k] / factor).assign_attrs(units=units)  # its time is a scalar
        field.to_netcdf(f"{2 - k}.nc")
    ours = open_radar(["2.nc", "0.nc", "1.nc"])
    np.testing.assert_allclose(ours, rain, rtol=1e-5)
    assert (ours.time == rain.time).all() and ours.attrs["units"] == "mm h-1"
    np.testing.assert_allclose(open_radar("0.nc", threshold=2)[0].max(), rain[2].max(), rtol=1e-5)


def test_netcdf_with_reflectivity():
    rain = synthetic_rain([0, 5], cells=12)
    field = rain.copy(data=dbz(rain.values, 200, 1.6)).assign_attrs(units="dBZ")
    field.where(field.x > 20).to_netcdf("a.nc")
    ours = open_radar("a.nc")
    np.testing.assert_allclose(ours, rain.where(rain.x > 20), rtol=1e-5)


# ---- Bad files


def bad_pgm_without_time():
    write_pgm("a.pgm")
    content = Path("a.pgm").read_bytes()
    Path("a.pgm").write_bytes(content.replace(b"# obstime", b"# moment"))


def bad_pgm_cut_in_the_header():
    write_pgm("a.pgm")
    Path("a.pgm").write_bytes(Path("a.pgm").read_bytes()[:60])


def bad_gzip_cut_off():
    write_pgm("a.pgm.gz", values=np.random.default_rng(0).integers(0, 255, (60, 80), np.uint8))
    Path("a.pgm.gz").write_bytes(Path("a.pgm.gz").read_bytes()[:900])


def bad_hdf5_of_another_kind():
    with h5py.File("a.h5", "w") as file:
        file["values"] = np.zeros(3)


def bad_odim_without_scale():
    write_odim("a.h5")
    with h5py.File("a.h5", "a") as file:
        del file["where"].attrs["yscale"]


def bad_two_formats():
    write_pgm("a.pgm")
    write_odim("b.h5")


def bad_two_sizes(write, suffix):
    write(f"a.{suffix}")
    write(f"b.{suffix}", TIMES[1], stored_bytes()[:, :7])


def write_netcdf(name: str, field: xr.DataArray) -> None:
    field.to_netcdf(name)


RAIN = synthetic_rain([0, 5], cells=12)
BAD = {  # a function that writes files, and the message
    "no file": (lambda: None, "The folder . holds no file whose name ends in .pgm"),
    "time": (bad_pgm_without_time, "a.pgm has no line '# obstime …' in its header"),
    "header": (bad_pgm_cut_in_the_header, "Cannot read a.pgm as PGM: the header ends early"),
    "cut off": (bad_gzip_cut_off, "Cannot read a.pgm.gz as PGM"),
    "no gzip": (lambda: Path("a.pgm.gz").write_text("P5"), "Cannot read a.pgm.gz as PGM"),
    "text": (lambda: Path("a.pgm").write_text("P2\n3 3 255\n"), "'P2' instead of 'P5'"),
    "16 bits": (lambda: write_pgm("a.pgm", largest=65535), "values up to 65535; give images of"),
    "rain in a PGM": (lambda: write_pgm("a.pgm", param="Height"), "a.pgm holds Height; give"),
    "words": (lambda: Path("a.h5").write_text("no field"), "Cannot read a.h5 as HDF5"),
    "other HDF5": (bad_hdf5_of_another_kind, "a.h5 is HDF5, but follows neither ODIM nor KNMI"),
    "winds": (lambda: write_odim("a.h5", quantity="VRADH"), "holds the quantities QIND, VRADH;"),
    "polar": (lambda: write_odim("a.h5", kind="PVOL"), "the ODIM object PVOL, which is not an"),
    "no scale": (bad_odim_without_scale, "Cannot read a.h5 as HDF5: it has no attribute 'yscale'"),
    "bad date": (lambda: write_odim("a.h5", "today1200000"), "Cannot read a.h5 as HDF5: time data"),
    "formula": (lambda: write_knmi("a.h5", formula="GEO=PV"), "the calibration 'GEO=PV'; a"),
    "KNMI heights": (lambda: write_knmi("a.h5", "HEIGHT_[KM]"), "a.h5 holds HEIGHT_[KM]; give"),
    "formats": (bad_two_formats, "a.pgm and b.h5 have different formats"),
    "equal times": (
        lambda: [write_pgm(name) for name in ("a.pgm", "b.pgm")],
        "a.pgm and b.pgm both hold the time 2026-07-01T12:00:00; leave",
    ),
    "sizes": (lambda: bad_two_sizes(write_pgm, "pgm"), "b.pgm has 6×7 cells of 1000.2×999.7 m"),
    "scales": (
        lambda: [write_odim("a.h5"), write_odim("b.h5", TIMES[1], scale=2000.0)],
        "b.h5 has 6×8 cells of 2000×2000 m and a.h5 6×8 cells of 1000×1000 m",
    ),
    "temperature": (
        lambda: write_netcdf("a.nc", RAIN.assign_attrs(units="K")),
        "a.nc holds rain_rate in K; set the attribute units",
    ),
    "NetCDF times": (
        lambda: [write_netcdf("a.nc", RAIN), write_netcdf("b.nc", RAIN[1:])],
        "a.nc and b.nc both hold the time 2026-07-01T12:05:00; leave",
    ),
    "NetCDF sizes": (
        lambda: [write_netcdf("a.nc", RAIN[:1]), write_netcdf("b.nc", RAIN[1:, :5])],
        "b.nc has the shape {'time': 1, 'y': 5, 'x': 12} and a.nc",
    ),
    "NetCDF places": (
        lambda: [
            write_netcdf("a.nc", RAIN[:1]),
            write_netcdf("b.nc", RAIN[1:].assign_coords(x=RAIN.x + 1)),
        ],
        "b.nc and a.nc have different coordinates 'x'",
    ),
    "no NetCDF time": (
        lambda: [write_netcdf(name, RAIN[0].drop_vars("time")) for name in ("a.nc", "b.nc")],
        "The time dimension of y, x is ambiguous; name it",
    ),
    "frames without times": (
        lambda: [write_netcdf(name, RAIN.drop_vars("time")) for name in ("a.nc", "b.nc")],
        "a.nc has no coordinate 'time'; add the times of its frames",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case):
    write, message = BAD[case]
    write()
    with pytest.raises(GeonetError) as caught:
        open_radar(".").load()
    assert message in str(caught.value)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"files": "absent.h5"}, "There is no file absent.h5"),
        ({"files": "absent/*.h5"}, "No file matches absent/*.h5"),
        ({"files": []}, "No file is given"),
        ({"files": "a.pgm", "zr": (200,)}, "zr is (200,); give two numbers"),
        ({"files": "a.pgm", "zr": (200, -1)}, "zr is (200, -1); give two numbers"),
        ({"files": "a.pgm", "threshold": -1}, "threshold is -1; give a rain rate"),
        ({"files": "a.pgm", "variable": "foo"}, "holds one field, rain_rate, and 'foo' is asked"),
    ],
)
def test_bad_arguments(arguments, message):
    write_pgm("a.pgm")
    with pytest.raises(InputError) as caught:
        open_radar(**arguments)
    assert message in str(caught.value)
