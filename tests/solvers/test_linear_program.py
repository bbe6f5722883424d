import ot
import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.errors import ConvergenceError, SolverError


def test_distance_is_pots(pair_2d):
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
    between = path.density(0.125).tensor  # half a cell further: shared by its neighbours
    assert float(between[(1,) * d]) == pytest.approx(0.5**d)


def test_large_problems_are_refused_or_coarsened(pair_2d):
    with pytest.raises(SolverError, match="1,024 non-empty cells are more than .* max_cells, 100"):
        geonet.geodesic(*pair_2d, "linear-program", max_cells=100)
    path = geonet.geodesic(*pair_2d, "linear-program", max_cells=100, coarsen=True)
    assert path.report.notes["solved on"].startswith("10×10 cells")
    assert path.density(0.5).tensor.shape == (32, 32)
    assert path.report.source_error > 1e-3  # the price of the coarse grid is reported


def test_empty_cells_cost_nothing(pair_2d):
    grid = Grid((200, 200))
    values = torch.zeros(2, 200, 200)
    values[0, 10:14, 10:14] = values[1, 50:54, 90:94] = 1
    path = geonet.geodesic(Density(values[0], grid), Density(values[1], grid), "linear-program")
    assert float(path.distance) == pytest.approx((40**2 + 80**2) ** 0.5 / 200)


def test_stopping_early_is_an_error(pair_2d):
    with pytest.raises(ConvergenceError, match="stopped early .* raise max_iterations"):
        geonet.geodesic(*pair_2d, "linear-program", max_iterations=3)


@pytest.mark.parametrize("options", [{"max_cells": 0}, {"max_iterations": 2**40}])
def test_impossible_options_are_refused(options):
    with pytest.raises(SolverError, match="both must be positive"):
        geonet.solver("linear-program", **options)


def test_no_grid_is_coarse_enough(pair_2d):
    with pytest.raises(SolverError, match="more than linear-program's max_cells, 3;"):
        geonet.geodesic(*pair_2d, "linear-program", max_cells=3, coarsen=True)


# ---- in 1D by sorting


def test_sorting_finds_the_same_plan(pair_1d):
    simplex, sorting = (
        geonet.geodesic(*pair_1d, "linear-program", method=method) for method in ("emd", "emd_1d")
    )
    assert float(sorting.distance) == pytest.approx(float(simplex.distance), rel=1e-9)
    assert torch.allclose(
        sorting.density([0.0, 0.4, 1.0]).tensor, simplex.density([0.0, 0.4, 1.0]).tensor, atol=1e-9
    )


def test_sorting_makes_no_cost_matrix(pair_1d, monkeypatch):
    grid = pair_1d[0].grid.with_shape(3000)
    ends = [end.resample(grid) for end in pair_1d]
    monkeypatch.setattr(ot, "dist", None)
    path = geonet.geodesic(*ends, "linear-program", method="emd_1d", max_cells=10)
    exact = geonet.geodesic(*ends, "quantile")
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=1e-4)
    assert path.report.mass_error < 1e-12
    assert "solved on" not in path.notes


def test_sorting_skips_empty_cells():
    grid = Grid(9, 0.0, 9.0)
    first, last = torch.zeros(9), torch.zeros(9)
    first[1:3], last[5], last[8] = 1, 1, 1
    path = geonet.geodesic(
        Density(first, grid), Density(last, grid), "linear-program", method="emd_1d"
    )
    assert path.notes["plan entries"] == 2
    assert float(path.distance) ** 2 == pytest.approx((4**2 + 6**2) / 2)


def test_sorting_is_for_1d(pair_2d):
    message = "The method 'emd_1d' takes 1D densities, these are 2D; give method='emd'"
    with pytest.raises(SolverError, match=message):
        geonet.geodesic(*pair_2d, "linear-program", method="emd_1d")


def test_unknown_methods_are_refused():
    with pytest.raises(SolverError, match="no method 'sort'; choose from emd, emd_1d"):
        geonet.solver("linear-program", method="sort")
