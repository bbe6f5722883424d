"""`geonet interp`: files in, files out, gone on with after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from geonet.cli import finer
from geonet.xarray import finer_file, synthetic_rain


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rain(tmp_path):
    """Five frames of 24² cells, ten minutes apart, in rain.nc."""
    made = synthetic_rain(range(0, 41, 10), cells=24)
    made.to_netcdf("rain.nc")
    return made


def opened(file: str, name: str = "rain_rate") -> xr.DataArray:
    how = xr.open_zarr(file) if file.endswith("zarr") else xr.open_dataset(file)
    with how as data:
        return data[name].load()


@pytest.mark.parametrize("output", ["fine.zarr", "fine.nc"])
def test_frames_are_put_between_and_written(run, rain, output):
    code, out, _ = run("interp", "rain.nc", "--every", "2min", "-o", output)
    assert code == 0 and out.startswith(f"{output}: 21 frames from 5\n")
    assert "Totals differ from frame to frame by up to" in out
    found = opened(output)
    expected = rain.geonet.interp(time=found.time.values)
    assert found.dtype == np.float32 and found.attrs == rain.attrs
    assert (found.values == expected.astype("float32").values).all()
    assert (found.values[::5] == rain.values).all()
    assert (found.time.values == expected.time.values).all()
    assert found.x.attrs == {"units": "km"}
    assert [file.name for file in Path().iterdir() if file.name[0] == "."] == []


def test_stores_are_read_too(run, rain):
    rain.to_zarr("rain.zarr", consolidated=False)
    assert run("interp", "rain.zarr", "--every", "5min", "-o", "fine.nc").code == 0
    assert opened("fine.nc").sizes["time"] == 9


def test_one_of_several_variables_is_chosen(run, refused, rain):
    xr.Dataset({"rain": rain, "snow": rain}).to_netcdf("both.nc")
    assert "both.nc holds the fields rain, snow; choose one with --variable" in refused(
        *("interp", "both.nc", "--every", "5min", "-o", "fine.nc")
    )
    command = ("interp", "both.nc", "--every", "5min", "-o", "fine.nc", "--variable", "snow")
    assert run(*command).code == 0
    assert opened("fine.nc", "snow").sizes["time"] == 9


def test_steps_of_numbers_and_names_of_dimensions(run, rain):
    numbered = rain.assign_coords(time=np.arange(5.0)).rename(time="hour", y="row", x="column")
    numbered.to_netcdf("numbered.nc")
    command = ("interp", "numbered.nc", "--every", "0.5", "-o", "fine.nc")
    assert run(*command, "--time", "hour", "--space", "row,column").code == 0
    assert opened("fine.nc").hour.values.tolist() == np.arange(0, 4.1, 0.5).tolist()


def test_packed_files_stay_packed(run, rain):
    packing = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -1}
    rain.to_netcdf("packed.nc", encoding={"rain_rate": packing})
    assert run("interp", "packed.nc", "--every", "5min", "-o", "fine.nc").code == 0
    with xr.open_dataset("fine.nc") as found, xr.open_dataset("packed.nc") as given:
        assert found.rain_rate.encoding["dtype"] == np.int16
        assert found.rain_rate.encoding["scale_factor"] == 0.01
        assert (found.rain_rate.values[::2] == given.rain_rate.values).all()


def test_whole_numbers_get_fractions_between(run, rain):
    counts = (10 * rain).astype("int32")
    counts.to_netcdf("counts.nc")
    assert run("interp", "counts.nc", "--every", "5min", "-o", "fine.nc").code == 0
    found = opened("fine.nc")
    assert found.dtype == np.float64 and (found.values[::2] == counts.values).all()
    assert (found.values[1] % 1 != 0).any()


def test_missing_cells_and_empty_frames_are_told(run, refused, rain):
    gappy = rain.where(rain.time != rain.time[2], 0.0)
    gappy[0, 3, 3] = np.nan
    gappy.to_netcdf("gappy.nc")
    command = ("interp", "gappy.nc", "--every", "5min", "-o", "fine.nc")
    assert "rain_rate at time 2026-07-01T12:00:00" in refused(*command)
    assert "--missing exclude" in refused(*command)
    code, out, _ = run(*command, "--missing", "exclude")
    assert code == 0
    assert "2 frames faded: between two of which one is empty nothing moves.\n" in out
    assert np.isnan(opened("fine.nc").values[1, 3, 3])


def test_an_interrupted_run_is_gone_on_with(run, rain, monkeypatch):
    monkeypatch.setattr(finer_file, "PAIRS", 1)
    command = ("interp", "rain.nc", "--every", "2min", "-o", "fine.zarr")
    wait, solved = finer.waited_for, []

    def interrupted(work, show):
        if len(solved) == 2:
            raise KeyboardInterrupt
        solved.append(1)
        return wait(work, show)

    monkeypatch.setattr(finer, "waited_for", interrupted)
    code, _, err = run(*command)
    assert code == 130
    assert err == "error: Interrupted: 10 of 21 frames are done; the same command goes on.\n"
    assert not Path("fine.zarr").exists()
    monkeypatch.setattr(finer, "waited_for", wait)
    code, out, _ = run(*command)
    assert code == 0 and out.startswith("fine.zarr: 21 frames from 5, 10 were there already\n")
    found = opened("fine.zarr")
    expected = rain.geonet.interp(time=found.time.values).astype("float32")
    assert (found.values == expected.values).all()


def test_what_is_there_of_another_recipe_is_not_taken(run, rain, monkeypatch):
    folder = Path(".fine.zarr.partial")
    folder.mkdir()
    (folder / "done.json").write_text(json.dumps({"parts": 1, "recipe": {"every": "1min"}}))
    code, out, _ = run("interp", "rain.nc", "--every", "5min", "-o", "fine.zarr")
    assert code == 0 and out.startswith("fine.zarr: 9 frames from 5\n")


def test_uneven_parts_are_written_whole(run, rain, monkeypatch):
    monkeypatch.setattr(finer_file, "PAIRS", 1)
    assert run("interp", "rain.nc", "--every", "7min", "-o", "fine.zarr").code == 0
    found = opened("fine.zarr")
    expected = rain.geonet.interp(time=found.time.values).astype("float32")
    assert found.sizes["time"] == 6 and (found.values == expected.values).all()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("absent.nc", "--every", "2min", "-o", "a.nc"), "There is no file absent.nc"),
        (("words.nc", "--every", "2min", "-o", "a.nc"), "Cannot read words.nc as NetCDF or Zarr"),
        (("rain.nc", "--every", "2min", "-o", "a.png"), "give a name that ends in .nc or .zarr"),
        (("rain.nc", "--every", "2min", "-o", "rain.nc"), "rain.nc is there already; remove it"),
        (("rain.nc", "--every", "2min", "-o", "no/a.nc"), "The folder no does not exist"),
        (("rain.nc", "--every", "soon", "-o", "a.nc"), "--every is 'soon'; give a duration"),
        (("rain.nc", "--every", "-2min", "-o", "a.nc"), "--every is '-2min'; give a duration"),
        (("rain.nc", "--every", "1ns", "-o", "a.nc"), "--every"),
        (("rain.nc", "--every", "1us", "-o", "a.nc"), "frames; give a longer step"),
        (
            ("rain.nc", "--every", "2min", "-o", "a.nc", "--variable", "snow"),
            "rain.nc holds no 'snow'; it holds rain_rate",
        ),
        (
            ("rain.nc", "--every", "2min", "-o", "a.nc", "--missing", "zero"),
            "--missing is 'zero'; give refuse, exclude or a number",
        ),
        (
            ("rain.nc", "--every", "2min", "-o", "a.nc", "--space", "a,b"),
            "The field has no dimension 'a'",
        ),
        (
            ("rain.nc", "--every", "2min", "-o", "a.nc", "--time", "hour"),
            "The field has no dimension 'hour'",
        ),
        (
            ("rain.nc", "--every", "2min", "-o", "a.nc", "--solver", "teleport"),
            "teleport",
        ),
        (
            ("rain.nc", "--every", "2min", "-o", "a.nc", "--scheduler", "tcp://127.0.0.1:1"),
            "No scheduler answers at tcp://127.0.0.1:1; start one",
        ),
    ],
)
def test_bad_input_is_refused_in_a_line(refused, rain, arguments, message, monkeypatch):
    monkeypatch.setattr("geonet.cli.cluster.PATIENCE", 1)
    Path("words.nc").write_text("no field")
    assert message in refused("interp", *arguments)
    assert not Path("a.nc").exists()
