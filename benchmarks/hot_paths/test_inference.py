"""Whole 2D paths at 64×64 cells and 11 times: solve and evaluate.

With every build of the compiled kernels that this machine can load, and with torch alone. Only the
kernels of geonet change from build to build; set ATEN_CPU_CAPABILITY for the kernels of torch.
"""

import pytest

import geonet
from geonet.numerics import kernels

TIMES = tuple(k / 10 for k in range(11))


@pytest.fixture(params=["torch", *kernels.available_builds()])
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


@pytest.mark.benchmark(group="Newton")
@pytest.mark.parametrize("solver", ["auto", "midpoint"])
def test_newton(benchmark, pair_2d, solver):
    solve = geonet.solver(solver)
    benchmark.pedantic(lambda: solve(*pair_2d).density(TIMES), rounds=30, warmup_rounds=3)


def test_one_pair_of_geonet(benchmark, pair_2d):
    """Solve and evaluate without compiled kernels."""
    solve = geonet.solver("geonet-2d")
    benchmark.pedantic(lambda: solve(*pair_2d).density(TIMES), rounds=30, warmup_rounds=3)
