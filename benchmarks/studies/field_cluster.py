"""Radar images on a Dask cluster: throughput, memory, and a worker that is killed.

    python -m benchmarks study field-cluster

Makes 400 images of 256² cells as a Zarr store in runs/field-cluster, puts an image between each
two and writes them to another store: by one process of one thread, and by a `LocalCluster` of two
such workers. Then it does so again and kills a worker in the middle. Prints the table and writes it
into docs/fields.md. Run it by `make benchmark NAME=field-cluster` on an otherwise idle machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep

import dask
import numpy as np
import xarray as xr
from distributed import Client, LocalCluster

import geonet.xarray
from benchmarks.pages import ROOT, format_table, publish
from benchmarks.results import record_provenance

FOLDER = ROOT / "runs" / "field-cluster"
CELLS, CHUNK = 256, 10
CHUNKS = (10, 160)  # frames, whose memory is compared
PART = 160  # frames, for these
FRAMES = 400
QUIET = {"distributed.logging.distributed": "critical", "distributed.admin.tick.limit": "1h"}


def make_rain(frames: int) -> Path:
    """Write images ten minutes apart, forwards and backwards, with random places of the showers."""
    store = FOLDER / f"rain-{frames}.zarr"
    if store.exists():
        return store
    parts = []
    for cycle in range(-(-frames // 9)):
        minutes = np.arange(0, 81, 10) + 0.07 * cycle
        part = geonet.xarray.synthetic_rain(minutes[:: (-1) ** cycle], CELLS)
        parts.append(part.values[:, :: (-1) ** (cycle // 2), :: (-1) ** (cycle // 4)])
    values = np.concatenate(parts)[:frames]
    times = np.datetime64("2026-07-01T00:00", "ns") + np.arange(frames) * np.timedelta64(10, "m")
    rain = xr.DataArray(values, {"time": times}, ("time", "y", "x"), "rain")
    rain.chunk(time=CHUNK).to_zarr(store, mode="w", consolidated=False)
    return store


def interpolate_halfway(store: Path, chunk: int, frames: int | None = None) -> xr.DataArray:
    """Return lazy images halfway between the images of a store."""
    rain = xr.open_zarr(store, chunks={}, consolidated=False)["rain"]
    rain = rain.isel(time=slice(frames)).chunk(time=chunk)
    times = rain.time.values[:-1] + np.timedelta64(5, "m")
    return rain.geonet.interp(time=times).astype("float32")


def write_answer(lazy: xr.DataArray, name: str) -> tuple[float, str]:
    """Write an answer; return the seconds and a checksum of its bytes."""
    store = FOLDER / f"{name}.zarr"
    shutil.rmtree(store, ignore_errors=True)
    began = perf_counter()
    lazy.to_zarr(store, mode="w", consolidated=False)
    took = perf_counter() - began
    values = xr.open_zarr(store, chunks=None, consolidated=False)["rain"]
    digest = hashlib.sha256()
    for start in range(0, values.sizes["time"], CHUNK):
        digest.update(values.isel(time=slice(start, start + CHUNK)).values.tobytes())
    return took, digest.hexdigest()


def peaks(client: Client) -> list[float]:
    """Return the most memory that each worker ever had, MB."""
    return list(client.run(peak).values())


def peak() -> float:
    """Return the peak memory of this process in MB."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1000


def cluster() -> LocalCluster:
    """Start a cluster of two processes with one thread each."""
    return LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")


def warm_up(client: Client) -> Client:
    """Import and load everything in all workers, so that it does not count as cost of a frame."""
    client.run(_first_pair)
    small = geonet.xarray.synthetic_rain((0, 10, 20, 30), 16).chunk(time=1)
    write_answer(small.geonet.interp(time=small.time.values).rename("rain"), "small")
    return client


def _first_pair() -> None:
    rain = geonet.xarray.synthetic_rain((0, 10), CELLS)
    rain.geonet.interp(time=rain.time.values[:1] + np.timedelta64(5, "m"))


def by_cluster(store: Path, name: str, kill: bool = False) -> tuple[float, str]:
    """Run on the cluster; return the seconds and a checksum of the bytes."""
    with cluster() as workers, Client(workers) as client:
        warm_up(client)
        if kill:
            Thread(target=_kill_one, args=(client, FOLDER / f"{name}.zarr"), daemon=True).start()
        return write_answer(interpolate_halfway(store, CHUNK), name)


def _kill_one(client: Client, store: Path) -> None:
    """Kill a worker when a third of the work is done."""
    victim = next(iter(client.run(os.getpid).values()))
    chunks = -(-(FRAMES - 1) // CHUNK)
    while sum(1 for file in store.glob("rain/c/*/*/*")) < chunks / 3:
        sleep(0.2)
    os.kill(victim, signal.SIGKILL)
    print("one worker killed", flush=True)


def memory(store: Path, chunk: int) -> tuple[float, float]:
    """Return MB that a worker needs beyond what it has when idle, and MB of a chunk as it is
    computed.
    """
    with cluster() as workers, Client(workers) as client:
        warm_up(client)
        idle = peaks(client)
        write_answer(interpolate_halfway(store, chunk, PART), "part")
        grown = max(after - before for before, after in zip(idle, peaks(client), strict=True))
    return grown, chunk * CELLS**2 * 8 / 1e6


def main() -> None:
    """Measure, print and publish."""
    dask.config.set(QUIET)
    provenance = record_provenance()
    store = make_rain(FRAMES)
    _first_pair()
    with dask.config.set(scheduler="synchronous"):
        alone, bytes_alone = write_answer(interpolate_halfway(store, CHUNK), "alone")
    print(f"one process: {alone:.0f} s", flush=True)
    both, bytes_both = by_cluster(store, "both")
    print(f"two workers: {both:.0f} s", flush=True)
    killed, bytes_killed = by_cluster(store, "killed", kill=True)
    frames = FRAMES - 1
    rows = [
        ("one process", f"{alone:.0f}", f"{frames / alone:.1f}", "1.00", "–"),
        ("two workers", f"{both:.0f}", f"{frames / both:.1f}", f"{alone / both:.2f}", "same"),
        ("one of them killed", f"{killed:.0f}", f"{frames / killed:.1f}", f"{alone / killed:.2f}"),
    ]
    assert bytes_alone == bytes_both == bytes_killed, (bytes_alone, bytes_both, bytes_killed)
    rows[2] = (*rows[2], "same")
    headings = ("", "seconds", "images a second", "relative to one process", "bytes")
    throughput = format_table(headings, rows)
    sizes = [(chunk, *memory(store, chunk)) for chunk in CHUNKS]
    peaks_by_chunk = format_table(
        ("images in a chunk", "MB of a chunk in double precision", "MB a worker takes for it"),
        [(str(chunk), f"{size:.0f}", f"{grown:.0f}") for chunk, grown, size in sizes],
    )
    print(throughput, peaks_by_chunk, sep="\n\n")
    text = f"{throughput}\n\n{peaks_by_chunk}"
    publish("field-cluster", provenance, {"docs/fields.md": {"field-cluster": text}})
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
