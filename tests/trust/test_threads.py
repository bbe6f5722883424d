"""Threads: shared objects, global state, the number of threads and idle waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from PIL import Image

import geonet
from geonet import Density, Grid
from geonet import _threads as threads
from geonet._files import atomic_write
from geonet._threads import (
    CELLS_PER_THREAD,
    MIN_PARALLEL_CELLS,
    limit_threads,
    map_in_threads,
    one_thread,
    passive_wait,
    threads_for,
)
from geonet._utils import suppress_warnings
from geonet.solvers.neural import deeponet
from geonet.solvers.neural.deeponet import DeepONetSettings
from geonet.solvers.neural.model import Branch, Trunk, build_model
from geonet.solvers.neural.transport.network import TransportSettings

THREADS = 8
LINE = Grid(32)
WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
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

def solve(name, d):
    grid = Grid((16,) * d, 0, 5)
    wave = torch.cos(torch.pi * grid.points() / 5).sum(-1)
    ends = [Density((height * wave).exp(), grid) for height in (0.3, -0.3)]
    return geonet.geodesic(*ends, name).density([0.0, 0.3, 1.0]).tensor

def start(job):
    together.wait()
    return solve(*job)

with ThreadPoolExecutor(len(jobs)) as pool:
    first = list(pool.map(start, jobs))
for job, values in zip(jobs, first):
    print(job[0], torch.equal(values, solve(*job)))
"""
FAST = {
    "quantile": 1,
    "linear": 2,
    "linear-program": 1,
    "schrodinger": 1,
    "geonet-2d": 2,
    "transport-2d": 2,
    "transport-3d": 3,
}


