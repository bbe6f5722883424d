"""The linear program against POT, exact distances and bounds of uniform cells, and duality."""

import ot
import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import ConvergenceError, SolverError
from geonet.solvers.linear_program import LinearProgram


def make_atoms(shape, *cells, seed=None, count=0):
    """Return a density with equal masses in some cells, or in `count` random ones."""
    values = torch.zeros(shape, dtype=torch.float64)
    if count:
        order = torch.randperm(values.numel(), generator=torch.Generator().manual_seed(seed))
        values.view(-1)[order[:count]] = 1
    for cell in cells:
        values[cell] = 1
    return Density(values, Grid(shape))


def test_cost_of_the_plan_equals_pot(pair_2d):
    grid = pair_2d[0].grid.with_shape(12)
    ends = [end.resample(grid) for end in pair_2d]
    points = grid.points().reshape(-1, 2).numpy()
    masses = [(end.tensor.reshape(-1) * grid.cell_volume).numpy() for end in ends]
    expected = ot.emd2(*(m / m.sum() for m in masses), ot.dist(points, points))
    path = geonet.geodesic(*ends, "linear-program", max_parts=1)
    assert float(path.mass @ ((path.end - path.start) ** 2).sum(1)) == pytest.approx(expected)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_cell_moves_straight(d):
    grid = Grid((9,) * d, 0.0, 9.0)
    first, last = torch.zeros(grid.shape), torch.zeros(grid.shape)
    first[(1,) * d], last[(5,) * d] = 1, 1
    path = geonet.geodesic(Density(first, grid), Density(last, grid), "linear-program")
    assert float(path.distance) == pytest.approx(4 * d**0.5)
    middle = path.density(0.5).tensor
    assert float(middle[(3,) * d]) == pytest.approx(1) and float(middle.sum()) == pytest.approx(1)
    between = path.density(0.125).tensor  # shifted by half a cell
    assert float(between[(1,) * d]) == pytest.approx(0.5**d)


# ---- Distance of uniform cells, and its bounds


def test_a_cell_is_stretched_over_two():
    """The map is x ↦ 2x in the cell: W2² = h²/3."""
    ends = make_atoms((4, 4), (1, 2)), make_atoms((4, 4), (1, 2), (2, 2))
    path = geonet.geodesic(*ends, "linear-program", max_parts=1)
    assert float(path.distance) ** 2 == pytest.approx(0.25**2 / 3)
    assert float(path.density(0.5).tensor[2, 2] / 16) == pytest.approx(1 / 3)


@pytest.mark.parametrize("method", ["emd", "emd_1d"])
def test_1d_is_exact(pair_1d, method):
    islands = make_atoms((60,), 3, 20, 21, 40), make_atoms((60,), 7, 8, 9, 55)
    for ends in (pair_1d, islands):
        path = geonet.geodesic(*ends, "linear-program", method=method, max_parts=1)
        exact = geonet.geodesic(*ends, "quantile")
        assert float(path.distance) == pytest.approx(float(exact.distance), rel=1e-9)
        frames = [one.density([0.0, 0.4, 1.0]).tensor for one in (path, exact)]
        assert torch.allclose(*frames, atol=1e-9)


@pytest.mark.parametrize(("shape", "count"), [((8, 8), 4), ((30, 9), 7), ((6, 6, 6), 3)])
def test_bounds_contain_the_distance_of_products(shape, count):
    """Islands that are products of 1D densities: W2² is the sum over the axes."""
    marginals = [
        [make_atoms((n,), seed=10 * k + axis, count=min(count, n - 1)) for k in (1, 2)]
        for axis, n in enumerate(shape)
    ]
    exact = sum(float(geonet.geodesic(*ends).distance) ** 2 for ends in marginals) ** 0.5
    ends = []
    for k in (0, 1):
        values = torch.ones(shape, dtype=torch.float64)
        for axis, pair in enumerate(marginals):
            values = values * pair[k].tensor.movedim(0, -1).reshape(
                -1, *[1] * (len(shape) - axis - 1)
            )
        ends.append(Density(values, Grid(shape)))
    gaps = []
    for parts in (1, 4):
        report = geonet.geodesic(*ends, "linear-program", max_parts=parts).report
        assert report.distance_lower_bound <= exact * (1 + 1e-12)
        assert exact * (1 - 1e-12) <= report.distance == report.distance_upper_bound
        gaps.append(report.distance_uncertainty)
    assert gaps[1] < 0.6 * gaps[0] and report.distance < 1.01 * exact


def test_frames_start_and_end_with_the_densities():
    ends = [make_atoms((20, 20), seed=seed, count=9 + seed) for seed in (1, 2)]
    path = geonet.geodesic(*ends, "linear-program")
    for t, end in zip((0.0, 1.0), ends, strict=True):
        assert torch.allclose(path.density(t).tensor, end.tensor, atol=1e-9)


