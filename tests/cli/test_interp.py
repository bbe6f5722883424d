"""`geonet interp`: input files, output files, and resuming after an interruption."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from geonet.cli import interp as module
from geonet.cli import output as printing
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
        run, calls = module.run_interruptibly, []

        def run_counted(work, show):
            if len(calls) == 3:  # one check of all frames, and two parts
                raise KeyboardInterrupt
            calls.append(1)
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
    assert run(*command, "--time", "hour", "--space", "row, column").code == 0
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
    message = run_failing(*command)
    assert "rain_rate at time 2026-07-01T12:00:00 has 1 of" in message  # no fraction of a second
    assert "give --missing exclude to leave them out, or --missing 0 to fill them" in message
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
        (
            ("words.png", "--every", "2min", "-o", "a.nc"),
            "words.png is no NetCDF, Zarr or radar file; give a file whose name ends in .nc",
        ),
        (("rain.nc", "--every", "2min", "-o", "a.png"), "give a name that ends in .nc or .zarr"),
        (("rain.nc", "--every", "2min", "-o", "rain.nc"), "rain.nc exists; remove it"),
        (("rain.nc", "--every", "2min", "-o", "no/a.nc"), "The folder no does not exist"),
        (("rain.nc", "--every", "soon", "-o", "a.nc"), "--every is 'soon'; give a duration"),
        (
            ("rain.nc", "--every", "60", "-o", "a.nc"),
            "is 60 without a unit, and the times are dates",
        ),
        (("rain.nc", "--every", "1ns", "-o", "a.nc"), "--every 1ns gives 2.4e+12 frames"),
        (("no times.nc", "--every", "5", "-o", "a.nc"), "times hold 1 without a value"),
        (
            ("rain.nc", "--every", "2min", "-o", "a.nc", "--variable", "snow"),
            "rain.nc holds no 'snow'; it holds rain_rate",
        ),
    ],
)
def test_bad_input(run_failing, rain, arguments, message):
    for name in ("words.nc", "words.png"):
        Path(name).write_text("no field")
    rain.assign_coords(time=[0, 1, np.nan, 3, 4]).to_netcdf("no times.nc")
    assert message in run_failing("interp", *arguments)
    assert not Path("a.nc").exists() and not list(Path().glob(".*"))


# ---- Several files


def save_frames(rain: xr.DataArray, names: str = "abcde") -> None:
    for name, frame in zip(names, rain, strict=True):
        frame.to_netcdf(f"{name}.nc")


@pytest.mark.parametrize("files", [["."], ["*.nc"], ["e.nc", "a.nc", "d.nc", "c.nc", "b.nc"]])
def test_several_files_are_sorted_by_time(run, files):
    rain = synthetic_rain(range(0, 41, 10), cells=24)
    save_frames(rain, "caebd")
    assert run("interp", *files, "--every", "5min", "-o", "fine.zarr").code == 0
    result = load_field("fine.zarr")
    expected = rain.geonet.interp(time=result.time.values).astype("float32")
    assert (result.values == expected.values).all() and result.attrs == rain.attrs


def test_radar_images_with_a_mask(run, run_failing):
    rain = synthetic_rain([0, 5, 10], cells=24)
    for k, minute in enumerate((5, 0, 10)):
        rates = rain[minute // 5].values
        with np.errstate(divide="ignore"):
            stored = np.round(2 * 10 * np.log10(223 * rates**1.53) + 64).clip(0, 254)
        stored[:4] = 255
        header = f"P5\n# obstime 2026070112{minute:02}\n# metersperpixel_x 8000\n"
        header += "# metersperpixel_y 8000\n24 24\n255\n"
        Path(f"{k}.pgm").write_bytes(header.encode() + stored.astype(np.uint8).tobytes())
    command = ("interp", "*.pgm", "--every", "150s", "-o", "fine.nc")
    assert "rain_rate at time 2026-07-01T12:00:00" in run_failing(*command)
    assert "holds one field, rain_rate" in run_failing(*command, "--variable", "foo")
    assert run(*command, "--missing", "exclude", "--variable", "rain_rate").code == 0
    result = load_field("fine.nc")
    assert result.sizes["time"] == 5 and result.attrs["units"] == "mm h-1"
    assert result[:, :4].isnull().all() and not result[:, 4:].isnull().any()
    np.testing.assert_allclose(result[::2, 4:], rain[:, 4:], rtol=0.1, atol=0.11)


def test_all_frames_are_checked_before_the_first_pair(run_failing, rain, monkeypatch):
    def fail(*_):
        raise AssertionError("a pair was solved")

    monkeypatch.setattr(module._Interpolation, "interpolate", fail)
    bad = rain.copy()
    bad[4, 3, 3] = -1.0
    bad.to_netcdf("bad.nc")
    message = run_failing("interp", "bad.nc", "--every", "5min", "-o", "fine.nc")
    assert "rain_rate at time 2026-07-01T12:40" in message and "--clip" in message
    assert not list(Path().glob(".*"))


def test_negative_values_are_clipped(run, rain):
    noisy = rain.where(rain > 0, -1e-3)
    noisy.to_netcdf("noisy.nc")
    assert run("interp", "noisy.nc", "--every", "5min", "-o", "fine.nc", "--clip").code == 0
    expected = rain.geonet.interp(time=load_field("fine.nc").time.values)
    np.testing.assert_array_equal(load_field("fine.nc"), expected.astype("float32"))


def test_output_is_compressed(run, rain):
    assert run("interp", "rain.nc", "--every", "1min", "-o", "fine.nc").code == 0
    result = load_field("fine.nc")
    assert Path("fine.nc").stat().st_size < 0.7 * result.nbytes
    with xr.open_dataset("fine.nc") as data:
        assert data.rain_rate.encoding["zlib"]


@pytest.mark.filterwarnings("always::geonet.errors.ConvergenceWarning")
def test_pairs_that_did_not_converge_are_marked_and_listed(run, rain):
    still = xr.concat([rain[:1].assign_coords(time=rain.time[:1] - 600 * 10**9), rain], "time")
    still[0] = rain[0]
    still[:3].to_netcdf("three.nc")
    command = ("interp", "three.nc", "--every", "5min", "-o", "fine.nc", "--solver", "midpoint")
    options = ("--motion", "none", "--option", "max_iterations=1", "--option", "refine=false")
    code, out, err = run(*command, *options)
    assert code == 1
    assert "Not converged: 1 of 2 pairs, 1 frame with converged = false:\n" in out
    assert out.endswith("  2026-07-01T12:00:00 to 2026-07-01T12:10:00\n")
    assert err.startswith("warning: rain_rate at time 2026-07-01T12:00:00")
    assert "report" not in err
    assert load_field("fine.nc").converged.values.tolist() == [True, True, True, False, True]


def test_time_left_is_estimated(run, rain, monkeypatch):
    clock = iter(range(0, 100_000, 60))
    monkeypatch.setattr(printing, "PROGRESS_DELAY", 0.0)
    monkeypatch.setattr(printing, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(ResumableWriter, "max_pairs", 1)
    _, _, err = run("interp", "rain.nc", "--every", "1min", "-o", "fine.nc")
    assert "of 41 frames done, about " in err and " left" in err


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("folder",), "The folder folder holds no file whose name ends in .pgm"),
        (("b*.nc",), "No file matches b*.nc; check the pattern"),
        (("a.nc", "absent.nc"), "There is no file absent.nc; check the path"),
        (("a.nc", "again.nc"), "a.nc and again.nc both hold the time 2026-07-01T12:00:00; leave"),
        (("a.nc", "small.nc"), "small.nc has the shape {'time': 1, 'y': 24, 'x': 9} and a.nc"),
        (("a.nc", "image.pgm"), "image.pgm and a.nc have different formats"),
        (("image.pgm",), "Cannot read image.pgm as PGM: the header ends early"),
        (("a.nc",), "The field has 1 frame along 'time'; give two or more"),
        (("a.nc", "snow.nc"), "snow.nc holds no 'rain_rate'; it holds snow"),
    ],
)
def test_bad_lists_of_files(run_failing, arguments, message):
    rain = synthetic_rain([0, 10], cells=24)
    Path("folder").mkdir()
    Path("image.pgm").write_text("P5\n")
    rain[0].to_netcdf("a.nc")
    rain[0].to_netcdf("again.nc")
    rain[1, :, :9].to_netcdf("small.nc")
    rain[1].rename("snow").to_netcdf("snow.nc")
    assert message in run_failing("interp", *arguments, "--every", "2min", "-o", "fine.nc")
    assert not Path("fine.nc").exists() and not list(Path().glob(".*"))


def test_unreachable_scheduler():
    with (
        pytest.raises(InputError, match="No scheduler answers at tcp://127.0.0.1:1"),
        connect_dask("tcp://127.0.0.1:1", timeout=1),
    ):
        pass


@pytest.mark.parametrize("words", [("--growth", "wfr"), ("--option", "growth=wfr")])
def test_growth(run, rain, run_failing, words):
    command = ("interp", "rain.nc", "--every", "5min", "-o", "fine.nc", "--motion", "none")
    assert "give --reach LENGTH, too" in run_failing(*command, *words)
    assert run(*command, "--reach", 12, *words).code == 0
    result = load_field("fine.nc")
    keywords = {"motion": None, "reach": 12.0, "growth": "wfr"}
    expected = rain.geonet.interp(time=result.time.values, **keywords).astype("float32")
    assert (result.values == expected.values).all()


def test_motion_and_reach(run, rain, run_failing):
    command = ("interp", "rain.nc", "--every", "5min", "-o")
    winds = rain.geonet.velocity(time=rain.time.values[0])
    winds.drop_vars("time").to_netcdf("winds.nc")
    options = {
        "none.nc": (("--motion", "none"), {"motion": None}),
        "winds.nc.nc": (("--motion", "winds.nc"), {"motion": winds.drop_vars("time")}),
        "reach.nc": (("--reach", "12"), {"reach": 12.0}),
        "both.nc": (("--reach", "12", "--motion", "none"), {"reach": 12.0, "motion": None}),
    }
    for output, (arguments, keywords) in options.items():
        assert run(*command, output, *arguments).code == 0
        result = load_field(output)
        expected = rain.geonet.interp(time=result.time.values, **keywords).astype("float32")
        assert (result.values == expected.values).all()
    message = "or leave it out for the motion alone"
    assert message in run_failing(*command, "bad.nc", "--reach", "0")
    assert "are the same" in run_failing(*command, "bad.nc", "--reach", "1", "--option", "reach=1")
    message = "give --motion none for the geodesic, or --reach LENGTH, too"
    assert message in run_failing(*command, "bad.nc", "--solver", "midpoint")
    Path("words.txt").write_text("no velocities")
    message = "words.txt is no NetCDF, Zarr or radar file"
    assert message in run_failing(*command, "bad.nc", "--motion", "words.txt")
    message = "--motion is 'nono'; give estimate, none or a file of velocities"
    assert message in run_failing(*command, "bad.nc", "--motion", "nono")
    assert "no variable 'velocity_y'" in run_failing(*command, "bad.nc", "--motion", "rain.nc")
    assert not list(Path().glob("bad*"))
