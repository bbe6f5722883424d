"""Exact solvers, and their interpolation."""

import torch

import geonet
from geonet.numerics.interpolation import CubicSpline


def test_monge_ampere(benchmark, pair_2d):
    solve = geonet.solver("monge-ampere")
    benchmark.pedantic(lambda: solve(*pair_2d), rounds=7, warmup_rounds=1)


def test_quantile(benchmark, pair_1d):
    """Solve 1,000 cells and evaluate 11 times."""
    solve = geonet.solver("quantile")
    times = [k / 10 for k in range(11)]
    benchmark.pedantic(lambda: solve(*pair_1d).density(times), rounds=50, warmup_rounds=3)


def test_cubic_spline(benchmark, pair_2d):
    """Interpolate 64×64 values at 10,000 points."""
    source = pair_2d[0]
    generator = torch.Generator().manual_seed(0)
    side = torch.tensor(source.grid.lengths, dtype=torch.float64)
    points = side * torch.rand(10_000, 2, dtype=torch.float64, generator=generator)
    benchmark.pedantic(
        lambda: CubicSpline(source.tensor, source.grid)(points), rounds=50, warmup_rounds=3
    )
