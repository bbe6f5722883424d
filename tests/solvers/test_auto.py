import math

import pytest
import torch

import geonet
from geonet import Density, Grid
from geonet.geodesics.midpoint.path import MidpointGeodesic
from geonet.measures.metrics import l1
from geonet.solvers import auto
from geonet.solvers.auto import Auto
from geonet.training.problem import FAMILIES


@pytest.fixture
def batch_2d():
    """Four of the paper's pairs without their formulas, on few cells."""
    ends = FAMILIES["mixtures-2d"]().densities(4, torch.Generator().manual_seed(5))
    grid = ends[0].grid.with_shape(32)
    return tuple(Density(end.resample(grid).values, grid) for end in ends)


@pytest.fixture
def blocks():
    """Two squares far apart, with nothing around them."""
    grid = Grid((32, 32), 0.0, 5.0)
    values = torch.zeros(2, 32, 32, dtype=torch.float64)
    values[0, 2:6, 2:6] = values[1, 20:24, 20:24] = 1
    return Density(values[0], grid), Density(values[1], grid)


def together(first: Density, second: Density) -> Density:
    return Density(torch.stack([first.values, second.values]), first.grid)


def test_one_dimension_goes_to_quantiles(pair_1d):
    assert geonet.geodesic(*pair_1d).report.solver == "quantile"


def test_pairs_like_those_of_the_training_go_to_the_trained_operator(pair_2d):
    path = geonet.geodesic(*pair_2d)
    assert path.solver == path.report.solver == "transport-2d"
    assert path.report.in_distribution is True
    assert path.velocity(0.5, [[2.0, 2.0]]).shape == (1, 2)
    exact = geonet.geodesic(*pair_2d, learned=False)
    assert float(l1(path.density(0.5), exact.density(0.5))) < 0.01
    assert float(path.distance) == pytest.approx(float(exact.distance), rel=0.01)


def test_in_space_too():
    source, target = FAMILIES["mixtures-3d"]().densities(1, torch.Generator().manual_seed(6))
    assert geonet.geodesic(source[0], target[0]).solver == "transport-3d"


@pytest.mark.parametrize("learned", [True, False])
def test_foreign_pairs_go_to_another_solver(blocks, learned):
    path = geonet.geodesic(*blocks, learned=learned)
    assert path.solver == "schrodinger"
    assert "in_distribution" not in path._checks()


def test_smooth_positive_densities_go_to_monge_ampere(pair_2d):
    report = geonet.geodesic(*pair_2d, learned=False).report
    assert report.solver == "monge-ampere" and report.notes["residual"] < 1e-3


def test_smooth_densities_that_the_operator_cannot_do_go_to_monge_ampere():
    grid = Grid((64, 64))
    ends = [Density(1 + 0.2 * torch.cos(18 * torch.pi * x), grid) for x in grid.points().unbind(-1)]
    path = geonet.geodesic(*ends)
    assert path.solver == "monge-ampere"


def test_the_tolerance_is_that_of_monge_ampere(pair_2d):
    ends = [end.resample(end.grid.with_shape(16)) for end in pair_2d]
    assert geonet.geodesic(*ends, learned=False, tolerance=0.05).solver == "monge-ampere"
    path = geonet.geodesic(*ends, learned=False, tolerance=1e-9)
    assert path.solver == "schrodinger"
    assert "above its tolerance 1.0e-09" in path.notes["instead of monge-ampere"]


@pytest.fixture
def squares():
    """Two large ones that overlap."""
    grid = Grid((60, 60))
    values = torch.zeros(2, 60, 60)
    values[0, 5:55, 5:55] = values[1, 2:52, 8:58] = 1
    return Density(values[0], grid), Density(values[1], grid)


def test_sharp_edges_go_to_the_bridge_and_the_report_says_why(squares):
    path = geonet.geodesic(*squares, learned=False)
    report = path.report
    assert report.solver == path.solver == "schrodinger"
    assert "zero in 1100 of 3600 cells" in report.notes["instead of monge-ampere"]
    shift = math.hypot(3, 3) / 60
    assert report.distance == pytest.approx(shift, rel=1e-3)
    assert report.distance_lower_bound <= shift * (1 + 1e-6)  # these are float32
    assert report.distance_upper_bound == pytest.approx(shift, rel=0.15)


