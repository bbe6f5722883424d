"""Threads that share objects get the same results as a single thread."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch
from PIL import Image

import geonet
from geonet import Density, Grid
from geonet._files import atomic_write
from geonet._threads import MIN_PARALLEL_CELLS, map_in_threads
from geonet._utils import suppress_warnings
from geonet.solvers.neural import deeponet
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.model import PRETRAINED, Branch, Trunk, build_model
from geonet.solvers.neural.transport.network import TransportSettings
from geonet.solvers.registry import list_solver_names

THREADS = 8
LINE = Grid(32)
# A fresh process uses everything for the first time in threads, then once more in one thread.
FIRST_USE = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
import torch
import geonet
from geonet import Density, Grid

jobs = json.loads(sys.argv[1])
together = Barrier(len(jobs))

def answer(name, d):
    grid = Grid((12,) * d, 0, 5)
    wave = torch.cos(torch.pi * grid.points() / 5).sum(-1)
    ends = [Density((height * wave).exp(), grid) for height in (0.3, -0.3)]
    return geonet.geodesic(*ends, name).density([0.0, 0.3, 1.0]).tensor

def start(job):
    together.wait()
    return answer(*job)

with ThreadPoolExecutor(len(jobs)) as pool:
    first = list(pool.map(start, jobs))
for job, values in zip(jobs, first):
    print(job[0], torch.equal(values, answer(*job)))
"""
FAST = {
    "quantile": 1,
    "linear": 2,
    "linear-program": 1,
    "schrodinger": 1,
    "geonet-1d": 1,
    "geonet-2d": 2,
    "deeponet-1d": 1,
    "transport-1d": 1,
    "transport-2d": 2,
    "transport-3d": 3,
    "transport-mnist": 2,
}