def test_bounds_of_a_coarser_grid_hold(pair_2d):
    exact = float(geonet.geodesic(*pair_2d, "midpoint").distance)
    path = geonet.geodesic(*pair_2d, "linear-program", max_cells=40, coarsen=True)
    report = path.report
    assert report.distance_lower_bound < exact < report.distance_upper_bound
    assert report.is_distance_uncertain


# ---- Velocity, potential and trajectories


@pytest.mark.parametrize("shape", [(200,), (40, 40), (12, 12, 12)])
def test_velocity_at_moving_atoms(shape):
    """Equal masses make a degenerate linear program, with ties between the dual constraints."""
    ends = [make_atoms(shape, seed=seed, count=20) for seed in (1, 2)]
    path = geonet.geodesic(*ends, "linear-program", max_parts=1)
    for t in (0.0, 0.2, 0.5, 0.9, 1.0):
        position = torch.lerp(path.start, path.end, t)
        velocity = path.velocity(t, position)
        assert torch.allclose(velocity, path.end - path.start, atol=1e-12)
    assert torch.allclose(path.trajectories(1.0, path.start), path.end)


def test_velocity_of_a_split_atom_is_the_mean():
    ends = make_atoms((9, 9), (4, 4)), make_atoms((9, 9), (0, 8), (8, 8))
    path = geonet.geodesic(*ends, "linear-program", max_parts=1)
    start = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert torch.allclose(path.velocity(0.0, start), torch.tensor([[0.0, 4 / 9]]).double())


@pytest.mark.parametrize(("parts", "tolerance"), [(1, 1e-9), (8, 2e-3)])
def test_duality(parts, tolerance):
    """The dual value ∫u_1 dμ_1 − ∫u_0 dμ_0 equals half the cost of the plan."""
    ends = [make_atoms((40, 40), seed=seed, count=60 + seed) for seed in (1, 2)]
    path = geonet.geodesic(*ends, "linear-program", max_parts=parts)
    dual = path.mass @ path.potential(1.0, path.end) - path.mass @ path.potential(0.0, path.start)
    cost = path.mass @ ((path.end - path.start) ** 2).sum(1)
    assert float(dual) == pytest.approx(0.5 * float(cost), rel=tolerance)


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


def test_coarsening_is_bounded_before_solving(pair_2d):
    program = LinearProgram(max_cells=100, coarsen=True)
    bound, path = program.bound_coarsening(*pair_2d), program(*pair_2d)
    assert bound == pytest.approx(path.report.distance_upper_bound - path.report.distance)
    assert LinearProgram(coarsen=True).bound_coarsening(*pair_2d) == 0  # solved on its own cells


def test_empty_cells_cost_nothing():
    values = torch.zeros(2, 200, 200)
    values[0, 10:14, 10:14] = values[1, 50:54, 90:94] = 1
    path = geonet.geodesic(*(Density(v, Grid((200, 200))) for v in values), "linear-program")
    assert float(path.distance) == pytest.approx((40**2 + 80**2) ** 0.5 / 200)


def test_stopping_early_raises(pair_2d):
    with pytest.raises(ConvergenceError, match="max_iterations"):
        geonet.geodesic(*pair_2d, "linear-program", max_iterations=3)


@pytest.mark.parametrize(
    "options",
    [{"max_cells": 0}, {"max_parts": 0}, {"max_iterations": 2**40}, {"method": "sort"}],
)
def test_invalid_options_raise(options):
    with pytest.raises(SolverError, match=next(iter(options))):
        geonet.solver("linear-program", **options)


# ---- 1D by sorting


def test_sorting_needs_no_cost_matrix(pair_1d, monkeypatch):
    grid = pair_1d[0].grid.with_shape(3000)
    ends = [end.resample(grid) for end in pair_1d]
    monkeypatch.setattr(ot, "dist", None)
    path = geonet.geodesic(*ends, "linear-program", method="emd_1d", max_cells=10)
    exact = geonet.geodesic(*ends, "quantile")
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=1e-9)
    assert "solved on" not in path.info


def test_sorting_skips_empty_cells():
    first, last = make_atoms((9,), 1, 2), make_atoms((9,), 5, 8)
    path = geonet.geodesic(first, last, "linear-program", method="emd_1d")
    assert path.info["plan entries"] == 2
    assert float(path.distance) ** 2 == pytest.approx((4**2 + 6**2) / 2 / 81)


def test_sorting_is_for_1d(pair_2d):
    with pytest.raises(SolverError, match="1D"):
        geonet.geodesic(*pair_2d, "linear-program", method="emd_1d")
