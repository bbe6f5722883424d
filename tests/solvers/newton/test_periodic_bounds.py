"""Tests of bounds on periodic axes."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from geonet.solvers.newton.bounds import bound_barycenter, bound_distance
from geonet.solvers.newton.unbalanced_bounds import bound_unbalanced


def noise(*shape, seed=0):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def circle_distance(source, target):
    """Return W2 of positive densities on a circle of length one, by shifts of the quantiles."""
    edges = np.linspace(-2, 3, 5 * len(source) + 1)
    sums = []
    for values in (source, target):
        mass = np.tile(values.numpy() / float(values.sum()), 5)
        sums.append(np.concatenate([[0], mass.cumsum()]) - 2)

    def square(shift):
        levels = np.concatenate([sums[0], sums[1] - shift])
        levels = np.unique(np.append(levels[(levels > 0) & (levels < 1)], [0.0, 1.0]))
        gap = np.interp(levels, sums[0], edges) - np.interp(levels + shift, sums[1], edges)
        terms = gap[1:] ** 2 + gap[1:] * gap[:-1] + gap[:-1] ** 2
        return float(terms @ np.diff(levels)) / 3

    shifts = np.linspace(-1, 1, 101)
    best = shifts[np.argmin([square(s) for s in shifts])]
    found = minimize_scalar(
        square, bounds=(best - 0.02, best + 0.02), method="bounded", options={"xatol": 1e-10}
    )
    return float(np.sqrt(found.fun))


@pytest.mark.parametrize("n", [2, 7, 24])
def test_bounds_on_circles(n):
    source, target = noise(n, seed=n) ** 4 + 1e-3, noise(n, seed=n + 1) ** 4 + 1e-3
    truth = circle_distance(source, target)
    for seed, size in enumerate((0.0, 1e-3, 0.01, 0.1)):
        for cells in (n, 2 * n, n + 1):
            u = size * (noise(cells, seed=seed) - 0.5)
            lower, upper = bound_distance(u, source, target, (1.0,), truth, periodic=(True,))
            assert lower <= truth <= upper


def wave(n, size=0.01):
    """Return u = size·sin 2πy on a circle, both ends for a uniform density at t = ½, and W2."""
    y = np.linspace(-1, 2, 3000 * n + 1)
    slope = 2 * np.pi * size * np.cos(2 * np.pi * y)
    edges = np.linspace(0, 1, n + 1)
    ends = [torch.from_numpy(np.diff(np.interp(edges, y + s * slope, y))) * n for s in (-0.5, 0.5)]
    values = size * torch.sin(2 * torch.pi * (torch.arange(n).double() + 0.5) / n)
    c = values - (values.roll(1) - 2 * values + values.roll(-1)) / 8
    return c, ends, 2 * np.pi * size / np.sqrt(2)


def waves(n, periodic):
    """Return the product of a wave along the periodic axes with a uniform density."""
    c, ends, distance = wave(n)
    if all(periodic):
        c = c[:, None] + c
        return c, [end[:, None] * end for end in ends], np.sqrt(2) * distance
    fields = [values.expand(n, n) for values in (c, *ends)]
    fields = [values.T if periodic[0] else values for values in fields]
    return fields[0], fields[1:], distance


PERIODIC = [(True, False), (False, True), (True, True)]


@pytest.mark.parametrize("periodic", PERIODIC)
def test_waves_are_bounded_closely(periodic):
    c, ends, truth = waves(32, periodic)
    for shift in (0, 11):
        own = [values.roll((shift, shift), (0, 1)) for values in (c, *ends)]
        lower, upper = bound_distance(*own, (1.0, 1.0), truth, periodic=periodic)
        assert lower**2 <= truth**2 + 0.3 / 32**2 and upper**2 >= truth**2 - 0.3 / 32**2
        assert upper - lower < 0.05 * truth


@pytest.mark.parametrize("periodic", PERIODIC)
def test_waves_with_a_reach(periodic):
    c, (source, target), distance = waves(32, periodic)
    lower, upper = bound_unbalanced(c, source, 1.3 * target, (1.0, 1.0), periodic, 2.0)
    assert upper - lower < 0.02 * lower
    own = [values.roll((11, 11), (0, 1)) for values in (c, source, 1.3 * target)]
    rolled = bound_unbalanced(*own, (1.0, 1.0), periodic, 2.0)
    assert rolled == pytest.approx((lower, upper), rel=2e-3)
    lower, upper = bound_unbalanced(c, source, target, (1.0, 1.0), periodic, 1e3)
    assert lower <= distance**2 / 2 + 0.15 / 32**2 and upper >= distance**2 / 2 - 0.15 / 32**2


@pytest.mark.parametrize("periodic", PERIODIC)
def test_barycenters_of_waves(periodic):
    """The objective of two densities with equal weights is ¼W2², and the barycenter is uniform."""
    c, ends, distance = waves(32, periodic)
    psi, weights = torch.stack([-c / 2, c / 2]), torch.tensor([0.5, 0.5])
    value, density = distance**2 / 4, torch.ones(32, 32)
    sides = 1.0, 1.0
    lower, upper = bound_barycenter(
        psi, weights, torch.stack(ends), density, sides, periodic, value
    )
    assert lower <= value + 0.1 / 32**2 and upper >= value - 0.1 / 32**2
    assert upper - lower < 0.1 * value


def test_three_periodic_axes():
    """A shift by one of four cells; the torus has no faces."""
    density = torch.zeros(4, 5, 3).double()
    density[3, 4, 2] = 1.0
    shifted = density.roll((1, 1, 1), (0, 1, 2))
    sides, truth = (0.8, 1.0, 0.6), 0.2 * np.sqrt(3)
    for u in (torch.zeros(4, 5, 3), 0.05 * noise(4, 5, 3)):
        lower, upper = bound_distance(u, density, shifted, sides, truth, periodic=(True,) * 3)
        assert lower <= truth <= upper