def in_threads(job, count: int = THREADS) -> list:
    """Return job(k) of `count` threads that start at the same moment."""
    together = Barrier(count)

    def start(k: int):
        together.wait()
        return job(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


def waves(grid: Grid = LINE, height: float = 0.3) -> tuple[Density, Density]:
    """Return a smooth pair."""
    wave = torch.cos(torch.pi * grid.points() / max(grid.lengths)).sum(-1)
    return Density((height * wave).exp(), grid), Density((-height * wave).exp(), grid)


# ---- The same bits


def test_first_use_by_threads_gives_the_same_bits():
    """Modules, models, matrices and kernels are created by any of the threads."""
    jobs = [*FAST.items(), *[("transport-2d", 2)] * 3, *[("geonet-2d", 2)] * 2]
    command = [sys.executable, "-W", "error", "-c", FIRST_USE, json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name} True" for name, _ in jobs]


@pytest.mark.parametrize("name", FAST)
def test_concurrent_calls_give_the_same_bits(name):
    """Pairs of their own, and a path that is shared."""
    grid = Grid((16 if name.startswith("transport") else 10,) * FAST[name], 0, 5)
    shared = geonet.geodesic(*waves(grid), name)

    def solve(k: int) -> torch.Tensor:
        path = geonet.geodesic(*waves(grid, 0.05 * (k + 1)), name)
        return torch.stack([p.density(0.1 * k).tensor for p in (path, shared)])

    found = in_threads(solve)
    assert all(torch.equal(found[k], solve(k)) for k in range(THREADS))


def test_a_full_cache_of_bases_can_be_shared(monkeypatch):
    """Concurrent insertions and evictions raise no error."""
    monkeypatch.setattr(deeponet.BasisCache, "max_bytes", 2000)
    small = {"width": 2, "depth": 3}
    settings = DeepONetSettings(sensors=4, rank=2, branch=Branch(**small), trunk=Trunk(**small))
    bases = deeponet.BasisCache(build_model(settings, seed=0))  # type: ignore[arg-type]

    def evaluate(k: int) -> None:
        for i in range(400):
            bases.on_grid(LINE, ((7 * i + k) % 60) / 60)

    pause = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(evaluate)
    finally:
        sys.setswitchinterval(pause)
    assert 0 < sum(basis.nbytes for basis in bases._bases.values()) <= 2000


# ---- Global state


def test_warning_filters_are_restored(tmp_path):
    """`catch_warnings` alone would leave the filters of the last thread."""
    file = tmp_path / "image.png"
    Image.fromarray(np.arange(1200, dtype=np.uint8).reshape(40, 30)).save(file)
    before, alone = list(warnings.filters), geonet.read(file).tensor

    def overlap(k: int) -> torch.Tensor:
        with suppress_warnings():
            return geonet.read(file).tensor

    for _ in range(3):
        assert all(torch.equal(values, alone) for values in in_threads(overlap))
    assert list(warnings.filters) == before


def test_seeded_weights_do_not_mix():
    settings = TransportSettings(sensors=64, seen=32, modes=32, width=64)
    alone = [build_model(settings, seed=k).state_dict() for k in range(THREADS)]
    before = torch.get_rng_state()
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


# ---- Parallel work


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
    times = torch.linspace(0.02, 0.98, 1 + MIN_PARALLEL_CELLS // (4 * 24**2))
    target = Density(values[1], grid)
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


# ---- Number of threads


def blas_numbers() -> list[int]:
    return [get() for _, get in threads._blas_functions()]


def test_threads_of_kernels(three_threads):
    cells = (1, 2 * CELLS_PER_THREAD - 1, 2 * CELLS_PER_THREAD, 100 * CELLS_PER_THREAD)
    assert [threads_for(n) for n in cells] == [1, 1, 2, 3]


def test_small_problems_take_one_thread(three_threads):
    """Nested limits and errors restore the number; other threads keep theirs."""
    numbers = blas_numbers()
    with limit_threads(MIN_PARALLEL_CELLS):
        assert torch.get_num_threads() == 3
        with pytest.raises(ValueError, match="stop"), limit_threads(1):
            assert torch.get_num_threads() == 1
            with limit_threads(MIN_PARALLEL_CELLS):
                assert torch.get_num_threads() == 1
            thread = Thread(target=lambda: numbers.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            raise ValueError("stop")
        assert torch.get_num_threads() == 3
    assert numbers.pop() == 3 and blas_numbers() == numbers


def test_numpy_takes_one_thread_until_the_last_exit():
    numbers, both = blas_numbers(), Barrier(2)
    if not numbers:
        pytest.skip(f"NumPy {np.__version__} has another library than OpenBLAS")

    def enter() -> None:
        with limit_threads(1):
            both.wait()
        both.wait()

    thread = Thread(target=enter)
    with limit_threads(1):
        thread.start()
        both.wait()
        both.wait()
        thread.join()
        assert blas_numbers() == [1] * len(numbers)
    assert blas_numbers() == numbers


# ---- Idle waiting


@pytest.fixture
def idle_team(monkeypatch):
    """Return a separate team that ends at once."""
    for name in WAIT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if threads._openmp() is None or not threads._is_gnu():
        pytest.skip("torch has another OpenMP than GNU's")
    monkeypatch.setattr(threads._IdleTeam, "keep_alive", 0.02)
    monkeypatch.setattr(threads, "_idle_team", threads._IdleTeam())
    return threads._idle_team


def test_the_idle_team_starts_once_and_ends(three_threads, idle_team):
    values = torch.randn(300_000, generator=torch.Generator().manual_seed(0))
    expected = values.sin().sum()
    with passive_wait():
        keeper = idle_team._keeper
        assert keeper is not None and keeper.daemon
        with passive_wait():
            assert idle_team._keeper is keeper
        assert torch.equal(values.sin().sum(), expected)
    keeper.join(60)
    assert not keeper.is_alive() and idle_team._keeper is None


def test_cases_without_an_idle_team(three_threads, idle_team, monkeypatch):
    """One thread does not wait, and variables of the user have priority."""
    with one_thread(), passive_wait():
        assert idle_team._keeper is None
    for name in WAIT_VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            with passive_wait():
                assert idle_team._keeper is None


BUSY = """
import os, subprocess, sys
import torch  # first, so that environment variables have no effect
import geonet
from geonet import Density, Grid

grid = Grid((128, 128))
wave = torch.cos(torch.pi * grid.points()).sum(-1)
ends = [Density((height * wave).exp(), grid) for height in (0.5, -0.5)]
loop = [sys.executable, "-c", f"import os\\nwhile os.getppid() == {os.getpid()}: pass"]
loops = [subprocess.Popen(loop) for _ in range(os.cpu_count())]
try:
    for name in ("monge-ampere", "schrodinger", "transport-2d"):
        geonet.geodesic(*ends, name).density([0.25, 0.75])
finally:
    for process in loops:
        process.kill()
        process.wait()
"""


@pytest.mark.slow
def test_a_busy_machine():
    """With an endless loop on every core, spinning threads took up to seventy times as long."""
    hidden = ("OMP_NUM_THREADS", *WAIT_VARIABLES)
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    subprocess.run([sys.executable, "-c", BUSY], env=environment, timeout=300, check=True)
