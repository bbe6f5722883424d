"""Displacement interpolation in 1D against analytic paths."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

import geonet
from geonet import Density, Grid
from geonet.metrics import l1, mass_error
from geonet.mixture import BOX_1D, mixtures_1d
from geonet.numerics.interpolation import resample

QUARTERS = [0.25, 0.5, 0.75]


def analytic_path(source, target, t, edges):
    """Return the masses of μ_t between `edges` from the distribution functions of the mixtures."""

    def distribution(mixture):
        means, stds = mixture.means[:, 0].numpy(), mixture.covariances[:, 0, 0].sqrt().numpy()
        lower, upper = (norm.cdf(x, means, stds).mean() for x in (0.0, 10.0))
        return lambda x: (norm.cdf(x, means, stds).mean() - lower) / (upper - lower)

    first, second = distribution(source), distribution(target)

    def transport(x):
        level = first(x)
        return brentq(lambda y: second(y) - level, 0.0, 10.0, xtol=1e-13)

    def level_at(position):
        if position in (0.0, 10.0):
            return position / 10.0
        return first(
            brentq(lambda x: (1 - t) * x + t * transport(x) - position, 0.0, 10.0, xtol=1e-12)
        )

    return np.diff([level_at(float(e)) for e in edges])


def test_a_fine_grid_agrees_with_the_analytic_path(generator):
    """20,000 cells are the reference of the next test."""
    source, target = mixtures_1d(2, generator)
    fine = BOX_1D.with_shape(20_000)
    path = geonet.geodesic(source.to_density(fine), target.to_density(fine), "quantile")
    averages = resample(path.density(0.5).tensor, fine, BOX_1D)
    exact = analytic_path(source, target, 0.5, BOX_1D.edges()[0]) / BOX_1D.cell_volume
    assert float((averages - torch.as_tensor(exact)).abs().sum() * BOX_1D.cell_volume) < 1e-5


def test_paper_mixtures_at_100_cells(generator):
    source, target = mixtures_1d(50, generator), mixtures_1d(50, generator)
    fine = BOX_1D.with_shape(20_000)
    truth = geonet.geodesic(source, target, "quantile", grid=fine).density(QUARTERS).tensor
    truth = Density.from_unnormalized(resample(truth, fine, BOX_1D), BOX_1D)
    path = geonet.geodesic(source, target, "quantile", grid=BOX_1D)
    assert float(l1(path.density(QUARTERS), truth).mean(0).max()) < 3e-3


def test_large_batch(generator):
    source, target = (mixtures_1d(10_000, generator).to_density(BOX_1D) for _ in range(2))
    frames = geonet.geodesic(source, target, "quantile").density(torch.linspace(0, 1, 11))
    assert frames.tensor.shape == (10_000, 11, 100)
    assert float(mass_error(frames).max()) < 1e-12


def test_piecewise_constant_by_hand():
    """[0, 1] moves to [3, 4]: at t = ½ the mass fills [1.5, 2.5]."""
    grid = Grid(8, 0.0, 4.0)
    values = torch.tensor([[1.0, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1]]).double()
    path = geonet.geodesic(*(Density(end, grid) for end in values), "quantile")
    assert float(path.distance) == pytest.approx(3)
    assert torch.allclose(
        path.density(0.5).tensor, torch.tensor([0, 0, 0, 1, 1, 0, 0, 0], dtype=torch.float64)
    )
    quarter_cell = path.density(0.25).tensor  # [0.75, 1.75]
    expected = torch.tensor([0, 0.5, 1, 0.5, 0, 0, 0, 0], dtype=torch.float64)
    assert torch.allclose(quarter_cell, expected)
    assert torch.allclose(
        path.velocity(0.5, [1.6, 2.4]).flatten(), torch.tensor([3.0, 3.0]).double()
    )
    assert torch.allclose(
        path.trajectories([0.0, 0.5, 1.0], [0.2]).flatten(), torch.tensor([0.2, 1.7, 3.2]).double()
    )


def test_mass_splits_at_a_gap():
    """Half of the mass moves left and half right."""
    grid = Grid(8, 0.0, 8.0)
    path = geonet.geodesic(
        Density([0, 0, 0, 1, 1, 0, 0, 0], grid), Density([1, 0, 0, 0, 0, 0, 0, 1], grid), "quantile"
    )
    assert float(path.distance) == pytest.approx(3)
    half = path.density(0.5).tensor
    assert torch.allclose(half, torch.tensor([0, 0.25, 0.25, 0, 0, 0.25, 0.25, 0]).double())
    assert torch.allclose(path.density(1.0).tensor, path.target.tensor)


def test_single_precision(pair_1d):
    source, target = pair_1d
    single = [Density(end.tensor.float(), end.grid) for end in pair_1d]
    path = geonet.geodesic(source, target, "quantile")
    assert float(l1(geonet.geodesic(*single, "quantile").density(0.5), path.density(0.5))) < 1e-5


def test_continuity_equation(pair_1d):
    """d/dt ∫φ dμ_t = ∫φ' v dμ_t for a test function φ."""
    path = geonet.geodesic(*pair_1d, "quantile")
    x, h, step = BOX_1D.axes()[0], BOX_1D.cell_volume, 1e-3
    later, earlier = (path.density(0.5 + s * step).tensor for s in (1, -1))
    change = (torch.sin(x) * (later - earlier)).sum() * h / (2 * step)
    flux = (torch.cos(x) * path.velocity(0.5, x)[..., 0] * path.density(0.5).tensor).sum() * h
    assert float(change) == pytest.approx(float(flux), abs=2e-3)
