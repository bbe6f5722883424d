"""Endpoint densities between their cells, and pairs in chunks."""

from __future__ import annotations

import pytest
import torch

from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.numerics.cosine import cube_centres
from geonet.numerics.interpolation import CubicSpline
from geonet.solvers.neural.transport.splines import DensityPairs, Splines


def evaluate_at(splines, points):
    """Values (B, P) at points (d, P)."""
    still = [torch.zeros(len(splines), 1, points.shape[1])] * len(points)
    return splines.at(points, still, 0.0)[:, 0]


@pytest.mark.parametrize(
    "grid",
    [
        Grid(300, 2.0, 5.0),
        Grid((30, 45), (1.0, -2.0), (3.0, 1.0)),
        Grid((9, 12, 10), 0.0, (1.0, 1.0, 0.8)),
    ],
    ids=str,
)
def test_values_equal_the_cubic_spline(grid, generator):
    d, box = grid.dimension, unit_box(grid)
    values = torch.rand(2, *grid.shape, dtype=torch.float64, generator=generator)
    points = torch.rand(d, 300, generator=generator)
    velocity = [torch.rand(2, 3, 300, generator=generator) - 0.5 for _ in range(d)]
    s = torch.tensor([[0.2], [0.0], [-0.3]])
    result = Splines.through(values, grid).at(points, velocity, s)
    places = points.T.double() - s[..., None].double() * torch.stack(velocity, -1)
    outside = (places.clamp(0, 1) > 1.000001 * torch.tensor(box.sides)).any(-1)
    assert bool(outside.any()) == (min(box.sides) < 1)
    spline = CubicSpline(box.to_density(values), box.cells)
    expected = spline(places.flatten(1, 2)).reshape(result.shape).clamp(min=0)
    expected = expected.masked_fill(outside, 0.0)
    # A place is rounded by 1e-7, some 1e-5 of a cell, and neighbours differ by as much as values.
    assert float((result - expected).abs().max() / expected.max()) < 1e-7 * 4 * max(grid.shape)


def test_values_at_jumps_and_outside(generator):
    """Never negative, though a cubic spline overshoots; constant outside, and NaN stays NaN."""
    values = torch.zeros(1, 12, 12)
    values[0, 4:7, 5:9] = 1.0
    splines = Splines.through(values, Grid((12, 12)))
    assert float(splines.coefficients.min()) < -0.1
    result = evaluate_at(splines, torch.rand(2, 500, generator=generator))
    assert float(result.min()) == 0 and float(result.max()) > 1
    wild = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0]).expand(2, 4)
    assert not bool(evaluate_at(splines, wild)[:, 1:].isnan().any())
    splines = Splines.through(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), Grid(4))
    result = evaluate_at(splines, torch.tensor([[-3.0, 0.0, 1.0, 7.0]]))
    assert torch.allclose(result, torch.tensor([[0.5, 0.5, 4.5, 4.5]]), atol=1e-5)


GRID = Grid((6, 8), 0.0, (3.0, 4.0))


@pytest.fixture
def pair_ends(generator):
    draws = torch.rand(2, 5, *GRID.shape, dtype=torch.float64, generator=generator)
    return Density(draws[0], GRID), Density(draws[1], GRID)


@pytest.fixture(params=["1", "0"], ids=["compiled", "torch"], autouse=True)
def kernels_on_and_off(request, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", request.param)


@pytest.mark.parametrize(("points", "sizes"), [(100, [2, 2, 1]), (150, [1] * 5), (1, [5])])
@pytest.mark.parametrize("kept", [0, 2**23])
def test_chunks_cover_all_pairs(pair_ends, monkeypatch, points, sizes, kept):
    pairs, numbers = DensityPairs(*pair_ends), GRID.size
    limit = 2 * 100 * numbers if points > 1 else 5 * numbers
    monkeypatch.setattr(DensityPairs, "chunk_points", limit)
    monkeypatch.setattr(DensityPairs, "max_stored", kept)
    chunks = list(pairs.chunks(points * numbers))
    assert [len(ready[0]) for _, ready in chunks] == sizes
    whole = [Splines.through(end.tensor, GRID) for end in pair_ends]
    at, one = cube_centres(2, 5), DensityPairs(pair_ends[0][1], pair_ends[1][1])
    ((_, alone),) = one.chunks(1)
    for end in range(2):
        together = torch.cat([evaluate_at(ready[end], at) for _, ready in chunks])
        assert torch.allclose(together, evaluate_at(whole[end], at), rtol=1e-5)
        assert torch.allclose(together[1:2], evaluate_at(alone[end], at), rtol=1e-5)
    assert torch.cat([torch.arange(5)[some] for some, _ in chunks]).tolist() == [0, 1, 2, 3, 4]
