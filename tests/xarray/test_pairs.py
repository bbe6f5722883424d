"""Scheduling: Dask arrays stay lazy, and threads and clusters give the bits of NumPy."""

from __future__ import annotations

import os
import time

import dask
import dask.array
import distributed
import numpy as np
import pytest
import xarray as xr

from geonet.errors import DensityError
from geonet.xarray import groups
from geonet.xarray.groups import keep_freed_memory

START, MINUTE = np.datetime64("2026-07-01T12:00", "ns"), np.timedelta64(1, "m")


def record_reads(rain: xr.DataArray, read: list[int]) -> xr.DataArray:
    """Return the field in chunks of one frame that record their numbers when they are read."""

    def load(block: np.ndarray, block_info=None) -> np.ndarray:
        read.append(block_info[0]["array-location"][0][0])
        return block

    chunks = dask.array.from_array(rain.values, chunks=(1, -1, -1))
    meta = np.empty((0, 0, 0))
    return rain.copy(data=dask.array.map_blocks(load, chunks, dtype=float, meta=meta))


def test_results_are_lazy(rain, fine):
    read: list[int] = []
    field = record_reads(rain, read)
    lazy = field.geonet.interp(time=fine, flag="faded")
    wind, report = field.geonet.velocity(time=fine), field.geonet.report()
    distance = field.geonet.distance()
    assert read == []
    for answer in (lazy.data, wind.velocity_x.data, report.distance.data, distance.data):
        assert isinstance(answer, dask.array.Array)
    lazy.compute()
    assert set(read) == {0, 1, 2, 3}


def test_only_needed_frames_are_read(rain):
    read: list[int] = []
    lazy = record_reads(rain, read).geonet
    lazy.interp(time=START + 15 * MINUTE, motion=None).compute(scheduler="sync")
    assert set(read) == {1, 2}
    read.clear()
    lazy.interp(time=START + 5 * MINUTE).compute(scheduler="sync")
    assert set(read) == {0, 1, 2}  # the motion depends on the next frame, too


@pytest.mark.parametrize("chunks", [{"time": 1}, {"time": 2, "x": 7}, {"time": -1, "member": 1}])
def test_dask_threads_give_the_bits_of_numpy(ensemble, fine, chunks):
    flags = {"flag": "faded", "converged": "converged"}
    expected = ensemble.geonet.interp(time=fine, **flags)
    lazy = ensemble.chunk(chunks).geonet.interp(time=fine, **flags)
    with dask.config.set(scheduler="threads", num_workers=2):
        result = lazy.compute()
    assert (expected.values == ensemble.geonet.interp(time=fine).values).all()
    assert expected.converged.all() and not expected.faded.any()
    assert result.equals(expected) and result.attrs == expected.attrs
    assert (result.values == expected.values).all() and result.dims == expected.dims


def test_report_distance_and_velocity_are_the_same(ensemble, fine):
    lazy = ensemble.chunk(time=2, member=1)
    xr.testing.assert_equal(lazy.geonet.report().compute(), ensemble.geonet.report())
    xr.testing.assert_equal(lazy.geonet.distance().compute(), ensemble.geonet.distance())
    expected = ensemble.geonet.velocity(time=fine)
    xr.testing.assert_equal(lazy.geonet.velocity(time=fine).compute(), expected)


def test_chunks_of_even_steps_fit_zarr(tmp_path, spots):
    rain = xr.DataArray(
        spots(7), {"time": START + np.arange(7) * 10 * MINUTE}, ("time", "y", "x"), "rain"
    )
    every = START + np.arange(31) * 2 * MINUTE
    lazy = rain.chunk(time=2).geonet.interp(time=every)
    assert lazy.chunks[0] == (10, 10, 10, 1)
    lazy.to_zarr(tmp_path / "fine.zarr", consolidated=False)
    again = xr.open_zarr(tmp_path / "fine.zarr", consolidated=False)["rain"]
    assert (again.values == rain.geonet.interp(time=every).values).all()


def test_fields_from_netcdf(rain, fine, tmp_path):
    rain.to_netcdf(tmp_path / "rain.nc")
    with xr.open_dataset(tmp_path / "rain.nc", chunks={"time": 2}) as stored:
        stored["rain"].geonet.interp(time=fine).to_netcdf(tmp_path / "fine.nc")
    with xr.open_dataset(tmp_path / "fine.nc") as opened:
        assert opened["rain"].load().equals(rain.geonet.interp(time=fine))


def test_errors_name_frame_and_member(ensemble, fine):
    values = ensemble.values.copy()
    values[2, 1, 5, 5] = -3.0
    lazy = ensemble.copy(data=values).chunk(time=2, member=1).geonet.interp(time=fine)
    message = r"rain at time 2026-07-01T12:20:00, member 7 has 1 negative value \(minimum -3\);"
    with pytest.raises(DensityError, match=message):
        lazy.compute()


@pytest.fixture(scope="module")
def client():
    """Client of two processes of one thread each."""
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "spawn"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as connected,
    ):
        yield connected


@pytest.mark.slow
def test_cluster_gives_the_bits_of_numpy(ensemble, fine, client):
    expected = ensemble.geonet.interp(time=fine)
    lazy = ensemble.chunk(time=1).geonet.interp(time=fine)
    future = client.compute(lazy)
    result = future.result()
    assert (result.values == expected.values).all()


@pytest.mark.slow
def test_killed_worker_changes_nothing(ensemble, fine, client, tmp_path):
    expected = ensemble.geonet.interp(time=fine)
    victim, died = next(iter(client.scheduler_info()["workers"])), tmp_path / "died"

    def die_once(block: np.ndarray) -> np.ndarray:
        time.sleep(0.2)  # both workers get some blocks
        if distributed.get_worker().address == victim and not died.exists():
            died.touch()
            os._exit(1)
        return block

    chunked = ensemble.chunk(time=1)
    field = chunked.copy(data=chunked.data.map_blocks(die_once, dtype=float))
    result = client.compute(field.geonet.interp(time=fine)).result()
    assert died.exists()
    assert (result.values == expected.values).all()


class FakeLibrary:
    """Records calls of glibc's allocator functions."""

    def __init__(self):
        self.calls: list[tuple[int, ...]] = []

    def mallopt(self, name: int, value: int) -> None:
        self.calls.append((name, value))

    def malloc_trim(self, pad) -> None:
        self.calls.append((pad.value,))


@pytest.fixture
def library(monkeypatch):
    fake = FakeLibrary()
    monkeypatch.setattr(groups.ctypes, "CDLL", lambda name: fake)
    return fake


def test_workers_keep_freed_memory_while_they_solve(library, monkeypatch):
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    with keep_freed_memory():
        with keep_freed_memory():
            assert library.calls == [(-1, 2**27), (-3, 2**25)]
        assert len(library.calls) == 2
    assert library.calls[2:] == [(-1, 65536), (-3, 2**17), (0,)]


@pytest.mark.parametrize("setting", [None, "", "much"])
def test_allocator_is_unchanged_without_the_setting_of_dask(library, monkeypatch, setting):
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    if setting is not None:
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", setting)
    with keep_freed_memory():
        pass
    assert library.calls == []
