"""Whole paths by the trained models: 11 times, 64×64, solving and evaluating.

With every build of the compiled loops that this machine can load, and in torch alone. Only our
loops change from build to build: torch's own are those of this machine, unless
ATEN_CPU_CAPABILITY=avx2 or default says otherwise.
"""

import pytest

import geonet
from geonet.solvers.neural.transport import compiled as loops

TIMES = tuple(k / 10 for k in range(11))


@pytest.fixture(params=["torch", *loops.loadable()])
def build(request, monkeypatch) -> str:
    """Select the build of the kernels."""
    monkeypatch.setenv("GEONET_COMPILED", {"torch": "0"}.get(request.param, request.param))
    return request.param


@pytest.mark.benchmark(group="one pair")
def test_one_pair(benchmark, build, pair_2d):
    solve = geonet.solver("transport-2d")
    benchmark.pedantic(lambda: solve(*pair_2d).density(TIMES), rounds=30, warmup_rounds=3)


@pytest.mark.benchmark(group="batch of 64")
def test_batch_of_64(benchmark, build, batch_2d):
    solve = geonet.solver("transport-2d")
    benchmark.pedantic(lambda: solve(*batch_2d).density(TIMES), rounds=5, warmup_rounds=1)


def test_one_pair_of_geonet(benchmark, pair_2d):
    """Solve and evaluate without compiled kernels."""
    solve = geonet.solver("geonet-2d")
    benchmark.pedantic(lambda: solve(*pair_2d).density(TIMES), rounds=30, warmup_rounds=3)
