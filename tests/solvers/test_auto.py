import torch

import geonet
from geonet import Density, Grid


def test_one_dimension_goes_to_quantiles(pair_1d):
    assert geonet.geodesic(*pair_1d).report.solver == "quantile"


def test_smooth_positive_densities_go_to_monge_ampere(pair_2d):
    report = geonet.geodesic(*pair_2d).report
    assert report.solver == "monge-ampere" and report.notes["residual"] < 1e-3


def test_the_rest_goes_to_the_linear_program_and_says_why():
    grid = Grid((60, 60))
    values = torch.zeros(2, 60, 60)
    values[0, 5:55, 5:55] = values[1, 2:52, 8:58] = 1
    path = geonet.geodesic(Density(values[0], grid), Density(values[1], grid))
    report = path.report
    assert report.solver == path.solver == "linear-program"
    assert "zero in 1100 of 3600 cells" in report.notes["instead of monge-ampere"]
    assert "cells on" in report.notes["solved on"]


def test_each_pair_of_a_batch_gets_its_own(pair_2d):
    grid = pair_2d[0].grid
    blocks = torch.zeros(2, *grid.shape, dtype=torch.float64)
    blocks[0, 2:6, 2:6] = blocks[1, 20:24, 20:24] = 1
    ends = [Density(torch.stack([e.values, b]), grid) for e, b in zip(pair_2d, blocks, strict=True)]
    path = geonet.geodesic(*ends)
    assert path.solver == "monge-ampere, linear-program"
    assert path.report.notes["residual"][1] is None
    assert path.density(0.5).values.shape == (2, *grid.shape)


def test_gaussians_given_by_formula_go_to_bures():
    grid = Grid((64, 64))
    ends = [geonet.GaussianMixture.isotropic([[c, c]], 0.08).on(grid) for c in (0.35, 0.65)]
    path = geonet.geodesic(*ends)
    assert path.solver == "bures"
    assert abs(float(path.distance) - 0.3 * 2**0.5) < 1e-12
    outside = geonet.GaussianMixture.isotropic([[0.05, 0.5]], 0.08).on(grid)
    assert geonet.geodesic(outside, ends[1]).solver != "bures"
