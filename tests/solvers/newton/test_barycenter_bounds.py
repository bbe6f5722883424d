"""Tests of the bounds of barycenters: valid for any potentials, tight for good ones."""

import numpy as np
import pytest
import torch

import geonet
from geonet.density import Density
from geonet.grid import Grid
from geonet.solvers.newton.bounds import bound_barycenter


def noise(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def quantiles(density, levels):
    """Return the quantile function of a density that is constant in cells of the unit interval."""
    mass = density.numpy() / float(density.sum())
    edges = np.linspace(0, 1, len(mass) + 1)
    return np.interp(levels, np.concatenate([[0], mass.cumsum()]), edges)


def objective(densities, weights, density=None):
    """Return Σ w_i W2²(ρ, μ_i) of positive densities on a line; ρ is the barycenter by default."""
    own = densities if density is None else torch.cat([densities, density[None]])
    levels = np.unique(np.concatenate([(d / d.sum()).cumsum(0).numpy() for d in own] + [[0.0]]))
    values = np.stack([quantiles(d, levels) for d in densities])
    centre = weights.numpy() @ values if density is None else quantiles(density, levels)
    gaps = values - centre
    squares = (gaps[:, 1:] ** 2 + gaps[:, 1:] * gaps[:, :-1] + gaps[:, :-1] ** 2) / 3
    return float(weights.numpy() @ (squares @ np.diff(levels)))


@pytest.mark.parametrize("n", [3, 24])
def test_bounds_on_lines(n):
    densities, weights = noise(3, n, seed=n) ** 3 + 0.01, torch.tensor([0.5, 0.3, 0.2]).double()
    density = noise(n, seed=2) + 0.01
    least, own = objective(densities, weights), objective(densities, weights, density)
    for seed, size in enumerate((0.0, 1e-3, 0.1)):
        psi = size * noise(3, n, seed=seed)
        lower, upper = bound_barycenter(psi, weights, densities, density, (1.0,), None, least)
        assert lower <= least <= own <= upper


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.8, 0.2), (0.5, 0.0, 0.5)])
def test_two_densities_give_the_geodesic(weights):
    """The objective of the barycenter of two densities is w₀w₁W2²; ψ = ±½u for w = ½."""
    grid = Grid((24, 24))
    x, y = (torch.arange(24).double() + 0.5).div(24)[:, None], (torch.arange(24) + 0.5)[None] / 24
    ends = [
        torch.exp(-((x - a) ** 2) / 0.02 - (y - b) ** 2 / s)
        for a, b, s in ((0.35, 0.4, 0.01), (0.6, 0.55, 0.02))
    ]
    path = geonet.geodesic(*(Density(end, grid) for end in ends), "midpoint")
    lower, upper = path._bounds
    w = torch.tensor(weights, dtype=torch.float64)
    kept = [k for k, own in enumerate(weights) if own > 0]
    densities = torch.rand(len(w), 24, 24).double()
    psi = torch.rand(len(w), *path.coefficients.shape).double()
    for k, end, s in zip(kept, ends, (-0.5, 0.5), strict=True):
        densities[k], psi[k] = end, s * path.coefficients
    share = float(w[kept[0]] * w[kept[1]])
    middle = path.density(0.5).tensor
    bounds = bound_barycenter(psi, w, densities, middle, (1.0, 1.0), None, share * lower**2)
    assert bounds[0] <= share * upper**2
    assert bounds[1] >= share * lower**2
    if weights[-1] == 0.5:
        assert bounds[0] > 0.96 * share * lower**2 and bounds[1] < 1.04 * share * upper**2


def test_translates_are_bounded_closely():
    """The objective is the variance of the shifts, and ψ_i are linear."""
    n, shifts, weights = 32, torch.tensor([0.0, 4.0, 10.0]).double(), torch.tensor([0.5, 0.3, 0.2])
    weights = weights.double() / weights.double().sum()
    lump = torch.exp(-((torch.arange(n) - 10.0) ** 2) / 8).double() * (torch.arange(n) < 20)
    densities = torch.stack([lump.roll(int(s)) for s in shifts])
    mean = float((weights * shifts).sum())
    truth = float((weights * (shifts - mean) ** 2).sum()) / n**2
    x = (torch.arange(n).double() + 0.5) / n
    psi = torch.stack([(s - mean) / n * x for s in shifts])
    lower, _ = bound_barycenter(psi, weights, densities, lump.roll(4), (1.0,), None, truth)
    assert 0.97 * truth < lower <= truth


def test_bounds_without_kernels(monkeypatch):
    densities, density, results = noise(2, 6, 5), noise(6, 5, seed=1), []
    psi, weights = 0.01 * noise(2, 6, 5, seed=2), torch.tensor([0.4, 0.6])
    for choice in ("1", "0"):
        monkeypatch.setenv("GEONET_COMPILED", choice)
        sides = (1.0, 0.8)
        results.append(bound_barycenter(psi, weights, densities, density, sides, None, 0.01))
    assert results[0] == pytest.approx(results[1], rel=1e-6)
