"""Whole paths by the trained models: 11 times, 64×64, solving and evaluating."""

import pytest

import geonet

TIMES = tuple(k / 10 for k in range(11))


@pytest.mark.parametrize("name", ["transport-2d", "geonet-2d"])
def test_one_pair(benchmark, name, pair_2d):
    solve = geonet.solver(name)
    benchmark.pedantic(lambda: solve(*pair_2d).density(TIMES), rounds=30, warmup_rounds=3)


def test_batch_of_64(benchmark, batch_2d):
    solve = geonet.solver("transport-2d")
    benchmark.pedantic(lambda: solve(*batch_2d).density(TIMES), rounds=5, warmup_rounds=1)
