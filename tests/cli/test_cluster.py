"""`--scheduler ADDRESS`: a Dask cluster gives the results of this process."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import xarray as xr

from geonet.cli.batch import BatchJob
from geonet.xarray import synthetic_rain

distributed = pytest.importorskip("distributed")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def address():
    """Address of a scheduler with a worker in a thread of this process."""
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
    ) as cluster:
        yield cluster.scheduler_address


def test_pairs_on_a_cluster(run, address, line_pair, tmp_path):
    np.save("late.npy", np.ones(40))
    (tmp_path / "pairs.csv").write_text(
        "source,target\na.npy,b.npy\nb.npy,late.npy\na.npy,no.npy\n"
    )
    common = ("geodesic", "--pairs", "pairs.csv", "-o")
    here, there = run(*common, "here"), run(*common, "there", "--scheduler", address)
    assert here.code == there.code == 1  # one file does not exist
    assert there.out.splitlines()[:2] == [
        "2 pairs solved: there/summary.csv",
        "1 pair failed:",
    ]
    assert "line 4, a.npy → no.npy: There is no file" in there.out
    for name in ("a-b.npz", "b-late.npz"):
        with (
            np.load(tmp_path / "here" / name) as ours,
            np.load(tmp_path / "there" / name) as theirs,
        ):
            assert (ours["density"] == theirs["density"]).all()
    summaries = [(tmp_path / f / "summary.csv").read_text().splitlines() for f in ("here", "there")]
    assert summaries[0] == summaries[1]
    again = run(*common, "there", "--scheduler", address)
    assert again.out.startswith("0 pairs solved, 2 existed already")


def test_fields_on_a_cluster(run, address):
    synthetic_rain((0, 10, 20, 30), cells=24).to_netcdf("rain.nc")
    common = ("interp", "rain.nc", "--every", "5min", "-o")
    assert run(*common, "here.nc").code == 0
    assert run(*common, "there.nc", "--scheduler", address).code == 0
    with xr.open_dataset("here.nc") as ours, xr.open_dataset("there.nc") as theirs:
        assert ours.identical(theirs)


def test_cluster_without_workers(run_failing, line_pair, tmp_path):
    (tmp_path / "pairs.csv").write_text("source,target\na.npy,b.npy\n")
    with distributed.LocalCluster(
        n_workers=0, processes=False, protocol="tcp", dashboard_address=":0"
    ) as cluster:
        line = run_failing(
            *("geodesic", "--pairs", "pairs.csv", "-o", "out"),
            *("--scheduler", cluster.scheduler_address),
        )
    assert "has no workers" in line


def test_failing_cluster(run_failing, address, line_pair, tmp_path, monkeypatch):
    def solve(batch, pair):
        raise ModuleNotFoundError("No module named 'geonet'")

    monkeypatch.setattr(BatchJob, "solve", solve)
    (tmp_path / "pairs.csv").write_text("source,target\na.npy,b.npy\n")
    line = run_failing("geodesic", "--pairs", "pairs.csv", "-o", "out", "--scheduler", address)
    assert "The cluster failed: No module named 'geonet'" in line
