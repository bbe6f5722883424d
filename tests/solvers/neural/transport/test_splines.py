"""Endpoint densities between their cells, and pairs in chunks."""

from __future__ import annotations

import pytest
import torch

from geonet.density import Density
from geonet.grid import Grid, unit_box
from geonet.mixture import BOX_1D, BOX_2D, BOX_3D, mixtures_1d, mixtures_2d, mixtures_3d
from geonet.numerics.cosine import cube_centres
from geonet.numerics.interpolation import CubicSpline
from geonet.solvers.neural.transport.splines import DensityPairs, Splines

FAMILIES = {1: (mixtures_1d, BOX_1D), 2: (mixtures_2d, BOX_2D), 3: (mixtures_3d, BOX_3D)}
DIMENSIONS = pytest.mark.parametrize("d", [1, 2, 3])


def evaluate_at(splines, points):
    """Values (B, P) at points (d, P)."""
    still = [torch.zeros(len(splines), 1, points.shape[1])] * len(points)
    return splines.at(points, still, 0.0)[:, 0]


@pytest.mark.parametrize(
    "grid",
    [
        Grid(300, 2.0, 5.0),
        Grid((30, 45), (1.0, -2.0), (3.0, 1.0)),
        Grid((24, 16), 0.0, (3.0, 2.0)),
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
    found = Splines.through(values, grid).at(points, velocity, s)
    places = points.T.double() - s[..., None].double() * torch.stack(velocity, -1)
    outside = (places.clamp(0, 1) > 1.000001 * torch.tensor(box.sides)).any(-1)
    assert bool(outside.any()) == (min(box.sides) < 1)
    spline = CubicSpline(box.to_density(values), box.cells)
    expected = spline(places.flatten(1, 2)).reshape(found.shape).clamp(min=0)
    expected = expected.masked_fill(outside, 0.0)
    # A place is rounded by 1e-7, some 1e-5 of a cell, and neighbours differ by as much as values.
    assert float((found - expected).abs().max() / expected.max()) < 1e-7 * 4 * max(grid.shape)


@DIMENSIONS
def test_values_approximate_the_formula(d, generator):
    family, box = FAMILIES[d]
    density = family(1, generator).to_density(box)
    points = torch.rand(d, 500, generator=generator)
    (found,) = evaluate_at(Splines.through(density.tensor, box), points)
    expected = unit_box(box).to_density(density.at(unit_box(box).from_points(points.T))[0])
    assert float((found - expected).abs().mean() / expected.mean()) < 5e-4


def test_values_are_not_negative(generator):
    """Though a cubic spline overshoots where the values jump."""
    values = torch.zeros(1, 12, 12)
    values[0, 4:7, 5:9] = 1.0
    splines = Splines.through(values, Grid((12, 12)))
    assert float(splines.coefficients.min()) < -0.1
    found = evaluate_at(splines, torch.rand(2, 500, generator=generator))
    assert float(found.min()) == 0
    assert float(found.max()) > 1


def test_points_outside_the_cube():
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    splines = Splines.through(values, Grid(4))
    found = evaluate_at(splines, torch.tensor([[-3.0, 0.0, 1.0, 7.0]]))
    assert torch.allclose(found, torch.tensor([[0.5, 0.5, 4.5, 4.5]]), atol=1e-5)


def test_nan_and_infinite_points():
    splines = Splines.through(torch.ones(2, 5, 6), Grid((5, 6)))
    wild = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0]).expand(2, 4)
    found = evaluate_at(splines, wild)
    assert found.shape == (2, 4) and not bool(found[:, 1:].isnan().any())


def test_blocks_change_nothing(generator):
    splines = Splines.through(torch.rand(3, 40, generator=generator), Grid(40))
    points = torch.rand(1, 2**17 // 2, generator=generator)
    together = evaluate_at(splines, points)
    for k in range(3):
        assert torch.equal(evaluate_at(splines[k : k + 1], points), together[k : k + 1])


GRID = Grid((6, 8), 0.0, (3.0, 4.0))


@pytest.fixture
def pair_ends(generator):
    draws = torch.rand(2, 5, *GRID.shape, dtype=torch.float64, generator=generator)
    return Density(draws[0], GRID), Density(draws[1], GRID)


@pytest.fixture(params=["1", "0"], ids=["compiled", "torch"], autouse=True)
def kernels_on_and_off(request, monkeypatch):
    monkeypatch.setenv("GEONET_COMPILED", request.param)


def evaluate(end):
    """Densities at some places, (B, places)."""
    still = [torch.zeros(len(end), 1, 25)] * 2
    return end.at(cube_centres(2, 5), still, 0.0)[:, 0]


def test_one_pair_equals_a_batch_of_one(pair_ends):
    one = DensityPairs(pair_ends[0][1], pair_ends[1][1])
    assert (len(one), len(DensityPairs(*pair_ends)), one.box.length) == (1, 5, 4.0)
    ((some, ready),) = one.chunks(1)
    assert some.start == 0
    expected = [Splines.through(end.tensor, GRID) for end in pair_ends]
    for end in range(2):
        assert torch.allclose(evaluate(ready[end]), evaluate(expected[end])[1:2], rtol=1e-5)


@pytest.mark.parametrize(("points", "sizes"), [(100, [2, 2, 1]), (150, [1] * 5), (1, [5])])
@pytest.mark.parametrize("kept", [0, 2**23])
def test_chunks_cover_all_pairs(pair_ends, monkeypatch, points, sizes, kept):
    pairs, numbers = DensityPairs(*pair_ends), GRID.size
    monkeypatch.setattr(
        DensityPairs, "chunk_points", 2 * 100 * numbers if points > 1 else 5 * numbers
    )
    monkeypatch.setattr(DensityPairs, "max_stored", kept)
    chunks = list(pairs.chunks(points * numbers))
    assert [len(ready[0]) for _, ready in chunks] == sizes
    whole = [Splines.through(end.tensor, GRID) for end in pair_ends]
    for end in range(2):
        together = torch.cat([evaluate(ready[end]) for _, ready in chunks])
        assert torch.allclose(together, evaluate(whole[end]), rtol=1e-5)
    assert torch.cat([torch.arange(5)[some] for some, _ in chunks]).tolist() == [0, 1, 2, 3, 4]