def test_atoms_go_to_the_linear_program():
    """Of points scattered over the cells; solid shapes of as many cells are none."""
    grid, scattered = Grid((40, 40)), torch.zeros(2, 1600, dtype=torch.float64)
    for row, seed in zip(scattered, (0, 1), strict=True):
        row[torch.randperm(1600, generator=torch.Generator().manual_seed(seed))[:90]] = 1
    ends = [Density(row.reshape(40, 40), grid) for row in scattered]
    assert geonet.geodesic(*ends).solver == "linear-program"
    solid = torch.zeros(40, 40, dtype=torch.float64)
    solid[5:15, 20:29] = 1
    assert geonet.geodesic(ends[0], Density(solid, grid)).solver == "schrodinger"


@pytest.mark.parametrize("limit", ["too many cells", "no convergence"])
def test_what_the_bridge_cannot_do_goes_to_the_linear_program(squares, monkeypatch, limit):
    if limit == "too many cells":
        monkeypatch.setattr(auto, "MOST_CELLS", 3599)
    else:
        monkeypatch.setattr(auto, "MET", 1e-30)
    report = geonet.geodesic(*squares, learned=False).report
    assert report.solver == "linear-program"
    assert "zero in 1100 of 3600 cells" in report.notes["instead of monge-ampere"]
    assert "cells on" in report.notes["solved on"]


def test_what_is_better_than_noise_is_taken_and_says_why(squares, monkeypatch):
    """Where only these two are left, by the error that the operator expects of itself."""
    path = geonet.geodesic(*squares)
    assert path.solver == "transport-2d"
    assert path.report.in_distribution is False
    assert "zero in 1100 of 3600 cells" in path.report.notes["instead of monge-ampere"]
    monkeypatch.setattr(auto, "POOR", 0.5 * path.report.error_estimate)
    assert geonet.geodesic(*squares).solver == "schrodinger"


def test_a_batch_like_the_training_is_answered_at_once(batch_2d):
    path = geonet.geodesic(*batch_2d)
    assert isinstance(path, MidpointGeodesic)
    assert path.solver == "transport-2d" and path.batch == (4,)
    alone = geonet.geodesic(batch_2d[0][2], batch_2d[1][2])
    assert torch.allclose(path.density(0.5).values[2], alone.density(0.5).values, atol=1e-4)


def test_a_batch_of_formulas_is_answered_pair_by_pair():
    source, target = FAMILIES["mixtures-2d"]().densities(2, torch.Generator().manual_seed(7))
    assert source.mixture is not None
    path = geonet.geodesic(source, target)
    assert path.solver == "transport-2d" and path.batch == (2,)
    assert path.report.in_distribution == [True, True]


def test_each_pair_of_a_batch_gets_its_own(pair_2d, blocks):
    path = geonet.geodesic(*(together(*ends) for ends in zip(pair_2d, blocks, strict=True)))
    assert path.solver == "transport-2d, schrodinger"
    report = path.report
    assert report.notes["epsilon"][0] is None
    assert report.in_distribution == [True, None]
    assert report.mismatch[0] > 0 and report.mismatch[1] is None
    assert "True, None" in str(report)
    assert path.density(0.5).values.shape == (2, *pair_2d[0].grid.shape)


def test_without_trained_models(pair_2d, blocks, monkeypatch):
    monkeypatch.setattr(auto, "_transport", lambda *_: pytest.fail("asked"))
    path = geonet.geodesic(
        *(together(*ends) for ends in zip(pair_2d, blocks, strict=True)), learned=False
    )
    assert path.solver == "monge-ampere, schrodinger"
    assert path.report.notes["residual"][1] is None


def test_gaussians_given_by_formula_go_to_bures():
    grid = Grid((32, 32))
    ends = [geonet.GaussianMixture.isotropic([[c, c]], 0.08).on(grid) for c in (0.35, 0.65)]
    path = geonet.geodesic(*ends)
    assert path.solver == "bures"
    assert abs(float(path.distance) - 0.3 * 2**0.5) < 1e-12
    outside = geonet.GaussianMixture.isotropic([[0.05, 0.5]], 0.08).on(grid)
    assert geonet.geodesic(outside, ends[1]).solver != "bures"


def test_options():
    assert (Auto().learned, Auto(learned=False).learned) == (True, False)
    with pytest.raises(geonet.errors.SolverError, match="it takes true or false"):
        geonet.solver("auto", learned=1)
