"""The linear program against POT, exact cases of atoms, and duality."""

import ot
import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import ConvergenceError, SolverError


def make_atoms(shape, *cells, seed=None, count=0):
    """Return a density with equal masses in some cells, or in `count` random ones."""
    values = torch.zeros(shape, dtype=torch.float64)
    if count:
        order = torch.randperm(values.numel(), generator=torch.Generator().manual_seed(seed))
        values.view(-1)[order[:count]] = 1
    for cell in cells:
        values[cell] = 1
    return Density(values, Grid(shape))


def test_distance_equals_pot(pair_2d):
    grid = pair_2d[0].grid.with_shape(12)
    ends = [end.resample(grid) for end in pair_2d]
    points = grid.points().reshape(-1, 2).numpy()
    masses = [(end.tensor.reshape(-1) * grid.cell_volume).numpy() for end in ends]
    expected = ot.emd2(*(m / m.sum() for m in masses), ot.dist(points, points))
    assert float(geonet.geodesic(*ends, "linear-program").distance) ** 2 == pytest.approx(expected)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_an_atom_moves_straight(d):
    grid = Grid((9,) * d, 0.0, 9.0)
    first, last = torch.zeros(grid.shape), torch.zeros(grid.shape)
    first[(1,) * d], last[(5,) * d] = 1, 1
    path = geonet.geodesic(Density(first, grid), Density(last, grid), "linear-program")
    assert float(path.distance) == pytest.approx(4 * d**0.5)
    middle = path.density(0.5).tensor
    assert float(middle[(3,) * d]) == pytest.approx(1) and float(middle.sum()) == pytest.approx(1)
    between = path.density(0.125).tensor  # shifted by half a cell
    assert float(between[(1,) * d]) == pytest.approx(0.5**d)


# ---- Velocity, potential and trajectories


@pytest.mark.parametrize("shape", [(200,), (40, 40), (12, 12, 12)])
def test_velocity_at_moving_atoms(shape):
    """Equal masses make a degenerate linear program, with ties between the dual constraints."""
    ends = [make_atoms(shape, seed=seed, count=20) for seed in (1, 2)]
    path = geonet.geodesic(*ends, "linear-program")
    for t in (0.0, 0.2, 0.5, 0.9, 1.0):
        position = torch.lerp(path.start, path.end, t)
        velocity = path.velocity(t, position)
        assert torch.allclose(velocity, path.end - path.start, atol=1e-12)
    assert torch.allclose(path.trajectories(1.0, path.start), path.end)


def test_velocity_of_a_split_atom_is_the_mean():
    path = geonet.geodesic(
        make_atoms((9, 9), (4, 4)), make_atoms((9, 9), (0, 8), (8, 8)), "linear-program"
    )
    start = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert torch.allclose(path.velocity(0.0, start), torch.tensor([[0.0, 4 / 9]]).double())


def test_duality():
    """The dual value ∫u_1 dμ_1 − ∫u_0 dμ_0 equals ½W2²."""
    ends = [make_atoms((40, 40), seed=seed, count=60 + seed) for seed in (1, 2)]
    path = geonet.geodesic(*ends, "linear-program")
    dual = path.mass @ path.potential(1.0, path.end) - path.mass @ path.potential(0.0, path.start)
    assert float(dual) == pytest.approx(0.5 * float(path.distance) ** 2, rel=1e-9)


@pytest.mark.parametrize("method", ["emd", "emd_1d"])
def test_potential_in_1d_equals_the_exact_one(pair_1d, method):
    grid = pair_1d[0].grid.with_shape(400)
    ends = [end.resample(grid).with_floor(0.2) for end in pair_1d]  # unique up to a constant
    exact = geonet.geodesic(*ends, "quantile")
    path = geonet.geodesic(*ends, "linear-program", method=method)
    points = path.grid.points()
    for t in (0.0, 0.3, 0.5, 0.8, 1.0):
        expected = exact.potential(t, points)
        error = path.potential(t, points) - expected
        assert float(error.max() - error.min()) < 0.01 * float(expected.max() - expected.min())


# ---- Size and options


def test_large_problems_raise_or_are_coarsened(pair_2d):
    with pytest.raises(SolverError, match="1,024 non-empty cells .* max_cells = 100"):
        geonet.geodesic(*pair_2d, "linear-program", max_cells=100)
    path = geonet.geodesic(*pair_2d, "linear-program", max_cells=100, coarsen=True)
    assert path.info["solved on"].startswith("10×10 cells")
    assert path.density(0.5).tensor.shape == (32, 32)
    assert path.report.source_error > 1e-3  # the error of the coarse grid is reported
    with pytest.raises(SolverError, match="max_cells = 3"):
        geonet.geodesic(*pair_2d, "linear-program", max_cells=3, coarsen=True)


def test_empty_cells_cost_nothing():
    values = torch.zeros(2, 200, 200)
    values[0, 10:14, 10:14] = values[1, 50:54, 90:94] = 1
    path = geonet.geodesic(*(Density(v, Grid((200, 200))) for v in values), "linear-program")
    assert float(path.distance) == pytest.approx((40**2 + 80**2) ** 0.5 / 200)


def test_stopping_early_raises(pair_2d):
    with pytest.raises(ConvergenceError, match="max_iterations"):
        geonet.geodesic(*pair_2d, "linear-program", max_iterations=3)


@pytest.mark.parametrize(
    "options", [{"max_cells": 0}, {"max_iterations": 2**40}, {"method": "sort"}]
)
def test_invalid_options_raise(options):
    with pytest.raises(SolverError, match=next(iter(options))):
        geonet.solver("linear-program", **options)


# ---- 1D by sorting


def test_sorting_returns_the_same_plan(pair_1d):
    simplex, sorting = (
        geonet.geodesic(*pair_1d, "linear-program", method=method) for method in ("emd", "emd_1d")
    )
    assert float(sorting.distance) == pytest.approx(float(simplex.distance), rel=1e-9)
    frames = [path.density([0.0, 0.4, 1.0]).tensor for path in (sorting, simplex)]
    assert torch.allclose(*frames, atol=1e-9)


def test_sorting_needs_no_cost_matrix(pair_1d, monkeypatch):
    grid = pair_1d[0].grid.with_shape(3000)
    ends = [end.resample(grid) for end in pair_1d]
    monkeypatch.setattr(ot, "dist", None)
    path = geonet.geodesic(*ends, "linear-program", method="emd_1d", max_cells=10)
    exact = geonet.geodesic(*ends, "quantile")
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=1e-4)
    assert "solved on" not in path.info


def test_sorting_skips_empty_cells():
    first, last = make_atoms((9,), 1, 2), make_atoms((9,), 5, 8)
    path = geonet.geodesic(first, last, "linear-program", method="emd_1d")
    assert path.info["plan entries"] == 2
    assert float(path.distance) ** 2 == pytest.approx((4**2 + 6**2) / 2 / 81)


def test_sorting_is_for_1d(pair_2d):
    with pytest.raises(SolverError, match="1D"):
        geonet.geodesic(*pair_2d, "linear-program", method="emd_1d")
