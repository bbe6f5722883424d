"""`geonet interp`: input files, output files, and resuming after an interruption."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from geonet.cli import interp as module
from geonet.cli.output import connect_dask
from geonet.errors import InputError
from geonet.xarray import synthetic_rain
from geonet.xarray.files import ResumableWriter


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rain(tmp_path):
    """Five frames of 24² cells, ten minutes apart, saved in rain.nc."""
    field = synthetic_rain(range(0, 41, 10), cells=24)
    field.to_netcdf("rain.nc")
    return field


@pytest.fixture
def interrupted(monkeypatch):
    """Context in which Ctrl-C comes after two parts."""

    @contextmanager
    def after_two_parts():
        run, solved = module.run_interruptibly, []

        def run_counted(work, show):
            if len(solved) == 2:
                raise KeyboardInterrupt
            solved.append(1)
            return run(work, show)

        with monkeypatch.context() as patched:
            patched.setattr(module, "run_interruptibly", run_counted)
            yield

    return after_two_parts()


def load_field(file: str, name: str = "rain_rate") -> xr.DataArray:
    data = xr.open_zarr(file) if file.endswith("zarr") else xr.open_dataset(file)
    with data:
        return data[name].load()


@pytest.mark.parametrize("output", ["fine.zarr", "fine.nc"])
def test_frames_are_interpolated_and_written(run, rain, output):
    code, out, _ = run("interp", "rain.nc", "--every", "2min", "-o", output)
    assert code == 0 and out.startswith(f"{output}: 21 frames from 5\n")
    assert "Totals differ between frames by up to" in out
    result = load_field(output)
    expected = rain.geonet.interp(time=result.time.values)
    assert result.dtype == np.float32 and result.attrs == rain.attrs
    assert (result.values == expected.astype("float32").values).all()
    assert (result.values[::5] == rain.values).all()
    assert (result.time.values == expected.time.values).all()
    assert result.x.attrs == {"units": "km"}
    assert not list(Path().glob(".*"))


def test_variable_is_chosen(run, run_failing, rain):
    xr.Dataset({"rain": rain, "snow": rain}).to_netcdf("both.nc")
    assert "both.nc holds the fields rain, snow; choose one with --variable" in run_failing(
        *("interp", "both.nc", "--every", "5min", "-o", "fine.nc")
    )
    command = ("interp", "both.nc", "--every", "5min", "-o", "fine.nc", "--variable", "snow")
    assert run(*command).code == 0
    assert load_field("fine.nc", "snow").sizes["time"] == 9


def test_numeric_steps_and_names_of_dimensions(run, rain):
    numbered = rain.assign_coords(time=np.arange(5.0)).rename(time="hour", y="row", x="column")
    numbered.to_netcdf("numbered.nc")
    command = ("interp", "numbered.nc", "--every", "0.5", "-o", "fine.nc")
    assert run(*command, "--time", "hour", "--space", "row,column").code == 0
    assert load_field("fine.nc").hour.values.tolist() == np.arange(0, 4.1, 0.5).tolist()


PACKINGS = {
    "short": {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -1},
    "unsigned": {"dtype": "uint8", "scale_factor": 0.2, "_FillValue": 255},
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_values_are_written_as_floats(run, rain, packing):
    gappy = rain.where((rain.x > 20) | (rain.y > 20))
    gappy.to_netcdf("packed.nc", encoding={"rain_rate": PACKINGS[packing]})
    command = ("interp", "packed.nc", "--every", "5min", "-o", "fine.nc", "--missing", "exclude")
    assert run(*command).code == 0
    with xr.open_dataset("packed.nc") as given:
        assert (
            load_field("fine.nc")[::2].fillna(-9).values == given.rain_rate.fillna(-9).values
        ).all()
    assert load_field("fine.nc").isnull().any()


def test_missing_cells_and_empty_frames_are_reported(run, run_failing, rain):
    gappy = rain.where(rain.time != rain.time[2], 0.0)
    gappy[0, 3, 3] = np.nan
    gappy.to_netcdf("gappy.nc")
    command = ("interp", "gappy.nc", "--every", "5min", "-o", "fine.nc")
    assert "rain_rate at time 2026-07-01T12:00:00" in run_failing(*command)
    assert "set missing to 'exclude'" in run_failing(*command)
    code, out, _ = run(*command, "--missing", "exclude")
    assert code == 0
    assert "Frames next to an empty frame are faded; see the coordinate faded" in out
    result = load_field("fine.nc")
    assert np.isnan(result.values[1, 3, 3])
    assert np.flatnonzero(result.faded.values).tolist() == [3, 5]


def test_interrupted_run_resumes(run, rain, monkeypatch, interrupted):
    monkeypatch.setattr(ResumableWriter, "max_pairs", 1)
    command = ("interp", "rain.nc", "--every", "2min", "-o", "fine.zarr")
    with interrupted:
        code, _, err = run(*command)
    assert code == 130
    assert err == "error: Interrupted: 10 of 21 frames are done; the same command resumes.\n"
    assert not Path("fine.zarr").exists()
    code, out, _ = run(*command)
    assert code == 0 and out.startswith("fine.zarr: 21 frames from 5, 10 existed already\n")
    result = load_field("fine.zarr")
    expected = rain.geonet.interp(time=result.time.values).astype("float32")
    assert (result.values == expected.values).all()
    assert run(*command[:-1], "whole.zarr").out.splitlines()[1:] == out.splitlines()[1:]


@pytest.mark.parametrize("max_values", [1, 7 * 24**2])
def test_parts_are_limited_in_size(run, rain, monkeypatch, max_values):
    monkeypatch.setattr(ResumableWriter, "max_values", max_values)
    assert run("interp", "rain.nc", "--every", "3min", "-o", "fine.zarr").code == 0
    result = load_field("fine.zarr")
    expected = rain.geonet.interp(time=result.time.values).astype("float32")
    assert (result.values == expected.values).all()
    assert max(xr.open_zarr("fine.zarr").rain_rate.chunks[0]) <= max(1, max_values // 24**2)


@pytest.mark.filterwarnings("ignore:.*Zarr format 3 specification")  # of older versions
def test_projection_and_attributes_are_kept(run, rain):
    mapped = rain.assign_coords(crs=0, name=("y", [f"row {k}" for k in range(24)]))
    mapped.crs.attrs = {"grid_mapping_name": "stereographic"}
    data = mapped.to_dataset().assign_attrs(title="Rain")
    data["rain_rate"].encoding = {"grid_mapping": "crs"}
    data["time_bnds"] = (("time", "nv"), np.zeros((5, 2)))
    data.time.attrs["bounds"] = "time_bnds"
    data.time.encoding["units"] = "minutes since 2026-07-01"
    data.to_netcdf("mapped.nc")
    for output in ("fine.nc", "fine.zarr"):
        assert run("interp", "mapped.nc", "--every", "5min", "-o", output).code == 0
        open_it = xr.open_dataset if output.endswith("nc") else xr.open_zarr
        with open_it(output) as result:
            assert result.attrs["title"] == "Rain"
            assert result.rain_rate.attrs["grid_mapping"] == "crs"
            assert result.crs.attrs["grid_mapping_name"] == "stereographic"
            assert result.name.values[3] == "row 3"


def test_other_calendars_and_unsorted_frames(run, rain):
    dates = xr.date_range("2001-02-28", periods=5, freq="D", calendar="360_day", use_cftime=True)
    rain.assign_coords(time=dates).isel(time=[3, 0, 4, 1, 2]).to_netcdf("days.nc")
    assert run("interp", "days.nc", "--every", "12h", "-o", "fine.nc").code == 0
    assert (load_field("fine.nc").values[::2] == rain.values).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("absent.nc", "--every", "2min", "-o", "a.nc"), "There is no file absent.nc"),
        (("words.nc", "--every", "2min", "-o", "a.nc"), "Cannot read words.nc as NetCDF or Zarr"),
        (("rain.nc", "--every", "2min", "-o", "a.png"), "give a name that ends in .nc or .zarr"),
        (("rain.nc", "--every", "2min", "-o", "rain.nc"), "rain.nc exists; remove it"),
        (("rain.nc", "--every", "2min", "-o", "no/a.nc"), "The folder no does not exist"),
        (("rain.nc", "--every", "soon", "-o", "a.nc"), "--every is 'soon'; give a duration"),
        (("rain.nc", "--every", "1ns", "-o", "a.nc"), "--every 1ns gives 2.4e+12 frames"),
        (("no times.nc", "--every", "5", "-o", "a.nc"), "times hold 1 without a value"),
        (
            ("rain.nc", "--every", "2min", "-o", "a.nc", "--variable", "snow"),
            "rain.nc holds no 'snow'; it holds rain_rate",
        ),
    ],
)
def test_bad_input(run_failing, rain, arguments, message):
    Path("words.nc").write_text("no field")
    rain.assign_coords(time=[0, 1, np.nan, 3, 4]).to_netcdf("no times.nc")
    assert message in run_failing("interp", *arguments)
    assert not Path("a.nc").exists() and not list(Path().glob(".*"))


def test_unreachable_scheduler():
    with (
        pytest.raises(InputError, match="No scheduler answers at tcp://127.0.0.1:1"),
        connect_dask("tcp://127.0.0.1:1", timeout=1),
    ):
        pass