def in_threads(job, count: int = THREADS) -> list:
    """Return job(k) of `count` threads that start at the same moment."""
    together = Barrier(count)

    def start(k: int):
        together.wait()
        return job(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def test_first_use_by_threads_gives_the_same_bits():
    """Modules, models, matrices and kernels are created by any of the threads."""
    assert set(FAST) <= set(list_solver_names())
    jobs = [*FAST.items(), *[("transport-2d", 2)] * 3, *[("geonet-1d", 1)] * 2]
    command = [sys.executable, "-W", "error", "-c", FIRST_USE, json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} True" for name, _ in jobs]


@pytest.mark.parametrize("name", FAST)
def test_concurrent_calls_give_the_same_bits(name):
    grid = Grid((10,) * FAST[name], 0, 5)

    def answer(k: int) -> torch.Tensor:
        return geonet.geodesic(*_waves(grid, 0.05 * (k + 1)), name).density([0.2, 0.7]).tensor

    alone = [answer(k) for k in range(THREADS)]
    for one, other in zip(in_threads(answer), alone, strict=True):
        assert torch.equal(one, other)


def test_one_path_in_many_threads():
    ends = _waves(Grid((16, 16), 0, 5), 0.3)
    times = [k / 20 for k in range(1, THREADS + 1)]
    for name in ("transport-2d", "geonet-2d"):
        alone = geonet.geodesic(*ends, name)
        expected = [alone.density(t).tensor for t in times]
        path = geonet.geodesic(*ends, name)
        found = in_threads(lambda k, path=path: path.density(times[k]).tensor)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_full_cache_of_bases_can_be_shared(monkeypatch):
    """Concurrent insertions and evictions raise no error."""
    monkeypatch.setattr(deeponet.BasisCache, "max_bytes", 2000)
    small = {"width": 2, "depth": 3}
    settings = DeepONetSettings(sensors=4, rank=2, branch=Branch(**small), trunk=Trunk(**small))
    bases = deeponet.BasisCache(build_model(settings, seed=0))  # type: ignore[arg-type]

    def ask(k: int) -> None:
        for i in range(400):
            bases.on_grid(LINE, ((7 * i + k) % 60) / 60)

    pause = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(ask)
    finally:
        sys.setswitchinterval(pause)
    assert 0 < sum(basis.nbytes for basis in bases._bases.values()) <= 2000


def _waves(grid: Grid = LINE, height: float = 0.3) -> tuple[Density, Density]:
    """Return a smooth pair."""
    wave = torch.cos(torch.pi * grid.points() / max(grid.lengths)).sum(-1)
    return Density((height * wave).exp(), grid), Density((-height * wave).exp(), grid)


# ---- Global state


def test_warning_filters_are_restored():
    """`catch_warnings` alone would leave the filters of the last thread."""
    before = list(warnings.filters)

    def overlap(k: int) -> None:
        with suppress_warnings():
            time.sleep(0.01 * (k + 1))

    for _ in range(3):
        in_threads(overlap)
    assert list(warnings.filters) == before


def test_images_in_threads(tmp_path):
    file = tmp_path / "image.png"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    before, alone = list(warnings.filters), geonet.read(file).tensor
    for _ in range(5):
        assert all(torch.equal(v, alone) for v in in_threads(lambda k: geonet.read(file).tensor))
    assert list(warnings.filters) == before


def test_seeded_weights_do_not_mix():
    settings = TransportSettings(sensors=64, seen=32, modes=32, width=64)
    alone = [build_model(settings, seed=k).state_dict() for k in range(THREADS)]
    before = torch.get_rng_state()
    for _ in range(5):
        for one, other in zip(
            in_threads(lambda k: build_model(settings, k).state_dict()), alone, strict=True
        ):
            assert all(torch.equal(one[name], other[name]) for name in other)
    assert torch.equal(torch.get_rng_state(), before)


def test_concurrent_writes_are_atomic(tmp_path):
    file = tmp_path / "result.txt"
    contents = [str(k) * 200_000 for k in range(THREADS)]

    def write(k: int) -> None:
        with atomic_write(file) as temporary:
            temporary.write_text(contents[k])

    for _ in range(5):
        in_threads(write)
        assert file.read_text() in contents
    assert [p.name for p in tmp_path.iterdir()] == ["result.txt"]


def test_loading_in_threads(tmp_path):
    path = geonet.geodesic(*_waves(), str(PRETRAINED / "geonet-1d.safetensors"))
    file = path.save(Path(tmp_path) / "path.npz")
    expected = path.density(0.4).tensor
    for values in in_threads(lambda k: geonet.load(file).density(0.4).tensor):
        assert torch.equal(values, expected)


@pytest.fixture
def three_threads():
    """Let torch use three threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_map_in_threads_keeps_the_order(three_threads):
    def work(k: int) -> int:
        time.sleep(0.002 * (k % 3))  # later ones finish before earlier ones
        return k

    assert list(map_in_threads(work, 10, cells=64)) == list(range(10))
    assert list(map_in_threads(work, 0, cells=64)) == []


def test_frames_of_a_batch_equal_those_of_its_pairs(three_threads):
    """Several threads compute them without gradients, one thread with gradients."""
    generator, grid = torch.Generator().manual_seed(3), Grid((24, 24))
    values = torch.rand(2, 4, 24, 24, generator=generator, dtype=torch.float64) + 0.5
    target, times = (
        Density(values[1], grid),
        torch.linspace(0.02, 0.98, 1 + MIN_PARALLEL_CELLS // (4 * 24**2)),
    )
    path = geonet.geodesic(Density(values[0], grid), target, solver="midpoint")
    frames = path.density(times).tensor
    for k in range(4):
        assert torch.equal(frames[k], path[k].density(times).tensor)
    traced = values[0].clone().requires_grad_()
    path = geonet.geodesic(Density(traced, grid), target, solver="midpoint")
    with torch.no_grad():
        assert torch.equal(path.density(times).tensor, frames)
    (path.density(0.5).tensor ** 2).sum().backward()
    assert traced.grad is not None and bool((traced.grad.abs().amax((1, 2)) > 0).all())
